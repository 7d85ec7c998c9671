"""Knowledge for a launch: rates of the planned chips, what earlier runs took, and the user's own profiles.

Reads the bucket and the user's file at this desk. Writes nothing: `control.learn` adds what runs took.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from trainer.aws.objects import Objects
from trainer.aws.place import Place
from trainer.base.errors import TrainerError
from trainer.job.job import Job
from trainer.machines.chips import GpuProfile, named_profile, user_tables
from trainer.machines.instances import InstanceType
from trainer.machines.memory import CPU
from trainer.machines.planner import profile_on
from trainer.machines.rates import Rate, rate_of
from trainer.machines.shapes import of_a_device, shape_of
from trainer.runs.boot import OBJECT as BOOTS
from trainer.runs.boot import Boots, boots_from
from trainer.runs.calibration import OBJECT as CALIBRATION
from trainer.runs.calibration import Calibrated, calibrated, case_of, runs_from


def profiles_of(job: Job, machines: Iterable[InstanceType], place: Place) -> tuple[GpuProfile, ...]:
    """Return the profile that will apply on each machine."""
    if place.chip:
        return (named_profile(place.chip),)
    if job.machine.gpu_profile:
        return (named_profile(job.machine.gpu_profile),)
    profiles = (profile_on(machine, place) for machine in machines)
    return tuple({profile.key: profile for profile in profiles}.values())


def shape_on(job: Job, profile: GpuProfile, *, devices: int, pieces: int) -> str:
    """Return the shape of the job as a machine with so many devices of this profile trains it."""
    on_gpu = profile.name != CPU
    return shape_of(of_a_device(job, devices=devices, pieces=pieces, on_gpu=on_gpu))


def known_boots(objects: Objects) -> Boots:
    """Return the boots of earlier runs by type; none if they can't be read."""
    try:
        stored = objects.get(key=BOOTS)
    except TrainerError:
        return {}
    return boots_from(stored.body) if stored else {}


def known_rates(
    job: Job, machines: Sequence[InstanceType], place: Place, *, pieces: int = 1
) -> dict[str, Rate]:
    """Return instance type -> the rate of one of its GPUs, or of a core, for so many models of the job.

    It is that of the machine's own chip; the job's profile, which may be another chip's, is ignored.
    """
    return {
        machine.name: rate_of(
            profile_on(machine, place),
            job,
            models=math.ceil(pieces / (machine.num_trainers * job.machine.nodes)),
        )
        for machine in machines
    }


def known_calibration(
    job: Job, machines: Sequence[InstanceType], objects: Objects, place: Place, *, pieces: int
) -> dict[str, Calibrated]:
    """Return instance type -> what the last runs of the job's shape took on it at a place, where there were
    enough.
    """
    try:
        stored = objects.get(key=CALIBRATION)
    except TrainerError:
        return {}
    runs = runs_from(stored.body) if stored else ()
    if not runs:
        return {}
    found = {}
    for machine in machines:
        profile = profile_on(machine, place)
        shape = shape_on(job, profile, devices=machine.num_trainers * job.machine.nodes, pieces=pieces)
        found[machine.name] = calibrated(runs, case_of(place.name, machine.name, shape))
    return {name: one for name, one in found.items() if one is not None}


def own_profiles(job: Job, profiles: Sequence[GpuProfile]) -> dict[str, dict[str, Any]]:
    """Return the entries of the user's file for the profiles that this launch may need, in the file's
    format.
    """
    tables = user_tables()
    needed = {profile.name for profile in profiles} | {job.machine.gpu_profile}
    return {name: table for name, table in tables.items() if name in needed}
