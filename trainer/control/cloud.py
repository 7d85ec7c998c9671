"""The calls that a run needs from its cloud: the `Cloud` protocol, and its boto3 implementation. CreateFleet
is called here.

Owns operation names, pagination and expected error codes. Decides nothing: `runs.reconcile` does. The tests
implement the same protocol in memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

from botocore.exceptions import BotoCoreError, ClientError

from trainer.aws.access import Access, aws_errors
from trainer.aws.error_codes import (
    NO_INSTANCE,
    NO_PLACEMENT,
    NO_SCHEDULE,
    PLACEMENT_EXISTS,
    SCHEDULE_EXISTS,
)
from trainer.aws.objects import Objects, open_objects
from trainer.aws.stack_outputs import StackOutputs
from trainer.base.errors import TrainerError
from trainer.base.instants import utc_now
from trainer.control.fleet import FleetAnswer, read_answer, read_failure
from trainer.runs.deadline import armed_for
from trainer.runs.observation import ENDED, DescribedInstance, Remains

# of volumes, and of spot requests: gone, or about to be
GOING = ("deleting", "deleted", "closed", "cancelled", "failed")
CLOCK_TOLERANCE = timedelta(seconds=5)  # the Date header has whole seconds, and a request takes a moment
# "User initiated (2026-11-20 23:59:12 GMT)": the one place where AWS dates a termination.
_TRANSITION = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")


class Cloud(Protocol):
    """The calls that observe and change a run. Each may be repeated, and raises TrainerError if AWS fails or
    refuses.
    """

    @property
    def objects(self) -> Objects: ...

    def now(self) -> datetime: ...

    def create_fleet(self, *, request: Mapping[str, Any]) -> FleetAnswer: ...

    def make_placement_group(self, *, name: str) -> None: ...

    def delete_placement_group(self, *, name: str) -> None: ...

    def instances(self, *, run_id: str) -> tuple[DescribedInstance, ...]: ...

    def run_of(self, *, instance_id: str) -> str | None: ...

    def terminate(self, *, instance_ids: tuple[str, ...]) -> None: ...

    def console_output(self, *, instance_id: str) -> str: ...

    def left(self, *, run_id: str, instance_ids: tuple[str, ...]) -> tuple[Remains, ...]: ...

    def scheduled(self, *, name: str) -> datetime | None: ...

    def arm_sweep(self, *, name: str, run_id: str, at: datetime) -> None: ...

    def arm_kill(self, *, name: str, instance_ids: tuple[str, ...], at: datetime) -> None: ...

    def delete_schedule(self, *, name: str) -> None: ...


class AwsCloud:
    """`Cloud` by boto3, for one stack."""

    def __init__(self, access: Access, outputs: StackOutputs) -> None:
        self._outputs = outputs
        self.objects: Objects = open_objects(access, outputs.bucket)
        self._ec2 = access.client("ec2")
        # No capacity is an HTTP 500, which botocore would retry in place: `runs.launching` decides about
        # retries.
        self._launches = access.client("ec2", total_max_attempts=1)
        self._scheduler = access.client("scheduler")
        self._offset = timedelta(0)

    def now(self) -> datetime:
        """Return the current time by AWS's clock, as of its last answer: a desk's own clock may be minutes
        off.
        """
        return utc_now() + self._offset

    def create_fleet(self, *, request: Mapping[str, Any]) -> FleetAnswer:
        """Call CreateFleet once and return its answer or its failure, interpreted."""
        num_nodes = int(request["TargetCapacitySpecification"]["TotalTargetCapacity"])
        try:
            return read_answer(self._launches.create_fleet(**request), num_nodes)
        except (BotoCoreError, ClientError) as error:
            return read_failure(error)

    def make_placement_group(self, *, name: str) -> None:
        """Create a cluster placement group, whose instances lie close together; one that exists is kept."""
        with aws_errors(f"cannot make the placement group {name}", but=PLACEMENT_EXISTS):
            self._ec2.create_placement_group(GroupName=name, Strategy="cluster")

    def delete_placement_group(self, *, name: str) -> None:
        """Delete a placement group; one that does not exist counts as deleted."""
        with aws_errors(f"cannot delete the placement group {name}", but=NO_PLACEMENT):
            self._ec2.delete_placement_group(GroupName=name)

    def instances(self, *, run_id: str) -> tuple[DescribedInstance, ...]:
        """Return every instance that carries the run's tag, in any state, but for those tagged as another
        stack's: whoever may launch there chooses their run's id.
        """
        filters = [{"Name": "tag:run_id", "Values": [run_id]}]
        with aws_errors(f"cannot describe the instances of {run_id}"):
            pages = list(self._ec2.get_paginator("describe_instances").paginate(Filters=filters))
        self._read_clock(pages)
        described = [item for page in pages for group in page["Reservations"] for item in group["Instances"]]
        return tuple(
            sorted(
                map(_instance, filter(self._may_be_own, described)),
                key=lambda instance: (instance.launched_at, instance.instance_id),
            )
        )

    def _may_be_own(self, item: Mapping[str, Any]) -> bool:
        own = {"project": self._outputs.project, "stack": self._outputs.stack}
        return all(value == own.get(name, value) for name, value in _tags(item).items())

    def run_of(self, *, instance_id: str) -> str | None:
        """Return the run id of an instance of this stack; None for a foreign or unknown instance."""
        groups: list[Any] = []
        with aws_errors(f"cannot describe {instance_id}", but=NO_INSTANCE):
            groups = self._ec2.describe_instances(InstanceIds=[instance_id])["Reservations"]
        described = [instance for group in groups for instance in group["Instances"]]
        tags = _tags(described[0]) if described else {}
        own = (tags.get("project"), tags.get("stack")) == (self._outputs.project, self._outputs.stack)
        return tags.get("run_id") if own else None

    def terminate(self, *, instance_ids: tuple[str, ...]) -> None:
        """Terminate instances one by one: one bad id in a list would fail the whole call. Not found counts as
        done.
        """
        failure: TrainerError | None = None
        for instance_id in instance_ids:
            try:
                with aws_errors(f"cannot terminate {instance_id}", but=NO_INSTANCE):
                    self._ec2.terminate_instances(InstanceIds=[instance_id])
            except TrainerError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def console_output(self, *, instance_id: str) -> str:
        """Return what an instance printed on its console (EC2 keeps 64 KB, for an hour after its end); '' if
        it has none.
        """
        with aws_errors(f"cannot read the console of {instance_id}", but=NO_INSTANCE):
            return str(self._ec2.get_console_output(InstanceId=instance_id).get("Output") or "")
        return ""

    def left(self, *, run_id: str, instance_ids: tuple[str, ...]) -> tuple[Remains, ...]:
        """Return the volumes and interfaces that carry a run's tag, and the spot requests of its instances
        that are not closed. What AWS is deleting doesn't count.
        """
        tagged = [{"Name": "tag:run_id", "Values": [run_id]}]
        asked = [{"Name": "instance-id", "Values": list(instance_ids)}]
        with aws_errors(f"cannot look for what {run_id} left"):
            return (
                *self._remains("describe_volumes", "Volumes", "volume", "VolumeId", "State", tagged),
                *self._remains(
                    "describe_network_interfaces",
                    "NetworkInterfaces",
                    "interface",
                    "NetworkInterfaceId",
                    "Status",
                    tagged,
                ),
                *self._remains(
                    "describe_spot_instance_requests",
                    "SpotInstanceRequests",
                    "spot request",
                    "SpotInstanceRequestId",
                    "State",
                    asked,
                ),
            )

    def _remains(
        self, operation: str, listed: str, kind: str, name: str, state: str, filters: list[dict[str, Any]]
    ) -> tuple[Remains, ...]:
        pages = self._ec2.get_paginator(operation).paginate(Filters=filters)
        found = [
            Remains(kind=kind, id=item[name], state=item[state]) for page in pages for item in page[listed]
        ]
        return tuple(item for item in found if item.state not in GOING)

    def scheduled(self, *, name: str) -> datetime | None:
        """Return the instant at which a one-time schedule fires, or None if there is none."""
        with aws_errors(f"cannot read the schedule {name}", but=NO_SCHEDULE):
            schedule = self._scheduler.get_schedule(Name=name, GroupName=self._outputs.schedule_group)
            expression = schedule["ScheduleExpression"]
            return datetime.strptime(expression, "at(%Y-%m-%dT%H:%M:%S)").replace(tzinfo=timezone.utc)
        return None

    def arm_sweep(self, *, name: str, run_id: str, at: datetime) -> None:
        """Create, or move, the one-time schedule that calls the sweeper for one run."""
        self._put_schedule(name, at, self._outputs.sweeper_arn, {"run_id": run_id})

    def arm_kill(self, *, name: str, instance_ids: tuple[str, ...], at: datetime) -> None:
        """Create, or move, the one-time schedule that calls ec2:terminateInstances itself."""
        target = "arn:aws:scheduler:::aws-sdk:ec2:terminateInstances"
        self._put_schedule(name, at, target, {"InstanceIds": list(instance_ids)})

    def delete_schedule(self, *, name: str) -> None:
        """Delete a schedule; one that does not exist (it has fired) counts as deleted."""
        with aws_errors(f"cannot delete the schedule {name}", but=NO_SCHEDULE):
            self._scheduler.delete_schedule(Name=name, GroupName=self._outputs.schedule_group)

    def _put_schedule(
        self, name: str, at: datetime, target_arn: str, target_input: Mapping[str, Any]
    ) -> None:
        request = schedule_request(
            name=name,
            group=self._outputs.schedule_group,
            at=at,
            target_arn=target_arn,
            role_arn=self._outputs.scheduler_role_arn,
            target_input=target_input,
        )
        doing = f"cannot arm the schedule {name}"
        with aws_errors(doing, but=SCHEDULE_EXISTS):
            self._scheduler.create_schedule(**request)
            return
        with aws_errors(doing):
            self._scheduler.update_schedule(**request)

    def _read_clock(self, pages: list[Any]) -> None:
        header = pages[-1].get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", "") if pages else ""
        try:
            offset = parsedate_to_datetime(header) - utc_now()
        except (ValueError, TypeError):
            return
        self._offset = offset if abs(offset) > CLOCK_TOLERANCE else timedelta(0)


def schedule_request(
    *, name: str, group: str, at: datetime, target_arn: str, role_arn: str, target_input: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of CreateSchedule (and UpdateSchedule) for a one-time schedule that deletes
    itself. It fires at the full minute at or after `at`.
    """
    return {
        "Name": name,
        "GroupName": group,
        "ScheduleExpression": f"at({armed_for(at).astimezone(timezone.utc):%Y-%m-%dT%H:%M:%S})",
        "ScheduleExpressionTimezone": "UTC",
        "FlexibleTimeWindow": {"Mode": "OFF"},
        "ActionAfterCompletion": "DELETE",
        "Target": {
            "Arn": target_arn,
            "RoleArn": role_arn,
            "Input": json.dumps(target_input),
            # The default is 185 tries in 24 hours, long after the instance has ended.
            "RetryPolicy": {"MaximumRetryAttempts": 30, "MaximumEventAgeInSeconds": 3600},
        },
    }


def _tags(item: Mapping[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in item.get("Tags", ())}


def _instance(item: Mapping[str, Any]) -> DescribedInstance:
    tags = _tags(item)
    state = item["State"]["Name"]
    launched_at = item["LaunchTime"].astimezone(timezone.utc)
    dated = _TRANSITION.search(item.get("StateTransitionReason") or "") if state in ENDED else None
    ended_at = (
        datetime.strptime(dated[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=timezone.utc) if dated else None
    )
    if ended_at is not None:
        # AWS cuts the fraction off; a bill's bound must not
        ended_at = max(ended_at + timedelta(seconds=1), launched_at)
    attempt = tags.get("attempt", "")
    return DescribedInstance(
        instance_id=item["InstanceId"],
        attempt=int(attempt) if attempt.isdecimal() else 1,
        instance_type=item["InstanceType"],
        market="spot" if item.get("InstanceLifecycle") == "spot" else "on_demand",
        availability_zone=item.get("Placement", {}).get("AvailabilityZone", ""),
        state=state,
        launched_at=launched_at,
        ended_at=ended_at,
        reason=(item.get("StateReason") or {}).get("Code", ""),
        private_address=item.get("PrivateIpAddress") or "",
        fleet=tags.get("aws:ec2:fleet-id", ""),
    )
