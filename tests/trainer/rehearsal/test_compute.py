"""EC2's contract, through boto3 and the wire: what moto alone gets wrong, and what our promises depend on."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any, cast

import pytest
from botocore.exceptions import ClientError

from tests.aws.clock import StoppedClock
from trainer.aws.access import Access
from trainer.control.cloud import AwsCloud
from trainer.rehearsal.launches import _check_reservation
from trainer.rehearsal.server import EmbeddedAws
from trainer.rehearsal.world import AwsError, Delays, Pool

WHOLE = {"SingleInstanceType": True, "SingleAvailabilityZone": True, "MinTargetCapacity": 3}
NOON = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc)


def code_of(failed: pytest.ExceptionInfo[ClientError]) -> str:
    return str(failed.value.response["Error"]["Code"])


def test_the_same_client_token_launches_one_instance(desk: Any) -> None:
    first, second = desk.fleet(token="t1"), desk.fleet(token="t1")
    assert first["FleetId"] == second["FleetId"]
    assert first["Instances"][0]["InstanceIds"] == second["Instances"][0]["InstanceIds"]
    assert len(desk.ec2.describe_instances()["Reservations"]) == 1


def test_a_fleet_of_three_has_an_address_each_and_one_mark(desk: Any) -> None:
    ids = desk.fleet(options=WHOLE, count=3)["Instances"][0]["InstanceIds"]
    shown = [desk.instance(one) for one in ids]
    addresses = {one["PrivateIpAddress"] for one in shown}
    assert len(addresses) == len(set(ids)) == 3 and all(one.startswith("127.") for one in addresses)
    assert not any(one.startswith("127.0.0.") for one in addresses)
    marks = [tag["Value"] for one in shown for tag in one["Tags"] if tag["Key"] == "aws:ec2:fleet-id"]
    assert len(marks) == 3 and len(set(marks)) == 1
    assert len({one["IamInstanceProfile"]["Arn"] for one in shown}) == 1, "each has the role"


def test_a_least_capacity_needs_a_single_type_or_zone(desk: Any) -> None:
    for options in ({"MinTargetCapacity": 3}, {**WHOLE, "MinTargetCapacity": 4}):
        with pytest.raises(ClientError) as failed:
            desk.fleet(options=options, count=3)
        assert code_of(failed) == "InvalidParameterCombination"


def test_another_request_under_a_used_token_is_refused(desk: Any) -> None:
    desk.fleet(token="t1")
    with pytest.raises(ClientError) as failed:
        desk.fleet(token="t1", types=("g6.xlarge",))
    assert code_of(failed) == "IdempotentParameterMismatch"


def test_run_instances_honours_its_token(desk: Any) -> None:
    def run() -> str:
        answer = desk.ec2.run_instances(
            ClientToken="t1", ImageId=desk.image_id, InstanceType="g5.xlarge", MinCount=1, MaxCount=1
        )
        return str(answer["Instances"][0]["InstanceId"])

    assert run() == run()


def test_every_instance_of_a_fleet_has_its_role(desk: Any) -> None:
    ids = desk.fleet(types=("p3.8xlarge",), options=WHOLE, count=3)["Instances"][0]["InstanceIds"]
    profiles = [desk.instance(one)["IamInstanceProfile"]["Arn"] for one in ids]
    assert len(profiles) == 3 and all(one.endswith(":instance-profile/node") for one in profiles)


def test_a_fleet_applies_every_field_of_the_template(desk: Any) -> None:
    instance = desk.instance(desk.launched(types=("p3.8xlarge",), zones=("us-east-1b",)))
    assert instance["InstanceType"] == "p3.8xlarge"
    assert instance["Placement"]["AvailabilityZone"] == "us-east-1b"
    assert instance["SubnetId"] == desk.subnets["us-east-1b"]
    assert instance["ImageId"] == desk.image_id
    assert instance["IamInstanceProfile"]["Arn"].endswith(":instance-profile/node")
    assert instance["MetadataOptions"]["HttpTokens"] == "required"
    assert instance["MetadataOptions"]["InstanceMetadataTags"] == "enabled"
    behavior = desk.ec2.describe_instance_attribute(
        InstanceId=instance["InstanceId"], Attribute="instanceInitiatedShutdownBehavior"
    )
    assert behavior["InstanceInitiatedShutdownBehavior"]["Value"] == "terminate"
    (mapping,) = instance["BlockDeviceMappings"]
    (volume,) = desk.ec2.describe_volumes(VolumeIds=[mapping["Ebs"]["VolumeId"]])["Volumes"]
    assert mapping["Ebs"]["DeleteOnTermination"]
    assert (volume["VolumeType"], volume["Size"], volume["Encrypted"]) == ("gp3", 100, True)


def test_both_tag_sets_reach_instance_volume_and_interface(desk: Any) -> None:
    instance = desk.instance(desk.launched(tags={"run_id": "r1", "deadline": "2026-11-20T13:00:00Z"}))
    tags = {tag["Key"]: tag["Value"] for tag in instance["Tags"] if not tag["Key"].startswith("aws:")}
    own = {"run_id": "r1", "deadline": "2026-11-20T13:00:00Z"}  # the call's, before the template's
    assert tags == {"project": "mayfly", **own}
    marks = {tag["Key"]: tag["Value"] for tag in instance["Tags"] if tag["Key"].startswith("aws:")}
    assert marks["aws:ec2launchtemplate:id"] == desk.template_id
    volume = desk.ec2.describe_volumes()["Volumes"][0]
    assert {tag["Key"]: tag["Value"] for tag in volume["Tags"]} == tags
    interface = desk.ec2.describe_network_interfaces()["NetworkInterfaces"][0]
    assert {"Key": "run_id", "Value": "r1"} in interface["TagSet"]


def test_full_pools_are_errors_beside_http_200(aws_server: EmbeddedAws, desk: Any) -> None:
    aws_server.world(desk.access).fill(instance_type="g5.xlarge", availability_zone="us-east-1a")
    answer = desk.fleet(types=("g5.xlarge",), zones=("us-east-1a", "us-east-1b"))
    assert [error["ErrorCode"] for error in answer["Errors"]] == ["InsufficientInstanceCapacity"]
    pool = answer["Instances"][0]["LaunchTemplateAndOverrides"]["Overrides"]
    assert pool["SubnetId"] == desk.subnets["us-east-1b"]


def test_no_capacity_anywhere_is_an_empty_fleet(aws_server: EmbeddedAws, desk: Any) -> None:
    aws_server.world(desk.access).fill()
    answer = desk.fleet(zones=("us-east-1a", "us-east-1b"))
    assert answer["Instances"] == []
    assert len(answer["Errors"]) == 2


def test_no_capacity_fails_run_instances_with_a_server_error(aws_server: EmbeddedAws, desk: Any) -> None:
    aws_server.world(desk.access).fill(market="on-demand")
    with pytest.raises(ClientError) as failed:
        desk.ec2.run_instances(ImageId=desk.image_id, InstanceType="g5.xlarge", MinCount=1, MaxCount=1)
    assert code_of(failed) == "InsufficientInstanceCapacity"
    assert failed.value.response["ResponseMetadata"]["HTTPStatusCode"] == 500


def test_spot_is_a_pool_of_its_own(aws_server: EmbeddedAws, desk: Any) -> None:
    aws_server.world(desk.access).fill(market="on-demand")
    assert desk.instance(desk.launched(market="spot"))["InstanceLifecycle"] == "spot"


def test_priorities_decide_the_order(desk: Any) -> None:
    where = {"SubnetId": desk.subnets["us-east-1a"], "ImageId": desk.image_id}
    ranks = (("g5.xlarge", 2.0), ("g6.xlarge", 1.0))
    overrides = [{"InstanceType": kind, "Priority": rank, **where} for kind, rank in ranks]
    template = {"LaunchTemplateId": desk.template_id, "Version": "$Default"}
    answer = desk.ec2.create_fleet(
        Type="instant",
        TargetCapacitySpecification={"TotalTargetCapacity": 1, "DefaultTargetCapacityType": "on-demand"},
        OnDemandOptions={"AllocationStrategy": "prioritized"},
        LaunchTemplateConfigs=[{"LaunchTemplateSpecification": template, "Overrides": overrides}],
    )
    assert answer["Instances"][0]["InstanceType"] == "g6.xlarge"


def test_states_follow_the_clock(aws_server: EmbeddedAws, make_desk: Callable[..., Any]) -> None:
    access = aws_server.account()
    clock = StoppedClock(NOON)
    aws_server.cloud(access).clock = clock
    aws_server.world(access).delays = Delays(pending_seconds=20, shutting_down_seconds=40)
    desk = make_desk(access)
    instance_id = desk.launched()
    seen = [desk.state(instance_id)]
    clock.advance(20)
    seen.append(desk.state(instance_id))
    change = desk.ec2.terminate_instances(InstanceIds=[instance_id])["TerminatingInstances"][0]
    seen.append(desk.state(instance_id))
    clock.advance(40)
    seen.append(desk.state(instance_id))
    assert seen == ["pending", "running", "shutting-down", "terminated"]
    assert (change["PreviousState"]["Name"], change["CurrentState"]["Name"]) == ("running", "shutting-down")
    running = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    assert desk.ec2.describe_instances(Filters=running)["Reservations"] == []
    clock.advance(3700)
    with pytest.raises(ClientError) as failed:
        desk.state(instance_id)
    assert code_of(failed) == "InvalidInstanceID.NotFound"


def test_the_volume_of_an_ended_instance_is_gone(desk: Any, wait_until: Callable[..., None]) -> None:
    desk.ec2.terminate_instances(InstanceIds=[desk.launched()])
    wait_until(lambda: desk.ec2.describe_volumes()["Volumes"] == [])


def test_retired_types_are_offered_and_described(desk: Any) -> None:
    def offered() -> list[str]:
        rules = [{"Name": "instance-type", "Values": ["p3.8xlarge", "g5.xlarge"]}]
        answer = desk.ec2.describe_instance_type_offerings(LocationType="availability-zone", Filters=rules)
        return sorted({one["InstanceType"] for one in answer["InstanceTypeOfferings"]})

    assert offered() == ["g5.xlarge", "p3.8xlarge"]
    described = desk.ec2.describe_instance_types(InstanceTypes=["p3.8xlarge", "g5.xlarge"])["InstanceTypes"]
    gpus = {one["InstanceType"]: one["GpuInfo"]["Gpus"][0]["Count"] for one in described}
    assert gpus == {"p3.8xlarge": 4, "g5.xlarge": 1}


def test_a_type_that_a_zone_does_not_offer_is_unsupported(desk: Any) -> None:
    errors = desk.fleet(types=("p3.8xlarge",), zones=("us-east-1e",))["Errors"]
    assert [error["ErrorCode"] for error in errors] == ["Unsupported"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"InstanceType": "g5.huge"}, "InvalidParameterValue"),
        ({"ImageId": "ami-0123456789abcdef0"}, "InvalidAMIID.NotFound"),
        ({"SubnetId": "subnet-0123456789abcdef0"}, "InvalidSubnetID.NotFound"),
        ({"IamInstanceProfile": {"Name": "nobody"}}, "InvalidParameterValue"),
        ({"UserData": "x" * (16 * 1024 + 1)}, "InvalidUserData.Malformed"),
        ({"DryRun": True}, "DryRunOperation"),
    ],
)
def test_launches_that_aws_refuses_are_refused(desk: Any, change: dict[str, Any], expected: str) -> None:
    asked = {"ImageId": desk.image_id, "InstanceType": "g5.xlarge", "MinCount": 1, "MaxCount": 1, **change}
    with pytest.raises(ClientError) as failed:
        desk.ec2.run_instances(**asked)
    assert code_of(failed) == expected
    assert desk.ec2.describe_instances()["Reservations"] == []


def test_user_data_of_a_template_reaches_the_instance(
    aws_server: EmbeddedAws, make_desk: Callable[..., Any]
) -> None:
    desk = make_desk(aws_server.account(), user_data=b"not a script")
    instance_id = desk.launched()
    told = desk.ec2.describe_instance_attribute(InstanceId=instance_id, Attribute="userData")
    assert base64.b64decode(told["UserData"]["Value"]) == b"not a script"


def test_a_wrong_device_name_adds_a_second_volume(desk: Any) -> None:
    disk = {"VolumeSize": 100, "VolumeType": "gp3", "DeleteOnTermination": True}
    mapping = {"DeviceName": "/dev/xvda", "Ebs": disk}
    answer = desk.ec2.run_instances(
        ImageId=desk.image_id, InstanceType="g5.xlarge", MinCount=1, MaxCount=1, BlockDeviceMappings=[mapping]
    )
    mappings = desk.instance(answer["Instances"][0]["InstanceId"])["BlockDeviceMappings"]
    assert sorted(one["DeviceName"] for one in mappings) == ["/dev/sda1", "/dev/xvda"]


def test_images_are_found_by_parameter_and_described(desk: Any) -> None:
    (image,) = desk.ec2.describe_images(ImageIds=[desk.image_id])["Images"]
    assert (image["RootDeviceName"], image["Architecture"]) == ("/dev/sda1", "x86_64")
    with pytest.raises(ClientError) as failed:
        name = "/aws/service/deeplearning/ami/x86_64/no-such-line/latest/ami-id"
        desk.access.client("ssm").get_parameter(Name=name)
    assert code_of(failed) == "ParameterNotFound"


def test_tags_can_be_changed_and_found(desk: Any) -> None:
    instance_id = desk.launched()
    desk.ec2.create_tags(Resources=[instance_id], Tags=[{"Key": "deadline", "Value": "soon"}])
    rules = [{"Name": "tag:deadline", "Values": ["soon"]}]
    assert len(desk.ec2.describe_instances(Filters=rules)["Reservations"]) == 1
    desk.ec2.delete_tags(Resources=[instance_id], Tags=[{"Key": "deadline"}])
    assert desk.ec2.describe_instances(Filters=rules)["Reservations"] == []


def test_an_unsupported_operation_says_so(desk: Any) -> None:
    with pytest.raises(ClientError) as failed:
        desk.ec2.stop_instances(InstanceIds=[desk.launched()])
    assert code_of(failed) == "UnsupportedOperation"


def test_accounts_do_not_see_each_other(aws_server: EmbeddedAws, desk: Any) -> None:
    instance_id = desk.launched()
    other = aws_server.account().client("ec2")
    assert other.describe_instances()["Reservations"] == []
    with pytest.raises(ClientError):
        other.terminate_instances(InstanceIds=[instance_id])


@pytest.mark.filterwarnings("ignore::UserWarning:moto.*")  # moto knows no such error of the Scheduler's
def test_a_key_of_no_account_is_refused(aws_server: EmbeddedAws) -> None:
    stranger = Access(
        region="us-east-1", endpoint_url=aws_server.url, access_key="AKIAEXAMPLE", secret_key="x"
    )
    for service, call, code in (
        ("ec2", "describe_instances", "AuthFailure"),
        ("s3", "list_buckets", "InvalidAccessKeyId"),
        ("sts", "get_caller_identity", "InvalidClientTokenId"),
        ("scheduler", "list_schedules", "UnrecognizedClientException"),
    ):
        with pytest.raises(ClientError) as failed:
            getattr(stranger.client(service), call)()
        assert code_of(failed) == code


def test_the_console_has_what_user_data_printed(desk: Any, aws_server: EmbeddedAws) -> None:
    (launched,) = desk.fleet(token="t1")["Instances"][0]["InstanceIds"]
    cloud = AwsCloud(desk.access, cast(Any, SimpleNamespace(bucket="none")))
    assert cloud.console_output(instance_id=launched) == ""
    log = aws_server.cloud(desk.access).root / "sandbox" / launched / "var/log/cloud-init-output.log"
    log.parent.mkdir(parents=True)
    log.write_text("bootstrap: fetch the code\n")
    assert cloud.console_output(instance_id=launched) == "bootstrap: fetch the code\n"
    assert cloud.console_output(instance_id="i-0000000000000dead") == ""


def test_spot_is_refused_in_a_named_reservation() -> None:
    target = {"CapacityReservationTarget": {"CapacityReservationId": "cr-0123456789abcdef0"}}
    pool = Pool(instance_type="g5.xlarge", availability_zone="us-east-1a", market="spot")
    request = {"CapacityReservationSpecification": target}
    with pytest.raises(AwsError, match="cannot be used with Spot"):
        _check_reservation(request, pool)
    _check_reservation(request, replace(pool, market="on-demand"))
    _check_reservation({}, pool)
