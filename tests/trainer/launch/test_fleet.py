from __future__ import annotations

import pytest
from botocore.exceptions import (
    ClientError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    ReadTimeoutError,
)

from trainer.launch.fleet import error_class, outcome, refusal


def client_error(code: str, status: int = 400, message: str = "why") -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}, "CreateFleet"
    )


def test_an_answer_with_an_instance_is_created_whatever_errors_stand_beside_it():
    answer = {"Instances": [{"InstanceIds": ["i-1"]}], "Errors": [{"ErrorCode": "InsufficientInstanceCapacity"}]}
    assert (outcome(answer).kind, outcome(answer).instance_ids) == ("created", ("i-1",))


def test_a_fleet_without_capacity_is_a_refusal_though_its_status_is_200():
    answer = {"Instances": [], "Errors": [{"ErrorCode": "InsufficientInstanceCapacity", "ErrorMessage": "none"}]}
    assert outcome(answer).kind == "refused"
    assert outcome(answer).error_class == "capacity"


def test_an_empty_answer_is_no_capacity():
    assert (outcome({"Instances": [], "Errors": []}).kind, outcome({}).error_class) == ("refused", "capacity")


@pytest.mark.parametrize(
    ("code", "status", "kind", "sort"),
    [
        ("InsufficientInstanceCapacity", 500, "refused", "capacity"),
        ("VcpuLimitExceeded", 400, "refused", "quota"),
        ("Unsupported", 400, "refused", "type"),
        ("InvalidAMIID.NotFound", 400, "refused", "config"),
        ("UnauthorizedOperation", 403, "refused", "permission"),
        ("RequestLimitExceeded", 503, "refused", "throttle"),
        ("IdempotentParameterMismatch", 400, "refused", "idempotency"),
        ("InternalError", 500, "ambiguous", "unknown"),
        ("NeverHeardOf", 502, "ambiguous", "unknown"),
        ("NeverHeardOf", 400, "refused", "unknown"),
    ],
)
def test_an_error_is_told_apart_by_its_code(code, status, kind, sort):
    answer = outcome(client_error(code, status))
    assert (answer.kind, answer.error_class, answer.code) == (kind, sort, code)


def test_a_lost_answer_is_ambiguous_because_a_machine_may_run():
    for error in (ReadTimeoutError(endpoint_url="x"), EndpointConnectionError(endpoint_url="x")):
        assert outcome(error).kind == "ambiguous"


def test_a_request_that_never_left_is_refused():
    assert outcome(ParamValidationError(report="x")).error_class == "config"
    assert outcome(NoCredentialsError()).error_class == "permission"


def test_a_role_made_seconds_ago_is_worth_another_call():
    message = "Value (x) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name"
    assert error_class("InvalidParameterValue", message) == "consistency"
    assert error_class("InvalidParameterValue", "no such type") == "type"


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [("InsufficientInstanceCapacity", 101), ("VcpuLimitExceeded", 102), ("UnauthorizedOperation", 103), ("Unsupported", 103)],
)
def test_a_refusal_has_the_exit_code_of_its_cause(rung, code, exit_code):
    error = refusal(rung, code, "why")
    assert error.exit_code == exit_code
    assert "g6.12xlarge on-demand in us-east-1b" in str(error)
