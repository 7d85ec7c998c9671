"""Rules of EventBridge Scheduler, and its targets: schedules are checked, kept by moto for reading, and fired
by `fire_due`.

A target is one of our Lambda functions, or a universal target
(`arn:aws:scheduler:::aws-sdk:<service>:<action>`), which is called as a client would, under the schedule's
role. Flexible windows are not supported, and a target that can't be called is not tried again.
"""

from __future__ import annotations

import json
import logging
import threading
from functools import partial
from typing import Any

from botocore import xform_name
from botocore.exceptions import BotoCoreError, ClientError

from trainer.base.instants import iso
from trainer.rehearsal import lambdas
from trainer.rehearsal.account import REGION, EmbeddedAccount, Principal, Rules, refuse
from trainer.rehearsal.schedule_expressions import parse
from trainer.rehearsal.wire import Call
from trainer.rehearsal.world import AwsError, Firing, StoredSchedule

log = logging.getLogger(__name__)
SERVICE = "scheduler.amazonaws.com"
UNIVERSAL_TARGET = "arn:aws:scheduler:::aws-sdk:"


def create_schedule(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    """Create a schedule. An invalid expression is a ValidationException, as on AWS."""
    with cloud.lock:
        return cloud.world.once("CreateSchedule", call.params, partial(_put, cloud, call))


def update_schedule(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    """Replace a schedule, as AWS does: omitted settings get their defaults."""
    with cloud.lock:
        return _put(cloud, call)


def delete_schedule(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    """Delete a schedule."""
    with cloud.lock:
        cloud.moto("scheduler", "DeleteSchedule", call.params)
        cloud.world.delete_schedule(call.params.get("GroupName") or "default", call.params["Name"])
        return {}


def fire_due(cloud: EmbeddedAccount) -> None:
    """Fire the due schedules, each on its own thread; `wait_for_deliveries` waits for them."""
    with cloud.lock:
        for firing in cloud.world.fire_due(cloud.clock.now()):
            deliver(cloud, firing)


def deliver(cloud: EmbeddedAccount, firing: Firing) -> None:
    """Call a schedule's target, on a thread of its own. The caller holds the account's lock."""
    thread = threading.Thread(target=_deliver, args=(cloud, firing), daemon=True, name=f"fire-{firing.name}")
    cloud.in_flight.append(thread)
    thread.start()


def wait_for_deliveries(cloud: EmbeddedAccount) -> None:
    """Wait until every call of a target so far has ended."""
    with cloud.lock:
        threads = list(cloud.in_flight)
    for thread in threads:
        thread.join()


def _deliver(cloud: EmbeddedAccount, firing: Firing) -> None:
    failure: Exception | None = None
    try:
        _call_target(cloud, firing)
    except (AwsError, ClientError, BotoCoreError, ValueError) as error:
        failure = error
    with cloud.lock:
        again = cloud.delivered(firing, failure)
        if firing.completed and not again:
            try:
                cloud.moto("scheduler", "DeleteSchedule", {"GroupName": firing.group, "Name": firing.name})
            except AwsError as error:  # deleted while it fired
                log.debug("schedule %s: %s", firing.name, error)
        cloud.in_flight.remove(threading.current_thread())


def principal_of(firing: Firing) -> Principal:
    """Return the principal as which a schedule calls its target."""
    role = firing.target["RoleArn"].rpartition("/")[2]
    return Principal(kind="TIME", name=f"{firing.group}/{firing.name}", role=role)


def _call_target(cloud: EmbeddedAccount, firing: Firing) -> None:
    target, principal = firing.target, principal_of(firing)
    if not cloud.trusts(principal.role, SERVICE, group_arn(cloud, firing.group)):
        raise AwsError("AccessDeniedException", f"The Scheduler can't assume the role {principal.role}.", 403)
    text = _fill_in(target.get("Input") or "{}", firing)
    if not target["Arn"].startswith(UNIVERSAL_TARGET):
        cloud.demand(principal, "lambda", "lambda:InvokeFunction", target["Arn"])
        lambdas.invoke_event(cloud, lambdas.function_name(target["Arn"]), text.encode())
        return
    service, action = target["Arn"].removeprefix(UNIVERSAL_TARGET).split(":")
    access = cloud.credentials("TIME", principal.name, role=principal.role).access(cloud.endpoint())
    getattr(access.client(service), xform_name(action))(**json.loads(text))


def _fill_in(text: str, firing: Firing) -> str:
    """Put the Scheduler's context attributes in a target's input."""
    at = iso(firing.at.replace(microsecond=0))
    text = text.replace("<aws.scheduler.scheduled-time>", at)
    return text.replace("<aws.scheduler.attempt-number>", str(firing.attempt))


def group_arn(cloud: EmbeddedAccount, group: str) -> str:
    """Return the Scheduler's aws:SourceArn: the group, not the schedule (user guide, looked up
    2026-11-22).
    """
    return f"arn:aws:scheduler:{REGION}:{cloud.account}:schedule-group/{group}"


def _put(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    params = call.params
    if {"StartDate", "EndDate"} & params.keys():
        return refuse(cloud, call)
    group = params.get("GroupName") or "default"
    try:
        expression = parse(params["ScheduleExpression"], params.get("ScheduleExpressionTimezone") or "UTC")
    except ValueError as error:
        raise AwsError("ValidationException", str(error)) from error
    cloud.moto("scheduler", "GetScheduleGroup", {"Name": group})
    answer = cloud.moto("scheduler", call.operation, params)
    schedule = StoredSchedule(
        group=group,
        name=params["Name"],
        expression=expression,
        target=params["Target"],
        enabled=params.get("State", "ENABLED") == "ENABLED",
        delete_after_completion=params.get("ActionAfterCompletion") == "DELETE",
        start=cloud.clock.now(),
    )
    cloud.world.put_schedule(schedule)
    return {"ScheduleArn": answer["ScheduleArn"]}


RULES: Rules = {
    ("scheduler", "CreateSchedule"): create_schedule,
    ("scheduler", "UpdateSchedule"): update_schedule,
    ("scheduler", "DeleteSchedule"): delete_schedule,
    ("scheduler", "DeleteScheduleGroup"): refuse,
}
