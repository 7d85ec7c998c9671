"""Parse times as text: ISO 8601, dates with the day or the month first, month names, times of day.

All dates of a file together decide whether the day or the month comes first; if they leave it open, they are
refused. With dots the day comes first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
_SECOND = 10**9


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Facts about the times of a file that determine their format."""

    largest: float | None = None  # of epoch numbers
    has_digits: bool = False  # texts of 9 to 19 digits: epoch numbers as text
    day_first: bool = False  # a first part above 12
    month_first: bool = False  # a second part above 12
    widest_clock: int = 0  # digits of a time of day

    def joined(self, other: Evidence) -> Evidence:
        """Return the combined evidence of two parts of a file."""
        largest = [value for value in (self.largest, other.largest) if value is not None]
        return Evidence(
            largest=max(largest, default=None),
            has_digits=self.has_digits or other.has_digits,
            day_first=self.day_first or other.day_first,
            month_first=self.month_first or other.month_first,
            widest_clock=max(self.widest_clock, other.widest_clock),
        )


def evidence_of(columns: Sequence[Any]) -> Evidence:
    """Return the evidence of a part's columns: times, or times of day and dates."""
    *clocks, days = columns
    evidence = Evidence()
    for clock in clocks:
        if pa.types.is_string(clock.type) and len(clock):
            evidence = evidence.joined(
                Evidence(widest_clock=pc.max(pc.utf8_length(pc.utf8_trim_whitespace(clock))).as_py() or 0)
            )
    kind = days.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        largest = pc.max(days).as_py()
        return evidence.joined(Evidence(largest=None if largest is None else float(largest)))
    if not (
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind)
    ) or not len(days):
        return evidence
    texts = days.cast(pa.string())
    if pc.all(pc.match_substring_regex(texts, r"^\d{9,19}$")).as_py():
        largest = pc.max(texts.cast(pa.int64())).as_py()
        return evidence.joined(Evidence(has_digits=True, largest=float(largest)))
    parts = pc.extract_regex(texts, r"^\s*(?P<first>\d{1,2})[/-](?P<second>\d{1,2})[/-]\d{4}").drop_null()
    if not len(parts):
        return evidence
    first, second = (pc.struct_field(parts, place).cast(pa.int64()) for place in (0, 1))
    return evidence.joined(
        Evidence(day_first=pc.max(first).as_py() > 12, month_first=pc.max(second).as_py() > 12)
    )


def text_times(column: Any, evidence: Evidence) -> np.ndarray:
    """Return a column of texts as (N,) datetime64. Raises ValueError for one that is not a time, or is
    ambiguous.
    """
    import pandas as pd  # late: half a second, and only text needs it

    texts = column.cast(pa.string()).to_pylist()
    if texts and not _ISO.fullmatch(texts[0]):
        texts = [_iso(text, evidence) for text in texts]
    parsed: pd.Series = pd.to_datetime(pd.Series(texts, dtype=object), utc=True, format="ISO8601")
    return np.asarray(parsed.dt.tz_localize(None).to_numpy())


def clock_nanoseconds(column: Any, evidence: Evidence) -> np.ndarray:
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
            return (hour * 3600 + minute * 60 + second) * _SECOND + fraction
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
    if mark == ".":
        return False
    if evidence.day_first and evidence.month_first:
        raise ValueError("some of its dates begin with the day, some with the month")
    if not (evidence.day_first or evidence.month_first):
        raise ValueError(f"{text[:40]} has two readings: no date of the file has a day above 12")
    return evidence.month_first
