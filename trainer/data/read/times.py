"""Convert the times of a candle file to nanoseconds UTC: timestamps, dates, text, epoch numbers, dates
written as 20211231, and dates with a time of day in another column.

Epoch numbers are in s, ms, us or ns, by the size of the file's largest; a time without a zone is UTC.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainer.base.errors import DataError
from trainer.data.read.bounds import UNREADABLE, first_line
from trainer.data.read.headers import CandleHeader
from trainer.data.read.time_texts import Evidence, clock_nanoseconds, evidence_of, text_times

# Epoch numbers by size: each unit until the year 2255, where int64 nanoseconds end, and from 1973 on.
_EPOCH_UNITS = ((9e9, 1_000_000_000), (9e12, 1_000_000), (9e15, 1_000), (9e18, 1))
_FIRST_EPOCH = 1e8
# Dates written as numbers, by number of digits. As epoch numbers they would be a few days of 1970, 1976 and
# 2034.
_COMPACT = {10: "%Y%m%d%H", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
_FIRST_DAY, _LAST_DAY = 18_000_101, 21_991_231
# A number 50 times the one before or after it has another unit.
_JUMP, _JUMPS_FROM = 50, 1e7
_FIRST, _LAST = np.datetime64("1800-01-01", "s"), np.datetime64("2200-01-01", "s")
_MOST_TEXT = 64  # characters of a time


def is_number(kind: Any) -> bool:
    """Return whether times of this arrow type are epoch numbers."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def nanoseconds(source: CandleHeader, columns: Sequence[Any], evidence: Evidence | None = None) -> np.ndarray:
    """Return a column of times, or one of times of day and one of dates, as (N,) int64 nanoseconds UTC.

    `evidence` is that of the whole file if the columns are a part of it. Raises DataError for a time that is
    missing, can't be read, or is outside 1800 to 2199.
    """
    for column in columns:
        if column.null_count:
            raise DataError(
                f"{source.path} has {column.null_count} bars without a time", do="Drop those rows."
            )
    try:
        *clocks, days = (decoded(column) for column in columns)
        evidence = evidence or evidence_of([*clocks, days])
        times = _bounded(_moments(days, evidence).astype("datetime64[ns]"))
        for clock in clocks:
            if (times % (86_400 * 10**9)).any():
                raise ValueError("the column of dates has times of day, too")
            times = times + clock_nanoseconds(clock, evidence)
        return times
    except UNREADABLE as error:
        raise unreadable_time(source, error) from error


def unreadable_time(source: CandleHeader, error: Exception) -> DataError:
    """Return the error for a column of times that can't be read."""
    why = first_line(error)
    return DataError(
        f"{source.path} has a time that can't be read in column {' and '.join(reversed(source.times))}",
        why=why,
        do="Write dates as 2021-03-04: year, month, day."
        if "two readings" in why
        else "Write times as ISO 8601 text, timestamps, or epoch numbers of one unit.",
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
        raise ValueError(f"it mixes units: {numbers[row]} is followed by {numbers[row + 1]}")


def decoded(column: Any) -> Any:
    """Return a dictionary-encoded column decoded, any other unchanged. Raises ValueError for texts longer
    than a time.
    """
    if not pa.types.is_dictionary(column.type):
        return column
    for chunk in column.chunks:
        if (
            pc.binary_length(chunk.dictionary.cast(pa.binary())).to_numpy(zero_copy_only=False) > _MOST_TEXT
        ).any():
            raise ValueError(f"a time has more than {_MOST_TEXT} characters")
    return column.cast(column.type.value_type)


def _moments(column: Any, evidence: Evidence) -> np.ndarray:
    """Return the times of a column as int64 nanoseconds, or datetime64."""
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        zone = getattr(kind, "tz", None)
        return np.array(
            column.cast(pa.timestamp("ns", zone)).cast(pa.int64()).to_numpy()
        )  # a copy, which torch may share
    if not is_number(kind):
        if not evidence.has_digits:
            return text_times(column, evidence)
        column = column.cast(pa.string()).cast(pa.int64())
    numbers = column.to_numpy()
    check_units(numbers)
    return _from_epoch(numbers, float(numbers.max()) if evidence.largest is None else evidence.largest)


def _from_epoch(numbers: np.ndarray, largest: float) -> np.ndarray:
    """Return epoch numbers of one unit, or dates written as 20211231, as times. Raises ValueError for other
    numbers.
    """
    if largest < _FIRST_EPOCH:
        import pandas as pd  # late: half a second, and only numbers that are dates need it

        outside = (numbers < _FIRST_DAY) | (numbers > _LAST_DAY)
        if outside.any():
            raise ValueError(f"{numbers[int(outside.argmax())]} is not a date")
        whole = pd.Series(numbers.astype(np.int64).astype(str))
        return _bounded(pd.to_datetime(whole, format="%Y%m%d").to_numpy())
    compact = _compact(numbers)
    if compact is not None:
        return compact
    limit, factor = next(((limit, factor) for limit, factor in _EPOCH_UNITS if largest < limit), (0.0, 1))
    if not limit or not (np.abs(numbers.astype(np.float64)) < limit).all():
        raise ValueError(f"{largest:g} is not a time")
    if numbers.dtype.kind in "iu":
        return np.asarray(numbers.astype(np.int64) * factor)
    return np.asarray(np.rint(numbers * factor).astype(np.int64))


def _compact(numbers: np.ndarray) -> np.ndarray | None:
    """Return numbers such as 2021123109, 202112310930 or 20211231093000 as times; None if any is not such a
    number.
    """
    digits = len(str(int(numbers[0]))) if numbers.dtype.kind in "iu" and len(numbers) else 0
    if digits not in _COMPACT:
        return None
    years, months, days = (
        numbers // 10 ** (digits - place) % 10**width for place, width in ((4, 4), (6, 2), (8, 2))
    )
    clocks = [numbers // 10 ** (digits - place) % 100 for place in range(10, digits + 1, 2)]
    first = 1970 if digits == 10 else 1800  # hours of 1800 to 1969 could be epoch seconds of 2027 to 2032
    may = (
        (years >= first)
        & (years < 2200)
        & (months >= 1)
        & (months <= 12)
        & (days >= 1)
        & (days <= 31)
        & (clocks[0] < 24)
    )
    for clock in clocks[1:]:
        may &= clock < 60
    if not may.all():
        return None
    import pandas as pd  # late: half a second, and only numbers that are dates need it

    try:
        return np.asarray(pd.to_datetime(pd.Series(numbers.astype(str)), format=_COMPACT[digits]).to_numpy())
    except ValueError:  # the 31st of a month of 30 days
        return None


def _bounded(times: np.ndarray) -> np.ndarray:
    """Return times (N,) datetime64 as int64 nanoseconds. Raises ValueError for one that is outside 1800 to
    2199.
    """
    outside = ~((times >= _FIRST) & (times < _LAST))
    if outside.any():
        raise ValueError(f"{times[int(outside.argmax())]} is outside the years 1800 to 2199")
    return np.asarray(times.astype("datetime64[ns]").astype(np.int64))
