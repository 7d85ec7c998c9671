"""Measurements of earlier runs for a launch: settings and rates on the planned chips, and the user's own
profiles.

Reads the measurements in the bucket and the user's file at this desk. Writes nothing: `control.learn` adds
measurements.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from trainer.aws.place import Place
from trainer.base.errors import TrainerError
from trainer.job.job import Job
from trainer.job.pieces import takes_all_devices
from trainer.launch.gpu_table import COUNTS
from trainer.machines.chips import GpuProfile, named_profile, user_tables
from trainer.machines.instances import InstanceType
from trainer.machines.measurements import OBJECT, Measurements, from_bytes, of_a_rank, shape_of
from trainer.machines.planner import profile_on
from trainer.machines.rates import Rate, rate_of
from trainer.runs.boot import OBJECT as BOOTS
from trainer.runs.boot import Boots, boots_from
from trainer.runs.store import Objects


def profiles_of(job: Job, machines: Iterable[InstanceType], place: Place) -> tuple[GpuProfile, ...]:
    """Return the profile that will apply on each machine."""
    if place.chip:
        return (named_profile(place.chip),)
    if job.machine.gpu_profile:
        return (named_profile(job.machine.gpu_profile),)
    profiles = (profile_on(machine, place) for machine in machines)
    return tuple({profile.key: profile for profile in profiles}.values())


def shapes_of(job: Job) -> dict[int, str]:
    """Return the shape that a trial times, by the number of GPUs that train one model of the job."""
    counts = COUNTS if takes_all_devices(job) else (1,)
    return {count: shape_of(of_a_rank(job, count)) for count in counts}


def known_tunings(job: Job, profiles: Sequence[GpuProfile], objects: Objects) -> Measurements:
    """Return the entries for the job's shapes on these profiles; none if the bucket's measurements can't be
    read.
    """
    shapes = set(shapes_of(job).values())
    try:
        stored = objects.get(key=OBJECT)
    except TrainerError:  # entries only save a trial: no reason to stop a launch
        return {}
    known = from_bytes(stored.body) if stored else {}
    keys = [profile.key for profile in profiles]
    found = {
        key: {shape: entry for shape, entry in known.get(key, {}).items() if shape in shapes} for key in keys
    }
    return {key: entries for key, entries in found.items() if entries}


def known_boots(objects: Objects) -> Boots:
    """Return the boots of earlier runs by type; none if they can't be read."""
    try:
        stored = objects.get(key=BOOTS)
    except TrainerError:
        return {}
    return boots_from(stored.body) if stored else {}


def known_rates(
    job: Job, machines: Sequence[InstanceType], objects: Objects, place: Place
) -> dict[str, Rate]:
    """Return instance type -> the rate of one of its GPUs, or of a core, for the job's models.

    Measured if the bucket has this shape on the machine's own chip; the job's profile, which may be another
    chip's, is ignored.
    """
    profiles = {machine.name: profile_on(machine, place) for machine in machines}
    known = known_tunings(job, list(profiles.values()), objects)
    shapes = shapes_of(job)
    by_name = {machine.name: shapes.get(machine.num_workers, shapes[1]) for machine in machines}
    return {
        name: rate_of(one, job, known.get(one.key, {}).get(by_name[name])) for name, one in profiles.items()
    }


def own_profiles(job: Job, profiles: Sequence[GpuProfile]) -> dict[str, dict[str, Any]]:
    """Return the entries of the user's file for the profiles that this launch may need, in the file's
    format.
    """
    tables = user_tables()
    needed = {profile.name for profile in profiles} | {job.machine.gpu_profile}
    return {name: table for name, table in tables.items() if name in needed}
