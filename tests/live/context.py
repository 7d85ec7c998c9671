"""Where the checks run, and what they share: an account or the embedded AWS, its stack, the command line,
machines that end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from trainer.aws.access import Access
from trainer.aws.stack import read_stack
from trainer.aws.stack_outputs import StackOutputs
from trainer.control.cloud import AwsCloud
from trainer.runs.record import iso, new_run_id, utc_now

ROOT = Path(__file__).resolve().parents[2]
HUNG = "#!/bin/bash\nsleep 7200\n"  # user data that never says a word


class CheckFailed(Exception):
    """A check saw something else than what has to be."""


def require(holds: object, what: str) -> None:
    """Raise CheckFailed where something does not hold."""
    if not holds:
        raise CheckFailed(what)


@dataclass(kw_only=True)
class Live:
    """One AWS to check."""

    access: Access
    stack: str
    folder: Path  # candles and pulled models
    embedded: bool
    say: Callable[[str], None]
    environment: dict[str, str] = field(default_factory=dict)  # of the commands that a check runs

    @cached_property
    def outputs(self) -> StackOutputs:
        return read_stack(self.access, stack=self.stack)

    @cached_property
    def cloud(self) -> AwsCloud:
        return AwsCloud(self.access, self.outputs)

    def client(self, service: str) -> Any:
        return self.access.client(service)

    def run(self, *command: str, codes: Sequence[int] = (0,)) -> str:
        """Run a command from the checkout, say it, and return its stdout. Raises CheckFailed for another exit
        code.
        """
        self.say(f"$ {' '.join(command)}")
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=ROOT, env=os.environ | self.environment
        )
        if done.returncode not in codes:
            raise CheckFailed(f"exit code {done.returncode}: {(done.stderr or done.stdout).strip()[-2000:]}")
        return done.stdout

    def mayfly(self, *words: str, codes: Sequence[int] = (0,)) -> Any:
        """Run a verb with --json and return its document."""
        options = ("--stack", self.stack, "--json")
        return json.loads(self.run(sys.executable, "-m", "trainer.cli.main", *words, *options, codes=codes))

    def candles(self) -> Path:
        """Return a folder of synthetic candles of two symbols."""
        folder = self.folder / "candles"
        if not folder.is_dir():
            words = (
                "--out",
                str(folder),
                "--symbols",
                "LIVE-A,LIVE-B",
                "--bars",
                "3000",
                "--timeframe",
                "1m",
            )
            self.run(sys.executable, "-m", "trainer.data.synthetic", *words)
        return folder

    @contextmanager
    def machine(self, name: str, *, deadline: datetime, user_data: str = "", **tags: str) -> Iterator[str]:
        """Run one t3.large from the stack's template, tagged as a launch tags it; end it whatever happens.
        Yields its id.
        """
        outputs = self.outputs
        zone, subnet = sorted(outputs.subnets.items())[0]
        values = {"project": outputs.project, "stack": outputs.stack, "owner": outputs.owner}
        values |= {"run_id": new_run_id(f"live-{name}", utc_now()), "attempt": "1", "node": "0"}
        values |= {"role_id": outputs.instance_role_id, "deadline": iso(deadline.replace(microsecond=0))}
        code = {"bundle_key": "code/live-check.whl", "bundle_sha256": "0" * 64}
        values |= {**code, "boot_seconds": "900", **tags}
        image = self.client("ssm").get_parameter(Name=outputs.image_parameter)["Parameter"]["Value"]
        public = {"DeviceIndex": 0, "AssociatePublicIpAddress": True}
        instance_tags = [{"Key": key, "Value": value} for key, value in values.items()]
        request = {
            "LaunchTemplate": {"LaunchTemplateId": outputs.launch_template, "Version": "$Default"},
            "ImageId": image,
            "InstanceType": "t3.large",
            "MinCount": 1,
            "MaxCount": 1,
            "NetworkInterfaces": [{**public, "SubnetId": subnet, "Groups": [outputs.security_group]}],
            "TagSpecifications": [{"ResourceType": "instance", "Tags": instance_tags}],
        }
        if user_data:
            request["UserData"] = user_data
        started = self.client("ec2").run_instances(**request)["Instances"][0]["InstanceId"]
        self.say(f"{name}: {started} in {zone}, run {values['run_id']}, deadline {values['deadline']}")
        try:
            yield str(started)
        finally:
            self.cloud.terminate(instance_ids=(str(started),))

    def described(self, instance_id: str) -> dict[str, Any]:
        (reservation,) = self.client("ec2").describe_instances(InstanceIds=[instance_id])["Reservations"]
        return dict(reservation["Instances"][0])

    def wait_for_end(self, instance_id: str, *, within: timedelta) -> tuple[float, str]:
        """Wait until an instance is shown as terminated; return the seconds from its launch, and EC2's
        reason.
        """
        ends = time.monotonic() + within.total_seconds()
        while (seen := self.described(instance_id))["State"]["Name"] != "terminated":
            if time.monotonic() > ends:
                raise CheckFailed(f"{instance_id} is {seen['State']['Name']} after {within}")
            time.sleep(0.5 if self.embedded else 5)
        reason = (seen.get("StateReason") or {}).get("Code", "")
        return (utc_now() - seen["LaunchTime"]).total_seconds(), str(reason)
