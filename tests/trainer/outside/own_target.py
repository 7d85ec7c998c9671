"""A target as a user writes it: the range of the next bars, in per cent of the close. Loaded as a file."""

import numpy as np


class Range:
    outputs = 1

    def __init__(self, ahead=5):
        self.ahead = ahead

    def label(self, candles):
        bars, ahead = len(candles.close), self.ahead
        values_T, ends_T = np.full(bars, np.nan), np.full(bars, -1)
        for bar in range(bars - ahead):
            window = slice(bar + 1, bar + 1 + ahead)
            values_T[bar] = 100 * (candles.high[window].max() - candles.low[window].min()) / candles.close[bar]
            ends_T[bar] = bar + ahead
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
        for bar in range(9, bars - 3):
            values_TK[bar] = np.log(close[bar + 3] / close[bar]), moves_T[bar - 8 : bar + 1].std()
            ends_T[bar] = bar + 3
        return values_TK, ends_T

    def loss(self, outputs, labels):
        return (outputs[..., :2] - labels).square().sum(-1) + outputs[..., 2].square()
