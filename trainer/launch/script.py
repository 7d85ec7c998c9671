"""Plan and register a script's run: what it costs at most, its manifest, its record.

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
from typing import Any

from trainer.aws.place import Place
from trainer.aws.stack_outputs import StackOutputs, script_secrets_path
from trainer.base.errors import TrainerError
from trainer.job.job import Job
from trainer.job.pieces import pieces_of
from trainer.job.script import KIND
from trainer.launch.bundle import BundleName
from trainer.launch.manifest import FORMAT, write_manifest
from trainer.launch.plan import EARLIER_RUN, LaunchPlan, make_plan
from trainer.launch.preflight import Offers
from trainer.launch.start import new_record
from trainer.machines.instances import instance_type
from trainer.machines.planner import Workload
from trainer.machines.rates import NOT_ESTIMATED, Rate
from trainer.machines.storage import storage_cost
from trainer.runs.boot import Boots
from trainer.runs.index import begin_run, read_index
from trainer.runs.receipt import Receipt
from trainer.runs.record import Driver, RunRecord, iso
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
    if receipt["work"] != KIND:
        return {}
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
    pieces = tuple(
        replace(piece, estimate=known.shares.get(piece.title, 1.0))
        for piece in pieces_of(job, (), timeframe="")
    )
    unknown = Rate(per_second=1.0, basis=NOT_ESTIMATED)
    return make_plan(
        job,
        Workload(pieces=pieces, window_cost_gpu=1.0, window_cost_cpu=1.0),
        offers,
        subnets=outputs.subnets,
        region=outputs.region,
        place=place,
        cap=timedelta(minutes=outputs.max_lifetime_minutes),
        rates={machine.name: known.rates.get(machine.name, unknown) for machine in offers.priced.machines},
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
    by = {"preflight_at": preflight_at, "now": now}
    record = new_record(job, plan, bundle, outputs, **by, run_id=run_id, driver=driver)
    if job.script.secrets:  # the one role that reads them; the training role does not
        record = replace(
            record, instance_role_id=outputs.script_role_id, instance_profile=outputs.script_profile_arn
        )
    return replace(
        record, work="script", estimated_usd=plan.first.dollars_p50 if plan.first.is_estimated else 0.0
    )


def register_script(record: RunRecord, manifest: dict[str, Any], objects: Objects) -> None:
    """Write manifest, entry in the index and record. Raises Conflict if the run's manifest or record
    exists.
    """
    write_manifest(manifest, objects)
    begin_run(objects, record)


def script_manifest(
    record: RunRecord,
    job: Job,
    plan: LaunchPlan,
    bundle: BundleName,
    files: Mapping[str, str],
    inputs: Iterable[Mapping[str, Any]],
    offers: Offers,
    *,
    sha256: str,
    ssh_key: str = "",
) -> dict[str, Any]:
    """Return the manifest: code, script and data by hash, and the pieces. Paths at the desk are left out.

    `files`: path -> sha256 of the script's files. `sha256`: of all that its duration depends on.
    """
    machines = [instance_type(name) for name in dict.fromkeys(rung.instance_type for rung in record.ladder)]
    return {
        "format": FORMAT,
        "work": KIND,
        "run_id": record.run_id,
        "created_at": iso(record.created_at),
        "place": record.place,
        "job": job.without_desk().to_dict(),
        "code": {"key": bundle.key, "sha256": bundle.sha256},
        "lock_sha256": bundle.lock_sha256,
        "script_files": dict(files),
        "script_sha256": sha256,
        "ssh_key": ssh_key,
        "secrets": {
            name: f"{script_secrets_path(record.project, record.stack)}{name}" for name in job.script.secrets
        },
        "image": {"line": offers.image_line, "id": offers.image_id},
        "inputs": [dict(entry) for entry in inputs],
        "pieces": [
            {"model": piece.model, **piece.identity, "estimate": planned.estimate}  # the longest first
            for piece, planned in zip(record.pieces, plan.pieces, strict=True)
        ],
        "instance_types": {
            machine.name: {"gpu_count": machine.num_workers, "smoke_seconds": machine.boot.smoke_seconds}
            for machine in machines
        },
    }


def _receipt(objects: Objects, run_id: str) -> Receipt | None:
    try:
        return read_receipt(objects, run_id)
    except TrainerError:
        return None
