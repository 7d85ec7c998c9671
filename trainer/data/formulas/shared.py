"""The bars of one piece of a series as the formulas read them, and what several features share, computed
once.

Arithmetic is numpy's: an operation on a piece takes 0.5 to 0.85 of torch's time (docs/benchmarks.md).
Logarithms, sines and cosines are torch's: other libraries' differ in the last bits.

Shapes: N rows: those asked for, and before them the head that features look back on. Arrays are float64 and
aligned at their end (`rolling`), so that the last rows of each are those asked for. Before the beginning of
the series its first bar is repeated.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
import torch

from trainer.data.read.candles import Candles
from trainer.data.rolling import (
    State,
    change,
    exponential_mean,
    lag,
    last,
    rolling_extremes,
    rolling_moments,
    rolling_sum,
)
from trainer.data.timeframes import DAY

# A tenth of a basis point: keeps the log of a volatility or range finite if nothing moved.
SMALLEST_MOVE = 1e-5
TAIL = 256  # bars at which exponential means are cut
_PRICES = ("open", "high", "low", "close")
_OPEN, _HIGH, _LOW, _CLOSE = range(4)


class FeatureBars:
    """Bars of a piece of a series. Prices are logarithms."""

    def __init__(self, candles: Candles, *, head: int) -> None:
        """Take the bars, repeating the first one `head` times before them."""

        def padded(values_N: np.ndarray) -> np.ndarray:
            return np.concatenate((np.repeat(values_N[:1], head), values_N)) if head else values_N

        self.timestamp = padded(candles.timestamp)  # int64
        self.raw = [padded(getattr(candles, name)) for name in _PRICES]
        self.volume = padded(candles.volume)

    @cached_property
    def _logs_4N(self) -> np.ndarray:
        return log(np.stack(self.raw))

    @property
    def open(self) -> np.ndarray:
        return np.asarray(self._logs_4N[_OPEN])

    @property
    def high(self) -> np.ndarray:
        return np.asarray(self._logs_4N[_HIGH])

    @property
    def low(self) -> np.ndarray:
        return np.asarray(self._logs_4N[_LOW])

    @property
    def close(self) -> np.ndarray:
        return np.asarray(self._logs_4N[_CLOSE])

    @cached_property
    def returns(self) -> np.ndarray:
        """Return the log return of each bar."""
        return change(self.close, 1)

    @cached_property
    def typical(self) -> np.ndarray:
        """Return the typical price (high + low + close) / 3, not a logarithm."""
        _, high_N, low_N, close_N = self.raw
        return np.asarray((high_N + low_N + close_N) / 3)

    @cached_property
    def return_moments(self) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Return mean and deviation of returns over 5, 15, 60 and 240 bars."""
        return rolling_moments(self.returns, (5, 15, 60, 240))

    @cached_property
    def close_moments(self) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Return mean and deviation of the log close over 15, 60 and 240 bars."""
        return rolling_moments(self.close, (15, 60, 240))

    @cached_property
    def volume_moments(self) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Return mean and deviation of volume over 15, 60 and 240 bars."""
        return rolling_moments(self.volume, (15, 60, 240))

    @cached_property
    def extremes(self) -> dict[int, State]:
        """Return the lowest low and the highest high of 15, 60 and 240 bars."""
        return rolling_extremes(self.low, self.high, (15, 60, 240))

    @cached_property
    def time_of_day(self) -> np.ndarray:
        """Return the UTC time of day as an angle."""
        return angle(self.timestamp, DAY)

    @cached_property
    def time_of_week(self) -> np.ndarray:
        """Return the UTC time of the week, which begins on Thursday, as 1970 did, as an angle."""
        return angle(self.timestamp, 7 * DAY)

    @cached_property
    def flows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the sums over 60 bars: of signs of returns, of volume, and of volume by its bar's sign."""
        sign_N = np.sign(self.returns)
        volume_N = last(self.volume, len(sign_N))
        signs_N, total_N, signed_N = (
            rolling_sum(one, (60,))[60] for one in (sign_N, volume_N, sign_N * volume_N)
        )
        return signs_N, total_N, signed_N

    @cached_property
    def exponential(self) -> dict[str, np.ndarray]:
        """Return exponential means: of true range, returns and their size over 14 bars (Wilder's), and of log
        close over 12 and 26.
        """
        rows = len(self.returns)
        last_close_N = lag(self.close, 1)
        high_N, low_N = last(self.high, rows), last(self.low, rows)
        true_range_N = np.maximum(high_N, last_close_N) - np.minimum(low_N, last_close_N)
        close_N = last(self.close, rows)
        values = {
            "true_range": (true_range_N, 13 / 14),
            "returns": (self.returns, 13 / 14),
            "sizes": (np.abs(self.returns), 13 / 14),
            "close_12": (close_N, 11 / 13),
            "close_26": (close_N, 25 / 27),
        }
        return {name: exponential_mean(one_N, decay, TAIL) for name, (one_N, decay) in values.items()}


def ratio(part_N: np.ndarray, whole_N: np.ndarray, *, smallest_N: np.ndarray | float) -> np.ndarray:
    """Return part / whole, 0 where whole is not above `smallest_N`, that is, only rounding."""
    is_real_N = whole_N > smallest_N
    if is_real_N.all():
        return np.asarray(part_N / whole_N)
    return np.where(is_real_N, part_N / np.where(is_real_N, whole_N, 1.0), 0.0)


def log(x_N: np.ndarray) -> np.ndarray:
    """Replace the values by their natural logarithms, and return them."""
    torch.from_numpy(x_N).log_()
    return x_N


def sin(x_N: np.ndarray) -> np.ndarray:
    """Return the sines."""
    return torch.from_numpy(x_N).sin().numpy()


def cos(x_N: np.ndarray) -> np.ndarray:
    """Return the cosines."""
    return torch.from_numpy(x_N).cos().numpy()


def angle(timestamp_N: np.ndarray, period: int) -> np.ndarray:
    """Return the share of a period in nanoseconds that has passed as an angle."""
    return np.asarray((timestamp_N % period).astype(np.float64) * (2 * math.pi / period))


def log_deviation(variance_N: np.ndarray) -> np.ndarray:
    """Return the log of the deviation of a variance, with the smallest move added."""
    return log(np.sqrt(np.maximum(variance_N, 0.0)) + SMALLEST_MOVE)
