"""Labels of a volatility forecast, and which bars have one: in numpy, so that the data check needs no torch.

The label of bar t is the log of the realized volatility over the next `horizon_sessions` sessions: the square root of the
summed squared log returns from t to the same time of the session so many sessions later, nights included. Realized volatility
after Andersen and Bollerslev 1998. Its unit is that of a log return over the whole horizon, not annualized.

A bar is valid if
- its receptive field lies after the WARMUP of the features,
- no hole lies in its receptive field or in its label, nor just before the first bar of the former,
- something moved within its label, and
- it and the whole of its label lie in one span; the receptive field may begin in the span before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainer.config import MAX_HORIZON_SESSIONS, Job
from trainer.data.calendar import holes, infer_calendar, session_clock
from trainer.data.candles import Candles
from trainer.data.feature_names import WARMUP
from trainer.data.labels import WindowPlan, clear_of_holes, longest_stretch
from trainer.data.splits import Span, Spans, split
from trainer.data.timeframes import DAY
from trainer.errors import DataError

FEWEST_TEST_LABELS = 20  # that don't overlap: fewer say next to nothing about a forecast


@dataclass(frozen=True, kw_only=True)
class VolatilityPlan(WindowPlan):
    """Where the labels of a symbol lie. A window is a receptive field: its first row in `starts`, its label at its last bar.

    `labels` (N,) float32 are logs, NaN where none is; `ties` counts bars after which nothing moves.
    """

    horizon_sessions: int
    horizon_bars: int  # of the longest label: the embargo is no shorter
    clock: np.ndarray  # calendar.session_clock
    ends: np.ndarray  # (N,) int64: the last bar of each bar's label
    chunks: np.ndarray  # int64 rows: the first output of each chunk of training


@dataclass(frozen=True, kw_only=True)
class _Labelled:
    """The labels of one horizon. `bars` have one, and no hole in it or in what the model sees."""

    sessions: int
    labels: np.ndarray
    ends: np.ndarray
    bars: np.ndarray

    def within(self, span: Span) -> np.ndarray:
        """Return the bars that lie in the span with the whole of their label."""
        return np.asarray(self.bars[(self.bars >= span.start) & (self.ends[self.bars] < span.stop)])


def plan_volatility(candles: Candles, job: Job, *, warmup: int = WARMUP, spans: Spans | None = None) -> VolatilityPlan:
    """Find the horizon, labels, spans and valid bars of a symbol. Raises DataError when a span is left without any.

    `spans` replaces the job's split: a fold.
    """
    first = warmup + job.bars_seen - 1
    if len(candles) <= first:
        why = f"one forecast needs {first + 1}: {warmup} for the features, {job.bars_seen} that the model sees"
        do = "Give more bars, or lower blocks or dilation_cap."
        raise DataError(f"{candles.symbol} has {len(candles)} bars", why=why, do=do)
    calendar = infer_calendar(candles.timestamp, candles.timeframe) if job.calendar == "auto" else job.calendar
    hole = holes(candles.timestamp, candles.timeframe, calendar)
    clock = session_clock(candles.timestamp, candles.timeframe, calendar)
    shares = {"validation_fraction": job.validation_fraction, "test_fraction": job.test_fraction}
    test = spans.test if spans else split(len(candles), **shares, embargo=0, first=warmup).test
    chosen = _longest_horizon(candles, job, hole, clock, first=first, test=test)
    horizon_bars = int((chosen.ends[chosen.bars] - chosen.bars).max(initial=1))
    if spans is None:
        spans = split(len(candles), **shares, embargo=max(job.embargo, horizon_bars), first=warmup)
    starts, ties = {}, 0
    for name, span in spans.items():
        inside = chosen.within(span)
        tied = np.isnan(chosen.labels[inside])
        ties += int(tied.sum())
        starts[name] = inside[~tied] - job.bars_seen + 1
        if not len(starts[name]):
            raise _no_bar(candles, job, name, hole, calendar, horizon_bars=horizon_bars)
    labels = np.full_like(chosen.labels, np.nan)
    labels[chosen.bars] = chosen.labels[chosen.bars]
    return VolatilityPlan(
        calendar=calendar,
        holes=hole,
        labels=labels,
        spans=spans,
        starts=starts,
        ties=ties,
        horizon_sessions=chosen.sessions,
        horizon_bars=horizon_bars,
        clock=clock,
        ends=chosen.ends,
        chunks=chunk_grid(starts["train"] + job.bars_seen - 1, first=first, chunk=job.chunk),
    )


def _longest_horizon(candles: Candles, job: Job, hole: np.ndarray, clock: np.ndarray, *, first: int, test: Span) -> _Labelled:
    """Return the labels of the job's horizon, else of the longest that leaves enough separate ones in test."""
    separate = 0
    for sessions in (job.horizon_sessions,) if job.horizon_sessions else range(MAX_HORIZON_SESSIONS, 0, -1):
        labels, ends = label_sessions(candles.close, clock, sessions)
        bars = np.arange(first, len(candles), dtype=np.int64)
        bars = bars[ends[bars] >= 0]
        # Where the bar at the label's very end is missing, the break lies before the next one.
        whole = clock[ends[bars]] == clock[bars] + sessions * DAY
        bars = bars[clear_of_holes(hole, bars - job.bars_seen + 1, ends[bars] + ~whole)]
        found = _Labelled(sessions=sessions, labels=labels, ends=ends, bars=bars)
        separate = count_separate(found.within(test), ends)
        if job.horizon_sessions or separate >= FEWEST_TEST_LABELS:
            return found
    raise DataError(
        f"{candles.symbol} has {separate} labels of one session in test that don't overlap",
        why=f"a forecast is scored on {FEWEST_TEST_LABELS} at least; the series has {int(hole.sum())} holes",
        do="Give more bars, raise test_fraction, lower blocks, or set horizon_sessions = 1 to go on with these.",
    )


def _no_bar(candles: Candles, job: Job, name: str, hole: np.ndarray, calendar: str, *, horizon_bars: int) -> DataError:
    why = (
        f"calendar {calendar} sees {int(hole.sum())} holes, the longest unbroken stretch is {longest_stretch(hole)} bars, "
        f"and a forecast with its label takes {job.bars_seen + horizon_bars}"
    )
    return DataError(
        f"{candles.symbol} has no bar left in {name}",
        why=why,
        do="Give more bars, lower blocks or dilation_cap, or set calendar (24x7, sessions or events).",
    )


def label_sessions(close: np.ndarray, clock: np.ndarray, sessions: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels (N,) float32 and the last bar of each (N,) int64; -1 (and NaN) where the series ends before.

    NaN also where nothing moved, since the log of nothing is no number.
    """
    total = squared_returns(close)
    # A label is known once there is a bar at or after the horizon's end.
    ends = np.searchsorted(clock, clock + sessions * DAY, side="right") - 1
    ends = np.where((clock + sessions * DAY <= clock[-1]) & (ends > np.arange(len(close))), ends, -1)
    with np.errstate(divide="ignore"):
        labels = 0.5 * np.log(np.where(ends >= 0, total[ends] - total, np.nan))
    return np.where(np.isfinite(labels), labels, np.nan).astype(np.float32), ends


def trailing_volatility(close: np.ndarray, clock: np.ndarray, sessions: int) -> np.ndarray:
    """Return the log realized volatility (N,) float64 over the `sessions` sessions that end at each bar.

    NaN where the series does not reach so far back, or where nothing moved. Bar t uses bars up to t.
    """
    total = squared_returns(close)
    begins = np.searchsorted(clock, clock - sessions * DAY, side="right") - 1
    with np.errstate(divide="ignore"):
        logs = 0.5 * np.log(np.where(begins >= 0, total - total[begins], np.nan))
    return np.where(np.isfinite(logs), logs, np.nan)


def squared_returns(close: np.ndarray) -> np.ndarray:
    """Return the running total (N,) of squared log returns; the first bar has none."""
    return np.concatenate([[0.0], np.cumsum(np.diff(np.log(close)) ** 2)])


def count_separate(bars: np.ndarray, ends: np.ndarray) -> int:
    """Return how many labels of these bars (ascending) fit one after another, each beginning where the one before ended."""
    count, place = 0, 0
    while place < len(bars):
        count += 1
        place = int(np.searchsorted(bars, ends[bars[place]]))
    return count


def chunk_grid(bars: np.ndarray, *, first: int, chunk: int) -> np.ndarray:
    """Return the first rows of the chunks (a grid from `first` on) that hold any of the bars (ascending)."""
    return np.asarray(first + np.unique((bars - first) // chunk) * chunk)
