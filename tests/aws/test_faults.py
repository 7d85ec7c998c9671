"""Faults of launches: lost answers, errors inside an answer, instances that end as they start."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.aws.faults import FaultyWorld
from tests.aws.server import CheckedAws
from trainer.rehearsal.world import Pool


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


def test_a_failed_start_shows_in_the_state_reason_alone(aws_server: CheckedAws, desk: Any) -> None:
    aws_server.world(desk.access).end_next_start("Client.InternalError", "Client error on launch")
    instance = desk.instance(desk.launched())
    assert instance["State"]["Name"] in ("shutting-down", "terminated")
    message = "Client.InternalError: Client error on launch"
    assert instance["StateReason"] == {"Code": "Client.InternalError", "Message": message}


def test_a_full_pool_rule_covers_what_it_does_not_name() -> None:
    world = FaultyWorld()
    world.fill(instance_type="g5.xlarge", market="spot")
    spot = Pool(instance_type="g5.xlarge", availability_zone="us-east-1b", market="spot")
    assert world.is_full(spot)
    assert not world.is_full(replace(spot, market="on-demand"))
    assert not world.is_full(replace(spot, instance_type="g6.xlarge"))
