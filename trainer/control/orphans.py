"""Find and delete orphans: volumes, interfaces and one-time schedules of the stack that belong to no open
run.

Volumes and interfaces end with their machine, schedules with their run; orphans come from a launch that AWS
undid only partly, or from a killed command. A schedule that may still end a machine is not an orphan: it
stays until its time has passed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from botocore.exceptions import ClientError

from trainer.aws.access import Access, error_code
from trainer.aws.objects import Objects
from trainer.aws.stack_outputs import StackOutputs
from trainer.runs.index import read_index

PASSED = timedelta(minutes=15)  # after its time: by then Scheduler has called, retried and deleted it
_RUN_SCHEDULE = re.compile(r"mayfly-(\d{8}-\d{6}-[a-z0-9-]+?)-(sweep|kill-\d+)")
_AT = re.compile(r"at\((\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\)")
_GONE = ("InvalidVolume.NotFound", "InvalidNetworkInterfaceID.NotFound", "ResourceNotFoundException")


@dataclass(frozen=True, kw_only=True)
class Orphan:
    """One resource to delete."""

    kind: str  # volume, interface or schedule
    id: str
    run_id: str
    about: str = ""


def orphans(
    kind: str, access: Access, outputs: StackOutputs, objects: Objects, *, now: datetime
) -> list[Orphan]:
    """Return the orphans of a kind. Open runs are read last, so that they include the run of each listed
    resource.
    """
    seen = list(_LISTS[kind](access, outputs, now))
    if not seen:
        return []
    is_open = read_index(objects).open
    return [one for one in seen if one.run_id not in is_open]


def orphans_note(kind: str, access: Access, outputs: StackOutputs, objects: Objects, *, now: datetime) -> str:
    """Return doctor's note on the orphans of a kind, '' for none."""
    found = orphans(kind, access, outputs, objects, now=now)
    named = ", ".join(f"{one.id} of run {one.run_id}{one.about}" for one in found)
    return f"left by ended runs: {named}. mayfly doctor --fix deletes them" if found else ""


def delete(access: Access, outputs: StackOutputs, orphan: Orphan) -> None:
    """Delete an orphan; a missing one counts as deleted. Raises ClientError as AWS does."""
    try:
        if orphan.kind == "schedule":
            access.client("scheduler").delete_schedule(Name=orphan.id, GroupName=outputs.schedule_group)
        elif orphan.kind == "volume":
            access.client("ec2").delete_volume(VolumeId=orphan.id)
        else:
            access.client("ec2").delete_network_interface(NetworkInterfaceId=orphan.id)
    except ClientError as error:
        if error_code(error) not in _GONE:
            raise


def _volumes(access: Access, outputs: StackOutputs, now: datetime) -> Iterator[Orphan]:
    pages = access.client("ec2").get_paginator("describe_volumes").paginate(Filters=_detached(outputs))
    for volume in (one for page in pages for one in page["Volumes"]):
        yield Orphan(
            kind="volume",
            id=volume["VolumeId"],
            run_id=_run_of(volume["Tags"]),
            about=f" ({volume['Size']} GiB)",
        )


def _interfaces(access: Access, outputs: StackOutputs, now: datetime) -> Iterator[Orphan]:
    pages = (
        access.client("ec2").get_paginator("describe_network_interfaces").paginate(Filters=_detached(outputs))
    )
    for interface in (one for page in pages for one in page["NetworkInterfaces"]):
        yield Orphan(
            kind="interface", id=interface["NetworkInterfaceId"], run_id=_run_of(interface["TagSet"])
        )


def _schedules(access: Access, outputs: StackOutputs, now: datetime) -> Iterator[Orphan]:
    scheduler, group = access.client("scheduler"), outputs.schedule_group
    pages = scheduler.get_paginator("list_schedules").paginate(GroupName=group, NamePrefix="mayfly-")
    for name in (one["Name"] for page in pages for one in page["Schedules"]):
        if (named := _RUN_SCHEDULE.fullmatch(name)) is None:
            continue
        try:
            schedule = scheduler.get_schedule(Name=name, GroupName=group)
        except ClientError as error:
            if error_code(error) in _GONE:  # its run has ended since the listing
                continue
            raise
        if _passed(schedule, now):
            yield Orphan(kind="schedule", id=name, run_id=named[1])


def _passed(schedule: Mapping[str, Any], now: datetime) -> bool:
    at = _AT.fullmatch(schedule["ScheduleExpression"])
    return at is not None and datetime.fromisoformat(at[1]).replace(tzinfo=timezone.utc) + PASSED < now


def _detached(outputs: StackOutputs) -> list[dict[str, Any]]:
    """Return filters for resources of the stack that carry a run id and are attached to nothing."""
    return [
        {"Name": "tag:project", "Values": [outputs.project]},
        {"Name": "tag:stack", "Values": [outputs.stack]},
        {"Name": "tag-key", "Values": ["run_id"]},
        {"Name": "status", "Values": ["available"]},
    ]


def _run_of(tags: list[dict[str, str]]) -> str:
    return next(tag["Value"] for tag in tags if tag["Key"] == "run_id")


_LISTS: Mapping[str, Callable[[Access, StackOutputs, datetime], Iterator[Orphan]]] = {
    "volume": _volumes,
    "interface": _interfaces,
    "schedule": _schedules,
}
KINDS = tuple(_LISTS)
