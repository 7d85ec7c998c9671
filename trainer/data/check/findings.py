"""The defects of one symbol's bars: each kind with its bars, what a training does about it, and whether --fix
repairs it.

The rules are those of training (`read.candles`, `read.oddities`, `calendar`); here all of them are applied,
and nothing is raised. Prices that stand still and bars without volume are reported here alone: a training
reads them as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

from trainer.base.errors import DataError
from trainer.base.text import counted, some_of
from trainer.data.calendar import holes, infer_calendar
from trainer.data.read.actions import applied
from trainer.data.read.candles import (
    Candles,
    carried,
    impossible_bars,
    in_time_order,
    refuse_mixed,
    resample,
    same_times,
    time_text,
)
from trainer.data.read.file_names import SEPARATOR
from trainer.data.read.oddities import odd_bars
from trainer.data.read.shapes import FIELDS
from trainer.data.read.sources import Series
from trainer.data.timeframes import DAY, step_of

REFUSED, NOTED, HOLE, TRAINED = "refused", "noted", "no window crosses it", "trained on"
SORTED, DROPPED, LEFT = "sorts them", "drops them", ""  # what --fix does
STALE_BARS = 10  # bars in a row with one price: fewer are a quiet market
_MOST_PASSES = 20  # a bar that is dropped may leave another far off its neighbours


def _no_times() -> np.ndarray:
    return np.empty(0, dtype=np.int64)


def _no_holes() -> np.ndarray:
    return np.empty((0, 2), dtype=np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Defect:
    """Bars of a symbol with one kind of defect: how many, the first and the last, their times (K,) int64 ns
    UTC, and what becomes of them.
    """

    text: str
    count: int
    first: str
    last: str
    training: str
    fix: str = LEFT
    detail: str = ""
    times: np.ndarray = field(default_factory=_no_times)  # while the symbol is in memory

    def to_dict(self) -> dict[str, object]:
        """Return it as JSON values."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "times"}


@dataclass(frozen=True, kw_only=True, eq=False)
class SymbolCheck:
    """One symbol: its rows in all files, the bars that are left once those are dropped that training refuses,
    and its findings.
    """

    symbol: str
    timeframe: str
    files: tuple[str, ...]
    rows: int  # in these files
    bars: int
    first: str
    last: str
    calendar: str  # '' where it can't be told
    findings: tuple[Defect, ...]
    refused_times: np.ndarray = field(default_factory=_no_times)  # of bars that --fix drops, while in memory
    candles: Candles | None = None  # the bars, while the symbol is in memory
    hole_times: np.ndarray = field(
        default_factory=_no_holes
    )  # (H, 2) int64: the last bar before each hole, and the first after it

    @property
    def is_refused(self) -> bool:
        """Return whether a training leaves it out."""
        return any(finding.training == REFUSED for finding in self.findings)

    def without_bars(self) -> SymbolCheck:
        """Return it without its bars and the times of its findings."""
        findings = tuple(replace(finding, times=_no_times()) for finding in self.findings)
        return replace(
            self, findings=findings, refused_times=_no_times(), candles=None, hole_times=_no_holes()
        )

    def to_dict(self) -> dict[str, object]:
        """Return it as JSON values."""
        return {
            "symbol": self.symbol,
            "timeframe": self.timeframe,
            "files": list(self.files),
            "rows": self.rows,
            "bars": self.bars,
            "first": self.first,
            "last": self.last,
            "calendar": self.calendar,
            "training": REFUSED if self.is_refused else TRAINED,
            "findings": [finding.to_dict() for finding in self.findings],
        }


def _defect(
    text: str, times: np.ndarray | None = None, *, training: str, fix: str = LEFT, detail: str = ""
) -> Defect:
    times = _no_times() if times is None else times
    first, last = (time_text(times[place]) if len(times) else "" for place in (0, -1))
    return Defect(
        text=text,
        count=len(times),
        first=first,
        last=last,
        training=training,
        fix=fix,
        detail=detail,
        times=times,
    )


def check_symbol(
    symbol: str,
    base: str,
    parts: Sequence[Series],
    *,
    timeframe: str,
    calendar: str,
    columns: Sequence[str],
) -> SymbolCheck:
    """Return the check of a symbol's bars in its files, which are of `base`; `calendar` is that of
    data.calendar. Raises nothing.
    """
    findings = [finding for part in parts for finding in _in_file(part)]
    apart, timestamp, values = _joined(symbol, parts, columns)
    bad, kept = _impossible(timestamp, values, columns)
    findings += [*apart, *bad]
    candles = _candles(symbol, base, timestamp[kept], values[:, kept]) if kept.any() else None
    hole_times, name = _no_holes(), ""
    if candles is not None:
        findings += [
            _defect(odd.text, candles.timestamp[odd.rows], training=NOTED, detail=odd.detail)
            for odd in odd_bars(candles)
        ]
        findings += _still(candles)
        try:
            candles = candles if base == timeframe else resample(candles, timeframe)
            name = infer_calendar(candles.timestamp, timeframe) if calendar == "auto" else calendar
            rows = np.flatnonzero(holes(candles.timestamp, timeframe, name))
            hole_times = np.stack([candles.timestamp[rows - 1], candles.timestamp[rows]], axis=1)
            findings += _holes(candles, hole_times, name)
        except DataError as error:
            findings.append(_error(error))
    return SymbolCheck(
        symbol=symbol,
        timeframe=candles.timeframe if candles else timeframe,
        files=tuple(part.file for part in parts),
        rows=sum(len(part.timestamp) for part in parts),
        bars=len(candles) if candles else 0,
        first=time_text(candles.timestamp[0]) if candles else "",
        last=time_text(candles.timestamp[-1]) if candles else "",
        calendar=name,
        refused_times=timestamp[~kept],
        candles=candles,
        findings=tuple(sorted(findings, key=_gravity)),
        hole_times=hole_times,
    )


def _gravity(finding: Defect) -> int:
    return (REFUSED, NOTED, HOLE, TRAINED).index(finding.training)


def _error(error: DataError) -> Defect:
    text = f"{error.what}: {error.why}" if error.why else error.what
    return _defect(text, training=REFUSED, detail=error.do)


def _in_file(part: Series) -> list[Defect]:
    """Return bars of a file that come after later ones, and those that it has twice."""
    times, findings = part.timestamp, []
    if len(times) > 1 and (np.diff(times) <= 0).all():  # newest first, with bars twice
        times = times[::-1]
    late = times[1:][np.diff(times) < 0]
    if len(late):
        text = f"{part.file} is not sorted by time: bars that come after later ones"
        findings.append(_defect(text, np.sort(late), training=REFUSED, fix=SORTED))
    ordered, values, _ = in_time_order([part])
    same, differs = same_times(ordered, values)
    for rows, text, fix in (
        (same[~differs], f"{part.file} has the same bar twice", DROPPED),
        (same[differs], f"{part.file} has two bars for one time, which differ; keep one", LEFT),
    ):
        if len(rows):
            findings.append(_defect(text, ordered[rows], training=REFUSED, fix=fix))
    return findings


def _joined(
    symbol: str, parts: Sequence[Series], columns: Sequence[str]
) -> tuple[list[Defect], np.ndarray, np.ndarray]:
    """Return what keeps files of a symbol from being joined; the times (N,) of its bars, and their values (C,
    N) as a training has them: of bars of one time the first.
    """
    findings = []
    try:
        refuse_mixed(symbol, parts)
    except DataError as error:
        findings.append(_error(error))
        most = len(FIELDS) + len(columns)  # without splits and dividends, which only some have
        parts = [replace(part, values=part.values[:most], has_actions=False) for part in parts]
    timestamp, values, owner = in_time_order(parts)
    same, differs = same_times(timestamp, values)
    apart = same[differs & (owner[same] != owner[same + 1])]
    if len(apart):
        files = [parts[number].file for number in np.unique(np.append(owner[apart], owner[apart + 1]))]
        text = f"{some_of(files, 3)} have bars for one time, which differ; keep one of the files"
        if SEPARATOR in files[0]:
            folder = files[0].rpartition(SEPARATOR)[0].replace(SEPARATOR, "/")
            text += f", or name the folder {folder} itself if each is a symbol"
        findings.append(_defect(text, timestamp[apart], training=REFUSED))
    first = np.diff(timestamp, prepend=timestamp[0] - 1) > 0
    timestamp, values = timestamp[first], values[:, first]
    if parts[0].has_actions:
        values = applied(values)
    for column in values[len(FIELDS) :]:
        column[:] = carried(column)
    return findings, timestamp, values


def _impossible(
    timestamp: np.ndarray, values: np.ndarray, columns: Sequence[str]
) -> tuple[list[Defect], np.ndarray]:
    """Return the findings on bars that training refuses, and which bars (N,) bool are left without them."""
    kept = np.ones(len(timestamp), dtype=bool)
    found: dict[str, list[np.ndarray]] = {}
    for _ in range(_MOST_PASSES):
        left = np.flatnonzero(kept)
        bad = [(text, left[rows]) for text, rows in impossible_bars(values[:, left], columns) if rows.any()]
        if not bad:
            break
        for text, rows in bad:
            found.setdefault(text, []).append(timestamp[rows])
            kept[rows] = False
    findings = [
        _defect(text, np.unique(np.concatenate(times)), training=REFUSED, fix=DROPPED)
        for text, times in found.items()
    ]
    return findings, kept


def _candles(symbol: str, timeframe: str, timestamp: np.ndarray, values: np.ndarray) -> Candles:
    bars = dict(zip(FIELDS, values, strict=False))
    return Candles(symbol=symbol, timeframe=timeframe, timestamp=timestamp, **bars)


def _still(candles: Candles) -> list[Defect]:
    """Return the bars in which prices stand still for many bars, and those without volume."""
    findings = []
    prices = np.stack([candles.open, candles.high, candles.low, candles.close])
    same = np.concatenate([[False], (prices[:, 1:] == prices[:, :-1]).all(axis=0)])
    edges = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]]))).reshape(-1, 2)
    edges[:, 0] -= 1  # the bar whose price the others repeat
    long = edges[np.diff(edges)[:, 0] >= STALE_BARS]
    if len(long):
        at = np.concatenate([np.arange(start, stop) for start, stop in long])
        longest = long[np.diff(long)[:, 0].argmax()]
        runs = counted(len(long), "run")
        begin = time_text(candles.timestamp[longest[0]])
        detail = f"{runs}, the longest of {longest[1] - longest[0]:,} bars from {begin}"
        text = f"open, high, low and close stay the same for {STALE_BARS} bars or more"
        findings.append(_defect(text, candles.timestamp[at], training=TRAINED, detail=detail))
    silent = candles.volume == 0
    if silent.any():
        text = "no volume in any bar" if silent.all() else "no volume"
        findings.append(_defect(text, candles.timestamp[silent], training=TRAINED))
    return findings


def _holes(candles: Candles, hole_times: np.ndarray, calendar: str) -> list[Defect]:
    if not len(hole_times):
        return []
    lengths = np.diff(hole_times)[:, 0]
    longest = int(lengths.argmax())
    detail = f"the longest of {_long(int(lengths[longest]))} after {time_text(hole_times[longest, 0])}"
    step = step_of(candles.timeframe)
    if calendar == "24x7" and step:
        detail = f"{counted(int((lengths // step - 1).sum()), 'bar')} missing; {detail}"
    return [_defect(f"holes ({calendar})", hole_times[:, 0] + step, training=HOLE, detail=detail)]


def _long(nanoseconds: int) -> str:
    """Return a length of time in its two largest units: 3d 4h, 17m."""
    minutes = nanoseconds // (DAY // 1440)
    days, hours, minutes = minutes // 1440, minutes % 1440 // 60, minutes % 60
    parts = [f"{count}{unit}" for count, unit in ((days, "d"), (hours, "h"), (minutes, "m")) if count]
    return " ".join(parts[:2]) or "less than a minute"
