"""Trade a model's forecasts by the plain rule of `targets/trading.py`, on the bars of the test span.

A forecast at a bar is traded at its close. Numpy on the CPU, float64.

Shapes: N forecasts, T bars from the first forecast to the end of the last one's label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.targets.inference import CellMean, estimate
from trainer.targets.scoring import Rows
from trainer.targets.target import TargetSettings
from trainer.targets.trading import FEE, SLIPPAGE
from trainer.train.evaluate.evaluation import DIGITS, SECOND, Cells

COST = FEE + SLIPPAGE


@dataclass(frozen=True, kw_only=True)
class TradedBars:
    """Returns of each bar to the next, as shares of the money, before costs; and what was traded."""

    times: np.ndarray  # (T,) int64 ns
    gross: np.ndarray  # (T,)
    turnover: np.ndarray  # (T,)
    exposure: np.ndarray  # (T,)
    hold: np.ndarray  # (T,) of buying at the first bar and selling at the last, after costs

    @property
    def net(self) -> np.ndarray:
        """Return the returns (T,) after costs."""
        return np.asarray(self.gross - COST * self.turnover)


def trade(forecast: np.ndarray, target: TargetSettings, rows: Rows) -> TradedBars | None:
    """Trade the forecasts (N, ...) of a series' scored bars; None of a target that nobody trades on, and
    without forecasts.
    """
    long_N = target.is_long(forecast) if len(forecast) else None
    if long_N is None:
        return None
    first, ahead = int(rows.scored[0]), target.bars_ahead
    signal = np.zeros(int(rows.scored[-1]) - first + 1)
    signal[rows.scored - first] = long_N
    held_T = np.convolve(signal, np.full(ahead, 1 / ahead))
    bars = np.arange(first, first + len(held_T))
    close = rows.candles.close.astype(np.float64)
    moves_T = close[bars + 1] / close[bars] - 1
    turnover_T = np.abs(np.diff(held_T, prepend=0.0))
    turnover_T[-1] += held_T[-1]
    hold_T = moves_T.copy()
    hold_T[[0, -1]] -= COST
    times = rows.candles.timestamp[bars]
    return TradedBars(times=times, gross=held_T * moves_T, turnover=turnover_T, exposure=held_T, hold=hold_T)


def together(parts: Sequence[TradedBars]) -> TradedBars:
    """Return several series traded with an equal part of the money each."""
    if len(parts) == 1:
        return parts[0]
    times, place = np.unique(np.concatenate([part.times for part in parts]), return_inverse=True)

    def mean(name: str) -> np.ndarray:
        weights = np.concatenate([getattr(part, name) for part in parts])
        return np.bincount(place, weights=weights) / len(parts)

    names = ("gross", "turnover", "exposure", "hold")
    return TradedBars(times=times, **{name: mean(name) for name in names})


def traded_scores(bars: TradedBars, cells: Cells) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the scores of `targets.trading.Traded`, and the net returns by cell for the card."""
    places_T, net_T = cells.places, bars.net
    counts = np.bincount(places_T)

    def ends(each_T: np.ndarray) -> tuple[float | None, float | None]:
        found = estimate(np.bincount(places_T, weights=each_T).tolist(), counts.tolist())
        return _times(found, len(each_T)) if found else (None, None)

    (low, high), beyond = ends(net_T), ends(net_T - bars.hold)
    deviation = float(net_T.std())
    scaled_T = (net_T - net_T.mean()) / deviation if deviation > 0 else np.zeros(len(net_T))
    scores = {
        "bars": len(net_T),
        "net": float(net_T.sum()),
        "low": low,
        "high": high,
        "gross": float(bars.gross.sum()),
        "turnover": float(bars.turnover.sum()),
        "exposure": float(bars.exposure.mean()),
        "hold": float(bars.hold.sum()),
        "beyond_low": beyond[0],
        "beyond_high": beyond[1],
        "sharpe": float(net_T.mean()) / deviation if deviation > 0 else 0.0,
        "skew": float((scaled_T**3).mean()),
        "kurtosis": float((scaled_T**4).mean()) if deviation > 0 else 3.0,
        "fee": FEE,
        "slippage": SLIPPAGE,
    }
    begins = np.full(len(counts), np.iinfo(np.int64).max)
    np.minimum.at(begins, places_T, cells.times)
    sums = np.bincount(places_T, weights=net_T)
    by_cell = [float(f"{one:.{DIGITS}g}") for one in sums]
    return scores, {"begins": (begins // SECOND).tolist(), "net": by_cell}


def _times(mean: CellMean, bars: int) -> tuple[float, float]:
    low, high = mean.interval()
    return low * bars, high * bars
