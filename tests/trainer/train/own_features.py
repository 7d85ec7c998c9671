"""A file of features, as a user writes one."""

import numpy as np


def slope(bars):
    """Return the mean log return of the last 10 bars."""
    close = np.log(bars.close)
    return (close - np.roll(close, 10)) / 10


slope.lookback = 10


def spread(bars):
    """Return the range of the bar by its close."""
    return (bars.high - bars.low) / bars.close


spread.lookback = 0


def ahead(bars):
    """Read the next bar's close."""
    return np.append(bars.close[1:], bars.close[-1]) / bars.close


ahead.lookback = 1


def whole(bars):
    """Subtract the mean of the whole series, which is look-ahead too."""
    return bars.close - bars.close.mean()


whole.lookback = 10


def far(bars):
    """Read 30 bars back and say 10."""
    return np.log(bars.close) - np.log(np.concatenate([np.repeat(bars.close[:1], 30), bars.close])[:-30])


far.lookback = 10


def noise(bars):
    """Draw a number for each bar."""
    return np.random.default_rng().normal(size=len(bars))


noise.lookback = 0


def short(bars):
    """Return a value too few."""
    return bars.close[1:]


short.lookback = 0


def holey(bars):
    """Return a missing value in the middle."""
    return np.where(np.arange(len(bars)) == len(bars) // 2, np.nan, 1.0)


holey.lookback = 0


def broken(bars):
    """Fail."""
    return bars.nothing


broken.lookback = 0


def silent(bars):
    """Do not say how far it looks back."""
    return bars.close


def floored(bars):
    """Change the bars, of which features and labels are made after it."""
    return np.maximum(bars.close, 50.0, out=bars.close)


floored.lookback = 0
