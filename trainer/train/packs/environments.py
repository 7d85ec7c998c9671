"""Agents that act in environments of the user's own: a step is a rollout of their lanes, and PPO's updates.

The lanes are stepped on the CPU, in processes where this one has several cores; network, loss, updates and
optimizer are those of `agents`. Rewards are in a unit of a random policy's discounted sums, so that a value
has the size of 1 whatever a reward's unit is: a larger one's error would drown the policy's gradient.

Shapes: M agents, L lanes, S bars of a rollout in a lane, D numbers of an observation, A numbers of an action
(1 of a discrete one), B bars of a slice, O outputs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import cast

import numpy as np
import torch

from trainer.data.read.candles import Candles
from trainer.job.job import Job
from trainer.targets.environment import AHEAD, EnvironmentTarget
from trainer.targets.environment_policy import drawn, judged, value
from trainer.targets.environment_steps import random_policy
from trainer.train.agents.lanes import EpisodeLane, HereLanes, LanePlace, Lanes, Processes, Stepped
from trainer.train.agents.ppo import Experience, clipped_losses, normalized
from trainer.train.agents.rollout import advantages
from trainer.train.packs.agents import Agents, uniform
from trainer.train.packs.pack import Member
from trainer.train.seeds import derive

# Buffers of a state, by lane: the number of its episode, and how many actions and which it took in it.
NUMBER, TAKEN, ACTIONS = "agent.episode", "agent.taken", "agent.actions"
# Seconds of a step of a process's lanes from which on it pays: at 16 lanes of 23 us each, two processes made
# 23,800 steps/s and none 44,000, at 64 lanes 44,900 and 39,700, at 256 73,200 and 38,500 (2 cores of an AMD
# EPYC, 2026-11-27).
ASK_SECONDS = 7e-4
UNIT_BARS = 4_096  # of training at most, from which the unit of rewards is taken


@dataclass(frozen=True, kw_only=True)
class _Bar:
    """A bar of a rollout (M, L, ...); tensors of all bars have S after L."""

    seen: torch.Tensor  # (M, L, D)
    action: torch.Tensor  # (M, L) int64, or (M, L, A) float64, not clipped
    outputs: torch.Tensor  # (M, L, O)
    after: torch.Tensor  # float64: the value of what followed, where the episode or the rollout ends
    reward: torch.Tensor  # float64
    terminated: torch.Tensor  # bool
    ended: torch.Tensor  # bool


class Environments(Agents):
    """The agents of a worker in environments of the user's own; see `Pack`."""

    def __init__(self, members: Sequence[Member], job: Job, *, micro_batch: int = 0, cores: int = 1) -> None:
        """Lanes are stepped here, or in processes on so many cores."""
        self._own, self._cores = cast(EnvironmentTarget, job.target), cores
        super().__init__(members, job, micro_batch=micro_batch)

    def _open(self) -> None:
        members, lanes = self._members, self._lanes
        longest = max(len(_candles(member)) for member in members)
        shape: tuple[int, ...] = (len(members), lanes, min(self._agent.episode, longest))
        shape, kind = (shape, np.int64) if self._own.choices else ((*shape, self._own.numbers), np.float64)
        self._actions = np.zeros(shape, dtype=kind)  # of the present episodes
        self._taken_ML = np.zeros((len(members), lanes), dtype=np.int64)
        self._number_ML = np.zeros((len(members), lanes), dtype=np.int64)
        began = time.perf_counter()
        units = [_unit(self._own, self._place(member, 0), self._agent.discount) for member in members]
        seconds = (time.perf_counter() - began) / sum(_unit_bars(_candles(member)) for member in members)
        self._units_M = torch.tensor(units, dtype=torch.float64, device=self._device)
        places = [self._place(member, lane) for member in members for lane in range(lanes)]
        processes = processes_of(len(places), cores=self._cores, step_seconds=seconds)
        if processes > 1:
            self._side: Lanes = Processes(self._own, places, processes=processes)
        else:
            self._side = HereLanes(self._own, places)

    def _place(self, member: Member, lane: int) -> LanePlace:
        seed = derive(member.seed, member.draws_as, "lane", lane)
        return LanePlace(candles=_candles(member), bars=self._agent.episode, seed=seed)

    @property
    def _is_recorded(self) -> bool:
        return False  # it waits for the environments

    def told(self, member: int) -> Mapping[str, float]:
        """See `Pack.told`: of the last rollout, entropy, and the sum of rewards of a lane."""
        entropy, rollout_return, _ = self._told_MK[member].tolist()
        return {"entropy": entropy, "rollout_return": rollout_return}

    def _accounts(self, member: int) -> dict[str, torch.Tensor]:
        taken_L = self._taken_ML[member]
        kept = {
            NUMBER: self._number_ML[member],
            TAKEN: taken_L,
            ACTIONS: self._actions[member, :, : max(1, taken_L.max())],
        }
        return {name: torch.from_numpy(values.copy()) for name, values in kept.items()}

    def _continue(self, member: int, accounts: Mapping[str, torch.Tensor]) -> None:
        self._number_ML[member], self._taken_ML[member] = 0, 0
        if NUMBER in accounts:
            self._number_ML[member] = accounts[NUMBER].cpu().numpy()
            self._taken_ML[member] = accounts[TAKEN].cpu().numpy()
            actions = accounts[ACTIONS].cpu().numpy()
            self._actions[member, :, : actions.shape[1]] = actions
        taken = zip(self._actions[member], self._taken_ML[member], strict=True)
        lanes = range(member * self._lanes, (member + 1) * self._lanes)
        self._side.begin(lanes, self._number_ML[member].tolist(), [each[:count] for each, count in taken])

    def _run(self) -> None:
        """Act for a rollout, then learn from it."""
        active_M = self._lengths_M > 0
        keys_KM2 = self._table_MSL2[self._numbers_M, self._places_M].transpose(0, 1)
        with torch.no_grad():
            made = self._rollout(keys_KM2[0], active_M)
            learnt = self._experience(made)
        self._shown_MND = made.seen.flatten(1, 2)
        taken_M = self._learn(self._places(), learnt, keys_KM2[1:], active_M)
        self._losses_M.copy_(torch.where(taken_M, -made.reward.mean((1, 2)), self._nan.double()))
        told = (self._entropy_M.double(), made.reward.sum(-1).mean(-1), torch.zeros_like(self._units_M))
        self._told_MK.copy_(torch.where(active_M[:, None], torch.stack(told, dim=1), self._told_MK))

    def _rollout(self, keys_M2: torch.Tensor, active_M: torch.Tensor) -> _Bar:
        """Act bar after bar; return all of them."""
        numbers, active_ML = max(1, self._own.numbers), active_M.cpu().numpy()[:, None]
        shape = (len(self._members), self._lanes, self._bars, numbers)
        draws_MLSA = uniform(keys_M2, self._lanes * self._bars * numbers).view(shape)
        seen_MLD, bars = self._tensor(self._side.seen()), list[_Bar]()
        for bar, draws_MLA in enumerate(draws_MLSA.unbind(2)):
            outputs_MLO = self._outputs_at(seen_MLD)
            action = drawn(self._own, outputs_MLO, draws_MLA)
            made = self._step(action.cpu().numpy(), np.broadcast_to(active_ML, shape[:2]))
            ended_ML = self._tensor(made.terminated | made.truncated)
            after_ML = torch.zeros(shape[:2], dtype=torch.float64, device=self._device)
            if ended_ML.any() or bar == self._bars - 1:  # else it is the value of the next bar
                after_ML = value(self._outputs_at(self._tensor(made.after))).double()
            bars.append(
                _Bar(
                    seen=seen_MLD,
                    action=action,
                    outputs=outputs_MLO,
                    after=after_ML,
                    reward=self._tensor(made.reward),
                    terminated=self._tensor(made.terminated),
                    ended=ended_ML,
                )
            )
            seen_MLD = self._tensor(made.seen)
        names = [item.name for item in fields(_Bar)]
        return _Bar(**{name: torch.stack([getattr(one, name) for one in bars], dim=2) for name in names})

    def _step(self, actions: np.ndarray, active_ML: np.ndarray) -> Stepped:
        """Take a step in all lanes of active members, and remember it."""
        made = self._side.step(actions.reshape(-1, *actions.shape[2:]), active_ML.reshape(-1))
        models, lanes = np.nonzero(active_ML)
        self._actions[models, lanes, self._taken_ML[models, lanes]] = actions[models, lanes]
        ended_ML = (made.terminated | made.truncated).reshape(active_ML.shape)
        self._taken_ML[active_ML] += 1
        self._taken_ML[ended_ML] = 0
        self._number_ML[ended_ML] += 1
        return made

    def _experience(self, made: _Bar) -> Experience:
        """Return what a rollout teaches."""
        log_chance_MLS, entropy_MLS = judged(self._own, made.outputs, made.action)
        self._entropy_M = entropy_MLS.mean((1, 2))
        value_MLS = value(made.outputs).double()
        ended_MLS = made.ended.clone()
        ended_MLS[..., -1] = True
        advantage_MLS = advantages(
            made.reward / self._units_M[:, None, None],
            value_MLS,
            torch.where(ended_MLS, made.after, value_MLS.roll(-1, dims=-1)),
            ruined_MLS=made.terminated,
            ends_MLS=ended_MLS,
            discount=self._agent.discount,
            trace=self._agent.trace,
        )
        return Experience(
            held=torch.zeros_like(value_MLS).flatten(1),  # part of what is seen
            action=made.action.flatten(1, 2),
            log_chance=log_chance_MLS.flatten(1),
            advantage=normalized(advantage_MLS.flatten(1)).to(self._dtype),
            value_target=(advantage_MLS + value_MLS).flatten(1).to(self._dtype),
        )

    def _losses_of(self, outputs_MBO: torch.Tensor, part: Experience) -> torch.Tensor:
        log_chance_MB, entropy_MB = judged(self._own, outputs_MBO, part.action)
        return clipped_losses(self._agent, log_chance_MB, entropy_MB, value(outputs_MBO), part)

    def _outputs_at(self, seen_MLD: torch.Tensor) -> torch.Tensor:
        """Return the outputs (M, L, O) for what lanes see."""
        self._shown_MND = seen_MLD
        return self._outputs(self._weights_MP, self._places())

    def _places(self) -> torch.Tensor:
        """Return the places (M, N) of all that is shown."""
        models, number = self._shown_MND.shape[:2]
        return torch.arange(number, device=self._device).expand(models, number)

    def _windows(self, starts_MB: torch.Tensor) -> torch.Tensor:
        """Return what is shown at these places (M, B, 1, D)."""
        models_M1 = torch.arange(len(starts_MB), device=self._device)[:, None]
        return self._shown_MND[models_M1, starts_MB][:, :, None]

    def _rows(self) -> list[torch.Tensor]:
        return [member.rows_TF for member in self._members]  # which it does not read

    def _tensor(self, values: np.ndarray) -> torch.Tensor:
        """Return values of all lanes (N, ...) by member (M, L, ...) on the device."""
        made = torch.from_numpy(values).to(self._device)
        made = made.to(self._dtype) if made.dtype == torch.float32 else made
        return made.view(len(self._members), self._lanes, *values.shape[1:])


def _candles(member: Member) -> Candles:
    assert member.candles is not None
    return member.candles


def processes_of(lanes: int, *, cores: int, step_seconds: float) -> int:
    """Return in how many processes to step lanes: as many as the cores, if a step of each one's lanes takes
    longer than to ask it; 1: in none besides this. Results are the same.
    """
    return max(1, min(cores, lanes, int(lanes * step_seconds / ASK_SECONDS)))


def _unit(target: EnvironmentTarget, place: LanePlace, discount: float) -> float:
    """Return the unit of rewards: the root of the mean square of a random policy's discounted sums of them in
    episodes of training, else 1. It keeps values near 1, as VecNormalize of Stable-Baselines3 does by a
    running estimate. As a value, a sum goes on after a time limit.
    """
    lane, act = EpisodeLane(target, place), random_policy(target)
    sums, total = list[float](), 0.0
    for _ in range(_unit_bars(place.candles)):
        made = lane.step(act(lane.seen))
        total = made.reward + discount * total
        sums.append(total)
        total = 0.0 if made.terminated else total
    return float(np.sqrt(np.mean(np.square(sums)))) or 1.0


def _unit_bars(candles: Candles) -> int:
    return min(UNIT_BARS, max(1, len(candles) - AHEAD))
