"""Faults of launches: lost answers, errors inside an answer, instances that end as they start."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.aws.server import CheckedAws


def test_an_answer_that_was_lost_can_be_asked_for_again(aws_server: CheckedAws, desk: Any) -> None:
    aws_server.world(desk.access).fail_next("CreateFleet", "InternalError", after=True)
    with pytest.raises(ClientError):
        desk.fleet(token="t1")
    (before,) = desk.ec2.describe_instances()["Reservations"]
    assert desk.launched(token="t1") == before["Instances"][0]["InstanceId"]


def test_an_error_inside_an_answer_uses_the_token_up(aws_server: CheckedAws, desk: Any) -> None:
    aws_server.world(desk.access).refuse_next("InternalError", "try again")
    for _ in range(2):  # the same token gets the same answer, for ever
        answer = desk.fleet(token="t1")
        assert answer["Instances"] == []
        assert [one["ErrorCode"] for one in answer["Errors"]] == ["InternalError"]
    assert desk.ec2.describe_instances()["Reservations"] == []
    assert desk.launched(token="t2")


def test_an_instance_that_could_not_start_says_why_in_its_state_reason_alone(
    aws_server: CheckedAws, desk: Any
) -> None:
    aws_server.world(desk.access).end_next_start("Client.InternalError", "Client error on launch")
    instance = desk.instance(desk.launched())
    assert instance["State"]["Name"] in ("shutting-down", "terminated")
    message = "Client.InternalError: Client error on launch"
    assert instance["StateReason"] == {"Code": "Client.InternalError", "Message": message}
