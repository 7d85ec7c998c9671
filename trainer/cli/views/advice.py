"""The plan of `mayfly plan`: the rows of a launch's plan that matter, machines outside AWS, the choice."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rich.console import RenderableType

from trainer.cli.output import counted, duration, money
from trainer.cli.views.pay import pay_lines
from trainer.cli.views.plan import candidate_table, gpu_lines, training, typical_spot
from trainer.cli.views.table import DIM, STRONG, FittedTable, Inline, lines, styled
from trainer.launch.candidates import PlanCandidate
from trainer.launch.pay import WaysToPay
from trainer.launch.plan import LaunchPlan
from trainer.launch.recommend import Recommendation, named
from trainer.launch.work import ScriptWork, TrainingWork
from trainer.runs.calibration import LEAST_RUNS, NEWEST, PHASES, TimedRun

MOST_ROWS, MOST_OUTSIDE = 10, 5
SHOWN_NAMES = 6
LATE = re.compile(r"needs (?P<needs>.*), (?P<stop>stopped after .*)")  # a refusal of `launch.plan`


def advice_view(
    work: TrainingWork | ScriptWork,
    plan: LaunchPlan,
    outside: Sequence[PlanCandidate],
    choice: Recommendation | None,
    pay: WaysToPay | None,
) -> RenderableType:
    """Return the advice: the rows that matter, since --csv and --json have all."""
    job = work.job
    what, about = f"script: {job.script.command}", []
    if isinstance(work, TrainingWork):
        what, found = training(plan, job, work.candles)
        about = list(found)
    usable = sorted((one for one in plan.candidates if not one.refused), key=_order)
    shown = _shown(usable, choice)
    rest = len(usable) - len(shown)
    return lines(
        Inline([styled(job.name, STRONG), f"in {plan.region}", what]),
        *about,
        "",
        candidate_table(shown, zones=False),
        *([f"   and {counted(rest, 'dearer one')}: --csv"] if rest else []),
        *_notes(shown),
        *_out(plan.candidates),
        "",
        *([*gpu_lines(plan.gpus), ""] if plan.gpus else []),
        *_outside(outside),
        *(pay_lines(pay) if pay else ()),
        *_basis(plan),
        *_chosen(choice, outside, plan),
    )


def _order(one: PlanCandidate) -> tuple[float, float]:
    return (one.dollars_p50, one.seconds_p50) if one.is_estimated else (one.price_usd_per_hour, 0.0)


def _shown(usable: Sequence[PlanCandidate], choice: Recommendation | None) -> list[PlanCandidate]:
    """Return the cheapest rows, and those that the choice names."""
    kept = list(usable[:MOST_ROWS])
    named = (choice.cheapest, choice.recommended, choice.fastest) if choice else ()
    return sorted([*kept, *(one for one in dict.fromkeys(named) if one not in kept)], key=_order)


def _notes(shown: Sequence[PlanCandidate]) -> Iterator[str]:
    by_note: dict[str, list[str]] = {}
    for one in shown:
        if one.note and one.machine.name not in by_note.get(one.note, []):
            by_note.setdefault(one.note, []).append(one.machine.name)
    for note, names in by_note.items():
        yield f"   {_few(names)}: {note}"


def _out(candidates: Sequence[PlanCandidate]) -> Iterator[str]:
    """Yield the refused types by reason; those that are too slow with the time that they need."""
    by_reason: dict[str, dict[str, None]] = {}
    for one in candidates:
        if not one.refused:
            continue
        reason, name = one.refused, one.machine.name
        if late := LATE.fullmatch(one.refused):
            reason, name = late["stop"], f"{name} {late['needs']}"
        by_reason.setdefault(reason, {})[name] = None
    for reason, names in by_reason.items():
        yield f"   out, {reason}: {_few(list(names))}"


def _few(names: Sequence[str]) -> str:
    more = len(names) - SHOWN_NAMES
    return ", ".join(names[:SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")


def _outside(outside: Sequence[PlanCandidate]) -> Iterator[RenderableType]:
    usable = sorted((one for one in outside if not one.refused and one.is_estimated), key=_order)
    if not usable:
        return
    shown = usable[:MOST_OUTSIDE]
    yield "Outside AWS, which Mayfly starts no machine of (its boot is assumed to be as long as AWS's):"
    yield candidate_table(shown, zones=False)
    rest = len(usable) - len(shown)
    if rest:
        yield f"   and {counted(rest, 'dearer one')}: --csv; --json names their sources"
    yield ""


def _basis(plan: LaunchPlan) -> Iterator[RenderableType]:
    sources = sorted({one.time.source for one in plan.candidates})
    yield styled(
        f"Prices: {plan.prices_are}. Times: {', '.join(sources)}; in brackets: nine of ten runs are faster.",
        DIM,
    )
    if spot := typical_spot(plan.candidates):
        yield styled(spot, DIM)
    yield ""


def _chosen(
    choice: Recommendation | None, outside: Sequence[PlanCandidate], plan: LaunchPlan
) -> Iterator[RenderableType]:
    if choice is None:
        stop = duration(plan.hard_stop.duration.total_seconds())
        yield f"No time is known, so none is recommended. Stopped after {stop}, at {_most(plan)} at most."
        return
    for title, one in (("cheapest", choice.cheapest), ("fastest", choice.fastest)):
        yield f"{title + ':':<13}{_line(one)}"
    yield styled(f"{'recommended:':<13}{_line(choice.recommended)}", STRONG)
    yield f"             {'; '.join(choice.why)}."
    better = [one for one in outside if one.is_estimated and not one.refused]
    first = min(better, key=lambda one: one.dollars_p50, default=None)
    if first is not None and first.dollars_p50 < choice.cheapest.dollars_p50:
        yield f"{'elsewhere:':<13}{_line(first)}"


def _most(plan: LaunchPlan) -> str:
    return money(plan.hard_stop_usd)


def _line(one: PlanCandidate) -> str:
    owned = one.machine.owned
    besides = f" besides {money(owned.usd_per_month)} a month, used or not" if owned else ""
    return f"{named(one)}, {duration(one.seconds_p50)}, {money(one.dollars_p50)}{besides}"


def calibration_view(runs: Sequence[TimedRun], median: float | None) -> RenderableType:
    """Return predicted against actual seconds of runs by phase, and the median error."""
    if median is None:
        return lines("No run has been timed beside its plan yet.")
    rows = [
        {
            "run": run.run_id,
            "type": run.case.split()[1],
            **{
                phase: f"{duration(planned)} → {duration(took)}"
                for phase, planned, took in zip(PHASES, run.predicted, run.actual, strict=True)
            },
            "off by": f"{run.error:.0%}",
        }
        for run in runs
    ]
    return lines(
        FittedTable(rows, right=("off by",), leaving=("stage", "upload", "boot", "type")),
        f"planned → taken; off by {median:.0%} in the median of {counted(len(runs), 'run')}."
        f" From {LEAST_RUNS} runs of a shape on a type on, a plan follows its last {NEWEST}.",
    )
