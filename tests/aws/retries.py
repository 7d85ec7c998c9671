"""Retries and dead letters: of events on which a function failed, and of calls of schedules' targets.

https://docs.aws.amazon.com/lambda/latest/dg/invocation-async-error-handling.html (looked up 2026-11-22): two
more tries unless the function's settings allow fewer, after one minute and after two; given up once the event
exceeds their maximum age. A schedule's target is tried again by the schedule's retry policy.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from tests.aws.queues import send_as
from trainer.aws.access import error_code
from trainer.base.instants import iso
from trainer.rehearsal import lambdas, scheduling
from trainer.rehearsal.account import REGION, EventInvocation, Function
from trainer.rehearsal.world import AwsError, Firing

if TYPE_CHECKING:
    from tests.aws.account import CheckedAccount

log = logging.getLogger(__name__)
WAITS = (timedelta(minutes=1), timedelta(minutes=2))
MOST_AGE_SECONDS = 6 * 3600  # of an event, unless the function's settings are lower
FIRST_WAIT, MOST_DOUBLINGS = (
    timedelta(minutes=1),
    6,
)  # between two tries: the guide says "exponential backoff", and no numbers


@dataclass(frozen=True, kw_only=True)
class AsyncInvocation:
    """An event on which a function failed, and how often it was tried."""

    event: EventInvocation
    accepted_at: datetime
    due_at: datetime
    tries: int = 1


@dataclass(frozen=True, kw_only=True)
class Redelivery:
    """A firing whose target could not be called, until its next try."""

    firing: Firing
    due_at: datetime


def event_failed(
    cloud: CheckedAccount, function: Function, event: EventInvocation, error: Mapping[str, Any]
) -> None:
    """Schedule the retry of an event, or send it to the function's destination."""
    try:
        settings = cloud.moto("lambda", "GetFunctionEventInvokeConfig", {"FunctionName": function.name})
    except AwsError:  # Lambda's defaults
        settings = {}
    now = cloud.clock.now()
    with cloud.lock:
        before = cloud.tried.get(event.request_id)
        failed = (
            replace(before, tries=before.tries + 1)
            if before
            else AsyncInvocation(event=event, accepted_at=now, due_at=now)
        )
        cloud.tried[event.request_id] = failed
        most_age = timedelta(seconds=int(settings.get("MaximumEventAgeInSeconds", MOST_AGE_SECONDS)))
        due_at = now + WAITS[min(failed.tries, len(WAITS)) - 1]
        exhausted = failed.tries > int(settings.get("MaximumRetryAttempts", len(WAITS)))
        if not exhausted and due_at - failed.accepted_at <= most_age:
            cloud.retries.append(replace(failed, due_at=due_at))
            return
    if arn := settings.get("DestinationConfig", {}).get("OnFailure", {}).get("Destination"):
        condition = "RetriesExhausted" if exhausted else "EventAgeExceeded"
        letter = _failure_record(cloud, failed, condition=condition, error=error)
        try:
            send_as(cloud, function.principal, arn, json.dumps(letter))
        except AwsError as refusal:  # as on AWS: a metric counts it, DestinationDeliveryFailures
            log.warning("the dead letter of %s is lost: %s", function.name, refusal)


def retry_due(cloud: CheckedAccount) -> None:
    """Start the events and the calls of targets whose next try is due."""
    with cloud.lock:
        now = cloud.clock.now()
        events = [one for one in cloud.retries if one.due_at <= now]
        cloud.retries = [one for one in cloud.retries if one.due_at > now]
        for redelivery in [one for one in cloud.redeliveries if one.due_at <= now]:
            cloud.redeliveries.remove(redelivery)
            scheduling.deliver(cloud, redelivery.firing)
    for one in events:
        lambdas.start(cloud, one.event)


def delivery_failed(cloud: CheckedAccount, firing: Firing, failure: Exception) -> bool:
    """Schedule the next try of a target that could not be called, or send a dead letter after the last that
    its policy allows. Returns whether it is tried again.
    """
    policy, now = firing.target.get("RetryPolicy", {}), cloud.clock.now()
    due_at = now + FIRST_WAIT * 2 ** min(firing.attempt - 1, MOST_DOUBLINGS)
    most_age = timedelta(seconds=int(policy.get("MaximumEventAgeInSeconds", 86_400)))
    if firing.attempt <= int(policy.get("MaximumRetryAttempts", 185)) and due_at - firing.at <= most_age:
        again = replace(firing, attempt=firing.attempt + 1)
        cloud.redeliveries.append(Redelivery(firing=again, due_at=due_at))
        return True
    if arn := firing.target.get("DeadLetterConfig", {}).get("Arn"):
        letter = {
            "schedule": f"{firing.group}/{firing.name}",
            "target": firing.target["Arn"],
            "input": firing.target.get("Input") or "{}",
            "error": f"{getattr(failure, 'code', '') or error_code(failure)}: {failure}",
        }
        try:
            send_as(cloud, scheduling.principal_of(firing), arn, json.dumps(letter))
        except (
            AwsError
        ) as refusal:  # as on AWS: a metric counts it, InvocationsFailedToBeSentToDeadLetterCount
            log.warning("the dead letter of schedule %s is lost: %s", firing.name, refusal)
    return False


def _failure_record(
    cloud: CheckedAccount, failed: AsyncInvocation, *, condition: str, error: Mapping[str, Any]
) -> dict[str, Any]:
    """Return Lambda's message to the on-failure destination."""
    function_arn = f"arn:aws:lambda:{REGION}:{cloud.account}:function:{failed.event.function_name}"
    return {
        "version": "1.0",
        "timestamp": iso(cloud.clock.now().replace(microsecond=0)),
        "requestContext": {
            "requestId": failed.event.request_id,
            "functionArn": f"{function_arn}:$LATEST",
            "condition": condition,
            "approximateInvokeCount": failed.tries,
        },
        "requestPayload": json.loads(failed.event.payload),
        "responseContext": {"statusCode": 200, "executedVersion": "$LATEST", "functionError": "Unhandled"},
        "responsePayload": error,
    }
