"""A retrain's schedule as the stack's setting has it."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from trainer.aws.stack_outputs import PARAMETER_LIMIT_BYTES
from trainer.retrains.recurrence import WEEKDAYS
from trainer.retrains.schedule import MOST_RETRAINS, read_schedules
from trainer.targets.gate import GateRule

WEEKLY: dict[str, Any] = {"name": "weekly", "weekdays": ["SUN"], "hour": 3, "budget": 5, "budget_month": 20.0}


def test_a_schedule_has_defaults_and_survives_the_outputs() -> None:
    (schedule,) = read_schedules([WEEKLY])
    assert (schedule.time_zone, schedule.overlap) == ("UTC", "skip")
    assert read_schedules([schedule.to_dict()]) == (schedule,)
    assert (schedule.promote, schedule.gate, schedule.rule) == ("never", "test", GateRule())
    gated = {"promote": "better", "gate": "shadow", "margin": 0.001, "least_cells": 30}
    (shadow,) = read_schedules([WEEKLY | gated])
    assert shadow.rule == GateRule(margin=0.001, least_cells=30)
    assert read_schedules([shadow.to_dict()]) == (shadow,)
    assert not {"gate", "margin", "least_cells"} & schedule.to_dict().keys()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"name": "Weekly"}, "name 'Weekly' must be"),
        ({"name": "w" * 25}, "name"),
        ({"time_zone": "Mars/Olympus"}, "time_zone 'Mars/Olympus' is not a time zone"),
        ({"time_zone": 3}, "time_zone must be text"),
        ({"budget": 0}, "budget 0 must be dollars"),
        ({"budget_month": "20"}, "budget_month '20' must be dollars"),
        ({"overlap": "both"}, "must be skip or wait"),
        ({"promote": "beats-baselines"}, "must be never or better"),
        ({"gate": "both"}, "must be test or shadow"),
        ({"gate": 1}, "gate must be text"),
        ({"margin": -0.1}, "margin -0.1 must be a number of 0 or more"),
        ({"margin": True}, "margin True must be"),
        ({"margin": float("nan")}, "margin nan must be"),
        ({"least_cells": 19}, "least_cells 19 must be 20 to 10,000"),
        ({"least_cells": 20.5}, "least_cells 20.5 must be"),
        ({"zone": "UTC"}, "unknown key zone. Did you mean time_zone"),
    ],
)
def test_a_senseless_value_is_named_with_the_number_of_its_entry(change: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=f"retrain 2: .*{why}"):
        read_schedules([WEEKLY, {**WEEKLY, "name": "other", **change}])


@pytest.mark.parametrize(
    ("times", "nearest"),
    [
        ({"weekdays": "SUN", "hour": 3}, "weekdays: [SUN], hour: 3, minute: 0"),
        ({"weekdays": ["sunday", "SUN"], "hour": 3.0}, "weekdays: [SUN], hour: 3, minute: 0"),
        ({"weekdays": ["SUN#1"], "hour": 25}, "weekdays: [SUN], hour: 23, minute: 0"),
        ({"weekdays": ["SUN"], "day_of_month": 1, "hour": 3}, "weekdays: [SUN], hour: 3, minute: 0"),
        ({"hour": 3}, "weekdays: [MON, TUE, WED, THU, FRI, SAT, SUN], hour: 3, minute: 0"),
        ({"day_of_month": 31, "hour": "3"}, "day_of_month: 28, hour: 3, minute: 0"),
        ({"day_of_month": 0, "hour": [3, 15], "minute": -1}, "day_of_month: 1, hour: 3, minute: 0"),
        ({"day_of_month": 1, "hour": True}, "day_of_month: 1, hour: 0, minute: 0"),
        ({"weekdays": False, "day_of_month": 1, "hour": 3}, "day_of_month: 1, hour: 3, minute: 0"),
        (
            {"cron": "cron(0/20 8-17 ? * MON-FRI *)"},
            "weekdays: [MON, TUE, WED, THU, FRI], hour: 8, minute: 0",
        ),
        ({"cron": "cron(30 4 ? * 6L *)"}, "weekdays: [FRI], hour: 4, minute: 30"),
        ({"cron": "cron(0 */6 3W JAN ? 2027)"}, "day_of_month: 3, hour: 0, minute: 0"),
        ({"cron": "cron(0 3 L * ? *)"}, "day_of_month: 28, hour: 3, minute: 0"),
        ({"cron": "rate(7 days)"}, "weekdays: [SUN], hour: 3, minute: 0"),
    ],
)
def test_other_times_are_refused_with_the_nearest_form(times: dict[str, Any], nearest: str) -> None:
    with pytest.raises(ValueError) as failed:
        read_schedules([{"name": "weekly", "budget": 5, "budget_month": 20, **times}])
    assert str(failed.value).endswith(f" is `{nearest}`.")


def test_a_missing_key_two_of_one_name_and_too_many_are_refused() -> None:
    with pytest.raises(ValueError, match="retrain 1: .*budget_month"):
        read_schedules([{key: value for key, value in WEEKLY.items() if key != "budget_month"}])
    with pytest.raises(ValueError, match="same name"):
        read_schedules([WEEKLY, WEEKLY])
    with pytest.raises(ValueError, match="at most"):
        read_schedules([{**WEEKLY, "name": f"r{number}"} for number in range(MOST_RETRAINS + 1)])


def test_the_most_retrains_fit_half_of_the_parameter() -> None:
    import json

    zone = "America/Argentina/Buenos_Aires"
    longest = {**WEEKLY, "weekdays": WEEKDAYS, "hour": 23, "minute": 30, "time_zone": zone}
    schedules = read_schedules([{**longest, "name": f"{number:024d}"} for number in range(MOST_RETRAINS)])
    assert len(json.dumps([schedule.to_dict() for schedule in schedules])) < PARAMETER_LIMIT_BYTES / 2


def test_a_month_is_one_of_the_schedules_own_time_zone() -> None:
    (schedule,) = read_schedules([{**WEEKLY, "time_zone": "America/New_York"}])
    late, next_day = (datetime(2026, 12, 1, hour, tzinfo=timezone.utc) for hour in (3, 6))
    # there it is still the 30th of November
    assert schedule.same_month(datetime(2026, 11, 2, tzinfo=timezone.utc), late)
    assert not schedule.same_month(late, next_day)
    # summer time ends that night
    assert schedule.month_start(late) == datetime(2026, 11, 1, 4, tzinfo=timezone.utc)
