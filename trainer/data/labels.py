"""Labels, and which windows are valid: what needs timestamps and closes alone, in numpy, so that the data check needs no torch.

A window is rows start to start+lookback-1; t is its last bar and its label is the sign of log close[t+horizon]/close[t]. It
is valid if
- its rows lie after the WARMUP of the features,
- no hole lies in it or in its label, nor just before its first bar (whose own return would reach back over the hole),
- its label is no tie, and
- t and the whole label lie in one span. The lookback may begin in the span before: inputs of the past are no leak, labels are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainer.config import Job
from trainer.data.calendar import holes, infer_calendar
from trainer.data.candles import Candles
from trainer.data.feature_names import WARMUP
from trainer.data.splits import Spans, split
from trainer.errors import DataError


@dataclass(frozen=True, kw_only=True)
class WindowPlan:
    """Where the windows of a symbol lie. `labels` (N,) float32, NaN where none is; `starts` int64 rows, ascending, by span."""

    calendar: str
    holes: np.ndarray  # (N,) bool: a hole lies before this bar
    labels: np.ndarray
    spans: Spans
    starts: dict[str, np.ndarray]
    ties: int  # windows dropped because close[t+horizon] == close[t]


def label_bars(close: np.ndarray, horizon: int) -> np.ndarray:
    """Return (N,) float32: 1 where close[t+horizon] > close[t], 0 where it is below, NaN for a tie and past the end."""
    labels = np.full(len(close), np.nan, dtype=np.float32)
    if len(close) > horizon:
        change = close[horizon:] - close[:-horizon]  # the sign of the difference is the sign of the log ratio
        labels[: len(change)] = np.where(change > 0, 1.0, np.where(change < 0, 0.0, np.nan))
    return labels


def clear_of_holes(hole: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Tell of each range of bars whether no hole lies before any of `first` to `last`, both included."""
    passed = np.concatenate([[0], np.cumsum(hole)])
    return np.asarray(passed[last + 1] == passed[first])


def plan_windows(candles: Candles, job: Job, *, warmup: int = WARMUP, spans: Spans | None = None) -> WindowPlan:
    """Find the holes, labels, spans and valid windows of a symbol. Raises DataError when a span is left without windows.

    The embargo between spans is the larger of the job's and the horizon. `spans` replaces the job's split: a fold.
    """
    num_bars = len(candles)
    needed = warmup + job.lookback + job.horizon
    if num_bars < needed:
        raise DataError(
            f"{candles.symbol} has {num_bars} bars",
            why=f"one window needs {needed}: {warmup} for the features, lookback {job.lookback}, horizon {job.horizon}",
            do="Give more bars, lower lookback, or leave the symbol out of --symbols.",
        )
    calendar = infer_calendar(candles.timestamp, candles.timeframe) if job.calendar == "auto" else job.calendar
    hole = holes(candles.timestamp, candles.timeframe, calendar)
    labels = label_bars(candles.close, job.horizon)
    if spans is None:
        spans = split(
            num_bars,
            validation_fraction=job.validation_fraction,
            test_fraction=job.test_fraction,
            embargo=max(job.embargo, job.horizon),
            first=warmup,
        )
    starts, ties = {}, 0
    for name, span in spans.items():
        last = np.arange(max(span.start, warmup + job.lookback - 1), span.stop - job.horizon, dtype=np.int64)
        last = last[clear_of_holes(hole, last - job.lookback + 1, last + job.horizon)]
        tied = np.isnan(labels[last])
        ties += int(tied.sum())
        starts[name] = last[~tied] - job.lookback + 1
        if not len(starts[name]):
            raise _no_window(candles, job, name, hole, calendar, tied=len(tied))
    labels[_label_crosses(hole, job.horizon)] = np.nan
    kinds = np.unique(labels[starts["train"] + job.lookback - 1])
    if len(kinds) == 1:
        raise DataError(
            f"{candles.symbol} has labels of one class only in training",
            why=f"every close {'rises' if kinds[0] else 'falls'} over {job.horizon} bars",
            do="Give more bars, or another horizon.",
        )
    return WindowPlan(calendar=calendar, holes=hole, labels=labels, spans=spans, starts=starts, ties=ties)


def _label_crosses(hole: np.ndarray, horizon: int) -> np.ndarray:
    """Tell of each bar whether a hole lies between it and the bar `horizon` later."""
    bars = np.arange(len(hole))
    return ~clear_of_holes(hole, np.minimum(bars + 1, len(hole)), np.minimum(bars + horizon, len(hole) - 1))


def longest_stretch(hole: np.ndarray) -> int:
    """Return the most bars in a row without a hole between them."""
    edges = np.concatenate([[0], np.flatnonzero(hole), [len(hole)]])
    return int(np.diff(edges).max())


def _no_window(candles: Candles, job: Job, name: str, hole: np.ndarray, calendar: str, *, tied: int) -> DataError:
    needed = job.lookback + job.horizon
    if tied:
        why = f"each of its {tied} labels is a tie: close does not move over {job.horizon} bars"
        return DataError(
            f"{candles.symbol} has no window left in {name}", why=why, do="Set a longer horizon, or drop the symbol."
        )
    why = (
        f"calendar {calendar} sees {int(hole.sum())} holes, the longest unbroken stretch is {longest_stretch(hole)} bars, "
        f"and a window with its label needs {needed + 1}"
    )
    return DataError(
        f"{candles.symbol} has no window left in {name}",
        why=why,
        do=f"Lower lookback (now {job.lookback}), give more bars, or set calendar (24x7, sessions or events).",
    )
