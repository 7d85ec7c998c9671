"""Features of longer bars: known at the bar's end, whatever holes, offsets and lengths."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.base.errors import DataError
from trainer.data.feature_names import (
    SETS,
    in_order,
    is_version_of,
    label_of,
    lookback_of,
    named,
    set_features,
    version_of,
)
from trainer.data.features import FEATURES, compute_each, compute_inputs
from trainer.data.read.candles import Candles
from trainer.data.timeframes import DAY, step_of

NAMES = ("log_return_1", "bar_body", "bar_range", "log_relative_volume_15")


def bars_of(present: list[bool], *, timeframe: str, begin: int) -> Candles:
    """Return seeded bars, of which some are missing, from `begin` bars after 2024-03-09 on."""
    random = np.random.default_rng(len(present))
    count, step = len(present), step_of(timeframe)
    keep = np.array(present)
    keep[-1] = True
    close = 100 * np.exp(random.normal(0, 0.01, count).cumsum())
    fields = {
        "open": close * np.exp(random.normal(0, 0.01, count)),
        "high": close * 1.1,
        "low": close * 0.9,
        "close": close,
        "volume": random.integers(0, 5, count).astype(float),
    }
    first = 1_709_942_400 * 10**9  # a Saturday; clocks in New York change on the next day
    return Candles(
        symbol="AAA",
        timeframe=timeframe,
        timestamp=(first + step * (begin + np.arange(count)))[keep],
        **{name: values[keep] for name, values in fields.items()},
    )


def expected(candles: Candles, timeframe: str) -> np.ndarray:
    """Return NAMES (N, 4) bar by bar, by the definition; NaN where a longer bar is missing."""
    short, long = step_of(candles.timeframe), step_of(timeframe)
    rows = []
    for time in candles.timestamp:
        closed = candles.timestamp // long * long + long <= time + short
        starts = np.unique(candles.timestamp[closed] // long)
        parts = [np.flatnonzero(candles.timestamp // long == start) for start in starts[-15:]]
        row = np.full(4, np.nan)
        if parts:
            part = parts[-1]
            opened, closing = candles.open[part[0]], candles.close[part[-1]]
            row[1] = np.log(closing / opened)
            row[2] = np.log(candles.high[part].max() / candles.low[part].min())
        if len(parts) > 1:
            row[0] = np.log(closing / candles.close[parts[-2][-1]])
        if len(parts) == 15:
            sums = [candles.volume[one].sum() for one in parts]
            row[3] = np.log1p(sums[-1] / np.mean(sums)) if sum(sums) else 0.0
        rows.append(row)
    return np.array(rows)


def check_by_definition(present: list[bool], base: str, timeframe: str, begin: int) -> None:
    candles = bars_of(present, timeframe=base, begin=begin)
    names = [f"{name}@{timeframe}" for name in NAMES]
    rows = compute_inputs(candles, features=names).numpy()
    wanted = expected(candles, timeframe)
    known = np.isfinite(wanted)
    np.testing.assert_allclose(rows[known], wanted[known], rtol=1e-5, atol=1e-6)
    assert (rows[~known[:, 1]] == 0).all()  # no longer bar has closed
    assert np.isfinite(rows).all()


PRESENT = st.lists(st.sampled_from([True, True, True, False]), min_size=1, max_size=140)
FRAMES = st.sampled_from(
    [("1m", "5m"), ("1m", "1h"), ("15m", "1h"), ("1h", "4h"), ("4h", "1d"), ("1d", "1w")]
)


@given(present=PRESENT, frames=FRAMES, begin=st.integers(0, 3000))
@settings(max_examples=8, deadline=None)
def test_a_longer_bar_is_known_once_it_has_closed(present, frames, begin: int) -> None:
    if frames[1] != "1w":  # weeks begin on Monday: another test
        check_by_definition(present, *frames, begin)


@pytest.mark.nightly
@given(present=PRESENT, frames=FRAMES, begin=st.integers(0, 3000))
@settings(max_examples=400, deadline=None)
def test_many_longer_bars_are_known_once_they_have_closed(present, frames, begin: int) -> None:
    if frames[1] != "1w":
        check_by_definition(present, *frames, begin)


def test_a_week_is_known_on_its_last_day() -> None:
    candles = bars_of([True] * 30, timeframe="1d", begin=2)  # from a Monday on
    (body,) = compute_inputs(candles, features=["bar_body@1w"]).numpy().T
    first = np.log(candles.close[6] / candles.open[0])
    assert (body[:6] == 0).all() and body[6:13] == pytest.approx(first, rel=1e-6)


@pytest.mark.parametrize("day", [0, 1])
def test_longer_bars_keep_utc_when_clocks_change(day: int) -> None:
    """Clocks in New York change on 2024-03-10: an hour there is as long as any."""
    candles = bars_of([True] * 60 * 24, timeframe="1m", begin=day * 24 * 60)
    hour, new_york = compute_inputs(candles, features=["bar_body@1h", "new_york_time_cos"]).numpy().T
    changes = np.flatnonzero(np.diff(hour))
    assert set(np.diff(changes)) <= {60}
    local = np.arccos(np.clip(new_york, -1, 1)) / (2 * np.pi) * 24  # hours from midnight
    at_noon = local[12 * 60]
    assert at_noon == pytest.approx(7 if day == 0 else 8, abs=1e-3)  # 07:00 EST, 08:00 EDT


def test_bars_closer_than_their_timeframe_are_refused() -> None:
    candles = bars_of([True] * 40, timeframe="1m", begin=0)
    twice = np.sort(np.concatenate((candles.timestamp, candles.timestamp[20:21] + 1)))[:40]
    with pytest.raises(DataError, match="bars closer than 1m"):
        compute_inputs(replace(candles, timestamp=twice), features=["bar_body@5m"])


def test_series_with_longer_bars_are_computed_one_by_one() -> None:
    parts = [bars_of([True] * count, timeframe="1m", begin=count) for count in (30, 50)]
    features = ("bar_body", "bar_body@5m")
    for part, rows in zip(parts, compute_each(parts, features=features), strict=True):
        assert torch.equal(rows, compute_inputs(part, features=features))


@pytest.mark.parametrize("name", list(SETS))
def test_a_set_has_known_features_in_their_order(name: str) -> None:
    names = SETS[name].names
    assert in_order(names) == names and all(map(named, names))
    assert set_features(name, "") == names


def test_a_set_has_what_its_bars_can_give() -> None:
    hourly = set_features("timeframes", "1h")
    assert {name.partition("@")[2] for name in hourly} == {"", "4h", "1d"}
    assert all(lookback_of(name, "1h") * step_of("1h") <= 66 * DAY for name in hourly)
    assert set_features("timeframes", "1d") == tuple(
        name for name in FEATURES if lookback_of(name, "1d") <= 64
    )
    assert set_features("timeframes", "tick100") == FEATURES


def test_a_version_names_the_sets_and_hashes_the_features() -> None:
    assert version_of(FEATURES) == label_of(("auto",), FEATURES) == version_of(("rsi_14",)) == "1.0"
    names = set_features("timeframes", "1m")
    label = label_of(("set:timeframes",), names)
    assert label.startswith("timeframes/1 sha256:") and is_version_of(label, names)
    assert not is_version_of(label, names[:-1]) and not is_version_of("1.0", names)
    assert named("rsi_14@1h") and named("rsi_14")
    for wrong in ("rsi_41", "rsi_14@", "rsi_14@60m", "rsi_14@tick100", "rsi_14@x", "is_weekend@1h"):
        assert named(wrong) is None


def test_version_1_is_the_same_features_for_good() -> None:
    """Cards of years hold these names: a change of them, their order or lookback breaks their models."""
    lines = "\n".join(f"{name} {lookback_of(name, '1m')}" for name in FEATURES)
    assert hashlib.sha256(lines.encode()).hexdigest()[:16] == "97a4ec9a0d66cc00"
