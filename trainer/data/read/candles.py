"""Candles: the bars of one symbol, joined from its files, checked, and resampled. `reading` finds the files.

Identical bars in two files count once; different bars for the same time are an error. A resampled bar begins
at a multiple of its length since 1970 (weeks on Mondays) in UTC. It is made of the bars that exist in it;
without any, it is missing too. The first and the last are dropped if the series does not cover them, so that
no bar covers only a part of its time, in training or in a prediction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from trainer.base.errors import DataError
from trainer.base.text import counted, some_of
from trainer.data.pieces import pieces, rows_where
from trainer.data.read.actions import applied
from trainer.data.read.shapes import FIELDS
from trainer.data.read.sources import Series
from trainer.data.timeframes import EVENTS, SECOND, name_of, origin_of, step_of

REPAIR = "as mayfly data check PATH --fix NEW does"
SEVERAL_SYMBOLS = "If it has several symbols, name their column: data.columns = symbol=NAME."
MOST_VOLUME = 1e100  # of a bar: sums of larger ones pass the largest float64
MOST_TIMES_OFF = 50  # a close this many times off both neighbours is a misplaced decimal point


@dataclass(frozen=True, kw_only=True)
class Candles:
    """The bars of one symbol, oldest first: `timestamp` (N,) int64 ns UTC, the bar's start; prices and volume
    (N,) float64.

    `columns` has further columns of the files, (N,) float64 by name: each bar's value, else the last value
    before it; NaN before the first value. `marks` has a hash for each column that is computed: of the bars
    that it is computed from.
    """

    symbol: str
    timeframe: str
    timestamp: np.ndarray
    open: np.ndarray
    high: np.ndarray
    low: np.ndarray
    close: np.ndarray
    volume: np.ndarray
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    marks: Mapping[str, str] = field(default_factory=dict)
    since: np.ndarray | None = None  # (N,) int64: the earliest time whose data the columns at a bar are of
    files: tuple[str, ...] = ()  # flat names of those with its bars
    file_rows: int = 0  # in these files, before they are joined and cut to the last bars

    def __len__(self) -> int:
        return len(self.timestamp)

    @property
    def columns_begin(self) -> int:
        """Return the first row at which every column has a value: 0 without columns, `len(self)` if one is
        empty.
        """
        return max((int(np.isnan(values).sum()) for values in self.columns.values()), default=0)

    def rows(self, start: int, stop: int | None = None) -> Candles:
        """Return bars `start` to `stop` (exclusive) as views, with numpy's rules for negative numbers."""
        part = slice(start, stop)
        columns = {name: values[part] for name, values in self.columns.items()}
        return replace(
            self,
            **{name: getattr(self, name)[part] for name in ("timestamp", *FIELDS)},
            columns=columns,
            since=None if self.since is None else self.since[part],
        )

    def read_only(self) -> Candles:
        """Return the bars as views that can't be changed, for a user's own code: features and labels of ours
        are made of the same.
        """
        bars: dict[str, Any] = {name: _locked(getattr(self, name)) for name in ("timestamp", *FIELDS)}
        return replace(self, **bars, columns={name: _locked(one) for name, one in self.columns.items()})

    def closes(self) -> Candles:
        """Return the bars with times and closes alone, in memory of their own."""
        if not len(self.open):
            return self
        none = np.empty(0)
        bare = replace(self, open=none, high=none, low=none, volume=none, columns={}, since=None)
        return replace(bare, close=self.close.copy())

    def clear_of(self, row: int) -> int:
        """Return the first row, from `row` on, after which no value of a column is of data before `row`."""
        if self.since is None or row >= len(self):
            return row
        carried = np.flatnonzero(self.since[row:] < self.timestamp[row])
        return row + int(carried[-1]) + 1 if len(carried) else row


def _locked(values_N: np.ndarray) -> np.ndarray:
    view_N = values_N.view()
    view_N.flags.writeable = False
    return view_N


def bars_sha256(candles: Candles) -> str:
    """Return the hash of the bars: of each column's name and the hash of its bytes. A column that is computed
    counts by its mark: its last digits may depend on the machine.
    """
    digest = hashlib.sha256()
    bars = {name: getattr(candles, name) for name in ("timestamp", *FIELDS)}
    for name, values in {
        **bars,
        **{f"column {name}": values for name, values in candles.columns.items() if name not in candles.marks},
    }.items():
        digest.update(name.encode() + hashlib.sha256(np.ascontiguousarray(values).data).digest())
    for name, mark in candles.marks.items():
        digest.update(f"column {name} {mark}".encode())
    return digest.hexdigest()


def join_series(
    symbol: str, timeframe: str, parts: Sequence[Series], columns: Sequence[str], *, bars: int = 0
) -> Candles:
    """Return the last `bars` bars (0: all) of a symbol, joined from `parts`. `columns` names the further rows
    of values. Raises DataError for impossible bars.
    """
    file_rows = sum(len(part.timestamp) for part in parts)
    timestamp, values = _merge(symbol, parts)
    if parts[0].has_actions:
        values = applied(values)  # before the cut: by every action that the files know
    since = timestamp.copy() if columns else None
    for column in values[len(FIELDS) :]:
        rows = last_cells(column)
        column[:] = column[rows]  # before the cut: the first bar kept may continue an older value
        if since is not None:
            np.minimum(since, timestamp[rows], out=since)
    since = None if since is None else since[-bars:]
    timestamp, values = timestamp[-bars:], values[:, -bars:]
    _check_values(symbol, parts, timestamp, values, columns)
    return Candles(
        symbol=symbol,
        timeframe=timeframe,
        timestamp=timestamp,
        **dict(zip(FIELDS, values[: len(FIELDS)], strict=True)),
        columns=dict(zip(columns, values[len(FIELDS) :], strict=True)),
        since=since,
        files=tuple(part.file for part in parts),
        file_rows=file_rows,
    )


def resample(candles: Candles, timeframe: str) -> Candles:
    """Return longer bars; of a further column, each has the last value. Raises DataError if there is no whole
    one.
    """
    short, long = step_of(candles.timeframe), step_of(timeframe)
    longer = longer_bars(candles, timeframe)
    starts_M = longer.timestamp
    begin = int(candles.timestamp[0] != starts_M[0])
    end = len(starts_M) - int(candles.timestamp[-1] + short < starts_M[-1] + long)
    if begin >= end:
        what = f"{candles.symbol} has no whole bar of {timeframe}"
        raise DataError(what, why=f"its bars are of {candles.timeframe}", do="Give more bars.")
    return longer.rows(begin, end)


def longer_bars(candles: Candles, timeframe: str) -> Candles:
    """Return longer bars, with the first and the last one, of which the series may cover only a part."""
    long = step_of(timeframe)
    origin = origin_of(long)
    bins_N = (candles.timestamp - origin) // long
    first_M = np.flatnonzero(np.diff(bins_N, prepend=bins_N[0] - 1))
    last_M = np.append(first_M[1:], len(bins_N)) - 1
    return replace(
        candles,
        timeframe=timeframe,
        timestamp=bins_N[first_M] * long + origin,
        open=candles.open[first_M],
        high=np.maximum.reduceat(candles.high, first_M),
        low=np.minimum.reduceat(candles.low, first_M),
        close=candles.close[last_M],
        volume=np.add.reduceat(candles.volume, first_M),
        columns={name: values[last_M] for name, values in candles.columns.items()},
        since=None if candles.since is None else candles.since[last_M],
    )


def merged(times: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the times of both, each once, ascending as both are. Of half a million in 13 ms, for which
    numpy's union1d takes 2 s (numpy 2.4, 2026-11-27).
    """
    both = np.sort(np.concatenate((times, others)), kind="stable")  # which merges runs
    return both[np.diff(both, prepend=both[:1] - 1) > 0]


def commonest_step(timestamps: np.ndarray) -> str:
    """Return the timeframe of the most frequent step of a sorted series; `events` if fewer than half of the
    steps have it.
    """
    first, rows = np.diff(timestamps[:2]), len(timestamps) - 1
    same = sum(
        int(np.count_nonzero(timestamps[1:][part] - timestamps[part] == first)) for part in pieces(rows)
    )
    if same * 2 > rows > 0 and first > 0:  # as of most series: it need not be sorted
        return name_of(int(first[0]))
    steps, counts = np.unique(np.diff(timestamps), return_counts=True)
    if not len(steps) or counts.max() * 2 < counts.sum() or steps[counts.argmax()] <= 0:
        return EVENTS
    return name_of(int(steps[counts.argmax()]))


def last_cells(column_N: np.ndarray) -> np.ndarray:
    """Return the row (N,) int64 of the last cell with a value, at or before each row; 0 before the first."""
    return np.asarray(np.maximum.accumulate(np.where(np.isnan(column_N), 0, np.arange(len(column_N)))))


def carried(column_N: np.ndarray) -> np.ndarray:
    """Return a column with empty cells (NaN) replaced by the last value before them."""
    return np.asarray(column_N[last_cells(column_N)])


def _merge(symbol: str, parts: Sequence[Series]) -> tuple[np.ndarray, np.ndarray]:
    """Return times (N,) and values (C, N) of sorted series, joined. Raises DataError if two differ for the
    same time.
    """
    if len(parts) == 1:
        return parts[0].timestamp, parts[0].values
    parts = sorted(parts, key=lambda part: int(part.timestamp[0]))
    refuse_mixed(symbol, parts)
    timestamp, values, owner = in_time_order(parts)
    same, differs = same_times(timestamp, values)
    if differs.any():
        first = same[differs.argmax()]
        differ = counted(int(differs.sum()), "bar differs", "bars differ")
        raise DataError(
            f"{parts[owner[first]].file} and {parts[owner[first + 1]].file} disagree about {symbol}",
            why=f"{differ}, the first at {time_text(timestamp[first])}",
            do="Keep one of the two files; name files of different symbols SYMBOL_TIMEFRAME.",
        )
    keep = np.ones(len(timestamp), dtype=bool)
    keep[same + 1] = False
    return timestamp[keep], values[:, keep]


def in_time_order(parts: Sequence[Series]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return times (N,), values (C, N) and the number (N,) of each bar's part, by time; bars of one time in
    the order of the parts.
    """
    timestamp = np.concatenate([part.timestamp for part in parts])
    values = np.concatenate([part.values for part in parts], axis=1)
    owner = np.repeat(np.arange(len(parts)), [len(part.timestamp) for part in parts])
    if (timestamp[1:] >= timestamp[:-1]).all():  # as of most: to reorder 20 million bars takes half a minute
        return timestamp, values, owner
    order = np.argsort(timestamp, kind="stable")
    return timestamp[order], values[:, order], owner[order]


def same_times(timestamp: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows (D,) int64 of sorted bars whose next bar has the same time, and whether (D,) bool the
    two differ.
    """
    same = np.flatnonzero(timestamp[1:] == timestamp[:-1])
    # Compared as float32, so that a copy stored with fewer digits counts as the same bar.
    one, other = values[:, same].astype(np.float32), values[:, same + 1].astype(np.float32)
    return same, ((one != other) & ~(np.isnan(one) & np.isnan(other))).any(axis=0)


def refuse_mixed(symbol: str, parts: Sequence[Series]) -> None:
    """Raise DataError for files with and without adjusted prices, and for files with and without splits and
    dividends of their own: only one kind is as traded.
    """
    acting, others = ([part.file for part in parts if part.has_actions is one] for one in (True, False))
    if acting and others:
        what = (
            f"{acting[0]} has prices of {symbol} as traded, with splits and dividends; {others[0]} has none"
        )
        do = "Keep the files of one source."
        raise DataError(what, why="together they would jump at each split", do=do)
    adjusted, traded = ([part.file for part in parts if part.is_adjusted is one] for one in (True, False))
    if adjusted and traded:
        raise DataError(
            f"{adjusted[0]} has adjusted prices of {symbol}, {traded[0]} has none",
            why="together they would jump where one begins",
            do="Give both with the adjusted close, or both without that column.",
        )


def check_order(series: Series) -> None:
    """Raise DataError for bars that are not sorted by time, or of which two have the same time."""
    times = series.timestamp
    late = rows_where(len(times) - 1, lambda part: times[1:][part] <= times[part])
    if not len(late):
        return
    steps, first = np.diff(times), int(late[0])
    at = time_text(series.timestamp[first + 1])
    if steps[first] == 0:
        twice = int((steps == 0).sum())
        raise DataError(
            f"{series.file} has duplicate bars of {series.symbol}",
            why=f"{twice} in all, the first at {at}",
            do="Drop the duplicates: mayfly data check PATH --fix NEW drops those that are equal."
            f" {SEVERAL_SYMBOLS}",
        )
    raise DataError(
        f"{series.file} has unsorted bars of {series.symbol}",
        why=f"{at} comes after {time_text(series.timestamp[first])}",
        do=f"Sort the file by time, {REPAIR}. {SEVERAL_SYMBOLS}",
    )


def _check_values(
    symbol: str, parts: Sequence[Series], timestamp: np.ndarray, values: np.ndarray, columns: Sequence[str]
) -> None:
    """Raise DataError for impossible bars: not finite, a price not above zero, high below low, negative
    volume, a spike.
    """
    if not any(_has_impossible(values, columns, part) for part in pieces(len(timestamp))):
        return
    for problem, bad in impossible_bars(values, columns):
        if bad.any():
            row = int(bad.argmax())
            files = [part.file for part in parts if part.timestamp[0] <= timestamp[row] <= part.timestamp[-1]]
            raise DataError(
                f"{some_of(files, 3)}: {problem} in a bar of {symbol}",
                why=f"{counted(int(bad.sum()), 'such bar')}, the first at {time_text(timestamp[row])}",
                do=f"Correct those bars, or drop them, {REPAIR}; a missing bar is handled as a hole.",
            )


def _has_impossible(values: np.ndarray, columns: Sequence[str], part: slice) -> bool:
    """Return whether bars of a part are refused. A spike is one beside the bars around it."""
    around = slice(max(0, part.start - 1), part.stop + 1)
    return any(bad.any() for _, bad in impossible_bars(values[:, around], columns))


def impossible_bars(values: np.ndarray, columns: Sequence[str]) -> list[tuple[str, np.ndarray]]:
    """Return each reason for which a bar is refused, with the bars (N,) bool that have it; `values` (C, N)
    has the rows of FIELDS, then of `columns`.
    """
    prices, volume = values[:4], values[4]
    checks = [(f"{field} is NaN", np.isnan(row)) for field, row in zip(FIELDS, values, strict=False)]
    checks += [
        (f"{name} is infinite", np.isinf(row)) for name, row in zip((*FIELDS, *columns), values, strict=True)
    ]
    checks += [(f"{field} is not above zero", row <= 0) for field, row in zip(FIELDS, prices, strict=False)]
    checks += [("high is below low", values[1] < values[2]), ("volume is negative", volume < 0)]
    checks += [(f"volume is above {MOST_VOLUME:g}", (volume > MOST_VOLUME) & np.isfinite(volume))]
    off = _spikes(values[3])
    return [*checks, (f"close is more than {MOST_TIMES_OFF} times off the bars before and after", off)]


def _spikes(close_N: np.ndarray) -> np.ndarray:
    """Return (N,) bool: closes that are MOST_TIMES_OFF times above, or below, the closes before and after."""
    far = far_apart(close_N[1:], close_N[:-1], np.log(MOST_TIMES_OFF))
    steps = np.zeros(len(close_N))  # to the next close
    with np.errstate(divide="ignore", invalid="ignore"):
        steps[far] = np.log(close_N[far + 1]) - np.log(close_N[far])
    off = np.zeros(len(close_N), dtype=bool)
    if len(far) > 1:
        up, down = steps > np.log(MOST_TIMES_OFF), steps < -np.log(MOST_TIMES_OFF)
        off[1:] = (up[:-1] & down[1:]) | (down[:-1] & up[1:])
    return off


def far_apart(one_N: np.ndarray, other_N: np.ndarray, least: float) -> np.ndarray:
    """Return the rows at which the log ratio of two prices may be beyond `least`: a logarithm takes ten times
    as long as a ratio, and few rows need one.
    """
    some = float(np.exp(least * 0.99))

    def is_far(part: slice) -> np.ndarray:
        with np.errstate(all="ignore"):  # a ratio may overflow
            ratio_N = one_N[part] / other_N[part]
        return np.asarray((ratio_N > some) | (ratio_N < 1 / some))

    return rows_where(len(one_N), is_far)


def time_text(timestamp: int | np.integer) -> str:
    """Return a time in nanoseconds UTC as ISO 8601 text, such as `2021-03-01T00:00:00Z`, with a fraction only
    if not zero.
    """
    unit = next(
        (unit for unit, length in (("s", SECOND), ("ms", SECOND // 1000)) if int(timestamp) % length == 0),
        "ns",
    )
    return f"{np.datetime64(int(timestamp), 'ns').astype(f'datetime64[{unit}]')}Z"
