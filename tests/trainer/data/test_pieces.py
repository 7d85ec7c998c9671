"""What is computed of long columns in pieces equals what is computed of them whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainer.base.errors import DataError
from trainer.data.pieces import PIECE, long_array, pieces, rows_where
from trainer.data.read import sources
from trainer.data.read.candles import commonest_step
from trainer.data.read.reading import read_candles
from trainer.data.read.volumes import level_changes

MINUTE = 60_000_000_000


def bars(rows: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    close = np.exp(random.normal(0, 1e-3, rows).cumsum() + 4)
    return {
        "timestamp": (np.arange(rows) * MINUTE + 1_600_000_020_000_000_000).astype("datetime64[ns]"),
        "open": close,
        "high": close * 1.001,
        "low": close * 0.999,
        "close": close,
        "volume": random.lognormal(0, 1, rows) * (random.random(rows) > 0.1),
    }


def write(folder: Path, columns: dict[str, np.ndarray], *, group: int = 300) -> Path:
    pq.write_table(pa.table(columns), folder / "AAA_1m.parquet", row_group_size=group)
    return folder


def test_pieces_cover_every_row_once() -> None:
    assert list(pieces(0)) == []
    assert [(part.start, part.stop) for part in pieces(7, size=3)] == [(0, 3), (3, 6), (6, 7)]
    values = np.random.default_rng(0).random(2 * PIECE + 5)
    assert np.array_equal(
        rows_where(len(values), lambda part: values[part] > 0.5), np.flatnonzero(values > 0.5)
    )
    assert long_array((0,), np.int64).shape == (0,) and not long_array((2, 3), np.float64).any()


@pytest.mark.parametrize("leave_out", ["", "volume"])
@pytest.mark.parametrize("extra", [(), ("symbol",), ("adj_close",)])
def test_a_long_file_is_read_in_parts_to_the_same_bars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extra: tuple[str, ...], leave_out: str
) -> None:
    columns = bars(1000)
    others = {"symbol": np.array(["AAA"] * 1000), "adj_close": columns["close"] / 2}
    columns |= {name: others[name] for name in extra}
    columns.pop(leave_out, None)
    path = write(tmp_path, columns)
    whole = read_candles(path)["AAA"]
    monkeypatch.setattr(sources, "_FEW_ROWS", 100)
    monkeypatch.setattr(sources, "_PART_ROWS", 64)
    parts = read_candles(path)["AAA"]
    for name in ("timestamp", "open", "high", "low", "close", "volume"):
        assert np.array_equal(getattr(whole, name), getattr(parts, name)), name


def test_columns_of_different_lengths_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = sources._tables

    def one_part_less(*args, whole: bool = False):
        tables = list(plain(*args, whole=whole))
        yield from tables[:-1] if whole else tables

    monkeypatch.setattr(sources, "_FEW_ROWS", 100)
    monkeypatch.setattr(sources, "_PART_ROWS", 300)
    monkeypatch.setattr(sources, "_tables", one_part_less)
    with pytest.raises(DataError, match="AAA_1m.parquet can't be read"):
        read_candles(write(tmp_path, bars(1000)))


@pytest.mark.parametrize("row", [1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE - 1])
@pytest.mark.parametrize(
    ("column", "times", "what"), [("close", 60, "times off"), ("high", 0.5, "below low"), ("low", -1, "zero")]
)
def test_an_impossible_bar_is_seen_at_the_edge_of_a_piece(
    tmp_path: Path, row: int, column: str, times: float, what: str
) -> None:
    columns = bars(2 * PIECE + 3)
    columns[column] = columns[column].copy()
    columns[column][row] *= times
    with pytest.raises(DataError, match=what) as error:
        read_candles(write(tmp_path, columns, group=1 << 20))
    assert str(columns["timestamp"][row].astype("datetime64[s]")) in str(error.value)


@pytest.mark.parametrize("gaps", [0.0, 0.3, 0.9])
def test_the_commonest_step_is_that_of_a_count(gaps: float) -> None:
    random = np.random.default_rng(4)
    steps = np.where(random.random(2 * PIECE) < gaps, random.integers(2, 9, 2 * PIECE), 1) * MINUTE
    assert commonest_step(np.cumsum(steps)) == ("1m" if gaps < 0.5 else "events")


def test_levels_of_volume_are_those_of_whole_days() -> None:
    rows = 60 * 24 * 40
    times = np.arange(rows) * MINUTE + 5 * MINUTE
    random = np.random.default_rng(5)
    volume = random.lognormal(0, 1, rows) * np.where(np.arange(rows) < 30_000, 1.0, 1000.0)
    for traded in (1.0, 0.9):
        some = np.where(random.random(rows) < traded, volume, 0.0)
        ((row, jump),) = level_changes(times, some, "1m")
        assert abs(row - 30_000) < 100 and jump == pytest.approx(3, abs=0.05)
