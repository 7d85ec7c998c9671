from __future__ import annotations

import dataclasses
import json
import threading

import pytest

from trainer.aws.place import ACCOUNT
from trainer.aws.stack import read_stack
from trainer.base.errors import ConfigError, ConnectionFailed, PermissionDenied
from trainer.launch import preflight
from trainer.launch.preflight import query_offers
from trainer.machines.instances import instance_type
from trainer.machines.storage import RootDisk

TYPES = [instance_type("p3.8xlarge"), instance_type("g6.xlarge")]


def test_the_account_says_image_zones_and_template(applied):
    outputs = read_stack(applied, stack="dev")
    offers = query_offers(applied, outputs=outputs, machines=TYPES, spot=False)
    assert offers.image_id.startswith("ami-")
    assert offers.launch_template_id == outputs.launch_template
    assert set(offers.zones) == {"p3.8xlarge", "g6.xlarge"}
    assert set(offers.zones["g6.xlarge"]) <= set(outputs.subnets)


def test_a_type_that_is_offered_nowhere_has_no_zones(applied):
    outputs = read_stack(applied, stack="dev")
    assert query_offers(
        applied, outputs=outputs, machines=[instance_type("p5e.48xlarge")], spot=False
    ).zones == {"p5e.48xlarge": ()}


def test_a_zone_without_a_subnet_of_the_stack_is_told_apart(applied):
    outputs = read_stack(applied, stack="dev")
    everywhere = query_offers(applied, outputs=outputs, machines=TYPES[1:], spot=False)
    first, *others = everywhere.zones["g6.xlarge"]
    offers = query_offers(
        applied,
        outputs=dataclasses.replace(outputs, subnets={first: outputs.subnets[first]}),
        machines=TYPES[1:],
        spot=False,
    )
    assert (offers.zones, offers.elsewhere) == ({"g6.xlarge": (first,)}, {"g6.xlarge": tuple(others)})
    assert everywhere.elsewhere == {"g6.xlarge": ()}


def test_a_template_that_sizes_another_disk_is_refused(applied):
    outputs, ec2 = read_stack(applied, stack="dev"), applied.client("ec2")
    data = ec2.describe_launch_template_versions(
        LaunchTemplateId=outputs.launch_template, Versions=["$Default"]
    )
    wrong = {
        **{
            name: value
            for name, value in data["LaunchTemplateVersions"][0]["LaunchTemplateData"].items()
            if name == "ImageId"
        },
        "BlockDeviceMappings": [{"DeviceName": "/dev/wrong", "Ebs": {"VolumeSize": 100}}],
    }
    template = ec2.create_launch_template(LaunchTemplateName="wrong-disk", LaunchTemplateData=wrong)
    other = dataclasses.replace(outputs, launch_template=template["LaunchTemplate"]["LaunchTemplateId"])
    with pytest.raises(ConfigError, match="the template sizes /dev/wrong"):
        query_offers(applied, outputs=other, machines=TYPES, spot=False)


@pytest.mark.parametrize(
    "target",
    [
        {"CapacityReservationId": "cr-0123456789abcdef0"},
        {"CapacityReservationResourceGroupArn": "arn:aws:resource-groups:us-east-1:1:group/gpus"},
    ],
    ids=["one", "group"],
)
def test_a_stack_with_a_named_reservation_buys_no_spot(applied, target):
    outputs, ec2 = read_stack(applied, stack="dev"), applied.client("ec2")
    (version,) = ec2.describe_launch_template_versions(
        LaunchTemplateId=outputs.launch_template, Versions=["$Default"]
    )["LaunchTemplateVersions"]
    assert "CapacityReservationSpecification" not in version["LaunchTemplateData"], "open is AWS's default"
    disks = version["LaunchTemplateData"]["BlockDeviceMappings"]
    reserved = {"CapacityReservationSpecification": {"CapacityReservationTarget": target}}
    template = ec2.create_launch_template(
        LaunchTemplateName=f"reserved-{len(str(target))}",
        LaunchTemplateData={"BlockDeviceMappings": disks, **reserved},
    )
    other = dataclasses.replace(outputs, launch_template=template["LaunchTemplate"]["LaunchTemplateId"])
    (name,) = target.values()
    with pytest.raises(ConfigError, match=f"no spot capacity in the capacity reservation {name}"):
        query_offers(applied, outputs=other, machines=TYPES, spot=True)
    query_offers(applied, outputs=other, machines=TYPES, spot=False)


def test_spot_prices_are_the_newest_of_each_zone(applied, monkeypatch):
    outputs = read_stack(applied, stack="dev")
    assert query_offers(applied, outputs=outputs, machines=TYPES, spot=True).spot_usd_per_hour == {}
    real = dataclasses.replace(applied, place=ACCOUNT)
    offers = query_offers(real, outputs=outputs, machines=TYPES, spot=True)
    assert {name for name, _ in offers.spot_usd_per_hour} <= {"p3.8xlarge", "g6.xlarge"}


def test_prices_include_the_disk_of_the_template(applied, monkeypatch):
    outputs, real = read_stack(applied, stack="dev"), dataclasses.replace(applied, place=ACCOUNT)
    monkeypatch.setattr(preflight, "_spot_prices", lambda *_, **__: {("g6.xlarge", "us-east-1a"): 0.3})
    offers = query_offers(real, outputs=outputs, machines=TYPES, spot=True)
    assert offers.disk == RootDisk(gib=100, iops=4000, throughput=500)
    prices = {machine.name: machine.price_usd_per_hour for machine in offers.priced.machines}
    assert prices["g6.xlarge"] == pytest.approx(0.8048 + offers.disk.usd_per_hour)
    assert offers.spot_usd_per_hour["g6.xlarge", "us-east-1a"] == pytest.approx(0.3 + 0.03836, abs=1e-5)
    cheap = query_offers(
        applied, outputs=outputs, machines=TYPES, spot=False, template=outputs.prepare_template
    )
    assert cheap.disk == RootDisk(gib=100)


def test_a_missing_permission_reads_as_one(applied):
    outputs, iam = read_stack(applied, stack="dev"), applied.client("iam")
    allowed = ["ssm:GetParameter", "ec2:DescribeInstanceTypeOfferings"]
    policy = {"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": allowed, "Resource": "*"}}
    iam.create_user(UserName="without-images")
    iam.put_user_policy(UserName="without-images", PolicyName="own", PolicyDocument=json.dumps(policy))
    key = iam.create_access_key(UserName="without-images")["AccessKey"]
    user = dataclasses.replace(applied, access_key=key["AccessKeyId"], secret_key=key["SecretAccessKey"])
    with pytest.raises(
        PermissionDenied, match=r"cannot look up .* \(UnauthorizedOperation: .*ec2:DescribeImages on resource"
    ):
        query_offers(user, outputs=outputs, machines=TYPES, spot=False)


def test_an_account_that_does_not_answer_in_time_is_one_line(applied, monkeypatch):
    outputs, release = read_stack(applied, stack="dev"), threading.Event()
    monkeypatch.setattr(preflight, "find_image", lambda *_, **named: release.wait())
    soon = dataclasses.replace(applied, place=dataclasses.replace(applied.place, answer_seconds=0.01))
    monkeypatch.setattr(preflight, "_zones", lambda *_, **named: release.wait())
    try:
        with pytest.raises(
            ConnectionFailed, match=r"cannot look up the image, the zones.* \(no answer within 0 s\)"
        ):
            query_offers(soon, outputs=outputs, machines=TYPES, spot=False)
    finally:
        release.set()


def test_a_volume_smaller_than_the_images_snapshot_is_refused(applied):
    outputs, ec2 = read_stack(applied, stack="dev"), applied.client("ec2")
    small = {"BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 10}}]}
    template = ec2.create_launch_template(LaunchTemplateName="small-disk", LaunchTemplateData=small)[
        "LaunchTemplate"
    ]
    other = dataclasses.replace(outputs, launch_template=template["LaunchTemplateId"])
    with pytest.raises(
        ConfigError, match=r"volume of 10 GiB is too small for ami-\w+ .its snapshot takes 15 GiB"
    ):
        query_offers(applied, outputs=other, machines=TYPES, spot=False)
