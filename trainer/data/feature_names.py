"""The names of features, their order, sets and versions, and how far back they look. Standard library only:
the data check counts windows by these without torch.

`rsi_14` is computed from the job's own bars, `rsi_14@1h` from bars of one hour that are made of them: at each
bar it has the value of the last hour that had closed by that bar's end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainer.base.errors import DataError
from trainer.data.feature_table import (
    CALENDAR,
    TABLE,
    TREND,
    VERSION_1,
    VOLATILITY,
    VOLUME,
    Feature,
)
from trainer.data.timeframes import DAY, can_resample, canonical, step_of

# Of the features in VERSION_1, which are what `auto` and `all` mean, in their order. Cards hold it, and a
# model never reads features of another version.
FEATURES_VERSION = "1.0"
FEATURES = tuple(one.name for one in VERSION_1)
AT = "@"  # before the timeframe of longer bars
SET = "set:"  # before the name of a set

LOOKBACK = {name: one.lookback for name, one in TABLE.items()}  # of features of the job's own bars
WARMUP = max(LOOKBACK[name] for name in FEATURES)  # of all of FEATURES together
LONGEST_WARMUP = 64 * DAY  # of the default features, and of those of a set
_ORDER = {name: place for place, name in enumerate(TABLE)}


@dataclass(frozen=True, kw_only=True)
class FeatureSet:
    """Features under a name. A set of a version never changes."""

    version: str
    help: str
    names: tuple[str, ...]


def _names(*features: Iterable[Feature]) -> tuple[str, ...]:
    return tuple(one.name for group in features for one in group)


_FRAMES = ("5m", "15m", "1h", "4h", "1d")
_OF_LONGER_BARS = (
    *("log_return_1", "log_return_5", "log_volatility_15", "price_zscore_15", "volume_zscore_15"),
    *("bar_range", "bar_body", "stochastic_15"),
)
SETS = {
    "estimators": FeatureSet(
        version="1",
        help="all of version 1.0, and what open, high, low and close say of volatility",
        names=(*FEATURES, *_names(VOLATILITY)),
    ),
    "broad": FeatureSet(
        version="1",
        help="every feature of the job's own bars",
        names=_names(VERSION_1, VOLATILITY, TREND, VOLUME, CALENDAR),
    ),
    "timeframes": FeatureSet(
        version="1",
        help="all of version 1.0, and eight of them at 5m, 15m, 1h, 4h and 1d",
        names=(*FEATURES, *(f"{name}{AT}{frame}" for frame in _FRAMES for name in _OF_LONGER_BARS)),
    ),
}


@dataclass(frozen=True, kw_only=True)
class NamedFeature:
    """A feature as a model reads it: of its bars, or of longer ones made of them."""

    feature: Feature
    timeframe: str = ""  # of the longer bars; empty: the job's own

    def lookback(self, timeframe: str) -> int:
        """Return how many bars of `timeframe` it looks back. Raises DataError for longer bars that can't be
        made of them.
        """
        if not self.timeframe:
            return self.feature.lookback
        if not can_resample(timeframe, self.timeframe):
            raise DataError(
                f"{self.feature.name}{AT}{self.timeframe} can't be computed from bars of {timeframe}",
                why="longer bars are made of whole bars",
                do=f"Name a timeframe that is a multiple of {timeframe}, or leave the feature out.",
            )
        bars = step_of(self.timeframe) // step_of(timeframe)
        # The longer bars it reads, the one that bar t is in, less bar t; none has more bars than fit into it.
        return (self.feature.lookback + 2) * bars - 2


def named(name: str) -> NamedFeature | None:
    """Return the feature of a name, or None."""
    stem, at, timeframe = name.partition(AT)
    feature = TABLE.get(stem)
    if feature is None or not at:
        return None if feature is None else NamedFeature(feature=feature)
    try:
        is_known = canonical(timeframe) == timeframe and step_of(timeframe) > 0
    except DataError:
        return None
    return (
        NamedFeature(feature=feature, timeframe=timeframe) if is_known and not feature.is_of_clock else None
    )


def lookback_of(name: str, timeframe: str) -> int:
    """Return how many bars of `timeframe` a feature looks back; 0 for a name that is none."""
    feature = named(name)
    return 0 if feature is None else feature.lookback(timeframe)


def warmup_of_features(names: Iterable[str], timeframe: str) -> int:
    """Return how many bars these features look back: the number of unusable rows at the head of a series."""
    return max((lookback_of(name, timeframe) for name in names), default=0)


def usual_features(timeframe: str) -> tuple[str, ...]:
    """Return a job's default features: those that look back no more than 64 days.

    All of them for bars of up to six hours, for event bars, and while the timeframe is unknown ('').
    """
    step = step_of(timeframe) if timeframe else 0
    return tuple(name for name in FEATURES if LOOKBACK[name] * step <= LONGEST_WARMUP)


def set_features(name: str, timeframe: str) -> tuple[str, ...]:
    """Return the features of a set for bars of a timeframe ('' while it is unknown): those that can be made
    of them and look back no more than 64 days.
    """
    step = step_of(timeframe) if timeframe else 0
    chosen = []
    for one in SETS[name].names:
        feature = named(one)
        assert feature is not None
        longer = feature.timeframe
        if longer and timeframe and not can_resample(timeframe, longer):
            continue
        if feature.feature.lookback * (step_of(longer) if longer else step) <= LONGEST_WARMUP:
            chosen.append(one)
    return tuple(chosen)


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return known features once each, in their order: of the job's own bars, then of ever longer ones."""

    def place(name: str) -> tuple[int, int]:
        stem, _, timeframe = name.partition(AT)
        return step_of(timeframe) if timeframe else 0, _ORDER[stem]

    return tuple(sorted({*names}, key=place))


def version_of(names: Sequence[str], own_sha256: str = "") -> str:
    """Return the version of these features, which cards hold: `1.0`, or for any that are not of version 1.0 a
    digest of all their names and versions. `own_sha256`: of the user's file that has the unknown names.
    """
    if {*names} <= {*FEATURES}:
        return FEATURES_VERSION
    parts = []
    for name in names:
        feature = named(name)
        if feature is None:
            parts.append(f"{name} {own_sha256}")
        else:
            parts.append(f"{name} {feature.feature.version}")
    return "sha256:" + hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def label_of(chosen: Iterable[str], names: Sequence[str], own_sha256: str = "") -> str:
    """Return what a card says of its features: the sets among `chosen`, values of data.features, with their
    versions, then the version of all.
    """
    version = version_of(names, own_sha256)
    sets = [one.removeprefix(SET) for one in chosen if one.startswith(SET)]
    of_sets = [f"{name}/{SETS[name].version}" for name in sets if version != FEATURES_VERSION]
    return " ".join([*of_sets, version])


def is_version_of(label: str, names: Sequence[str], own_sha256: str = "") -> bool:
    """Return whether this Mayfly computes the features that a card names as it did."""
    return label.rpartition(" ")[2] == version_of(names, own_sha256)
