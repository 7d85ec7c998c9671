"""An agent's account: what a position held brings, after what it cost to get there. Float64.

The growth of a bar is log(1 - cost |position - held|) + log(1 + position R), R the return of the bar that is
held. An account that loses all but RUIN of its money in a bar is ruined: it starts anew, flat, at the next
bar. Before a hole, and at the end, the position is closed, at the same cost.

Shapes: N bars, P positions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

RUIN = 1e-3  # of the money that a bar leaves at least


class Terms(Protocol):
    """The terms of an account: positions and costs, from the settings of a target that acts."""

    @property
    def positions(self) -> tuple[float, ...]:
        """Return the positions (P,), ascending shares of the money."""

    @property
    def flat(self) -> int:
        """Return the place of 0 among them."""

    @property
    def cost(self) -> float:
        """Return the cost of what is traded, as a share of it."""

    @property
    def is_continuous(self) -> bool:
        """Return whether a position may be any share."""


@dataclass(frozen=True, kw_only=True)
class AccountBars:
    """An account by bar, (N,) float64: shares of the money, and log growth."""

    held: np.ndarray  # before the bar's trade
    position: np.ndarray  # after it
    turnover: np.ndarray  # traded at the bar, with what closes the position
    gross: np.ndarray  # without costs
    growth: np.ndarray  # with costs


def growth(held: Any, position: Any, log_return: Any, cost: float) -> Any:
    """Return the log growth (...) of a bar after costs: shares of the money and the log return of the bar
    that is held, numpy's arrays or torch's tensors alike.
    """
    traded = abs(position - held)
    return _lib(traded).log1p(-cost * traded) + gross_growth(position, log_return)


def gross_growth(position: Any, log_return: Any) -> Any:
    """Return the log growth (...) of a bar before costs."""
    return _lib(log_return).log(_worth(position, log_return).clip(min=RUIN))


def ruined(position: Any, log_return: Any) -> Any:
    """Return whether the bar ruins the account (...)."""
    return _worth(position, log_return) <= RUIN


def follows(labels_NK: Any) -> Any:
    """Return whether each bar (..., N) is the one directly after the row before it, of the same series;
    False of the first row. Labels (..., N, K).
    """
    begins_N, next_N = labels_NK[..., 1], labels_NK[..., 2]
    after_N = begins_N != begins_N  # all False, of its kind
    after_N[..., 1:] = begins_N[..., 1:] == next_N[..., :-1]
    return after_N


def account(terms: Terms, forecast_NP: np.ndarray, labels_NK: np.ndarray) -> AccountBars:
    """Return the account that takes the positions (N, P), by what it holds, on labels of `Position.label`."""
    returns_N, cost = labels_NK[:, 0].astype(np.float64), terms.cost
    after_N = follows(labels_NK)
    position_N = _positions(terms, forecast_NP, after_N, returns_N)
    ruined_N = ruined(position_N, returns_N)
    held_N = np.concatenate([[0.0], np.where(ruined_N, 0.0, position_N)[:-1]]) * after_N
    closed_N = np.append(~after_N[1:], True) & ~ruined_N  # the account goes no further
    closing_N = np.where(closed_N, abs(position_N), 0.0)
    gross_N = gross_growth(position_N, returns_N)
    return AccountBars(
        held=held_N,
        position=position_N,
        turnover=abs(position_N - held_N) + closing_N,
        gross=gross_N,
        growth=growth(held_N, position_N, returns_N, cost) + np.log1p(-cost * closing_N),
    )


def drawdown(growth_N: np.ndarray) -> float:
    """Return the largest loss since a peak, as a share of it, by log growth (N,)."""
    worth_N = np.concatenate([[0.0], np.cumsum(growth_N)])
    return 0.0 - float(np.expm1((worth_N - np.maximum.accumulate(worth_N)).min()))


def sharpe(growth_N: np.ndarray) -> float:
    """Return the mean of bars (N,) over their deviation, not annualized; 0 if they don't vary."""
    deviation = float(growth_N.std())
    return float(growth_N.mean()) / deviation if deviation > 0 else 0.0


def _positions(
    terms: Terms, forecast_NP: np.ndarray, after_N: np.ndarray, returns_N: np.ndarray
) -> np.ndarray:
    """Return the position (N,) of each bar: 10 million bars/s, and 1 million of continuous actions."""
    if not np.isfinite(forecast_NP).all():  # as other scores of outputs that are no numbers
        return np.full(len(forecast_NP), np.nan)
    if terms.is_continuous:
        return np.array(_shares(terms, forecast_NP, after_N, returns_N))
    knots, flat = np.array(terms.positions), terms.flat
    nearest_NP = np.searchsorted((knots[1:] + knots[:-1]) / 2, forecast_NP)
    next_NP = np.where(ruined(forecast_NP, returns_N[:, None]), flat, nearest_NP)
    next_NP = np.where(after_N[:, None], next_NP, next_NP[:, flat, None])
    held_N = np.where(after_N, _held(next_NP, flat), flat)
    return np.asarray(np.take_along_axis(forecast_NP, held_N[:, None], axis=1)[:, 0])


def _held(next_NP: np.ndarray, flat: int) -> np.ndarray:
    """Return the place (N,) that is held before each bar, of an account that is flat before the first, by the
    next place for each place held (N, P).

    In blocks of as many bars as there are blocks: where each leads to from every place, then in which place
    each begins, then its bars.
    """
    bars, number = next_NP.shape
    size = max(1, math.isqrt(bars))
    blocks = -(-bars // size)
    padded = np.zeros((blocks * size, number), dtype=np.int64)
    padded[:bars] = next_NP
    next_SB_P = padded.reshape(blocks, size, number).transpose(1, 0, 2).reshape(size, blocks * number)
    first_B = np.arange(blocks) * number
    ends_BP = np.tile(np.arange(number), (blocks, 1))
    for next_B_P in next_SB_P:
        ends_BP = next_B_P[first_B[:, None] + ends_BP]
    begins = [flat]
    for ends in ends_BP[:-1].tolist():
        begins.append(ends[begins[-1]])
    held_SB, held_B = np.empty((size, blocks), dtype=np.int64), np.array(begins)
    for step, next_B_P in enumerate(next_SB_P):
        held_SB[step] = held_B
        held_B = next_B_P[first_B + held_B]
    return held_SB.T.reshape(-1)[:bars]


def _shares(terms: Terms, forecast_NP: np.ndarray, after_N: np.ndarray, returns_N: np.ndarray) -> list[float]:
    """Return the positions of continuous actions: between the positions held, forecasts are linear."""
    low, width = terms.positions[0], terms.positions[1] - terms.positions[0]
    last, held, shares = len(terms.positions) - 2, 0.0, []
    each = zip(forecast_NP.tolist(), after_N.tolist(), np.expm1(returns_N).tolist(), strict=True)
    for row, goes_on, gain in each:
        place = ((held if goes_on else 0.0) - low) / width
        knot = min(max(int(place), 0), last)
        held = row[knot] + (row[knot + 1] - row[knot]) * (place - knot)
        shares.append(held)
        held = 0.0 if 1 + held * gain <= RUIN else held
    return shares


def _worth(position: Any, log_return: Any) -> Any:
    return 1 + position * _lib(log_return).expm1(log_return)


def _lib(values: Any) -> Any:
    """Return torch for its tensors, else numpy."""
    if isinstance(values, (np.ndarray, np.generic, float)):
        return np
    import torch

    return torch
