"""A data file is not believed: symbols follow the one rule, it unpacks to so much and no more, times are of
one unit.
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainer.base import symbols
from trainer.base.errors import DataError
from trainer.data.read import bounds, sources, symbol_columns
from trainer.data.read.headers import open_header
from trainer.data.read.parts import Part
from trainer.data.read.reading import CandleFolder, read_candles, read_parts
from trainer.data.read.writing import write_candles
from trainer.data.timeframes import step_of
from trainer.job.model_names import MODEL_SUFFIX, ModelName, is_model_file

NINE = 1_609_491_600  # 2021-01-01T09:00:00Z
PRICES = {name: [1.0, 1.0] for name in ("open", "high", "low", "close", "volume")}
PATHS = ("../../x", "..", ".hidden", "-rf", "~root", "a/b", "a\\b")
BAD = (*PATHS, "a,b", "a\0b", "a\nb", "\x1b[31m", "\u202ea", "x" * 300, "é" * 60)
GOOD = ("BTC-USD", "ES=F", "^GSPC", "BRK.B", "600519", "NA", "C C", "a..b", "é" * 50, "$x:y*|'\"&;")


@pytest.mark.parametrize("symbol", [*BAD, "", " A", "A "])
def test_a_symbol_must_be_a_safe_part_of_a_path(symbol: str) -> None:
    assert symbols.flaw(symbol)


@pytest.mark.parametrize("symbol", GOOD)
def test_a_symbol_makes_names_of_models_that_are_files(symbol: str) -> None:
    name = ModelName(
        family="lstm", target="volatility", symbol=symbol, timeframe="tick" + "9" * 15, fold=1000, seed=2**32
    )
    assert not symbols.flaw(symbol) and is_model_file(f"{name}{MODEL_SUFFIX}")


def test_the_rule_of_symbols_counts_what_it_refuses() -> None:
    """60 letters of two bytes each are too long: a rule of 100 characters would not say why."""
    assert symbols.flaw("ж" * 60) == "it has 120 bytes" and "1 to 100 bytes" in symbols.RULE


@pytest.mark.parametrize("symbol", [symbol for symbol in BAD if symbol != "a/b"])  # which trains as a-b
@pytest.mark.parametrize("rows", ["alone", "beside"])
def test_a_symbol_that_is_a_path_is_refused_before_any_write(symbol: str, rows: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "scratch").mkdir()
    column = [symbol, symbol if rows == "alone" else "AAA"]
    path = tmp_path / "in" / "all_1m.parquet"
    pq.write_table(pa.table({"time": [NINE, NINE + 60], "symbol": column, **PRICES}), path)
    with pytest.raises(
        DataError, match=r"all_1m.parquet has '.*' for a symbol .*a symbol is 1 to 100 bytes of"
    ):
        folder = CandleFolder(path, tmp_path / "scratch")
        for name in folder.symbols:
            folder.read(name)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["in", "scratch"]


@pytest.mark.parametrize(
    ("name", "header", "row"),
    [
        ("all_1m.csv", "time,symbol,open,high,low,close,volume", f"{NINE},../x,1,1,1,1,1"),
        ("-A_1m.csv", "time,open,high,low,close,volume", f"{NINE},1,1,1,1,1"),
    ],
)
def test_symbols_of_csvs_and_file_names_follow_the_rule(
    name: str, header: str, row: str, write_csv: Any
) -> None:
    with pytest.raises(DataError, match=r"has '(\.\./x|-A)' for a symbol"):
        read_candles(write_csv(name, header, [row]))


@pytest.mark.parametrize(
    ("name", "header", "row", "do"),
    [
        ("all_1m.csv", "time,symbol,open,high,low,close,volume", f"{NINE},-x,1,1,1,1,1", "Rename it in"),
        ("NASDAQ_AAPL, 1M.csv", "time,open,high,low,close,volume", f"{NINE},1,1,1,1,1", "Rename the file"),
    ],
)
def test_a_bad_symbol_is_renamed_where_it_stands(
    name: str, header: str, row: str, do: str, write_csv: Any
) -> None:
    with pytest.raises(DataError) as caught:
        read_candles(write_csv(name, header, [row]))
    assert caught.value.do.startswith(do)


def test_symbols_that_are_not_unicode_are_refused(tmp_path: Path) -> None:
    bad = pa.Array.from_buffers(pa.string(), 2, pa.array([b"A\xff", b"B"], pa.binary()).buffers())
    pq.write_table(
        pa.table({"time": [NINE, NINE + 60], "symbol": bad, **PRICES}), tmp_path / "all_1m.parquet"
    )
    with pytest.raises(DataError, match="the symbols of .* can't be read"):
        read_candles(tmp_path)


def test_a_file_whose_symbols_changed_is_refused(tmp_path: Path, make_candles: Any) -> None:
    path = tmp_path / "all_1m.parquet"
    write_candles(path, [make_candles(50, symbol=symbol) for symbol in ("AAA", "BBB")])
    with pytest.raises(DataError, match="all_1m.parquet holds other symbols than when it was opened"):
        read_parts("AAA", "1m", [Part(header=open_header(path), timeframe="1m")])
    path = tmp_path / "CCC_1m.csv"
    path.write_text("time,open,high,low,close,volume\n2024-01-01,1,1,1,1,1\n")
    part = Part(header=open_header(path), timeframe="1m")
    path.write_text("time,open,high,low,close,volume,symbol\n2024-01-01,1,1,1,1,1,DDD\n")
    with pytest.raises(DataError, match="CCC_1m.csv has other columns than when it was opened"):
        read_parts("CCC", "1m", [part])


@pytest.mark.parametrize("name", [b"A\xff_1m.csv", b"A\n_1m.csv", b"A" * 201 + b"_1m.csv"])
def test_a_file_name_that_is_not_text_is_refused(name: bytes, tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(name)).write_text("time,open,high,low,close,volume\n")
    with pytest.raises(DataError, match="has a name that can't be used") as caught:
        read_candles(tmp_path)
    assert str(caught.value).encode() and str(caught.value).isprintable()


@pytest.fixture
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "FREE_BYTES", 1 << 16)
    for name in ("read_table", "read_csv"):
        whole = sources.pq if name == "read_table" else sources.pa_csv
        monkeypatch.setattr(whole, name, lambda *_, **__: pytest.fail("it is read whole"))


def test_a_parquet_bomb_is_refused_by_its_footer(tmp_path: Path, small_bounds: None) -> None:
    rows = 100_000
    constant = {name: pa.array([1.0] * rows) for name in PRICES}
    path = tmp_path / "AAA_1m.parquet"
    pq.write_table(pa.table({"time": pa.array([NINE] * rows), **constant}), path, compression="zstd")
    assert path.stat().st_size < 10_000
    with pytest.raises(DataError, match=r"too large for candles \(its [\d,]+ bytes take [\d,]+ bytes of mem"):
        read_candles(path)


def test_a_repeated_long_text_takes_memory_once(tmp_path: Path) -> None:
    path, rows, length = tmp_path / "AAA_1m.parquet", 1000, 200_000
    told = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), ["x" * length])
    pq.write_table(
        pa.table({"time": told, **{name: [1.0] * rows for name in PRICES}}), path, store_schema=False
    )
    most = pa.default_memory_pool().max_memory()
    with pytest.raises(DataError, match="a time has more than 64 characters"):
        read_candles(path)
    assert pa.default_memory_pool().max_memory() < most + rows * length / 4


@pytest.mark.parametrize("row", ["\n", "\r", "1,1,1,1,1,1\r\n", "1" * 1000], ids=["lf", "cr", "bars", "cell"])
@pytest.mark.parametrize("symbols", ["", ",symbol"])
def test_a_csv_bomb_is_refused_by_the_memory_it_takes(
    row: str, symbols: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5.6 MB took 5.4 GB: a row of 12 bytes takes 240."""
    monkeypatch.setattr(bounds, "FREE_BYTES", 1 << 22)
    path, text = (
        tmp_path / "AAA_1m.csv.gz",
        f"time,open,high,low,close,volume{symbols}\n{row * (3_000_000 // len(row))}",
    )
    path.write_bytes(gzip.compress(text.encode()))
    assert path.stat().st_size < 10_000
    with pytest.raises(DataError, match=r"too large for candles \(its [\d,]+ bytes take [\d,]+ bytes of mem"):
        read_candles(path)


def test_the_memory_of_further_columns_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    further = [f"c{number}" for number in range(50)]
    cells = ",".join("1" for _ in further)
    rows = "".join(f"{NINE + 60 * row},1,1,1,1,1,{cells}\n" for row in range(1_000))
    path = tmp_path / "AAA_1m.csv.gz"
    path.write_bytes(gzip.compress(f"time,open,high,low,close,volume,{','.join(further)}\n{rows}".encode()))
    monkeypatch.setattr(bounds, "FREE_BYTES", 1_000_000)
    assert len(read_candles(path)["AAA"]) == 1_000
    with pytest.raises(DataError, match="too large for candles"):
        read_candles(path, columns=further)


LISTS = {"list": pa.array([[0.0] * 1_000] * 2), "fixed": pa.array([b"0" * 1_000] * 2, pa.binary(1_000))}


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("column", ["open", "time", "symbol", "funding"])
def test_values_that_hold_any_number_of_others_are_not_read(column: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "AAA_1m.parquet"
    pq.write_table(pa.table({"time": [NINE, NINE + 60], **PRICES, column: LISTS[kind]}), path)
    columns = ["funding"] if column == "funding" else []
    with pytest.raises(DataError, match=f"column {column} of .* has values of type"):
        read_candles(path, columns=columns)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view(), pa.binary()])
def test_a_repeated_long_price_takes_memory_once(kind: pa.DataType, tmp_path: Path) -> None:
    path, rows, length = tmp_path / "AAA_1m.parquet", 1000, 200_000
    times, ones = [NINE + 60 * row for row in range(rows)], [1.0] * rows
    told = pa.array(["0" * length + "1"] * rows, kind)
    pq.write_table(pa.table({"time": times, **dict.fromkeys(PRICES, ones), "high": told}), path)
    assert path.stat().st_size < 100_000
    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(pool)
    try:
        (candles,) = read_candles(path).values()
    finally:
        pa.set_memory_pool(usual)
    assert candles.high.tolist() == ones and 0 < pool.max_memory() < rows * length / 4


def test_a_file_of_too_many_symbols_is_refused_as_it_is_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(symbol_columns, "MOST_SYMBOLS", 3)
    monkeypatch.setattr(sources, "_BATCH_ROWS", 2)
    names = ["A", "B", "C", "D"]
    columns = {"time": [NINE] * 4, "symbol": names, **{name: [1.0] * 4 for name in PRICES}}
    pq.write_table(pa.table(columns), tmp_path / "all_1m.parquet")
    with pytest.raises(DataError, match="all_1m.parquet has 4 symbols .at most 3 are read"):
        read_candles(tmp_path)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("with_symbols", [False, True])
@pytest.mark.parametrize("factors", [(10**3, 10**6), (1, 10**3), (10**6, 1), (10**9, 10**6)])
def test_times_of_mixed_units_are_refused(
    factors: tuple[int, int], with_symbols: bool, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_BATCH_ROWS", 2)  # the unit changes where a part ends
    times = [(NINE + 60 * row) * factors[row // 2] for row in range(4)]
    columns: dict[str, Any] = {"time": times, **{name: [1.0] * 4 for name in PRICES}}
    if with_symbols:
        columns["symbol"] = ["A", "B", "A", "B"]
    table, path = pa.table(columns), tmp_path / f"AAA_1m.{suffix}"
    if suffix == "parquet":
        pq.write_table(table, path)
    else:
        sources.pa_csv.write_csv(table, path)
    with pytest.raises(DataError, match="has a time that can't be read in column time .it mixes units: "):
        read_candles(path)


@pytest.mark.parametrize("first", [0, -86_400_000, 8_985_600_000, 1_700_000_000_000])
def test_times_of_one_unit_that_cross_1970_are_read(first: int, tmp_path: Path) -> None:
    days = [*range(first, 1_700_086_400_001, 86_400_000)]  # the largest shows that these are milliseconds
    columns = {name: [1.0] * len(days) for name in PRICES}
    pq.write_table(pa.table({"time": days, **columns}), tmp_path / "AAA_1d.parquet")
    assert read_candles(tmp_path)["AAA"].timestamp.tolist() == [time * 10**6 for time in days]


@pytest.mark.parametrize("time", ["9999-12-31", "0001-01-01", "1700-01-01T00:00:00Z", "", "x" * 100])
def test_a_time_outside_1800_to_2199_is_refused(time: str, write_csv: Any) -> None:
    path = write_csv("AAA_1d.csv", "date,open,high,low,close,volume", [f'"{time}",1,1,1,1,1'])
    with pytest.raises(DataError, match="has (a time that can't be read|1 bar without a time)"):
        read_candles(path)


@pytest.mark.parametrize("times", [[2**64 - 1], [-(2**62)], [1e300], [-1e300], [10**15, 5, 7]])
def test_a_number_that_is_not_a_time_is_refused(times: list[Any], tmp_path: Path) -> None:
    column = pa.array(times, pa.uint64() if times == [2**64 - 1] else None)
    pq.write_table(
        pa.table({"time": column, **{name: [1.0] * len(times) for name in PRICES}}),
        tmp_path / "AAA_1d.parquet",
    )
    with pytest.raises(DataError):
        read_candles(tmp_path)


def test_an_endless_timeframe_is_refused() -> None:
    for name in ("99999999999999d", "9" * 30 + "m", "tick" + "9" * 16):
        with pytest.raises(DataError, match="is not a timeframe"):
            step_of(name)


def test_folders_of_paths_are_all_above_them() -> None:
    assert symbols.folders_of(["a", "b/c", "d/e/f/g", "d/e/h"]) == {"b", "d", "d/e", "d/e/f"}
