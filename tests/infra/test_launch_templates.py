"""The launch template, as the program registers it, and the user data in it."""

from __future__ import annotations

import base64
import subprocess
from typing import TYPE_CHECKING, Any

import pulumi
import pytest

from infra.launch_templates import USER_DATA_LIMIT_BYTES, filled_in, in_reservation, read_image_line

if TYPE_CHECKING:
    from tests.infra.program import Recorded

VALUES = {"BUCKET": "store", "REGION": "eu-west-1", "PROJECT": "mayfly", "CAP_MINUTES": "720"}
LINE = "oss-nvidia-driver-gpu-pytorch-2.13-ubuntu-26.04"
CAPS = {"training": "cap_minutes='720'", "prepare": "cap_minutes='30'", "score": "cap_minutes='120'"}
LOCKS = {"training": "requirements.lock", "prepare": "prepare.lock", "score": "requirements.lock"}


@pytest.fixture(params=["training", "prepare", "score"])
def purpose(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def template(program: Recorded, purpose: str) -> dict[str, Any]:
    return program.inputs("aws:ec2/launchTemplate:LaunchTemplate", f"{purpose}-{LINE}")


def test_instances_are_closed_and_end_with_all_that_they_have(template: dict[str, Any], purpose: str) -> None:
    assert template["metadataOptions"] == {
        "httpEndpoint": "enabled",
        "httpTokens": "required",
        "httpPutResponseHopLimit": 1,
        "instanceMetadataTags": "enabled",
    }
    assert template["instanceInitiatedShutdownBehavior"] == "terminate"
    (mapping,) = template["blockDeviceMappings"]
    assert mapping["deviceName"] == "/dev/x86_64-root"  # as the image says
    disk = {"volumeSize": 100, "volumeType": "gp3", "encrypted": "true", "deleteOnTermination": "true"}
    # A prepare run imports no torch, and a score run's machine is cheap, so that gp3's own rates do.
    rates = {"training": {"iops": 4000, "throughput": 500}, "prepare": {}, "score": {}}
    assert mapping["ebs"] == disk | rates[purpose]
    (interface,) = template["networkInterfaces"]
    assert interface["securityGroups"] == ["instances-id"]
    assert interface["deleteOnTermination"] == "true"
    assert "vpcSecurityGroupIds" not in template


def test_instances_take_on_the_role_of_their_purpose(template: dict[str, Any], purpose: str) -> None:
    role = {"training": "instance"}.get(purpose, purpose)
    assert template["iamInstanceProfile"] == {"arn": f"arn:aws:mock:::mayfly-dev-eu-west-1-{role}"}


def test_instance_volume_and_interface_are_tagged(template: dict[str, Any]) -> None:
    tags = {"project": "mayfly", "stack": "dev", "owner": "mayfly"}
    tagged = {item["resourceType"]: item["tags"] for item in template["tagSpecifications"]}
    assert tagged == dict.fromkeys(("instance", "volume", "network-interface"), tags)


def test_type_image_market_and_key_are_left_to_the_launch(template: dict[str, Any]) -> None:
    assert not {"imageId", "instanceType", "instanceMarketOptions", "keyName"} & template.keys()


def test_user_data_is_the_bootstrap_with_this_stacks_values(template: dict[str, Any], purpose: str) -> None:
    text = base64.b64decode(template["userData"]).decode()
    assert text.startswith("#!/bin/bash\n")
    assert all(f"'{value}'" in text for value in ("mayfly-dev-123456789012-eu-west-1", "eu-west-1", "mayfly"))
    assert "@@" not in text
    assert CAPS[purpose] in text and f"lock='{LOCKS[purpose]}'" in text
    assert len(text.encode()) < USER_DATA_LIMIT_BYTES - 1000  # room for the next change
    assert not [line for line in text.splitlines()[1:] if line.lstrip().startswith("#")]
    assert subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=True).stderr == ""


def test_placeholders_are_filled_in() -> None:
    text = filled_in("@@BUCKET@@ @@REGION@@ @@PROJECT@@ @@CAP_MINUTES@@ @@BUCKET@@", VALUES)
    assert text == "store eu-west-1 mayfly 720 store"


@pytest.mark.parametrize("left", ["@@SECRET@@", "@@bucket@@", "half @@BUCKET"])
def test_a_placeholder_that_is_left_is_an_error(left: str) -> None:
    with pytest.raises(pulumi.RunError, match="@@"):
        filled_in(f"fine @@BUCKET@@\n{left}", VALUES)


def test_user_data_above_sixteen_kilobytes_is_an_error() -> None:
    filled_in("x" * USER_DATA_LIMIT_BYTES, VALUES)
    with pytest.raises(pulumi.RunError, match="16385 bytes"):
        filled_in("x" * (USER_DATA_LIMIT_BYTES + 1), VALUES)


def test_a_line_has_the_root_device_of_its_newest_image(program: Recorded) -> None:
    line = read_image_line(LINE)
    assert (line.name, line.root_device) == (LINE, "/dev/x86_64-root")
    assert line.parameter == f"/aws/service/deeplearning/ami/x86_64/{LINE}/latest/ami-id"


def test_a_line_whose_image_cannot_be_read_names_the_setting(
    program: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(**_: object) -> None:
        raise Exception("ParameterNotFound")

    monkeypatch.setattr("infra.launch_templates.aws.ssm.get_parameter", missing)
    error = r"Setting 'image_line' is 'typo', .*/x86_64/typo/latest/ami-id \(ParameterNotF"
    with pytest.raises(pulumi.RunError, match=error):
        read_image_line("typo")


GROUP = "arn:aws:resource-groups:us-east-1:123456789012:group/gpus"


@pytest.mark.parametrize(
    ("reservation", "target"),
    [
        ("cr-0123456789abcdef0", {"capacity_reservation_id": "cr-0123456789abcdef0"}),
        (GROUP, {"capacity_reservation_resource_group_arn": GROUP}),
    ],
)
def test_a_named_reservation_stands_in_the_template(reservation: str, target: dict[str, str]) -> None:
    specification = {"capacity_reservation_target": target}
    assert in_reservation(reservation) == {"capacity_reservation_specification": specification}


def test_open_reservations_need_no_word(template: dict[str, Any]) -> None:
    assert in_reservation("open") == {} and "capacityReservationSpecification" not in template
