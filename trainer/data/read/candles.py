"""Candles: the bars of one symbol, joined from its files and checked. `reading` finds the files.

Identical bars in two files count once; different bars for the same time are an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from trainer.base.errors import DataError
from trainer.data.read.oddities import MOST_TIMES_OFF, spikes
from trainer.data.read.shapes import FIELDS
from trainer.data.read.sources import Series
from trainer.data.resampling import resample
from trainer.data.timeframes import SECOND


@dataclass(frozen=True, kw_only=True)
class Candles:
    """The bars of one symbol, oldest first: `timestamp` (N,) int64 ns UTC, the bar's start; prices and volume
    (N,) float64.

    `columns` has further columns of the files, (N,) float64 by name: each bar's value, else the last value
    before it; NaN before the first value.
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
            self, **{name: getattr(self, name)[part] for name in ("timestamp", *FIELDS)}, columns=columns
        )


def candles_of(
    symbol: str,
    timeframe: str,
    parts: list[Series],
    bars: int,
    columns: Sequence[str] = (),
    *,
    base: str = "",
    look: Callable[[str, str, np.ndarray, np.ndarray], None] | None = None,
) -> Candles:
    """Return the last `bars` bars (0: all) of a symbol, joined from `parts`. `columns` names the further rows
    of values.

    Bars of the timeframe `base` are resampled to `timeframe`. `look` is called with symbol, timeframe, times
    and values of the bars before that. Raises DataError for impossible bars.
    """
    timestamp, values = _merge(symbol, parts)
    for column in values[len(FIELDS) :]:
        column[:] = _carried(column)  # before the cut: the first bar kept may continue an older value
    is_resampled = base not in ("", timeframe)
    if bars and not is_resampled:
        timestamp, values = timestamp[-bars:], values[:, -bars:]
    _check_values(symbol, parts, timestamp, values, columns)
    if look:
        look(symbol, base or timeframe, timestamp, values)
    if is_resampled:
        timestamp, values = resample(timestamp, values, base, timeframe)
        if not len(timestamp):
            raise DataError(
                f"{symbol} has no whole bar of {timeframe}",
                why=f"its bars are of {base}",
                do="Give more bars.",
            )
        timestamp, values = timestamp[-bars:], values[:, -bars:]
    return _candles(symbol, timeframe, timestamp, values, columns)


def _candles(
    symbol: str, timeframe: str, timestamp: np.ndarray, values: np.ndarray, columns: Sequence[str]
) -> Candles:
    return Candles(
        symbol=symbol,
        timeframe=timeframe,
        timestamp=timestamp,
        **dict(zip(FIELDS, values[: len(FIELDS)], strict=True)),
        columns=dict(zip(columns, values[len(FIELDS) :], strict=True)),
    )


def _carried(column_N: np.ndarray) -> np.ndarray:
    """Return a column with empty cells (NaN) replaced by the last value before them."""
    last_N = np.maximum.accumulate(np.where(np.isnan(column_N), 0, np.arange(len(column_N))))
    return np.asarray(column_N[last_N])


def _merge(symbol: str, parts: list[Series]) -> tuple[np.ndarray, np.ndarray]:
    """Return times (N,) and values (C, N) of sorted series, joined. Raises DataError if two differ for the
    same time.
    """
    if len(parts) == 1:
        return parts[0].timestamp, parts[0].values
    parts = sorted(parts, key=lambda part: int(part.timestamp[0]))
    adjusted, traded = ([part.file for part in parts if part.is_adjusted is one] for one in (True, False))
    if adjusted and traded:
        raise DataError(
            f"{adjusted[0]} has adjusted prices of {symbol}, {traded[0]} has none",
            why="together they would jump where one begins",
            do="Give both with the adjusted close, or both without that column.",
        )
    timestamp = np.concatenate([part.timestamp for part in parts])
    values = np.concatenate([part.values for part in parts], axis=1)
    owner = np.repeat(np.arange(len(parts)), [len(part.timestamp) for part in parts])
    order = np.argsort(timestamp, kind="stable")
    timestamp, values, owner = timestamp[order], values[:, order], owner[order]
    same = np.flatnonzero(timestamp[1:] == timestamp[:-1])
    # Compared as float32, so that a copy stored with fewer digits counts as the same bar.
    one, other = values[:, same].astype(np.float32), values[:, same + 1].astype(np.float32)
    differs = ((one != other) & ~(np.isnan(one) & np.isnan(other))).any(axis=0)
    if differs.any():
        first = same[differs.argmax()]
        raise DataError(
            f"{parts[owner[first]].file} and {parts[owner[first + 1]].file} disagree about {symbol}",
            why=f"{int(differs.sum())} bars differ, the first at {time_text(timestamp[first])}",
            do="Keep one of the two files.",
        )
    keep = np.ones(len(timestamp), dtype=bool)
    keep[same + 1] = False
    return timestamp[keep], values[:, keep]


def check_order(series: Series) -> None:
    """Raise DataError for bars that are not sorted by time, or of which two have the same time."""
    steps = np.diff(series.timestamp)
    if not (steps <= 0).any():
        return
    first = int((steps <= 0).argmax())
    at = time_text(series.timestamp[first + 1])
    if steps[first] == 0:
        twice = int((steps == 0).sum())
        raise DataError(
            f"{series.file} has duplicate bars of {series.symbol}",
            why=f"{twice} in all, the first at {at}",
            do="Drop the duplicates.",
        )
    raise DataError(
        f"{series.file} has unsorted bars of {series.symbol}",
        why=f"{at} comes after {time_text(series.timestamp[first])}",
        do="Sort the file by time.",
    )


def _check_values(
    symbol: str, parts: list[Series], timestamp: np.ndarray, values: np.ndarray, columns: Sequence[str]
) -> None:
    """Raise DataError for impossible bars: not finite, a price not above zero, high below low, negative
    volume, a spike.
    """
    prices, volume = values[:4], values[4]
    checks = [(f"{field} is NaN", np.isnan(row)) for field, row in zip(FIELDS, values, strict=False)]
    checks += [
        (f"{name} is infinite", np.isinf(row)) for name, row in zip((*FIELDS, *columns), values, strict=True)
    ]
    checks += [(f"{field} is not above zero", row <= 0) for field, row in zip(FIELDS, prices, strict=False)]
    checks += [("high is below low", values[1] < values[2]), ("volume is negative", volume < 0)]
    checks += [
        (f"close is more than {MOST_TIMES_OFF} times off the bars before and after", spikes(values[3]))
    ]
    for problem, bad in checks:
        if bad.any():
            row = int(bad.argmax())
            files = ", ".join(
                part.file for part in parts if part.timestamp[0] <= timestamp[row] <= part.timestamp[-1]
            )
            raise DataError(
                f"{files}: {problem} in a bar of {symbol}",
                why=f"{int(bad.sum())} such bars, the first at {time_text(timestamp[row])}",
                do="Correct or drop those bars; a missing bar is handled as a hole.",
            )


def time_text(timestamp: int | np.integer) -> str:
    """Return a time in nanoseconds UTC as ISO 8601 text, such as `2021-03-01T00:00:00Z`, with a fraction only
    if not zero.
    """
    unit = next(
        (unit for unit, length in (("s", SECOND), ("ms", SECOND // 1000)) if int(timestamp) % length == 0),
        "ns",
    )
    return f"{np.datetime64(int(timestamp), 'ns').astype(f'datetime64[{unit}]')}Z"
