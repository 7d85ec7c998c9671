"""`mayfly data check --fix`: repaired copies of candle files, with all their columns, in a new folder.

Only what is safe is repaired: rows are sorted by time, a bar that a file has twice is kept once, and bars
that training refuses are dropped, so that they become holes. Bars that differ for one time, splits and units
stay: the user knows which is right. A file without such defects is copied. The source is only read.
"""

from __future__ import annotations

import csv
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from trainer.base.errors import DataError
from trainer.base.files import whole_file
from trainer.data.check.findings import SymbolCheck
from trainer.data.check.folder import FolderCheck, check_folder
from trainer.data.read.arrow_files import is_arrow
from trainer.data.read.candles import in_time_order, same_times
from trainer.data.read.folders import candle_files
from trainer.data.read.headers import CandleHeader
from trainer.data.read.shapes import NAMES
from trainer.data.read.side import side_files
from trainer.data.read.sources import Series, open_candles, read_rows, read_table
from trainer.data.table import DataSettings


@dataclass(frozen=True, kw_only=True)
class RepairedFile:
    """A file of the new folder: its rows before, and what was done to them."""

    file: str
    rows: int
    is_sorted: bool = False  # by the repair
    duplicates: int = 0  # dropped
    refused: int = 0  # dropped

    @property
    def is_copy(self) -> bool:
        """Return whether it has the bytes of the source."""
        return not (self.is_sorted or self.duplicates or self.refused)


@dataclass(frozen=True, kw_only=True)
class Repaired:
    """The new folder: its files, those that were left out with the reason, and its own check."""

    out: Path
    files: tuple[RepairedFile, ...]
    left_out: Mapping[str, str]
    after: FolderCheck

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "out": str(self.out),
            "files": [asdict(one) for one in self.files],
            "left_out": dict(self.left_out),
            "after": self.after.to_dict(),
        }


@dataclass(kw_only=True)
class Repair:
    """Collects the bars to drop while a folder is checked, then writes the new folder."""

    path: Path
    out: Path
    data: DataSettings
    # file, symbol -> times (K,): files of other timeframes have sound bars at the same times
    _refused: dict[tuple[str, str], np.ndarray] = field(default_factory=dict)

    def add(self, one: SymbolCheck) -> None:
        """Take the bars of a symbol that training refuses."""
        for file in one.files:
            self._refused[file, one.symbol] = one.refused_times

    def write(self, made: FolderCheck) -> Repaired:
        """Write the new folder, and check it. Raises DataError if nothing can be written."""
        read = {file for one in made.symbols for file in one.files}
        files, left_out = [], {}
        for item in candle_files(self.path).files:
            try:
                if item.file not in read:
                    raise DataError("training would not read it")
                files.append(self._write_one(item.path, item.file))
            except DataError as error:
                left_out[item.file] = str(error)
        for side in side_files(self.path):
            with whole_file(self.out / side.name) as partial:
                shutil.copyfile(side, partial)
        if not files:
            reasons = [str(error) for error in made.unreadable] or left_out.values()
            why = "; ".join(reason.rstrip(".") for reason in reasons)[:300]
            do = "Correct the files by hand, or fetch them again."
            raise DataError(f"nothing of {self.path} can be repaired", why=why, do=do)
        after = check_folder(self.out, self.data)
        return Repaired(out=self.out, files=tuple(files), left_out=left_out, after=after)

    def _write_one(self, path: Path, file: str) -> RepairedFile:
        header = open_candles(path, file, self.data.told)
        symbols = read_rows(header)
        rows = sum(len(rows) for _, rows in symbols)
        times, keep = np.zeros(rows, dtype=np.int64), np.ones(rows, dtype=bool)
        duplicates = refused = 0
        is_sorted = True
        for series, places in symbols:
            times[places] = series.timestamp
            twice = _repeated(series)
            bad = np.isin(series.timestamp, self._refused.get((file, series.symbol), ())) & ~twice
            keep[places[twice | bad]] = False
            duplicates, refused = duplicates + int(twice.sum()), refused + int(bad.sum())
            steps = np.diff(series.timestamp[~(twice | bad)])
            is_sorted &= bool((steps >= 0).all() or (steps <= 0).all())
        done = RepairedFile(
            file=file, rows=rows, is_sorted=not is_sorted, duplicates=duplicates, refused=refused
        )
        with whole_file(self.out / file) as partial:
            if done.is_copy:
                shutil.copyfile(path, partial)
            else:
                order = np.flatnonzero(keep) if is_sorted else np.argsort(times, kind="stable")
                _write(header, read_table(header), order[keep[order]], partial)
        return done


def _repeated(series: Series) -> np.ndarray:
    """Return the bars (N,) bool of a file that repeat an earlier one of the same time, value by value."""
    order = np.argsort(series.timestamp, kind="stable")
    timestamp, values, _ = in_time_order([series])
    same, differs = same_times(timestamp, values)
    repeated = np.zeros(len(timestamp), dtype=bool)
    repeated[order[same[~differs] + 1]] = True
    return repeated


def _write(header: CandleHeader, table: pa.Table, rows: np.ndarray, path: Path) -> None:
    """Write rows of a file's table in its own format. Raises DataError if the table has other rows than its
    bars.
    """
    if len(rows) and int(rows.max()) >= table.num_rows:
        raise DataError(f"{header.path} has other rows than when it was read", do="Start again.")
    table = table.take(pa.array(rows))
    if is_arrow(header.path):
        with pa.ipc.new_file(str(path), table.schema) as file:
            file.write_table(table)
        return
    if header.shape is None:
        pq.write_table(table, path, compression="zstd")
        return
    if (
        header.shape.symbol and not header.has_symbol_column
    ):  # of a header of two levels, which is not written
        table = table.append_column(
            NAMES["symbol"][0], pa.array([header.shape.symbol] * len(rows), pa.string())
        )
    names = None if header.shape.columns and not header.shape.symbol else table.column_names
    compression = "gzip" if header.path.suffix.lower() == ".gz" else None
    with pa.output_stream(str(path), compression=compression) as stream:
        _write_text(table, stream, header.shape.delimiter, names)


def _write_text(table: pa.Table, stream: pa.NativeFile, delimiter: str, names: Sequence[str] | None) -> None:
    """Write a table of texts as lines, with quotes around a cell only if one needs them."""
    if names is not None:
        line = StringIO()
        csv.writer(line, delimiter=delimiter, lineterminator="\n").writerow(names)
        stream.write(line.getvalue().encode())
    special = rf'["\r\n{re.escape(delimiter)}]'
    quotes = any(pc.any(pc.match_substring_regex(column, special)).as_py() for column in table.columns)
    options = pa_csv.WriteOptions(
        include_header=False, delimiter=delimiter, quoting_style="needed" if quotes else "none"
    )
    pa_csv.write_csv(table, stream, options)
