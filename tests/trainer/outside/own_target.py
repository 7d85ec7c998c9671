"""A target as a user writes it: the range of the next bars, in per cent of the close. Loaded as a file."""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view


class Range:
    outputs = 1

    def __init__(self, ahead=5):
        self.ahead = ahead

    def label(self, candles):
        bars, ahead = len(candles.close), self.ahead
        values_T, ends_T = np.full(bars, np.nan), np.full(bars, -1)
        if bars > ahead:
            highs, lows = (sliding_window_view(prices[1:], ahead) for prices in (candles.high, candles.low))
            values_T[:-ahead] = 100 * (highs.max(axis=1) - lows.min(axis=1)) / candles.close[:-ahead]
            ends_T[:-ahead] = np.arange(ahead, bars)
        return values_T, ends_T

    def loss(self, outputs, labels):
        return (outputs - labels).abs().sum(-1)


class Both:
    """Two label columns, three outputs, and a reach."""

    outputs, reach = 3, 9

    def label(self, candles):
        close, bars = candles.close, len(candles.close)
        values_TK, ends_T = np.full((bars, 2), np.nan), np.full(bars, -1)
        moves_T = np.diff(np.log(close), prepend=np.log(close[0]))
        if bars > 12:
            values_TK[9:-3, 0] = np.log(close[12:] / close[9:-3])
            values_TK[9:-3, 1] = sliding_window_view(moves_T[1:-3], 9).std(axis=1)
            ends_T[9:-3] = np.arange(12, bars)
        return values_TK, ends_T

    def loss(self, outputs, labels):
        return (outputs[..., :2] - labels).square().sum(-1) + outputs[..., 2].square()
