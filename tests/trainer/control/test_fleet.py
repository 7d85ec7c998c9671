"""CreateFleet's request as a dict, and the meaning of every kind of answer."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import botocore.session
import pytest
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    ReadTimeoutError,
)
from botocore.validate import ParamValidator

from tests.records import at, intent, make_record, rung
from trainer.control.check_account import requests_of
from trainer.control.fleet import create_fleet_request, read_answer, read_failure
from trainer.runs.attempts import Attempt

RUNG = rung("g6.12xlarge", "us-east-1b", subnet_id="subnet-b")
LAUNCH = intent(token="token-1", deadline=at(3600.999999))
RECORD = make_record(attempts=(Attempt(number=1), Attempt(number=2, launches=(LAUNCH,))))
TAGS = [
    {"Key": "Name", "Value": "20261120-120000-crypto-k3v9"},
    {"Key": "project", "Value": "mayfly"},
    {"Key": "stack", "Value": "dev"},
    {"Key": "owner", "Value": "someone"},
    {"Key": "run_id", "Value": "20261120-120000-crypto-k3v9"},
    {"Key": "attempt", "Value": "2"},
    {"Key": "node", "Value": "0"},
    {"Key": "deadline", "Value": "2026-11-20T13:00:00Z"},
    {"Key": "role_id", "Value": "AROA1"},
    {"Key": "bundle_key", "Value": "code/abc.whl"},
    {"Key": "bundle_sha256", "Value": "abc"},
    {"Key": "boot_seconds", "Value": "900"},
]


def test_an_on_demand_request_names_pool_token_and_tags():
    assert create_fleet_request(RECORD, RUNG, LAUNCH) == {
        "Type": "instant",
        "ClientToken": "token-1",
        "TargetCapacitySpecification": {"TotalTargetCapacity": 1, "DefaultTargetCapacityType": "on-demand"},
        "LaunchTemplateConfigs": [
            {
                "LaunchTemplateSpecification": {"LaunchTemplateId": "lt-1", "Version": "$Default"},
                "Overrides": [{"InstanceType": "g6.12xlarge", "SubnetId": "subnet-b", "ImageId": "ami-1"}],
            }
        ],
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": TAGS}
            for kind in ("instance", "volume", "network-interface", "fleet")
        ],
    }


def test_a_script_with_secrets_launches_with_its_own_profile():
    arn = "arn:aws:iam::123456789012:instance-profile/script"
    named = replace(RECORD, instance_profile=arn, instance_role_id="AROA3")
    (config,) = create_fleet_request(named, RUNG, LAUNCH)["LaunchTemplateConfigs"]
    assert config["Overrides"][0]["IamInstanceProfile"] == {"Arn": arn}
    outputs: Any = SimpleNamespace(groups_for=lambda **_: ["sg"], public_address=True)
    asked = requests_of(replace(named, attempts=()), outputs, 0)
    assert asked["run_instances"]["IamInstanceProfile"] == {"Arn": arn}
    assert "IamInstanceProfile" not in str(requests_of(replace(RECORD, attempts=()), outputs, 0))


def test_a_spot_request_is_one_time_and_names_no_price():
    request = create_fleet_request(RECORD, replace(RUNG, market="spot"), LAUNCH)
    assert request["TargetCapacitySpecification"]["DefaultTargetCapacityType"] == "spot"
    assert request["SpotOptions"] == {
        "AllocationStrategy": "price-capacity-optimized",
        "InstanceInterruptionBehavior": "terminate",
    }
    assert "MaxPrice" not in str(request)


@pytest.mark.parametrize(("market", "options"), [("on_demand", "OnDemandOptions"), ("spot", "SpotOptions")])
def test_several_nodes_are_one_request_for_all_or_none(market, options):
    pool = replace(RUNG, market=market)
    alone = create_fleet_request(RECORD, pool, LAUNCH)
    request = create_fleet_request(replace(RECORD, num_nodes=3), pool, LAUNCH)
    all_or_none = {"SingleInstanceType": True, "SingleAvailabilityZone": True, "MinTargetCapacity": 3}
    assert request.pop(options) == {**alone.pop(options, {}), **all_or_none}
    assert request.pop("TargetCapacitySpecification")["TotalTargetCapacity"] == 3
    assert alone.pop("TargetCapacitySpecification")["TotalTargetCapacity"] == 1
    assert request == alone


def test_aws_knows_every_name_in_the_request():
    operation = botocore.session.get_session().get_service_model("ec2").operation_model("CreateFleet")
    for market, nodes in (("spot", 1), ("on_demand", 1), ("spot", 3), ("on_demand", 3)):
        record = replace(RECORD, num_nodes=nodes)
        request = create_fleet_request(record, replace(RUNG, market=market), LAUNCH)
        assert not ParamValidator().validate(request, operation.input_shape).has_errors()


def test_an_intent_that_is_not_stored_makes_no_request():
    with pytest.raises(ValueError, match="store it before the call"):
        create_fleet_request(RECORD, RUNG, replace(LAUNCH, token="another"))


def client_error(code: str, status: int = 400, message: str = "why") -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}},
        "CreateFleet",
    )


def refusing(*codes: str) -> dict[str, object]:
    """Return the HTTP 200 of an instant fleet that got nothing."""
    return {
        "Instances": [],
        "Errors": [{"ErrorCode": code, "ErrorMessage": f"{code} it is"} for code in codes],
    }


def test_an_answer_with_an_instance_is_created_despite_errors():
    answer = read_answer(
        {"Instances": [{"InstanceIds": ["i-1"]}], "Errors": [{"ErrorCode": "InsufficientInstanceCapacity"}]}
    )
    assert (answer.kind, answer.instance_ids) == ("created", ("i-1",))


def test_fewer_instances_than_asked_are_a_refusal_naming_them():
    two = [{"InstanceIds": ["i-1", "i-2"]}]
    answer = read_answer({"Instances": two, "Errors": []}, 3)
    assert (answer.kind, answer.code, answer.instance_ids) == ("refused", "PartialFleet", ("i-1", "i-2"))
    assert answer.message.startswith("2 of 3 instances")
    full = read_answer({"Instances": two, "Errors": refusing("VcpuLimitExceeded")["Errors"]}, 3)
    assert (full.code, full.instance_ids) == ("VcpuLimitExceeded", ("i-1", "i-2"))
    assert read_answer({"Instances": two}, 2).kind == "created"
    assert read_answer({"Instances": two}, 1).instance_ids == ("i-1",)


@pytest.mark.parametrize(
    "code", ["InsufficientInstanceCapacity", "RequestLimitExceeded", "InternalError", "NeverHeardOf"]
)
def test_an_http_200_without_an_instance_is_a_refusal(code):
    answer = read_answer(refusing(code))
    assert (answer.kind, answer.code, answer.message) == ("refused", code, f"{code} it is")


def test_an_empty_answer_has_a_code_of_its_own():
    assert read_answer({"Instances": [], "Errors": []}).kind == "refused"
    assert read_answer({}).code == "EmptyFleet"


def test_a_missing_permission_never_reads_as_no_capacity():
    answer = read_answer(refusing("InsufficientInstanceCapacity", "UnauthorizedOperation"))
    assert answer.code == "UnauthorizedOperation"
    assert read_answer(refusing("Unsupported", "VcpuLimitExceeded")).code == "VcpuLimitExceeded"


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("InsufficientInstanceCapacity", 500, "refused"),
        ("VcpuLimitExceeded", 400, "refused"),
        ("InvalidAMIID.NotFound", 400, "refused"),
        ("UnauthorizedOperation", 403, "refused"),
        ("NeverHeardOf", 400, "refused"),
        ("RequestLimitExceeded", 503, "refused"),
        ("Throttling", 400, "refused"),
        ("ServiceUnavailable", 503, "unclear"),
        ("InternalError", 500, "unclear"),
        ("Unavailable", 503, "unclear"),
        ("NeverHeardOf", 502, "unclear"),
    ],
)
def test_an_exception_is_unclear_where_the_call_may_have_worked(code, status, kind):
    answer = read_failure(client_error(code, status))
    assert (answer.kind, answer.code, answer.message) == (kind, code, "why")


def test_a_lost_answer_is_unclear_because_a_machine_may_run():
    for error in (
        ReadTimeoutError(endpoint_url="x"),
        EndpointConnectionError(endpoint_url="x"),
        BotoCoreError(),
    ):
        assert read_failure(error).kind == "unclear"


def test_a_request_that_never_left_is_refused():
    assert read_failure(ParamValidationError(report="x")).kind == "refused"
    assert read_failure(NoCredentialsError()).kind == "refused"
