"""The times of a retrain, as they are listed."""

from __future__ import annotations

import pytest

from trainer.cli.verbs.retrains import _row, _times
from trainer.retrains.schedule import read_schedules

SUNDAYS = {"name": "weekly", "weekdays": ["SUN"], "hour": 3, "budget": 1, "budget_month": 9}


@pytest.mark.parametrize(("zone", "times"), [("UTC", 1), ("America/New_York", 2)])
def test_a_time_in_utc_is_told_once(zone, times):
    (schedule,) = read_schedules([{**SUNDAYS, "time_zone": zone}])
    for line in _times(schedule):
        assert line.count(":00") == times and line.count("UTC") == 1
    row = _row(schedule, None, None)
    assert (row["UTC"] == "-") == (zone == "UTC") and row["next"].endswith(f" 03:00 {zone}")
