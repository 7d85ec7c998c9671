"""One split for several series: the instants at which validation and test of all begin. Numpy, no torch.

A model of several series must not learn the future of one from another, so all are split at the same
instants. The job's fractions are shares of the bars of all series; a single series gets its usual spans. The
embargo applies within each series and therefore between all: every training label, of any series, ends before
the instant at which validation begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from trainer.bars.cuts import Cut, KFoldCut, recent_cuts
from trainer.bars.series_plan import Plan
from trainer.bars.symbol_plan import plan_by_spans, warmup_of
from trainer.base.errors import DataError
from trainer.data.read.candles import Candles, merged, time_text
from trainer.data.splits import Spans, purged, walk_forward
from trainer.data.table import K_FOLD, DataSettings
from trainer.job.job import Job
from trainer.targets.target import TargetSettings


class Timeline:
    """The instants at which any of several series has a bar, and the number of series that have one there."""

    def __init__(self) -> None:
        self.instants, self.counts = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)

    def add(self, timestamps: np.ndarray) -> None:
        """Add a series' bars (T,) int64, ascending."""
        instants = merged(self.instants, timestamps)
        counts = np.zeros(len(instants), dtype=np.int64)
        counts[np.searchsorted(instants, self.instants)] += self.counts
        counts[np.searchsorted(instants, timestamps)] += 1
        self.instants, self.counts = instants, counts

    def cuts(self, data: DataSettings, *, purge: int) -> tuple[Cut, ...]:
        """Return the instants of each fold, oldest first; `purge`: how many bars of a series after a span
        belong to none. Raises DataError for too few bars.
        """
        if data.test_days and len(self.instants):
            try:
                return recent_cuts(int(self.instants[0]), int(self.instants[-1]), data)
            except DataError as error:
                raise DataError(f"all series together: {error.what}", why=error.why, do=error.do) from error
        ends = np.cumsum(self.counts)
        total = int(ends[-1]) if len(ends) else 0

        def instant(bar: int) -> int:
            return int(self.instants[np.searchsorted(ends, bar, side="right")])

        if data.split == K_FOLD:
            lost = purge * int(self.counts.max(initial=0))  # of a validation after the test, in bars of all
            return _k_fold_cuts(total, data, lost, instant)
        try:
            folds = walk_forward(
                total,
                folds=data.folds,
                validation_fraction=data.validation_fraction,
                test_fraction=data.test_fraction,
                embargo=0,
            )
        except DataError as error:
            raise DataError(f"all series together: {error.what}", why=error.why, do=error.do) from error
        if total and not len(folds[-1].test):
            raise DataError(
                f"all series together have {total} bars after the warm-up of their features",
                why=f"test is {data.test_fraction:g} of them: less than one",
                do="Give more bars, raise data.test_fraction, or name features that look back less.",
            )

        return tuple(
            Cut(
                validation=instant(spans.validation.start),
                test=instant(spans.test.start),
                stop=None if spans.test.stop == total else instant(spans.test.stop),
            )
            for spans in folds
            if total
        )


def _k_fold_cuts(
    total: int, data: DataSettings, lost: int, instant: Callable[[int], int]
) -> tuple[KFoldCut, ...]:
    """Return the instants of k folds, as `splits.k_fold` has their spans, of the bars of all series."""
    validation, cuts = int(total * data.validation_fraction), []
    for fold in range(data.folds if total else 0):
        start, stop = (total * edge // data.folds for edge in (fold, fold + 1))
        end, resumes = None if stop == total else instant(stop), None
        begin = start - validation
        if begin < 0 and end is not None:
            begin, resumes = start, instant(min(stop + validation + lost, total - 1))
        cuts.append(
            KFoldCut(validation=instant(max(0, begin)), test=instant(start), stop=end, resumes=resumes)
        )
    return tuple(cuts)


def reach_of(job: Job) -> int:
    """Return how many bars before it the inputs and the label of a bar go back, but for columns."""
    return max(job.data.warmup + job.model.bars_seen - 1, job.target.reach)


def purge_of(job: Job) -> int:
    """Return how many bars after a span of a k fold belong to none, at least."""
    return reach_of(job) + max(job.data.embargo, job.target.bars_ahead)


def plan_at(
    candles: Candles, job: Job, cuts: Sequence[Cut], *, target: TargetSettings | None = None
) -> tuple[Plan, ...]:
    """Return a symbol's plan for each fold, split at these instants. Raises DataError for a span without
    bars.

    `target` replaces the job's, which may leave settings open.
    """
    first = warmup_of(candles, job)

    def spans_of(embargo: int) -> list[Spans]:
        made = (cut.spans(candles.timestamp, embargo=embargo, first=first) for cut in cuts)
        return [purged(one, reach=reach_of(job), clear_of=candles.clear_of) for one in made]

    if len(candles) > first:
        _refuse_no_bars(candles, cuts, spans_of(0))
    return plan_by_spans(candles, job, spans_of, target=target)


def shortest_target(job: Job, chosen: Iterable[TargetSettings]) -> TargetSettings:
    """Return the target for all series: of those chosen for each, the one with the shortest horizon."""
    options = job.target.options()  # farthest first
    return options[max((options.index(one) for one in chosen), default=0)]


def _refuse_no_bars(candles: Candles, cuts: Sequence[Cut], folds: Sequence[Spans]) -> None:
    for cut, spans in zip(cuts, folds, strict=True):
        for name, span in spans.items():
            if not len(span) and not (name == "train" and len(spans.after)):
                first, last = (time_text(candles.timestamp[row]) for row in (0, -1))
                raise DataError(
                    f"{candles.symbol} has no bar in {name}",
                    why=(
                        f"pooled series are split at the same times: {cut.words}; it goes from {first} to"
                        f" {last}"
                    ),
                    do="Give bars of the same time, or leave the symbol out of --symbols.",
                )
