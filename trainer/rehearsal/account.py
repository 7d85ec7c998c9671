"""One account of an embedded AWS: its world, its clock, its functions and its memory, under one lock.

It decides nothing that AWS would decide: `front` and the modules of rules do, with this state.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from trainer.rehearsal import wire
from trainer.rehearsal.asynchronous import AsyncInvocation
from trainer.rehearsal.catalogue import Catalogue
from trainer.rehearsal.clock import Clock
from trainer.rehearsal.iam_policies import Authorization, Decision, IamPolicy
from trainer.rehearsal.keys import Credentials, Keyring, Kind
from trainer.rehearsal.metrics import Alarm, Metrics
from trainer.rehearsal.object_log import ObjectLog
from trainer.rehearsal.wire import Answer, Call
from trainer.rehearsal.world import AwsError, Delays, Firing, World

log = logging.getLogger(__name__)
REGION = "us-east-1"


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """One target call of a schedule, and its result."""

    schedule: str
    at: datetime
    target_arn: str
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Redelivery:
    """A firing whose target could not be called, until its next try."""

    firing: Firing
    first_at: datetime
    tries: int
    due_at: datetime


@dataclass(frozen=True, kw_only=True)
class Principal:
    """Owner of an access key. Instances, functions and schedules have a role; an IAM user's name is the
    user's.
    """

    kind: Kind
    name: str
    role: str = ""


@dataclass(frozen=True, kw_only=True)
class CallerIdentity:
    """A principal in IAM: its STS identity, its part of each request's context, and its policies."""

    arn: str
    user_id: str
    context: Mapping[str, str]
    policies: tuple[IamPolicy, ...]
    boundary: IamPolicy | None = None


@dataclass(frozen=True, kw_only=True)
class Function:
    """A Lambda function as CreateFunction received it."""

    name: str
    handler: str
    role: str  # name of the role that it has
    log_group: str
    timeout_seconds: int
    memory_mib: int
    environment: dict[str, str]
    folder: Path  # the zip, unpacked

    @property
    def principal(self) -> Principal:
        """Return the function's principal."""
        return Principal(kind="FUNC", name=self.name, role=self.role)


@dataclass(kw_only=True)
class EmbeddedAccount:
    """Everything the front keeps for one account."""

    account: str
    root: Path
    catalogue: Catalogue
    delays: Delays
    objects: ObjectLog | None
    run_nodes: bool
    fire_schedules: bool
    endpoint: Callable[[], str]  # the server's URL, set once it listens
    keyring: Keyring
    function_code: Path  # unpacked zips by hash, which servers share
    fork_functions: Callable[[], Path] | None = (
        None  # the fork server that functions are forks of; None: each starts a new process
    )
    clock: Clock = field(default_factory=Clock)
    lock: threading.RLock = field(default_factory=threading.RLock)
    storage_lock: threading.RLock = field(
        default_factory=threading.RLock
    )  # separate: a large object must not block EC2
    functions: dict[str, Function] = field(default_factory=dict)
    principals: dict[str, Principal] = field(default_factory=dict)  # by access key
    identities: dict[Principal, CallerIdentity] = field(default_factory=dict)  # read once, until IAM changes
    decisions: deque[tuple[Principal, Authorization, Decision]] = field(
        default_factory=lambda: deque(maxlen=10_000)
    )
    quotas: dict[str, float] = field(default_factory=dict)  # by code, where they differ from the default
    has_spot_role: bool = True  # as after an account's first spot launch
    image_builder: dict[str, dict[str, Any]] = field(default_factory=dict)  # by ARN
    bucket_policies: dict[str, str] = field(default_factory=dict)
    bucket_keys: dict[str, str] = field(default_factory=dict)  # bucket -> ARN of its KMS key, "" for S3's own
    restored_parameters: set[str] = field(default_factory=set)
    deliveries: list[Delivery] = field(default_factory=list)
    in_flight: list[threading.Thread] = field(
        default_factory=list
    )  # firings that are not yet among the deliveries
    retries: list[AsyncInvocation] = field(
        default_factory=list
    )  # of functions that failed, until they are due
    invocations: list[threading.Thread] = field(default_factory=list)  # asynchronous ones under way
    redeliveries: list[Redelivery] = field(
        default_factory=list
    )  # of schedules whose target could not be called
    metrics: Metrics = field(default_factory=Metrics)
    alarms: dict[str, Alarm] = field(default_factory=dict)
    alarms_at: datetime | None = None  # when they were evaluated last
    released: set[str] = field(
        default_factory=set
    )  # ended instances whose volumes and interfaces moto has given back
    instance_states: dict[str, str] = field(default_factory=dict)  # by id, as last sent to the event bus
    calls: deque[tuple[str, str]] = field(
        default_factory=lambda: deque(maxlen=10_000)
    )  # (service, operation), the last ones
    world: World = field(init=False)

    def __post_init__(self) -> None:
        self.world = World(delays=self.delays)

    def credentials(self, kind: Kind, name: str, *, role: str = "", mark: str = "") -> Credentials:
        """Give one principal of this account its credentials; `mark` tells several keys of one apart."""
        own = self.keyring.credentials(self.account, kind, f"{name}{mark}")
        self.principals[own.access_key] = Principal(kind=kind, name=name, role=role)
        return own

    def moto(
        self, service: str, operation: str, params: dict[str, Any], *, region: str = REGION
    ) -> dict[str, Any]:
        """Call moto in this account. Raises AwsError with moto's code."""
        return wire.call_moto(self.account, region, service, operation, params)

    def release(self, instance_id: str) -> None:
        """Let moto release the volumes and interfaces of an ended instance."""
        try:
            self.moto("ec2", "TerminateInstances", {"InstanceIds": [instance_id]})
        except AwsError as error:
            log.warning("moto kept what %s held: %s", instance_id, error)

    def advance(self, seconds: float) -> None:
        """Move this account's clock forward. Raises RuntimeError while a node runs: its processes can't
        follow.

        Functions that are called every few minutes count as called meanwhile: metrics, and the age of alarms,
        move along. To test silence, move `clock` itself.
        """
        with self.lock:
            if any(instance.occupied for instance in self.world.instances.values()):
                raise RuntimeError("the clock cannot jump while a node runs in real time")
            self.clock.advance(seconds)
            self.metrics.shift(timedelta(seconds=seconds))
            for alarm in self.alarms.values():
                alarm.since += timedelta(seconds=seconds)


# A rule answers with the result's members, or with a whole HTTP answer that moto gave.
Rule = Callable[[EmbeddedAccount, Call], dict[str, Any] | Answer]
Rules = dict[tuple[str, str], Rule]


def refuse(what: str) -> Rule:
    """Return a rule that refuses an operation that moto would get wrong; `what` continues "The embedded AWS
    does not".
    """

    def rule(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
        raise AwsError("UnsupportedOperation", f"The embedded AWS does not {what}.")

    return rule
