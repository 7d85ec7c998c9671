"""The sweeper Lambda: ends instances with this stack's tags that are past their deadline, silent past their
lease, or without progress for twice its bound.

It uses EC2 tags and the clock; S3 only for leases, which it skips while S3 fails. It can describe, terminate
by tag (and lift termination protection), delete schedules and count its sweeps, and imports almost nothing of
ours, so that a broken launcher can't stop it. Called every two minutes with {}, and once with
{"run_id": ...} at each attempt's deadline.
Deployed as `trainer.control.functions.sweep.handler`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta, timezone
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from trainer.base.strict_json import Unsound
from trainer.runs.keys import NodeKeys
from trainer.runs.lease import MOST_LEASE_BYTES, Lease, boot_allowance, read_lease, silent

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
# Copies of codes of trainer.aws.error_codes, which the sweeper may not import.
NO_OBJECT, NO_INSTANCE, NO_SCHEDULE = "NoSuchKey", "InvalidInstanceID.NotFound", "ResourceNotFoundException"
FORBIDDEN, SPOILED_KEY, PROTECTED = "AccessDenied", "KMS.", "OperationNotPermitted"
# S3's codes for an object made unreadable by its writer: archived, or encrypted with another key.
SPOILED_OBJECT = ("InvalidObjectState", "InvalidRequest", "InvalidRange", "400")
# S3's codes for a key that it does not take: whoever launches chooses the tags that it is made of.
NO_KEY = ("KeyTooLongError", "InvalidURI")
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
        return cls(**{item.name: os.environ[item.name.upper()] for item in fields(cls)})


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


def sweep(
    settings: SweepSettings,
    clients: Clients,
    *,
    now: datetime,
    run_id: str = "",
    chores: bool = True,
    dry_run: bool = False,
) -> Summary:
    """Terminate instances that are due, of one run or of the stack, and (for the stack) delete schedules no
    longer needed and count.

    `chores`: whether it does the last two; a sweep from a desk does not. `dry_run`: terminate nothing, and
    name what would end.
    """
    one = Sweep(settings, clients, now, dry_run=dry_run)
    one.run(run_id, chores=chores and not dry_run and not run_id)
    return one.summary


@dataclass
class Sweep:
    """One sweep at an instant."""

    settings: SweepSettings
    clients: Clients
    now: datetime
    summary: Summary = field(default_factory=Summary)
    dry_run: bool = False

    def run(self, run_id: str, *, chores: bool) -> None:
        """Judge every instance, by its deadline first: leases need S3, which may hang."""
        instances = list(self._instances(run_id))
        self.summary.seen = len(instances)
        for judge in (self._end_overdue, *(() if run_id else (self._end_silent,))):
            for instance in instances:
                try:
                    judge(instance, _tags(instance))
                except Exception as error:  # judge the other instances; the invocation fails in the end
                    self.summary.failed[instance["InstanceId"]] = f"{type(error).__name__}: {error}"
        if chores:
            runs = {tags["run_id"] for tags in map(_tags, instances) if "run_id" in tags}
            self._delete_stale_schedules(runs)
            self._count()

    def _instances(self, run_id: str) -> Iterable[Mapping[str, Any]]:
        own = {"project": self.settings.project, "stack": self.settings.stack}
        tags = own | ({"run_id": run_id} if run_id else {})
        filters = [{"Name": f"tag:{key}", "Values": [value]} for key, value in tags.items()]
        filters.append({"Name": "instance-state-name", "Values": list(TERMINABLE)})
        for page in self.clients.ec2.get_paginator("describe_instances").paginate(Filters=filters):
            for reservation in page["Reservations"]:
                yield from reservation["Instances"]

    def _end_overdue(self, instance: Mapping[str, Any], tags: Mapping[str, str]) -> None:
        """Terminate one instance if it is past its deadline."""
        if why := overdue(tags, instance["LaunchTime"], self.now):
            late = self.now - (deadline_of(tags) or instance["LaunchTime"])
            minutes = round(late.total_seconds() / 60, 1)
            self.summary.overdue_minutes = max(self.summary.overdue_minutes, minutes)
            self._terminate(instance["InstanceId"], why)

    def _end_silent(self, instance: Mapping[str, Any], tags: Mapping[str, str]) -> None:
        """Terminate one instance, unless that was tried already, if it is silent past its lease."""
        tried = instance["InstanceId"] in (*self.summary.terminated, *self.summary.failed)
        if self.summary.lease_check == "done" and not tried and (why := self._silence(instance, tags)):
            self._terminate(instance["InstanceId"], why)

    def _silence(self, instance: Mapping[str, Any], tags: Mapping[str, str]) -> str:
        """Return why an instance counts as hung, or ''. A malformed lease counts as none.

        While S3 fails, no lease is judged; a lease that S3 refuses to return counts as malformed.
        """
        if "run_id" not in tags or "role_id" not in tags:
            return ""
        instance_id, lease = instance["InstanceId"], None
        try:
            key = _keys(instance_id, tags).lease
            part = f"bytes=0-{MOST_LEASE_BYTES}"  # one more than a lease may have
            stored = self.clients.s3.get_object(Bucket=self.settings.bucket, Key=key, Range=part)
            # Without a number of bytes: only then botocore compares what came with the answer's length.
            lease = read_lease(stored["Body"].read(), self.now)
        except (BotoCoreError, ClientError) as error:
            code = _code(error)
            hidden = code == FORBIDDEN or code.startswith(SPOILED_KEY)
            if hidden or code in (*SPOILED_OBJECT, *NO_KEY):
                self.summary.spoiled[instance_id] = str(error)
            elif code != NO_OBJECT:
                self.summary.lease_check = f"skipped, S3 fails: {error}"
                return ""
            if hidden:
                # Encrypted with the node's own key, or not permitted to us: its deadline still applies.
                return ""
        except Unsound as error:
            self.summary.spoiled[instance_id] = str(error)
        until = lease.lease_until if lease else None
        times = {"launched_at": instance["LaunchTime"], "lease_until": until, "now": self.now}
        if not silent(**times, boot_allowance=boot_allowance(tags.get("boot_seconds", ""))):
            return _stall(lease) if lease else ""
        if until:
            return f"silent since its lease ran out at {until:%Y-%m-%dT%H:%M:%SZ}"
        return f"never sent a {'valid ' if instance_id in self.summary.spoiled else ''}heartbeat"

    def _terminate(self, instance_id: str, why: str) -> None:
        """Terminate one instance. An error must not keep the others alive; one that is not found has
        ended.
        """
        try:
            if not self.dry_run:
                self._end(instance_id)
        except (BotoCoreError, ClientError) as error:
            if _code(error) != NO_INSTANCE:
                self.summary.failed[instance_id] = str(error)
                return
        self.summary.terminated[instance_id] = why

    def _end(self, instance_id: str) -> None:
        """Terminate one instance, and first lift the termination protection that its launcher gave it."""
        ec2, ids = self.clients.ec2, [instance_id]
        try:
            ec2.terminate_instances(InstanceIds=ids)
        except ClientError as error:
            if _code(error) != PROTECTED:
                raise
            ec2.modify_instance_attribute(InstanceId=instance_id, DisableApiTermination={"Value": False})
            ec2.terminate_instances(InstanceIds=ids)

    def _delete_stale_schedules(self, runs: set[str]) -> None:
        """Delete schedules that terminate by id, of runs that have no instance; they cost nothing, so a
        failure is logged.
        """
        scheduler, group = self.clients.scheduler, self.settings.schedule_group
        try:
            pages = scheduler.get_paginator("list_schedules").paginate(GroupName=group)
            schedules = [item for page in pages for item in page["Schedules"]]
        except (BotoCoreError, ClientError) as error:
            print(f"cannot list schedules: {error}")
            return
        for item in schedules:
            named = _KILL_SCHEDULE.match(item["Name"])
            changed_at = item.get("LastModificationDate") or item.get("CreationDate") or self.now
            if named is None or named[1] in runs or self.now < changed_at + STALE_SCHEDULE:
                continue
            try:
                scheduler.delete_schedule(Name=item["Name"], GroupName=group)
            except (BotoCoreError, ClientError) as error:
                if _code(error) != NO_SCHEDULE:
                    print(f"cannot delete the schedule {item['Name']}: {error}")
                    continue
            self.summary.deleted_schedules.append(item["Name"])

    def _count(self) -> None:
        """Publish the metrics of the alarms. A failure does not end the sweep: the alarm for a silent sweeper
        fires.
        """
        summary = self.summary
        values = {"SweepsDone": float(not summary.failed), "OverdueMinutes": summary.overdue_minutes}
        data = [{"MetricName": name, "Value": value} for name, value in values.items()]
        # As trainer.aws.stack_outputs.metrics_namespace, which the sweeper may not import.
        namespace = f"Mayfly/{self.settings.project}/{self.settings.stack}"
        try:
            self.clients.cloudwatch.put_metric_data(Namespace=namespace, MetricData=data)
        except (BotoCoreError, ClientError) as error:
            print(f"cannot publish metrics: {error}")


def _stall(lease: Lease) -> str:
    """Return why a node that renews its lease is ended all the same, or ''."""
    if not lease.is_stalled or lease.progress_at is None or lease.progress_bound is None:
        return ""
    bound = f"twice {lease.progress_bound.total_seconds():.0f} s"
    return f"no progress since {lease.progress_at:%Y-%m-%dT%H:%M:%SZ}, which is {bound} ago or more"


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


def _keys(instance_id: str, tags: Mapping[str, str]) -> NodeKeys:
    """Return the keys of an instance by its tags; a number that can't be read is the first of its kind."""
    attempt, node = tags.get("attempt", ""), tags.get("node", "")
    return NodeKeys(
        role_id=tags["role_id"],
        instance_id=instance_id,
        run_id=tags["run_id"],
        attempt=int(attempt) if attempt.isdecimal() else 1,
        node=int(node) if node.isdecimal() else 0,
    )


def _code(error: Exception) -> str:
    """Return the AWS code of a botocore error, or '' if AWS sent none."""
    answer = getattr(error, "response", None) or {}  # a time-out has one, which is None
    return str(answer.get("Error", {}).get("Code", ""))
