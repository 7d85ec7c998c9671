"""Features of other symbols' bars, and of an index: each bar has what was known when it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.base.errors import DataError, UsageError
from trainer.data.columns import told_of
from trainer.data.feature_table import TABLE
from trainer.data.features import compute_inputs
from trainer.data.read.candles import Candles, bars_sha256
from trainer.data.read.cross import IndexBars, read_cross
from trainer.data.read.reading import CandleFolder, read_candles
from trainer.data.read.side import with_sides
from trainer.data.read.writing import write_candles
from trainer.data.side_names import side_column, split_sides
from trainer.data.synthetic import synthetic_candles
from trainer.data.table import DataSettings
from trainer.data.timeframes import step_of

MINUTE, HOUR, DAY = 60 * 10**9, 3600 * 10**9, 86_400 * 10**9
PRICES = ("open", "high", "low", "close")
ONE = synthetic_candles("ONE", bars=1500, timeframe="1m", seed=1)
TWO = synthetic_candles("TWO", bars=1500, timeframe="1m", seed=2)
OF_CLOSES = tuple(name for name, one in TABLE.items() if one.reads_closes)


def at(candles: Candles, rows: np.ndarray) -> Candles:
    """Return the candles of these rows."""
    fields = ("timestamp", *PRICES, "volume")
    return replace(candles, **{name: getattr(candles, name)[rows] for name in fields})


def joined(
    candles: Candles, others: Mapping[str, Candles], *entries: str, members: tuple[str, ...] = ()
) -> Candles:
    """Return the candles with the entries as columns, which may be of any age."""
    sides = split_sides(f"{entry} age 9999d" for entry in entries)[1]
    made = read_cross(sides, members=members, read=lambda symbol: others[symbol])
    return with_sides(candles, list(made.values()))[0]


def column(candles: Candles, entry: str) -> np.ndarray:
    return np.asarray(candles.columns[f"{entry} age 9999d"])


def changed_from(candles: Candles, row: int) -> Candles:
    """Return the candles with other bars from a row on."""
    factor = np.where(np.arange(len(candles)) < row, 1.0, 3.0 + np.sin(np.arange(len(candles))))
    scaled = {name: getattr(candles, name) * factor for name in (*PRICES, "volume")}
    return replace(candles, **scaled)


def test_a_symbols_own_cross_feature_is_its_feature_to_the_bit() -> None:
    lookback = {"rsi_14": 256, "log_return_5@15m": 103}
    read = joined(ONE, {"ONE": ONE}, *(f"{name} of ONE" for name in lookback))
    own_NF = compute_inputs(ONE, features=tuple(lookback)).numpy()
    for number, (name, first) in enumerate(lookback.items()):
        values = column(read, f"{name} of ONE")
        assert np.isnan(values[:first]).all() and read.columns_begin == 256
        assert np.array_equal(values[first:].astype(np.float32), own_NF[first:, number])


def test_no_cross_feature_reads_a_later_bar() -> None:
    """Every feature of the table, of its own and of longer bars, of a symbol and of an index."""
    short = [name for name, one in TABLE.items() if not one.is_of_clock and one.lookback < 240]
    entries = [f"{name} of TWO" for name in (*TABLE, *(f"{name}@5m" for name in short))]
    entries += [f"{name} of index" for name in OF_CLOSES]
    some = at(TWO, np.flatnonzero(np.arange(1500) % 7 > 0))  # with holes
    cut = 1100
    before = joined(ONE, {"TWO": some, "ONE": ONE}, *entries, members=("ONE", "TWO"))
    later = int(np.searchsorted(some.timestamp, ONE.timestamp[cut]))
    after = joined(
        ONE,
        {"TWO": changed_from(some, later), "ONE": changed_from(ONE, cut)},
        *entries,
        members=("ONE", "TWO"),
    )
    assert len(entries) > 140
    moved = 0
    for entry in entries:
        one, other = column(before, entry), column(after, entry)
        assert np.array_equal(one[:cut], other[:cut], equal_nan=True), entry
        assert np.isfinite(one[~np.isnan(one)]).all()
        moved += not np.array_equal(one[cut:], other[cut:], equal_nan=True)
    assert moved > 0.85 * len(entries)  # but for clocks


@given(
    own=st.sets(st.integers(0, 260), min_size=1),
    other=st.sets(st.integers(0, 260), min_size=7),
    offset=st.sampled_from([0, 17, 59]),
    day=st.sampled_from(["2021-03-13", "2021-11-06", "2021-06-01"]),
)
@settings(max_examples=60, deadline=None)
def test_the_join_is_as_of_bar_ends_over_holes_and_dst(
    own: set[int], other: set[int], offset: int, day: str
) -> None:
    """Hours of New York around a change of the clock, with missing ones; the other's begin at other minutes."""
    local = pd.date_range(day, periods=261, freq="h", tz=ZoneInfo("America/New_York"))
    times = local.tz_convert("UTC").as_unit("ns").asi8
    bars = synthetic_candles("ONE", bars=261, timeframe="1h")
    mine = at(replace(bars, timestamp=times), np.array(sorted(own)))
    theirs = at(replace(bars, timestamp=times + offset * MINUTE), np.array(sorted(other)))
    sides = split_sides(["log_return_5 of TWO"])[1]
    (side,) = read_cross(sides, members=(), read=lambda _: theirs).values()
    read, _ = side.at(mine.timestamp + HOUR)
    values = compute_inputs(theirs, features=("log_return_5",)).numpy()[:, 0]
    for bar, value in zip(mine.timestamp + HOUR, read, strict=True):
        known = [row for row, start in enumerate(theirs.timestamp) if start + HOUR <= bar]
        if len(known) <= 5:
            assert np.isnan(value)
        else:
            assert value == values[known[-1]]


@given(kept=st.lists(st.sets(st.integers(0, 40), min_size=2), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_the_index_is_the_mean_of_the_log_returns_that_are_there(kept: list[set[int]]) -> None:
    """As in pandas, log(closes).diff().mean(axis=1) over all instants at which any member has a bar."""
    index, closes = IndexBars(), {}
    for number, rows in enumerate(kept):
        one = at(
            synthetic_candles(f"S{number}", bars=41, timeframe="1m", seed=number), np.array(sorted(rows))
        )
        index.add(one)
        closes[number] = pd.Series(one.close, index=one.timestamp)
    wanted = np.log(pd.DataFrame(closes).sort_index()).diff().mean(axis=1).dropna()
    made = index.candles()
    assert made.timestamp.tolist() == wanted.index.tolist()
    assert np.allclose(np.diff(np.log(made.close)), wanted.to_numpy()[1:], atol=1e-12)
    assert not len(made) or np.isclose(np.log(made.close[0]), wanted.iloc[0], atol=1e-12)


def test_features_of_an_index_read_closes_alone() -> None:
    names = tuple(name for name, one in TABLE.items() if not one.is_of_clock)
    noise = 0.01 * np.abs(np.random.default_rng(0).normal(size=len(ONE)))
    plain_NF, same = compute_inputs(ONE, features=names).numpy(), {*names}
    for part, factor in (("open", 1 + noise), ("high", 1 + noise), ("low", 1 - noise), ("volume", 1 + noise)):
        other = replace(ONE, **{part: getattr(ONE, part) * factor})
        other_NF = compute_inputs(other, features=names).numpy()
        same &= {name for k, name in enumerate(names) if np.array_equal(plain_NF[400:, k], other_NF[400:, k])}
    assert same == {*OF_CLOSES}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for candles in (ONE, TWO):
        write_candles(tmp_path / f"{candles.symbol}_1m.parquet", [candles], synthetic=True)
    return tmp_path


def test_a_folder_reads_the_other_symbol_and_names_its_files(folder: Path, tmp_path: Path) -> None:
    entry = "log_return_15 of TWO"
    opened = CandleFolder(folder, tmp_path, symbols=["ONE"], columns=[entry], bars=100)
    read = opened.read("ONE")
    assert opened.symbols == ("ONE",) and read.files == ("ONE_1m.parquet", "TWO_1m.parquet")
    assert [(file.file, file.symbols) for file in opened.files()] == [
        ("ONE_1m.parquet", ("ONE",)),
        ("TWO_1m.parquet", ()),
    ]
    assert read.columns_begin == 0, "of the other symbol all bars are read, not the last 100"
    longer = read_candles(folder, symbols=["ONE"], timeframe="5m", columns=[entry])["ONE"]
    theirs = read_candles(folder, symbols=["TWO"], timeframe="5m")["TWO"]
    wanted = compute_inputs(theirs, features=("log_return_15",)).numpy()[15:, 0]
    assert np.array_equal(longer.columns[entry][15:].astype(np.float32), wanted)


@pytest.mark.parametrize("symbols", [[], ["AAA"]])
def test_the_other_symbols_bars_may_be_shorter(tmp_path: Path, symbols: list[str]) -> None:
    hours, minutes = (
        synthetic_candles(symbol, bars=bars, timeframe=timeframe)
        for symbol, bars, timeframe in (("AAA", 100, "1h"), ("BTC-USD", 6_000, "1m"))
    )
    for candles in (hours, minutes):
        write_candles(tmp_path / f"{candles.symbol}_{candles.timeframe}.parquet", [candles])
    columns = ["log_return_5 of BTC-USD"]
    read = read_candles(tmp_path, symbols=symbols, timeframe="1h", columns=columns)
    assert list(read) == ["AAA"] and read["AAA"].files == ("AAA_1h.parquet", "BTC-USD_1m.parquet")


def test_a_file_of_several_symbols_gives_the_others_too(tmp_path: Path) -> None:
    with_funding = [
        replace(one, columns={"funding": np.full(len(one), 0.1)})
        for one in (ONE, TWO, replace(TWO, symbol="THREE", close=ONE.close))
    ]
    write_candles(tmp_path / "ALL_1m.parquet", with_funding, synthetic=True)
    columns = ["funding", "log_return_1 of TWO", "log_return_1 of index"]
    opened = CandleFolder(
        tmp_path, tmp_path, symbols=["ONE"], exclude=["THREE"], timeframe="1m", columns=columns
    )
    read = opened.read("ONE")
    assert opened.index == ("ONE", "TWO") and [*read.columns] == columns
    told = CandleFolder(
        tmp_path, tmp_path, symbols=["ONE"], timeframe="1m", columns=[*columns, "index=TWO/ONE"]
    )
    assert told.index == ("TWO", "ONE") and told.symbols == ("ONE",)
    returns = [np.diff(np.log(one.close)) for one in (ONE, TWO)]
    wanted = np.mean(returns, axis=0)[1:]
    for one in (read, told.read("ONE")):
        assert np.allclose(one.columns[columns[2]][2:], wanted, atol=1e-6)


def test_the_bars_count_by_those_that_columns_are_made_of(folder: Path) -> None:
    columns = ["log_return_15 of TWO"]
    read = read_candles(folder, symbols=["ONE"], columns=columns)["ONE"]
    digits = {name: np.nextafter(values, 9) for name, values in read.columns.items()}
    assert bars_sha256(replace(read, columns=digits)) == bars_sha256(read), "of another machine"
    write_candles(folder / "TWO_1m.parquet", [changed_from(TWO, 1499)], synthetic=True)
    assert bars_sha256(read_candles(folder, symbols=["ONE"], columns=columns)["ONE"]) != bars_sha256(read)


def test_a_stale_symbol_is_refused_unless_its_age_is_allowed(folder: Path) -> None:
    write_candles(folder / "TWO_1m.parquet", [TWO.rows(0, 1400)], synthetic=True)
    entry = "log_return_15 of TWO"
    says = r"log_return_15 of TWO is stale .*; 4 minutes is the most\)\. .*: log_return_15 of TWO age TIME"
    with pytest.raises(DataError, match=says):
        read_candles(folder, symbols=["ONE"], columns=[entry])
    old = f"{entry} age 2h"
    values = read_candles(folder, symbols=["ONE"], columns=[old])["ONE"].columns[old]
    assert (values[1400:] == values[1399]).all()


def test_a_symbol_without_enough_bars_is_refused(folder: Path) -> None:
    write_candles(folder / "TWO_1m.parquet", [TWO.rows(1400)], synthetic=True)
    for _ in range(2):  # the same for every symbol, without reading it again
        with pytest.raises(
            DataError, match=r"has no value .TWO has 100 bars, and the feature looks back 240"
        ):
            read_candles(folder, symbols=["ONE"], columns=["log_return_240 of TWO"])
    with pytest.raises(DataError, match=r"no bars of TWOO .* holds ONE, TWO.\. Did you mean TWO"):
        read_candles(folder, symbols=["ONE"], columns=["log_return_15 of TWOO"])
    with pytest.raises(DataError, match=r"no bars of XRP .log_return_15 of index reads them"):
        read_candles(folder, columns=["log_return_15 of index", "index=ONE/XRP"])


def test_entries_name_feature_symbol_and_age() -> None:
    side = side_column("rsi_14@1h of BRK B age 3d")
    assert side is not None and (side.feature, side.symbol, side.age) == ("rsi_14@1h", "BRK B", 3 * DAY)
    assert side_column("log_return_1 of BTC/USD").symbol == "BTC-USD"  # type: ignore[union-attr]
    assert side_column("number of trades") is None and not side.is_in("BTC-USD_1m.csv")
    assert told_of(["index=BTC/USD", "a"])[0].index == ("BTC", "USD")
    data = DataSettings(columns=("log_return_1 of index",))
    assert data.columns_with(("A", "B")) == ("log_return_1 of index", "index=A/B")
    assert replace(data, columns=data.columns_with(("A", "B"))).columns_with(("C",)) == data.columns_with(
        "AB"
    )
    assert DataSettings(columns=("log_return_1 of A",)).columns_with("AB") == ("log_return_1 of A",)


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        (["log_retrun_60 of BTC-USD"], "no feature log_retrun_60.*mean log_return_60"),
        (["rsi_14@1x of BTC-USD"], "no feature rsi_14@1x"),
        (["log_return_60 of ~x"], "is not a symbol"),
        (["log_return_60 of A age x"], "is not a length of time"),
        (["bar_range of index"], "an index has closes alone"),
        (["log_relative_volume_60 of index"], "an index has closes alone"),
        (["index="], "it is empty"),
        (["index=A/A"], "it names a symbol twice"),
        (["index=A", "index=B"], "tells the index twice"),
        (["log_return_5@90s of A"], "can't be computed from bars of 1m"),
    ],
)
def test_a_bad_entry_is_refused(entries: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        DataSettings(columns=tuple(entries), timeframe="1m")


def test_a_feature_of_another_symbol_is_a_column() -> None:
    with pytest.raises(UsageError, match=r"data.features.*Add it to data.columns"):
        DataSettings(features=("auto", "log_return_60 of BTC-USD"))


def test_an_event_bar_has_what_was_known_at_its_last_trade() -> None:
    events = replace(ONE, timeframe="events", timestamp=ONE.timestamp + np.arange(1500) % 40 * 10**9)
    read = joined(events, {"TWO": replace(events, symbol="TWO")}, "log_return_1 of TWO")
    assert column(read, "log_return_1 of TWO")[7] == np.float32(np.log(ONE.close[7] / ONE.close[6]))
    assert step_of("events") == 0
