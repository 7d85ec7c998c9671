"""The names of the features, their version, and how far back they look. Standard library only: the data check
counts windows by these without torch; `features` computes them in this order.

Every feature is a return, a ratio, a rank or a clock, independent of the scale of price and volume, so that
symbols compare.
"""

from __future__ import annotations

from collections.abc import Iterable

from trainer.data.timeframes import DAY, step_of

# Raise it with any change that alters a value. Cards hold it, and a model never reads features of another
# version.
FEATURES_VERSION = "1.0"

FEATURES = (
    *(f"log_return_{span}" for span in (1, 5, 15, 60, 240)),
    "momentum_60",  # log return over a span, divided by the volatility of that span
    "momentum_240",
    *(f"log_volatility_{span}" for span in (5, 15, 60, 240)),
    *(f"price_zscore_{span}" for span in (15, 60, 240)),
    *(f"volume_zscore_{span}" for span in (15, 60, 240)),
    "bar_range",  # logs of high/low, close/open, the wicks, and open/last close
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

# A feature of returns looks back its whole span, since the first return needs the bar before it; one of
# levels looks back a bar less.
_SPANS = ("log_return_", "momentum_", "log_volatility_")
_LEVELS = ("price_zscore_", "volume_zscore_", "stochastic_")
_OTHERS = {
    **dict.fromkeys(("log_atr_14", "rsi_14", "macd_12_26"), 256),  # exponential means, cut at 256 bars
    **dict.fromkeys(("ema_ratio_12", "ema_ratio_26"), 255),
    **dict.fromkeys(("up_share_60", "volume_imbalance_60"), 60),
    **dict.fromkeys(("bar_gap", "log_seconds_since_last_bar"), 1),
}


def _lookback(name: str) -> int:
    stem, _, span = name.rpartition("_")
    if f"{stem}_" in _SPANS:
        return int(span)
    return int(span) - 1 if f"{stem}_" in _LEVELS else _OTHERS.get(name, 0)


# Row t of a feature depends on bars t - LOOKBACK to t and on nothing else, to the last bit, wherever the
# series begins or ends. Its first LOOKBACK rows are finite but not meaningful.
LOOKBACK = {name: _lookback(name) for name in FEATURES}
WARMUP = max(LOOKBACK.values())  # of all features together
LONGEST_WARMUP = 64 * DAY  # of the default features


def warmup_of_features(names: Iterable[str]) -> int:
    """Return how many bars these features look back: the number of unusable rows at the head of a series."""
    return max((LOOKBACK[name] for name in names), default=0)


def usual_features(timeframe: str) -> tuple[str, ...]:
    """Return a job's default features: those that look back no more than 64 days.

    All of them for bars of up to six hours, for event bars, and while the timeframe is unknown ('').
    """
    step = step_of(timeframe) if timeframe else 0
    return tuple(name for name in FEATURES if LOOKBACK[name] * step <= LONGEST_WARMUP)
