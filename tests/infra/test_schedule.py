"""The schedules, as the program registers them, and their expressions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from infra.schedule import cron, rate
from trainer.retrains.schedule import RetrainSchedule

if TYPE_CHECKING:
    from tests.infra.program import Recorded


@pytest.mark.parametrize(
    ("name", "function", "minutes"), [("standing-sweep", "sweeper", 2), ("standing-control", "control", 5)]
)
def test_both_functions_are_called_every_few_minutes(
    program: Recorded, name: str, function: str, minutes: int
) -> None:
    schedule = program.inputs("aws:scheduler/schedule:Schedule", name)
    assert schedule["scheduleExpression"] == f"rate({minutes} minutes)"
    assert schedule["state"] == "ENABLED"
    assert schedule["flexibleTimeWindow"] == {"mode": "OFF"}
    assert schedule["groupName"] == "mayfly-dev"
    assert schedule["target"]["arn"] == f"arn:aws:mock:::mayfly-dev-{function}"
    assert schedule["target"]["roleArn"] == "arn:aws:mock:::mayfly-dev-eu-west-1-scheduler"
    assert schedule["target"]["input"] == "{}"


@pytest.mark.parametrize(("minutes", "expression"), [(1, "rate(1 minute)"), (2, "rate(2 minutes)")])
def test_a_rate_is_written_as_eventbridge_reads_it(minutes: int, expression: str) -> None:
    assert rate(minutes) == expression


def test_a_cron_is_written_as_eventbridge_reads_it() -> None:
    twice = RetrainSchedule(name="w", weekdays=("MON", "THU"), hour=3, minute=5, budget=5, budget_month=20)
    assert cron(twice) == "cron(5 3 ? * MON,THU *)"
    assert cron(replace(twice, weekdays=(), day_of_month=28)) == "cron(5 3 28 * ? *)"
