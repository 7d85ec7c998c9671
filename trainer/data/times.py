"""The times of a candle file as nanoseconds UTC: timestamps, dates, ISO text, epoch numbers, dates written as 20211231.

Epoch numbers are in s, ms, us or ns, told by the size of the file's largest; a time without a zone is UTC.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainer.data.bounds import UNREADABLE, first_line
from trainer.data.headers import CandleHeader
from trainer.errors import DataError

# Epoch numbers by size: each unit until the year 2255, where nanoseconds in int64 end, and none before 1973.
_EPOCH_UNITS = ((9e9, 1_000_000_000), (9e12, 1_000_000), (9e15, 1_000), (9e18, 1))
_FIRST_EPOCH = 1e8
# Neighbours of one unit are near each other: a number 50 times the one before, or after, is of another unit.
_JUMP, _JUMPS_FROM = 50, 1e7
_FIRST, _LAST = np.datetime64("1800-01-01", "s"), np.datetime64("2200-01-01", "s")
_MOST_TEXT = 64  # characters of a time


def is_number(kind: Any) -> bool:
    """Return whether times of this arrow type are epoch numbers."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def nanoseconds(source: CandleHeader, column: Any, largest: float | None = None) -> np.ndarray:
    """Turn a column of times into (N,) int64 nanoseconds UTC. `largest` is the file's largest number, where this is a part.

    Raises DataError for a time that can't be read, is outside 1800 to 2199, or is missing.
    """
    if column.null_count:
        raise DataError(f"{source.path} has {column.null_count} bars without a time", do="Drop those rows.")
    try:
        column = _decoded(column)
        kind = column.type
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            zone = getattr(kind, "tz", None)
            times = np.array(column.cast(pa.timestamp("ns", zone)).cast(pa.int64()).to_numpy())  # a copy, which torch may share
        elif is_number(kind):
            numbers = column.to_numpy()
            check_units(numbers)
            times = _from_epoch(numbers, float(numbers.max()) if largest is None else largest)
        else:
            times = _from_text(column)
        return _bounded(times.astype("datetime64[ns]"))
    except UNREADABLE as error:
        raise unreadable_time(source, error) from error


def unreadable_time(source: CandleHeader, error: Exception) -> DataError:
    """Return the error for a column of times that can't be read."""
    return DataError(
        f"{source.path} has a time that can't be read in column {source.columns['timestamp']}",
        why=first_line(error),
        do="Write times as ISO 8601 text, timestamps, or epoch numbers of one unit.",
    )


def check_units(numbers: np.ndarray) -> None:
    """Raise ValueError for numbers that are not finite, and for neighbours of different units."""
    if not np.isfinite(numbers).all():
        raise ValueError("a time is not a number")
    sizes = np.abs(numbers.astype(np.float64))
    smaller, larger = np.minimum(sizes[1:], sizes[:-1]), np.maximum(sizes[1:], sizes[:-1])
    jumps = (smaller >= _JUMPS_FROM) & (larger / _JUMP >= smaller)
    if jumps.any():
        row = int(jumps.argmax())
        raise ValueError(f"it mixes units: {numbers[row]} stands before {numbers[row + 1]}")


def _decoded(column: Any) -> Any:
    """Return a column with its values in place of a dictionary's codes. Raises ValueError for texts longer than a time."""
    if not pa.types.is_dictionary(column.type):
        return column
    for chunk in column.chunks:
        if (pc.binary_length(chunk.dictionary.cast(pa.binary())).to_numpy(zero_copy_only=False) > _MOST_TEXT).any():
            raise ValueError(f"a time has more than {_MOST_TEXT} characters")
    return column.cast(column.type.value_type)


def _from_text(column: Any) -> np.ndarray:
    import pandas as pd  # late: half a second, and only text needs it

    texts = column.cast(pa.string()).to_pylist()
    parsed: pd.Series = pd.to_datetime(pd.Series(texts), utc=True, format="ISO8601")
    return _bounded(parsed.dt.tz_localize(None).to_numpy())


def _from_epoch(numbers: np.ndarray, largest: float) -> np.ndarray:
    """Turn epoch numbers of one unit, or dates written as 20211231, into times. Raises ValueError for other numbers."""
    if largest < _FIRST_EPOCH:
        import pandas as pd  # late: half a second, and only numbers that are dates need it

        if numbers.min() < 0:
            raise ValueError(f"{numbers.min()} is no date")
        whole = pd.Series(numbers.astype(np.int64).astype(str))
        return _bounded(pd.to_datetime(whole, format="%Y%m%d").to_numpy())
    limit, factor = next(((limit, factor) for limit, factor in _EPOCH_UNITS if largest < limit), (0.0, 1))
    if not limit or not (np.abs(numbers.astype(np.float64)) < limit).all():
        raise ValueError(f"{largest:g} is no time")
    if numbers.dtype.kind in "iu":
        return np.asarray(numbers.astype(np.int64) * factor)
    return np.asarray(np.rint(numbers * factor).astype(np.int64))


def _bounded(times: np.ndarray) -> np.ndarray:
    """Return times (N,) datetime64 as int64 nanoseconds. Raises ValueError for one that is outside 1800 to 2199."""
    outside = ~((times >= _FIRST) & (times < _LAST))
    if outside.any():
        raise ValueError(f"{times[int(outside.argmax())]} is outside the years 1800 to 2199")
    return np.asarray(times.astype("datetime64[ns]").astype(np.int64))
