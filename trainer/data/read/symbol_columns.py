"""The symbols of a candle file, from its symbol column, else from its name, checked by the rule of
`trainer.base.symbols`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trainer.base.errors import DataError
from trainer.base.symbols import RULE, flaw, quoted, tidy
from trainer.base.text import counted
from trainer.data.read.arrow_files import arrow_batches, is_arrow
from trainer.data.read.bounds import UNREADABLE, first_line, refuse_types
from trainer.data.read.headers import CandleHeader

MOST_SYMBOLS = 20_000  # per file: each gets an array file while it is read
_MOST_TEXT = 1_000  # bytes: far more than a symbol has


@dataclass(frozen=True, kw_only=True)
class FileSymbol:
    """A symbol of a file: its name in training, and the file's spelling."""

    symbol: str
    written: str


def only_symbol(header: CandleHeader) -> FileSymbol | None:
    """Return the file's only symbol, if known from its name or a column of parquet or Arrow; else None.

    The column is read, not its statistics, which may be wrong, or crash the process if damaged.
    """
    if not header.has_symbol_column:
        return checked(header, header.name_symbol)
    if header.shape is not None:
        return None
    try:
        return _only_one(header)
    except UNREADABLE as error:
        raise _unreadable(header, error) from error


def split_rows(header: CandleHeader, column: Any) -> list[tuple[FileSymbol, np.ndarray]]:
    """Return each symbol of a column with its rows (N,) int64, ascending. Raises DataError."""
    if column.null_count:
        raise DataError(
            f"{header.path} has {counted(column.null_count, 'row')} without a symbol",
            do="Fill the column, or drop those rows.",
        )
    try:
        if not pa.types.is_dictionary(column.type):
            column = column.cast(pa.string()).dictionary_encode()
        encoded = column.unify_dictionaries().combine_chunks()
        refuse_many_symbols(header, len(encoded.dictionary))
        long = pc.greater(pc.binary_length(encoded.dictionary.cast(pa.binary())), _MOST_TEXT)
        if pc.any(long).as_py():
            checked(header, encoded.dictionary.filter(long)[0].cast(pa.string()).as_py())
        codes, names = encoded.indices.to_numpy(), encoded.dictionary.cast(pa.string()).to_pylist()
    except UNREADABLE as error:
        raise _unreadable(header, error) from error
    if None in names:
        raise _unreadable(header, ValueError("a name in its dictionary is empty"))
    order = np.argsort(codes, kind="stable")  # a file sorted by time keeps each symbol's order
    ends = np.cumsum(np.bincount(codes, minlength=len(names)))
    rows = [order[(ends[code - 1] if code else 0) : ends[code]] for code in range(len(names))]
    symbols = [(checked(header, name), rows[code]) for code, name in enumerate(names) if len(rows[code])]
    written: dict[str, str] = {}
    for item, _ in symbols:
        if (other := written.setdefault(item.symbol, item.written)) != item.written:
            what = f"{header.path} has both {other} and {item.written}"
            raise DataError(what, why=f"each trains as {item.symbol}", do="Keep one of the two names.")
    return symbols


def refuse_many_symbols(header: CandleHeader, count: int) -> None:
    """Raise DataError for a file of more symbols than are read."""
    if count > MOST_SYMBOLS:
        why = f"at most {MOST_SYMBOLS:,} are read"
        raise DataError(f"{header.path} has {count:,} symbols", why=why, do="Split it.")


def checked(header: CandleHeader, written: str) -> FileSymbol:
    """Return a symbol of the file, with - instead of /. Raises DataError if it does not follow the rule."""
    symbol = tidy(written)
    if why := flaw(symbol):
        what = f"{header.path} has {quoted(written)} for a symbol"
        do = "Rename it in the file, such as BTC-USD."
        if not header.has_symbol_column and written in header.file:
            do = "Rename the file, such as BTC-USD_1d.csv."
        raise DataError(what, why=f"{why}; {RULE}", do=do)
    return FileSymbol(symbol=symbol, written=written)


def _only_one(header: CandleHeader) -> FileSymbol | None:
    """Return the only symbol in the symbol column of a parquet or Arrow file; None if there are several, or
    rows without one.
    """
    seen = set[str]()
    for column in _parts_of(header, header.columns["symbol"]):
        if column.null_count:
            return None
        seen |= set(pc.unique(column).cast(pa.string()).to_pylist())
        if len(seen) > 1:
            return None
    return checked(header, seen.pop()) if seen else None


def _parts_of(header: CandleHeader, name: str) -> Iterator[Any]:
    """Yield a column of a parquet or Arrow file in parts."""
    if is_arrow(header.path):
        for batch in arrow_batches(header.path, [name]):
            yield batch.column(name)
        return
    with pq.ParquetFile(header.path, memory_map=True, read_dictionary=header.texts) as file:
        refuse_types(header.path, file.schema_arrow, [name])
        for batch in file.iter_batches(columns=[name]):
            yield batch.column(name)


def _unreadable(header: CandleHeader, error: Exception) -> DataError:
    what = f"the symbols of {header.path} can't be read"
    return DataError(
        what, why=first_line(error), do=f"Write column {header.columns.get('symbol', 'symbol')} as text."
    )
