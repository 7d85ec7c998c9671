"""Plan a symbol by its job: the spans of each fold, the target with its horizon, and the bars of each span.

Each fold has its own model, which trains on everything older than its validation and test, or with
data.split = kfold on both sides of them; its test follows that of the previous fold. A single fold, and the
last of several, is the job's split. `series_plan` has the rule for the bars of a span.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from trainer.bars.cuts import recent_cuts
from trainer.bars.series_plan import (
    BarTimes,
    Labelled,
    Plan,
    bars_for_labels,
    choose_target,
    label_bars,
    lay_out,
    longest_stretch,
    times_of,
)
from trainer.base.errors import DataError
from trainer.base.settings import CHUNKS
from trainer.base.text import counted
from trainer.data.read.candles import Candles
from trainer.data.splits import Spans, k_fold, walk_forward
from trainer.data.table import K_FOLD
from trainer.job.job import Job
from trainer.job.pieces.fewest import farthest_feature, too_few
from trainer.targets.target import TargetSettings

SpansOf = Callable[[int], Sequence[Spans]]  # from an embargo in bars to the spans of each fold, oldest first


def plan_folds(candles: Candles, job: Job) -> tuple[Plan, ...]:
    """Return a symbol's plan for each fold, oldest first. Raises DataError for a span without bars, or too
    few for a batch.
    """
    plans = plan_by_spans(candles, job, _spans_of(candles, job, warmup_of(candles, job)))
    for fold, plan in enumerate(plans, 1):
        where = f"fold {fold} of {candles.symbol}" if job.data.folds > 1 else candles.symbol
        refuse_large_batch(where, job, plan.num_reads)
    return plans


def plan_symbol(candles: Candles, job: Job, *, warmup: int | None = None) -> Plan:
    """Return a symbol's plan of its last fold. `warmup` replaces the job's warm-up. Raises DataError."""
    warmup = warmup_of(candles, job) if warmup is None else warmup
    return plan_by_spans(candles, job, _spans_of(candles, job, warmup), warmup=warmup)[-1]


def plan_by_spans(
    candles: Candles,
    job: Job,
    spans_of: SpansOf,
    *,
    warmup: int | None = None,
    target: TargetSettings | None = None,
) -> tuple[Plan, ...]:
    """Return a symbol's plan for each fold: holes, labels, spans and valid bars. Raises DataError for a span
    without valid bars.

    The last fold's target holds for all, since scores are averaged over folds. The embargo between spans is
    the job's, or the longest label if that is longer. `target` replaces the job's target.
    """
    refuse_empty_columns(candles)
    warmup = warmup_of(candles, job) if warmup is None else warmup
    target = target or job.target
    if error := too_few(candles.symbol, len(candles), job, target=target, warmup=warmup):
        raise error
    test = spans_of(max(job.data.embargo, target.bars_ahead))[-1].test
    try:
        time = times_of(candles.timestamp, candles.timeframe, job.data.calendar)
    except DataError as error:
        raise DataError(f"{candles.symbol}: {error.what}", why=error.why, do=error.do) from error
    reads = {"warmup": warmup, "bars_seen": job.model.bars_seen}
    chosen = choose_target(
        target,
        lambda option: label_bars(candles, option, time, **reads).num_separate(test),
        series=candles.symbol,
        shorter=job.model.shorter,
        test_key=job.data.test_key,
        bars=len(candles),
        bars_needed=warmup + bars_for_labels(time.clock, job.data.shares_of(len(candles))[1]),
        remark=f"; the series has {counted(int(time.holes.sum()), 'hole')}",
    )
    labelled = label_bars(candles, chosen, time, **reads)
    horizon_bars = max(target.bars_ahead, labelled.longest)
    folds = spans_of(max(job.data.embargo, horizon_bars))
    plans = lay_out(candles, labelled, time, folds, job=job, warmup=warmup, horizon_bars=horizon_bars)
    for plan in plans:
        _refuse_empty_spans(candles, job, plan, labelled)
        what, why = chosen.flaw(plan.labels_TK[plan.bars["train"]])
        if what:
            do = f"Give more bars, or another {target.farther}."
            raise DataError(f"{candles.symbol} has {what}", why=why, do=do)
    return plans


def follow(
    candles: Candles,
    job: Job,
    time: BarTimes,
    target: TargetSettings,
    *,
    horizon_bars: int,
    folds: Sequence[Spans],
) -> tuple[Plan, ...]:
    """Return a series' plans for given spans, `folds`, and a chosen target, as in an existing plan.

    A span may have no bar. Raises DataError for an encoder that has seen validation.
    """
    warmup = warmup_of(candles, job)
    labelled = label_bars(candles, target, time, warmup=warmup, bars_seen=job.model.bars_seen)
    return lay_out(candles, labelled, time, folds, job=job, warmup=warmup, horizon_bars=horizon_bars)


def warmup_of(candles: Candles, job: Job) -> int:
    """Return the number of unusable rows at the head of a series: some input has no value there."""
    return max(job.data.warmup, candles.columns_begin)


def refuse_empty_columns(candles: Candles) -> None:
    """Raise DataError for a column without any value."""
    for name, values in candles.columns.items():
        if np.isnan(values).all():
            do = "Fill the column, or leave the symbol out of --symbols."
            raise DataError(
                f"{candles.symbol} has no value of {name}", why="every cell of the column is empty", do=do
            )


def refuse_large_batch(where: str, job: Job, available: int) -> None:
    """Raise DataError if an epoch has fewer windows, or chunks, than a batch that is not the default, or than
    an agent's rollout has bars in a lane.

    A default batch shrinks to the data instead: an epoch is one step, and the plan has a note.
    """
    kind = job.model.reads
    bars = job.reads_of_step // job.agent.lanes if job.target.acts else 0
    if available < bars:
        raise DataError(
            f"a rollout has {bars} bars in each lane, more than the {available} training {kind} of {where}",
            do="Raise agent.lanes, lower train.batch, or give more bars.",
        )
    if available < job.train.batch != job.model.default_batch:
        smaller = "1, lower model.chunk" if kind == CHUNKS else "auto"
        raise DataError(
            f"batch {job.train.batch} is larger than the {available} training {kind} of {where}",
            do=f"Set a smaller one, --set train.batch={smaller}, or give more bars.",
        )


def _spans_of(candles: Candles, job: Job, warmup: int) -> SpansOf:
    def spans_of(embargo: int) -> tuple[Spans, ...]:
        try:
            if job.data.test_days and warmup < len(candles):
                times = candles.timestamp
                cuts = recent_cuts(int(times[warmup]), int(times[-1]), job.data)
                return tuple(cut.spans(times, embargo=embargo, first=warmup) for cut in cuts)
            if job.data.split == K_FOLD:
                return k_fold(
                    len(candles),
                    folds=job.data.folds,
                    validation_fraction=job.data.validation_fraction,
                    embargo=embargo,
                    reach=max(min(warmup, job.data.warmup) + job.model.bars_seen - 1, job.target.reach),
                    first=warmup,
                    clear_of=candles.clear_of,
                )
            return walk_forward(
                len(candles),
                folds=job.data.folds,
                validation_fraction=job.data.validation_fraction,
                test_fraction=job.data.test_fraction,
                embargo=embargo,
                first=warmup,
            )
        except DataError as error:
            raise DataError(f"{candles.symbol}: {error.what}", why=error.why, do=error.do) from error

    return spans_of


def _refuse_empty_spans(candles: Candles, job: Job, plan: Plan, labelled: Labelled) -> None:
    """Raise DataError for a span without a valid bar."""
    for name, span in plan.spans.items():
        if not len(plan.bars[name]):
            why, do = _why_empty(candles, job, plan, name, tied=len(labelled.within(span)))
            raise DataError(f"{candles.symbol} has no bar left in {name}", why=why, do=do)


def _why_empty(candles: Candles, job: Job, plan: Plan, name: str, *, tied: int) -> tuple[str, str]:
    """Return why a span, with `tied` bars whose price does not move, has no valid bar, and what to do."""
    time, warmup = plan.time, plan.warmup
    if tied:
        why = f"none of {tied} has a label: close does not move over {plan.horizon_bars} bars"
        return why, f"Raise {plan.target.farther}, or drop the symbol."
    if warmup and warmup * 2 > len(candles) and not time.holes.any():
        why = f"of {len(candles)} bars the first {warmup}"
        if warmup > job.data.warmup:
            do = "Fill the columns, or leave the symbol out of --symbols."
            return f"{why} come before the columns' first values", do
        do = "Give more bars, or name features that look back less"
        return (
            f"{why} are the warm-up of {farthest_feature(job)}",
            f"{do}, such as --set data.features=log_return_1,bar_range.",
        )
    sees, ahead, span = job.model.bars_seen, plan.horizon_bars, dict(plan.spans.items())[name]
    room = span.stop - max(span.start, plan.first_row, plan.target.reach)
    if room <= ahead and not (name == "train" and len(plan.spans.after)):
        apart = "" if name == "test" else f", with {max(job.data.embargo, ahead)} before the next span"
        why = f"of {len(candles)} bars {len(span)} are left for it{apart}"
        do = f"Give more bars, lower {job.model.shorter}, or another {plan.target.farther}."
        return f"{why}; the model sees {sees}, a label {ahead} more", do
    why = (
        f"calendar {time.calendar} sees {counted(int(time.holes.sum()), 'hole')}, "
        f"the longest unbroken stretch is {longest_stretch(time.holes)} bars, "
        f"and a forecast with its label takes {sees + ahead + 1}"
    )
    do = "give more bars, or set data.calendar (24x7, sessions, events, or an exchange's code)"
    return why, f"Lower {job.model.shorter}, {do}."
