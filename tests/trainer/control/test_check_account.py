"""Dry runs carry what the launch would, and tell what a rung lacks from what every launch lacks."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.records import rung
from trainer.aws.access import aws_error
from trainer.aws.stack_outputs import StackOutputs
from trainer.base.errors import ConfigError, ConnectionFailed, PermissionDenied
from trainer.control.check_account import dry_run_note, requests_of
from trainer.control.fleet import TAGGED
from trainer.runs.record import RunRecord

OUTPUTS: Any = SimpleNamespace(groups_for=lambda **_: ["sg-1"], public_address=False)


def test_the_requests_are_the_launchs_own_without_a_token(make_record: Callable[..., RunRecord]) -> None:
    record = make_record(
        ladder=(rung(zone="us-east-1a"), rung("g6.xlarge", zone="us-east-1b", market="spot"))
    )
    requests = requests_of(record, OUTPUTS, 1)
    fleet, run = requests["create_fleet"], requests["run_instances"]
    assert fleet["DryRun"] is run["DryRun"] is True
    assert "ClientToken" not in fleet and "ClientToken" not in run
    (config,) = fleet["LaunchTemplateConfigs"]
    assert config["Overrides"] == [
        {"InstanceType": "g6.xlarge", "SubnetId": "subnet-us-east-1b", "ImageId": "ami-1"}
    ]
    assert run["InstanceType"] == "g6.xlarge"
    assert run["ImageId"] == "ami-1"
    assert run["LaunchTemplate"] == config["LaunchTemplateSpecification"]
    assert run["NetworkInterfaces"][0]["SubnetId"] == "subnet-us-east-1b"
    assert run["NetworkInterfaces"][0]["Groups"] == ["sg-1"]
    assert run["InstanceMarketOptions"] == {"MarketType": "spot"}
    assert {one["ResourceType"] for one in fleet["TagSpecifications"]} == set(TAGGED)
    assert {one["ResourceType"] for one in run["TagSpecifications"]} == set(TAGGED) - {"fleet"}
    tags = {tag["Key"]: tag["Value"] for tag in run["TagSpecifications"][0]["Tags"]}
    assert tags["project"] == record.project and tags["deadline"] == "2026-11-20T13:00:00Z"
    assert "InstanceMarketOptions" not in requests_of(record, OUTPUTS, 0)["run_instances"]


def test_several_machines_are_asked_for_at_once_in_their_groups(
    make_record: Callable[..., RunRecord],
) -> None:
    outputs = StackOutputs(
        project="p",
        stack="s",
        bucket="b",
        security_group="sg-1",
        cluster_groups={"pieces": "sg-2", "model": "sg-3"},
    )
    run = requests_of(make_record(num_nodes=3), outputs, 0)["run_instances"]
    assert (run["MinCount"], run["MaxCount"]) == (3, 3)
    assert run["NetworkInterfaces"][0]["Groups"] == ["sg-1", "sg-2"]
    model = requests_of(make_record(num_nodes=3, one_model=True), outputs, 0)
    assert model["run_instances"]["NetworkInterfaces"][0]["Groups"] == ["sg-1", "sg-3"]
    assert "Placement" not in str(model)  # which does not exist before the run
    alone = requests_of(make_record(), outputs, 0)["run_instances"]
    assert alone["NetworkInterfaces"][0]["Groups"] == ["sg-1"]


class DryEc2:
    """Answers dry runs by instance type: with a code of AWS's, or as one that would succeed."""

    def __init__(self, codes: dict[str, str]) -> None:
        self.codes, self.asked = codes, []

    def client(self, service: str, **_: Any) -> DryEc2:
        return self

    def create_fleet(self, **request: Any) -> None:
        self.answer("CreateFleet", request["LaunchTemplateConfigs"][0]["Overrides"][0]["InstanceType"])

    def run_instances(self, **request: Any) -> None:
        self.answer("RunInstances", request["InstanceType"])

    def answer(self, operation: str, name: str) -> None:
        self.asked.append((operation, name))
        code = self.codes.get(name, "DryRunOperation")
        status = int(code) if code.isdecimal() else 400
        raise ClientError(
            {"Error": {"Code": code, "Message": "said AWS"}, "ResponseMetadata": {"HTTPStatusCode": status}},
            operation,
        )


def asked(make_record: Callable[..., RunRecord], **codes: str) -> tuple[str, list[tuple[str, str]]]:
    """Dry-run a ladder of two types in two zones each, of which some are refused."""
    ladder = tuple(
        rung(name, zone=zone) for name in ("g6.xlarge", "g5.xlarge") for zone in ("us-east-1a", "us-east-1b")
    )
    ec2 = DryEc2({name.replace("_", "."): code for name, code in codes.items()})
    access: Any = ec2
    return dry_run_note(access, OUTPUTS, make_record(ladder=ladder), seconds=500), sorted(ec2.asked)


def test_each_type_is_asked_once_by_both_calls(make_record: Callable[..., RunRecord]) -> None:
    note, calls = asked(make_record)
    assert note == ""
    assert calls == sorted(
        (call, name) for call in ("CreateFleet", "RunInstances") for name in ("g5.xlarge", "g6.xlarge")
    )


def test_a_refused_type_is_a_note_while_another_may_do(
    make_record: Callable[..., RunRecord],
) -> None:
    note, _ = asked(make_record, g6_xlarge="Unsupported")
    assert note.startswith("AWS refused g6.xlarge on-demand in us-east-1a (Unsupported: said AWS)")
    with pytest.raises(ConfigError, match="AWS refused g6.xlarge"):
        asked(make_record, g6_xlarge="Unsupported", g5_xlarge="Unsupported")


def test_a_missing_permission_is_an_error_whatever_else_passes(make_record: Callable[..., RunRecord]) -> None:
    with pytest.raises(
        PermissionDenied, match="not allowed to launch g5.xlarge on-demand in us-east-1a .Unauthorized"
    ):
        asked(make_record, g5_xlarge="UnauthorizedOperation")


@pytest.mark.parametrize("code", ["503", "RequestLimitExceeded", "InternalError"])
def test_a_busy_aws_is_no_refusal_of_a_type(make_record: Callable[..., RunRecord], code: str) -> None:
    """Control tries again after ConnectionFailed; any other error ends a scheduled time for good."""
    with pytest.raises(ClientError) as busy:
        asked(make_record, g5_xlarge=code)
    assert isinstance(aws_error(busy.value, "cannot check the request"), ConnectionFailed)
