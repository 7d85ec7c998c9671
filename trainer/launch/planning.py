"""Plan a launch: resolve the job, query the account, weigh the candidates. Desk and control share this."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Protocol

from trainer.aws.objects import Objects
from trainer.aws.place import HERE
from trainer.base.errors import DataError, UsageError
from trainer.job.job import Job
from trainer.job.pieces import takes_all_devices
from trainer.job.pieces.fewest import empty_span, too_few
from trainer.launch.bundle import BundleName
from trainer.launch.inputs import RAW, ChosenCandles, Input, choose, list_inputs
from trainer.launch.knowledge import known_boots
from trainer.launch.machines import machines_of, refuse_unfit
from trainer.launch.plan import LaunchPlan, RunPlan, make_plan
from trainer.launch.preflight import Offers, query_offers
from trainer.launch.spot import refuse_without_checkpoints
from trainer.launch.uploads import DeskFile
from trainer.launch.weighing import weigh
from trainer.launch.work import Account, ScriptWork, TrainingWork, WeighedWork, Work
from trainer.machines.planner import LONGEST_DEADLINE
from trainer.machines.storage import storage_cost
from trainer.runs.deadline import TimeLimit


def choose_from_set(job: Job, inputs: Sequence[Input]) -> ChosenCandles:
    """Choose the files of the job's data set that it trains on. Raises DataError if none is left.

    Symbols that a machine would refuse for the number of their bars alone are left out here. A panel's stay,
    if one is long enough: they count in the ranks of their dates.
    """

    def too_short(symbol: str, bars: int, timeframe: str) -> DataError | None:
        timed = job.with_data(timeframe=timeframe)  # features, and so the warm-up, follow from it
        bars = min(bars, job.data.bars or bars)
        return too_few(symbol, bars, timed) or empty_span(symbol, bars, timed)

    def chosen(too_few: Callable[[str, int, str], DataError | None]) -> ChosenCandles:
        return choose(
            inputs,
            data_set=job.data.set,
            symbols=job.data.symbols,
            timeframe=job.data.timeframe,
            columns=job.data.further,
            index=job.data.told.index,
            exclude=job.data.exclude,
            too_few=too_few,
        )

    candles = chosen(too_short)
    if job.data.panel and candles.refused:
        candles = chosen(lambda symbol, bars, timeframe: None)
    if job.data.panel and len(candles.bars) < 2:
        why = f"raw/{job.data.set}/ has only {next(iter(candles.bars))} at {candles.timeframe}"
        raise DataError(
            "a panel of one symbol", why=why, do="Add candles of others with --data, or leave data.panel out."
        )
    return candles


def with_candles(job: Job, candles: ChosenCandles) -> Job:
    """Return the job with the symbols, those of the index and the timeframe that its candles decide."""
    columns = job.data.columns_with(candles.index)
    return job.with_data(
        symbols=tuple(candles.bars), exclude=(), timeframe=candles.timeframe, columns=columns
    )


@dataclass(frozen=True, kw_only=True)
class FoundCandles:
    """The candles of a training: in raw/ already, or at a desk in `files`; `job` is the demo's for want of
    others.
    """

    job: Job
    candles: ChosenCandles
    files: Sequence[DeskFile] = ()
    notes: Sequence[str] = ()  # what the user should know of how they were found


@dataclass(frozen=True, kw_only=True)
class FoundScript:
    """A script's files and data by hash; the data is in the bucket already, or at a desk in `folder`."""

    job: Job
    files: Mapping[str, str]
    sha256: str
    inputs: tuple[Mapping[str, Any], ...] = ()
    folder: tuple[DeskFile, ...] = ()
    names: tuple[str, ...]  # in the ids of its earlier runs
    keeps_checkpoints: bool = True  # as far as its files show; a publication was checked


class Sources(Protocol):
    """A source of a job's code and inputs: the user's desk, or a publication."""

    def find(self, job: Job, account: Account) -> FoundCandles | FoundScript:
        """Return the job's inputs, checked. Raises a TrainerError for whatever they lack."""

    def code(self, job: Job) -> BundleName:
        """Return the package with the job's own files."""

    def sent(self, job: Job) -> tuple[Job, DeskFile | None]:
        """Return the job without a path of this desk, and the model that it starts from if it has to be
        uploaded.
        """


def resolve(job: Job, sources: Sources, account: Account) -> TrainingWork | ScriptWork:
    """Return the work of a job: its inputs and code by hash. Raises a TrainerError as `sources` does."""
    found = sources.find(job, account)
    code = sources.code(found.job)
    if isinstance(found, FoundScript):
        return ScriptWork(
            job=found.job,
            code=code,
            files=found.files,
            sha256=found.sha256,
            inputs=found.inputs,
            folder=found.folder,
            names=found.names,
            has_checkpoints=found.keeps_checkpoints,
        )
    sent, start_model = sources.sent(with_candles(found.job, found.candles))
    return TrainingWork(
        job=sent, code=code, candles=found.candles, files=tuple(found.files), start_model=start_model
    )


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A job's work, the account's offers, and its plan: what a record and a manifest are made of."""

    work: Work
    offers: Offers | None  # None: on the caller's own machine
    plan: RunPlan


def offers_for(job: Job, account: Account, *, pinned_image: str = "") -> Offers:
    """Query the account's offers for a job. Raises a TrainerError for types that its image can't have."""
    machines = machines_of(job)
    if account.place.binding:
        named = bool(job.machine.instance)
        refuse_unfit(machines, account.outputs.image_line, named=named)
    nodes, outputs = job.machine.nodes, account.outputs
    return query_offers(
        account.access,
        outputs=outputs,
        machines=machines,
        spot="spot" in job.machine.market,
        pinned_image=pinned_image,
        template=outputs.template_for(num_nodes=nodes, one_model=nodes > 1 and takes_all_devices(job)),
    )


def plan_work(work: WeighedWork, offers: Offers, account: Account) -> LaunchPlan:
    """Return the plan of resolved work. Raises a TrainerError as `make_plan` does, and UsageError for spot
    without checkpoints.
    """
    outputs = account.outputs
    refuse_without_checkpoints(work.job, keeps_checkpoints=work.keeps_checkpoints)
    load = work.weighed(offers, account)
    weighed = weigh(
        work.job,
        load.work,
        offers,
        place=account.place,
        rates=load.rates,
        here=load.here,
        runs=load.runs,
        keeps_checkpoints=work.keeps_checkpoints,
    )
    return make_plan(
        work.job,
        weighed,
        offers,
        subnets=outputs.subnets,
        region=outputs.region,
        place=account.place,
        cap=timedelta(minutes=outputs.max_lifetime_minutes),
        boots=known_boots(account.objects),
        storage=storage_cost(
            outputs.storage, throughput=outputs.efs_throughput, input_bytes=work.input_bytes
        ),
    )


def plan_here(work: TrainingWork | ScriptWork) -> RunPlan:
    """Return the plan of work on the caller's own machine: nothing is priced; without a `max_duration` it has
    the longest default.
    """
    job = work.job
    if work.num_nodes > 1:
        why = "a run on a machine of your own has that one"
        do = "Leave machine.nodes out, or launch the job on AWS."
        raise UsageError(f"machine.nodes is {work.num_nodes}", why=why, do=do)
    named = job.machine.max_duration and "machine.max_duration" in job.given
    limit = TimeLimit(
        duration=job.machine.max_duration_or(LONGEST_DEADLINE),
        cause="max_duration" if named else "default_duration",
    )
    return RunPlan(pieces=work.pieces(), run_limit=limit, place=HERE)


def within_budget(job: Job, budget: float) -> Job:
    """Return the job with the smaller of two budgets."""
    own = job.machine.budget
    return replace(job, machine=replace(job.machine, budget=min(own, budget) if own else budget))


def listed_inputs(job: Job, objects: Objects) -> tuple[Input, ...]:
    """Return the files of the job's data set. Raises DataError for an empty one."""
    inputs = list_inputs(objects, job.data.set, job.data.columns)
    if not inputs:
        do = f"Bring candles once: mayfly data push PATH --set {job.data.set}."
        raise DataError(
            f"the data set '{job.data.set}' is empty", why=f"there is nothing in {RAW}{job.data.set}/", do=do
        )
    return inputs
