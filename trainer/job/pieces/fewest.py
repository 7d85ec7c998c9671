"""The fewest bars that a series can be trained on: for the plan of its bars, and for a desk that knows only
their number.
"""

from __future__ import annotations

from trainer.base.errors import DataError
from trainer.base.text import counted
from trainer.data.feature_names import lookback_of, warmup_of_features
from trainer.data.splits import split
from trainer.job.job import Job
from trainer.job.pieces import kind_of
from trainer.targets.target import TargetSettings


def first_bar(job: Job, target: TargetSettings, warmup: int) -> int:
    """Return the first bar with enough bars before it for the model and the label."""
    return max(warmup + job.model.bars_seen - 1, target.reach)


def farthest_feature(job: Job) -> str:
    """Return the feature that looks back farthest, or the user's file of features, for messages."""
    timeframe, own = job.data.timeframe or "1m", job.data.own
    if own and own.lookback > warmup_of_features(job.data.computed, timeframe):
        return own.base_name
    return max(job.data.computed, key=lambda name: lookback_of(name, timeframe), default="the features")


def too_few(
    symbol: str, bars: int, job: Job, *, target: TargetSettings | None = None, warmup: int | None = None
) -> DataError | None:
    """Return the error for a series without room for one label, None for a longer one.

    `target` replaces the job's, `warmup` that of its features, which columns may outlast.
    """
    target, warmup = target or job.target, job.data.warmup if warmup is None else warmup
    needed = first_bar(job, target, warmup) + 1 + target.bars_ahead
    if bars >= needed:
        return None
    before = f"that {farthest_feature(job)} looks back"
    if warmup > job.data.warmup:
        before = "before the columns' first values"
    model = f"{job.model.bars_seen} that the model sees"
    why = f"one label needs {needed}: {warmup} {before}, {model}, {target.bars_ahead} or more ahead"
    do = f"Give more bars, lower {job.model.shorter}, or leave the symbol out of --symbols."
    return DataError(f"{symbol} has {counted(bars, 'bar')}", why=why, do=do)


def empty_span(symbol: str, bars: int, job: Job) -> DataError | None:
    """Return the error for a series with a span that has no labelled bar, even without holes; None for any
    other.

    For one split of one series by shares, not for folds or series that are split together.
    """
    if job.data.folds > 1 or kind_of(job).one_split or job.data.test_days:
        return None
    warmup, ahead = job.data.warmup, job.target.bars_ahead
    shares = {"validation_fraction": job.data.validation_fraction, "test_fraction": job.data.test_fraction}
    spans = split(bars, **shares, embargo=max(job.data.embargo, ahead), first=warmup)
    for name, span in spans.items():
        if span.stop - ahead > max(span.start, first_bar(job, job.target, warmup)):
            continue
        warm = f"the first {warmup} are the warm-up of {farthest_feature(job)}; " if warmup else ""
        sees = f"the model sees {job.model.bars_seen}, a label takes {ahead} more"
        why = f"of {bars} bars {warm}{len(span)} are left for {name}, {sees}"
        shorter = "such as --set data.features=log_return_1,bar_range"
        do = f"Give more bars, or name features that look back less, {shorter}."
        return DataError(f"{symbol} has no bar left in {name}", why=why, do=do)
    return None
