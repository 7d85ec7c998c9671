"""One look at a run: its values, their merge into the record's instances, and the proofs that an instance is
gone.

Pure. `control.observe` takes the look. "Terminated" is observed, never assumed: an instance counts as gone
when DescribeInstances shows it terminated, or when it is not found any more, nothing alive carries the run's
tag and its deadline is an hour past (AWS forgets ids after about an hour).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from trainer.runs.attempts import Launch, Rung
from trainer.runs.record import InstanceSeen, RunRecord
from trainer.runs.reports import Heartbeat, NodeResult
from trainer.runs.start_file import StartFile

ALIVE = ("pending", "running")  # states that bill; `shutting-down` bills nothing
ENDED = ("shutting-down", "terminated")
ANNOUNCED = "announced"  # named by CreateFleet, and not shown yet
DESCRIBED = "described terminated"
MISSING = "not found, deadline an hour past"
FORGOTTEN_AFTER = timedelta(hours=1)
# after the last call without a clear answer, for its instance to appear by tag
UNANSWERED = timedelta(minutes=5)


@dataclass(frozen=True, kw_only=True)
class DescribedInstance:
    """One instance that carries the run's tag, as one DescribeInstances shows it."""

    instance_id: str
    attempt: int
    instance_type: str
    market: str
    availability_zone: str
    state: str
    launched_at: datetime
    ended_at: datetime | None = None  # where AWS dates the request to terminate it
    reason: str = ""  # EC2's state reason code, such as Client.InstanceInitiatedShutdown
    private_address: str = ""  # IPv4; "" before it has one, and once it is terminated
    fleet: str = ""  # id of the fleet that made it


@dataclass(frozen=True, kw_only=True)
class Remains:
    """A resource of an ended run that AWS still shows: it may cost money."""

    kind: str  # volume, interface, spot request or schedule
    id: str
    state: str = ""  # AWS's word


@dataclass(frozen=True, kw_only=True)
class ModelSeen:
    """A model object as S3 describes it; metrics are from its card where no node result names them."""

    key: str
    version_id: str
    sha256: str
    metrics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class NodeSeen:
    """One of several nodes of the last attempt, by its own reports."""

    instance_id: str
    heard_at: datetime | None = None  # when S3 took its last lease, by S3's clock; None: it sent none
    heartbeat: Heartbeat | None = None
    result: NodeResult | None = None
    # pieces that it made, by what S3 has; of one without a result, once the head has one
    left: tuple[str, ...] = ()
    boot_log: str = ""  # of one whose instance ended without a result


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One look at a run. Instances come first, so that a result that is read later is final for an ended
    node.
    """

    instances: tuple[DescribedInstance, ...] = ()
    # armed one-time schedules of the run: name -> instant
    schedules: Mapping[str, datetime] = field(default_factory=dict)
    # Of several nodes joined as one (`runs.nodes`).
    heartbeat: Heartbeat | None = None
    result: NodeResult | None = None
    nodes: tuple[NodeSeen, ...] = ()  # of the last attempt if it has several, the head first
    boot_log: str = ""  # boot log of an instance that ended without a result
    stop_written: bool = False
    start: StartFile | None = None  # of the last attempt; looked at with the models
    start_missing: bool = False  # the attempt that is launched has no start file yet
    agent_gone: bool = False  # on the caller's own machine: its agent has ended, and this look came later
    models: tuple[ModelSeen, ...] | None = None  # None: not looked at (only an ending run needs them)
    outputs: tuple[
        Mapping[str, Any], ...
    ] = ()  # files of a script, as S3 has them; looked at with the models
    scripts: tuple[Mapping[str, Any], ...] = ()  # ends of its pieces whose files are all in that list
    # paths of files that a node lists, and that S3 does not hold as listed; "": a list that can't be read
    missing: tuple[str, ...] = ()
    full: frozenset[str] = frozenset()  # pools that were full a moment ago (`runs.capacity`)
    left: tuple[Remains, ...] | None = None  # as the receipt is written; None: not looked at
    may_start: bool = True  # whether this caller may create instances; settling may not
    # whether it may go on with a run whose launcher is gone; control may
    may_take_over: bool = False

    @property
    def alive(self) -> tuple[DescribedInstance, ...]:
        """Return the instances that are neither ending nor ended."""
        return tuple(instance for instance in self.instances if instance.state not in ENDED)


def merge(record: RunRecord, observed: Observation, now: datetime) -> tuple[InstanceSeen, ...]:
    """Return the record's instances updated by a look, and new ones, in the order in which they were first
    seen.
    """
    before = {seen.instance_id: seen for seen in record.instances}
    by_id = {instance.instance_id: instance for instance in observed.instances}
    for attempt in record.attempts:  # an instance that CreateFleet named but no description has shown yet
        for launch in attempt.launches:
            for instance_id in launch.instance_ids:
                if instance_id not in before:
                    rung = record.ladder[launch.rung]
                    before[instance_id] = _announced(instance_id, attempt.number, launch, rung)
    merged = {
        instance_id: _update(seen, by_id[instance_id], now)
        if instance_id in by_id
        else _missing(seen, record, observed, now)
        for instance_id, seen in before.items()
    }
    merged |= {
        instance_id: _update(None, instance, now)
        for instance_id, instance in by_id.items()
        if instance_id not in merged
    }
    return tuple(merged.values())


def unnamed(record: RunRecord, observed: Observation) -> tuple[DescribedInstance, ...]:
    """Return the instances of the last attempt that no answer named, those that are alive first: they may be
    of its last launch, whose answer was lost.
    """
    attempt = record.attempt
    if attempt is None:
        return ()
    named = {instance_id for launch in attempt.launches for instance_id in launch.instance_ids}
    ours = [
        item
        for item in observed.instances
        if item.attempt == attempt.number and item.instance_id not in named
    ]
    return tuple(sorted(ours, key=lambda item: item.state in ENDED))


def all_gone(record: RunRecord, observed: Observation) -> bool:
    """Return whether every instance of the run is proven gone, by the record and this look."""
    return not observed.alive and all(seen.proof for seen in record.instances)


def may_still_appear(launch: Launch, now: datetime) -> bool:
    """Return whether an instance of a launch without a clear answer may still appear."""
    return launch.is_open and now < launch.last_call_at + UNANSWERED


def _announced(instance_id: str, attempt: int, launch: Launch, rung: Rung) -> InstanceSeen:
    return InstanceSeen(
        instance_id=instance_id,
        attempt=attempt,
        instance_type=rung.instance_type,
        market=rung.market,
        availability_zone=rung.availability_zone,
        state=ANNOUNCED,
        launched_at=launch.intended_at,
    )


def _update(seen: InstanceSeen | None, instance: DescribedInstance, now: datetime) -> InstanceSeen:
    if seen is not None and seen.proof == DESCRIBED:
        return seen
    ended = instance.state in ENDED
    return InstanceSeen(
        instance_id=instance.instance_id,
        attempt=instance.attempt,
        instance_type=instance.instance_type,
        market=instance.market,
        availability_zone=instance.availability_zone,
        state=instance.state,
        launched_at=instance.launched_at,
        running_seen_at=(seen.running_seen_at if seen else None)
        or (now if instance.state == "running" else None),
        terminated_at=((seen.terminated_at if seen else None) or instance.ended_at or now) if ended else None,
        proof=DESCRIBED if instance.state == "terminated" else "",
        reason=instance.reason if ended else "",
        signed_at=seen.signed_at if seen else None,
    )


def _missing(seen: InstanceSeen, record: RunRecord, observed: Observation, now: datetime) -> InstanceSeen:
    """Keep an instance that AWS does not list unchanged, until its absence is proof."""
    if seen.proof or observed.alive or now < record.effective_deadline.at + FORGOTTEN_AFTER:
        return seen
    return replace(seen, state="gone", terminated_at=seen.terminated_at or now, proof=MISSING)
