"""The AWS of the simulator: `trainer.rehearsal.world` on a clock that is moved, an S3 in memory, and the boto3 clients
that the product's own callers use (`AwsCloud`, `S3Objects`, the sweeper). No HTTP, no sleeping, no threads.

Each request of an actor passes `Aws.request`, where the schedule's faults are: errors, lost answers, outages, stalls in
which the whole world goes on, and the death of the caller.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from email.utils import format_datetime
from typing import Any

from botocore.exceptions import ClientError, ConnectTimeoutError, ReadTimeoutError

from tests.chaos.schedule import START, Schedule
from trainer.rehearsal.launches import loopback_address
from trainer.rehearsal.world import AwsError, Delays, Instance, World
from trainer.runs.observation import ENDED

GROUP, BUCKET = "mayfly-runs", "mayfly-bucket"
MOST_FRAMES = 6  # calls that wait inside one another, as each sleeps while the others go on
SLOWEST_LOOP = 20_000  # events of one schedule: more is an endless loop
# of a real AWS service, by code; every other is a 400
STATUS = {"PreconditionFailed": 412, "NoSuchKey": 404, "404": 404, "AccessDenied": 403, "SlowDown": 503}


class Killed(BaseException):
    """kill -9 of a caller: nothing of the product may catch it."""


class Endless(Exception):
    """A schedule does not come to its end."""


def failure(code: str, operation: str, *, retries: int = 0, message: str = "injected") -> Exception:
    """Return botocore's exception for a code; the names of its own classes stand for lost connections."""
    if code == "ConnectTimeoutError":
        return ConnectTimeoutError(endpoint_url="https://aws")
    if code == "ReadTimeoutError":
        return ReadTimeoutError(endpoint_url="https://aws")
    failed = code.startswith(("Internal", "Service", "Server")) or code == "Unavailable"
    status = STATUS.get(code, 500 if failed else 400)
    answer = {"HTTPStatusCode": status, "RetryAttempts": retries}
    return ClientError({"Error": {"Code": code, "Message": message}, "ResponseMetadata": answer}, operation)


@dataclass(frozen=True)
class Version:
    """One version of an object."""

    body: bytes
    etag: str
    version_id: str
    at: datetime
    number: int  # of all writes
    metadata: Mapping[str, str] = field(default_factory=dict)
    checksum: str = ""
    locked: str = ""  # the code with which S3 refuses to return or copy it


class Body:
    """The body of an answer."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def read(self, amount: int | None = None) -> bytes:
        return self._body[:amount]

    def iter_chunks(self, size: int) -> Iterator[bytes]:
        yield self._body


class Bucket:
    """One versioned bucket, with conditional writes."""

    def __init__(self) -> None:
        self.objects: dict[str, list[Version]] = {}
        self._numbers = itertools.count(1)

    def write(self, key: str, body: bytes, at: datetime, **more: Any) -> Version:
        number = next(self._numbers)
        version = Version(body, f'"e{number}"', f"v{number}", at, number, **more)
        self.objects.setdefault(key, []).append(version)
        return version

    def newest(self, key: str, version_id: str = "") -> Version | None:
        found = self.objects.get(key, ())
        if version_id:
            return next((one for one in found if one.version_id == version_id), None)
        return found[-1] if found else None

    def put(self, key: str, body: bytes, at: datetime, asked: Mapping[str, Any], **more: Any) -> Version:
        """Write if the conditions of a request hold. Raises AwsError."""
        current = self.newest(key)
        if asked.get("IfNoneMatch") == "*" and current is not None:
            raise AwsError("PreconditionFailed", key, 412)
        if "IfMatch" in asked and current is None:
            raise AwsError("NoSuchKey", key, 404)
        if "IfMatch" in asked and current is not None and current.etag != asked["IfMatch"]:
            raise AwsError("PreconditionFailed", key, 412)
        return self.write(key, body, at, **more)


@dataclass(frozen=True)
class Caller:
    """Whoever makes a request: a role of the schedule's faults, and by how much its clock is ahead."""

    role: str
    skew: timedelta = timedelta(0)


class Aws:
    """The account, its clock, and the events to come."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.dice = schedule, random.Random(schedule.seed)
        self.now, self.bucket = START, Bucket()
        delays = Delays(
            pending_seconds=schedule.pending_seconds, shutting_down_seconds=schedule.shutting_down_seconds
        )
        self.world = World(delays=delays)
        self.caller = Caller("nobody")
        self.busy: list[str] = []
        self.everything: dict[str, Instance] = {}  # which the world forgets an hour after its end
        self.nodes: dict[str, Any] = {}  # what runs on each
        self.hidden: dict[str, datetime] = {}  # instances that descriptions do not show yet
        self.shown: dict[str, datetime] = {}  # when desk or control first saw an instance
        self.zones: dict[str, str] = {}  # of subnets whose names don't say it
        self.tokens: dict[str, tuple[str, ...]] = {}  # of launches -> their instances
        self.fleet_calls = 0
        self.effects: dict[str, int] = {}  # side effects so far, by role
        self.requests: dict[str, int] = {}
        self.log: list[str] = []
        self.kills = set(schedule.kills)  # that are still to come
        self.hurt = 0  # faults so far
        self.faults: dict[str, int] = {}  # by kind, for the table
        self.on_launch: list[Callable[[Instance], None]] = []
        self.on_end: list[Callable[[Instance], None]] = []
        self.on_delete: list[Callable[[str], None]] = []
        self.on_put: list[Callable[[str], None]] = []
        self.before_get: list[Callable[[str], None]] = []
        self._events: list[tuple[datetime, int, Callable[[], None]]] = []
        self._numbers, self._loops = itertools.count(), 0

    # time
    # --------------------------------------------------------------------------------------------------------

    def at(self, when: datetime, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (max(when, self.now), next(self._numbers), act))

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self.at(self.now + timedelta(seconds=seconds), act)

    def run_until(self, until: datetime) -> None:
        """Let everything happen that is due by an instant."""
        while self._events and self._events[0][0] <= until:
            when, _, act = heapq.heappop(self._events)
            self.now = max(self.now, when)
            self._loops += 1
            if self._loops > SLOWEST_LOOP:
                raise Endless(f"{SLOWEST_LOOP} events, and no end")
            act()
        self.now = max(self.now, until)

    def sleep(self, seconds: float) -> None:
        """Let a caller sleep, while everything else goes on."""
        caller = self.caller
        self.run_until(self.now + timedelta(seconds=max(seconds, 0.05)))
        self.caller = caller

    def callers_now(self) -> datetime:
        """Return the time by the clock of whoever is at work."""
        return self.now + self.caller.skew

    @property
    def seconds(self) -> float:
        """Return the seconds since the start."""
        return (self.now - START).total_seconds()

    def say(self, what: str) -> None:
        self.log.append(f"{(self.now - START).total_seconds():9.2f} {self.caller.role:<8} {what}")

    # actors
    # --------------------------------------------------------------------------------------------------------

    def act(self, caller: Caller, work: Callable[[], None]) -> bool:
        """Do an actor's work, in the midst of what others do; False if it was killed."""
        before, self.caller = self.caller, caller
        self.busy.append(caller.role)
        try:
            work()
            return True
        except Killed:
            self.say("KILLED")
            return False
        finally:
            self.busy.pop()
            self.caller = before

    # requests
    # --------------------------------------------------------------------------------------------------------

    def down(self, what: str) -> bool:
        """Return whether something is out of order now."""
        if not self.schedule.outages:
            return False
        return any(
            one.what == what and one.since <= self.seconds < one.until for one in self.schedule.outages
        )

    def fault(self, kind: str) -> None:
        self.hurt += 1
        self.faults[kind] = self.faults.get(kind, 0) + 1

    def request(
        self,
        service: str,
        operation: str,
        effect: Callable[[], Any],
        *,
        changes: bool = False,
        about: str = "",
    ) -> Any:
        """Make one request of the caller: here the schedule's faults happen."""
        role, schedule = self.caller.role, self.schedule
        number = self.requests[role] = self.requests.get(role, 0) + 1
        if changes:
            self._die(role, 0)
        self._stall(schedule.delays.get((role, number), 0.0), f"before {operation} arrives")
        self.sleep(schedule.latency)
        if self.down(service) or self.down(f"net:{role}"):
            self.fault("outage")
            raise failure("ServiceUnavailable" if self.down(service) else "ConnectTimeoutError", operation)
        code = schedule.errors.get((role, number))
        if code is None and schedule.error_rate and self.dice.random() < schedule.error_rate:
            code = self.dice.choice(schedule.codes)
        if code is not None:
            self.fault("error")
            self.say(f"{operation} fails: {code}")
            raise failure(code, operation)
        try:
            answer = effect()
        except AwsError as error:
            self._stall(schedule.stalls.get((role, number), 0.0), f"in {operation}")
            raise failure(error.code, operation, message=str(error)) from error
        self._stall(schedule.stalls.get((role, number), 0.0), f"in {operation}")
        if changes:
            self.say(f"{operation} {about}")
            self.effects[role] = self.effects.get(role, 0) + 1
            self._die(role, 1)
            number = self.effects[role]
            lost = (role, number) in schedule.lost
            if lost or (schedule.lost_rate and self.dice.random() < schedule.lost_rate):
                self.fault("lost answer")
                if operation == "PutObject" and number % 2:  # botocore repeats it, and finds its own write
                    self._repeated(effect, operation)
                else:
                    self.say(f"the answer to {operation} is lost")
                    raise failure("ReadTimeoutError", operation)
        return answer

    def _stall(self, seconds: float, where: str) -> None:
        """Let the whole world go on while the caller sleeps, or its request is on its way."""
        if seconds and len(self.busy) < MOST_FRAMES:
            self.fault("stall")
            self.say(f"STALLS {seconds:.0f} s {where}")
            self.sleep(seconds)

    def _repeated(self, effect: Callable[[], Any], operation: str) -> Any:
        try:
            return effect()
        except AwsError as error:
            self.say(f"{operation} is repeated: {error.code}")
            raise failure(error.code, operation, retries=1) from error

    def _die(self, role: str, done: int) -> None:
        """Kill the caller before its first side effect (0), or right after the one of a number."""
        effects = self.effects.get(role, 0)
        if (role, effects) in self.kills and (done or not effects):
            self.kills.discard((role, effects))
            self.fault("kill")
            raise Killed

    # EC2
    # --------------------------------------------------------------------------------------------------------

    def create_fleet(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer CreateFleet as the schedule says about this call."""
        self.fleet_calls += 1
        word = self.schedule.fleet.get(self.fleet_calls, "ok")
        what, _, detail = word.partition(":")
        if what != "ok":
            self.fault("fleet")
            self.say(f"CreateFleet: {word}")
        if what in ("raise", "unsent"):
            raise failure(detail or "ConnectTimeoutError", "CreateFleet")
        try:
            answer = self.world.once(
                "CreateFleet", dict(request), lambda: self._launch(request, what, detail)
            )
        except AwsError as error:
            raise failure(error.code, "CreateFleet", message=str(error)) from error
        if what in ("lost", "late"):
            raise failure("ReadTimeoutError", "CreateFleet")
        if what == "failed":
            raise failure(detail, "CreateFleet")
        return answer

    def _launch(self, request: Mapping[str, Any], what: str, detail: str) -> dict[str, Any]:
        override = request["LaunchTemplateConfigs"][0]["Overrides"][0]
        zone = self.zones.get(override["SubnetId"]) or override["SubnetId"].removeprefix("subnet-")
        market = request["TargetCapacitySpecification"]["DefaultTargetCapacityType"]
        error = {"ErrorCode": detail, "ErrorMessage": "injected"}
        pool = f"{override['InstanceType']} {zone} {market}"
        if what == "empty":
            return {"Instances": [], "Errors": []}
        if what == "refuse" or self._is_full(pool):
            code = detail if what == "refuse" else "InsufficientInstanceCapacity"
            return {"Instances": [], "Errors": [{**error, "ErrorCode": code}]}
        asked = int(request["TargetCapacitySpecification"]["TotalTargetCapacity"])
        count = min(int(detail), asked) if what == "part" else asked
        shown_after = float(detail) if what == "late" else self.schedule.shown_after
        group = override.get("Placement", {}).get("GroupName", "")
        self.world.check_group(group)
        tags = [
            one["Tags"] for one in request.get("TagSpecifications", []) if one["ResourceType"] == "instance"
        ]
        fleet = {"Key": "aws:ec2:fleet-id", "Value": f"fleet-{self.fleet_calls}"}
        description: dict[str, Any] = {
            "InstanceType": override["InstanceType"],
            "Placement": {"AvailabilityZone": zone, "GroupName": group},
            "Tags": [*(tags[0] if tags else []), fleet],
        }
        if market == "spot":
            description["InstanceLifecycle"] = "spot"
        made = tuple(self._begin(description, shown_after) for _ in range(count))
        self.tokens[request["ClientToken"]] = made
        errors = [{**error, "ErrorCode": detail or "InsufficientInstanceCapacity"}] if what == "both" else []
        if count < asked:
            errors = [{**error, "ErrorCode": "InsufficientInstanceCapacity"}]
        return {"Instances": [{"InstanceIds": list(made)}], "Errors": errors}

    def _begin(self, description: Mapping[str, Any], shown_after: float) -> str:
        """Let an instance begin, and return its id."""
        name = f"i-{len(self.everything) + 1:08x}"
        address = loopback_address(name, {one.description["PrivateIpAddress"] for one in self.alive()})
        instance = self.world.add(
            {**description, "InstanceId": name, "PrivateIpAddress": address},
            now=self.now,
            reservation_id="r-1",
            user_data=b"",
            shutdown_behavior="terminate",
        )
        self.everything[name] = instance
        self.hidden[name] = self.now + timedelta(seconds=shown_after)
        self.say(f"{name} begins")
        for tell in self.on_launch:
            tell(instance)
        return name

    def _is_full(self, pool: str) -> bool:
        until = self.schedule.full_until
        return pool in self.schedule.full and not (until and self.seconds >= until)

    def describe(self, instance_ids: list[str], filters: list[dict[str, Any]]) -> dict[str, Any]:
        """Answer DescribeInstances. What was just created may be missing from it."""
        shown = [one for one in instance_ids if self.now >= self.hidden.get(one, self.now)]
        if shown != instance_ids:
            raise AwsError("InvalidInstanceID.NotFound", str(instance_ids))
        found = [
            one
            for one in self.world.find(instance_ids=instance_ids, filters=filters, now=self.now)
            if self.now >= self.hidden.get(one.id, self.now)
        ]
        if self.caller.role != "sweeper":
            self.shown = {one.id: self.now for one in found} | self.shown
        described = [self.world.describe(one, self.now) for one in found]
        return {
            "Reservations": [{"Instances": [one]} for one in described],
            "ResponseMetadata": {"HTTPHeaders": {"date": format_datetime(self.now, usegmt=True)}},
        }

    def terminate(self, instance_ids: list[str]) -> None:
        if any(self.now < self.hidden.get(one, self.now) for one in instance_ids):
            raise AwsError("InvalidInstanceID.NotFound", str(instance_ids))
        for instance, before in self.world.terminate(instance_ids, self.now):
            if before not in ENDED:  # AWS tells of an end once
                self.ended(instance)

    def power_off(self, instance: Instance) -> None:
        if instance.id in self.world.instances and instance.shutting_down_at is None:
            self.world.power_off(instance.id, self.now)
            self.ended(instance)

    def take_back(self, instance: Instance) -> None:
        """Let AWS end a spot instance."""
        if instance.shutting_down_at is None:
            reason = ("Server.SpotInstanceTermination", "Spot instance termination")
            self.world._shut_down(instance, reason, self.now)
            self.ended(instance)

    def ended(self, instance: Instance) -> None:
        for tell in self.on_end:
            tell(instance)

    def alive(self) -> list[Instance]:
        """Return the instances that bill, or are about to."""
        return [one for one in self.everything.values() if one.shutting_down_at is None]
