"""Act in accounts bar by bar, and estimate advantages: a rollout of M agents as one program of tensors.

Prices do not depend on what an agent does, so its network has read all bars of a rollout before the first
action. What is left is to pick, bar by bar, from outputs for every position held: for discrete actions one
lookup a bar.

Rewards are log growths in units of a bar's, in float64. An episode that reaches its time limit is truncated:
what would have come is the value of the bar after it. Ruin ends it. At a hole a position is closed, and the
account goes on flat after it.

Shapes: M agents, L lanes, S bars of a rollout, P positions, O outputs, E bars after which an episode ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from trainer.targets.position_account import Terms, growth, ruined
from trainer.targets.position_policy import log_chances_of_each, mean_and_log_deviation


@dataclass(frozen=True, kw_only=True)
class Bars:
    """The bars of a rollout. An account is flat after a bar that `closes` or `ends`."""

    log_return_MLS: torch.Tensor  # float64, of the bar that is held
    closes_MLS: torch.Tensor  # bool: a hole follows
    ends_MLS: torch.Tensor  # bool: its episode is over, by time; also at the last bar, where the rollout ends


@dataclass(frozen=True, kw_only=True)
class Acted:
    """Positions and actions of a rollout. A position is its place among the target's (int64), or a share
    (float64) with continuous actions; an action is the next position, or the number that was drawn and then
    clipped.
    """

    held_MLS: torch.Tensor  # before the bar's trade
    action_MLS: torch.Tensor
    share_MLS: torch.Tensor  # float64, after it
    ruined_MLS: torch.Tensor  # bool
    last_ML: torch.Tensor  # held after the last bar, if the episode goes on


def flat_of(target: Terms) -> int | float:
    """Return an account without a position."""
    return 0.0 if target.is_continuous else target.flat


def bars_of(log_return_MLS: torch.Tensor, first_MLS: torch.Tensor, next_MLS: torch.Tensor) -> Bars:
    """Return the bars of a rollout by the first rows of their windows, and of those that follow in the
    series.

    A window that does not begin one row later lies behind a hole.
    """
    ends_MLS = torch.ones_like(first_MLS, dtype=torch.bool)
    ends_MLS[..., :-1] = next_MLS[..., :-1] != first_MLS[..., 1:]
    return Bars(log_return_MLS=log_return_MLS, closes_MLS=next_MLS != first_MLS + 1, ends_MLS=ends_MLS)


def act(
    target: Terms, outputs_MLSO: torch.Tensor, draws_MLS: torch.Tensor, held_ML: torch.Tensor, bars: Bars
) -> Acted:
    """Act by the outputs, from the positions held at the first bar on. `draws` are uniform in (0, 1)."""
    if target.is_continuous:
        return _act_freely(target, outputs_MLSO, draws_MLS, held_ML, bars)
    chances = log_chances_of_each(target, outputs_MLSO).exp()
    # By position held, whatever it will be: the last position takes what rounding leaves.
    next_MLSP = (chances.cumsum(-1)[..., :-1] <= draws_MLS[..., None, None]).sum(-1)
    return follow(target, next_MLSP, held_ML, bars)


def follow(target: Terms, next_MLSP: torch.Tensor, held_ML: torch.Tensor, bars: Bars) -> Acted:
    """Take from bar to bar the next position (M, L, S, P) of the one held: accounts of discrete actions."""
    shares_P = _shares_on(next_MLSP.device, target.positions)
    is_ruin_MLSP = ruined(shares_P[next_MLSP], bars.log_return_MLS[..., None])
    flat_MLSP = is_ruin_MLSP | bars.closes_MLS[..., None]
    after_MLSP = torch.where(flat_MLSP, target.flat, next_MLSP)
    is_over_MLS1 = _over(bars)[..., None]
    held = [held_ML]
    for after_each in torch.where(is_over_MLS1, target.flat, after_MLSP).unbind(2)[:-1]:
        held.append(after_each.gather(-1, held[-1][..., None]).squeeze(-1))
    held_MLS = torch.stack(held, dim=2)

    def taken(each_MLSP: torch.Tensor) -> torch.Tensor:
        return each_MLSP.gather(-1, held_MLS[..., None]).squeeze(-1)

    action_MLS = taken(next_MLSP)
    return Acted(
        held_MLS=held_MLS,
        action_MLS=action_MLS,
        share_MLS=shares_P[action_MLS],
        ruined_MLS=taken(is_ruin_MLSP),
        last_ML=taken(after_MLSP)[..., -1],
    )


def _act_freely(
    target: Terms, outputs_MLSO: torch.Tensor, draws_MLS: torch.Tensor, held_ML: torch.Tensor, bars: Bars
) -> Acted:
    """Act with continuous actions: normal ones around the mean, clipped to the limits."""
    normal_MLS = torch.special.ndtri(draws_MLS)
    low, high = target.positions[0], target.positions[-1]
    is_over_MLS = _over(bars)
    held, actions, shares, ruins = [held_ML], [], [], []
    after_ML = held_ML
    for bar, outputs_MLO in enumerate(outputs_MLSO.unbind(2)):
        mean_ML, log_deviation_ML = mean_and_log_deviation(target, outputs_MLO.double(), held[-1])
        actions.append(mean_ML + log_deviation_ML.exp() * normal_MLS[..., bar])
        shares.append(actions[-1].clamp(low, high))
        ruins.append(ruined(shares[-1], bars.log_return_MLS[..., bar]))
        after_ML = torch.where(ruins[-1] | bars.closes_MLS[..., bar], 0.0, shares[-1])
        held.append(torch.where(is_over_MLS[..., bar], 0.0, after_ML))
    return Acted(
        held_MLS=torch.stack(held[:-1], dim=2),
        action_MLS=torch.stack(actions, dim=2),
        share_MLS=torch.stack(shares, dim=2),
        ruined_MLS=torch.stack(ruins, dim=2),
        last_ML=after_ML,
    )


@lru_cache(maxsize=8)
def _shares_on(device: torch.device, positions: tuple[float, ...]) -> torch.Tensor:
    """Return the positions (P,) float64 on a device. Kept: nothing is sent while a graph is recorded."""
    return torch.tensor(positions, dtype=torch.float64, device=device)


def _over(bars: Bars) -> torch.Tensor:
    """Return whether the next bar of a rollout is of another episode (M, L, S)."""
    over_MLS = bars.ends_MLS.clone()
    over_MLS[..., -1] = False
    return over_MLS


def grown(target: Terms, acted: Acted, bars: Bars) -> torch.Tensor:
    """Return the log growth (M, L, S) float64 of each bar after costs."""
    held_MLS = acted.held_MLS
    if not target.is_continuous:
        held_MLS = _shares_on(held_MLS.device, target.positions)[held_MLS]
    made_MLS: torch.Tensor = growth(held_MLS, acted.share_MLS, bars.log_return_MLS, target.cost)
    closed_MLS = bars.closes_MLS & ~acted.ruined_MLS
    closing_MLS = torch.log1p(-target.cost * acted.share_MLS.abs())
    return made_MLS + torch.where(closed_MLS, closing_MLS, 0.0)


def ends_of(bars: Bars, most: int) -> torch.Tensor:
    """Return the bars (M, L, E) int64 of a rollout at which episodes end, `most` before the last bar, and the
    last; fewer ends leave the last bar several times.
    """
    last = bars.ends_MLS.shape[-1] - 1
    place_S = torch.arange(last + 1, device=bars.ends_MLS.device)
    ends_MLS = torch.where(_over(bars), place_S, last)
    first = ends_MLS.topk(min(most, last), largest=False, sorted=True).values
    return torch.cat((first, torch.full_like(ends_MLS[..., :1], last)), dim=2)


def held_after(target: Terms, acted: Acted, bars: Bars, ends_MLE: torch.Tensor) -> torch.Tensor:
    """Return what is held (M, L, E) after bars at which an episode ends, if it went on."""
    kept_MLS = acted.share_MLS if target.is_continuous else acted.action_MLS
    return torch.where(bars.closes_MLS, flat_of(target), kept_MLS).gather(-1, ends_MLE)


def next_values(value_MLS: torch.Tensor, ends_MLE: torch.Tensor, value_MLE: torch.Tensor) -> torch.Tensor:
    """Return the value (M, L, S) of what follows each bar: of the next bar, and where an episode ends
    `value_MLE`.
    """
    return value_MLS.roll(-1, dims=-1).scatter(-1, ends_MLE, value_MLE)


def advantages(
    reward_MLS: torch.Tensor,
    value_MLS: torch.Tensor,
    next_MLS: torch.Tensor,
    *,
    ruined_MLS: torch.Tensor,
    ends_MLS: torch.Tensor,
    discount: float,
    trace: float,
) -> torch.Tensor:
    """Return generalized advantage estimates (M, L, S) (Schulman and others 2015, equation 16:
    https://arxiv.org/abs/1506.02438). `next_MLS` are the values of what follows, of which a ruined account
    has none; an episode's end cuts the trace.
    """
    error_MLS = reward_MLS + discount * torch.where(ruined_MLS, 0.0, next_MLS) - value_MLS
    decay_MLS = discount * trace * (~(ruined_MLS | ends_MLS)).double()
    made, advantage_ML = list[torch.Tensor](), torch.zeros_like(error_MLS[..., 0])
    for error_ML, decay_ML in zip(error_MLS.unbind(-1)[::-1], decay_MLS.unbind(-1)[::-1], strict=True):
        advantage_ML = torch.addcmul(error_ML, decay_ML, advantage_ML)
        made.append(advantage_ML)
    return torch.stack(made[::-1], dim=-1)


def drawdowns(growth_MLS: torch.Tensor) -> torch.Tensor:
    """Return each lane's largest loss since a peak (M, L), as a share of it."""
    worth_MLS = torch.nn.functional.pad(growth_MLS.cumsum(-1), (1, 0))
    return -torch.expm1((worth_MLS - worth_MLS.cummax(-1).values).amin(-1))
