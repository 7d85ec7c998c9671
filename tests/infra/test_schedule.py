"""The standing sweep and its group, as the program registers them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from infra.schedule import rate

if TYPE_CHECKING:
    from tests.infra.conftest import Recorded


def test_everything_is_swept_every_two_minutes(program: Recorded) -> None:
    schedule = program.inputs("aws:scheduler/schedule:Schedule")
    assert schedule["scheduleExpression"] == "rate(2 minutes)"
    assert schedule["state"] == "ENABLED"
    assert schedule["flexibleTimeWindow"] == {"mode": "OFF"}
    assert schedule["groupName"] == "mayfly-dev"
    assert schedule["target"]["arn"] == "arn:aws:mock:::mayfly-dev-sweeper"
    assert schedule["target"]["roleArn"] == "arn:aws:mock:::mayfly-dev-eu-west-1-scheduler"
    assert schedule["target"]["input"] == "{}"


@pytest.mark.parametrize(("minutes", "expression"), [(1, "rate(1 minute)"), (2, "rate(2 minutes)")])
def test_a_rate_is_written_as_eventbridge_reads_it(minutes: int, expression: str) -> None:
    assert rate(minutes) == expression
