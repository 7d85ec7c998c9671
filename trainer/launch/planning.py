"""Plan a launch from a job and its candles; shared by desk and control."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from trainer.aws.access import Access
from trainer.aws.place import Place
from trainer.aws.stack_outputs import StackOutputs
from trainer.base.errors import DataError
from trainer.job.job import Job
from trainer.job.pieces.fewest import empty_span, too_few
from trainer.launch.images import refuse_unfit
from trainer.launch.inputs import RAW, ChosenCandles, Input, choose, list_inputs
from trainer.launch.knowledge import known_boots, known_rates
from trainer.launch.machines import machines_of, refuse_retired
from trainer.launch.plan import LaunchPlan, make_plan
from trainer.launch.preflight import Offers, look
from trainer.machines.planner import workload
from trainer.machines.rates import Rate
from trainer.machines.storage import storage_cost
from trainer.runs.boot import Boots
from trainer.runs.store import Objects


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
            columns=job.data.columns,
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
    """Return the job with the symbols and the timeframe that its candles decide."""
    return job.with_data(symbols=tuple(candles.bars), exclude=(), timeframe=candles.timeframe)


def plan_launch(
    job: Job,
    candles: ChosenCandles,
    offers: Offers,
    outputs: StackOutputs,
    rates: Mapping[str, Rate],
    *,
    place: Place,
    boots: Boots | None = None,
) -> LaunchPlan:
    """Return the plan of a job whose candles are chosen. Raises a TrainerError as `make_plan` does."""
    return make_plan(
        job,
        workload(job, candles.bars),
        offers,
        subnets=outputs.subnets,
        region=outputs.region,
        place=place,
        cap=timedelta(minutes=outputs.max_lifetime_minutes),
        rates=rates,
        boots=boots,
        storage=storage_cost(
            outputs.storage, throughput=outputs.efs_throughput, input_bytes=candles.input_bytes
        ),
    )


@dataclass(frozen=True, kw_only=True)
class PlannedRetrain:
    """A retrain's job with its current data, the account's offers, and its plan."""

    job: Job  # with the symbols and the timeframe that its candles decide
    candles: ChosenCandles
    offers: Offers
    plan: LaunchPlan


def within_budget(job: Job, budget: float) -> Job:
    """Return the job with the smaller of two budgets."""
    own = job.machine.budget
    return replace(job, machine=replace(job.machine, budget=min(own, budget) if own else budget))


def listed_inputs(job: Job, objects: Objects) -> tuple[Input, ...]:
    """Return the files of the job's data set. Raises DataError for an empty one."""
    inputs = list_inputs(objects, job.data.set)
    if not inputs:
        do = "Bring candles once: mayfly launch --data PATH, with the job's data.set."
        raise DataError(
            f"the data set '{job.data.set}' is empty", why=f"there is nothing in {RAW}{job.data.set}/", do=do
        )
    return inputs


def plan_retrain(
    job: Job,
    candles: ChosenCandles,
    access: Access,
    outputs: StackOutputs,
    objects: Objects,
    *,
    pinned_image: str = "",
) -> PlannedRetrain:
    """Query account and rates, and plan a job that trains on these candles of its set. Raises a
    TrainerError.
    """
    machines = machines_of(job)
    if access.place.binding:
        if job.machine.instance:
            refuse_retired(machines, workload(job, candles.bars))
        refuse_unfit(machines, outputs.image_line, named=bool(job.machine.instance))
    job = with_candles(job, candles)
    spot = job.machine.market == "spot"
    offers = look(access, outputs=outputs, machines=machines, spot=spot, pinned_image=pinned_image)
    rates = known_rates(job, machines, objects, access.place)
    boots = known_boots(objects)
    plan = plan_launch(job, candles, offers, outputs, rates, place=access.place, boots=boots)
    return PlannedRetrain(job=job, candles=candles, offers=offers, plan=plan)
