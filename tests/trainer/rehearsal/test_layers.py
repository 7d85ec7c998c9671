"""The layers that end a machine, each seen alone: the program's own template, bootstrap and sweeper, on a node that hangs.

One account, one instance a layer; what each test leaves of the safety net is all that can end its machine.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from trainer.access import Access
from trainer.rehearsal.cloud import Cloud
from trainer.rehearsal.nodes import sandbox
from trainer.rehearsal.server import EmbeddedAws
from trainer.stack_outputs import StackOutputs, parameter_name

pytestmark = pytest.mark.slow
HUNG_AGENT = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)\n"
IN_TIME_SECONDS = 60.0  # what a busy machine may need; a deadline is twenty seconds away


@dataclass(frozen=True, kw_only=True)
class Stack:
    """The program's account, and how a test launches in it."""

    access: Access
    cloud: Cloud
    outputs: StackOutputs
    bundle_key: str
    bundle_sha256: str

    def launch(self, run_id: str, deadline: datetime) -> tuple[str, Path]:
        """Launch one instance as the launcher does, and return its id and sandbox once its agent hangs."""
        tags = {
            "project": self.outputs.project,
            "stack": self.outputs.stack,
            "owner": self.outputs.owner,
            "run_id": run_id,
            "attempt": "1",
            "node": "0",
            "deadline": deadline.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "bundle_key": self.bundle_key,
            "bundle_sha256": self.bundle_sha256,
        }
        image = next(iter(self.outputs.launch_templates))
        image_id = self.access.client("ssm").get_parameter(Name=self.outputs.images[image])["Parameter"]["Value"]
        override = {"InstanceType": "p3.8xlarge", "SubnetId": self.outputs.subnets["us-east-1a"], "ImageId": image_id}
        answer = self.access.client("ec2").create_fleet(
            Type="instant",
            TargetCapacitySpecification={"TotalTargetCapacity": 1, "DefaultTargetCapacityType": "on-demand"},
            LaunchTemplateConfigs=[
                {
                    "LaunchTemplateSpecification": {
                        "LaunchTemplateId": self.outputs.launch_templates[image],
                        "Version": "$Default",
                    },
                    "Overrides": [override],
                }
            ],
            TagSpecifications=[
                {"ResourceType": "instance", "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}
            ],
        )
        instance_id = answer["Instances"][0]["InstanceIds"][0]
        return instance_id, sandbox(self.cloud, instance_id)

    def schedule(self, name: str, at: datetime, arn: str, event: dict[str, Any]) -> None:
        """Create a one-time schedule as the launcher does."""
        self.access.client("scheduler").create_schedule(
            Name=name,
            GroupName=self.outputs.schedule_group,
            ScheduleExpression=f"at({at:%Y-%m-%dT%H:%M:%S})",
            ScheduleExpressionTimezone="UTC",
            FlexibleTimeWindow={"Mode": "OFF"},
            ActionAfterCompletion="DELETE",
            Target={"Arn": arn, "RoleArn": self.outputs.scheduler_role_arn, "Input": json.dumps(event)},
        )

    def instance(self, instance_id: str) -> dict[str, Any]:
        """Describe an instance."""
        answer = self.access.client("ec2").describe_instances(InstanceIds=[instance_id])
        found: dict[str, Any] = answer["Reservations"][0]["Instances"][0]
        return found

    def ended(self, instance_id: str) -> bool:
        """Say whether an instance is gone."""
        return bool(self.instance(instance_id)["State"]["Name"] == "terminated")


@pytest.fixture(scope="module")
def stack(aws_server: EmbeddedAws) -> Iterator[Stack]:
    access = aws_server.account()
    aws_server.apply_program(access)
    text = access.client("ssm").get_parameter(Name=parameter_name("mayfly", "dev"))["Parameter"]["Value"]
    outputs = StackOutputs.from_json(text)
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as bundle:
        for name, code in (("__init__", ""), ("node/__init__", ""), ("node/agent", HUNG_AGENT)):
            bundle.writestr(f"trainer/{name}.py", code)
    digest = hashlib.sha256(data.getvalue()).hexdigest()
    access.client("s3").put_object(Bucket=outputs.bucket, Key=f"code/{digest}.whl", Body=data.getvalue())
    cloud = aws_server.cloud(access)
    cloud.run_nodes = cloud.fire_schedules = True
    yield Stack(access=access, cloud=cloud, outputs=outputs, bundle_key=f"code/{digest}.whl", bundle_sha256=digest)
    cloud.fire_schedules = False


def in_seconds(seconds: float) -> datetime:
    return (datetime.now(timezone.utc) + timedelta(seconds=seconds)).replace(microsecond=0)


def freeze(home: Path) -> None:
    """Stop every process of the node and take the OS timer away, as a dead kernel would."""
    record = json.loads((home / ".mayfly-sandbox").read_text())
    os.killpg(record["process_group"], signal.SIGSTOP)
    for timer in (home / "run/timers").glob("[!.]*.timer"):  # a dot's is being written: its node will never rename it
        timer.unlink()


def armed(home: Path, deadline: datetime) -> bool:
    """Say whether the bootstrap has tightened its timer to the deadline of its tag."""
    timers = [path.read_text() for path in (home / "run/timers").glob("*.timer")]
    return any(f"{deadline:%Y-%m-%d %H:%M:%S}" in text for text in timers)


@dataclass(frozen=True, kw_only=True)
class Machines:
    """One hung node a layer, all past the same deadline soon."""

    with_timer: str
    with_one_time_schedule: str
    with_standing_sweep: str


@pytest.fixture(scope="module")
def machines(stack: Stack, wait_until: Callable[..., None]) -> Machines:
    """Launch them side by side: a test each would wait for three deadlines."""
    deadline = in_seconds(20)
    runs = [f"20261120-120000-layer-{suffix}" for suffix in ("time", "once", "rate")]
    stack.schedule(f"mayfly-{runs[1]}-sweep", deadline, stack.outputs.sweeper_arn, {"run_id": runs[1]})
    launched = [stack.launch(run_id, deadline) for run_id in runs]
    for _, home in launched:
        wait_until(lambda home=home: armed(home, deadline))
    for _, home in launched[1:]:
        freeze(home)
    ids = [instance_id for instance_id, _ in launched]
    return Machines(with_timer=ids[0], with_one_time_schedule=ids[1], with_standing_sweep=ids[2])


def test_the_timer_of_the_operating_system_alone_ends_a_hung_node(
    stack: Stack, machines: Machines, wait_until: Callable[..., None]
) -> None:
    wait_until(lambda: stack.ended(machines.with_timer), seconds=IN_TIME_SECONDS)
    assert stack.instance(machines.with_timer)["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"


def test_the_one_time_schedule_alone_ends_a_frozen_node(
    stack: Stack, machines: Machines, wait_until: Callable[..., None]
) -> None:
    wait_until(lambda: stack.ended(machines.with_one_time_schedule), seconds=IN_TIME_SECONDS)
    reason = stack.instance(machines.with_one_time_schedule)["StateReason"]
    assert reason["Code"] == "Client.UserInitiatedShutdown"
    assert stack.instance(machines.with_standing_sweep)["State"]["Name"] == "running"  # nothing but its sweep ends that one


def test_the_standing_sweep_alone_ends_a_frozen_node(stack: Stack, machines: Machines, wait_until: Callable[..., None]) -> None:
    with stack.cloud.lock:  # two minutes are long for a test: its next firing is brought forward
        (standing,) = [one for one in stack.cloud.world.schedules.values() if one.name == "standing-sweep"]
        standing.next_at = stack.cloud.clock.now()
    wait_until(lambda: stack.ended(machines.with_standing_sweep), seconds=IN_TIME_SECONDS)
    assert stack.instance(machines.with_standing_sweep)["StateReason"]["Code"] == "Client.UserInitiatedShutdown"


def test_the_universal_target_alone_ends_a_frozen_node(stack: Stack, wait_until: Callable[..., None]) -> None:
    run_id, far = "20261120-120000-layer-kill", in_seconds(3600)
    instance_id, home = stack.launch(run_id, far)
    arn = "arn:aws:scheduler:::aws-sdk:ec2:terminateInstances"
    wait_until(lambda: armed(home, far))
    freeze(home)
    stack.schedule(f"mayfly-{run_id}-kill-1", in_seconds(1), arn, {"InstanceIds": [instance_id]})
    wait_until(lambda: stack.ended(instance_id), seconds=IN_TIME_SECONDS)
