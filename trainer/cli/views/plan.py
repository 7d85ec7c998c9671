"""The plan as text: the work, a table of candidates, and the hard stop."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from trainer.cli.output import counted, duration, money
from trainer.cli.views.table import DIM, STRONG, Cell, FittedTable, Inline, lines, styled
from trainer.data.side_names import split_sides
from trainer.job.job import Job
from trainer.job.pieces import kind_of
from trainer.job.search import Range, text_of
from trainer.job.start_model import start_model_of
from trainer.launch.candidates import PlanCandidate
from trainer.launch.checkpoints import CheckpointCost
from trainer.launch.gpu_table import COUNTS, OnGpus
from trainer.launch.inputs import ChosenCandles
from trainer.launch.plan import LaunchPlan
from trainer.launch.work import TrainingWork, Work
from trainer.machines.baking import Baking
from trainer.machines.instances import InstanceType
from trainer.machines.planner import JOIN_SECONDS
from trainer.machines.scaling import ALONE, TCP_SHARE
from trainer.machines.spot import INTERRUPTIONS_PER_HOUR
from trainer.machines.storage import StorageCost
from trainer.runs.deadline import CAUSES
from trainer.runs.snapshots import MOST_COST

LONG_REHEARSAL_SECONDS = 900.0
LAW = "a ring all-reduce beside the backward pass (docs/training.md)"
MOST_NAMES = 6  # of symbols; more are counted


def work_view(work: Work, plan: LaunchPlan, data: Mapping[str, Any]) -> RenderableType:
    """Return the plan of a launch. `data`: its data section, as `--json` prints it."""
    if isinstance(work, TrainingWork):
        return plan_view(plan, work.job, work.candles)
    return script_view(plan, work.job, data)


def plan_view(plan: LaunchPlan, job: Job, candles: ChosenCandles) -> RenderableType:
    """Return the plan: the work, the candidates, and the hard stop."""
    return _plan(plan, job, *training(plan, job, candles))


def training(plan: LaunchPlan, job: Job, candles: ChosenCandles) -> tuple[str, Iterable[RenderableType]]:
    """Return what a training makes, and what of."""
    about = [Inline(_data(job, candles)), *([Inline(_start(job))] if start_model_of(job) else [])]
    about += [Inline([job.target.words])] if job.target.words else []
    return _models(plan, job, candles), about


def script_view(plan: LaunchPlan, job: Job, data: Mapping[str, Any]) -> RenderableType:
    """Return a script's plan: its command, files and data, the candidates, and the hard stop."""
    script = job.script
    about = [Inline(_values(plan, job))] if job.columns else []
    about.append(
        Inline(
            [
                counted(len(data["script_files"]), "file"),
                f"data: {counted(data['files'], 'file')}" if data["files"] else "no data",
                f"{data['bytes'] / 1e6:,.1f} MB" if data["files"] else "",
                f"packages: {script.requirements}" if script.requirements else "",
            ]
        )
    )
    about += [Inline([f"secrets: {', '.join(script.secrets)}"])] if script.secrets else []
    about += [_packages(data["packages"])] if "packages" in data else []
    return _plan(plan, job, f"script: {script.command}", about)


def _plan(plan: LaunchPlan, job: Job, what: str, about: Iterable[RenderableType]) -> RenderableType:
    """Return the work, the candidates with their notes, the sources of prices and times, and the hard
    stop.
    """
    return lines(
        Inline([styled(job.name, STRONG), plan.place.title, what]),
        *about,
        "",
        candidate_table(plan.candidates),
        *_notes(plan),
        "",
        *([*gpu_lines(plan.gpus), ""] if plan.gpus else []),
        *_basis(plan),
        _hard_stop(plan),
    )


def _packages(packages: Mapping[str, Any]) -> Inline:
    """Return the resolved packages: their source, their versions, and the ones that the image provides."""
    left = f"from the image: {', '.join(packages['of_the_image'])}" if packages["of_the_image"] else ""
    first, *others = packages["packages"]
    return Inline([f"from {packages['from']} for Python {packages['python']}: {first}", *others, left])


def _values(plan: LaunchPlan, job: Job) -> Iterator[str]:
    """Yield the number of values that a script runs over, or of trials, what they are, and the GPUs of
    each.
    """
    search, rows = job.search, list(job.script.combinations.values())
    its: dict[str, Range | Sequence[Any]]
    if search.over:
        pruned = ", none pruned: the most it takes" if search.prunes else ""
        yield f"{counted(len(plan.pieces), 'trial')} by {search.method}{pruned}"
        its = dict(search.space)
    else:
        yield counted(len(plan.pieces), "run")
        its = {column: list(dict.fromkeys(row[column] for row in rows)) for column in rows[0]}
    for column, values in its.items():
        yield f"{column}: {_shown(values)}"
    if plan.first.machine.gpus:
        yield f"{job.script.gpus or 1:g} GPU{'s' if job.script.gpus > 1 else ''} each"


def _shown(values: Range | Sequence[Any]) -> str:
    """Return the values of a name as text."""
    if isinstance(values, Range):
        return f"{values.low:g} to {values.high:g}{' by logarithm' if values.log else ''}"
    return ", ".join(map(text_of, values)) if len(values) <= MOST_NAMES else counted(len(values), "value")


def _models(plan: LaunchPlan, job: Job, candles: ChosenCandles) -> str:
    seeds = job.train.models_of_a_fold
    trials = sum(piece.trial > 0 for piece in plan.pieces)
    count, several = len(plan.pieces) - trials, job.data.folds * seeds
    models, kind = counted(count, "model"), kind_of(job)
    if several > 1:
        of = f"{count // several} {kind.each} × {counted(job.data.folds, 'fold')} × {counted(seeds, 'seed')}"
        models += f" ({of})"
    elif len(candles.bars) > count:
        models += f" of a {kind.each}"
    if job.train.ensemble:
        models += f", each the mean of {job.train.members} networks"
    return f"{models}: {job.model.title} → {job.target.name}" + _search(job, trials)


def _search(job: Job, trials: int) -> str:
    """Return how many trials the price counts, as text; '' without a search."""
    if not job.search.over:
        return ""
    search = job.search
    pruned = ", none pruned: the most it takes" if search.prunes else ""
    sizes = "" if search.is_planned else " of the largest size"
    by = f", each the best of {counted(search.num_trials, 'trial')} by {search.method}"
    return f"{by}; priced with {trials:,} trials{sizes}{pruned}"


def _data(job: Job, candles: ChosenCandles) -> Iterator[str]:
    bars = sum(min(count, job.data.bars) if job.data.bars else count for count in candles.bars.values())
    last = f" (the last {job.data.bars:,} of each)" if job.data.bars else ""
    yield ", ".join(candles.bars) if len(candles.bars) <= MOST_NAMES else counted(len(candles.bars), "symbol")
    yield f"{bars:,}{' SYNTHETIC' if candles.synthetic else ''} bars of {candles.timeframe}{last}"
    if job.data.warmup:
        yield f"warm-up {counted(job.data.warmup, 'bar')}"
    yield counted(job.train.epochs, "epoch") + (", then again on all bars" if job.train.refit else "")
    if job.data.further:
        features = len(job.data.inputs) - len(job.data.further)
        inside, sides = split_sides(job.data.further)
        parts = [counted(features, "feature")] if features else []
        parts += [f"{', '.join(inside)} of the candle files"] if inside else []
        files = [side.entry for side in sides if side.file]
        parts += [f"side series {', '.join(files)}"] if files else []
        parts += [side.entry for side in sides if not side.file]
        yield f"inputs: {' and '.join(parts)}"


def _start(job: Job) -> Iterator[str]:
    """Yield the model that the job's models start from, if any."""
    if start := start_model_of(job):
        yield (
            f"starts from: {start.path}, head and all"
            if start.is_whole
            else (f"encoder: {start.path}, {start.training}")
        )
        yield f"it has seen bars until {start.until}"


def candidate_table(candidates: Sequence[PlanCandidate], *, zones: bool = True) -> FittedTable:
    """Return the table of candidates: time and cost on AWS, the same on SageMaker, and in a rehearsal what
    this desk takes.
    """
    rows = [_row(number, candidate) for number, candidate in enumerate(candidates, 1)]
    rows = rows if zones else [{title: row[title] for title in row if title != "zones"} for row in rows]
    return FittedTable(
        rows,
        right=("zones", "$/h", "SageMaker"),
        leaving=("boot, stage, train, upload", "zones", "taken a month", "SageMaker", "GPUs", "market"),
    )


def _row(number: int, candidate: PlanCandidate) -> dict[str, Cell]:
    machine, here = candidate.machine, candidate.here
    time = cost = "not estimated"
    if candidate.refused:
        time, cost = "skipped", ""
    elif candidate.is_estimated:
        time = f"{duration(candidate.seconds_p50)} ({duration(candidate.seconds_p90)})"
        cost = f"{money(candidate.dollars_p50)} ({money(candidate.dollars_p90)})"
    row = {
        "": str(number),
        "instance": machine.name if candidate.nodes == 1 else f"{candidate.nodes} × {machine.name}",
        "market": candidate.market.replace("_", "-"),
        "zones": str(len(candidate.zones)),
        "GPUs": f"{candidate.nodes * machine.gpus:g}×{chip_name(machine)}"
        if machine.gpus
        else f"none, {counted(candidate.nodes * machine.vcpus, 'vCPU')}",
        "$/h": f"{candidate.usd_per_hour:.2f}",
        "est. time": time,
        "est. cost": cost,
        "taken a month": machine.spot.interruptions if candidate.is_typical and machine.spot else "",
        "SageMaker": "" if (usd := candidate.sagemaker_usd) is None or candidate.refused else money(usd),
        "boot, stage, train, upload": "" if candidate.refused else _phases(candidate),
        "this desk": "" if here is None or not here.is_estimated else duration(here.phases.seconds_p50),
    }
    style = DIM if candidate.refused else ""
    return {title: styled(cell, style) for title, cell in row.items()}


def _phases(candidate: PlanCandidate) -> str:
    """Return the phases of a run, `-` for what is not known."""
    if not candidate.is_estimated:
        return ""
    phases = candidate.time.phases
    lost = [f"lost {duration(candidate.lost_seconds)}"] if candidate.lost_seconds >= 1 else []
    named = (phases.boot, phases.stage, phases.training, phases.upload)
    return ", ".join([*map(duration, named), *lost])


def _notes(plan: LaunchPlan) -> Iterator[str]:
    for candidate in plan.candidates:
        if note := (f"skipped: {candidate.refused}" if candidate.refused else candidate.note):
            yield f"   {candidate.machine.name}: {note}"


def _basis(plan: LaunchPlan) -> Iterator[RenderableType]:
    """Return the sources of prices and times."""
    slow = "; in brackets: nine of ten runs are faster" if plan.first.is_estimated else ""
    yield styled(f"Prices: {plan.prices_are}. Times: {plan.times_are}{slow}.", "dim")
    if spot := typical_spot(plan.candidates):
        yield styled(spot, "dim")
    yield styled(_storage(plan.storage), "dim")
    if plan.checkpoints:
        yield styled(_checkpoints(plan.checkpoints), "dim")
    if plan.baking:
        yield styled(_baking(plan.baking), "dim")
    if plan.first.nodes > 1:
        yield styled(_nodes(plan.first), "dim")
    if plan.place.plan_note:
        yield styled(plan.place.plan_note, "dim")
        run = plan.first.run
        if run.is_estimated and run.phases.seconds_p50 > LONG_REHEARSAL_SECONDS:
            yield "To rehearse in a minute or two, take less: --set data.bars=20000 --epochs 3"


def typical_spot(candidates: Iterable[PlanCandidate]) -> str:
    """Return the basis of typical spot prices, '' if there are none."""
    dates = {one.machine.spot.as_of for one in candidates if one.is_typical and one.machine.spot}
    if not dates:
        return ""
    rate = f"{INTERRUPTIONS_PER_HOUR:.0%} interruptions an hour, an assumption"
    return (
        f"Spot: typical prices by AWS's Spot Instance Advisor, {', '.join(sorted(dates))}, with the time and"
        f" dollars of {rate}."
    )


def _storage(cost: StorageCost) -> str:
    """Return the storage cost of the inputs."""
    size = f"{cost.gigabytes:.2f} GB" if cost.gigabytes >= 0.1 else f"{cost.gigabytes * 1000:.1f} MB"
    price = money(cost.month_usd) if cost.month_usd >= 0.01 else "less than a cent"
    kept = f"{price} a month for these {size}"
    if cost.mode == "s3":
        return f"Storage: S3, {kept}; nodes read it free of charge."
    moved = f"{money(cost.add_usd)} to add them once, {money(cost.read_usd)} a run to read them"
    return f"Storage: S3 with a cache on EFS, {kept}, {moved}."


def _checkpoints(cost: CheckpointCost) -> str:
    """Return what checkpoints cost, or what a script may write for 1 % of its machine's price."""
    often = f"at least every {duration(cost.seconds)}"
    if not cost.bytes:
        size = cost.affordable_bytes / 1e6
        return (
            f"Checkpoints: to S3 {often}; up to {size:,.0f} MB of them each time cost less than"
            f" {MOST_COST:.0%} of the machine's price."
        )
    usd = max(cost.usd_per_hour, 0.0001)
    price = f"{money(usd)} an hour, {cost.share:.2%} of the machine's price"
    why = ""
    if cost.is_over:
        why = f"; that is more than {MOST_COST:.0%}, as the job's train.checkpoint_seconds has it"
    elif cost.is_stretched:
        why = f", the most allowed; a lost machine may cost {duration(cost.lost_seconds)} of training"
    return f"Checkpoints: {cost.bytes / 1e6:,.1f} MB to S3 {often}, {price}{why}."


def _baking(baking: Baking) -> str:
    """Return what a baked image would save, and from how many runs a month it pays off."""
    basis = f"by {counted(baking.runs_measured, 'boot')}" if baking.runs_measured else "assumed, not measured"
    what = "The image is baked: that saves" if baking.in_use else "A baked image (image_pipeline) would save"
    if baking.runs_per_month is None:
        return f"{what} nothing of a boot ({basis})."
    saved = f"{duration(baking.saved_seconds)} of each boot ({basis}), {money(baking.usd_per_run)} a run"
    pays = (
        f"It costs {money(baking.usd_per_month)} a month and pays off from {baking.runs_per_month:,} runs a"
        " month on."
    )
    return f"{what} {saved}. {pays}"


def _nodes(first: PlanCandidate) -> str:
    """Return what several machines are, and the figures behind their time."""
    boot = f"the boot counts {JOIN_SECONDS:.0f} s until the last has joined, an estimate"
    price = "prices are of all of them" + (", but that of checkpoints of each" if first.checkpoints else "")
    words = f"Nodes: {first.nodes} machines of one type in one zone, all or none; {price}; {boot}."
    if first.at_risk == 1:
        return f"{words} A lost one's work goes to the others, but the first one's loss ends the attempt."
    exchange = f"exchange gradients over TCP, not EFA, at {TCP_SHARE:.0%} of the type's network"
    return f"{words} They {exchange}, an estimate; the loss of any ends the attempt."


def _hard_stop(plan: LaunchPlan) -> str:
    stop = plan.hard_stop
    after, cost = duration(stop.duration.total_seconds()), f"{money(plan.hard_stop_usd)} at most, on demand"
    alone = stop.cause == "max_duration" and not (plan.first.run.runs or plan.first.run.rate.has_run)
    why = CAUSES[stop.cause] + (" alone: no run has measured it on this chip" if alone else "")
    return f"Hard stop {after} after the launch ({cost}), even if this desk is off. Set by {why}."


def gpu_lines(rows: Sequence[OnGpus]) -> Iterator[RenderableType]:
    """Yield the table, then which chips can't train the models and where several GPUs are pointless."""
    together = any(row.placement for row in rows)
    chips = list(dict.fromkeys(row.machine.gpu_model for row in rows))
    title = "one model on" if together else "the models on"
    by_chip = [_gpu_row(title, [row for row in rows if row.machine.gpu_model == chip]) for chip in chips]
    yield FittedTable(by_chip, leaving=("link",))
    for chip in chips:
        if refused := [row for row in rows if row.machine.gpu_model == chip and row.refused]:
            yield f"   {_gpu_name(refused[-1])}: {refused[-1].refused}"
    # The largest number of GPUs of each chip, if it is pointless.
    most = {row.machine.gpu_model: row for row in sorted(rows, key=lambda row: row.devices)}
    pointless = [most[chip] for chip in chips if most[chip].is_pointless]
    if together and pointless:
        named = ", ".join(f"{row.devices}×{_gpu_name(row)} {row.speedup:.1f}" for row in pointless)
        yield (f"   Not worthwhile for this model and batch (speed-up over one GPU): {named}")
    elif pointless:
        busy = math.ceil(max(row.speedup for row in pointless))
        yield f"   The models keep no more than {counted(busy, 'GPU')} busy."
    law = f"Several GPUs: by law, {LAW}" if together else "Several GPUs: each trains models of its own"
    yield styled(f"{law}; an estimate until measured. List prices, boot included.", DIM)


def _gpu_row(title: str, rows: Sequence[OnGpus]) -> dict[str, Cell]:
    by_count = {row.devices: row for row in rows}
    links = {row.link: None for row in rows if row.devices > 1}
    cells = {counted(count, "GPU"): _gpu_cell(by_count.get(count)) for count in COUNTS}
    links.pop(ALONE, None)
    return {title: _gpu_name(rows[0]), "link": ", ".join(links) or "-", **cells}


def _gpu_cell(row: OnGpus | None) -> Cell:
    if row is None:
        return "-"
    if row.refused:
        return styled("does not fit", DIM)
    text = f"{duration(row.seconds_p50)} {money(row.dollars_p50)}"
    if row.placement is not None and row.placement.sharded:
        text += " (FSDP)"
    return styled(text, DIM) if row.is_pointless else text


def _gpu_name(row: OnGpus) -> str:
    return chip_name(row.machine)


def chip_name(machine: InstanceType) -> str:
    """Return the name of a type's GPUs without their vendor's."""
    return machine.gpu_model.removeprefix("NVIDIA ").removeprefix("GeForce ")
