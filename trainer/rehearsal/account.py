"""One account of an embedded AWS: its world, its clock, its functions and its memory, under one lock.

It decides nothing that AWS would decide: `front` and the modules of rules do, with this state. What AWS
decides and a rehearsal doesn't (permissions, quotas, retries) is a method here that does little; the account
of `tests/aws` overrides these methods.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from trainer.base.instants import utc_now
from trainer.rehearsal import wire
from trainer.rehearsal.interruptions import AskedInterruption
from trainer.rehearsal.kept_bucket import KeptBucket
from trainer.rehearsal.keys import REGION as REGION
from trainer.rehearsal.keys import Credentials, Keyring, Kind
from trainer.rehearsal.memory import InstanceLog, StoredSettings
from trainer.rehearsal.wire import Answer, Call
from trainer.rehearsal.world import AwsError, Delays, Firing, Instance, Pool, World

log = logging.getLogger(__name__)
# Functions that an account runs at once. 10 is a new account's quota, far below the documented default of
# 1,000 (Lambda developer guide, "Lambda quotas", note on new accounts; looked up 2026-11-24).
EXECUTIONS = 10


class Clock:
    """Clock of one account: real time, plus what a test or a rehearsal has skipped."""

    def __init__(self) -> None:
        self._skipped = timedelta()

    def now(self) -> datetime:
        """Return the present instant of this account, in UTC."""
        return utc_now() + self._skipped

    def advance(self, seconds: float) -> None:
        """Move the clock forward. Raises ValueError for a step back."""
        if seconds < 0:
            raise ValueError(f"the clock cannot go back {-seconds} s")
        self._skipped += timedelta(seconds=seconds)


@dataclass(frozen=True, kw_only=True)
class Principal:
    """Owner of an access key. Instances, functions and schedules have a role; an IAM user's name is the
    user's.
    """

    kind: Kind
    name: str
    role: str = ""


@dataclass(frozen=True, kw_only=True)
class Function:
    """A Lambda function as CreateFunction received it."""

    name: str
    handler: str
    role: str  # name of the role that it has
    log_group: str
    timeout_seconds: int
    environment: dict[str, str]
    folder: Path  # the zip, unpacked

    @property
    def principal(self) -> Principal:
        """Return the function's principal."""
        return Principal(kind="FUNC", name=self.name, role=self.role)


@dataclass(frozen=True, kw_only=True)
class EventInvocation:
    """An event that a function accepted."""

    function_name: str
    payload: bytes
    request_id: str


@dataclass(kw_only=True)
class EmbeddedAccount:
    """Everything the front keeps for one account."""

    account: str
    root: Path
    delays: Delays
    settings: StoredSettings
    instance_log: InstanceLog
    run_nodes: bool
    fire_schedules: bool
    endpoint: Callable[[], str]  # the server's URL, set once it listens
    keyring: Keyring
    function_code: Path  # unpacked zips by hash, which servers share
    # The fork server that functions are forks of; None: each starts a new process.
    fork_functions: Callable[[], Path] | None = None
    clock: Clock = field(default_factory=Clock)
    lock: threading.RLock = field(default_factory=threading.RLock)
    functions: dict[str, Function] = field(default_factory=dict)
    principals: dict[str, Principal] = field(default_factory=dict)  # by access key
    buckets: dict[str, KeptBucket] = field(default_factory=dict)
    bucket_policies: dict[str, str] = field(default_factory=dict)
    restored_parameters: set[str] = field(default_factory=set)
    in_flight: list[threading.Thread] = field(default_factory=list)  # calls of schedules' targets under way
    invocations: list[threading.Thread] = field(default_factory=list)  # asynchronous ones under way
    executions: threading.BoundedSemaphore = field(
        default_factory=lambda: threading.BoundedSemaphore(EXECUTIONS)
    )
    released: set[str] = field(default_factory=set)  # ended instances whose volumes moto has given back
    # The last detail of each kind of event, by instance and kind, as sent to the event bus.
    told: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    interruptions: dict[str, AskedInterruption] = field(default_factory=dict)  # that users asked for, by run
    world: World = field(init=False)

    def __post_init__(self) -> None:
        self.world = World(delays=self.delays)

    def credentials(self, kind: Kind, name: str, *, role: str = "", mark: str = "") -> Credentials:
        """Give one principal of this account its credentials; `mark` tells several keys of one apart."""
        own = self.keyring.credentials(self.account, kind, f"{name}{mark}")
        self.principals[own.access_key] = Principal(kind=kind, name=name, role=role)
        return own

    def moto(self, service: str, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        """Call moto in this account. Raises AwsError with moto's code."""
        return wire.call_moto(self.account, service, operation, params)

    def release(self, instance_id: str) -> None:
        """Let moto release the volumes and interfaces of an ended instance."""
        try:
            self.moto("ec2", "TerminateInstances", {"InstanceIds": [instance_id]})
        except AwsError as error:
            log.warning("moto kept what %s held: %s", instance_id, error)

    def advance(self, seconds: float) -> None:
        """Move this account's clock forward. Raises RuntimeError while a node runs: its processes can't
        follow.
        """
        with self.lock:
            if any(instance.occupied for instance in self.world.instances.values()):
                raise RuntimeError("the clock cannot jump while a node runs in real time")
            self.clock.advance(seconds)

    # what AWS decides, and a rehearsal does not
    # ------------------------------------------------------------------------------------------------------

    def before(self, call: Call, principal: Principal | None) -> None:
        """Raise AwsError for a call that is not carried out. `principal` is None for the desk."""

    def after(self, call: Call) -> None:
        """Raise AwsError for a call that was carried out and whose answer is another one."""

    def demand(self, principal: Principal, service: str, action: str, resource: str, **context: str) -> None:
        """Raise AwsError, in a service's words, unless a principal may do what AWS does on its behalf."""

    def trusts(self, role_name: str, service: str, source_arn: str) -> bool:
        """Return whether an AWS service may assume a role on behalf of `source_arn`."""
        return True

    def check_caller(self, function_name: str, service: str, source_arn: str) -> None:
        """Raise AwsError unless a function lets an AWS service call it on behalf of `source_arn`."""

    def check_launch(self, request: dict[str, Any], image: dict[str, Any], pool: Pool, count: int) -> None:
        """Raise AwsError for a launch that is refused. The caller holds the lock."""

    def room(self, count: int) -> int:
        """Return how many instances a fleet gets of those that it asks for. The caller holds the lock."""
        return count

    def check_mount(
        self, instance: Instance, principal: Principal, file_system: str, access_point: str
    ) -> None:
        """Raise AwsError for an instance that can't reach a file system, or may not mount it."""

    def may_log(self, function: Function) -> bool:
        """Return whether a function's role lets it write its log."""
        return True

    def invoked(self, function: Function, *, failed: bool) -> None:
        """Take note of an invocation that has ended."""

    def event_failed(self, function: Function, invocation: EventInvocation, error: dict[str, Any]) -> None:
        """Take note of an event on which a function failed."""

    def notify(self, subscription: dict[str, Any], notification: dict[str, Any]) -> None:
        """Deliver a topic's message to a subscriber that is no function: nobody here."""

    def delivered(self, firing: Firing, failure: Exception | None) -> bool:
        """Take note of a call of a schedule's target; return whether it is tried again."""
        if failure:
            log.warning("schedule %s of account %s failed: %s", firing.name, self.account, failure)
        return False


# A rule answers with the result's members, or with a whole HTTP answer that moto gave.
Rule = Callable[[EmbeddedAccount, Call], dict[str, Any] | Answer]
Rules = dict[tuple[str, str], Rule]


def refuse(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    """Refuse an operation that moto would get wrong."""
    raise AwsError("UnsupportedOperation", f"The embedded AWS does not carry out {call.operation}.")
