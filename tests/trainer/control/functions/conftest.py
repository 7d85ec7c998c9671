"""An account with instances of the stack, as the sweeper meets it."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from trainer.control.functions.sweep import Clients, SweepSettings, sweep
from trainer.runs.keys import NodeKeys
from trainer.runs.lease import LEASE

RUN = "20261120-120000-crypto-k3v9"
GROUP = "mayfly-runs"


class SweptAccount:
    """One account: its clients, and instances by what their tags say."""

    def __init__(self, access) -> None:
        self.access = access
        services = ("cloudwatch", "ec2", "s3", "scheduler")
        self.cloudwatch, self.ec2, self.s3, self.scheduler = (access.client(name) for name in services)
        self.settings = SweepSettings(
            project="mayfly", stack="dev", bucket=f"sweep-{access.access_key[4:16]}", schedule_group=GROUP
        )
        self.s3.create_bucket(Bucket=self.settings.bucket)
        self.scheduler.create_schedule_group(Name=GROUP)
        self.image = self.ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
        self.now = datetime.now(timezone.utc)

    @property
    def clients(self) -> Clients:
        return Clients(cloudwatch=self.cloudwatch, ec2=self.ec2, s3=self.s3, scheduler=self.scheduler)

    def launch(self, *, deadline: str | timedelta | None = timedelta(hours=1), **tags: str | None) -> str:
        values = {
            "project": "mayfly",
            "stack": "dev",
            "run_id": RUN,
            "attempt": "1",
            "node": "0",
            "role_id": "AROA1",
        } | tags
        if deadline is not None:
            values["deadline"] = (
                deadline if isinstance(deadline, str) else f"{self.now + deadline:%Y-%m-%dT%H:%M:%SZ}"
            )
        specification = [
            {
                "ResourceType": "instance",
                "Tags": [{"Key": key, "Value": value} for key, value in values.items() if value is not None],
            }
        ]
        answer = self.ec2.run_instances(
            ImageId=self.image,
            InstanceType="g5.xlarge",
            MinCount=1,
            MaxCount=1,
            TagSpecifications=specification,
        )
        return str(answer["Instances"][0]["InstanceId"])

    def state(self, instance_id: str) -> str:
        found = self.ec2.describe_instances(InstanceIds=[instance_id])["Reservations"][0]["Instances"][0]
        return "alive" if found["State"]["Name"] in ("pending", "running") else "ended"

    def lease(self, instance_id: str, run_id: str = RUN) -> str:
        return NodeKeys(role_id="AROA1", instance_id=instance_id, run_id=run_id, attempt=1).lease

    def beat(self, instance_id: str, at: datetime, *, still: timedelta | None = None) -> None:
        fields: dict[str, Any] = {"at": at.isoformat(), "lease_until": (at + LEASE).isoformat()}
        if still is not None:
            fields |= {"progress_at": (at - still).isoformat(), "progress_bound": 600}
        body = json.dumps(fields)
        self.s3.put_object(Bucket=self.settings.bucket, Key=self.lease(instance_id), Body=body.encode())

    def sweep(self, *, later: timedelta = timedelta(0), run_id: str = "", clients: Clients | None = None):
        return sweep(self.settings, clients or self.clients, now=self.now + later, run_id=run_id)


@pytest.fixture
def account(access) -> SweptAccount:
    return SweptAccount(access)
