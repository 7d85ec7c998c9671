"""Plan a symbol: holes, labels, spans, and the bars of each span that a model can be trained or scored on.

A bar t is valid if
- the bars that the model sees, and those that its label reads before t, are after the warm-up of the features
  and each column's first value,
- there is no hole in them, nor just before the first (whose return would span the hole), nor in the label,
- it has a label, and
- it and its whole label are in one span. The model may see bars of the previous span: past inputs are no
  leak, labels are.

Each fold has its own model, which trains on everything older than its validation and test; its test follows
that of the previous fold. A single fold, and the last of several, is the job's split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainer.base.errors import DataError
from trainer.base.settings import CHUNKS
from trainer.data.calendar import holes, infer_calendar, session_clock
from trainer.data.read.candles import Candles, time_text
from trainer.data.splits import Span, Spans, split, walk_forward
from trainer.job.job import Job
from trainer.job.pieces.fewest import farthest_feature, first_bar, too_few
from trainer.models.pretrained import encoder_of, nanoseconds_of
from trainer.targets.target import TargetSettings

FEWEST_TEST_LABELS = (
    20  # non-overlapping, when a horizon is chosen: fewer would say next to nothing about a forecast
)


@dataclass(frozen=True, kw_only=True)
class BarTimes:
    """Holes and session clock of a symbol's bars, by its calendar. Shapes: T bars."""

    calendar: str
    holes: np.ndarray  # (T,) bool: whether there is a hole before this bar
    clock: np.ndarray  # (T,) calendar.session_clock


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Bars of a symbol that train, validate and test in one fold. Shapes: T bars, K label columns."""

    time: BarTimes
    target: TargetSettings  # the job's, with values chosen for open settings
    labels_TK: np.ndarray  # float32; NaN at bars that are not valid
    ends: np.ndarray  # (T,) int64: the last bar that each label reads
    warmup: int  # rows at the head of the series that no output depends on
    spans: Spans
    bars: dict[str, np.ndarray]  # "train", "validation", "test" -> int64 rows, ascending
    bars_seen: int
    ties: int  # bars without a label because the price does not move
    horizon_bars: int  # length of the longest label; the embargo is at least this
    chunks: (
        np.ndarray | None
    )  # int64 rows: the first output of each training chunk; None for a model that reads windows
    rows: np.ndarray | None = None  # (T,) int64: the row of each bar in a panel; None: the bar's number

    @property
    def starts(self) -> dict[str, np.ndarray]:
        """Return the first row that each bar's output depends on, by span."""
        return {span: self.rows_of(bars) - self.bars_seen + 1 for span, bars in self.bars.items()}

    @property
    def first_row(self) -> int:
        """Return the first row whose inputs are complete."""
        warm = self.warmup
        if self.rows is not None:
            warm = int(self.rows[warm]) if warm < len(self.rows) else int(self.rows[-1]) + 1
        return warm + self.bars_seen - 1

    def rows_of(self, bars: np.ndarray) -> np.ndarray:
        """Return the rows of bars."""
        return bars if self.rows is None else np.asarray(self.rows[bars])

    @property
    def num_reads(self) -> int:
        """Return how many windows, or chunks, an epoch visits."""
        return len(self.bars["train"]) if self.chunks is None else len(self.chunks)


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """The labels of one target. `bars` are those with complete inputs; some have no label, since the price
    does not move.
    """

    target: TargetSettings
    labels_TK: np.ndarray
    ends: np.ndarray
    bars: np.ndarray

    def within(self, span: Span) -> np.ndarray:
        """Return the bars that are in the span with their whole label."""
        return np.asarray(self.bars[(self.bars >= span.start) & (self.ends[self.bars] < span.stop)])

    def has_label(self, bars: np.ndarray) -> np.ndarray:
        """Return (N,) bool: whether each bar has a label."""
        return np.asarray(np.isfinite(self.labels_TK[bars]).all(axis=1))


def plan_folds(candles: Candles, job: Job) -> tuple[Plan, ...]:
    """Return a symbol's plan for each fold, oldest first. Raises DataError for a span without bars, or too
    few for a batch.
    """
    if job.data.folds == 1:
        plans: tuple[Plan, ...] = (plan_symbol(candles, job),)
    else:
        _fold_spans(
            candles, job, embargo=max(job.data.embargo, job.target.bars_ahead)
        )  # raises for too few bars
        # The last fold's target holds for all: scores are averaged over folds.
        last = plan_symbol(candles, job)
        folded = _fold_spans(candles, job, embargo=max(job.data.embargo, last.horizon_bars))
        plans = tuple(plan_symbol(candles, job, spans=spans, target=last.target) for spans in folded)
    for fold, plan in enumerate(plans, 1):
        where = f"fold {fold} of {candles.symbol}" if job.data.folds > 1 else candles.symbol
        refuse_large_batch(where, job, plan.num_reads)
    return plans


def plan_symbol(
    candles: Candles,
    job: Job,
    *,
    warmup: int | None = None,
    spans: Spans | None = None,
    target: TargetSettings | None = None,
) -> Plan:
    """Return a symbol's plan: holes, labels, spans and valid bars. Raises DataError for a span without valid
    bars.

    The embargo between spans is the job's, or the longest label if that is longer. `spans` replaces the job's
    split, `target` the job's target, `warmup` the job's warm-up.
    """
    refuse_empty_columns(candles)
    warmup = warmup_of(candles, job) if warmup is None else warmup
    target = target or job.target
    first = first_bar(job, target, warmup)
    if error := too_few(candles.symbol, len(candles), job, target=target, warmup=warmup):
        raise error
    calendar = (
        infer_calendar(candles.timestamp, candles.timeframe)
        if job.data.calendar == "auto"
        else job.data.calendar
    )
    try:
        time = BarTimes(
            calendar=calendar,
            holes=holes(candles.timestamp, candles.timeframe, calendar),
            clock=session_clock(candles.timestamp, candles.timeframe, calendar),
        )
    except DataError as error:
        raise DataError(f"{candles.symbol}: {error.what}", why=error.why, do=error.do) from error
    shares = {"validation_fraction": job.data.validation_fraction, "test_fraction": job.data.test_fraction}
    test = spans.test if spans else split(len(candles), **shares, embargo=0, first=warmup).test
    chosen = _choose(candles, job, target, time, first=first, test=test)
    horizon_bars = int((chosen.ends[chosen.bars] - chosen.bars).max(initial=target.bars_ahead))
    if spans is None:
        spans = split(len(candles), **shares, embargo=max(job.data.embargo, horizon_bars), first=warmup)
    plan = lay_out(candles, job, time, chosen, spans=spans, horizon_bars=horizon_bars, warmup=warmup)
    what, why = chosen.target.flaw(chosen.labels_TK[plan.bars["train"]])
    if what:
        raise DataError(
            f"{candles.symbol} has {what}", why=why, do=f"Give more bars, or another {target.farther}."
        )
    return plan


def lay_out(
    candles: Candles,
    job: Job,
    time: BarTimes,
    chosen: Labelled,
    *,
    spans: Spans,
    horizon_bars: int,
    warmup: int,
) -> Plan:
    """Return the plan of a symbol for these spans and labels.

    Raises DataError for a span without labels, or if the job's encoder has seen validation.
    """
    refuse_late_encoder(candles, job, spans)
    bars, ties = {}, 0
    for name, span in spans.items():
        inside = chosen.within(span)
        labelled = chosen.has_label(inside)
        ties += int((~labelled).sum())
        bars[name] = inside[labelled]
        if not len(bars[name]):
            raise _no_bar(
                candles, job, chosen.target, name, time, horizon_bars=horizon_bars, tied=len(inside)
            )
    labels_TK = np.full_like(chosen.labels_TK, np.nan)
    labels_TK[chosen.bars] = chosen.labels_TK[chosen.bars]
    reads_chunks, first = job.model.reads == CHUNKS, first_bar(job, chosen.target, warmup)
    return Plan(
        time=time,
        target=chosen.target,
        labels_TK=labels_TK,
        ends=chosen.ends,
        warmup=warmup,
        spans=spans,
        bars=bars,
        bars_seen=job.model.bars_seen,
        ties=ties,
        horizon_bars=horizon_bars,
        chunks=chunk_grid(bars["train"], first=first, chunk=job.model.bars_out) if reads_chunks else None,
    )


def warmup_of(candles: Candles, job: Job) -> int:
    """Return the number of unusable rows at the head of a series: some input has no value there."""
    return max(job.data.warmup, candles.columns_begin)


def follow(
    candles: Candles,
    job: Job,
    time: BarTimes,
    target: TargetSettings,
    *,
    horizon_bars: int,
    folds: Sequence[Spans],
) -> tuple[Plan, ...]:
    """Return a symbol's plans for given spans, `folds`, and a chosen target, as in an existing plan. Raises
    DataError.
    """
    warmup = warmup_of(candles, job)
    chosen = _label(candles, job, target, time, first=first_bar(job, target, warmup))
    return tuple(
        lay_out(candles, job, time, chosen, spans=spans, horizon_bars=horizon_bars, warmup=warmup)
        for spans in folds
    )


def _choose(
    candles: Candles, job: Job, target: TargetSettings, time: BarTimes, *, first: int, test: Span
) -> Labelled:
    """Return the labels of the target's first option with enough non-overlapping ones in test, or of its only
    option.
    """
    options, separate = target.options(), 0
    for option in options:
        labelled = _label(candles, job, option, time, first=first)
        if len(options) == 1:
            return labelled
        separate = count_separate(labelled.within(test), labelled.ends)
        if separate >= FEWEST_TEST_LABELS:
            return labelled
    raise DataError(
        f"{candles.symbol} has {separate} labels in test that don't overlap, at the shortest"
        f" {target.farther}",
        why=(
            f"a forecast is scored on {FEWEST_TEST_LABELS} at least; the series has {int(time.holes.sum())}"
            " holes"
        ),
        do=(
            f"Give more bars, raise data.test_fraction, lower {job.model.shorter}, or accept these:"
            f" {target.farther} = 1."
        ),
    )


def _label(candles: Candles, job: Job, target: TargetSettings, time: BarTimes, *, first: int) -> Labelled:
    """Return the labels, and the bars from `first` on without a hole in inputs and label."""
    labels = target.label(candles, time.clock)
    ends = labels.ends_T
    bars = np.arange(first, len(candles), dtype=np.int64)
    bars = bars[ends[bars] >= 0]
    unbroken = ends if labels.unbroken_T is None else labels.unbroken_T
    back = max(job.model.bars_seen - 1, target.reach)
    bars = bars[clear_of_holes(time.holes, bars - back, unbroken[bars])]
    return Labelled(target=target, labels_TK=labels.values_TK, ends=ends, bars=bars)


def clear_of_holes(hole: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return (N,) bool: whether there is no hole before any of the bars `first` to `last`, both included."""
    passed = np.concatenate([[0], np.cumsum(hole)])
    return np.asarray(passed[last + 1] == passed[first])


def count_separate(bars: np.ndarray, ends: np.ndarray) -> int:
    """Return how many non-overlapping labels these bars (ascending) have, each starting where the previous
    ended or later.
    """
    count, place = 0, 0
    while place < len(bars):
        count += 1
        place = int(np.searchsorted(bars, ends[bars[place]]))
    return count


def chunk_grid(bars: np.ndarray, *, first: int, chunk: int) -> np.ndarray:
    """Return the first output rows of the chunks, on a grid from `first` on, that contain any of the bars
    (ascending).
    """
    return np.asarray(first + np.unique((bars - first) // chunk) * chunk)


def longest_stretch(hole: np.ndarray) -> int:
    """Return the largest number of consecutive bars without a hole between them."""
    edges = np.concatenate([[0], np.flatnonzero(hole), [len(hole)]])
    return int(np.diff(edges).max())


def refuse_empty_columns(candles: Candles) -> None:
    """Raise DataError for a column without any value."""
    for name, values in candles.columns.items():
        if np.isnan(values).all():
            do = "Fill the column, or leave the symbol out of --symbols."
            raise DataError(
                f"{candles.symbol} has no value of {name}", why="every cell of the column is empty", do=do
            )


def refuse_late_encoder(candles: Candles, job: Job, spans: Spans) -> None:
    """Raise DataError if the job's encoder was trained or selected on bars or labels of validation or
    later.
    """
    encoder = encoder_of(job.model)
    if encoder is None or not encoder.encoder_until or not len(spans.validation):
        return
    begins = int(candles.timestamp[spans.validation.start])
    if nanoseconds_of(encoder.encoder_until) > begins:
        raise DataError(
            f"the encoder has seen bars and labels until {encoder.encoder_until}",
            why=(
                f"validation of {candles.symbol} begins before, at {time_text(begins)}: its scores would not"
                " be out of sample"
            ),
            do="Pretrain on older bars, or give this job later ones.",
        )


def _no_bar(
    candles: Candles,
    job: Job,
    target: TargetSettings,
    name: str,
    time: BarTimes,
    *,
    horizon_bars: int,
    tied: int,
) -> DataError:
    if tied:
        why = f"none of {tied} has a label: close does not move over {horizon_bars} bars"
        do = f"Raise {target.farther}, or drop the symbol."
        return DataError(f"{candles.symbol} has no bar left in {name}", why=why, do=do)
    warmup = warmup_of(candles, job)
    if warmup and warmup * 2 > len(candles) and not time.holes.any():
        what = f"are the warm-up of {farthest_feature(job)}"
        do = (
            "Give more bars, or name features that look back less, such as --set"
            " data.features=log_return_1,bar_range."
        )
        if warmup > job.data.warmup:
            what, do = (
                "come before the columns' first values",
                "Fill the columns, or leave the symbol out of --symbols.",
            )
        why = f"of {len(candles)} bars the first {warmup} {what}"
        return DataError(f"{candles.symbol} has no bar left in {name}", why=why, do=do)
    why = (
        f"calendar {time.calendar} sees {int(time.holes.sum())} holes, "
        f"the longest unbroken stretch is {longest_stretch(time.holes)} bars, "
        f"and a forecast with its label takes {job.model.bars_seen + horizon_bars + 1}"
    )
    return DataError(
        f"{candles.symbol} has no bar left in {name}",
        why=why,
        do=(
            f"Lower {job.model.shorter}, give more bars, or set data.calendar (24x7, sessions, events, or an"
            " exchange's code)."
        ),
    )


def _fold_spans(candles: Candles, job: Job, *, embargo: int) -> tuple[Spans, ...]:
    try:
        return walk_forward(
            len(candles),
            folds=job.data.folds,
            validation_fraction=job.data.validation_fraction,
            test_fraction=job.data.test_fraction,
            embargo=embargo,
            first=warmup_of(candles, job),
        )
    except DataError as error:
        raise DataError(f"{candles.symbol}: {error.what}", why=error.why, do=error.do) from error


def refuse_large_batch(where: str, job: Job, available: int) -> None:
    """Raise DataError if an epoch has fewer windows, or chunks, than a batch."""
    kind = job.model.reads
    if job.train.batch > available:
        smaller = "1, lower model.chunk" if kind == CHUNKS else "auto"
        raise DataError(
            f"batch {job.train.batch} is larger than the {available} training {kind} of {where}",
            do=f"Set a smaller one, --set train.batch={smaller}, or give more bars.",
        )
