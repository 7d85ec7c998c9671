"""One account of the embedded AWS with what AWS decides besides: permissions, quotas, faults, retries,
alarms.

Each method overrides one of `trainer.rehearsal.account.EmbeddedAccount`, which does little there.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from tests.aws import authorization, file_systems, identities, launches, queues, quotas, retries
from tests.aws.faults import FaultyWorld
from tests.aws.iam_policies import Authorization, Decision
from tests.aws.identities import CallerIdentity
from tests.aws.metrics import Alarm, MetricId, Metrics
from trainer.rehearsal.account import REGION, EmbeddedAccount, EventInvocation, Function, Principal
from trainer.rehearsal.messages import TOPICS
from trainer.rehearsal.wire import Call
from trainer.rehearsal.world import AwsError, Firing, Instance, Pool


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """One call of a schedule's target, and its result."""

    schedule: str
    error: str = ""


class Decisions(deque[tuple[Principal, Authorization, Decision]]):
    """The last decisions about callers. A loop sees those made before it began: the server's threads add to
    them.
    """

    def __iter__(self) -> Iterator[tuple[Principal, Authorization, Decision]]:
        return iter(tuple(super().__iter__()))


@dataclass(kw_only=True)
class CheckedAccount(EmbeddedAccount):
    """An account whose callers have the rights of their policies."""

    identities: dict[Principal, CallerIdentity] = field(default_factory=dict)  # read once, until IAM changes
    decisions: Decisions = field(default_factory=lambda: Decisions(maxlen=10_000))
    quotas: dict[str, float] = field(default_factory=dict)  # by code, where they differ from the default
    has_spot_role: bool = True  # as after an account's first spot launch
    image_builder: dict[str, dict[str, Any]] = field(default_factory=dict)  # by ARN
    over_tls: bool = True  # loopback counts as encrypted, unless a test says otherwise
    experiments: dict[str, dict[str, Any]] = field(default_factory=dict)  # templates of FIS, by id
    bucket_keys: dict[str, str] = field(default_factory=dict)  # bucket -> ARN of its KMS key, "" for S3's own
    protected: set[str] = field(default_factory=set)  # instances with termination protection
    deliveries: list[Delivery] = field(default_factory=list)
    redeliveries: list[retries.Redelivery] = field(default_factory=list)
    retries: list[retries.AsyncInvocation] = field(default_factory=list)  # of events, until they are due
    tried: dict[str, retries.AsyncInvocation] = field(default_factory=dict)  # by request id
    # Of the call that this thread carries out: `error`, with which the launches of its fleet are refused
    refused_launches: threading.local = field(default_factory=threading.local)
    metrics: Metrics = field(default_factory=Metrics)
    alarms: dict[str, Alarm] = field(default_factory=dict)
    alarms_at: datetime | None = None  # when they were evaluated last
    # (service, operation) of the last calls
    calls: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=10_000))

    def __post_init__(self) -> None:
        self.world: FaultyWorld = FaultyWorld(delays=self.delays)

    def advance(self, seconds: float) -> None:
        """Move the clock forward. Functions that are called every few minutes count as called meanwhile:
        metrics, and the age of alarms, move along. To test silence, move `clock` itself.
        """
        with self.lock:
            super().advance(seconds)
            self.metrics.shift(timedelta(seconds=seconds))
            for alarm in self.alarms.values():
                alarm.since += timedelta(seconds=seconds)

    def before(self, call: Call, principal: Principal | None) -> None:
        """Check the caller's policies; then raise the fault that a test asked for, if one is due."""
        self.refused_launches.error = None
        authorization.authorize(self, call, principal)
        self.refused_launches.error = authorization.refused_launches(self, call, principal)
        with self.lock:
            self.calls.append((call.service, call.operation))
            if not call.params.get("DryRun"):  # faults don't apply to dry runs
                self.world.raise_fault(call.operation, after=False)

    def after(self, call: Call) -> None:
        """Lose the answer where a test asked for it. A change in IAM holds from the next call on."""
        if call.service == "iam" and not call.operation.startswith(("Get", "List")):
            self.identities.clear()
        with self.lock:
            if not call.params.get("DryRun"):
                self.world.raise_fault(call.operation, after=True)

    def demand(self, principal: Principal, service: str, action: str, resource: str, **context: str) -> None:
        """Raise AwsError unless the principal's policies allow an action."""
        asked = Authorization(action=action, resource=resource, context=context)
        authorization.demand(self, principal, service, asked)

    def trusts(self, role_name: str, service: str, source_arn: str) -> bool:
        """Return whether the role's trust policy lets the service assume it."""
        return identities.trusts(self, role_name, service, source_arn)

    def check_caller(self, function_name: str, service: str, source_arn: str) -> None:
        """Raise AwsError unless the function's own policy lets the service call it."""
        authorization.require_permission(self, function_name, service, source_arn)

    def check_launch(self, request: dict[str, Any], image: dict[str, Any], pool: Pool, count: int) -> None:
        """Raise AwsError for a full pool, a refusal that a test asked for, a quota that is used up, a right that
        the caller of a fleet lacks, and for a request that EC2 would refuse.
        """
        self.world.raise_refusal()
        if error := getattr(self.refused_launches, "error", None):
            raise error
        launches.check_request(self, request, pool)
        if self.world.is_full(pool):
            what = f"We currently do not have sufficient {pool.instance_type} capacity in the zone"
            message = f"{what} you requested ({pool.availability_zone})."
            raise AwsError("InsufficientInstanceCapacity", message, 500)
        quotas.check_quota(self, pool, count)
        launches.add_root_device(request, image["RootDeviceName"])

    def room(self, count: int) -> int:
        """Return how many instances a fleet gets: fewer where a test asked for that."""
        return self.world.room(count)

    def check_mount(
        self, instance: Instance, principal: Principal, file_system: str, access_point: str
    ) -> None:
        """Raise AwsError where the network or the role does not let the instance mount the file system."""
        file_systems.check_mount(self, instance, principal, file_system, access_point)

    def may_log(self, function: Function) -> bool:
        """Return whether the function's policies allow writing its log; its output is lost else, as on AWS."""
        stream = f"arn:aws:logs:{REGION}:{self.account}:log-group:{function.log_group}:log-stream:$LATEST"
        try:
            for action in ("logs:CreateLogStream", "logs:PutLogEvents"):
                self.demand(function.principal, "logs", action, stream)
        except AwsError:
            return False
        return True

    def invoked(self, function: Function, *, failed: bool) -> None:
        """Publish Lambda's own metrics of an invocation."""
        dimensions = frozenset({("FunctionName", function.name)})
        with self.lock:
            for name, value in (("Invocations", 1), ("Errors", int(failed))):
                metric = MetricId(namespace="AWS/Lambda", name=name, dimensions=dimensions)
                self.metrics.put(metric, self.clock.now(), value)

    def event_failed(self, function: Function, invocation: EventInvocation, error: dict[str, Any]) -> None:
        """Schedule the retry of an event, or send it to the function's destination."""
        retries.event_failed(self, function, invocation, error)

    def notify(self, subscription: dict[str, Any], notification: dict[str, Any]) -> None:
        """Send a topic's message to a queue whose own policy allows the topic."""
        if subscription["Protocol"] == "sqs":
            endpoint, body = subscription["Endpoint"], json.dumps(notification)
            queues.send_as_service(self, TOPICS, notification["TopicArn"], endpoint, body)

    def delivered(self, firing: Firing, failure: Exception | None) -> bool:
        """Record a call of a target; schedule its retry, or send a dead letter."""
        super().delivered(firing, failure)
        self.deliveries.append(Delivery(schedule=firing.name, error=str(failure) if failure else ""))
        return failure is not None and retries.delivery_failed(self, firing, failure)
