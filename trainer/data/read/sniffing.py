"""Detect the format of a CSV from its first lines: encoding, separator, decimal sign, header or known export
without one.

An ambiguous file, such as one with 47,123, is refused with advice on how to write it.
"""

from __future__ import annotations

import codecs
import csv
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from trainer.base.errors import DataError
from trainer.data.columns import Told
from trainer.data.read.bounds import first_line, text_stream
from trainer.data.read.shapes import (
    ADJUSTED,
    DATES,
    FIELDS,
    HEADERLESS,
    NAMES,
    TICKS,
    TWO_LEVELS,
    VOLUME_OF,
    Headerless,
    plain_name,
)

SAMPLE_BYTES = 1 << 16
_MOST_LINES_BEFORE = 20  # lines before a header: titles, addresses, comments
_SEPARATORS = ",;\t|"
_PRICES = ("open", "high", "low")  # a line with these names is a header
_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?([eE][-+]?\d+)?")
_DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+")
_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+")
_CURRENCIES = ("$", "€", "£", "¥", "₹", "₩")
_CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?( ?[AaPp][Mm])?|\d{3,6}")
_BOMS = ((codecs.BOM_UTF8, "utf8"), (codecs.BOM_UTF16_LE, "utf16"), (codecs.BOM_UTF16_BE, "utf16"))


@dataclass(frozen=True, kw_only=True)
class CsvShape:
    """The format of a CSV. `columns` are the names for a file without a header."""

    delimiter: str
    encoding: str = "utf8"
    decimal: str = "."
    skip_rows: int = 0  # lines before the header, or before the first bar if `columns` are given
    columns: tuple[str, ...] = ()
    symbol: str = ""  # of a header of two levels
    sample: dict[str, str] = field(default_factory=dict)  # the first bar's cells by column, if they are known


def sniff(path: Path, told: Told | None = None) -> CsvShape:
    """Return the format of a CSV, whose header has the columns that are told. Raises DataError for an
    ambiguous one, UnicodeError for one that is no text; arrow's errors pass through.
    """
    told = told or Told()
    lines, encoding = _first_lines(path)
    for number, line in enumerate(lines[:_MOST_LINES_BEFORE]):
        shape = CsvShape(delimiter=_commonest_separator(line), encoding=encoding)
        names = _cells(line, shape)
        known, written = {plain_name(name) for name in names}, {name.strip() for name in names}
        if not all(
            told.columns[field] in written if field in told.columns else known & set(NAMES[field])
            for field in _PRICES
        ):
            continue
        _refuse_bars_above(path, [_cells(above, shape) for above in lines[:number]], len(names))
        if plain_name(names[0]) in TWO_LEVELS and len(lines) > number + 2:
            return _two_levels(path, names, lines, number, shape)
        rows = [_cells(row, shape) for row in lines[number + 1 :] if row.strip()]
        sample = dict(zip(names, rows[0], strict=False)) if rows else {}
        decimal = _decimal(path, names, rows, shape, told)
        return replace(shape, skip_rows=number, decimal=decimal, sample=sample)
    return _headerless(path, lines, encoding)


def is_table(path: Path) -> bool:
    """Return whether a text file has candles: a header of candles, or the first line of a known export
    without one.
    """
    try:
        shape = sniff(path)
    except DataError:  # the reader reports it
        return True
    except (ValueError, OSError):
        return False
    return bool(shape.sample or shape.columns)


def clock_of(shape: CsvShape, timestamp: str) -> bool:
    """Return whether a CSV's time column is a time of day, with a column of dates beside it."""
    has_date = any(plain_name(name) in DATES and name != timestamp for name in shape.sample)
    return has_date and bool(_CLOCK.fullmatch(shape.sample.get(timestamp, "").strip()))


def footer_of(path: Path, shape: CsvShape) -> str:
    """Return the last line of a CSV if it is no bar, as an export's footer; else ''.

    A bar has all cells, and a digit in the first two, where its time is. Reads the whole file if it is
    compressed.
    """
    with text_stream(path) as stream:
        tail = b""
        while block := stream.read(SAMPLE_BYTES):
            tail = (tail + block)[-SAMPLE_BYTES:]
    lines = [line for line in tail.decode(shape.encoding, errors="replace").splitlines() if line.strip()]
    if len(lines) < 2:
        return ""
    cells = _cells(lines[-1], shape)
    is_bar = len(cells) >= len(shape.columns or shape.sample) and re.search(r"\d", "".join(cells[:2]))
    return "" if is_bar else lines[-1]


def _first_lines(path: Path) -> tuple[list[str], str]:
    with text_stream(path) as stream:
        head = stream.read(SAMPLE_BYTES)
    encoding = next((name for mark, name in _BOMS if head.startswith(mark)), "utf8")
    if encoding == "utf8" and b"\0" in head:
        raise UnicodeError("it has null bytes, as UTF-16 without its mark, or a file that is no text")
    if encoding == "utf16":
        text = head[: len(head) // 2 * 2].decode("utf-16", errors="replace")
    else:
        text = head.decode("utf-8-sig", errors="replace")
    lines = re.split(r"\r\n|\n|\r", text)
    return (lines[:-1] if len(head) == SAMPLE_BYTES else lines), encoding


def _commonest_separator(line: str) -> str:
    return max(_SEPARATORS, key=line.count)


def _cells(line: str, shape: CsvShape) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=shape.delimiter), []) or [""]
    except csv.Error:
        return [line]


def _two_levels(path: Path, names: list[str], lines: list[str], number: int, shape: CsvShape) -> CsvShape:
    """Return the shape of a file whose header has fields, then tickers, then the index's name. Raises
    DataError for several tickers, and for tickers above the fields.
    """
    if number and plain_name(_cells(lines[number - 1], shape)[0]) == TWO_LEVELS[plain_name(names[0])]:
        raise DataError(
            f"{path} has its columns grouped by ticker",
            do="Write one below the other: frame.stack(level=0).reset_index().to_csv(FILE, index=False).",
        )
    tickers, index = _cells(lines[number + 1], shape), _cells(lines[number + 2], shape)
    if plain_name(tickers[0]) != TWO_LEVELS[plain_name(names[0])]:
        return replace(shape, skip_rows=number)
    different = sorted(set(tickers[1:]) - {""})
    if len(different) != 1:
        raise DataError(
            f"{path} has {len(different)} tickers side by side",
            why=f"its second line names {', '.join(different[:6])}",
            do="Write one below the other: frame.stack(level=1).reset_index().to_csv(FILE, index=False).",
        )
    has_index_name = not any(cell.strip() for cell in index[1:])
    first = number + (3 if has_index_name else 2)
    columns = (index[0].strip() or "Date") if has_index_name else "Date", *names[1:]
    rows = [_cells(row, shape) for row in lines[first:] if row.strip()]
    decimal = _decimal(path, list(columns), rows, shape)
    return replace(shape, skip_rows=first, columns=columns, symbol=different[0], decimal=decimal)


def _decimal(
    path: Path, names: list[str], rows: list[list[str]], shape: CsvShape, told: Told | None = None
) -> str:
    """Return the decimal sign of a bar's numbers. Raises DataError if a comma may be decimal sign or
    thousands separator.
    """
    numbers = {*ADJUSTED, *TICKS}.union(*(NAMES[field] for field in FIELDS))
    plain = [plain_name(name) for name in names]
    ours = {column for part, column in told.columns.items() if part in FIELDS} if told else set()
    places = [
        place
        for place, name in enumerate(plain)
        if name in numbers or VOLUME_OF.match(name) or names[place].strip() in ours
    ]
    cells = [row[place].strip() for row in rows for place in places if place < len(row)]
    commas = [cell for cell in cells if "," in cell or cell[:1] in _CURRENCIES]
    if not commas:
        return "."
    if shape.delimiter != "," and all(_DECIMAL_COMMA.fullmatch(cell) for cell in commas):
        if not all(_THOUSANDS.fullmatch(cell) for cell in commas):
            return ","
        raise DataError(
            f"{path} has numbers with two readings",
            why=f"{commas[0]} may be {commas[0].replace(',', '')} or {commas[0].replace(',', '.')}",
            do="Write them with a decimal point and nothing between thousands.",
        )
    raise DataError(
        f"{path} has numbers such as {commas[0][:40]!r}",
        why="a number is read with one decimal sign and nothing between thousands",
        do="Write it as 1234.5.",
    )


def _refuse_bars_above(path: Path, rows: list[list[str]], width: int) -> None:
    """Raise DataError if there are bars above the header, as in concatenated files."""
    for row in rows:
        if (
            len(row) >= width - 1
            and sum(bool(_NUMBER.fullmatch(cell.strip().replace(",", "."))) for cell in row) > 3
        ):
            raise DataError(
                f"{path} has bars above its header",
                why=first_line(ValueError(",".join(row))),
                do="Move the header to the first line.",
            )


def _headerless(path: Path, lines: list[str], encoding: str) -> CsvShape:
    """Return the shape of a known export without a header; for any other file, assume that its first line is
    the header.
    """
    rows = [line for line in lines if line.strip()]
    if not rows:
        return CsvShape(delimiter=_SEPARATORS[0], encoding=encoding)
    delimiter = next((mark for mark in ";\t|" if rows[0].count(mark) >= 4), ",")
    shape = CsvShape(delimiter=delimiter, encoding=encoding)
    cells = [_cells(row, shape) for row in rows]
    for known in HEADERLESS:
        if _is(known, cells[0]):
            _refuse_order(path, known, cells)
            decimal = _decimal(path, list(known.columns), cells, shape)
            sample = dict(zip(known.columns, cells[0], strict=True))
            return replace(shape, columns=known.columns, decimal=decimal, sample=sample)
    if len(cells[0]) > 4 and all(_NUMBER.fullmatch(cell.strip()) for cell in cells[0][1:6]):
        raise DataError(
            f"{path} has no header, and its first line is not that of a known export",
            why=first_line(ValueError(rows[0])),
            do="Write one above it, such as time,open,high,low,close,volume.",
        )
    return replace(shape, delimiter=_commonest_separator(lines[0]))


def _is(known: Headerless, cells: list[str]) -> bool:
    times = sum(name in ("date", "time", "open_time") for name in known.columns)
    return (
        len(cells) == len(known.columns)
        and bool(re.fullmatch(known.begins, " ".join(cell.strip() for cell in cells[:times])))
        and all(_NUMBER.fullmatch(cell.strip().replace(",", ".")) for cell in cells[times:])
    )


def _refuse_order(path: Path, known: Headerless, rows: list[list[str]]) -> None:
    """Raise DataError if the prices of an export without a header do not fit the assumed order of columns."""
    places = [known.columns.index(name) for name in ("open", "high", "low", "close")]
    for row in rows:
        try:
            opened, high, low, close = (float(row[place].replace(",", ".")) for place in places)
        except (ValueError, IndexError):
            continue  # the reader raises the error
        if not low <= min(opened, close) <= max(opened, close) <= high:
            raise DataError(
                f"{path} has no header, and its columns are not {', '.join(known.columns[:7])}",
                why=f"high and low do not hold open and close in {first_line(ValueError(','.join(row)))}",
                do="Write a header above it that names them.",
            )
