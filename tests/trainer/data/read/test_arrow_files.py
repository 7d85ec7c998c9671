"""Arrow and Feather files are read like parquet, within the same bounds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather

from trainer.base.errors import DataError
from trainer.cli.sources.counted import count_bars
from trainer.data.read import bounds
from trainer.data.read.arrow_files import arrow_rows, arrow_schema
from trainer.data.read.reading import read_candles

NINE = 1_609_491_600  # 2021-01-01T09:00:00Z
FIELDS = ("open", "high", "low", "close", "volume")
Write = Callable[[Path, pa.Table], None]


def candles(rows: int, **more: pa.Array) -> pa.Table:
    return pa.table({"time": NINE + 60 * np.arange(rows), **{name: np.ones(rows) for name in FIELDS}, **more})


def packed(codec: str, chunk: int = 1 << 16) -> Write:
    return lambda path, table: feather.write_feather(table, str(path), compression=codec, chunksize=chunk)


def stream(path: Path, table: pa.Table) -> None:
    with pa.ipc.new_stream(str(path), table.schema) as file:
        file.write_table(table)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("all_1m.feather", packed("zstd", chunk=30)),
        ("all_1m.feather", packed("lz4")),
        ("all_1m.arrow", packed("uncompressed")),
        ("all_1m.arrow", stream),
    ],
)
def test_symbols_and_bars_are_those_of_the_table(name: str, write: Write, tmp_path: Path):
    symbols = pa.array(["AAA", "BBB"] * 50).dictionary_encode()
    write(tmp_path / name, candles(100, symbol=symbols, funding=pa.array(range(100), pa.int32())))
    read = read_candles(tmp_path, columns=["funding"])
    assert list(read) == ["AAA", "BBB"]
    assert read["BBB"].columns["funding"].tolist() == list(range(1, 100, 2))
    assert count_bars(str(tmp_path)).bars == {"AAA": 50, "BBB": 50}
    assert arrow_rows(tmp_path / name) == 100


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"FEA1" + b"\0" * 60, "version 1: write it with version 2"),
        (b"", "is not Arrow"),
        (b"ARROW1\0\0", "is not Arrow"),
        (b"time,open\n1,2\n" * 20, "is not Arrow"),
    ],
)
def test_what_is_no_arrow_is_refused_in_one_line(content: bytes, why: str, tmp_path: Path):
    (tmp_path / "AAA_1m.feather").write_bytes(content)
    with pytest.raises(DataError, match="is not Arrow") as refused:
        read_candles(tmp_path)
    assert why in str(refused.value)


def test_a_small_file_does_not_unpack_to_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bounds, "FREE_BYTES", 1 << 20)
    path = tmp_path / "AAA_1m.feather"
    for table in (candles(100_000), candles(100, note=pa.array(["x" * 100_000] * 100))):
        packed("zstd")(path, table)
        assert path.stat().st_size < 1 << 16 or len(table) > 100
        with pytest.raises(DataError, match="is too large for candles"):
            read_candles(tmp_path)


def test_a_claimed_size_is_believed_before_it_is_unpacked(tmp_path: Path):
    path = tmp_path / "AAA_1m.feather"
    packed("zstd")(path, candles(2_000))
    content = path.read_bytes()
    claim = (2_000 * 8).to_bytes(8, "little")
    assert content.count(claim) >= 5  # before each packed column
    path.write_bytes(content.replace(claim, (1 << 40).to_bytes(8, "little")))
    with pytest.raises(DataError, match="is too large for candles"):
        arrow_schema(path)


@pytest.mark.parametrize(
    "column", [pa.array([[1.0]] * 4), pa.array([b"abcd"] * 4, pa.binary(4)), pa.array([{"a": 1}] * 4)]
)
def test_a_price_that_is_no_number_is_refused(column: pa.Array, tmp_path: Path):
    table = candles(4).set_column(1, "open", column)
    stream(tmp_path / "AAA_1m.arrow", table)
    with pytest.raises(DataError, match=r"column open of .* has values of type"):
        read_candles(tmp_path)


def test_texts_that_point_outside_of_the_file_are_refused(tmp_path: Path):
    path = tmp_path / "all_1m.arrow"
    stream(path, candles(4, symbol=pa.array(["AAA"] * 4)))
    offsets = np.array([0, 3, 6, 9, 12], dtype=np.int32)
    content = path.read_bytes()
    assert content.count(offsets.tobytes()) == 1
    offsets[2:] = 1 << 30
    path.write_bytes(content.replace(np.array([0, 3, 6, 9, 12], dtype=np.int32).tobytes(), offsets.tobytes()))
    with pytest.raises(DataError):
        read_candles(tmp_path)


@pytest.mark.nightly
def test_damaged_files_are_read_or_refused_and_crash_nothing(tmp_path: Path):
    rng = np.random.default_rng(0)
    path = tmp_path / "all_1m.feather"
    table = candles(400, symbol=pa.array(["AAA", "BBB"] * 200).dictionary_encode())
    written = []
    for write in (packed("zstd", chunk=100), packed("uncompressed"), stream):
        write(path, table)
        written.append(path.read_bytes())
    refused = 0
    for number in range(600):
        content = bytearray(written[number % 3])
        for place in rng.integers(0, min(len(content), 3000), rng.integers(1, 5)):
            content[place] = rng.integers(0, 256)
        path.write_bytes(content[: len(content) if number % 7 else rng.integers(1, len(content))])
        try:
            read_candles(tmp_path)
        except DataError:
            refused += 1
    assert 100 < refused < 600
