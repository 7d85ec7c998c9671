"""The plan as text: a table of candidates, and the hard stop."""

from __future__ import annotations

from trainer.cli.output import duration, money, table
from trainer.job import Job
from trainer.launch.inputs import ChosenCandles
from trainer.launch.plan import LaunchPlan, PlanCandidate
from trainer.pieces import kind_of
from trainer.runs.deadline import CAUSES

LONG_REHEARSAL_SECONDS = 900.0
HEADINGS = ["#", "instance", "market", "zones", "GPUs", "$/h", "est. time (rough)", "est. cost (rough)", "note"]


def plan_lines(plan: LaunchPlan, job: Job, candles: ChosenCandles) -> list[str]:
    """Return the plan as lines of text: the work, the candidates, and the hard stop."""
    bars = sum(min(count, job.data.bars) if job.data.bars else count for count in candles.bars.values())
    bars_are = "SYNTHETIC bars" if candles.synthetic else "bars"
    last = f" (the last {job.data.bars:,} of each)" if job.data.bars else ""
    names = ", ".join(candles.bars) if len(candles.bars) <= 6 else f"{len(candles.bars)} symbols"
    count, several = len(plan.pieces), job.data.folds * job.train.seeds
    models = "1 model" if count == 1 else f"{count} models"
    kind = kind_of(job)
    if several > 1:
        models += f" = {count // several} {kind.each} x {job.data.folds} folds x {job.train.seeds} seeds"
    elif len(candles.bars) > count:
        models += f" of a {kind.each}"
    what = f"{job.name}: {models} ({job.model.title}: {names})"
    lines = [f"{what} on {bars:,} {candles.timeframe} {bars_are}{last}, epochs: {job.train.epochs}"]
    if job.data.columns:
        features = len(job.data.inputs) - len(job.data.columns)
        lines.append(
            f"inputs: {f'{features} features and ' if features else ''}{', '.join(job.data.columns)} of the candle files"
        )
    rows = [HEADINGS] + [_row(number, candidate, plan) for number, candidate in enumerate(plan.candidates, 1)]
    lines += table(rows, right=(0, 3, 5))
    quantiles = ": P50 (P90)" if plan.first.is_estimated else ""
    lines.append(f"{plan.prices_are}; times are {plan.times_are}{quantiles}")
    if plan.rehearsal:
        lines.append(
            "a rehearsal: GPUs are processes on this machine's CPU, and its dollars are their seconds at that list price"
        )
        if plan.first.is_estimated and plan.first.seconds_p50 > LONG_REHEARSAL_SECONDS:
            lines.append("to rehearse in a minute or two, take less: --set bars=20000 --epochs 3")
    stop = plan.hard_stop
    lines.append(
        f"hard stop {duration(stop.duration.total_seconds())} after launch, set by {CAUSES[stop.cause]}, "
        f"at most {money(plan.hard_stop_usd)} at the on-demand price: OS timer, one-time schedule, sweeper"
    )
    return lines


def _row(number: int, candidate: PlanCandidate, plan: LaunchPlan) -> list[str]:
    machine = candidate.machine
    chosen = " *" if candidate is plan.first else ""
    gpus = f"{machine.gpus:g} x {machine.gpu_model.removeprefix('NVIDIA ')}"
    head = [str(number), machine.name + chosen, candidate.market.replace("_", "-"), str(len(candidate.zones)), gpus]
    if candidate.refused:
        return [*head, f"{candidate.price_usd_per_hour:.2f}", "-", "-", f"not asked: {candidate.refused}"]
    if not candidate.is_estimated:
        return [*head, f"{candidate.price_usd_per_hour:.2f}", "not estimated", "not estimated", candidate.note]
    return [
        *head,
        f"{candidate.price_usd_per_hour:.2f}",
        f"{duration(candidate.seconds_p50)} ({duration(candidate.seconds_p90)})",
        f"{money(candidate.dollars_p50)} ({money(candidate.dollars_p90)})",
        candidate.note,
    ]
