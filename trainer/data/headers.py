"""The header of a candle file: which of its columns are the parts of a bar, and what its name says.

Columns are recognized by name, whatever their order and case; others are read where a job names them exactly. A symbol comes
from a column, else from the file's name `SYMBOL_TIMEFRAME_...`; a timeframe from the name, else it is the commonest step.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from trainer.data.bounds import UNREADABLE, check_footer, first_line, text_stream
from trainer.data.settings import SUFFIXES, check_path
from trainer.data.timeframes import parse_name
from trainer.errors import DataError, nearest
from trainer.symbols import file_flaw

FIELDS = ("open", "high", "low", "close", "volume")
SYNTHETIC_KEY = b"mayfly_synthetic"  # schema metadata of generated candles
_NAMES = {  # in order of preference; compared in lower case with blanks and dashes as underscores
    "timestamp": (
        "timestamp",
        "open_time",
        "opentime",
        "datetime",
        "date_time",
        "time",
        "date",
        "ts",
        "t",
        "unix",
        "__index_level_0__",
    ),
    "open": ("open", "o", "open_price"),
    "high": ("high", "h", "high_price"),
    "low": ("low", "l", "low_price"),
    "close": ("close", "c", "close_price"),
    "volume": ("volume", "v", "vol", "base_volume", "volume_base"),
    "symbol": ("symbol", "ticker", "sym", "instrument", "pair"),
}


@dataclass(frozen=True, kw_only=True)
class CandleHeader:
    """A candle file, opened as far as its header."""

    path: Path
    columns: dict[str, str]  # our field -> the file's column
    names: tuple[str, ...]  # of all of the file's columns
    name_symbol: str  # what the name says, for a file without a symbol column
    name_timeframe: str  # '' where the name says none
    synthetic: bool
    delimiter: str = ""  # of a CSV
    texts: tuple[str, ...] = ()  # a parquet file's columns of text among ours: read as dictionaries, however often one is told

    @property
    def has_symbol_column(self) -> bool:
        return "symbol" in self.columns

    @property
    def further(self) -> tuple[str, ...]:
        """Return the names of the columns that are none of our fields, without blanks around them."""
        return tuple(name.strip() for name in self.names if name not in self.columns.values())

    def column_of(self, name: str) -> str:
        """Return the file's name of a column that a job names. Raises DataError where it is not there, or is the bar's."""
        field = next((field for field, taken in self.columns.items() if taken.strip() == name), "")
        if field:
            raise DataError(
                f"column {name} of {self.path} is the {field} of its bars",
                why="data.columns takes what is no part of a bar",
                do="Leave it out, or give a copy of it another name.",
            )
        for header in self.names:
            if header.strip() == name:
                return header
        there = ", ".join(self.further[:12]) or "none"
        do = nearest(name, self.further) or "Leave it out of data.columns, or add it to the file."
        raise DataError(f"{self.path} has no column {name}", why=f"its columns beside those of a bar: {there}", do=do)


def candle_files(path: Path) -> list[Path]:
    """List the candle files of a folder, or the one file that `path` is. Raises DataError for none, or one of a bad name."""
    check_path(str(path))
    if path.is_file():
        if not path.name.lower().endswith(SUFFIXES):
            raise DataError(
                f"{path} is not a candle file",
                why=f"it does not end in {', '.join(SUFFIXES)}",
                do="Convert it to parquet or CSV.",
            )
        return [_named(path)]
    files = [
        _named(item)
        for item in sorted(path.iterdir())
        if item.is_file() and item.name.lower().endswith(SUFFIXES) and item.name[0] not in "._"
    ]
    if not files:
        raise DataError(
            f"data folder {path} holds no candles",
            why=f"no file ends in {', '.join(SUFFIXES)}",
            do="Give --data a folder that does.",
        )
    return files


def open_source(path: Path) -> CandleHeader:
    """Read a file's header. Raises DataError when it is not what its name says, is too large, or lacks a needed column."""
    stem = path.name.split(".csv")[0] if ".csv" in path.name.lower() else path.stem
    symbol, timeframe = parse_name(stem)
    is_parquet, delimiter = path.suffix.lower() in (".parquet", ".pq"), ""
    try:
        if is_parquet:
            with pq.ParquetFile(path) as file:
                schema = file.schema_arrow
                check_footer(path, file.metadata)
        else:
            delimiter = _delimiter(path)
            options = pa_csv.ParseOptions(delimiter=delimiter)
            with text_stream(path) as stream, pa_csv.open_csv(stream, parse_options=options) as reader:
                schema = reader.schema
        names = list(schema.names)
    except UNREADABLE as error:
        raise DataError(
            f"{path} is not {'parquet' if is_parquet else 'CSV'}",
            why=first_line(error),
            do="Replace the file, or move it out of the data folder.",
        ) from error
    columns = _columns(path, names)
    texts = (columns["timestamp"], columns.get("symbol", "")) if is_parquet else ()
    return CandleHeader(
        path=path,
        columns=columns,
        names=tuple(names),
        name_symbol=symbol,
        name_timeframe=timeframe,
        synthetic=(schema.metadata or {}).get(SYNTHETIC_KEY, b"") == b"true",
        delimiter=delimiter,
        texts=tuple(name for name in texts if name and _is_text(schema.field(name).type)),
    )


def _named(path: Path) -> Path:
    """Return a file whose name can be that of an object. Raises DataError for another."""
    if why := file_flaw(path.name):
        raise DataError(f"the candle file {ascii(path.name)} has a name that can't be used", why=why, do="Rename it.")
    return path


def _columns(path: Path, names: list[str]) -> dict[str, str]:
    """Return the file's column of each of our fields. Raises DataError where one is missing, or is there twice."""
    plain = {name.strip().strip("<>").lower().replace(" ", "_").replace("-", "_"): name for name in reversed(names)}
    columns = {
        field: next(plain[known] for known in accepted if known in plain)
        for field, accepted in _NAMES.items()
        if plain.keys() & set(accepted)
    }
    missing = [field for field in ("timestamp", *FIELDS) if field not in columns]
    if missing:
        raise DataError(
            f"{path} has no column for {', '.join(missing)}",
            why=f"its columns are {', '.join(names[:12])}"[:300],
            do=f"Name the column {missing[0]}, or move the file out of the data folder.",
        )
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise DataError(f"{path} has two columns called {twice[0]}", do="Rename one of them, or leave it out.")
    return columns


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind))


def _delimiter(path: Path) -> str:
    """Return the separator that the header line uses most."""
    with text_stream(path) as stream:
        header = stream.read(4096).split(b"\n")[0].decode("utf-8-sig")
    return max(",;\t|", key=header.count)
