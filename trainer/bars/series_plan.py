"""Plan one series: which bars train, validate and test, by its candles, times, spans and labels. No job.

A bar t is valid if
- the bars that the model sees are after the warm-up of the features and each column's first value,
- the series has the bars that its label reads before t,
- there is no hole in any of these, nor just before the first (whose return would span the hole), nor in the
  label,
- it has a label, and
- it and its whole label are in one span. The model may see bars of the previous span: past inputs are no
  leak, labels are.

Windows are cut out of a series' rows: its bars, or in a panel the dates from its first bar to its last. A
window may include a date without a bar, which is masked, but no hole of the calendar; a label neither.
Shapes: T bars, R rows, K label columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trainer.base.errors import DataError
from trainer.base.settings import CHUNKS, ModelSettings
from trainer.data.calendar import holes, infer_calendar, session_clock
from trainer.data.read.candles import Candles, time_text
from trainer.data.splits import Span, Spans
from trainer.data.timeframes import DAY
from trainer.job.job import Job
from trainer.job.start_model import StartModel, start_model_of
from trainer.models.pretrained import nanoseconds_of
from trainer.targets.target import TargetSettings

PART = 1 << 20  # bars that are looked at together
FEWEST_TEST_LABELS = 20  # non-overlapping, when a horizon is chosen: fewer say next to nothing of a forecast


@dataclass(frozen=True, kw_only=True)
class BarTimes:
    """Holes, session clock and rows of a series' bars, by its calendar."""

    calendar: str
    clock: np.ndarray  # (T,) calendar.session_clock
    holes: np.ndarray  # (T,) bool: whether there is a hole, or a missing date, before this bar
    breaks: np.ndarray  # (R,) bool: whether there is a hole before this row
    rows: np.ndarray | None = None  # (T,) int64: the row of each bar of a panel; None: the bar's number

    def rows_of(self, bars: np.ndarray) -> np.ndarray:
        """Return the rows of bars."""
        return bars if self.rows is None else np.asarray(self.rows[bars])

    def first_row(self, *, warmup: int, bars_seen: int) -> int:
        """Return the first row whose inputs are complete."""
        if self.rows is not None:
            warmup = int(self.rows[warmup]) if warmup < len(self.rows) else int(self.rows[-1]) + 1
        return warmup + bars_seen - 1

    def readable(self, *, warmup: int, bars_seen: int, reach: int) -> np.ndarray:
        """Return the bars (N,) int64 at which a model can forecast, with or without a label.

        `reach` is the number of bars before it that the target reads.
        """
        first_row = self.first_row(warmup=warmup, bars_seen=bars_seen)
        passed_R, readable_T = _passed(self.breaks), np.zeros(len(self.holes), dtype=bool)
        passed_T = passed_R[1:] if self.rows is None else passed_R[1:][self.rows]
        broken_T = np.diff(passed_T, prepend=passed_T[:1]) > 0  # missing dates don't count
        passed_T = _passed(broken_T)
        for first in range(0, len(self.holes), PART):
            some = np.arange(first, min(first + PART, len(self.holes)))
            bars = some[(self.rows_of(some) >= first_row) & (some >= reach)]
            bars = bars[_is_clear(passed_T, bars - reach, bars)]
            rows = self.rows_of(bars)
            readable_T[bars[_is_clear(passed_R, rows - bars_seen + 1, rows)]] = True
        return np.flatnonzero(readable_T)


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """The labels of one target. `bars` are those with complete inputs; some have no label, since the price
    does not move.
    """

    target: TargetSettings
    labels_TK: np.ndarray
    ends: np.ndarray  # (T,) int64: the last bar that each label reads
    bars: np.ndarray

    @property
    def longest(self) -> int:
        """Return the length of the longest label in bars."""
        return max(int((self.ends[some] - some).max(initial=0)) for some in _parts(self.bars))

    def within(self, span: Span) -> np.ndarray:
        """Return the bars that are in the span with their whole label."""
        bars = self.bars[np.searchsorted(self.bars, span.start) :]
        return np.asarray(bars[np.concatenate([self.ends[some] < span.stop for some in _parts(bars)])])

    def num_separate(self, span: Span) -> int:
        """Return how many labels within the span don't overlap, each starting where the previous ended or
        later.
        """
        return count_separate(self.within(span), self.ends)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Bars of a series that train, validate and test in one fold."""

    time: BarTimes
    target: TargetSettings  # the job's, with values chosen for open settings
    labels_TK: np.ndarray  # float32; NaN at bars that are not valid
    ends: np.ndarray  # (T,) int64: the last bar that each label reads
    warmup: int  # rows at the head of the series that no output depends on
    spans: Spans
    bars: dict[str, np.ndarray]  # "train", "validation", "test" -> int64 bars, ascending
    bars_seen: int
    ties: int  # bars without a label because the price does not move
    horizon_bars: int  # length of the longest label; the embargo is at least this
    chunks: np.ndarray | None  # int64: the first output row of each training chunk; None: windows are read

    @property
    def rows(self) -> np.ndarray | None:
        """Return the row (T,) of each bar in a panel; None: the bar's number."""
        return self.time.rows

    @property
    def starts(self) -> dict[str, np.ndarray]:
        """Return the first row that each bar's output depends on, by span."""
        return {span: self.time.rows_of(bars) - (self.bars_seen - 1) for span, bars in self.bars.items()}

    @property
    def first_row(self) -> int:
        """Return the first row whose inputs are complete."""
        return self.time.first_row(warmup=self.warmup, bars_seen=self.bars_seen)

    def to_train(self, *, clock: bool) -> Plan:
        """Return the plan without the ends of labels, which only planning and a refit read, with or without
        the session clock.
        """
        time = self.time if clock else replace(self.time, clock=np.empty(0, dtype=np.int64))
        return replace(self, time=time, ends=np.empty(0, dtype=np.int64))

    @property
    def num_reads(self) -> int:
        """Return how many windows, or chunks, an epoch visits."""
        return len(self.bars["train"]) if self.chunks is None else len(self.chunks)


def times_of(timestamp: np.ndarray, timeframe: str, calendar: str) -> BarTimes:
    """Return the times of bars, or of a panel's dates. `calendar` is a value of data.calendar.

    Raises DataError if they do not fit the named exchange.
    """
    name = infer_calendar(timestamp, timeframe) if calendar == "auto" else calendar
    hole = holes(timestamp, timeframe, name)
    clock = session_clock(timestamp, timeframe, name)
    return BarTimes(calendar=name, clock=clock, holes=hole, breaks=hole)


def label_bars(
    candles: Candles, target: TargetSettings, time: BarTimes, *, warmup: int, bars_seen: int
) -> Labelled:
    """Return the labels of a series, and the bars without a hole in inputs and label."""
    bars = time.readable(warmup=warmup, bars_seen=bars_seen, reach=target.reach)
    if not len(bars):
        labels_TK = np.full((len(candles), target.label_columns), np.nan, dtype=np.float32)
        ends = np.full(len(candles), -1, dtype=np.int64)
        return Labelled(target=target, labels_TK=labels_TK, ends=ends, bars=bars)
    labels = target.label(candles, time.clock)
    ends = labels.ends_T
    unbroken = ends if labels.unbroken_T is None else labels.unbroken_T
    passed_T, whole = _passed(time.holes), []
    for some in _parts(bars):
        some = some[ends[some] >= 0]
        whole.append(some[_is_clear(passed_T, some + 1, unbroken[some])])
    return Labelled(target=target, labels_TK=labels.values_TK, ends=ends, bars=np.concatenate(whole))


def lay_out(
    candles: Candles,
    labelled: Labelled,
    time: BarTimes,
    folds: Sequence[Spans],
    *,
    job: Job,
    warmup: int,
    horizon_bars: int,
) -> tuple[Plan, ...]:
    """Return the plan of a series for the spans of each fold. A span may have no bar.

    Raises DataError if the model that the job's start from has seen bars or labels of validation or later.
    """
    model = job.model
    _refuse_late_start(candles, start_model_of(job), folds)
    has_label = np.isfinite(labelled.labels_TK).all(axis=1)
    labels_TK = np.full_like(labelled.labels_TK, np.nan)
    labels_TK[labelled.bars] = labelled.labels_TK[labelled.bars]
    first = max(time.first_row(warmup=warmup, bars_seen=model.bars_seen), labelled.target.reach)
    plans = []
    for spans in folds:
        bars, ties = {}, 0
        for name, span in spans.items():
            inside = labelled.within(span)
            if name == "train" and len(spans.after):
                inside = np.concatenate([inside, labelled.within(spans.after)])
            bars[name] = inside[has_label[inside]]
            ties += len(inside) - len(bars[name])
        train_rows = time.rows_of(bars["train"])
        plans.append(
            Plan(
                time=time,
                target=labelled.target,
                labels_TK=labels_TK,
                ends=labelled.ends,
                warmup=warmup,
                spans=spans,
                bars=bars,
                bars_seen=model.bars_seen,
                ties=ties,
                horizon_bars=horizon_bars,
                chunks=chunk_grid(train_rows, first, model.bars_out) if model.reads == CHUNKS else None,
            )
        )
    return tuple(plans)


def on_all_bars(plan: Plan, model: ModelSettings) -> Plan:
    """Return the plan of a refit: every bar with a label that ends in the series trains, none is held out."""
    num_bars = len(plan.labels_TK)
    train, none = Span(start=plan.spans.train.start, stop=num_bars), Span(start=num_bars, stop=num_bars)
    bars = np.flatnonzero(np.isfinite(plan.labels_TK).all(axis=1))
    bars = bars[(bars >= train.start) & (plan.ends[bars] < num_bars)]
    first = max(plan.first_row, plan.target.reach)
    return replace(
        plan,
        spans=Spans(train=train, validation=none, test=none),
        bars={"train": bars, "validation": bars[:0], "test": bars[:0]},
        chunks=None if plan.chunks is None else chunk_grid(plan.time.rows_of(bars), first, model.bars_out),
    )


def _refuse_late_start(candles: Candles, start: StartModel | None, folds: Sequence[Spans]) -> None:
    """Raise DataError if the model to start from was trained or selected on bars or labels of validation or
    later.
    """
    if start is None or not start.until:
        return
    until = nanoseconds_of(start.until, key=f"{start.key}_until")
    for spans in folds:
        first = min((span.start for span in (spans.validation, spans.test) if len(span)), default=None)
        begins = until if first is None else int(candles.timestamp[first])
        if until > begins:
            do = "Give this job later bars, or an older model. data.validation_days and data.test_days keep"
            raise DataError(
                f"the {start.noun} has seen bars and labels until {start.until}",
                why=(
                    f"validation of {candles.symbol} begins before, at {time_text(begins)}: its scores would"
                    " not be out of sample"
                ),
                do=f"{do} both spans to the last days.",
            )


def choose_target(
    target: TargetSettings,
    num_separate: Callable[[TargetSettings], int],
    *,
    series: str,
    shorter: str,
    test_key: str,
    bars: int,
    bars_needed: int,
    remark: str = "",
) -> TargetSettings:
    """Return the target with open settings chosen: the first option, the farthest, with enough labels in test
    that don't overlap, which `num_separate` counts.

    Raises DataError if none has; `series`, its `bars`, `shorter` (keys that make the model see less),
    `test_key`, `bars_needed` (about as many would do, without holes) and `remark` are for its text.
    """
    options, separate = target.options(), 0
    if len(options) == 1:
        return options[0]
    for option in options:
        separate = num_separate(option)
        if separate >= FEWEST_TEST_LABELS:
            return option
    what = f"{series} has {separate} labels in test that don't overlap, at the shortest {target.farther}"
    why = f"a forecast is scored on {FEWEST_TEST_LABELS} at least{remark}"
    if separate:  # of labels that are lost to holes more bars lose more
        bars_needed = max(bars_needed, math.ceil(bars * (FEWEST_TEST_LABELS + 1) / separate))
    more = f"Give more bars (about {bars_needed:,})"
    if not separate:
        why = f"the target {target.name} looks whole sessions ahead, and no such label fits into test; {why}"
        raise DataError(what, why=why, do=f"{more}, or choose a target that looks bars ahead.")
    do = f"{more}, raise {test_key}, lower {shorter}, or accept these: {target.farther} = 1."
    raise DataError(what, why=why, do=do)


def bars_for_labels(clock: np.ndarray, test_fraction: float) -> int:
    """Return about how many bars hold enough labels of a session in test, by a series' session clock."""
    sessions = len(np.unique(clock // DAY))
    return math.ceil((FEWEST_TEST_LABELS + 1) / test_fraction * len(clock) / sessions)


def clear_of_holes(hole: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return (N,) bool: whether there is no hole before any of the bars `first` to `last`, both included."""
    return _is_clear(_passed(hole), first, last)


def _passed(hole: np.ndarray) -> np.ndarray:
    """Return (T + 1,) int32: the number of holes before each bar, itself included from 1 on."""
    passed = np.zeros(len(hole) + 1, dtype=np.int32)
    np.cumsum(hole, out=passed[1:])
    return passed


def _is_clear(passed: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    return np.asarray(passed[last + 1] == passed[first])


def _parts(bars: np.ndarray) -> list[np.ndarray]:
    """Return bars in parts, one at least: what is made of one is small beside a long series."""
    return np.split(bars, range(PART, len(bars), PART))


def count_separate(bars: np.ndarray, ends: np.ndarray) -> int:
    """Return how many non-overlapping labels these bars (ascending) have, each starting where the previous
    ended or later.
    """
    count, place = 0, 0
    while place < len(bars):
        count += 1
        place = int(np.searchsorted(bars, ends[bars[place]]))
    return count


def chunk_grid(rows: np.ndarray, first: int, chunk: int) -> np.ndarray:
    """Return the first output rows of the chunks, on a grid from `first` on, that contain any of the rows
    (ascending).
    """
    return np.asarray(first + np.unique((rows - first) // chunk) * chunk)


def longest_stretch(hole: np.ndarray) -> int:
    """Return the largest number of consecutive bars without a hole between them."""
    edges = np.concatenate([[0], np.flatnonzero(hole), [len(hole)]])
    return int(np.diff(edges).max())
