"""A small account to launch in: a role with its profile, a launch template, and the fleet call that
uses it.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from botocore import xform_name

from infra import policies
from trainer.aws.access import Access
from trainer.rehearsal.client import stop_server

if TYPE_CHECKING:
    from trainer.rehearsal.server import EmbeddedAws

Call = Callable[[str, str, dict[str, Any]], dict[str, Any]]

IMAGE_PARAMETER = (
    "/aws/service/deeplearning/ami/x86_64/oss-nvidia-driver-gpu-pytorch-2.13-ubuntu-26.04/latest/ami-id"
)


@dataclass(frozen=True, kw_only=True)
class FleetCaller:
    """Everything that a test needs to launch."""

    access: Access
    template_id: str
    image_id: str
    subnets: dict[str, str]  # zone -> subnet

    @property
    def ec2(self) -> Any:
        return self.access.client("ec2", total_max_attempts=1)

    def fleet(
        self,
        *,
        token: str = "token",
        types: tuple[str, ...] = ("g5.xlarge",),
        zones: tuple[str, ...] = ("us-east-1a",),
        tags: dict[str, str] | None = None,
        market: str = "on-demand",
        count: int = 1,
        options: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        pairs = [{"Key": key, "Value": value} for key, value in (tags or {"run_id": "r1"}).items()]
        overrides = [
            {"InstanceType": kind, "SubnetId": self.subnets[zone], "ImageId": self.image_id}
            for kind in types
            for zone in zones
        ]
        template = {"LaunchTemplateId": self.template_id, "Version": "$Default"}
        parts = ("instance", "volume", "network-interface")
        answer: dict[str, Any] = self.ec2.create_fleet(
            Type="instant",
            ClientToken=token,
            TargetCapacitySpecification={"TotalTargetCapacity": count, "DefaultTargetCapacityType": market},
            **({"OnDemandOptions": options} if options else {}),
            LaunchTemplateConfigs=[{"LaunchTemplateSpecification": template, "Overrides": overrides}],
            TagSpecifications=[{"ResourceType": kind, "Tags": pairs} for kind in parts],
        )
        return answer

    def launched(self, **options: Any) -> str:
        instance_id: str = self.fleet(**options)["Instances"][0]["InstanceIds"][0]
        return instance_id

    def instance(self, instance_id: str) -> dict[str, Any]:
        (reservation,) = self.ec2.describe_instances(InstanceIds=[instance_id])["Reservations"]
        found: dict[str, Any] = reservation["Instances"][0]
        return found

    def state(self, instance_id: str) -> str:
        name: str = self.instance(instance_id)["State"]["Name"]
        return name


@pytest.fixture
def make_desk() -> Callable[..., FleetCaller]:
    """Return a function that sets an account up: `make_desk(access, user_data=b"...",
    behavior="terminate")`.
    """
    return _make_desk


def _by_clients(access: Access, service: str, operation: str, params: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = getattr(access.client(service), xform_name(operation))(**params)
    return answer


def _make_desk(
    access: Access, *, user_data: bytes = b"", behavior: str = "terminate", call: Call | None = None
) -> FleetCaller:
    """`call(service, operation, parameters)` asks the embedded AWS, where it is this process, without a socket."""
    call = call or partial(_by_clients, access)
    trust = json.dumps(policies.trust("ec2.amazonaws.com"))
    call("iam", "CreateRole", {"RoleName": "node", "AssumeRolePolicyDocument": trust})
    call("iam", "CreateInstanceProfile", {"InstanceProfileName": "node"})
    call("iam", "AddRoleToInstanceProfile", {"InstanceProfileName": "node", "RoleName": "node"})
    disk = {"VolumeSize": 100, "VolumeType": "gp3", "Encrypted": True, "DeleteOnTermination": True}
    metadata = {"HttpTokens": "required", "HttpPutResponseHopLimit": 1, "InstanceMetadataTags": "enabled"}
    interface = {"DeviceIndex": 0, "AssociatePublicIpAddress": True, "DeleteOnTermination": True}
    tags = [{"Key": "project", "Value": "mayfly"}, {"Key": "run_id", "Value": "none"}]
    data: dict[str, Any] = {
        "InstanceInitiatedShutdownBehavior": behavior,
        "IamInstanceProfile": {"Name": "node"},
        "MetadataOptions": metadata,
        "BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": disk}],
        "NetworkInterfaces": [interface],
        "TagSpecifications": [{"ResourceType": kind, "Tags": tags} for kind in ("instance", "volume")],
    }
    if user_data:
        data["UserData"] = base64.b64encode(user_data).decode()
    template = {"LaunchTemplateName": "node", "LaunchTemplateData": data}
    made = call("ec2", "CreateLaunchTemplate", template)
    subnets = call("ec2", "DescribeSubnets", {})["Subnets"]
    return FleetCaller(
        access=access,
        template_id=made["LaunchTemplate"]["LaunchTemplateId"],
        image_id=call("ssm", "GetParameter", {"Name": IMAGE_PARAMETER})["Parameter"]["Value"],
        subnets={one["AvailabilityZone"]: one["SubnetId"] for one in subnets},
    )


@pytest.fixture
def desk(aws_server: EmbeddedAws, access: Access) -> FleetCaller:
    """An account to launch in, where nothing really runs."""
    return _make_desk(access, call=partial(aws_server.call, aws_server.cloud(access).account))


@pytest.fixture
def scheduler_role(access: Access) -> str:
    """The ARN of a role that the Scheduler may assume, and that may call functions and end instances."""
    iam, trust = access.client("iam"), json.dumps(policies.trust("scheduler.amazonaws.com"))
    role = iam.create_role(RoleName="schedules", AssumeRolePolicyDocument=trust)
    allowed = policies.allow("Act", ["lambda:InvokeFunction", "ec2:TerminateInstances"], "*")
    document = json.dumps(policies.document(allowed))
    iam.put_role_policy(RoleName="schedules", PolicyName="own", PolicyDocument=document)
    return str(role["Role"]["Arn"])


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., None]:
    """Return a function that waits for something of the real world: a process, a thread."""

    def wait(condition: Callable[[], bool], *, seconds: float = 500.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.02)

    return wait


@pytest.fixture
def root(tmp_path: Path, shared: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for an embedded AWS in a process of its own, which is ended after the test.

    The server is a fork, as its nodes are; those of `desk_with_own_checkout` start afresh.
    """
    for name, value in shared.items():
        monkeypatch.setenv(name, value)
    yield tmp_path / "mayfly"
    stop_server(tmp_path / "mayfly")
