"""Merge a run's measurements into the bucket's, for later launches; nodes may not write there.

A node's measurements are claims: only a run that is done teaches, only about the shape of its own job on the
chip of its own machine, and only what its own time does not contradict. A stored rate that its time
contradicts is dropped. Write failures are ignored; the next run tunes again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from trainer.aws.place import place_named
from trainer.base.errors import TrainerError
from trainer.job.job import Job, job_from
from trainer.launch.knowledge import shape_on
from trainer.machines.chips import GpuProfile
from trainer.machines.instances import InstanceType, instance_type
from trainer.machines.measurements import OBJECT, Entry, from_bytes, sound, to_bytes
from trainer.machines.planner import profile_on
from trainer.machines.rates import rate_of
from trainer.runs import boot, calibration, capacity
from trainer.runs.record import Rung, RunRecord
from trainer.runs.store import Conflict, Objects, put_over

TRIES = 5  # tries of a compare-and-swap, against other runs that end at the same time
# A training may take so many times its estimate, and five minutes: early stopping makes it shorter, and its
# phase includes the imports and the tuner's trial. Beyond that, its rate is wrong.
SHORTEST, LONGEST, START_SECONDS = 1 / 5, 3.0, 300.0


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """A shape of model on a profile, and the time that a run's training of it took."""

    job: Job
    profile: GpuProfile
    machine: InstanceType
    shape: str
    pieces: int
    visits: float  # planned windows of one device; 0: not estimated
    seconds: float  # of the training

    def contradicts(self, entry: Entry) -> bool:
        """Return whether the training took another time than the entry's rate gives; never without an
        estimate.
        """
        rate = rate_of(self.profile, self.job, entry)
        if not (rate.is_measured and self.visits and self.pieces):
            return False
        estimate = self.visits / rate.on_machine(self.pieces, self.machine.num_workers)
        return not estimate * SHORTEST - START_SECONDS <= self.seconds <= estimate * LONGEST + START_SECONDS


def learn(
    objects: Objects, record: RunRecord, receipt: Mapping[str, Any], measured: Mapping[str, Any]
) -> None:
    """Merge what a closed run measured (profile -> shape -> entry) by compare-and-swap; idempotent. Never
    raises TrainerError.
    """
    with suppress(TrainerError):
        lesson = _lesson(record, receipt)
        if lesson is None:
            return
        key, shape = lesson.profile.key, lesson.shape
        claim = sound(measured).get(key, {}).get(shape)
        if claim is not None and lesson.contradicts(claim):
            claim = None

        def merge(stored: bytes) -> bytes:
            known = from_bytes(stored)
            entry = known.get(key, {}).get(shape)
            kept = entry if entry is None or not lesson.contradicts(entry) else None
            after = claim or kept
            if after == entry:
                return b""
            others = {name: value for name, value in known.get(key, {}).items() if name != shape}
            return to_bytes({**known, key: {**others, **({shape: after} if after else {})}})

        _change(objects, OBJECT, merge)


def _lesson(record: RunRecord, receipt: Mapping[str, Any]) -> Lesson | None:
    """Return what a run can teach about; None for one that is not done or made no models on an instance."""
    launch = record.last_launch
    if receipt["state"] != "done" or record.leaves != "models" or launch is None:
        return None
    rung = record.ladder[launch.rung]
    job, machine = job_from(record.job), instance_type(rung.instance_type)
    profile, pieces = profile_on(machine, place_named(record.place)), len(record.pieces)
    return Lesson(
        job=job,
        profile=profile,
        machine=machine,
        shape=shape_on(job, profile, devices=machine.num_workers, pieces=pieces),
        pieces=pieces,
        visits=rung.visits,
        seconds=float(receipt["seconds"]["train"]),
    )


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
    attempts, whose phases are mixed, are left out. Never raises TrainerError.
    """
    with suppress(TrainerError):
        lesson = _lesson(record, receipt)
        if lesson is None or len(record.attempts) > 1 or record.last_launch is None:
            return
        rung, took = record.ladder[record.last_launch.rung], receipt["seconds"]
        if not rung.predicted:
            return
        run = calibration.TimedRun(
            run_id=record.run_id,
            case=calibration.case_of(record.place, rung.instance_type, lesson.shape),
            day=str(receipt["closed_at"] or receipt["created_at"])[:10],
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
