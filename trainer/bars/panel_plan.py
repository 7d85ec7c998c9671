"""Plan a panel: one calendar for all series, one split by date, and the bars of each series that train,
validate and test.

The calendar has the dates (instants) at which any series has a bar. Features, labels and scores use the bars
of a series; windows are cut out of its dates, from its first bar to its last, with a masked row for each
missing day. So

- a window may include missing days, and begins after the warm-up of the series' own features;
- a label may not: over a missing day it would have another horizon;
- neither may include a break of the calendar itself (the exchange is closed for a week:
  `trainer/data/calendar.py`).

A series may have no bar in a span, or in any: it begins later, ends earlier, or is short. It still counts in
the ranks of its dates. Shapes: T bars of a series, D dates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trainer.bars.cuts import Cut
from trainer.bars.one_split import Timeline, purge_of, reach_of
from trainer.bars.series_plan import (
    BarTimes,
    Labelled,
    Plan,
    bars_for_labels,
    choose_target,
    label_bars,
    lay_out,
    times_of,
)
from trainer.bars.symbol_plan import refuse_empty_columns, refuse_large_batch, warmup_of
from trainer.base.errors import DataError
from trainer.data.read.candles import Candles, time_text
from trainer.data.splits import Span, Spans, purged
from trainer.data.table import K_FOLD, RANK
from trainer.job.job import Job
from trainer.targets.target import TargetSettings


@dataclass(frozen=True, kw_only=True)
class PanelCalendar:
    """The dates of a panel, oldest first. Their holes are breaks of the calendar."""

    instants: np.ndarray  # (D,) int64 ns UTC
    time: BarTimes  # of the dates

    def dates(self, candles: Candles) -> np.ndarray:
        """Return the number (T,) int64 of each bar's date."""
        return np.asarray(np.searchsorted(self.instants, candles.timestamp))

    def times(self, candles: Candles) -> BarTimes:
        """Return the times of a series, whose rows are the dates from its first bar to its last."""
        dates = self.dates(candles)
        rows, passed = dates - dates[0], np.cumsum(self.time.breaks)[dates]
        is_missing = np.diff(rows, prepend=0) > 1
        is_broken = np.diff(passed, prepend=passed[0]) > 0
        return BarTimes(
            calendar=self.time.calendar,
            clock=self.time.clock[dates],
            holes=is_missing | is_broken,
            breaks=self.time.breaks[dates[0] : dates[-1] + 1],
            rows=rows,
        )


def calendar_of(panel: Iterable[Candles], calendar: str, timeframe: str) -> PanelCalendar:
    """Return the calendar of all series. `calendar` is a value of data.calendar.

    Raises DataError if the bars do not fit the named exchange.
    """
    timeline = Timeline()
    for candles in panel:
        timeline.add(candles.timestamp)
    return PanelCalendar(instants=timeline.instants, time=times_of(timeline.instants, timeframe, calendar))


def plan_panel(panel: Mapping[str, Candles], job: Job) -> dict[str, tuple[Plan, ...]]:
    """Return the plans of each series for each fold. Raises DataError for series without common dates, or an
    empty span.
    """
    calendar = calendar_of(panel.values(), job.data.calendar, next(iter(panel.values())).timeframe)
    _refuse_strangers(panel, calendar)
    usable = Timeline()
    for candles in panel.values():
        refuse_empty_columns(candles)
        usable.add(candles.timestamp[warmup_of(candles, job) :])
    cuts = usable.cuts(job.data, purge=purge_of(job))
    if not cuts:
        most = max(map(len, panel.values()))
        raise DataError(
            "no series of the panel is longer than the warm-up of its features",
            why=f"the longest has {most} bars, and features look back {job.data.warmup}",
            do=(
                "Give more bars, or name features that look back less, such as --set"
                " data.features=log_return_1,bar_range."
            ),
        )
    target = _choose_target(panel, job, calendar, cuts[-1])
    labelled = {symbol: _label(candles, job, target, calendar) for symbol, candles in panel.items()}
    horizon = max(target.bars_ahead, *(one.longest for one in labelled.values()))
    dated = [cut.spans(calendar.instants, embargo=max(job.data.embargo, horizon)) for cut in cuts]
    folds = [_in_series(spans, panel, job, calendar) for spans in dated]
    made = {
        symbol: lay_out(
            candles,
            labelled[symbol],
            calendar.times(candles),
            [its[symbol] for its in folds],
            job=job,
            warmup=warmup_of(candles, job),
            horizon_bars=horizon,
        )
        for symbol, candles in panel.items()
    }
    for number, cut in enumerate(cuts):
        _refuse_empty(job, [plans[number] for plans in made.values()], cut, fold=number + 1)
    return made


def _label(candles: Candles, job: Job, target: TargetSettings, calendar: PanelCalendar) -> Labelled:
    warmup, seen = warmup_of(candles, job), job.model.bars_seen
    return label_bars(candles, target, calendar.times(candles), warmup=warmup, bars_seen=seen)


def _choose_target(
    panel: Mapping[str, Candles], job: Job, calendar: PanelCalendar, cut: Cut
) -> TargetSettings:
    """Return the target with open settings chosen: the farthest option for which any series has enough test
    labels.

    All are tested on one calendar, so the series that covers it best determines how many labels fit.
    """
    test = cut.spans(calendar.instants, embargo=0)

    def num_separate(option: TargetSettings) -> int:
        return max(
            _label(candles, job, option, calendar).num_separate(_in_bars(test, calendar.dates(candles)).test)
            for candles in panel.values()
        )

    return choose_target(
        job.target,
        num_separate,
        series="the panel's best series",
        shorter=job.model.shorter,
        test_key=job.data.test_key,
        bars=len(calendar.instants),
        bars_needed=bars_for_labels(calendar.time.clock, job.data.shares_of(len(calendar.instants))[1]),
    )


def _in_bars(spans: Spans, dates: np.ndarray, *, first: int = 0) -> Spans:
    """Return spans in dates as spans in a series' bars. Training begins at its bar `first`."""
    places = {
        name: [int(place) for place in np.searchsorted(dates, (span.start, span.stop))]
        for name, span in (*spans.items(), ("after", spans.after))
    }
    places["train"][0] = min(first, places["train"][1])
    return Spans(**{name: Span(start=start, stop=stop) for name, (start, stop) in places.items()})


def _in_series(
    dated: Spans, panel: Mapping[str, Candles], job: Job, calendar: PanelCalendar
) -> dict[str, Spans]:
    """Return a fold's spans in dates as spans in the bars of each series, purged.

    A rank is of all series of its date. So with ranks, what follows the test begins where no series has a
    value of bars before it, not only the series itself: one with few bars looks back over more dates.
    """
    made = {}
    for symbol, candles in panel.items():
        spans = _in_bars(dated, calendar.dates(candles), first=warmup_of(candles, job))
        made[symbol] = purged(spans, reach=reach_of(job), clear_of=candles.clear_of)
    if job.data.scaler != RANK or job.data.split != K_FOLD:
        return made
    follows = dated.validation.start >= dated.test.stop
    validation, after = (_ranked_from(span, panel, job, calendar) for span in (dated.validation, dated.after))
    for symbol, spans in made.items():
        dates = calendar.dates(panel[symbol])
        held_out = _from_date(spans.validation, validation, dates) if follows else spans.validation
        rest = _from_date(spans.after, after, dates)
        made[symbol] = replace(spans, validation=held_out, after=rest if len(rest) else Span(start=0, stop=0))
    return made


def _ranked_from(span: Span, panel: Mapping[str, Candles], job: Job, calendar: PanelCalendar) -> int:
    """Return the first date of a span in dates at which no window has a rank of bars before the span."""
    clear = span.start
    for candles in panel.values():
        dates = calendar.dates(candles)
        begin = int(np.searchsorted(dates, span.start))
        end = min(candles.clear_of(begin) + (job.data.warmup if begin else 0), len(candles))
        if end > begin:
            clear = max(clear, int(dates[end - 1]) + 1)
    return clear + job.model.bars_seen - 1


def _from_date(span: Span, date: int, dates: np.ndarray) -> Span:
    """Return a span in bars from a date on."""
    begin = min(max(span.start, int(np.searchsorted(dates, date))), span.stop)
    return Span(start=begin, stop=span.stop)


def _refuse_strangers(panel: Mapping[str, Candles], calendar: PanelCalendar) -> None:
    """Raise DataError for a panel of one series, and for a series without a date in common with another."""
    if len(panel) < 2:
        raise DataError(
            f"the panel has one series, {next(iter(panel))}",
            why="a panel compares several on each date",
            do="Give more symbols, or leave data.panel out.",
        )
    counts = np.zeros(len(calendar.instants), dtype=np.int64)
    for candles in panel.values():
        counts[calendar.dates(candles)] += 1
    shared = calendar.instants[counts > 1]
    beside = "no two series share any"
    if len(shared):
        beside = f"others share dates from {time_text(shared[0])} to {time_text(shared[-1])}"
    for symbol, candles in panel.items():
        if counts[calendar.dates(candles)].max() < 2:
            first, last = time_text(candles.timestamp[0]), time_text(candles.timestamp[-1])
            raise DataError(
                f"{symbol} has no date in common with another series",
                why=f"it has {len(candles)} bars from {first} to {last}; {beside}",
                do="Give bars of the same dates, whose times agree, or leave it out with data.exclude.",
            )


def _refuse_empty(job: Job, plans: Sequence[Plan], cut: Cut, *, fold: int) -> None:
    """Raise DataError if no series has a bar in a span, the training labels have a flaw, or an epoch is below
    a batch.
    """
    where = f"fold {fold} of the panel" if job.data.folds > 1 else "the panel"
    for name in plans[0].bars:
        if not sum(len(plan.bars[name]) for plan in plans):
            needs = f"the model sees {job.model.bars_seen} dates after a warm-up of {job.data.warmup} bars"
            raise DataError(
                f"{where} has no bar left in {name}",
                why=f"{cut.words}; {needs}, and a label reads {plans[0].horizon_bars} bars ahead",
                do=f"Lower {job.model.shorter}, give more bars, or name features that look back less.",
            )
    target = plans[0].target
    labels_NK = np.concatenate([plan.labels_TK[plan.bars["train"]] for plan in plans])
    what, why = target.flaw(labels_NK)
    if what:
        raise DataError(f"{where} has {what}", why=why, do=f"Give more bars, or another {target.farther}.")
    refuse_large_batch(where, job, sum(plan.num_reads for plan in plans))
