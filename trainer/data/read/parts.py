"""The files with bars of one symbol, in a form that other processes can read: candle files, and array files.

An array file has the bars of one symbol, copied in parts from a candle file of many into a scratch folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from trainer.base.errors import DataError
from trainer.data.read.candles import check_order
from trainer.data.read.headers import CandleHeader, open_header
from trainer.data.read.sources import Series, read_series

ARRAY = ".npy"


@dataclass(frozen=True, kw_only=True)
class Part:
    """A file with bars of one symbol only: a candle file, or `array`, an array file made from it."""

    header: CandleHeader
    timeframe: str  # of its bars
    array: Path | None = None

    @property
    def file(self) -> str:
        """Return the candle file's flat name."""
        return self.header.file

    @property
    def path(self) -> Path:
        """Return the file to read."""
        return self.array or self.header.path

    def read(self, symbol: str, columns: Sequence[str]) -> Series:
        """Return the symbol's bars, oldest first, with further columns. Raises DataError."""
        series = self.read_as_is(symbol, columns)
        check_order(series)
        return series

    def read_as_is(self, symbol: str, columns: Sequence[str]) -> Series:
        """Return the symbol's bars as `read` does, or in any order, some twice. Raises DataError."""
        if self.array:
            rows = load_array(self.array)
            series = Series(
                file=self.file,
                symbol=symbol,
                timestamp=rows["timestamp"].copy(),
                values=np.ascontiguousarray(rows["values"].T),
                is_adjusted=bool(self.header.adjusted),
                has_actions=bool(self.header.actions),
            )
        else:
            if open_header(self.header.path, told=self.header.told).names != self.header.names:
                what = f"{self.file} has other columns than when it was opened"
                raise DataError(what, do="Start again, once nothing writes the file.")
            series, *others = read_series(self.header.with_columns(columns))
            if others or self.header.has_symbol_column and series.symbol != symbol:
                what = f"{self.file} holds other symbols than when it was opened"
                raise DataError(what, why=f"{series.symbol} beside {symbol}", do="Write the file again.")
            series = replace(series, symbol=symbol)
        return _oldest_first(series)


def append_array(path: Path, part: Series) -> None:
    """Append bars to an array file; `close_array` writes their number afterwards."""
    row = _row(len(part.values))
    rows = np.empty(len(part.timestamp), dtype=row)
    rows["timestamp"], rows["values"] = part.timestamp, part.values.T
    with path.open("ab") as file:
        if not file.tell():
            _write_header(file, row, 0)
        rows.tofile(file)


def close_array(path: Path, *, values: int, bars: int) -> None:
    """Write the header of an array file with `bars` bars of `values` values each."""
    with path.open("r+b") as file:
        _write_header(file, _row(values), bars)


def load_array(path: Path) -> np.ndarray:
    """Return the rows of an array file, memory-mapped."""
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


def _row(width: int) -> np.dtype[Any]:
    """Return the dtype of a row: a timestamp and `width` values."""
    return np.dtype([("timestamp", "<i8"), ("values", "<f8", (width,))])


def _write_header(file: BinaryIO, row: np.dtype[Any], bars: int) -> None:
    """Write the header of an array file. Numpy pads it, so that it can be overwritten once the number of rows
    is known.
    """
    np.lib.format.write_array_header_1_0(
        file, {"descr": np.lib.format.dtype_to_descr(row), "fortran_order": False, "shape": (bars,)}
    )


def _oldest_first(series: Series) -> Series:
    """Return a series sorted newest first reversed; any other unchanged."""
    times = series.timestamp
    if len(times) < 2 or times[0] < times[-1] or not (times[1:] < times[:-1]).all():
        return series
    return replace(
        series, timestamp=series.timestamp[::-1].copy(), values=np.ascontiguousarray(series.values[:, ::-1])
    )
