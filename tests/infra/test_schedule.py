"""The schedules, as the program registers them, and their expressions."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from infra.schedule import cron, rate
from tests.infra.pairs import RETRAINS
from tests.infra.program import run_program
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


def test_a_scheduled_run_is_called_for_an_hour() -> None:
    stack = run_program({"retrains": json.dumps(RETRAINS)})
    schedules = {one["name"]: one for one in stack.all("aws:scheduler/schedule:Schedule")}
    retries = {name: one["target"]["retryPolicy"] for name, one in schedules.items()}
    until_next = {"maximumRetryAttempts": 2, "maximumEventAgeInSeconds": 60}
    an_hour = {"maximumRetryAttempts": 30, "maximumEventAgeInSeconds": 3600}
    assert retries == {"standing-sweep": until_next, "standing-control": until_next, "weekly": an_hour}
    weekly = schedules["weekly"]
    assert (weekly["groupName"], weekly["scheduleExpression"]) == (
        "mayfly-dev-retrains",
        "cron(0 3 ? * SUN *)",
    )
    given = {"retrain": "weekly", "scheduled_time": "<aws.scheduler.scheduled-time>"}
    assert json.loads(weekly["target"]["input"]) == given
    assert weekly["target"]["arn"] == "arn:aws:mock:::mayfly-dev-control"


@pytest.mark.parametrize(("minutes", "expression"), [(1, "rate(1 minute)"), (2, "rate(2 minutes)")])
def test_a_rate_is_written_as_eventbridge_reads_it(minutes: int, expression: str) -> None:
    assert rate(minutes) == expression


def test_a_cron_is_written_as_eventbridge_reads_it() -> None:
    twice = RetrainSchedule(name="w", weekdays=("MON", "THU"), hour=3, minute=5, budget=5, budget_month=20)
    assert cron(twice) == "cron(5 3 ? * MON,THU *)"
    assert cron(replace(twice, weekdays=(), day_of_month=28)) == "cron(5 3 28 * ? *)"
