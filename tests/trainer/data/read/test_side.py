"""Side series: each bar has the newest value that was published when it ended, and no later one."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.base.errors import DataError, UsageError
from trainer.data.read.reading import read_candles
from trainer.data.read.side import SideSeries, read_sides, with_sides
from trainer.data.read.writing import write_candles
from trainer.data.side_names import SideColumn, side_column, side_name, split_sides
from trainer.data.synthetic import synthetic_candles
from trainer.data.timeframes import DAY

HOUR = 3_600_000_000_000
BARS = synthetic_candles("BTC-USD", bars=240, timeframe="1h")  # ten days
FIRST = int(BARS.timestamp[0])


def series(times: Any, values: Any, *, lag: int = DAY, age: int = 0) -> SideSeries:
    column = SideColumn(entry="fear lag 1d", file="fear", column="", lag=lag, age=age)
    times = np.asarray(times, dtype=np.int64)
    return SideSeries(column=column, files=(), timestamp=times, values=np.asarray(values, float))


def write(folder: Path, name: str, rows: list[tuple[int, Any]], header: str = "time,value") -> Path:
    lines = [f"{np.datetime64(time, 'ns').astype('datetime64[s]')}Z,{value}" for time, value in rows]
    path = folder / name
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


DAILY = [(FIRST + day * DAY, float(day)) for day in range(-2, 11)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_candles(tmp_path / "BTC-USD_1h.parquet", [BARS], synthetic=True)
    write(tmp_path, "fear.side.csv", DAILY)
    return tmp_path


def test_a_bar_has_the_newest_value_published_when_it_ended(folder: Path) -> None:
    read = read_candles(folder, columns=["fear lag 1d"])["BTC-USD"]
    values = read.columns["fear lag 1d"]
    ends = read.timestamp + HOUR
    assert values.tolist() == [float((end - DAY - FIRST) // DAY) for end in ends]
    assert read.columns_begin == 0 and read.files == ("BTC-USD_1h.parquet", "fear.side.csv")


def test_bars_before_the_first_publication_are_warm_up(folder: Path) -> None:
    write(folder, "fear.side.csv", DAILY[2:])  # published from one day after the first bar on
    read = read_candles(folder, columns=["fear lag 1d"])["BTC-USD"]
    assert read.columns_begin == 23  # the bar that ends a day later has it


def test_longer_bars_have_what_was_known_at_their_end(folder: Path) -> None:
    read = read_candles(folder, timeframe="4h", columns=["fear lag 30h"])["BTC-USD"]
    ends = read.timestamp + 4 * HOUR
    assert read.columns["fear lag 30h"].tolist() == [float((end - 30 * HOUR - FIRST) // DAY) for end in ends]


def test_several_files_are_one_series_and_columns_have_names(folder: Path) -> None:
    (folder / "fear.side.csv").unlink()
    for part, rows in (("a", DAILY[:7]), ("b", DAILY[6:])):
        times = pa.array([time for time, _ in rows], pa.timestamp("ns", "UTC"))
        values = pa.array([value for _, value in rows])
        table = pa.table({"date": times, "words": ["greed"] * len(rows), "value": values, "votes": values})
        pq.write_table(table, folder / f"fear.side.{part}.parquet")
    read = read_candles(folder, columns=["fear.votes lag 1d"])["BTC-USD"]
    assert read.columns["fear.votes lag 1d"][-1] == 9
    assert read.files[1:] == ("fear.side.a.parquet", "fear.side.b.parquet")
    with pytest.raises(
        DataError, match="several columns .they are value, votes.. Name one, such as fear.value lag 1d"
    ):
        read_candles(folder, columns=["fear lag 1d"])


def test_a_feather_file_is_a_side_file_too(folder: Path) -> None:
    (folder / "fear.side.csv").unlink()
    times = pa.array([time for time, _ in DAILY], pa.timestamp("ns", "UTC"))
    values = pa.array([value for _, value in DAILY])
    pa.feather.write_feather(pa.table({"date": times, "value": values}), folder / "fear.side.feather")
    read = read_candles(folder, columns=["fear lag 1d"])["BTC-USD"]
    assert read.columns["fear lag 1d"][-1] == 9


def test_a_stale_series_is_refused_unless_its_age_is_allowed(folder: Path) -> None:
    write(folder, "fear.side.csv", DAILY[:-5])
    with pytest.raises(DataError, match="side series fear is stale .bars end at .*; 4 days is the most"):
        read_candles(folder, columns=["fear lag 1d"])
    entry = "fear lag 1d age 9d"
    assert read_candles(folder, columns=[entry])["BTC-USD"].columns[entry][-1] == 5
    write(folder, "fear.side.csv", DAILY[-1:])
    with pytest.raises(DataError, match="newest value then: none"):
        read_candles(folder, columns=["fear lag 30d"])


@pytest.mark.parametrize("quarters", [40, 41, 42, 43, 44])
def test_a_series_of_quarters_is_not_stale(quarters: int) -> None:
    months = np.datetime64("2010-01") + np.arange(0, 3 * quarters, 3).astype("timedelta64[M]")
    times = months.astype("datetime64[ns]").astype(np.int64)
    one = series(times, np.arange(quarters), lag=45 * DAY)
    assert one.oldest in [45 * DAY + int(3 * step * DAY) for step in (91, 91.5, 92)]


def test_a_gap_of_the_series_is_noted() -> None:
    rows = [*DAILY[:3], *DAILY[10:]]
    side = series(*zip(*rows, strict=True), lag=0)
    candles, notes = with_sides(BARS, [side])
    assert len(notes) == 1 and "older than 3 days in some bars" in notes[0].text
    assert len(candles.columns["fear lag 1d"]) == len(BARS)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("a,b\n1,2\n", "has no column of times"),
        ("time,word\n2021-01-01,x\n", "has no values"),
        ("time,value\n", "has no values"),
        ("time,value\n2021-01-01,1\n2021-01-01,2\n", r"contradicts itself \(1 time has two values"),
        ("time,value\n2021-01-01,\n2021-01-02,\n", "has no val"),
        ("time,value\n2021-01-01,inf\n", "has an infinite value"),
        ("time,value\nsoon,1\n", "has a time that can't be read"),
        ("time,value\n2021-01-01,1,2\n", "can't be read"),
        ("time,value, value\n2021-01-01,1,2\n", "has two columns called value"),
        (",,value\n2021-01-01,1,2\n", "has two columns called ''"),
        ("time,value\n01/02/2021,1\n", r"as 2021-03-04\.$"),  # data.columns tells about candles alone
        ("time,time,value\n2021-01-01,2021-01-01,2\n", "has two columns called time"),
    ],
)
def test_a_file_that_cant_be_used_says_why(folder: Path, content: str, says: str) -> None:
    (folder / "fear.side.csv").write_text(content)
    with pytest.raises(DataError, match=says):
        read_candles(folder, columns=["fear lag 1d"])


def test_a_time_of_day_is_joined_with_its_date(folder: Path) -> None:
    days = [str(np.datetime64(FIRST + day * DAY, "ns"))[:10] for day in range(-2, 11)]
    lines = [f"{row},{day},16:00,{row}" for row, day in enumerate(days)]
    (folder / "fear.side.csv").write_text("\n".join([",date,time,value", *lines]) + "\n")  # as pandas does
    read = read_candles(folder, columns=["fear.value lag 0s"])["BTC-USD"]
    values = read.columns["fear.value lag 0s"]
    assert values.tolist() == [float((end - 16 * HOUR - FIRST) // DAY) + 2 for end in read.timestamp + HOUR]


def test_a_day_is_not_known_when_it_opens(folder: Path) -> None:
    # CoinMarketCap's export, for its market cap
    days = [str(np.datetime64(FIRST + day * DAY, "ns"))[:10] for day in range(-2, 11)]
    lines = [f"{day}T00:00:00.000Z;{row};{day}T23:59:59.999Z" for row, day in enumerate(days)]
    (folder / "cap.side.csv").write_text("\n".join(["timeOpen;marketCap;timestamp", *lines]) + "\n")
    read = read_candles(folder, columns=["cap.marketCap lag 0s"])["BTC-USD"]
    values = read.columns["cap.marketCap lag 0s"]
    assert values.tolist() == [float((end - FIRST) // DAY) + 1 for end in read.timestamp + HOUR]


def test_a_number_that_no_float_holds_is_refused(folder: Path) -> None:
    table = pa.table({"time": pa.array([FIRST]), "value": pa.array([2**63], pa.uint64())})
    pq.write_table(table, folder / "fear.side.more.parquet")
    with pytest.raises(DataError, match="has a value in column value that is not a number"):
        read_candles(folder, columns=["fear lag 1d"])


@pytest.mark.parametrize("name", [b"fear.side.a\nb.csv", b"fear.side.\xff.csv", b"fe\\ar.side.csv"])
def test_a_name_that_no_object_can_have_is_refused(folder: Path, name: bytes) -> None:
    write(folder, os.fsdecode(name), DAILY)
    with pytest.raises(DataError, match="has a name that can't be used"):
        read_candles(folder, columns=["fear lag 1d"])


def test_a_missing_series_is_named(folder: Path) -> None:
    with pytest.raises(DataError, match=r"no side series trends .*\. Put trends.side.csv beside the candles"):
        read_candles(folder, columns=["trends lag 2h"])


@given(
    times=st.lists(st.integers(-100, 300), min_size=1, max_size=40, unique=True),
    lag=st.integers(0, 80),
    end=st.integers(1, len(BARS)),
)
@settings(max_examples=60, deadline=None)
def test_the_join_is_the_plain_one_and_reads_nothing_later(times: list[int], lag: int, end: int) -> None:
    times = sorted(times)
    side = series([FIRST + each * HOUR for each in times], range(len(times)), lag=lag * HOUR, age=1000 * DAY)
    known_at = BARS.timestamp[:end] + HOUR
    values, _ = side.at(known_at)
    for bar, value in enumerate(values):
        published = [number for number, each in enumerate(times) if each + lag <= bar + 1]
        assert np.isnan(value) if not published else value == published[-1]
    later = replace(side, values=np.where(side.timestamp + lag * HOUR > known_at[-1], 1e9, side.values))
    assert np.array_equal(later.at(known_at)[0], values, equal_nan=True)


def test_entries_name_file_column_lag_and_age() -> None:
    side = side_column("trends.btc lag 90m age 14d")
    assert side is not None
    assert (side.file, side.column, side.lag, side.age) == ("trends", "btc", 90 * 60 * 10**9, 14 * DAY)
    inside, sides = split_sides(["funding_rate", "fear lag 0d", "open interest"])
    assert inside == ("funding_rate", "open interest") and [one.lag for one in sides] == [0]
    assert [
        side_name(name) for name in ("fear.side.csv", "fear.side.2026-11.parquet", "fear.csv", "a.b.side.csv")
    ] == [
        "fear",
        "fear",
        "",
        "",
    ]


@pytest.mark.parametrize("entry", ["fear lag soon", "fear lag 1d age x", ".x lag 1d", "fear. lag 1d"])
def test_a_bad_entry_is_refused(entry: str) -> None:
    with pytest.raises(UsageError, match=r"job key 'data.columns' has"):
        side_column(entry)


def test_no_series_reads_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: Callable[..., Any] = lambda *_: pytest.fail("looked")  # noqa: E731
    monkeypatch.setattr(Path, "iterdir", looked)
    assert read_sides(tmp_path, ()) == ()
