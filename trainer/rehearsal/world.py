"""State that the front adds to moto, as plain values: instances and their states, tokens, schedules. Pure.

No I/O, no threads, no clock of its own: every method takes `now`, and callers serialize their calls. The
front calls it for each request, and a simulator may call it directly, at microseconds an operation. An
instance's description comes from outside; its states are decided here.
"""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from trainer.rehearsal.schedule_expressions import Expression, next_fire

MEMORY = timedelta(hours=1)  # time for which AWS shows a terminated instance (EC2 user guide)
STATE_CODES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopped": 80}
# Reasons of an end: their code and their text.
USER_SHUTDOWN = ("Client.UserInitiatedShutdown", "User initiated shutdown")
OS_SHUTDOWN = ("Client.InstanceInitiatedShutdown", "Instance initiated shutdown")
LOST_HOST = ("Server.InternalError", "the embedded AWS itself ended")
TAKEN_BACK = ("Server.SpotInstanceTermination", "Spot instance termination")
# Between notice and end of a spot instance: EC2 user guide, "Spot Instance interruption notices" (looked up
# 2026-11-24)
NOTICE = timedelta(minutes=2)


class AwsError(Exception):
    """An error as AWS answers it."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code, self.message, self.status = code, message, status


@dataclass(frozen=True, kw_only=True)
class Pool:
    """A capacity pool."""

    instance_type: str
    availability_zone: str
    market: str  # "on-demand" or "spot"


@dataclass(frozen=True, kw_only=True)
class Delays:
    """Durations of states, in seconds."""

    pending_seconds: float = 1.5
    shutting_down_seconds: float = 1.0


@dataclass(kw_only=True)
class Instance:
    """One machine: its description and the instants of its states."""

    description: dict[str, Any]  # as DescribeInstances shows it, without State and reasons
    reservation_id: str
    user_data: bytes
    shutdown_behavior: str  # "terminate" or "stop"
    running_at: datetime
    shutting_down_at: datetime | None = None
    stopped_at: datetime | None = None
    terminated_at: datetime | None = None
    reason: tuple[str, str] = ("", "")
    recommended_at: datetime | None = None  # of a spot instance: when EC2 recommended to rebalance it,
    noticed_at: datetime | None = None  # gave notice of its interruption,
    taken_at: datetime | None = None  # and takes it back
    started: bool = False  # its user data was started
    occupied: bool = False  # it has processes, and is not terminated before they end

    @property
    def id(self) -> str:
        """Return the instance id."""
        return str(self.description["InstanceId"])

    @property
    def tags(self) -> dict[str, str]:
        """Return the instance's tags."""
        return {tag["Key"]: tag["Value"] for tag in self.description.get("Tags", [])}

    @property
    def pool(self) -> Pool:
        """Return the instance's capacity pool."""
        return Pool(
            instance_type=self.description["InstanceType"],
            availability_zone=self.description["Placement"]["AvailabilityZone"],
            market=self.description.get("InstanceLifecycle", "on-demand"),
        )

    def state(self, now: datetime) -> str:
        """Return EC2's name of the state at this instant."""
        if self.terminated_at is not None and now >= self.terminated_at:
            return "terminated"
        if self.shutting_down_at is not None:
            return "shutting-down"
        if self.stopped_at is not None:
            return "stopped"
        return "running" if now >= self.running_at else "pending"

    def is_recommended(self, now: datetime) -> bool:
        """Return whether EC2 has recommended to rebalance it."""
        return self.recommended_at is not None and now >= self.recommended_at

    def is_noticed(self, now: datetime) -> bool:
        """Return whether EC2 has given notice of its interruption."""
        return self.noticed_at is not None and now >= self.noticed_at


@dataclass(kw_only=True)
class StoredSchedule:
    """A schedule that may fire."""

    group: str
    name: str
    expression: Expression
    target: dict[str, Any]
    enabled: bool
    delete_after_completion: bool
    start: datetime
    next_at: datetime | None = field(init=False)

    def __post_init__(self) -> None:
        # An instant in the past fires at once: AWS's own behaviour is not documented, and a deadline must not
        # be lost.
        once = self.expression if isinstance(self.expression, datetime) else None
        self.next_at = once or next_fire(self.expression, start=self.start, after=self.start)


@dataclass(frozen=True, kw_only=True)
class Firing:
    """One firing of a schedule."""

    group: str
    name: str
    at: datetime
    target: dict[str, Any]
    completed: bool  # the last one: the schedule deletes itself
    attempt: int = 1


@dataclass(kw_only=True)
class World:
    """State of one account beyond moto's."""

    delays: Delays = field(default_factory=Delays)
    instances: dict[str, Instance] = field(default_factory=dict)
    schedules: dict[tuple[str, str], StoredSchedule] = field(default_factory=dict)
    groups: set[str] = field(default_factory=set)  # names of placement groups
    _tokens: dict[tuple[str, str], tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=dict)

    # idempotency
    # ------------------------------------------------------------------------------------------------------

    def once(
        self, operation: str, params: dict[str, Any], create: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """Call `create`, or answer a repeated ClientToken as the first time. Raises AwsError if the
        parameters differ.

        A failed request leaves no trace: its token can be used again, as on AWS.
        """
        asked = copy.deepcopy(params)
        token = asked.pop("ClientToken", None)
        if not token:
            return create()
        if (operation, token) in self._tokens:
            before, answer = self._tokens[operation, token]
            if before != asked:
                raise AwsError(
                    "IdempotentParameterMismatch",
                    "Arguments on this idempotent request are inconsistent with those of a previous request"
                    f" ({token}).",
                )
            return copy.deepcopy(answer)
        answer = create()
        self._tokens[operation, token] = (asked, copy.deepcopy(answer))
        return answer

    # instances
    # --------------------------------------------------------------------------------------------------------

    def add(self, description: dict[str, Any], *, now: datetime, **known: Any) -> Instance:
        """Add a machine, of which `known` are further fields: pending now, running after the delay."""
        running_at = now + timedelta(seconds=self.delays.pending_seconds)
        instance = Instance(description={**description, "LaunchTime": now}, running_at=running_at, **known)
        self.instances[instance.id] = instance
        return instance

    def due_to_start(self, now: datetime) -> list[Instance]:
        """Return the instances that began to run since the last call."""
        self._take_due(now)
        due = [one for one in self.instances.values() if not one.started and one.state(now) == "running"]
        for instance in due:
            instance.started = True
        return due

    def terminate(self, instance_ids: Sequence[str], now: datetime) -> list[tuple[Instance, str]]:
        """Start terminating instances; return each with its previous state. One unknown id fails the whole
        call.
        """
        self._take_due(now)
        self.forget(now)
        unknown = [one for one in instance_ids if one not in self.instances]
        if unknown:
            ids = ", ".join(unknown)
            raise AwsError("InvalidInstanceID.NotFound", f"The instance ID '{ids}' does not exist")
        instances = [self.instances[one] for one in dict.fromkeys(instance_ids)]
        changes = [(one, one.state(now)) for one in instances]
        for instance, _ in changes:
            self._shut_down(instance, USER_SHUTDOWN, now)
        return changes

    def recommend(self, instance_id: str, now: datetime) -> None:
        """Recommend to rebalance a spot instance. Raises AwsError for one that is not on spot."""
        instance = self._on_spot(instance_id)
        instance.recommended_at = instance.recommended_at or now

    def interrupt(
        self, instance_id: str, now: datetime, *, after: timedelta = NOTICE, notice: timedelta = NOTICE
    ) -> None:
        """Take a spot instance back `after` from now, with its notice that long before; none for a notice of
        0, which AWS gives at best effort. Raises AwsError for an instance that is not on spot.

        A second interruption changes nothing.
        """
        instance = self._on_spot(instance_id)
        if instance.taken_at is None:
            instance.taken_at = now + after
            instance.noticed_at = instance.taken_at - notice if notice else None
        self._take_due(now)

    def power_off(self, instance_id: str, now: datetime) -> None:
        """Power an instance off from inside: its shutdown behaviour decides its next state."""
        instance = self.instances[instance_id]
        if instance.shutdown_behavior == "terminate":
            self._shut_down(instance, OS_SHUTDOWN, now)
        elif instance.shutting_down_at is None and instance.stopped_at is None:
            instance.stopped_at, instance.reason = now, OS_SHUTDOWN

    def vacated(self, instance_id: str, now: datetime) -> None:
        """Record that an instance's processes have ended."""
        instance = self.instances[instance_id]
        instance.occupied = False
        self._settle(instance, now)

    def lost(self, instance_id: str, now: datetime) -> None:
        """End an instance whose processes vanished with their server."""
        instance = self.instances[instance_id]
        instance.occupied = False
        if instance.terminated_at is None:
            instance.shutting_down_at = instance.shutting_down_at or now
            instance.terminated_at, instance.reason = now, LOST_HOST

    def forget(self, now: datetime) -> list[str]:
        """Drop the instances that ended more than an hour ago, and return their ids."""
        old = [
            one.id
            for one in self.instances.values()
            if one.terminated_at and now - one.terminated_at > MEMORY
        ]
        for instance_id in old:
            del self.instances[instance_id]
        return old

    def alive(self, now: datetime) -> list[Instance]:
        """Return the instances that are neither terminated nor stopped; they keep an embedded AWS alive."""
        ended = ("terminated", "stopped")
        return [one for one in self.instances.values() if one.state(now) not in ended or one.occupied]

    def describe(self, instance: Instance, now: datetime) -> dict[str, Any]:
        """Return an instance as DescribeInstances shows it at this instant."""
        state = instance.state(now)
        shown = {**instance.description, "State": {"Code": STATE_CODES[state], "Name": state}}
        if instance.reason[0]:
            ended_at, (code, text) = instance.shutting_down_at or instance.stopped_at or now, instance.reason
            initiator = "User initiated" if instance.reason in (USER_SHUTDOWN, OS_SHUTDOWN) else code
            shown["StateReason"] = {"Code": code, "Message": f"{code}: {text}"}
            shown["StateTransitionReason"] = f"{initiator} ({ended_at:%Y-%m-%d %H:%M:%S} GMT)"
        if state == "terminated":  # AWS shows neither addresses nor network once an instance is gone
            for name in ("PublicIpAddress", "PrivateIpAddress", "SubnetId", "VpcId"):
                shown.pop(name, None)
            shown.update(NetworkInterfaces=[], SecurityGroups=[], BlockDeviceMappings=[])
        return shown

    def find(
        self, *, instance_ids: Sequence[str] = (), filters: Iterable[dict[str, Any]] = (), now: datetime
    ) -> list[Instance]:
        """Return the instances that DescribeInstances would. Raises AwsError for an unknown id or filter."""
        self._take_due(now)
        self.forget(now)
        unknown = [one for one in instance_ids if one not in self.instances]
        if unknown:
            what = f"The instance IDs '{', '.join(unknown)}' do not exist"
            raise AwsError("InvalidInstanceID.NotFound", what)
        chosen = [self.instances[one] for one in instance_ids] or list(self.instances.values())
        wanted = [(one["Name"], one.get("Values", [])) for one in filters]
        return [one for one in chosen if all(matches(one, now, name, values) for name, values in wanted)]

    def _on_spot(self, instance_id: str) -> Instance:
        instance = self.instances[instance_id]
        if instance.pool.market != "spot":
            raise AwsError("ValidationException", f"{instance_id} is not a spot instance.")
        return instance

    def _take_due(self, now: datetime) -> None:
        """Take back the spot instances whose time has come; an instance that has ended stays as it is."""
        for instance in self.instances.values():
            if instance.taken_at is not None and now >= instance.taken_at and instance.stopped_at is None:
                self._shut_down(instance, TAKEN_BACK, instance.taken_at)

    def _shut_down(self, instance: Instance, reason: tuple[str, str], now: datetime) -> None:
        if instance.shutting_down_at is None:
            instance.shutting_down_at, instance.reason = now, reason
        self._settle(instance, now)

    def _settle(self, instance: Instance, now: datetime) -> None:
        """Set the end time of an instance that is shutting down, once it has no process left."""
        if instance.shutting_down_at is not None and not instance.occupied and instance.terminated_at is None:
            earliest = instance.shutting_down_at + timedelta(seconds=self.delays.shutting_down_seconds)
            instance.terminated_at = max(now, earliest)

    # placement groups
    # --------------------------------------------------------------------------------------------------------

    def make_group(self, name: str) -> None:
        """Make a placement group. Raises AwsError if there is one."""
        if name in self.groups:
            raise AwsError("InvalidPlacementGroup.Duplicate", f"The Placement Group '{name}' already exists.")
        self.groups.add(name)

    def check_group(self, name: str) -> None:
        """Raise AwsError if there is no placement group of this name; '' is none, and always there."""
        if name and name not in self.groups:
            raise AwsError("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")

    def delete_group(self, name: str, now: datetime) -> None:
        """Delete a placement group. Raises AwsError for one that is unknown or has instances."""
        self.check_group(name)
        members = [
            one for one in self.instances.values() if one.description["Placement"].get("GroupName") == name
        ]
        if any(one.state(now) != "terminated" for one in members):
            what = f"The Placement Group '{name}' is in use and may not be deleted."
            raise AwsError("InvalidPlacementGroup.InUse", what)
        self.groups.discard(name)

    # schedules
    # --------------------------------------------------------------------------------------------------------

    def put_schedule(self, schedule: StoredSchedule) -> None:
        """Create a schedule, or replace the one of that name."""
        self.schedules[schedule.group, schedule.name] = schedule

    def delete_schedule(self, group: str, name: str) -> None:
        """Drop a schedule, if it exists."""
        self.schedules.pop((group, name), None)

    def is_expecting(self) -> bool:
        """Return whether a one-time schedule has yet to fire: the run that armed it is not settled, which
        control may still do.
        """
        return any(
            one.enabled and one.next_at is not None and isinstance(one.expression, datetime)
            for one in self.schedules.values()
        )

    def fire_due(self, now: datetime) -> list[Firing]:
        """Return due firings, each once however late, and advance the schedules. Drops completed ones where
        they ask for it.
        """
        firings = []
        for key, schedule in list(self.schedules.items()):
            if not schedule.enabled or schedule.next_at is None or schedule.next_at > now:
                continue
            at = schedule.next_at
            schedule.next_at = next_fire(schedule.expression, start=schedule.start, after=now)
            completed = schedule.next_at is None and schedule.delete_after_completion
            if completed:
                del self.schedules[key]
            group, name, target = schedule.group, schedule.name, schedule.target
            firings.append(Firing(group=group, name=name, at=at, target=target, completed=completed))
        return firings


_FILTERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "instance-id": lambda one: one["InstanceId"],
    "instance-type": lambda one: one["InstanceType"],
    "availability-zone": lambda one: one["Placement"]["AvailabilityZone"],
    "subnet-id": lambda one: one.get("SubnetId"),
    "vpc-id": lambda one: one.get("VpcId"),
    "instance-lifecycle": lambda one: one.get("InstanceLifecycle"),
}


def matches(instance: Instance, now: datetime, name: str, values: Sequence[str]) -> bool:
    """Return whether an instance matches a filter, with wildcards * and ?. Raises AwsError for an unknown
    one.
    """
    if name.startswith("tag:"):
        candidates = [value for key, value in instance.tags.items() if key == name[4:]]
    elif name == "tag-key":
        candidates = list(instance.tags)
    elif name == "instance-state-name":
        candidates = [instance.state(now)]
    elif name in _FILTERS:
        candidates = [str(_FILTERS[name](instance.description) or "")]
    else:
        raise AwsError("InvalidParameterValue", f"The filter '{name}' is invalid")
    return any(fnmatch.fnmatchcase(one, value) for one in candidates for value in values)
