"""Trade a model's forecasts on the bars of the test span, as its target says: `TargetSettings.holdings`.

Numpy on the CPU, float64. Shapes: N forecasts, T bars in which something may be held.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.targets.inference import CellMean, estimate
from trainer.targets.scoring import Rows
from trainer.targets.target import TargetSettings
from trainer.train.evaluate.evaluation import Cells, grid, sums_by_cell


@dataclass(frozen=True, kw_only=True)
class TradedBars:
    """Returns of each bar to the next, as shares of the money, before costs; and what was traded."""

    times: np.ndarray  # (T,) int64 ns
    gross: np.ndarray  # (T,)
    turnover: np.ndarray  # (T,)
    exposure: np.ndarray  # (T,)
    fee: float
    slippage: float
    hold: np.ndarray  # (T,) of all the money: bought at the first bar, sold at the last, after costs

    @property
    def net(self) -> np.ndarray:
        """Return the returns (T,) after costs."""
        return np.asarray(self.gross - (self.fee + self.slippage) * self.turnover)


def trade(forecast: np.ndarray, target: TargetSettings, rows: Rows) -> TradedBars | None:
    """Trade the forecasts (N, ...) of a series' scored bars; None of a target that nobody trades on, and
    without forecasts.
    """
    made = target.holdings(forecast, rows) if len(forecast) else None
    if made is None:
        return None
    moves_T = made.prices[1:] / made.prices[:-1] - 1
    turnover_T = abs(np.diff(made.share, prepend=0.0))
    turnover_T[-1] += abs(made.share[-1])
    hold_T = moves_T.copy()
    hold_T[[0, -1]] -= made.fee + made.slippage
    return TradedBars(
        times=rows.candles.timestamp[made.bars],
        gross=made.share * moves_T,
        turnover=turnover_T,
        exposure=abs(made.share),
        hold=hold_T,
        fee=made.fee,
        slippage=made.slippage,
    )


def together(parts: Sequence[TradedBars]) -> TradedBars:
    """Return several series traded with an equal part of the money each."""
    if len(parts) == 1:
        return parts[0]
    times, place = np.unique(np.concatenate([part.times for part in parts]), return_inverse=True)

    def mean(name: str) -> np.ndarray:
        weights = np.concatenate([getattr(part, name) for part in parts])
        return np.bincount(place, weights=weights) / len(parts)

    names = ("gross", "turnover", "exposure", "hold")
    means = {name: mean(name) for name in names}
    return TradedBars(times=times, fee=parts[0].fee, slippage=parts[0].slippage, **means)


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
        "fee": bars.fee,
        "slippage": bars.slippage,
    }
    return scores, {"begins": grid(cells, places_T)["begins"], "net": sums_by_cell(net_T, places_T)}


def _times(mean: CellMean, bars: int) -> tuple[float, float]:
    low, high = mean.interval()
    return low * bars, high * bars
