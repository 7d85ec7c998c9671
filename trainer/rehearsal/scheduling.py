"""Rules of EventBridge Scheduler, and its targets: schedules are checked, kept by moto for reading, and fired
by `fire_due`.

A target is one of our Lambda functions, or a universal target
(`arn:aws:scheduler:::aws-sdk:<service>:<action>`), which is called as a client would, under the schedule's
role. A target that can't be called is retried by the schedule's retry policy; then a message goes to its dead
letter queue. Each try is recorded in `EmbeddedAccount.deliveries`. Flexible windows are not supported.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import uuid
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from botocore import xform_name
from botocore.exceptions import BotoCoreError, ClientError

from trainer.aws.access import Access, error_code
from trainer.aws.place import REHEARSAL
from trainer.rehearsal import lambdas
from trainer.rehearsal.account import REGION, Delivery, EmbeddedAccount, Principal, Redelivery, Rules
from trainer.rehearsal.authorization import demand
from trainer.rehearsal.iam_policies import Authorization
from trainer.rehearsal.identities import trusts
from trainer.rehearsal.queues import send_as
from trainer.rehearsal.schedule_expressions import parse
from trainer.rehearsal.wire import Call
from trainer.rehearsal.world import AwsError, Firing
from trainer.runs.record import iso

log = logging.getLogger(__name__)
SERVICE = "scheduler.amazonaws.com"
FIRST_WAIT, MOST_DOUBLINGS = (
    timedelta(minutes=1),
    6,
)  # between two tries: the guide says "exponential backoff", and no numbers
UNIVERSAL_TARGET = "arn:aws:scheduler:::aws-sdk:"
# Prefixes of actions that the Scheduler does not call (Scheduler user guide, looked up 2026-11-20).
_READ_ONLY = (
    "get", "describe", "list", "poll", "receive", "search",
    "scan", "query", "select", "read", "lookup", "discover", "validate",
    "batchGet", "batchDescribe", "batchRead", "transactGet",
    "adminGet", "adminList", "testMigration", "retrieve",
    "testConnection", "translateDocument", "isAuthorized", "invokeModel",
)  # fmt: skip


def create_schedule(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    """Create a schedule. An invalid expression, name or target is a ValidationException, as on AWS."""
    params = call.params

    def create() -> dict[str, Any]:
        _check(cloud, params)
        answer = cloud.moto("scheduler", "CreateSchedule", params)
        _put(cloud, params)
        return {"ScheduleArn": answer["ScheduleArn"]}

    with cloud.lock:
        return cloud.world.once("CreateSchedule", params, create)


def update_schedule(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    """Replace a schedule, as AWS does: omitted settings get their defaults."""
    params = call.params
    with cloud.lock:
        _check(cloud, params)
        answer = cloud.moto("scheduler", "UpdateSchedule", params)
        _put(cloud, params)
        return {"ScheduleArn": answer["ScheduleArn"]}


def delete_schedule(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    """Delete a schedule."""
    with cloud.lock:
        cloud.moto("scheduler", "DeleteSchedule", call.params)
        cloud.world.delete_schedule(call.params.get("GroupName") or "default", call.params["Name"])
        return {}


def delete_schedule_group(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    """Delete a group with its schedules."""
    with cloud.lock:
        cloud.moto("scheduler", "GetScheduleGroup", {"Name": call.params["Name"]})
        cloud.moto("scheduler", "DeleteScheduleGroup", call.params)
        cloud.world.delete_schedule_group(call.params["Name"])
        return {}


def fire_due(cloud: EmbeddedAccount) -> None:
    """Fire the due schedules, each on its own thread; `wait_for_deliveries` waits for them."""
    with cloud.lock:
        now = cloud.clock.now()
        due = [one for one in cloud.redeliveries if one.due_at <= now]
        cloud.redeliveries = [one for one in cloud.redeliveries if one.due_at > now]
        due += [
            Redelivery(firing=one, first_at=now, tries=0, due_at=now) for one in cloud.world.fire_due(now)
        ]
        for one in due:
            thread = threading.Thread(
                target=_deliver, args=(cloud, one), daemon=True, name=f"fire-{one.firing.name}"
            )
            cloud.in_flight.append(thread)
            thread.start()


def wait_for_deliveries(cloud: EmbeddedAccount) -> None:
    """Wait until every firing so far is recorded in `EmbeddedAccount.deliveries`."""
    with cloud.lock:
        threads = list(cloud.in_flight)
    for thread in threads:
        thread.join()


def _deliver(cloud: EmbeddedAccount, delivery: Redelivery) -> None:
    firing, error, code = delivery.firing, "", ""
    try:
        _call_target(cloud, delivery)
    except (AwsError, ClientError, BotoCoreError, ValueError) as failure:
        error, code = str(failure), getattr(failure, "code", "") or error_code(failure)
        log.warning("schedule %s of account %s failed: %s", firing.name, cloud.account, error)
    with cloud.lock:
        again = _next_delivery(delivery, cloud.clock.now()) if error else None
        if again:
            cloud.redeliveries.append(again)
        elif error:
            _give_up(cloud, firing, error, code)
        if firing.completed and not again:
            try:
                cloud.moto("scheduler", "DeleteSchedule", {"GroupName": firing.group, "Name": firing.name})
            except AwsError as failure:  # deleted while it fired
                log.debug("schedule %s: %s", firing.name, failure)
        cloud.deliveries.append(
            Delivery(schedule=firing.name, at=firing.at, target_arn=firing.target["Arn"], error=error)
        )
        cloud.in_flight.remove(threading.current_thread())


def _next_delivery(delivery: Redelivery, now: datetime) -> Redelivery | None:
    """Return the next try of a target that could not be called, or None after the last that its policy
    allows.
    """
    policy = delivery.firing.target.get("RetryPolicy", {})
    due_at = now + FIRST_WAIT * 2 ** min(delivery.tries, MOST_DOUBLINGS)
    most_age = timedelta(seconds=int(policy.get("MaximumEventAgeInSeconds", 86_400)))
    if (
        delivery.tries >= int(policy.get("MaximumRetryAttempts", 185))
        or due_at - delivery.first_at > most_age
    ):
        return None
    return replace(delivery, tries=delivery.tries + 1, due_at=due_at)


def _give_up(cloud: EmbeddedAccount, firing: Firing, error: str, code: str) -> None:
    """Send the input of a firing that could not be delivered to the schedule's dead letter queue, if it has
    one.
    """
    queue_arn = firing.target.get("DeadLetterConfig", {}).get("Arn")
    if not queue_arn:
        return
    letter = {
        "schedule": f"{firing.group}/{firing.name}",
        "target": firing.target["Arn"],
        "input": firing.target.get("Input") or "{}",
        "error": f"{code}: {error}",
    }
    try:
        send_as(cloud, _principal(firing), queue_arn, json.dumps(letter))
    except AwsError as refusal:  # as on AWS: a metric counts it, InvocationsFailedToBeSentToDeadLetterCount
        log.warning("the dead letter of schedule %s is lost: %s", firing.name, refusal)


def _principal(firing: Firing) -> Principal:
    return Principal(
        kind="TIME", name=f"{firing.group}/{firing.name}", role=_role_name(firing.target["RoleArn"])
    )


def _call_target(cloud: EmbeddedAccount, delivery: Redelivery) -> None:
    firing = delivery.firing
    target, principal = firing.target, _principal(firing)
    if not trusts(cloud, principal.role, SERVICE, _group_arn(cloud, firing.group)):
        raise AwsError("AccessDeniedException", f"The Scheduler can't assume the role {principal.role}.", 403)
    text = _fill_in(target.get("Input") or "{}", cloud, firing, attempt=delivery.tries + 1)
    if not target["Arn"].startswith(UNIVERSAL_TARGET):
        demand(
            cloud, principal, "lambda", Authorization(action="lambda:InvokeFunction", resource=target["Arn"])
        )
        lambdas.invoke_event(cloud, lambdas.function_name(target["Arn"]), text.encode())
        return
    service, action = target["Arn"].removeprefix(UNIVERSAL_TARGET).split(":")
    own = cloud.credentials("TIME", principal.name, role=principal.role)
    access = Access(
        region=REGION,
        endpoint_url=cloud.endpoint(),
        access_key=own.access_key,
        secret_key=own.secret_key,
        place=REHEARSAL,
    )
    getattr(access.client(service), xform_name(action))(**json.loads(text))


def _fill_in(text: str, cloud: EmbeddedAccount, firing: Firing, *, attempt: int) -> str:
    """Put the Scheduler's context attributes in a target's input."""
    arn = f"arn:aws:scheduler:{REGION}:{cloud.account}:schedule/{firing.group}/{firing.name}"
    attributes = {
        "scheduled-time": iso(firing.at.replace(microsecond=0)),
        "schedule-arn": arn,
        "execution-id": str(uuid.uuid4()),
        "attempt-number": str(attempt),
    }
    for name, value in attributes.items():
        text = text.replace(f"<aws.scheduler.{name}>", value)
    return text


def _check(cloud: EmbeddedAccount, params: dict[str, Any]) -> None:
    """Refuse what AWS refuses and moto accepts."""
    if not re.fullmatch(r"[0-9a-zA-Z\-_.]{1,64}", params["Name"]):
        raise AwsError(
            "ValidationException",
            f"Name '{params['Name']}' must be 1 to 64 letters, digits, '-', '_' or '.'.",
        )
    try:
        parse(params["ScheduleExpression"], params.get("ScheduleExpressionTimezone") or "UTC")
    except ValueError as error:
        raise AwsError("ValidationException", str(error)) from error
    cloud.moto("scheduler", "GetScheduleGroup", {"Name": params.get("GroupName") or "default"})
    target = params["Target"]
    if target["Arn"].startswith(UNIVERSAL_TARGET):
        service, _, action = target["Arn"].removeprefix(UNIVERSAL_TARGET).partition(":")
        if not service or not action or action.startswith(_READ_ONLY):
            raise AwsError("ValidationException", f"{target['Arn']} is not a supported target.")
        json.loads(target.get("Input") or "{}")
    elif not re.fullmatch(r"arn:aws:lambda:[a-z0-9-]+:\d{12}:function:[\w-]+(:.+)?", target["Arn"]):
        raise AwsError("ValidationException", f"Provided Arn is not in correct format: {target['Arn']}.")
    if not trusts(
        cloud, _role_name(target["RoleArn"]), SERVICE, _group_arn(cloud, params.get("GroupName") or "default")
    ):
        refusal = "The execution role you provide must allow AWS EventBridge Scheduler to assume the role."
        raise AwsError("ValidationException", refusal)


def _role_name(arn: str) -> str:
    return arn.rpartition("/")[2]


def _group_arn(cloud: EmbeddedAccount, group: str) -> str:
    """Return the Scheduler's aws:SourceArn: the group, not the schedule (user guide, looked up
    2026-11-22).
    """
    return f"arn:aws:scheduler:{REGION}:{cloud.account}:schedule-group/{group}"


def _put(cloud: EmbeddedAccount, params: dict[str, Any]) -> None:
    cloud.world.put_schedule(
        group=params.get("GroupName") or "default",
        name=params["Name"],
        expression=parse(params["ScheduleExpression"], params.get("ScheduleExpressionTimezone") or "UTC"),
        target=params["Target"],
        enabled=params.get("State", "ENABLED") == "ENABLED",
        delete_after_completion=params.get("ActionAfterCompletion") == "DELETE",
        start=params.get("StartDate"),
        end=params.get("EndDate"),
        now=cloud.clock.now(),
    )


RULES: Rules = {
    ("scheduler", "CreateSchedule"): create_schedule,
    ("scheduler", "UpdateSchedule"): update_schedule,
    ("scheduler", "DeleteSchedule"): delete_schedule,
    ("scheduler", "DeleteScheduleGroup"): delete_schedule_group,
}
