"""The cost of a run's checkpoints in S3 on one machine, for its plan. Pure.

A model's checkpoint is superseded by its next one, and gone two days later at most (`runs.snapshots`). They
are as far apart as keeps them below 1 % of the machine's price, and may be written oftener than the plan
says while they stay below it (`node.snapshots`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainer.aws.place import Place
from trainer.base.errors import UsageError
from trainer.job.job import Job
from trainer.job.pieces import takes_all_devices
from trainer.job.pieces.piece import Piece
from trainer.machines.instances import InstanceType
from trainer.machines.memory import checkpoint_bytes, fit
from trainer.machines.planner import profile_on
from trainer.runs.snapshots import (
    LOOKS,
    MOST_COST,
    MOST_SECONDS,
    PACK_BYTES,
    TRAINING_SECONDS,
    affordable_bytes,
    affordable_seconds,
    hourly_usd,
    snapshot_usd,
)


@dataclass(frozen=True, kw_only=True)
class CheckpointCost:
    """The cost of checkpoints at their longest interval. The size of a script's is unknown before it runs."""

    bytes: int  # of all models that train at a time; 0: unknown
    seconds: float  # between two of a model, or of a script's
    lost_seconds: float  # of work, at most, with a lost machine
    usd_per_hour: float  # 0: unknown
    share: float  # of the machine's price
    affordable_bytes: int  # each time, for 1 % of the machine's price

    @property
    def is_over(self) -> bool:
        """Return whether they cost more than the share that they should, as the job has it."""
        return self.share > MOST_COST * (1 + 1e-9)

    @property
    def is_stretched(self) -> bool:
        """Return whether they are further apart than two minutes, for that share."""
        return self.lost_seconds > MOST_SECONDS * (1 + 1e-9)

    def to_dict(self) -> dict[str, Any]:
        """Return it as `--dry-run --json` prints it."""
        return {
            "bytes": self.bytes,
            "seconds": round(self.seconds, 1),
            "lost_seconds": round(self.lost_seconds, 1),
            "usd_per_hour": round(self.usd_per_hour, 6),
            "share": round(self.share, 6),
            "affordable_bytes": self.affordable_bytes,
        }


def checkpoint_cost(
    job: Job, pieces: Sequence[Piece], machine: InstanceType, *, usd_per_hour: float, place: Place
) -> CheckpointCost:
    """Return the cost of a job's checkpoints on a machine at a price. A model without a cost has size 0."""
    script = bool(job.script.command)
    size = 0 if script else _size(job, pieces, machine, place=place)
    puts = 2 if script else 2 * LOOKS + math.ceil(size / PACK_BYTES)
    of_machine = affordable_seconds(snapshot_usd(puts=puts, size=size), usd_per_hour=usd_per_hour)
    of_machine = max(MOST_SECONDS if script else TRAINING_SECONDS, of_machine)
    # A job that asks for more often than every TRAINING_SECONDS has it at its price.
    of_job = job.train.checkpoint_seconds
    seconds = of_job if not script and of_job < TRAINING_SECONDS else of_machine
    usd = hourly_usd(puts=puts, size=size, seconds=seconds) if size else 0.0
    return CheckpointCost(
        bytes=size,
        seconds=seconds,
        lost_seconds=seconds if script else seconds + of_machine / LOOKS,
        usd_per_hour=usd,
        share=usd / usd_per_hour if usd_per_hour else 0.0,
        affordable_bytes=affordable_bytes(usd_per_hour, puts=puts, seconds=seconds),
    )


def _size(job: Job, pieces: Sequence[Piece], machine: InstanceType, *, place: Place) -> int:
    """Return the bytes of one checkpoint of each model that trains at a time."""
    each = checkpoint_bytes(job, features=len(job.data.inputs))
    return round(each * min(len(pieces), _at_a_time(job, pieces, machine, place=place)))


def _at_a_time(job: Job, pieces: Sequence[Piece], machine: InstanceType, *, place: Place) -> int:
    if takes_all_devices(job):
        return 1
    profile = profile_on(machine, place)
    if place.chip or not machine.gpus:
        return machine.num_trainers
    bars = max((piece.bars for piece in pieces), default=0)
    try:
        known: dict[str, Any] = {
            "memory_gib": machine.gpu_memory_gib,
            "features": len(job.data.inputs),
            "bars": bars,
        }
        return machine.num_workers * fit(profile, job, **known).models
    except UsageError:  # a user's own model that has no formula
        return machine.num_workers
