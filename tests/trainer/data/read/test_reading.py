"""One symbol in memory at a time: files of one symbol as they lie, any other split into arrays on disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from trainer.base.errors import DataError
from trainer.data.read import parts, reading, sources
from trainer.data.read.candles import Candles
from trainer.data.read.folders import candle_files
from trainer.data.read.headers import open_header
from trainer.data.read.oddities import DataNote
from trainer.data.read.opened import CandleFile
from trainer.data.read.reading import CandleFolder, read_candles, read_parts
from trainer.data.read.shapes import FIELDS
from trainer.data.read.writing import write_candles

COLUMNS = ("timestamp", *FIELDS)


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have files streamed in parts of a few rows."""
    monkeypatch.setattr(sources, "_BATCH_ROWS", 64)
    monkeypatch.setattr(sources, "_BLOCK_BYTES", 4096)


def table_of(candles: Candles) -> pa.Table:
    columns = {name: getattr(candles, name) for name in COLUMNS}
    return pa.table({**columns, "symbol": [candles.symbol] * len(candles)})


def same(one: Candles, other: Candles) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in COLUMNS)


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
@pytest.mark.parametrize("sorted_by", ["time", "symbol"])
def test_a_file_of_many_symbols_is_split_and_read_bit_for_bit(
    tmp_path, scratch, make_candles, small_parts, suffix, sorted_by
):
    made = {
        symbol: make_candles(500 + 10 * n, symbol=symbol, seed=n)
        for n, symbol in enumerate(("^AAA", "BBB", "C C=F"))
    }
    table = pa.concat_tables([table_of(candles) for candles in made.values()])
    if sorted_by == "time":
        table = table.sort_by("timestamp")
    file = tmp_path / f"all_1m.{suffix}"
    (pq.write_table if suffix == "parquet" else pa_csv.write_csv)(table, file)
    folder = CandleFolder(file, scratch)
    assert folder.symbols == tuple(sorted(made))
    for symbol, candles in made.items():
        assert same(folder.read(symbol), candles)
        assert same(read_parts(symbol, "1m", folder.parts(symbol)), candles)
    held = {one.symbol: one.bars for one in folder.files()[0].holds}
    assert held == {"BBB": 510, "C C=F": 520, "^AAA": 500}
    assert all(path.is_relative_to(scratch) for symbol in made for path in [folder.parts(symbol)[0].path])


def test_a_file_of_many_symbols_is_opened_once_for_its_bars(tmp_path, scratch, make_candles, monkeypatch):
    write_candles(
        tmp_path / "all_1m.parquet", [make_candles(300, symbol=symbol) for symbol in ("AAA", "BBB", "CCC")]
    )
    streamed: list[str] = []

    def counted(source: Any, symbols: Any) -> Iterator[Any]:
        streamed.append(source.path.name)
        return sources.stream_series(source, symbols)

    monkeypatch.setattr(reading, "stream_series", counted)
    monkeypatch.setattr(parts, "read_series", lambda source: pytest.fail(f"{source.path} is read whole"))
    folder = CandleFolder(tmp_path, scratch)
    for symbol in folder.symbols:
        folder.read(symbol)
        read_parts(symbol, "1m", folder.parts(symbol))
    assert streamed == ["all_1m.parquet"]


@pytest.mark.parametrize("names", [("2021-01.csv", "2021-02.csv"), ("year=2021/part-0.csv", "part-1.csv")])
def test_files_named_only_by_date_or_part_are_refused(tmp_path, scratch, names):
    data = tmp_path / "BTC-USD"
    for number, name in enumerate(names):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        rows = "".join(f"2021-0{number + 1}-0{day},1,1,1,1,1\n" for day in (1, 2, 3))
        (data / name).write_text(f"date,open,high,low,close,volume\n{rows}")
    with pytest.raises(DataError, match=r"BTC-USD holds 2 files whose names have no symbol \(.*give the one"):
        CandleFolder(data, scratch)
    assert CandleFolder(tmp_path, scratch).symbols == ("BTC-USD",)  # the remedy


def test_no_part_of_a_stream_holds_more_than_a_batch(tmp_path, make_candles, small_parts):
    write_candles(
        tmp_path / "all_1m.parquet", [make_candles(300, symbol=symbol) for symbol in ("AAA", "BBB")]
    )
    streamed = list(sources.stream_series(open_header(tmp_path / "all_1m.parquet"), None))
    assert len(streamed) == 10 and all(
        sum(len(one.timestamp) for one in series) <= 64 for series, _ in streamed
    )


def test_a_file_with_one_symbol_is_not_copied(tmp_path, scratch, make_candles):
    write_candles(tmp_path / "AAA_1m.parquet", [make_candles(300)])
    pq.write_table(table_of(make_candles(300, symbol="BBB")), tmp_path / "other_1m.parquet")
    folder = CandleFolder(tmp_path, scratch)
    names = [folder.parts(symbol)[0].path.name for symbol in folder.symbols]
    assert names == ["AAA_1m.parquet", "other_1m.parquet"]
    assert folder.symbols == ("AAA", "BBB") and not list(scratch.iterdir())


def test_the_longest_series_determines_an_unnamed_timeframe(tmp_path, scratch, make_candles, small_parts):
    tables = [
        table_of(make_candles(300, symbol="AAA", timeframe="1h")),
        table_of(make_candles(100, symbol="BBB")),
    ]
    pq.write_table(pa.concat_tables(tables), tmp_path / "bars.parquet")
    assert CandleFolder(tmp_path, scratch, symbols=("BBB",)).timeframe == "1h"


def test_the_largest_epoch_of_a_file_determines_its_unit(tmp_path, scratch, small_parts):
    days = np.arange(3000) * 86_400  # from 1970 to 1978: parts of the file alone would pass for dates
    columns = {name: np.full(6000, 2.0) for name in FIELDS}
    table = pa.table({"time": np.concatenate([days, days]), "symbol": ["A"] * 3000 + ["B"] * 3000, **columns})
    pq.write_table(table, tmp_path / "stocks_1d.parquet")
    assert np.array_equal(CandleFolder(tmp_path, scratch).read("B").timestamp, days * 10**9)


def test_files_of_one_symbol_of_both_kinds_are_joined(tmp_path, scratch, make_candles):
    whole = make_candles(600)
    write_candles(tmp_path / "AAA_1m.parquet", [whole.rows(0, 400)])
    tables = [table_of(whole.rows(300, 600)), table_of(make_candles(50, symbol="BBB"))]
    pq.write_table(pa.concat_tables(tables), tmp_path / "more_1m.parquet")
    folder = CandleFolder(tmp_path, scratch, bars=500)
    read = folder.read("AAA")
    assert np.array_equal(read.timestamp, whole.timestamp[-500:]) and read.file_rows == 700
    assert [part.file for part in folder.parts("AAA")] == ["AAA_1m.parquet", "more_1m.parquet"]


def test_unsorted_bars_are_found_across_parts_of_a_file(tmp_path, make_candles, small_parts):
    candles = make_candles(128)
    turned = replace(candles, timestamp=np.roll(candles.timestamp, 64))
    tables = [table_of(turned), table_of(make_candles(64, symbol="BBB"))]
    pq.write_table(pa.concat_tables(tables), tmp_path / "all_1m.parquet")
    with pytest.raises(DataError, match=r"all_1m.parquet has unsorted bars of AAA"):
        read_candles(tmp_path)


def test_an_array_file_is_read_without_pickle(scratch):
    np.save(scratch / "0.npy", np.array([{"not": "numbers"}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="Python objects"):
        parts.load_array(scratch / "0.npy")


def test_files_and_notes_are_not_compared_with_each_other(tmp_path, scratch, make_candles, monkeypatch):
    """Of 20,000 files, each with a note, that would be hundreds of millions of comparisons."""
    compared: list[str] = []

    def counted(one: Any, other: object) -> bool:
        compared.append(type(one).__name__)
        return one is other

    for number in range(40):
        candles = make_candles(50, symbol=f"S{number:02d}", seed=number)
        table = table_of(candles).drop_columns(["volume"])
        pq.write_table(table, tmp_path / f"S{number:02d}_1m.parquet")
    for kind in (CandleFile, DataNote):
        monkeypatch.setattr(kind, "__eq__", counted)
    folder = CandleFolder(tmp_path, scratch, timeframe="1m")
    for symbol in folder.symbols:
        folder.read(symbol)
    assert [read.symbols for read in folder.files()] == [(f"S{number:02d}",) for number in range(40)]
    assert any("no volume" in line for line in folder.notes)
    assert len(compared) < 80


def test_every_file_that_can_not_be_used_is_named(tmp_path, scratch, make_candles):
    write_candles(tmp_path / "GOOD_1m.parquet", [make_candles(50, symbol="GOOD")], synthetic=False)
    (tmp_path / "A_1m.csv").write_text("time,open,high,low\n1,2,3,4\n")
    with pytest.raises(DataError) as one:
        CandleFolder(tmp_path, scratch)
    assert one.value.what.startswith(f"{tmp_path / 'A_1m.csv'} has no ")
    (tmp_path / "B_1m.csv").write_bytes(b"")
    with pytest.raises(DataError, match=r"^2 of 3 files can't be used \(") as several:
        CandleFolder(tmp_path, scratch)
    assert all(name in several.value.why for name in ("A_1m.csv", "B_1m.csv"))
    assert several.value.do.startswith(one.value.do)


def test_hidden_folders_are_not_read_at_any_depth(tmp_path: Path) -> None:
    """Such as what a job that writes partitions leaves when it is cut off."""
    read = [tmp_path / "symbol=A" / day / "part.parquet" for day in ("day=1", "day=2")]
    hidden = [tmp_path / "symbol=A" / folder / "part.parquet" for folder in ("_temporary", ".staging")]
    for file in (*read, *hidden, tmp_path / "_temporary" / "0" / "part.parquet"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    assert [one.path for one in candle_files(tmp_path).files] == read
