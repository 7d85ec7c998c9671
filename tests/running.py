"""A run whose machine is up, as EC2 and S3 have it, without any process: what verbs that look at one start
from.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

from tests.records import created
from tests.trainer.conftest import OPEN_RUN
from trainer.aws.access import Access
from trainer.aws.objects import Objects
from trainer.base.instants import iso, utc_now
from trainer.runs.attempts import Attempt
from trainer.runs.keys import NodeKeys
from trainer.runs.record import RunRecord
from trainer.runs.record_json import to_json
from trainer.runs.samples import NodeSample
from trainer.runs.store import read_record


class Running:
    """A machine of OPEN_RUN as EC2 and S3 have it, and what its agent would send."""

    def __init__(self, access: Access, account: Objects, **more: Any) -> None:
        """`more` goes into RunInstances."""
        self.ec2, self.objects = access.client("ec2"), account
        record, _ = read_record(account, OPEN_RUN)
        tags = {"project": "mayfly", "stack": "dev", "run_id": OPEN_RUN, "attempt": "1"}
        spec = [
            {
                "ResourceType": "instance",
                "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
            }
        ]
        image = self.ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
        one = {
            "ImageId": image,
            "InstanceType": "g6.xlarge",
            "MinCount": 1,
            "MaxCount": 1,
            "TagSpecifications": spec,
        }
        made = self.ec2.run_instances(**one, **more)
        self.instance_id = made["Instances"][0]["InstanceId"]
        self._store(record)
        self.keys = NodeKeys(role_id="AROA1", instance_id=self.instance_id, run_id=OPEN_RUN, attempt=1)
        self.renew()

    def _store(self, record: RunRecord) -> None:
        now = utc_now()
        launch = created(
            deadline=now + timedelta(hours=1),
            intended_at=now,
            called_at=now,
            instance_ids=(self.instance_id,),
        )
        started = replace(
            record,
            state="running",
            attempts=(Attempt(number=1, launches=(launch,), created_at=now),),
            deadline=launch.deadline,
        )
        self.objects.put(key=f"runs/{OPEN_RUN}/run.json", body=to_json(started))

    def renew(self) -> None:
        now = utc_now()
        lease = {
            "instance_id": self.instance_id,
            "at": iso(now),
            "lease_until": iso(now + timedelta(seconds=80)),
        }
        self.objects.put(key=self.keys.lease, body=json.dumps(lease).encode())

    def sample(self, sample: NodeSample) -> None:
        body = {"phase": "train", "sample": sample.to_dict()}
        self.objects.put(key=self.keys.progress, body=json.dumps(body).encode())

    def end(self) -> None:
        """End the machine of a run that was asked to stop, which needs no other one."""
        record, _ = read_record(self.objects, OPEN_RUN)
        asked = replace(record, stop_requested_at=utc_now())
        self.objects.put(key=f"runs/{OPEN_RUN}/run.json", body=to_json(asked))
        self.ec2.terminate_instances(InstanceIds=[self.instance_id])
