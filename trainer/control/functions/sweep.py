"""The sweeper Lambda: ends instances with this stack's tags that are past their deadline or silent past their
lease.

It uses EC2 tags and the clock; S3 only for leases, which it skips while S3 fails. It can describe, terminate
by tag, delete schedules and count its sweeps, and imports almost nothing of ours, so that a broken launcher
can't stop it. Called every two minutes with {}, and once with {"run_id": ...} at each attempt's deadline.
Deployed as `trainer.control.functions.sweep.handler`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from trainer.base.strict_json import Unsound
from trainer.runs.keys import NodeKeys
from trainer.runs.lease import MOST_LEASE_BYTES, boot_allowance, read_lease, silent

EARLY = timedelta(seconds=5)  # the schedule fires at the deadline, by another clock
# tags come with the create call: an instance without them belongs to no run
UNTAGGED_ALLOWANCE = timedelta(minutes=1)
# after its last change, with no instance of its run: launches take seconds
STALE_SCHEDULE = timedelta(minutes=15)
# If S3 hangs, a sweep skips the leases and ends within the function's 90 s: botocore's own limits are 60 s,
# and five tries.
S3_PATIENCE = Config(
    connect_timeout=5, read_timeout=10, retries={"mode": "standard", "total_max_attempts": 2}
)
TERMINABLE = ("pending", "running", "stopping", "stopped")
# Copies of three codes of trainer.aws.error_codes, which the sweeper may not import.
NO_OBJECT, NO_INSTANCE, NO_SCHEDULE = "NoSuchKey", "InvalidInstanceID.NotFound", "ResourceNotFoundException"
FORBIDDEN = "AccessDenied"
# S3's codes for an object made unreadable by its writer: archived, or encrypted with another key.
SPOILED_OBJECT = ("InvalidObjectState", "InvalidRequest", "InvalidRange", "400")
# Kill schedules only: those that call the sweeper stay until their time, since they end an instance that
# appears late.
_KILL_SCHEDULE = re.compile(r"^[a-z][\w-]*?-(\d{8}-\d{6}-[a-z0-9-]+)-kill-\d+$")


@dataclass(frozen=True, kw_only=True)
class SweepSettings:
    """Settings of the function, from its environment."""

    project: str
    stack: str
    bucket: str
    schedule_group: str

    @classmethod
    def from_environment(cls) -> SweepSettings:
        """Read PROJECT, STACK, BUCKET and SCHEDULE_GROUP. Raises KeyError if one is missing."""
        names = {
            "project": "PROJECT",
            "stack": "STACK",
            "bucket": "BUCKET",
            "schedule_group": "SCHEDULE_GROUP",
        }
        return cls(**{field_name: os.environ[name] for field_name, name in names.items()})


@dataclass(frozen=True, kw_only=True)
class Clients:
    """AWS clients of one sweep."""

    cloudwatch: Any
    ec2: Any
    s3: Any
    scheduler: Any


@dataclass(kw_only=True)
class Summary:
    """Result of one sweep: the Lambda's answer and its log line."""

    seen: int = 0
    overdue_minutes: float = 0.0  # of the instance that is furthest past its deadline
    terminated: dict[str, str] = field(default_factory=dict)  # instance id -> why
    failed: dict[str, str] = field(default_factory=dict)  # what could not be done -> the error
    spoiled: dict[str, str] = field(default_factory=dict)  # instance id -> what is wrong with its lease
    deleted_schedules: list[str] = field(default_factory=list)
    lease_check: str = "done"

    def as_dict(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        return dict(vars(self))


def handler(event: Mapping[str, Any] | None, context: object) -> dict[str, Any]:
    """Sweep one run, or the whole stack. Raises RuntimeError after the sweep if an instance could not be
    ended.
    """
    clients = Clients(
        **{service: boto3.client(service) for service in ("cloudwatch", "ec2", "scheduler")},
        s3=boto3.client("s3", config=S3_PATIENCE),
    )
    summary = sweep(
        SweepSettings.from_environment(),
        clients,
        run_id=str((event or {}).get("run_id") or ""),
        now=datetime.now(timezone.utc),
    )
    print(json.dumps(summary.as_dict()))
    if summary.failed:  # a failed invocation is tried again by Lambda, and counts for the alarm
        raise RuntimeError(f"the sweep could not do everything: {json.dumps(summary.failed)}")
    return summary.as_dict()


def sweep(settings: SweepSettings, clients: Clients, *, now: datetime, run_id: str = "") -> Summary:
    """Terminate instances that are due, of one run or of the stack, and (for the stack) delete schedules no
    longer needed.
    """
    summary = Summary()
    instances = list(_instances(settings, clients.ec2, run_id))
    summary.seen = len(instances)
    for judge in (
        _end_overdue,
        *(() if run_id else (_end_silent,)),
    ):  # every deadline first: leases need S3, which may hang
        for instance in instances:
            try:
                judge(settings, clients, instance, now, summary)
            except Exception as error:  # judge the other instances; the invocation fails in the end
                summary.failed[instance["InstanceId"]] = f"{type(error).__name__}: {error}"
    if not run_id:
        runs = {
            tag["Value"]
            for instance in instances
            for tag in instance.get("Tags", ())
            if tag["Key"] == "run_id"
        }
        _delete_stale_schedules(settings, clients.scheduler, runs, now, summary)
        _count(settings, clients.cloudwatch, summary)
    return summary


def _end_overdue(
    settings: SweepSettings, clients: Clients, instance: Mapping[str, Any], now: datetime, summary: Summary
) -> None:
    """Terminate one instance if it is past its deadline."""
    tags = _tags(instance)
    if why := overdue(tags, instance["LaunchTime"], now):
        late = now - (deadline_of(tags) or instance["LaunchTime"])
        summary.overdue_minutes = max(summary.overdue_minutes, round(late.total_seconds() / 60, 1))
        _terminate(clients.ec2, instance["InstanceId"], why, summary)


def _end_silent(
    settings: SweepSettings, clients: Clients, instance: Mapping[str, Any], now: datetime, summary: Summary
) -> None:
    """Terminate one instance, unless that was tried already, if it is silent past its lease."""
    instance_id = instance["InstanceId"]
    if summary.lease_check != "done" or instance_id in summary.terminated or instance_id in summary.failed:
        return
    if why := _silent(settings, clients.s3, _tags(instance), instance, now, summary):
        _terminate(clients.ec2, instance_id, why, summary)


def _tags(instance: Mapping[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in instance.get("Tags", ())}


def overdue(tags: Mapping[str, str], launched_at: datetime, now: datetime) -> str:
    """Return why an instance must end by its tags and the clock, '' if it may live."""
    deadline = deadline_of(tags)
    if deadline is None:
        return "no deadline that can be read" if now > launched_at + UNTAGGED_ALLOWANCE else ""
    return f"past its deadline {tags['deadline']}" if now + EARLY >= deadline else ""


def deadline_of(tags: Mapping[str, str]) -> datetime | None:
    """Return the deadline in an instance's tags, or None without a readable one."""
    try:
        deadline = datetime.fromisoformat(tags["deadline"].replace("Z", "+00:00"))
    except (KeyError, ValueError):
        return None
    return deadline if deadline.tzinfo else deadline.replace(tzinfo=timezone.utc)


def _instances(settings: SweepSettings, ec2: Any, run_id: str) -> Iterable[Mapping[str, Any]]:
    tags = {"project": settings.project, "stack": settings.stack} | ({"run_id": run_id} if run_id else {})
    filters = [{"Name": f"tag:{key}", "Values": [value]} for key, value in tags.items()]
    filters.append({"Name": "instance-state-name", "Values": list(TERMINABLE)})
    for page in ec2.get_paginator("describe_instances").paginate(Filters=filters):
        for reservation in page["Reservations"]:
            yield from reservation["Instances"]


def _silent(
    settings: SweepSettings,
    s3: Any,
    tags: Mapping[str, str],
    instance: Mapping[str, Any],
    now: datetime,
    summary: Summary,
) -> str:
    """Return why an instance counts as hung, or ''. A malformed lease counts as none.

    While S3 fails, no lease is judged; a lease that S3 refuses to return counts as malformed.
    """
    if "run_id" not in tags or "role_id" not in tags:
        return ""
    attempt, node = tags.get("attempt", "1"), tags.get("node", "0")
    keys = NodeKeys(
        role_id=tags["role_id"],
        instance_id=instance["InstanceId"],
        run_id=tags["run_id"],
        attempt=int(attempt) if attempt.isdecimal() else 1,
        node=int(node) if node.isdecimal() else 0,
    )
    lease_until = None
    try:
        body = s3.get_object(Bucket=settings.bucket, Key=keys.lease)["Body"].read(MOST_LEASE_BYTES + 1)
        lease_until = read_lease(body, now).lease_until
    except (BotoCoreError, ClientError) as error:
        if (
            _code(error) == FORBIDDEN
        ):  # encrypted with the node's own key, or not permitted to us: its deadline still applies
            summary.spoiled[instance["InstanceId"]] = str(error)
            return ""
        if _code(error) in SPOILED_OBJECT:
            summary.spoiled[instance["InstanceId"]] = str(error)
        elif _code(error) != NO_OBJECT:
            summary.lease_check = f"skipped, S3 fails: {error}"
            return ""
    except Unsound as error:
        summary.spoiled[instance["InstanceId"]] = str(error)
    allowance = boot_allowance(tags.get("boot_seconds", ""))
    if not silent(
        launched_at=instance["LaunchTime"], lease_until=lease_until, now=now, boot_allowance=allowance
    ):
        return ""
    if lease_until:
        return f"silent since its lease ran out at {lease_until:%Y-%m-%dT%H:%M:%SZ}"
    return "never sent a " + ("valid heartbeat" if instance["InstanceId"] in summary.spoiled else "heartbeat")


def _terminate(ec2: Any, instance_id: str, why: str, summary: Summary) -> None:
    """Terminate one instance. An error must not keep the others alive; one that is not found has ended."""
    try:
        ec2.terminate_instances(InstanceIds=[instance_id])
    except (BotoCoreError, ClientError) as error:
        if _code(error) != NO_INSTANCE:
            summary.failed[instance_id] = str(error)
            return
    summary.terminated[instance_id] = why


def _delete_stale_schedules(
    settings: SweepSettings, scheduler: Any, runs: set[str], now: datetime, summary: Summary
) -> None:
    """Delete schedules that terminate by id, of runs that have no instance; they cost nothing, so a failure
    is logged.
    """
    try:
        pages = scheduler.get_paginator("list_schedules").paginate(GroupName=settings.schedule_group)
        schedules = [item for page in pages for item in page["Schedules"]]
    except (BotoCoreError, ClientError) as error:
        print(f"cannot list schedules: {error}")
        return
    for item in schedules:
        named = _KILL_SCHEDULE.match(item["Name"])
        changed_at = item.get("LastModificationDate") or item.get("CreationDate") or now
        if named is None or named[1] in runs or now < changed_at + STALE_SCHEDULE:
            continue
        try:
            scheduler.delete_schedule(Name=item["Name"], GroupName=settings.schedule_group)
        except (BotoCoreError, ClientError) as error:
            if _code(error) != NO_SCHEDULE:
                print(f"cannot delete the schedule {item['Name']}: {error}")
                continue
        summary.deleted_schedules.append(item["Name"])


def _count(settings: SweepSettings, cloudwatch: Any, summary: Summary) -> None:
    """Publish the metrics of the alarms. A failure does not end the sweep: the alarm for a silent sweeper
    fires.
    """
    values = {"SweepsDone": float(not summary.failed), "OverdueMinutes": summary.overdue_minutes}
    data = [{"MetricName": name, "Value": value} for name, value in values.items()]
    try:
        # As trainer.aws.stack_outputs.metrics_namespace, which the sweeper may not import.
        cloudwatch.put_metric_data(Namespace=f"Mayfly/{settings.project}/{settings.stack}", MetricData=data)
    except (BotoCoreError, ClientError) as error:
        print(f"cannot publish metrics: {error}")


def _code(error: Exception) -> str:
    """Return the AWS code of a botocore error, or '' if AWS sent none."""
    return str(getattr(error, "response", {}).get("Error", {}).get("Code", ""))
