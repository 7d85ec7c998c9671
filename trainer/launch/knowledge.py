"""What a launch knows from earlier runs: ways to train and rates that tuners found on the planned chips, and profiles of the
user's own, which its node is told.

Reads `memory/tuned/` of the bucket and the user's file at this desk. Writes nothing: `control.learn` adds to the memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from trainer.cost.instances import InstanceType
from trainer.cost.planner import profile_on
from trainer.errors import TrainerError
from trainer.gpu_profiles.chips import GpuProfile, named_profile, user_tables
from trainer.gpu_profiles.rates import Rate, rate_of
from trainer.gpu_profiles.tuned import Entry, from_memory, key_of, memory_key, shape_of
from trainer.job import Job
from trainer.runs.store import Objects

_PARALLEL = 5


def profiles_of(job: Job, machines: Iterable[InstanceType], *, rehearsal: bool) -> tuple[GpuProfile, ...]:
    """Return the profile that will hold on each machine: in a rehearsal the CPU's, whatever GPUs the machine would have."""
    if rehearsal:
        return (named_profile("cpu"),)
    if job.machine.gpu_profile:
        return (named_profile(job.machine.gpu_profile),)
    found = (profile_on(machine, rehearsal=False) for machine in machines)
    return tuple({key_of(profile): profile for profile in found}.values())


def known_ways(job: Job, profiles: Sequence[GpuProfile], objects: Objects) -> dict[str, dict[str, Entry]]:
    """Return profile -> shape -> entry of what is remembered of the job's shape; nothing where the memory can't be read."""
    shape = shape_of(job)
    keys = [key_of(profile) for profile in profiles]
    with ThreadPoolExecutor(max_workers=_PARALLEL) as pool:
        remembered = dict(zip(keys, pool.map(lambda key: _remembered(key, objects), keys), strict=True))
    return {key: {shape: entries[shape]} for key, entries in remembered.items() if shape in entries}


def known_rates(job: Job, machines: Iterable[InstanceType], objects: Objects, *, rehearsal: bool) -> dict[str, Rate]:
    """Return instance type -> the rate of one of its GPUs (in a rehearsal: of a core) for the job's models.

    Measured where the memory has this shape on the machine's own chip, whatever profile the job names: that may be another's.
    """
    profiles = {machine.name: profile_on(machine, rehearsal=rehearsal) for machine in machines}
    known = known_ways(job, list({key_of(profile): profile for profile in profiles.values()}.values()), objects)
    shape = shape_of(job)
    return {name: rate_of(profile, job, known.get(key_of(profile), {}).get(shape)) for name, profile in profiles.items()}


def own_profiles(job: Job, profiles: Sequence[GpuProfile]) -> dict[str, dict[str, Any]]:
    """Return what the user's file says of the profiles that this launch may need, in the file's own form."""
    tables = user_tables()
    needed = {profile.name for profile in profiles} | {job.machine.gpu_profile}
    return {name: table for name, table in tables.items() if name in needed}


def _remembered(key: str, objects: Objects) -> dict[str, Entry]:
    try:
        stored = objects.get(key=memory_key(key))
    except TrainerError:  # it saves a minute of tuning: no reason to stop a launch
        return {}
    return from_memory(stored.body) if stored else {}
