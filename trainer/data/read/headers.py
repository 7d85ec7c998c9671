"""Open the header of a candle file: find the columns of a bar, and the symbol and timeframe in its name.

Columns are recognized by name (`shapes`), in any order and case; others are read if a job names them exactly.
The symbol comes from a column, else from the file's name (`file_names`); the timeframe from the name, else
from the most frequent step.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from trainer.base.errors import DataError, nearest
from trainer.base.strict_json import Unsound
from trainer.data.columns import Told
from trainer.data.read.arrow_files import arrow_schema, is_arrow
from trainer.data.read.bounds import UNREADABLE, check_footer, first_line, is_text, text_stream
from trainer.data.read.fetch_record import ACTIONS, FETCHED_KEY, FetchRecord, read_fetch_record
from trainer.data.read.file_names import parse_flat_name
from trainer.data.read.shapes import (
    ADJUSTED,
    CERTAIN,
    DATES,
    FIELDS,
    NAMES,
    TICKS,
    UNNAMED,
    VOLUME_OF,
    plain_name,
)
from trainer.data.read.sniffing import CsvShape, clock_of, footer_of, sniff

SYNTHETIC_KEY = b"mayfly_synthetic"  # schema metadata of generated candles
_PARTS = {"time": "timestamp"}  # our field of a told part, where its name differs
_WORDS = {field: part for part, field in _PARTS.items()}
# A column of two levels, as pandas writes it to parquet.
_PAIR = re.compile(r"\('(?P<field>[^']*)', '(?P<ticker>[^']*)'\)")


@dataclass(frozen=True, kw_only=True)
class CandleHeader:
    """The header of a candle file."""

    path: Path
    file: str  # its flat name in plans and data sets
    columns: dict[str, str]  # our field -> the file's column; volume may be missing
    names: tuple[str, ...]  # of all of the file's columns
    name_symbol: str  # by the file's name, for a file without a symbol column
    name_timeframe: str  # by the file's name, '' if it has none
    synthetic: bool
    shape: CsvShape | None = None  # of a CSV
    texts: tuple[str, ...] = ()  # text columns of a parquet or Arrow file; parquet's are read as dictionaries
    dates: str = ""  # the column of dates, if `timestamp` is a time of day
    ticks: str = ""  # the column that counts ticks: the volume, if there is none or it is all zero
    adjusted: str = ""  # the column of adjusted closes
    extra: tuple[str, ...] = ()  # the file's further columns to read
    fetched: FetchRecord | None = None  # of a file that `mayfly data fetch` wrote
    told: Told = field(default_factory=Told)  # what the user tells about the parts of a bar
    chosen: tuple[str, ...] = ()  # how columns were chosen where their names leave it open

    @property
    def has_symbol_column(self) -> bool:
        return "symbol" in self.columns

    @property
    def times(self) -> tuple[str, ...]:
        """Return the columns of times: one, or a time of day and a date."""
        return (self.columns["timestamp"], self.dates) if self.dates else (self.columns["timestamp"],)

    @property
    def actions(self) -> tuple[str, ...]:
        """Return the columns of splits and dividends by which prices are adjusted, if the file says so."""
        return ACTIONS if self.fetched and self.fetched.actions else ()

    @property
    def numbers(self) -> tuple[str, ...]:
        """Return the numeric columns to read: those of a bar, further ones, those of actions, and the
        adjusted close.
        """
        fields = [self.columns[field] for field in FIELDS if field in self.columns]
        return (*fields, *self.extra, *self.actions, *([self.adjusted] if self.adjusted else []))

    @property
    def bar_columns(self) -> list[str]:
        """Return all columns to read, each once."""
        symbol = [self.columns["symbol"]] if self.has_symbol_column else []
        return list(dict.fromkeys([*self.times, *self.numbers, *symbol]))

    @property
    def further(self) -> tuple[str, ...]:
        """Return the stripped names of the columns that are not part of a bar."""
        return tuple(name.strip() for name in self.names if name not in self.columns.values())

    def with_columns(self, names: Sequence[str]) -> CandleHeader:
        """Return the header with further columns to read, as a job names them. Raises DataError for one that
        is missing, or is part of the bar.
        """
        return replace(self, extra=tuple(self._column_of(name) for name in names))

    def _column_of(self, name: str) -> str:
        field = next((field for field, taken in self.columns.items() if taken.strip() == name), "")
        if field:
            raise DataError(
                f"column {name} of {self.path} is the {field} of its bars",
                why="data.columns takes columns that are not part of a bar",
                do="Leave it out, or give a copy of it another name.",
            )
        for header in self.names:
            if header.strip() == name:
                return header
        there = ", ".join(self.further[:12]) or "none"
        do = nearest(name, self.further) or "Leave it out of data.columns, or add it to the file."
        raise DataError(
            f"{self.path} has no column {name}", why=f"its columns besides those of a bar: {there}", do=do
        )


def open_header(path: Path, file: str = "", told: Told | None = None) -> CandleHeader:
    """Read a file's header. Raises DataError if its format is not that of its suffix, it is too large, or
    lacks a column.

    `file` is its flat name (default: the path's name).
    """
    told = told or Told()
    file = file or path.name
    symbol, timeframe = parse_flat_name(stem_of(file))
    form = "Arrow" if is_arrow(path) else "parquet" if path.suffix.lower() in (".parquet", ".pq") else "CSV"
    shape, schema = None, pa.schema([])  # a CSV has no schema
    try:
        if form == "Arrow":
            schema = arrow_schema(path)
            names = list(schema.names)
        elif form == "parquet":
            with pq.ParquetFile(path) as opened:
                schema = opened.schema_arrow
                check_footer(path, opened.metadata)
            names = list(schema.names)
        else:
            shape = sniff(path, told)
            with text_stream(path) as stream, pa_csv.open_csv(stream, **read_options(shape)) as reader:
                names = list(reader.schema.names)
    except UNREADABLE as error:
        do = "Replace the file, or move it out of the data folder."
        if isinstance(error, UnicodeError):
            do = "Save it as CSV in UTF-8."
        refused = DataError(f"{path} is not {form}", why=first_line(error), do=do)
        raise _footer_error(path, shape) or refused from error
    named = _told_columns(path, names, told)
    plain = _plain_names([name for name in names if name not in named.values()])
    columns = _columns(path, names, plain, named)
    fetched = _fetched(path, schema)
    time = columns["timestamp"]
    is_clock = clock_of(shape, time) if shape else pa.types.is_time(schema.field(time).type)
    dated = {name: column for name, column in plain.items() if column != time} if is_clock else {}
    ticks = "" if "volume" in named else _first(TICKS, plain)
    return CandleHeader(
        path=path,
        file=file,
        columns=columns,
        names=tuple(names),
        name_symbol=(shape.symbol if shape else "".join(_tickers(names))) or symbol,
        name_timeframe=timeframe,
        synthetic=(schema.metadata or {}).get(SYNTHETIC_KEY, b"") == b"true",
        shape=shape,
        texts=tuple(name for name, kind in zip(schema.names, schema.types, strict=True) if is_text(kind)),
        dates=named.get("date", _first(DATES, dated)),
        ticks=ticks,
        adjusted=named.get("adjusted", "" if fetched and fetched.actions else _first(ADJUSTED, plain)),
        fetched=fetched,
        told=told,
        chosen=() if dated else _chosen(columns, plain, named),
    )


def _fetched(path: Path, schema: pa.Schema) -> FetchRecord | None:
    """Return the record that a fetch wrote into a parquet file. Raises DataError for a malformed one."""
    body = (schema.metadata or {}).get(FETCHED_KEY)
    if body is None:
        return None
    do = "Fetch the file again, or move it out of the data folder."
    try:
        record = read_fetch_record(body)
    except (Unsound, DataError) as error:
        raise DataError(
            f"{path} says where it is from in a way that can't be read", why=str(error), do=do
        ) from error
    if record.actions and not set(ACTIONS) <= set(schema.names):
        raise DataError(f"{path} lacks its columns {' and '.join(ACTIONS)}", do=do)
    return record


def footer_error(header: CandleHeader) -> DataError | None:
    """Return the error of a CSV whose last line is no bar, which explains any other; None if it is one."""
    return _footer_error(header.path, header.shape)


def _footer_error(path: Path, shape: CsvShape | None) -> DataError | None:
    line = footer_of(path, shape) if shape else ""
    if not line:
        return None
    return DataError(
        f"the last line of {path} is not a bar", why=first_line(ValueError(line)), do="Remove it."
    )


def read_options(shape: CsvShape) -> dict[str, Any]:
    """Return arrow's options for the header of a CSV and the lines before it."""
    return {
        "parse_options": pa_csv.ParseOptions(delimiter=shape.delimiter),
        "read_options": pa_csv.ReadOptions(
            skip_rows=shape.skip_rows, column_names=list(shape.columns) or None, encoding=shape.encoding
        ),
    }


def stem_of(name: str) -> str:
    """Return a candle file's name without its suffix."""
    return re.sub(r"\.(csv\.gz|csv|parquet|pq|feather|arrow|txt)$", "", name, flags=re.IGNORECASE)


def _first(wanted: Sequence[str], plain: Mapping[str, str]) -> str:
    """Return the file's column of the first wanted name that it has, else ''."""
    return next((plain[name] for name in wanted if name in plain), "")


def _plain_names(names: list[str]) -> dict[str, str]:
    """Return the file's columns by plain name; of several with the same, the first."""
    return {
        plain_name(match["field"] if (match := _PAIR.fullmatch(name)) else name): name
        for name in reversed(names)
    }


def _told_columns(path: Path, names: list[str], told: Told) -> dict[str, str]:
    """Return the file's columns of the parts that the user tells, '' for none. Raises DataError for one that
    the file lacks.
    """
    named = {}
    for part, wanted in told.columns.items():
        column = next((name for name in names if name.strip() == wanted), None) if wanted else ""
        if column is None:
            do = nearest(wanted, [name.strip() for name in names]) or "Correct data.columns."
            why = f"its columns are {', '.join(names[:12])}"[:300]
            raise DataError(f"{path} has no column {wanted} for the {part}", why=why, do=do)
        named[_PARTS.get(part, part)] = column
    return named


def _chosen(
    columns: Mapping[str, str], plain: Mapping[str, str], named: Mapping[str, str]
) -> tuple[str, ...]:
    """Return which columns were taken for parts of a bar where another reading is possible."""
    chosen = []
    for part, column in columns.items():
        others = plain.keys() & set(NAMES[part]) - set(UNNAMED) - {plain_name(column)}
        if part not in named and (plain_name(column) not in CERTAIN[part] or others):
            name = f"column {column.strip()}" if column.strip() else "the column without a name"
            chosen.append(f"{_WORDS.get(part, part)} is {name}")
    return tuple(chosen)


def _columns(path: Path, names: list[str], plain: dict[str, str], named: Mapping[str, str]) -> dict[str, str]:
    """Return the file's column of each part of a bar, `named` ones as told. Raises DataError if one is
    missing or duplicate.
    """
    columns = {
        part: named.get(part, _first(accepted, plain))
        for part, accepted in NAMES.items()
        if part in named or plain.keys() & set(accepted)
    }
    volumes = [name for name in names if VOLUME_OF.match(plain_name(name))]
    if "volume" not in columns and volumes:
        columns["volume"] = volumes[0]
    columns = {part: column for part, column in columns.items() if column or part not in named}
    missing = [part for part in ("timestamp", *FIELDS[:4]) if part not in columns]
    if missing and any(
        (match := _PAIR.fullmatch(name)) and plain_name(match["ticker"]) in NAMES["open"] for name in names
    ):
        raise DataError(
            f"{path} has its columns grouped by ticker",
            do="Write one below the other: frame.stack(level=0).reset_index().to_parquet(FILE).",
        )
    if missing:
        raise DataError(
            f"{path} has no column for {', '.join(missing)}",
            why=f"its columns are {', '.join(names[:12])}"[:300],
            do=(
                f"Name the column {_WORDS.get(missing[0], missing[0])}, tell it (data.columns ="
                f" {_WORDS.get(missing[0], missing[0])}=NAME), or move the file out of the data folder."
            ),
        )
    tickers = _tickers(names)
    if len(tickers) > 1:
        raise DataError(
            f"{path} has {len(tickers)} tickers side by side",
            why=f"its columns are of {', '.join(tickers[:6])}",
            do="Write one below the other: frame.stack(level=1).reset_index().to_parquet(FILE).",
        )
    for part, chosen in columns.items():
        same = [name for name in names if plain_name(name) == plain_name(chosen) and name != chosen]
        if same and part not in named:
            raise DataError(
                f"{path} has two columns for {part}: {chosen} and {same[0]}",
                do="Rename one of them, or leave it out.",
            )
    twice = sorted(name for name, count in Counter(names).items() if name and count > 1)
    if twice:
        raise DataError(
            f"{path} has two columns called {twice[0]}", do="Rename one of them, or leave it out."
        )
    return columns


def _tickers(names: list[str]) -> list[str]:
    """Return the tickers of a parquet file with columns of two levels, none for other files."""
    matches = map(_PAIR.fullmatch, names)
    return sorted({match["ticker"] for match in matches if match and match["ticker"]})
