"""The names of the features, their version, and how far back they look. Standard library only: the data check counts windows
by these without torch, and `features` computes them in this order.

Every feature is a return, a ratio, a rank or a clock: free of price and volume scale, so that symbols compare.
"""

from __future__ import annotations

FEATURES_VERSION = (
    "1.0"  # raise it with any change that alters a value; cards hold it, and a model is never fed another version
)

# Row t depends on bars t-WARMUP to t and on nothing else, to the last bit, wherever the series begins and ends. The first
# WARMUP rows of a series are finite but not meaningful, and no window holds them.
WARMUP = 256

FEATURES = (
    *(f"log_return_{span}" for span in (1, 5, 15, 60, 240)),
    "momentum_60",  # log return over a span by the volatility of that span
    "momentum_240",
    *(f"log_volatility_{span}" for span in (5, 15, 60, 240)),
    *(f"price_zscore_{span}" for span in (15, 60, 240)),
    *(f"volume_zscore_{span}" for span in (15, 60, 240)),
    "bar_range",  # logs of high/low, close/open, the wicks, and open by the last close
    "bar_body",
    "upper_wick",
    "lower_wick",
    "bar_gap",
    "log_atr_14",
    "rsi_14",
    *(f"stochastic_{span}" for span in (15, 60, 240)),
    "ema_ratio_12",
    "ema_ratio_26",
    "macd_12_26",
    "up_share_60",
    "volume_imbalance_60",
    "time_of_day_sin",
    "time_of_day_cos",
    "time_of_week_sin",
    "time_of_week_cos",
    "log_seconds_since_last_bar",
)
