"""The boto3 clients of the simulated AWS: the operations that the product calls."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.chaos.aws import Aws, Body, Version
from trainer.rehearsal.schedule_expressions import parse
from trainer.rehearsal.world import AwsError, StoredSchedule


class Access:
    """What the product asks for its clients."""

    def __init__(self, aws: Aws) -> None:
        self._aws = aws

    def client(self, service: str, **_: Any) -> Any:
        return {"ec2": Ec2, "s3": S3, "scheduler": Scheduler, "cloudwatch": CloudWatch}[service](self._aws)


class _Pages:
    def __init__(self, ask: Callable[..., dict[str, Any]]) -> None:
        self._ask = ask

    def paginate(self, **asked: Any) -> Iterator[dict[str, Any]]:
        yield self._ask(**asked)


class Ec2:
    """The operations of EC2 that are called."""

    def __init__(self, aws: Aws) -> None:
        self._aws = aws

    def create_fleet(self, **request: Any) -> Any:
        create = lambda: self._aws.create_fleet(request)  # noqa: E731
        return self._aws.request("ec2", "CreateFleet", create, changes=True)

    def create_placement_group(self, *, GroupName: str, Strategy: str) -> Any:
        make = lambda: self._aws.world.make_group(GroupName)  # noqa: E731
        return self._aws.request("ec2", "CreatePlacementGroup", make, changes=True, about=GroupName)

    def delete_placement_group(self, *, GroupName: str) -> Any:
        delete = lambda: self._aws.world.delete_group(GroupName, self._aws.now)  # noqa: E731
        return self._aws.request("ec2", "DeletePlacementGroup", delete, changes=True, about=GroupName)

    def describe_instances(self, *, InstanceIds: Any = (), Filters: Any = ()) -> Any:
        describe = lambda: self._aws.describe(list(InstanceIds), list(Filters))  # noqa: E731
        return self._aws.request("ec2", "DescribeInstances", describe)

    def get_paginator(self, operation: str) -> _Pages:
        if operation == "describe_instances":
            return _Pages(self.describe_instances)
        name = operation.removeprefix("describe_").title().replace("_", "")  # here a machine leaves nothing
        return _Pages(lambda **_: self._aws.request("ec2", f"Describe{name}", lambda: {name: []}))

    def terminate_instances(self, *, InstanceIds: list[str]) -> Any:
        terminate = lambda: self._aws.terminate(InstanceIds)  # noqa: E731
        return self._aws.request(
            "ec2", "TerminateInstances", terminate, changes=True, about=" ".join(InstanceIds)
        )

    def get_console_output(self, *, InstanceId: str) -> Any:
        return self._aws.request("ec2", "GetConsoleOutput", lambda: {"Output": ""})


class Scheduler:
    """The operations of the Scheduler that are called."""

    def __init__(self, aws: Aws) -> None:
        self._aws = aws

    def create_schedule(self, **asked: Any) -> Any:
        return self._put(asked, "CreateSchedule")

    def update_schedule(self, **asked: Any) -> Any:
        return self._put(asked, "UpdateSchedule")

    def _put(self, asked: dict[str, Any], operation: str) -> Any:
        schedules, key = self._aws.world.schedules, (asked["GroupName"], asked["Name"])

        def put() -> dict[str, Any]:
            if operation == "CreateSchedule" and key in schedules:
                raise AwsError("ConflictException", asked["Name"], 409)
            if operation == "UpdateSchedule" and key not in schedules:
                raise AwsError("ResourceNotFoundException", asked["Name"], 404)
            stored = StoredSchedule(
                group=asked["GroupName"],
                name=asked["Name"],
                expression=parse(asked["ScheduleExpression"], asked["ScheduleExpressionTimezone"]),
                target={**asked["Target"], "expression": asked["ScheduleExpression"]},
                enabled=True,
                delete_after_completion=True,
                start=self._aws.now,
            )
            self._aws.world.put_schedule(stored)
            return {}

        return self._aws.request("scheduler", operation, put, changes=True, about=asked["Name"])

    def get_schedule(self, *, Name: str, GroupName: str) -> Any:
        def get() -> dict[str, Any]:
            stored = self._aws.world.schedules.get((GroupName, Name))
            if stored is None:
                raise AwsError("ResourceNotFoundException", Name, 404)
            return {"ScheduleExpression": stored.target["expression"]}

        return self._aws.request("scheduler", "GetSchedule", get)

    def delete_schedule(self, *, Name: str, GroupName: str) -> Any:
        def delete() -> dict[str, Any]:
            if (GroupName, Name) not in self._aws.world.schedules:
                raise AwsError("ResourceNotFoundException", Name, 404)
            self._aws.world.delete_schedule(GroupName, Name)
            for tell in self._aws.on_delete:
                tell(Name)
            return {}

        return self._aws.request("scheduler", "DeleteSchedule", delete, changes=True, about=Name)

    def get_paginator(self, _: str) -> _Pages:
        def listed(GroupName: str) -> dict[str, Any]:
            found = [
                {"Name": one.name, "LastModificationDate": one.start}
                for one in self._aws.world.schedules.values()
                if one.group == GroupName
            ]
            return {"Schedules": found}

        return _Pages(
            lambda **asked: self._aws.request("scheduler", "ListSchedules", lambda: listed(**asked))
        )


class CloudWatch:
    """Where the sweeper counts."""

    def __init__(self, aws: Aws) -> None:
        self._aws = aws

    def put_metric_data(self, **_: Any) -> Any:
        return self._aws.request("cloudwatch", "PutMetricData", dict)


class S3:
    """The operations of S3 that are called."""

    def __init__(self, aws: Aws) -> None:
        self._aws, self._bucket = aws, aws.bucket

    def get_object(self, *, Bucket: str, Key: str, VersionId: str = "", Range: str = "", **_: Any) -> Any:
        def get() -> dict[str, Any]:
            found = self._found(Key, VersionId)
            first = int(Range.rpartition("-")[2]) + 1 if Range else None
            if first and not found.body:
                raise AwsError("InvalidRange", Key, 416)
            return {**_shown(found), "Body": Body(found.body[:first])}

        return self._aws.request("s3", "GetObject", get)

    def head_object(self, *, Bucket: str, Key: str, VersionId: str = "", **_: Any) -> Any:
        head = lambda: _shown(self._found(Key, VersionId, "404", but="InvalidObjectState"))  # noqa: E731
        return self._aws.request("s3", "HeadObject", head)

    def put_object(self, *, Bucket: str, Key: str, Body: bytes, Metadata: Any = None, **asked: Any) -> Any:
        def put() -> dict[str, Any]:
            return _shown(self._bucket.put(Key, Body, self._aws.now, asked, metadata=Metadata or {}))

        answer = self._aws.request("s3", "PutObject", put, changes=True, about=Key)
        for tell in self._aws.on_put:
            tell(Key)
        return answer

    def delete_object(self, *, Bucket: str, Key: str, VersionId: str) -> Any:
        def delete() -> dict[str, Any]:
            kept = [one for one in self._bucket.objects.get(Key, []) if one.version_id != VersionId]
            self._bucket.objects[Key] = kept
            if not kept:
                del self._bucket.objects[Key]
            return {}

        return self._aws.request("s3", "DeleteObject", delete, changes=True, about=Key)

    def copy_object(self, *, Bucket: str, Key: str, CopySource: Mapping[str, str], **asked: Any) -> Any:
        def copy() -> dict[str, Any]:
            source = self._found(CopySource["Key"], CopySource.get("VersionId", ""))
            own = b64encode(hashlib.sha256(source.body).digest()).decode()
            more = {"metadata": asked.get("Metadata", source.metadata)}
            more |= {"checksum": own if asked.get("ChecksumAlgorithm") else source.checksum}
            return _shown(self._bucket.put(Key, source.body, self._aws.now, asked, **more))

        return self._aws.request("s3", "CopyObject", copy, changes=True, about=Key)

    def get_paginator(self, operation: str) -> _Pages:
        return _Pages(self._versions if operation == "list_object_versions" else self._list)

    def _list(self, *, Bucket: str, Prefix: str, Delimiter: str = "") -> Any:
        def listed() -> dict[str, Any]:
            keys = sorted(key for key in self._bucket.objects if key.startswith(Prefix))
            if Delimiter:
                below = {key[len(Prefix) :].partition("/") for key in keys}
                return {
                    "CommonPrefixes": [{"Prefix": f"{Prefix}{one[0]}/"} for one in sorted(below) if one[1]]
                }
            return {"Contents": [_listed(key, self._bucket.objects[key][-1]) for key in keys]}

        return self._aws.request("s3", "ListObjectsV2", listed)

    def _versions(self, *, Bucket: str, Prefix: str) -> Any:
        def listed() -> dict[str, Any]:
            found = [
                {**_listed(key, one), "VersionId": one.version_id}
                for key, versions in sorted(self._bucket.objects.items())
                if key.startswith(Prefix)
                for one in reversed(versions)
            ]
            return {"Versions": found}

        return self._aws.request("s3", "ListObjectVersions", listed)

    def _found(self, key: str, version_id: str, missing: str = "NoSuchKey", *, but: str = "") -> Version:
        for tell in self._aws.before_get:
            tell(key)
        found = self._bucket.newest(key, version_id)
        if found is None:
            raise AwsError("NoSuchVersion" if version_id else missing, key, 404)
        if found.locked and found.locked != but:
            raise AwsError(found.locked, key, 400)
        return found


def _shown(found: Version) -> dict[str, Any]:
    shown = {
        "ETag": found.etag,
        "VersionId": found.version_id,
        "ContentLength": len(found.body),
        "LastModified": found.at,
        "Metadata": dict(found.metadata),
    }
    return {**shown, "ChecksumSHA256": found.checksum} if found.checksum else shown


def _listed(key: str, found: Version) -> dict[str, Any]:
    return {"Key": key, "ETag": found.etag, "Size": len(found.body), "LastModified": found.at}


def kill_ids(stored: Mapping[str, Any]) -> list[str] | None:
    """Return the ids that a schedule's target terminates by itself; None if it calls the sweeper."""
    asked = json.loads(stored["Input"])
    return asked.get("InstanceIds")
