"""Plan a command whose pieces the agent starts, such as a user's script: what it costs at most.

Its duration is estimated from the last run of the same script (files, command, variables and data) on that
type, among the runs that ended last; without one it is not estimated. For a script over values, the mean
duration of a value and each value's share of it are known. In any case `max_duration` and the budget end the
run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from trainer.aws.place import Place
from trainer.aws.stack_outputs import StackOutputs
from trainer.base.errors import TrainerError
from trainer.job.job import Job
from trainer.job.pieces import pieces_of
from trainer.job.script import KIND
from trainer.launch.bundle import BundleName
from trainer.launch.plan import EARLIER_RUN, LaunchPlan, make_plan
from trainer.launch.preflight import Offers
from trainer.launch.start import new_record
from trainer.machines.planner import Workload
from trainer.machines.rates import NOT_ESTIMATED, Rate
from trainer.machines.storage import storage_cost
from trainer.runs.boot import Boots
from trainer.runs.index import read_index
from trainer.runs.receipt import Receipt
from trainer.runs.record import Driver, RunRecord
from trainer.runs.store import Objects
from trainer.runs.stored_receipt import read_receipt

RECEIPTS_AT_ONCE = 8


@dataclass(frozen=True, kw_only=True)
class KnownTimes:
    """Measured speed of the same script: pieces a second by instance type, on one place, and each piece's
    share of the mean.
    """

    rates: Mapping[str, Rate] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)  # by piece, in the last run on any type


def known_times(objects: Objects, names: Iterable[str], sha256: str, place: Place) -> KnownTimes:
    """Return how long the same script took in its last runs, by the pieces that were done; unreadable
    receipts are skipped.

    `names`: the names in the ids of its runs, that is of its job and its retrain.
    """
    parts = [f"-{name}-" for name in names]
    ended = [run_id for run_id in read_index(objects).ended if any(part in run_id for part in parts)]
    with ThreadPoolExecutor(RECEIPTS_AT_ONCE) as pool:
        receipts = [
            receipt for receipt in pool.map(lambda run_id: _receipt(objects, run_id), ended) if receipt
        ]
    rates: dict[str, Rate] = {}
    shares: dict[str, float] = {}
    for receipt in receipts:
        seconds = _seconds_of(receipt, sha256)
        if not seconds or not receipt["instances"] or receipt["place"] != place.name:
            continue
        mean = sum(seconds.values()) / len(seconds)
        basis = f"{EARLIER_RUN} {receipt['created_at'][:10]}"
        rates[receipt["instances"][-1]["instance_type"]] = Rate(per_second=1 / mean, basis=basis)
        shares = {piece: value / mean for piece, value in seconds.items()}
    return KnownTimes(rates=rates, shares=shares)


def _seconds_of(receipt: Receipt, sha256: str) -> dict[str, float]:
    """Return the seconds of each piece that was done, if the receipt is of this script."""
    if [item["sha256"] for item in receipt["scripts"]] == [sha256] and receipt[
        "state"
    ] == "done":  # with what was uploaded
        return {receipt["scripts"][0]["piece"]: max(1.0, receipt["seconds"]["train"])}
    return {
        item["piece"]: max(1.0, item["seconds"])
        for item in receipt["scripts"]
        if item["done"] and item["sha256"] == sha256
    }


def plan_script(
    job: Job,
    offers: Offers,
    outputs: StackOutputs,
    *,
    known: KnownTimes,
    place: Place,
    input_bytes: int,
    boots: Boots | None = None,
) -> LaunchPlan:
    """Return the plan of a script's job, estimated from known times. Raises a TrainerError as `make_plan`
    does.
    """
    work = Workload(pieces=pieces_of(job, (), timeframe=""), gpus=job.script.gpus_each)
    return plan_command(
        job, work, offers, outputs, known=known, place=place, input_bytes=input_bytes, boots=boots
    )


def plan_command(
    job: Job,
    work: Workload,
    offers: Offers,
    outputs: StackOutputs,
    *,
    place: Place,
    input_bytes: int,
    known: KnownTimes | None = None,
    boots: Boots | None = None,
) -> LaunchPlan:
    """Return the plan of a command whose pieces the agent starts; without known times it is not estimated."""
    times = known or KnownTimes()
    pieces = tuple(replace(piece, estimate=times.shares.get(piece.title, 1.0)) for piece in work.pieces)
    unknown = Rate(per_second=1.0, basis=NOT_ESTIMATED)
    return make_plan(
        job,
        replace(work, pieces=pieces),
        offers,
        subnets=outputs.subnets,
        region=outputs.region,
        place=place,
        cap=timedelta(minutes=outputs.max_lifetime_minutes),
        rates={machine.name: times.rates.get(machine.name, unknown) for machine in offers.priced.machines},
        storage=storage_cost(outputs.storage, throughput=outputs.efs_throughput, input_bytes=input_bytes),
        boots=boots,
    )


def script_record(
    job: Job,
    plan: LaunchPlan,
    bundle: BundleName,
    outputs: StackOutputs,
    *,
    preflight_at: datetime,
    now: datetime,
    run_id: str = "",
    driver: Driver = "desk",
) -> RunRecord:
    """Return the record of a script's run that begins now; its id is new unless it is given."""
    return new_record(
        job,
        plan,
        bundle,
        outputs,
        preflight_at=preflight_at,
        now=now,
        run_id=run_id,
        driver=driver,
        work=KIND,
        leaves="files",
        secrets=bool(job.script.secrets),
    )


def _receipt(objects: Objects, run_id: str) -> Receipt | None:
    try:
        return read_receipt(objects, run_id)
    except TrainerError:
        return None
