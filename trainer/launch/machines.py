"""The instance types of a job: its own or the defaults, limited by its GPU profile; those that can't work are
refused. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainer.aws.place import ACCOUNT
from trainer.base.errors import ConfigError, UsageError, nearest
from trainer.job.job import Job
from trainer.machines.chips import named_profile
from trainer.machines.choice import check_fits
from trainer.machines.compatibility import judge
from trainer.machines.cpu_types import cpu_instance_type, cpu_types, refuse_arm
from trainer.machines.instances import (
    InstanceType,
    catalogue,
    instance_type,
    replacements,
)
from trainer.machines.planner import Workload, dollars, estimate

# Candidates of a job that names no type: one or four GPUs that most accounts can get (2026-11-20).
DEFAULT_TYPES = ("g6.xlarge", "g5.xlarge", "g6e.xlarge", "g6.12xlarge", "g5.12xlarge")


def machines_of(job: Job) -> list[InstanceType]:
    """Return the types to weigh: the job's own, else those of DEFAULT_TYPES whose GPU is as large as the
    job's profile.

    The manifest carries a user's own profile. Raises UsageError for an unknown type or profile, for the
    CPU's, and for a profile that is larger than a GPU of the job's.
    """
    named = tuple(dict.fromkeys(job.machine.instance))
    if without := [name for name in named if name in cpu_types()]:
        return _without_gpus(job, without, has_others=len(without) < len(named))
    machines = [_known(name) for name in named or DEFAULT_TYPES]
    if not job.machine.gpu_profile:
        return machines
    profile = named_profile(job.machine.gpu_profile)
    if profile.name == "cpu":
        raise UsageError(
            "GPU profile cpu is for desks only",
            why="an instance trains on the GPUs that it is paid for",
            do="Leave machine.gpu_profile out: an instance finds its own.",
        )
    fitting, refusal = [], None
    for machine in machines:
        try:
            check_fits(profile, chip=machine.gpu_model, memory_gib=machine.gpu_memory_gib)
            fitting.append(machine)
        except UsageError as error:
            refusal = error
    if refusal is not None and (job.machine.instance or not fitting):
        raise refusal
    return fitting


def any_type(name: str) -> InstanceType:
    """Look a type up, with GPUs or without. Raises UsageError as `machines_of` does."""
    return cpu_types().get(name) or _known(name)


def _known(name: str) -> InstanceType:
    """Look a type with GPUs up. Raises UsageError with the nearest names of all types, or for one of Arm."""
    if name not in catalogue():
        refuse_arm(name)
        if do := nearest(name, (*catalogue(), *cpu_types())):
            raise UsageError(f"unknown instance type '{name}'", do=do)
    return instance_type(name)


def _without_gpus(job: Job, names: Sequence[str], *, has_others: bool) -> list[InstanceType]:
    """Return types without a GPU, which scripts and agents may have. Raises UsageError for a job that needs
    one.
    """
    do = "Name a type such as g6.xlarge."
    if not job.may_lack_gpus:
        raise UsageError(f"{names[0]} has no GPU", why="models are trained on GPUs", do=do)
    if has_others:
        why = "the machine is told before it starts whether to look for GPUs"
        raise UsageError("types with and without GPUs in one job", why=why, do="Name those of one kind.")
    if job.script.gpus or job.machine.gpu_profile:
        key = "script.gpus" if job.script.gpus else "machine.gpu_profile"
        raise UsageError(f"{names[0]} has no GPU", why=f"the job has {key}", do=f"Leave out {key}, or: {do}")
    return [cpu_instance_type(name) for name in names]


def refuse_small_disks(machines: Sequence[InstanceType], input_bytes: int, *, volume_gib: int) -> None:
    """Raise UsageError for a type whose disk is smaller than the inputs: its local disks, else the root disk.

    The machine itself checks its free space before it downloads anything.
    """
    for machine in machines:
        most = max(volume_gib * 2**30, machine.local_disk_gb * 1e9)
        if volume_gib and input_bytes > most:
            why = f"its disk has {most / 2**30:,.0f} GiB"
            do = "Name a type with larger local disks, or raise the stack's volume_gib."
            raise UsageError(
                f"{machine.name} can't hold {input_bytes / 2**30:,.1f} GiB of data", why=why, do=do
            )


def refuse_retired(machines: Sequence[InstanceType], work: Workload | None) -> None:
    """Refuse types that AWS no longer starts, before any write. Raises UsageError naming replacements with
    time and cost.
    """
    for machine in machines:
        if machine.launchable:
            continue
        why = (
            "AWS ended P3 between 2026-04-01 and 2026-05-01"
            if machine.status == "retired"
            else "no current image or torch wheel runs on it"
        )
        options = [_option(other, work) for other in replacements(machine)]
        listed = f"{', '.join(options[:-1])} or {options[-1]}"
        nearest_type = replacements(machine)[0].name
        raise UsageError(
            f"{machine.name} cannot be launched on AWS",
            why=why,
            do=(
                f"Use {listed}; the nearest is --instance {nearest_type}. With --rehearse {machine.name}"
                " still runs."
            ),
        )


def refuse_unfit(machines: Sequence[InstanceType], line: str, *, named: bool) -> None:
    """Raise ConfigError for a type that can't work on the stack's image line, or if no type of a default
    choice can.

    `named`: the job names these types. A retired one has its own refusal, with replacements
    (`refuse_retired`).
    """
    verdicts = [judge(machine.name, line) for machine in machines]
    for machine, verdict in zip(machines, verdicts, strict=True):
        if machine.launchable and not verdict.works and (named or not any(one.works for one in verdicts)):
            raise ConfigError(f"{machine.name} would not train on this stack", why=verdict.why, do=verdict.do)


def on_demand_price(machine: InstanceType) -> float:
    """Return the list price in dollars an hour, 0 if unknown."""
    return machine.price_usd_per_hour or 0.0


def _option(machine: InstanceType, work: Workload | None) -> str:
    price = on_demand_price(machine)
    if work is None:
        return f"{machine.name} (${price:.2f}/h)"
    time = estimate(work, machine, place=ACCOUNT)
    return (
        f"{machine.name} (about {max(1, round(time.seconds_p50 / 60))} min,"
        f" ${dollars(time.seconds_p50, price):.2f})"
    )
