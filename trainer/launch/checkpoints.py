"""The cost of a run's checkpoints in S3 on one machine, for its plan. Pure.

A model's checkpoint is superseded by its next one, and gone two days later at most (`runs.snapshots`). They
may be written oftener than the plan says, if one takes little time, as long as they stay below 1 % of the
machine's price (`node.snapshots`).
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
from trainer.launch.candidates import PlanCandidate
from trainer.machines.memory import checkpoint_bytes, fit
from trainer.machines.planner import profile_on
from trainer.runs.snapshots import (
    LOOKS,
    MOST_COST,
    MOST_SECONDS,
    PACK_BYTES,
    TRAINING_SECONDS,
    affordable_bytes,
    hourly_usd,
)


@dataclass(frozen=True, kw_only=True)
class CheckpointCost:
    """The cost of checkpoints at their longest interval. The size of a script's is unknown before it runs."""

    bytes: int  # of all models that train at a time; 0: unknown
    seconds: float  # between two of a model
    usd_per_hour: float  # 0: unknown
    share: float  # of the machine's price
    affordable_bytes: int  # each time, for 1 % of the machine's price

    @property
    def is_over(self) -> bool:
        """Return whether they cost more than the share that they should."""
        return self.share > MOST_COST

    def to_dict(self) -> dict[str, Any]:
        """Return it as `--dry-run --json` prints it."""
        return {
            "bytes": self.bytes,
            "seconds": self.seconds,
            "usd_per_hour": round(self.usd_per_hour, 6),
            "share": round(self.share, 6),
            "affordable_bytes": self.affordable_bytes,
        }


def checkpoint_cost(
    job: Job, pieces: Sequence[Piece], candidate: PlanCandidate, *, place: Place
) -> CheckpointCost:
    """Return the cost of a job's checkpoints on a machine. A model without a cost has size 0."""
    script, price = bool(job.script.command), candidate.price_usd_per_hour
    seconds = MOST_SECONDS if script else min(TRAINING_SECONDS, job.train.checkpoint_seconds)
    size = 0 if script else _size(job, pieces, candidate, place=place)
    puts = 2 if script else 2 * LOOKS + math.ceil(size / PACK_BYTES)
    usd = hourly_usd(puts=puts, size=size, seconds=seconds) if size else 0.0
    return CheckpointCost(
        bytes=size,
        seconds=seconds,
        usd_per_hour=usd,
        share=usd / price if price else 0.0,
        affordable_bytes=affordable_bytes(price, puts=puts, seconds=seconds),
    )


def _size(job: Job, pieces: Sequence[Piece], candidate: PlanCandidate, *, place: Place) -> int:
    """Return the bytes of one checkpoint of each model that trains at a time."""
    each = checkpoint_bytes(job, features=len(job.data.inputs))
    return round(each * min(len(pieces), _at_a_time(job, pieces, candidate, place=place)))


def _at_a_time(job: Job, pieces: Sequence[Piece], candidate: PlanCandidate, *, place: Place) -> int:
    if takes_all_devices(job):
        return 1
    machine, profile = candidate.machine, profile_on(candidate.machine, place)
    if place.chip:
        return max(1, machine.num_workers)
    bars = max((piece.bars for piece in pieces), default=0)
    try:
        known: dict[str, Any] = {
            "memory_gib": machine.gpu_memory_gib,
            "features": len(job.data.inputs),
            "bars": bars,
        }
        return machine.num_workers * fit(profile, job, **known).models
    except UsageError:  # a user's own model that has no formula
        return max(1, machine.num_workers)
