"""Plan a job's data once, and derive a symbol's windows from that plan. Numpy, no torch.

`plan_data` runs in the first process that reads the bars: the data check at a desk, or a training without a
plan. It holds one symbol at a time, except for a panel. Workers call `plans_of`, which chooses nothing and
refuses other bars or counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np

from trainer.bars.cuts import Cut
from trainer.bars.document import (
    MOST_NOTES,
    MOST_ORIGINS,
    DataPlan,
    FoldPlan,
    PlannedFile,
    RefusedSymbol,
    SymbolPlan,
    settings_of,
    target_values,
)
from trainer.bars.one_split import Timeline, plan_at, purge_of, shortest_target
from trainer.bars.panel_plan import calendar_of, plan_panel
from trainer.bars.series_plan import BarTimes, Plan
from trainer.bars.symbol_plan import follow, plan_folds, refuse_large_batch, warmup_of
from trainer.base.errors import DataError
from trainer.base.files import open_plain
from trainer.base.freed_memory import release_freed_memory
from trainer.base.symbols import MOST_SERIES
from trainer.base.text import some_of
from trainer.data.calendar import session_clock
from trainer.data.read.candles import Candles, bars_sha256, time_text
from trainer.data.read.opened import FileRead
from trainer.data.read.reading import CandleFolder
from trainer.job.job import Job
from trainer.job.pieces import kind_of
from trainer.targets.target import TargetSettings


def folder_of(job: Job, path: Path, *, scratch: Path, files: Collection[str] = ()) -> CandleFolder:
    """Return the job's candles at `path`. Raises DataError as `CandleFolder` does."""
    data = job.data
    return CandleFolder(
        path,
        scratch,
        symbols=data.chosen(()),
        exclude=data.exclude,
        timeframe=data.timeframe,
        bars=data.bars,
        columns=data.columns,
        files=files,
    )


def plan_data(job: Job, folder: CandleFolder) -> DataPlan:
    """Return the plan of every symbol of the job. Raises DataError if no symbol can be trained on, and for
    one model of too many.
    """
    _refuse_many(job, len(folder.symbols))
    job = job.with_data(timeframe=folder.timeframe, columns=job.data.columns_with(folder.index))
    if job.data.panel:
        planned = _plan_panel(job, folder)
    elif kind_of(job).one_split:
        planned = _plan_together(job, folder)
    else:
        planned = _plan_each(folder, folder.symbols, lambda candles: plan_folds(candles, job))
    release_freed_memory()  # of reading: whoever plans trains nothing
    symbols = {symbol: entry for symbol, entry in planned.items() if isinstance(entry, SymbolPlan)}
    refused = {symbol: entry for symbol, entry in planned.items() if isinstance(entry, RefusedSymbol)}
    if not symbols:
        raise _nothing_left([entry.error for entry in refused.values()])
    return DataPlan(
        made_for=settings_of(job),
        timeframe=folder.timeframe,
        inputs=job.data.inputs,
        synthetic=folder.synthetic,
        files=tuple(planned_file(read) for read in folder.files()),
        symbols=symbols,
        refused=refused,
        notes=(*_small_batches(job, symbols), *folder.notes)[:MOST_NOTES],
        origins=folder.origins[:MOST_ORIGINS],
    )


def _refuse_many(job: Job, symbols: int) -> None:
    """Raise DataError for a model of more symbols than its card may list."""
    if symbols > MOST_SERIES and (job.data.panel or kind_of(job).one_split):
        why = f"a model's card lists {MOST_SERIES:,} at most"
        do = "Name fewer with data.symbols, or train a model of each."
        raise DataError(f"one model of {symbols:,} symbols", why=why, do=do)


def _small_batches(job: Job, symbols: Mapping[str, SymbolPlan]) -> list[str]:
    """Return the note on models with less training data than the job's default batch, if there are any."""
    trained = [[entry] for entry in symbols.values()]
    if job.data.panel or kind_of(job).one_split:
        trained = [list(symbols.values())]
    reads = {
        some_of([entry.symbol for entry in entries], 3): min(
            sum(fold.num_reads for fold in folds)
            for folds in zip(*(one.folds for one in entries), strict=True)
        )
        for entries in trained
    }
    small = [f"{name} ({count:,})" for name, count in reads.items() if count < job.train.batch]
    if not small or job.target.acts:  # a rollout has its bars, in however many visits
        return []
    names = some_of(small, 3)
    return [f"the default batch of {job.train.batch} shrinks to the training {job.model.reads} of {names}"]


def plans_of(candles: Candles, job: Job, entry: SymbolPlan) -> tuple[Plan, ...]:
    """Return the symbol's plan for each fold, derived from the job's plan. Raises DataError for other bars or
    counts.
    """
    refuse_other_bars(candles, entry)
    return folds_of(candles, job, entry)


def folds_of(candles: Candles, job: Job, entry: SymbolPlan) -> tuple[Plan, ...]:
    """Return `plans_of` of candles whose bars are known to be the plan's; prices that the target does not
    read may be gone.
    """
    hole = np.zeros(len(candles), dtype=bool)
    for start, stop in entry.holes:
        hole[start:stop] = True
    clock = session_clock(candles.timestamp, candles.timeframe, entry.calendar)
    time = BarTimes(calendar=entry.calendar, clock=clock, holes=hole, breaks=hole)
    return _follow(candles, job, entry, time, target=entry.target_of(job))


def plans_of_panel(
    panel: Mapping[str, Candles], job: Job, entries: Sequence[SymbolPlan]
) -> dict[str, tuple[Plan, ...]]:
    """Return the plans of a panel's series by symbol, derived from the job's plan. Raises DataError as
    `plans_of` does.
    """
    calendar = calendar_of(panel.values(), job.data.calendar, next(iter(panel.values())).timeframe)
    target, plans = entries[0].target_of(job), {}
    for entry in entries:
        candles = panel[entry.symbol]
        refuse_other_bars(candles, entry)
        plans[entry.symbol] = _follow(candles, job, entry, calendar.times(candles), target=target)
    return plans


def _follow(
    candles: Candles, job: Job, entry: SymbolPlan, time: BarTimes, *, target: TargetSettings
) -> tuple[Plan, ...]:
    folds = [fold.spans for fold in entry.folds]
    plans = follow(candles, job, time, target, horizon_bars=entry.horizon_bars, folds=folds)
    _refuse_other_windows(plans, entry)
    return plans


def refuse_other_bars(candles: Candles, entry: SymbolPlan) -> None:
    """Raise DataError unless the candles have the bars of the plan."""
    symbol = candles.symbol
    if len(candles) != entry.bars or bars_sha256(candles) != entry.sha256:
        raise DataError(
            f"the bars of {symbol} are not those that were planned",
            why=(
                f"there are {len(candles)} to {time_text(candles.timestamp[-1])}; the plan has {entry.bars}"
                f" to {entry.last}"
            ),
            do="Plan again: leave --plan out.",
        )


def _refuse_other_windows(plans: Sequence[Plan], entry: SymbolPlan) -> None:
    for number, (plan, fold) in enumerate(zip(plans, entry.folds, strict=True), 1):
        if (counted := _fold(plan)) != fold:
            raise DataError(
                f"fold {number} of {entry.symbol} has other windows than its plan",
                why=(
                    f"{dict(counted.bars)} and {counted.chunks} chunks; the plan has {dict(fold.bars)} and"
                    f" {fold.chunks}"
                ),
                do="Plan again: leave --plan out.",
            )


def _plan_each(
    folder: CandleFolder, symbols: Iterable[str], plan: Callable[[Candles], tuple[Plan, ...]]
) -> dict[str, SymbolPlan | RefusedSymbol]:
    """Plan each symbol by itself; its candles are freed before the next is read."""
    return {symbol: _plan_one(symbol, folder, plan) for symbol in symbols}


def _plan_one(
    symbol: str, folder: CandleFolder, plan: Callable[[Candles], tuple[Plan, ...]]
) -> SymbolPlan | RefusedSymbol:
    bars = 0
    try:
        candles = folder.read(symbol)
        bars = len(candles)
        plans = plan(candles)
    except DataError as error:
        return RefusedSymbol(symbol=symbol, bars=bars, what=error.what, why=error.why, do=error.do)
    return entry_of(candles, plans)


def _plan_together(job: Job, folder: CandleFolder) -> dict[str, SymbolPlan | RefusedSymbol]:
    """Plan all symbols with one split and one target: that of the symbol with the shortest possible
    horizon. Those that are refused have no part in the split: the others are planned again without them.
    """
    planned: dict[str, SymbolPlan | RefusedSymbol] = {}
    symbols: Sequence[str] = folder.symbols
    while True:
        cuts = _cuts(job, folder, symbols)
        made = _plan_each(folder, symbols, partial(plan_at, job=job, cuts=cuts))
        planned |= made
        refused = [entry for entry in made.values() if isinstance(entry, RefusedSymbol)]
        if len(refused) == len(made) or not any(entry.bars > job.data.warmup for entry in refused):
            break  # the split counts no bar of theirs
        symbols = [symbol for symbol, entry in made.items() if isinstance(entry, SymbolPlan)]
    chosen = {
        symbol: entry.target_of(job) for symbol, entry in planned.items() if isinstance(entry, SymbolPlan)
    }
    shortest = shortest_target(job, chosen.values())
    others = [symbol for symbol, target in chosen.items() if target != shortest]
    planned |= _plan_each(folder, others, partial(plan_at, job=job, cuts=cuts, target=shortest))
    entries = [entry for entry in planned.values() if isinstance(entry, SymbolPlan)]
    for number in range(job.data.folds if entries else 0):
        where = f"fold {number + 1} of all series" if job.data.folds > 1 else "all series"
        refuse_large_batch(where, job, sum(entry.folds[number].num_reads for entry in entries))
    return planned


def _cuts(job: Job, folder: CandleFolder, symbols: Iterable[str]) -> tuple[Cut, ...]:
    """Return the instants at which all these series of a job are split, by their bars after the warm-up.
    Reads one at a time.
    """
    timeline = Timeline()
    for symbol in symbols:
        with suppress(DataError):  # reported when this symbol is planned
            candles = folder.read(symbol)
            timeline.add(candles.timestamp[warmup_of(candles, job) :])
    return timeline.cuts(job.data, purge=purge_of(job))


def _plan_panel(job: Job, folder: CandleFolder) -> dict[str, SymbolPlan | RefusedSymbol]:
    """Plan all series of a panel, which are in memory together, as in training.

    Raises DataError for the first series that can't be read: without it, the panel would be a different one.
    """
    panel: dict[str, Candles] = {}
    for symbol in folder.symbols:
        try:
            panel[symbol] = folder.read(symbol)
        except DataError as error:
            do = f"{error.do} Or leave the symbol out: --set data.exclude={symbol}."
            raise DataError(error.what, why=error.why, do=do.strip()) from error
    plans = plan_panel(panel, job)
    return {symbol: entry_of(candles, plans[symbol]) for symbol, candles in panel.items()}


def _nothing_left(errors: Sequence[DataError]) -> DataError:
    """Return the error for a job without a usable symbol: that of its only symbol, or of the first ones."""
    if len(errors) == 1:
        return errors[0]
    why = "; ".join(f"{error.what}: {error.why}" if error.why else error.what for error in errors[:3]) + (
        "; ..." if len(errors) > 3 else ""
    )
    return DataError(f"none of the {len(errors)} symbols can be trained on", why=why, do=errors[0].do)


def entry_of(candles: Candles, plans: Sequence[Plan]) -> SymbolPlan:
    """Return a symbol's entry in plan.json from its plan for each fold."""
    last = plans[-1]
    edges = np.flatnonzero(np.diff(np.concatenate([[False], last.time.holes, [False]])))
    return SymbolPlan(
        symbol=candles.symbol,
        files=candles.files,
        rows=candles.file_rows,
        bars=len(candles),
        first=time_text(candles.timestamp[0]),
        last=time_text(candles.timestamp[-1]),
        sha256=bars_sha256(candles),
        calendar=last.time.calendar,
        holes=tuple((int(start), int(stop)) for start, stop in edges.reshape(-1, 2)),
        target=target_values(last.target),
        horizon_bars=last.horizon_bars,
        folds=tuple(_fold(plan) for plan in plans),
    )


def _fold(plan: Plan) -> FoldPlan:
    return FoldPlan(
        spans=plan.spans,
        bars={name: len(rows) for name, rows in plan.bars.items()},
        ties=plan.ties,
        chunks=0 if plan.chunks is None else len(plan.chunks),
    )


def planned_file(read: FileRead) -> PlannedFile:
    """Return the plan's entry of a file that was read, with its size and hash."""
    with open_plain(read.path) as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    return PlannedFile(
        file=read.file,
        bytes=read.path.stat().st_size,
        sha256=sha256,
        bars=read.bars,
        symbols=tuple(sorted(read.symbols)),
    )
