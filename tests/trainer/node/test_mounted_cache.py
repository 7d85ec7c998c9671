"""The storage mode efs-cache on nodes that boot from the stack's own template: they mount the cache and check
what it holds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.iam import assert_allowed_is_needed
from tests.jobs import job_of
from tests.manifests import MACHINE
from tests.nodes import put_start_file
from tests.retrains import CONFIG
from tests.trainer.node.conftest import bundle, launch_tags, model_done, started, training_manifest
from tests.trainer.rehearsal.conftest import FleetCaller
from trainer.aws.access import Access
from trainer.aws.objects import open_objects
from trainer.aws.stack import read_stack
from trainer.aws.stack_outputs import StackOutputs
from trainer.launch.inputs import Input
from trainer.rehearsal.account import EmbeddedAccount, Principal
from trainer.rehearsal.nodes import mount
from trainer.rehearsal.world import AwsError
from trainer.runs.record_json import to_json

if TYPE_CHECKING:
    from trainer.rehearsal.forks import ForkServerProcess
    from trainer.rehearsal.server import EmbeddedAws

pytestmark = pytest.mark.slow
SCRIPT = json.dumps({"events": [started("A"), model_done("A"), {"event": "ended"}], "exit": 0}).encode()
OTHER = b"time,close\n"
ZONE, ROLE = "us-east-1a", "mayfly-dev-us-east-1-instance"


@dataclass(kw_only=True)
class Site:
    """A stack whose nodes boot, with the stand-in for the trainer as its code and two inputs."""

    access: Access
    cloud: EmbeddedAccount
    outputs: StackOutputs
    wait_until: Any
    inputs: list[Input] = field(default_factory=list)

    def __post_init__(self) -> None:
        s3, bucket = self.access.client("s3"), self.outputs.bucket
        self.bundle_sha256 = hashlib.sha256(bundle()).hexdigest()
        s3.put_object(Bucket=bucket, Key=f"code/{self.bundle_sha256}.whl", Body=bundle())
        for name, body in (("script.json", SCRIPT), ("other.csv", OTHER)):
            version = s3.put_object(Bucket=bucket, Key=f"raw/main/{name}", Body=body)["VersionId"]
            pinned = {"version_id": version, "sha256": hashlib.sha256(body).hexdigest(), "bytes": len(body)}
            self.inputs.append(Input(key=f"raw/main/{name}", **pinned))

    @property
    def entries(self) -> list[Path]:
        """Return what the file system holds."""
        return sorted((self.cloud.root / "efs" / self.cloud.account).glob("*/*/*"))

    def run(self, run_id: str) -> dict[str, Any]:
        """Let a machine work to its end, and return its result."""
        s3, bucket = self.access.client("s3"), self.outputs.bucket
        objects, machine = open_objects(self.access, bucket), replace(MACHINE, gpu_count=4)
        made = training_manifest(objects, run_id, job_of(symbols=("A",)), self.inputs, machine)
        s3.put_object(Bucket=bucket, Key=f"runs/{run_id}/manifest.json", Body=to_json(made))
        template, parameter = self.outputs.launch_template, self.outputs.image_parameter
        image = self.access.client("ssm").get_parameter(Name=parameter)["Parameter"]["Value"]
        desk = FleetCaller(
            access=self.access, template_id=template, image_id=image, subnets=self.outputs.subnets
        )
        deadline = datetime.now(timezone.utc) + timedelta(minutes=30)
        known = {"deadline": deadline.replace(microsecond=0), "role_id": self.outputs.instance_role_id}
        tags = launch_tags(run_id, self.bundle_sha256, **known, stack="dev")
        instance = desk.launched(token=run_id, types=("p3.8xlarge",), zones=(ZONE,), tags=tags)
        put_start_file(s3, bucket, run_id, instance)
        self.wait_until(lambda: desk.state(instance) == "terminated")
        key = f"attempts/{self.outputs.instance_role_id}:{instance}/{run_id}/1/0/result.json"
        result: dict[str, Any] = json.loads(s3.get_object(Bucket=bucket, Key=key)["Body"].read())
        return result


@pytest.fixture
def site(
    aws_server: EmbeddedAws, node_forks: ForkServerProcess, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> Iterator[Site]:
    access = aws_server.account()
    aws_server.apply_program(access, CONFIG)
    monkeypatch.setattr(aws_server.nodes, "forks", node_forks)
    cloud = aws_server.cloud(access)
    cloud.run_nodes = True
    yield Site(access=access, cloud=cloud, outputs=read_stack(access, stack="dev"), wait_until=eventually)
    cloud.run_nodes = False


@pytest.mark.nightly
def test_a_second_node_uses_the_cache_but_no_poisoned_entry(site: Site) -> None:
    first = site.run("20261120-000001-a-aaaa")
    assert first["state"] == "done", first
    assert (first["inputs"]["s3_files"], first["inputs"]["cache_added"]) == (2, 2)
    (entry,) = (path for path in site.entries if path.read_bytes() == SCRIPT)
    entry.write_bytes(bytes(reversed(SCRIPT)))  # as long as it was
    second = site.run("20261120-000002-a-aaaa")
    assert second["state"] == "done" and entry.read_bytes() == SCRIPT
    assert (second["inputs"]["cache_files"], second["inputs"]["cache_bytes"]) == (1, len(OTHER))
    assert (second["inputs"]["s3_files"], second["inputs"]["cache_refused"]) == (1, 1)
    assert second["inputs"]["cache_added"] == 1

    iam = site.access.client("iam")
    cache = iam.get_role_policy(RoleName=ROLE, PolicyName="cache")["PolicyDocument"]
    own = iam.get_role_policy(RoleName=ROLE, PolicyName="instance")["PolicyDocument"]
    use_key = {**own, "Statement": [one for one in own["Statement"] if one["Sid"] == "UseKey"]}
    for service, written in (("elasticfilesystem", cache), ("kms", use_key)):
        decided = [(asked, by) for who, asked, by in site.cloud.decisions if asked.action.startswith(service)]
        assert_allowed_is_needed(decided, written, {})

    # A mount target that no longer admits the instances.
    efs, ec2 = site.access.client("efs"), site.access.client("ec2")
    for target in efs.describe_mount_targets(FileSystemId=site.outputs.file_system)["MountTargets"]:
        (group,) = efs.describe_mount_target_security_groups(MountTargetId=target["MountTargetId"])[
            "SecurityGroups"
        ]
    (described,) = ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"]
    ec2.revoke_security_group_ingress(GroupId=group, IpPermissions=described["IpPermissions"])
    instance = next(iter(site.cloud.world.instances.values()))
    (point,) = efs.describe_access_points(FileSystemId=site.outputs.file_system)["AccessPoints"]
    node = Principal(kind="NODE", name=instance.id, role=ROLE)
    with pytest.raises(AwsError, match="reaches no mount target"):
        mount(site.cloud, instance, node, site.outputs.file_system, point["AccessPointId"])
    with pytest.raises(AwsError, match="no access point"):
        mount(site.cloud, instance, node, "fs-00000000", point["AccessPointId"])
