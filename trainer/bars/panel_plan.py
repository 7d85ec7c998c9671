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
from dataclasses import dataclass

import numpy as np

from trainer.bars.one_split import Cut, Timeline
from trainer.bars.symbol_plan import (
    FEWEST_TEST_LABELS,
    BarTimes,
    Labelled,
    Plan,
    chunk_grid,
    clear_of_holes,
    count_separate,
    refuse_empty_columns,
    refuse_large_batch,
    refuse_late_encoder,
    warmup_of,
)
from trainer.base.errors import DataError
from trainer.base.settings import CHUNKS
from trainer.data.calendar import holes, infer_calendar, session_clock
from trainer.data.read.candles import Candles, time_text
from trainer.data.splits import Span, Spans
from trainer.job.job import Job
from trainer.targets.target import TargetSettings


@dataclass(frozen=True, kw_only=True)
class PanelCalendar:
    """The dates of a panel, oldest first."""

    name: str
    instants: np.ndarray  # (D,) int64 ns UTC
    breaks: np.ndarray  # (D,) bool: the calendar has a hole before this date
    clock: np.ndarray  # (D,) `calendar.session_clock`

    def dates(self, candles: Candles) -> np.ndarray:
        """Return the number (T,) int64 of each bar's date."""
        return np.asarray(np.searchsorted(self.instants, candles.timestamp))

    def spans(self, cut: Cut, *, embargo: int) -> Spans:
        """Return the spans of a fold in dates; the embargo, in dates, is taken from the older span."""
        validation, test = (
            int(np.searchsorted(self.instants, instant)) for instant in (cut.validation, cut.test)
        )
        stop = len(self.instants) if cut.stop is None else int(np.searchsorted(self.instants, cut.stop))
        return Spans(
            train=Span(start=0, stop=max(0, validation - embargo)),
            validation=Span(start=validation, stop=max(validation, test - embargo)),
            test=Span(start=test, stop=stop),
        )


def calendar_of(panel: Iterable[Candles], calendar: str, timeframe: str) -> PanelCalendar:
    """Return the calendar of all series. `calendar` is a value of data.calendar, which may be `auto`.

    Raises DataError if the bars do not fit the named exchange.
    """
    timeline = Timeline()
    for candles in panel:
        timeline.add(candles.timestamp)
    instants = timeline.instants
    name = infer_calendar(instants, timeframe) if calendar == "auto" else calendar
    return PanelCalendar(
        name=name,
        instants=instants,
        breaks=holes(instants, timeframe, name),
        clock=session_clock(instants, timeframe, name),
    )


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
    cuts = usable.cuts(job)
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
    target = _chosen(panel, job, calendar, cuts[-1])
    labelled = {symbol: _label(candles, job, target, calendar) for symbol, candles in panel.items()}
    ahead = (int((one.ends[one.bars] - one.bars).max(initial=0)) for one in labelled.values())
    horizon = max(target.bars_ahead, *ahead)
    folds = [calendar.spans(cut, embargo=max(job.data.embargo, horizon)) for cut in cuts]
    made = {}
    for symbol, candles in panel.items():
        spans = [_of_series(calendar.dates(candles), one, first=warmup_of(candles, job)) for one in folds]
        made[symbol] = _lay_out(candles, job, calendar, labelled[symbol], folds=spans, horizon_bars=horizon)
    for number, cut in enumerate(cuts):
        _refuse_empty(job, [plans[number] for plans in made.values()], cut, fold=number + 1)
    return made


def follow_panel(
    panel: Mapping[str, Candles],
    job: Job,
    *,
    target: TargetSettings,
    horizon_bars: int,
    folds: Mapping[str, Sequence[Spans]],
) -> dict[str, tuple[Plan, ...]]:
    """Return the plans of each series for given spans, `folds`, and a chosen target, as in an
    existing plan.
    """
    timeframe = next(iter(panel.values())).timeframe
    calendar = calendar_of(panel.values(), job.data.calendar, timeframe)
    return {
        symbol: _lay_out(
            candles,
            job,
            calendar,
            _label(candles, job, target, calendar),
            folds=folds[symbol],
            horizon_bars=horizon_bars,
        )
        for symbol, candles in panel.items()
    }


def first_row(dates: np.ndarray, warmup: int, bars_seen: int) -> int:
    """Return the first row of a series whose inputs are complete. Rows count dates from the series' first."""
    rows = dates - dates[0]
    return int(rows[warmup] if warmup < len(rows) else rows[-1] + 1) + bars_seen - 1


def _label(candles: Candles, job: Job, target: TargetSettings, calendar: PanelCalendar) -> Labelled:
    """Return the labels of a series, and the bars with complete inputs and a label without a missing day."""
    dates, warmup, seen = calendar.dates(candles), warmup_of(candles, job), job.model.bars_seen
    rows = dates - dates[0]
    bars = np.flatnonzero(rows >= first_row(dates, warmup, seen))
    bars = bars[bars >= target.reach]
    if not len(bars):
        none = np.full((len(candles), target.label_columns), np.nan, dtype=np.float32)
        return Labelled(
            target=target, labels_TK=none, ends=np.full(len(candles), -1, dtype=np.int64), bars=bars
        )
    labels = target.label(candles, calendar.clock[dates])
    ends = labels.ends_T
    unbroken = ends if labels.unbroken_T is None else labels.unbroken_T
    bars = bars[ends[bars] >= 0]
    breaks = _breaks(dates, calendar)
    bars = bars[clear_of_holes(breaks | _missing(dates), bars + 1, unbroken[bars])]
    bars = bars[clear_of_holes(breaks, bars - target.reach, bars)]
    bars = bars[clear_of_holes(calendar.breaks, dates[bars] - seen + 1, dates[bars])]
    return Labelled(target=target, labels_TK=labels.values_TK, ends=ends, bars=bars)


def whole_rows(
    dates: np.ndarray, calendar: PanelCalendar, *, first: int, bars_seen: int, reach: int
) -> np.ndarray:
    """Return the bars (N,) at which a model can forecast, with or without a label. `first` is from
    `first_row`.
    """
    bars = np.flatnonzero(dates - dates[0] >= first)
    bars = bars[bars >= reach]
    bars = bars[clear_of_holes(_breaks(dates, calendar), bars - reach, bars)]
    return np.asarray(bars[clear_of_holes(calendar.breaks, dates[bars] - bars_seen + 1, dates[bars])])


def _missing(dates: np.ndarray) -> np.ndarray:
    """Return (T,) bool: whether dates are missing before this bar."""
    return np.asarray(np.diff(dates, prepend=dates[0]) > 1)


def _breaks(dates: np.ndarray, calendar: PanelCalendar) -> np.ndarray:
    """Return (T,) bool: whether the calendar has a break between the previous bar and this one."""
    passed = np.cumsum(calendar.breaks)[dates]
    return np.asarray(np.diff(passed, prepend=passed[0]) > 0)


def _lay_out(
    candles: Candles,
    job: Job,
    calendar: PanelCalendar,
    labelled: Labelled,
    *,
    folds: Sequence[Spans],
    horizon_bars: int,
) -> tuple[Plan, ...]:
    """Return the plan of a series for each fold; `folds` has its spans in bars."""
    dates, warmup, seen = calendar.dates(candles), warmup_of(candles, job), job.model.bars_seen
    hole = _missing(dates) | _breaks(dates, calendar)
    time = BarTimes(calendar=calendar.name, holes=hole, clock=calendar.clock[dates])
    rows, first = dates - dates[0], first_row(dates, warmup, seen)
    labels_TK = np.full_like(labelled.labels_TK, np.nan)
    labels_TK[labelled.bars] = labelled.labels_TK[labelled.bars]
    made = []
    for spans in folds:
        refuse_late_encoder(candles, job, spans)
        inside = {name: labelled.within(span) for name, span in spans.items()}
        bars = {name: one[labelled.has_label(one)] for name, one in inside.items()}
        chunks = (
            chunk_grid(rows[bars["train"]], first=first, chunk=job.model.bars_out)
            if job.model.reads == CHUNKS
            else None
        )
        made.append(
            Plan(
                time=time,
                target=labelled.target,
                labels_TK=labels_TK,
                ends=labelled.ends,
                warmup=warmup,
                spans=spans,
                bars=bars,
                rows=rows,
                bars_seen=seen,
                ties=sum(len(inside[name]) - len(bars[name]) for name in inside),
                horizon_bars=horizon_bars,
                chunks=chunks,
            )
        )
    return tuple(made)


def _of_series(dates: np.ndarray, spans: Spans, *, first: int) -> Spans:
    """Return spans in dates as spans in a series' bars. Training begins at its bar `first`."""
    places = {
        name: [int(place) for place in np.searchsorted(dates, (span.start, span.stop))]
        for name, span in spans.items()
    }
    places["train"][0] = min(first, places["train"][1])
    return Spans(**{name: Span(start=start, stop=stop) for name, (start, stop) in places.items()})


def _chosen(panel: Mapping[str, Candles], job: Job, calendar: PanelCalendar, cut: Cut) -> TargetSettings:
    """Return the target with open settings chosen: the farthest option for which any series has enough test
    labels.

    All are tested on one calendar, so the series that covers it best determines how many labels fit.
    """
    options = job.target.options()
    if len(options) == 1:
        return options[0]
    test = calendar.spans(cut, embargo=0).test
    most = 0
    for option in options:
        for candles in panel.values():
            labelled = _label(candles, job, option, calendar)
            start, stop = np.searchsorted(calendar.dates(candles), (test.start, test.stop))
            span = Span(start=int(start), stop=int(stop))
            most = max(most, count_separate(labelled.within(span), labelled.ends))
            if most >= FEWEST_TEST_LABELS:
                return option
    raise DataError(
        f"no series of the panel has more than {most} labels in test that don't overlap, at the shortest"
        f" {job.target.farther}",
        why=f"a forecast is scored on {FEWEST_TEST_LABELS} at least",
        do=(
            f"Give more bars, raise data.test_fraction, lower {job.model.shorter}, or accept these:"
            f" {job.target.farther} = 1."
        ),
    )


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
    for symbol, candles in panel.items():
        if counts[calendar.dates(candles)].max() < 2:
            first, last = (time_text(candles.timestamp[row]) for row in (0, -1))
            others = (
                [time_text(instant) for instant in calendar.instants[counts > 1][[0, -1]]]
                if (counts > 1).any()
                else []
            )
            beside = (
                f"others share dates from {others[0]} to {others[1]}" if others else "no two series share any"
            )
            raise DataError(
                f"{symbol} has no date in common with another series",
                why=f"it has {len(candles)} bars from {first} to {last}; {beside}",
                do=(
                    "Give bars of the same dates, whose times agree, or leave the symbol out with"
                    " data.exclude."
                ),
            )


def _refuse_empty(job: Job, plans: Sequence[Plan], cut: Cut, *, fold: int) -> None:
    """Raise DataError if no series has a bar in a span, the training labels have a flaw, or an epoch is below
    a batch.
    """
    where = f"fold {fold} of the panel" if job.data.folds > 1 else "the panel"
    for name in plans[0].bars:
        if not sum(len(plan.bars[name]) for plan in plans):
            spans = f"validation begins at {time_text(cut.validation)}, test at {time_text(cut.test)}"
            needs = f"the model sees {job.model.bars_seen} dates after a warm-up of {job.data.warmup} bars"
            raise DataError(
                f"{where} has no bar left in {name}",
                why=f"{spans}; {needs}, and a label reads {plans[0].horizon_bars} bars ahead",
                do=f"Lower {job.model.shorter}, give more bars, or name features that look back less.",
            )
    target = plans[0].target
    labels_NK = np.concatenate([plan.labels_TK[plan.bars["train"]] for plan in plans])
    what, why = target.flaw(labels_NK)
    if what:
        raise DataError(f"{where} has {what}", why=why, do=f"Give more bars, or another {target.farther}.")
    refuse_large_batch(where, job, sum(plan.num_reads for plan in plans))
