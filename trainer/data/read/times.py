"""Convert the times of a candle file to nanoseconds UTC.

Times are timestamps, dates, text, epoch numbers, or dates written as 20211231; a time of day may be in
another column than its date. All times of a file together decide what one of them leaves open: the unit of
epoch numbers (s, ms, us or ns, by the largest), and whether the day or the month comes first. Dates that
remain open are refused; with dots the day comes first. What the user tells (`data.columns`) is not guessed. A
time without a zone is UTC.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainer.base.errors import DataError
from trainer.base.text import counted
from trainer.data.columns import TIME_UNITS, Told
from trainer.data.pieces import rows_where
from trainer.data.read.bounds import UNREADABLE, first_line, is_text
from trainer.data.read.headers import CandleHeader, footer_error
from trainer.data.read.numbers import array_of
from trainer.data.timeframes import DAY, SECOND

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
_FIRST_NS, _LAST_NS = (int(one.astype("datetime64[ns]").astype(np.int64)) for one in (_FIRST, _LAST))
_MOST_TEXT = 64  # characters of a time

_ISO = re.compile(
    r"\d{4}[-/. ]?\d{1,2}[-/. ]?\d{1,2}([T ]\d{1,2}(:?\d{2})*(\.\d+)?(Z|[+-]\d{2}(:?\d{2})?)?)?"
)
_REST = (
    r"(?:[T ]\s*(?P<hour>\d{1,2}):(?P<minute>\d{2})(?P<second>:\d{2}(?:\.\d+)?)?\s*(?P<half>[AaPp][Mm])?)?"
    r"\s*(?P<zone>(?:GMT|UTC)?[+-]\d{2}:?\d{2}|GMT|UTC|Z)?"
)
_NUMBERED = r"(?P<first>\d{1,2})(?P<mark>[./-])(?P<second_part>\d{1,2})[./-](?P<year>\d{4})"
_NAMED = r"(?P<day>\d{1,2})[ -](?P<month>[A-Za-z]{3})[a-z]*\.?[ -](?P<year>\d{4})"
_US_NAMED = r"(?P<month>[A-Za-z]{3})[a-z]*\.? (?P<day>\d{1,2}), (?P<year>\d{4})"
_YEAR_FIRST = r"(?P<year>\d{4})-(?P<month_number>\d{2})-(?P<day>\d{2})"
_STYLES = tuple(re.compile(f"{style}{_REST}") for style in (_NUMBERED, _NAMED, _US_NAMED, _YEAR_FIRST))
_YEAR_FIRST_HOUR = re.compile(r"(\d{4}-\d{2}-\d{2}) (\d{2})-([AP]M)")  # 2021-03-01 09-PM
_MONTH_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTHS = {name: number for number, name in enumerate(_MONTH_NAMES, 1)}
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)?(?: ?([AaPp])[Mm])?")


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Facts about the times of a file that determine their format."""

    largest: float | None = None  # of epoch numbers
    has_digits: bool = False  # texts of 9 to 19 digits: epoch numbers as text
    day_first: bool = False  # a first part above 12
    month_first: bool = False  # a second part above 12
    widest_clock: int = 0  # digits of a time of day
    told: Told = field(default_factory=Told)

    def joined(self, other: Evidence) -> Evidence:
        """Return the combined evidence of two parts of a file."""
        largest = [value for value in (self.largest, other.largest) if value is not None]
        return Evidence(
            largest=max(largest, default=None),
            has_digits=self.has_digits or other.has_digits,
            day_first=self.day_first or other.day_first,
            month_first=self.month_first or other.month_first,
            widest_clock=max(self.widest_clock, other.widest_clock),
            told=self.told,
        )


def evidence_of(header: CandleHeader, parts: Iterable[pa.Table]) -> Evidence:
    """Return the evidence of a file's columns of times, read in parts. Raises DataError."""
    evidence, last = Evidence(), np.empty(0)
    for table in parts:
        columns = [column.drop_null() for column in table.columns]
        if pa.types.is_timestamp(columns[-1].type) and not header.dates:
            return evidence  # timestamps are unambiguous
        try:
            columns = [_decoded(column) for column in columns]
            evidence = evidence.joined(_evidence_of(columns))
            if _is_number(columns[-1].type):  # the unit might change between two parts
                numbers = np.concatenate([last, columns[-1].to_numpy()])
                _check_units(numbers)
                last = numbers[-1:]
        except UNREADABLE as error:
            raise _unreadable_time(header, error) from error
    return evidence


def nanoseconds(
    header: CandleHeader, columns: Sequence[Any], evidence: Evidence | None = None
) -> tuple[np.ndarray, str]:
    """Return a column of times, or one of times of day and one of dates, as (N,) int64 nanoseconds UTC; and
    how they were read where the column leaves it open, else ''.

    `evidence` is that of the whole file if the columns are a part of it. Raises DataError for a time that is
    missing, can't be read, or is outside 1800 to 2199.
    """
    for column in columns:
        if column.null_count:
            raise DataError(
                f"{header.path} has {counted(column.null_count, 'bar')} without a time", do="Drop those rows."
            )
    try:
        *clocks, days = (_decoded(column) for column in columns)
        evidence = replace(evidence or _evidence_of([*clocks, days]), told=header.told)
        times = _bounded(_moments(days, evidence))
        for clock in clocks:
            if (times % DAY).any():
                raise ValueError("the column of dates has times of day, too")
            times = times + _clock_nanoseconds(clock, evidence)
        return times, _guess(days, evidence)
    except UNREADABLE as error:
        raise _unreadable_time(header, error) from error


def _evidence_of(columns: Sequence[Any]) -> Evidence:
    """Return the evidence of a part's columns: times, or times of day and dates."""
    *clocks, days = columns
    widest = [
        pc.max(pc.utf8_length(pc.utf8_trim_whitespace(clock))).as_py() or 0
        for clock in clocks
        if pa.types.is_string(clock.type) and len(clock)
    ]
    evidence = Evidence(widest_clock=max(widest, default=0))
    if _is_number(days.type):
        largest = pc.max(days).as_py()
        return replace(evidence, largest=None if largest is None else float(largest))
    if not is_text(days.type) or not len(days):
        return evidence
    texts = days.cast(pa.string())
    if pc.all(pc.match_substring_regex(texts, r"^\d{9,19}$")).as_py():
        return replace(evidence, has_digits=True, largest=float(pc.max(texts.cast(pa.int64())).as_py()))
    parts = pc.extract_regex(texts, r"^\s*(?P<first>\d{1,2})[/-](?P<second>\d{1,2})[/-]\d{4}").drop_null()
    if not len(parts):
        return evidence
    first, second = (pc.max(pc.struct_field(parts, place).cast(pa.int64())).as_py() for place in (0, 1))
    return replace(evidence, day_first=first > 12, month_first=second > 12)


def _guess(column: Any, evidence: Evidence) -> str:
    """Return how the times of a column were read where it leaves the unit, or the order of dates, open."""
    told = evidence.told
    if evidence.largest is not None:
        factor = next((unit for limit, unit in _EPOCH_UNITS if evidence.largest < limit), 0)
        unit = next((name for name, length in TIME_UNITS.items() if length == factor), "")
        numbers = column if _is_number(column.type) else column.slice(0, 1).cast(pa.int64())
        if told.time_unit or evidence.largest < _FIRST_EPOCH:
            return ""
        if _compact(numbers.slice(0, 1).to_numpy()) is not None:
            return ""
        return f"times are epoch numbers in {unit}"
    if told.date_order or not is_text(column.type) or not len(column):
        return ""
    match = re.match(_NUMBERED, str(column[0].as_py()).strip())
    if match is None:
        return ""
    return f"dates begin with the {'month' if evidence.month_first else 'day'}"


def _unreadable_time(header: CandleHeader, error: Exception) -> DataError:
    """Return the error for a column of times that can't be read."""
    why, do = first_line(error), "Write times as ISO 8601 text, timestamps, or epoch numbers of one unit."
    if "two readings" in why:
        do = "Write dates as 2021-03-04."
        if "close" in header.columns:  # no side file
            do = "Write dates as 2021-03-04, or tell their order: data.columns = time=COLUMN:dmy, or :mdy."
    return footer_error(header) or DataError(
        f"{header.path} has a time that can't be read in column {' and '.join(reversed(header.times))}",
        why=why,
        do=do,
    )


def _check_units(numbers: np.ndarray) -> None:
    """Raise ValueError for numbers that are not finite, and for neighbours of different units."""
    if not np.isfinite(numbers).all():
        raise ValueError("a time is not a number")
    sizes = np.abs(numbers.astype(np.float64))
    smaller, larger = np.minimum(sizes[1:], sizes[:-1]), np.maximum(sizes[1:], sizes[:-1])
    jumps = (smaller >= _JUMPS_FROM) & (larger / _JUMP >= smaller)
    if jumps.any():
        row = int(jumps.argmax())
        raise ValueError(f"it mixes units: {numbers[row]} is followed by {numbers[row + 1]}")


def _decoded(column: Any) -> Any:
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
        return array_of(column.cast(pa.timestamp("ns", zone)).cast(pa.int64()))
    if not _is_number(kind):
        if not evidence.has_digits:
            return _text_times(column, evidence)
        column = column.cast(pa.string()).cast(pa.int64())
    numbers = column.to_numpy()
    if factor := TIME_UNITS.get(evidence.told.time_unit):
        return _in_unit(numbers, factor)
    _check_units(numbers)
    return _from_epoch(numbers, float(numbers.max()) if evidence.largest is None else evidence.largest)


def _in_unit(numbers: np.ndarray, factor: int) -> np.ndarray:
    """Return epoch numbers of a unit, of `factor` ns, as int64 nanoseconds. Raises ValueError if none holds
    them.
    """
    if not np.isfinite(numbers).all():
        raise ValueError("a time is not a number")
    largest = float(np.abs(numbers.astype(np.float64)).max(initial=0))
    if largest * factor > np.iinfo(np.int64).max:
        raise ValueError(f"{largest:g} is not a time in the unit that data.columns tells")
    return _scaled(numbers, factor)


def _scaled(numbers: np.ndarray, factor: int) -> np.ndarray:
    if numbers.dtype.kind in "iu":
        return np.asarray(numbers.astype(np.int64) * factor)
    return np.asarray(np.rint(numbers * factor).astype(np.int64))


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
    return _scaled(numbers, factor)


def _compact(numbers: np.ndarray) -> np.ndarray | None:
    """Return numbers such as 2021123109, 202112310930 or 20211231093000 as times; None if any is not such a
    number.
    """
    style = _COMPACT.get(len(str(int(numbers[0])))) if numbers.dtype.kind in "iu" and len(numbers) else None
    if style is None or not _has_style(str(numbers[0]), style):
        return None
    import pandas as pd  # late: half a second, and only numbers that are dates need it

    times = pd.to_datetime(pd.Series(numbers.astype(str)), format=style, errors="coerce")
    # Hours of 1800 to 1969 could be epoch seconds of 2027 to 2032.
    first = 1970 if style == "%Y%m%d%H" else 1800
    return np.asarray(times.to_numpy()) if times.dt.year.between(first, 2199).all() else None


def _has_style(text: str, style: str) -> bool:
    try:
        datetime.strptime(text, style)
    except ValueError:
        return False
    return True


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _bounded(times: np.ndarray) -> np.ndarray:
    """Return times (N,) datetime64, or int64 nanoseconds, as int64 nanoseconds. Raises ValueError for one
    that is outside 1800 to 2199.
    """
    moments = times if times.dtype.kind == "M" else times.view("datetime64[ns]")
    if times.dtype.kind == "i":  # numbers are compared several times as fast as datetime64
        outside = rows_where(len(times), lambda part: (times[part] < _FIRST_NS) | (times[part] >= _LAST_NS))
    else:
        outside = np.flatnonzero(~((moments >= _FIRST) & (moments < _LAST)))
    if len(outside):
        raise ValueError(f"{moments[outside[0]]} is outside the years 1800 to 2199")
    return np.asarray(moments.astype("datetime64[ns]", copy=False).view(np.int64))


def _text_times(column: Any, evidence: Evidence) -> np.ndarray:
    """Return a column of texts as (N,) datetime64. Raises ValueError for one that is not a time, or is
    ambiguous.
    """
    import pandas as pd  # late: half a second, and only text needs it

    texts = written = column.cast(pa.string()).to_pylist()
    if texts and not _ISO.fullmatch(texts[0]):
        texts = [_iso(text, evidence) for text in written]
    series = pd.Series(texts, dtype=object)
    parsed: pd.Series = pd.to_datetime(series, utc=True, format="ISO8601", errors="coerce")
    if parsed.isna().any():
        raise ValueError(f"{written[int(parsed.isna().argmax())][:40]!r} is not a time")
    return np.asarray(parsed.dt.tz_localize(None).to_numpy())


def _clock_nanoseconds(column: Any, evidence: Evidence) -> np.ndarray:
    """Return a column of times of day as (N,) int64 nanoseconds since midnight. Raises ValueError for another
    text.
    """
    kind = column.type
    if pa.types.is_time(kind):
        return np.asarray(column.cast(pa.time64("ns")).cast(pa.int64()).to_numpy())
    texts = column.cast(pa.string()).to_pylist()
    known = {text: _clock(text.strip(), evidence.widest_clock) for text in set(texts)}
    return np.array([known[text] for text in texts], dtype=np.int64)


def _clock(text: str, widest: int) -> int:
    if text.isascii() and text.isdecimal():  # 093000, or 0930 if none is longer
        text = text.zfill(6 if widest > 4 else 4)
        text = ":".join(text[place : place + 2] for place in range(0, len(text), 2))
    match = _CLOCK.fullmatch(text)
    if match:
        hour, minute, second = (int(match[place] or 0) for place in (1, 2, 3))
        if match[5] and 1 <= hour <= 12:
            hour = hour % 12 + (12 if match[5].lower() == "p" else 0)
        elif match[5]:
            hour = 24
        if hour < 24 and minute < 60 and second < 60:
            fraction = int((match[4] or "").ljust(9, "0"))
            return (hour * 3600 + minute * 60 + second) * SECOND + fraction
    raise ValueError(f"{text[:40]!r} is not a time of day")


def _iso(text: str, evidence: Evidence) -> str:
    """Return a text as ISO 8601; unchanged if its style is unknown here."""
    text = text.strip()
    if match := _YEAR_FIRST_HOUR.fullmatch(text):
        return f"{match[1]}T{_hour(match[2], match[3])}:00"
    match = next((match for style in _STYLES if (match := style.fullmatch(text))), None)
    if match is None:
        return text
    parts = match.groupdict()
    if "first" in parts:
        first, second = int(parts["first"]), int(parts["second_part"])
        day, month = (second, first) if _month_comes_first(text, parts["mark"], evidence) else (first, second)
    else:
        month = (
            int(parts["month_number"]) if "month_number" in parts else _MONTHS.get(parts["month"].lower(), 0)
        )
        day = int(parts["day"])
    moment = f"{parts['year']}-{month:02}-{day:02}"
    if parts["hour"]:
        moment += f"T{_hour(parts['hour'], parts['half'])}:{parts['minute']}{parts['second'] or ''}"
    zone = (parts["zone"] or "").removeprefix("GMT").removeprefix("UTC")
    return f"{moment}{'T00:00' if zone and not parts['hour'] else ''}{zone}"


def _hour(hour: str, half: str | None) -> str:
    if half is None:
        return f"{int(hour):02}"
    if not 1 <= int(hour) <= 12:
        raise ValueError(f"{hour} {half} is not an hour")
    return f"{int(hour) % 12 + (12 if half.lower() == 'pm' else 0):02}"


def _month_comes_first(text: str, mark: str, evidence: Evidence) -> bool:
    if evidence.told.date_order:
        return evidence.told.date_order == "mdy"
    if mark == ".":
        return False
    if evidence.day_first and evidence.month_first:
        raise ValueError("some of its dates begin with the day, some with the month")
    if not (evidence.day_first or evidence.month_first):
        raise ValueError(f"{text[:40]} has two readings: no date of the file has a day above 12")
    return evidence.month_first
