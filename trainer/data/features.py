"""Inputs of a model: features of a symbol's bars, computed with torch on the training device, and columns of
its files. Owns the formulas; `feature_names` has the names of features, `settings` those of a job's inputs.

The promise: row t of a feature depends on bars t - LOOKBACK to t only, to the last bit. It does not change if
later bars are added, removed or changed, or if the series begins elsewhere (at least LOOKBACK bars before t),
so that a prediction reproduces the card's metrics exactly.

Holes are not treated here: a return over a hole is a return, and `log_seconds_since_last_bar` gives its
duration.

Shapes: N bars, F features or inputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.data.feature_names import FEATURES, FEATURES_VERSION, WARMUP
from trainer.data.read.candles import Candles
from trainer.data.read.shapes import FIELDS
from trainer.data.rolling import exponential_mean, rolling_extremes, rolling_moments, rolling_sum, shift
from trainer.data.timeframes import DAY, SECOND

__all__ = ["FEATURES", "FEATURES_VERSION", "WARMUP", "compute_each", "compute_features", "compute_inputs"]

# A tenth of a basis point: keeps the log of a volatility or range finite if nothing moved.
_SMALLEST_MOVE = 1e-5
_WEEK = 7 * DAY
_CPU_PIECE = 1 << 16  # rows: takes half the time and memory of a million rows at once (measured 2026-11-21)


def compute_inputs(
    candles: Candles,
    *,
    features: Sequence[str] = FEATURES,
    device: str | torch.device = "cpu",
    into: Tensor | None = None,
) -> Tensor:
    """Return (N, F) float32 on `device`, row-major: features, in the order of FEATURES, then the candles'
    columns. `into` (N, F), there already, takes them and is returned.

    Row t of a column is its value at bar t. It is meaningful from `candles.columns_begin` on, and zero before
    its first value.
    """
    rows_NF = into
    if rows_NF is None:
        width = len(features) + len(candles.columns)
        rows_NF = torch.empty(len(candles), width, dtype=torch.float32, device=device)
    if features:
        _write_features(candles, features, rows_NF[:, : len(features)])
    for number, values_N in enumerate(candles.columns.values(), len(features)):
        column_N = torch.from_numpy(np.asarray(values_N)).to(torch.float32).nan_to_num_(nan=0.0)
        rows_NF[:, number] = column_N.to(device)
    return rows_NF


def compute_each(parts: Sequence[Candles], *, features: Sequence[str]) -> Iterator[Tensor]:
    """Yield the inputs (N, F) of each series, on the CPU, many short series in one pass.

    Series are laid end to end, since a row depends only on the LOOKBACK bars before it. The first LOOKBACK
    rows of each series are not meaningful and may not be finite.
    """
    first, ends = 0, np.cumsum([len(part) for part in parts])
    while first < len(parts):
        start = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, start + _CPU_PIECE, side="right")))
        rows_NF = compute_inputs(_end_to_end(parts[first:last]), features=features)
        yield from torch.split(rows_NF, [len(part) for part in parts[first:last]])
        first = last


def _end_to_end(parts: Sequence[Candles]) -> Candles:
    if len(parts) == 1:
        return parts[0]
    rows: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in ("timestamp", *FIELDS)
    }
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}
    return replace(parts[0], **rows, columns=columns)


def compute_features(candles: Candles, device: str | torch.device = "cpu") -> Tensor:
    """Return (N, F) float32 on `device`, row-major, in the order of FEATURES; finite, and meaningful from row
    WARMUP on.
    """
    rows_NF = torch.empty(len(candles), len(FEATURES), dtype=torch.float32, device=device)
    _write_features(candles, FEATURES, rows_NF)
    return rows_NF


def _write_features(candles: Candles, features: Sequence[str], rows_NF: Tensor) -> None:
    """Write the chosen features, in their order, on the rows' device.

    On a CPU the series is cut into pieces that fit the cache; each starts WARMUP bars earlier.
    """
    num_bars, device = len(candles), rows_NF.device
    piece = _CPU_PIECE if device.type == "cpu" else num_bars
    numbers = [FEATURES.index(name) for name in features]
    chosen = slice(None) if len(features) == len(FEATURES) else numbers
    with torch.no_grad():
        for start in range(0, num_bars, piece):
            head = max(0, start - WARMUP)
            columns_FN = _columns(candles.rows(head, start + piece), device)
            rows_NF[start : start + piece] = columns_FN[chosen, start - head :].t()


def _columns(candles: Candles, device: str | torch.device) -> Tensor:
    """Return the features of a piece of the series as (F, N): one transpose is faster than writing columns
    one by one.
    """
    columns = _Columns(len(candles), device)
    prices = {
        name: torch.from_numpy(getattr(candles, name)).to(device, torch.float64).log()
        for name in ("open", "high", "low", "close")
    }
    volume_N = torch.from_numpy(candles.volume).to(device, torch.float64)
    timestamp_N = torch.from_numpy(candles.timestamp).to(device)
    return_N = prices["close"] - shift(prices["close"], 1)
    _returns(columns, prices["close"], return_N)
    _levels(columns, prices, volume_N)
    _bars(columns, prices, return_N)
    _flows(columns, return_N, volume_N)
    _clock(columns, timestamp_N)
    return columns.complete()


class _Columns:
    """Collects features in one (F, N) float32 block, so that no float64 column is kept."""

    def __init__(self, num_bars: int, device: str | torch.device) -> None:
        self._columns_FN = torch.empty(len(FEATURES), num_bars, dtype=torch.float32, device=device)
        self._missing = set(FEATURES)

    def __setitem__(self, name: str, column_N: Tensor) -> None:
        self._columns_FN[FEATURES.index(name)] = column_N
        self._missing.remove(name)

    def complete(self) -> Tensor:
        """Return the block. Fails if a feature was not written."""
        assert not self._missing, f"features without a formula: {self._missing}"
        return self._columns_FN


def _returns(columns: _Columns, close_N: Tensor, return_N: Tensor) -> None:
    """Add log returns over several spans, their volatility, and return divided by volatility."""
    spans = (5, 15, 60, 240)
    columns["log_return_1"] = return_N
    for span, (_, deviation_N) in rolling_moments(return_N, spans).items():
        change_N = close_N - shift(close_N, span)
        columns[f"log_return_{span}"] = change_N
        columns[f"log_volatility_{span}"] = (deviation_N + _SMALLEST_MOVE).log()
        if span >= 60:
            columns[f"momentum_{span}"] = change_N / ((deviation_N + _SMALLEST_MOVE) * math.sqrt(span))


def _levels(columns: _Columns, prices: dict[str, Tensor], volume_N: Tensor) -> None:
    """Add the position of price and volume in their last bars: z-scores and the stochastic oscillator
    (centred on zero).
    """
    spans = (15, 60, 240)
    close_N = prices["close"]
    for span, (mean_N, deviation_N) in rolling_moments(close_N, spans).items():
        columns[f"price_zscore_{span}"] = (close_N - mean_N) / (deviation_N + _SMALLEST_MOVE)
    for span, (mean_N, deviation_N) in rolling_moments(volume_N, spans).items():
        columns[f"volume_zscore_{span}"] = _ratio(volume_N - mean_N, deviation_N, smallest_N=1e-9 * mean_N)
    for span, (low_N, high_N) in rolling_extremes(prices["low"], prices["high"], spans).items():
        middle_N = (low_N + high_N) / 2
        columns[f"stochastic_{span}"] = (close_N - middle_N) / (high_N - low_N + _SMALLEST_MOVE)


def _bars(columns: _Columns, prices: dict[str, Tensor], return_N: Tensor) -> None:
    """Add the shape of the bar, Wilder's average true range and RSI over 14 bars, and ratios to exponential
    means.
    """
    open_N, high_N, low_N, close_N = prices["open"], prices["high"], prices["low"], prices["close"]
    last_close_N = shift(close_N, 1)
    columns["bar_range"] = high_N - low_N
    columns["bar_body"] = close_N - open_N
    columns["upper_wick"] = high_N - torch.maximum(open_N, close_N)
    columns["lower_wick"] = torch.minimum(open_N, close_N) - low_N
    columns["bar_gap"] = open_N - last_close_N
    true_range_N = torch.maximum(high_N, last_close_N) - torch.minimum(low_N, last_close_N)
    range_N = exponential_mean(true_range_N, 13 / 14, WARMUP) + _SMALLEST_MOVE
    columns["log_atr_14"] = range_N.log()
    change_N = exponential_mean(return_N, 13 / 14, WARMUP)
    size_N = exponential_mean(return_N.abs(), 13 / 14, WARMUP)
    # (up - down) / (up + down): RSI/50 - 1
    columns["rsi_14"] = _ratio(change_N, size_N, smallest_N=torch.full_like(size_N, 1e-12))
    fast_N, slow_N = (exponential_mean(close_N, (span - 1) / (span + 1), WARMUP) for span in (12, 26))
    columns["ema_ratio_12"] = close_N - fast_N
    columns["ema_ratio_26"] = close_N - slow_N
    columns["macd_12_26"] = (fast_N - slow_N) / range_N


def _flows(columns: _Columns, return_N: Tensor, volume_N: Tensor) -> None:
    """Add the balance of rising and falling bars, by count and by volume."""
    sign_N = return_N.sign()
    columns["up_share_60"] = rolling_sum(sign_N, (60,))[60] / 60
    total_N = rolling_sum(volume_N, (60,))[60]
    columns["volume_imbalance_60"] = _ratio(
        rolling_sum(sign_N * volume_N, (60,))[60], total_N, smallest_N=torch.zeros_like(total_N)
    )


def _clock(columns: _Columns, timestamp_N: Tensor) -> None:
    """Add sine and cosine of the time of day and of the week (UTC), and the time since the previous bar."""
    for name, period in (("day", DAY), ("week", _WEEK)):
        angle_N = (timestamp_N % period).to(torch.float64) * (2 * math.pi / period)
        columns[f"time_of_{name}_sin"] = angle_N.sin()
        columns[f"time_of_{name}_cos"] = angle_N.cos()
    elapsed_N = (timestamp_N - shift(timestamp_N, 1)).to(torch.float64) / SECOND
    columns["log_seconds_since_last_bar"] = elapsed_N.log1p()


def _ratio(part_N: Tensor, whole_N: Tensor, *, smallest_N: Tensor) -> Tensor:
    """Return part / whole, 0 where whole is not above `smallest_N`, that is, only rounding."""
    is_real_N = whole_N > smallest_N
    return torch.where(is_real_N, part_N / torch.where(is_real_N, whole_N, 1.0), 0.0)
