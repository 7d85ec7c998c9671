"""The side effects that `reconcile` may ask for, as values. `control.drive` carries them out.

Each may be repeated: a Store is a compare-and-swap, a Create has a token, and the others change nothing the
second time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from trainer.runs.attempts import Launch
from trainer.runs.keys import NodeKeys
from trainer.runs.record import RunRecord


@dataclass(frozen=True, kw_only=True)
class Store:
    """Replace the record that was decided on, by compare-and-swap. After a lost race the following actions
    are dropped.
    """

    record: RunRecord
    why: str


@dataclass(frozen=True, kw_only=True)
class ArmSweep:
    """Create, or move, the one-time schedule that calls the sweeper for this run. Precedes every create."""

    at: datetime


@dataclass(frozen=True, kw_only=True)
class ArmKill:
    """Create the one-time schedule that calls ec2:terminateInstances itself, once the ids are known."""

    attempt: int
    instance_ids: tuple[str, ...]
    at: datetime


@dataclass(frozen=True, kw_only=True)
class DeletePlacementGroup:
    """Delete the placement group of a run whose instances are gone. If AWS still counts them in it, the run
    `waits`, or leaves it.
    """

    name: str
    waits: bool = True


@dataclass(frozen=True, kw_only=True)
class Create:
    """Call CreateFleet for a stored intent; repeated calls use the same token. Nodes of one model have their
    placement group made before.
    """

    launch: Launch


@dataclass(frozen=True, kw_only=True)
class Carry:
    """Write an attempt's start file, once: what earlier attempts finished, with copies of their checkpoints.
    Precedes every create.
    """

    attempt: int


@dataclass(frozen=True, kw_only=True)
class WriteIds:
    """Add the ids whose word counts to an attempt's start file; a node that is not named ends itself. Several
    nodes also get each other's addresses there, and their token, each under a key of its own.
    """

    attempt: int
    instance_ids: tuple[str, ...]
    addresses: tuple[str, ...] = ()  # private, in the same order; (): of one node


@dataclass(frozen=True, kw_only=True)
class WriteStop:
    """Write the object that asks the node to end; the node looks for it with each heartbeat."""

    attempt: int
    requested_at: datetime


@dataclass(frozen=True, kw_only=True)
class Terminate:
    """Terminate instances, one call each; a missing one counts as terminated."""

    instance_ids: tuple[str, ...]
    why: str


@dataclass(frozen=True, kw_only=True)
class DeleteTokens:
    """Delete the tokens of nodes that are gone, with every version."""

    nodes: tuple[NodeKeys, ...]


@dataclass(frozen=True, kw_only=True)
class DeleteSchedule:
    """Delete a one-time schedule of a run whose instances are gone."""

    name: str


@dataclass(frozen=True, kw_only=True)
class Close:
    """Write the receipt, once, and then the closed record."""

    record: RunRecord


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Do nothing for now."""

    why: str


Action = (
    Store
    | Carry
    | ArmSweep
    | ArmKill
    | DeletePlacementGroup
    | Create
    | WriteIds
    | WriteStop
    | Terminate
    | DeleteTokens
    | DeleteSchedule
    | Close
    | Wait
)


def sweep_schedule(run_id: str) -> str:
    """Return the name of the run's one-time schedule that calls the sweeper."""
    return f"mayfly-{run_id}-sweep"


def kill_schedule(run_id: str, attempt: int) -> str:
    """Return the name of an attempt's one-time schedule that calls ec2:terminateInstances."""
    return f"mayfly-{run_id}-kill-{attempt}"
