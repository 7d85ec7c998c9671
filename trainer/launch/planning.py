"""From a job and what is known of data, account and rates to its plan: what desk and control share. Reads nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from trainer.cost.planner import workload
from trainer.gpu_profiles.rates import Rate
from trainer.job import Job, with_settings
from trainer.launch.inputs import ChosenCandles, Input, choose
from trainer.launch.plan import LaunchPlan, make_plan
from trainer.launch.preflight import Offers
from trainer.stack_outputs import StackOutputs


def choose_from_set(job: Job, inputs: Sequence[Input]) -> ChosenCandles:
    """Choose the files of the job's data set that it trains on. Raises DataError where none is left."""
    return choose(
        inputs,
        data_set=job.data.set,
        symbols=job.data.symbols,
        timeframe=job.data.timeframe,
        columns=job.data.columns,
        exclude=job.data.exclude,
        fewest_bars=job.model.bars_seen + job.target.bars_ahead,
    )


def with_candles(job: Job, candles: ChosenCandles) -> Job:
    """Return the job with the symbols and the timeframe that its candles decide."""
    return with_settings(job, symbols=list(candles.bars), exclude=[], timeframe=candles.timeframe)


def plan_launch(
    job: Job, candles: ChosenCandles, offers: Offers, outputs: StackOutputs, rates: Mapping[str, Rate], *, rehearsal: bool
) -> LaunchPlan:
    """Return the plan of a job whose candles are chosen. Raises ours as `make_plan` does."""
    return make_plan(
        job,
        workload(job, candles.bars),
        offers,
        subnets=outputs.subnets,
        region=outputs.region,
        rehearsal=rehearsal,
        cap=timedelta(minutes=outputs.max_lifetime_minutes),
        rates=rates,
    )
