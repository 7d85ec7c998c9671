"""Store what a run that is done took, for later plans: its boot, and its phases beside those predicted.

Nodes may not write there. Write failures are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from trainer.aws.objects import Conflict, Objects, put_over
from trainer.aws.place import place_named
from trainer.base.errors import TrainerError
from trainer.job.reading import job_from
from trainer.launch.knowledge import shape_on
from trainer.launch.machines import any_type
from trainer.machines.planner import profile_on
from trainer.runs import boot, calibration, capacity
from trainer.runs.attempts import Rung
from trainer.runs.record import RunRecord

TRIES = 5  # tries of a compare-and-swap, against other runs that end at the same time


def learn_boot(objects: Objects, receipt: Mapping[str, Any]) -> None:
    """Store the boot times of a run that is done under its instance type. Never raises TrainerError."""
    if receipt["state"] != "done" or not receipt["boot"] or not receipt["instances"]:
        return
    instance_type = str(receipt["instances"][-1]["instance_type"])
    _change(
        objects,
        boot.OBJECT,
        lambda stored: boot.to_bytes(boot.with_boot(boot.boots_from(stored), instance_type, receipt["boot"])),
    )


def learn_time(objects: Objects, record: RunRecord, receipt: Mapping[str, Any]) -> None:
    """Append what a run that is done took, beside what its plan predicted, for later plans. Runs of several
    attempts, and those that continue another one, trained only a part in their phases: they are left out.
    Never raises TrainerError.
    """
    launch, is_part = record.last_launch, len(record.attempts) > 1 or record.parent
    if receipt["state"] != "done" or record.leaves != "models" or launch is None or is_part:
        return
    rung, took = record.ladder[launch.rung], receipt["seconds"]
    if not rung.predicted:
        return
    with suppress(TrainerError):
        job, machine = job_from(record.job), any_type(rung.instance_type)
        profile, pieces = profile_on(machine, place_named(record.place)), len(record.pieces)
        shape = shape_on(job, profile, devices=machine.num_trainers * record.num_nodes, pieces=pieces)
        run = calibration.TimedRun(
            run_id=record.run_id,
            case=calibration.case_of(record.place, rung.instance_type, shape),
            visits=rung.visits,
            predicted=rung.predicted,
            actual=(took["boot"], took["stage"], took["train"], took["upload"] + took["terminate"]),
        )
        _change(
            objects,
            calibration.OBJECT,
            lambda stored: calibration.to_bytes(calibration.with_run(calibration.runs_from(stored), run)),
        )


def learn_full(objects: Objects, rung: Rung, now: datetime) -> None:
    """Store that a rung's pool is full, for launches of the next three minutes. Never raises TrainerError."""
    _change(
        objects,
        capacity.OBJECT,
        lambda stored: capacity.to_bytes(capacity.with_full(capacity.full_from(stored, now), rung, now)),
    )


def _change(objects: Objects, key: str, change: Callable[[bytes], bytes]) -> None:
    """Change an object by compare-and-swap, from b"" if there is none; b"" leaves it as it is."""
    with suppress(TrainerError):
        for _ in range(TRIES):
            stored = objects.get(key=key)
            body = change(stored.body if stored else b"")
            if not body:
                return
            with suppress(Conflict):
                put_over(objects, key, body, stored)
                return
