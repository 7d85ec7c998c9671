"""The times of a retrain as they are listed, and a call of control that fails."""

from __future__ import annotations

from datetime import datetime, timezone
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from tests.trainer.control.conftest import MemoryCloud
from trainer.base.errors import ConfigError, ConnectionFailed
from trainer.cli.verbs.retrains import _history, _list, _row, _run_now, _times, history_table
from trainer.cli.views.drawing import drawn
from trainer.retrains.entries import ScheduledRun, begin_entry, entry_key
from trainer.retrains.published import published_key
from trainer.retrains.schedule import read_schedules

SUNDAYS = {"name": "weekly", "weekdays": ["SUN"], "hour": 3, "budget": 1, "budget_month": 9}


@pytest.mark.parametrize(("zone", "times"), [("UTC", 1), ("America/New_York", 2)])
def test_a_time_in_utc_is_told_once(zone, times):
    (schedule,) = read_schedules([{**SUNDAYS, "time_zone": zone}])
    for line in _times(schedule):
        assert line.count(":00") == times and line.count("UTC") == 1
    row = _row(schedule, None, None)
    assert (row["UTC"] == "-") == (zone == "UTC") and row["next"].endswith(f" 03:00 {zone}")


@pytest.mark.parametrize(
    ("raised", "called"),
    [
        (ReadTimeoutError(endpoint_url="https://lambda"), True),
        (ClientError({"Error": {"Code": "TooManyRequestsException"}}, "Invoke"), False),
        (ClientError({"Error": {"Code": "AccessDeniedException"}}, "Invoke"), False),
    ],
)
def test_a_call_whose_answer_is_lost_may_have_been_made(raised, called):
    """A second call begins a second run, at another time."""

    def invoke(**_):
        raise raised

    access = SimpleNamespace(client=lambda _: SimpleNamespace(invoke=invoke))
    account = SimpleNamespace(access=access, outputs=SimpleNamespace(control_arn="arn"))
    (schedule,) = read_schedules([SUNDAYS])
    with pytest.raises(ConfigError, match="cannot call the control function") as failed:
        _run_now(SimpleNamespace(json=False, rehearse=False, stack="prod"), schedule, account)
    see = "mayfly retrains history weekly --stack prod before you call it again"
    assert (see in failed.value.do) == called


def test_the_history_keeps_run_ids_whole_on_80_columns():
    at = datetime(2026, 11, 22, 3, tzinfo=timezone.utc)
    what = (
        "No g6.xlarge spot capacity in us-east-1a, us-east-1b and us-east-1c: every pool was full for an hour"
    )
    entry = ScheduledRun(
        retrain="weekly",
        scheduled_at=at,
        began_at=at,
        updated_at=at,
        state="failed",
        run_id="20261122-030000-weekly-ab12",
        spent_usd=0.2,
        error={"what": what},
    )
    _, row, *_ = drawn(history_table([entry]), width=80).splitlines()
    assert row.startswith("2026-11-22 03:00 UTC  failed  20261122-030000-weekly-ab12  ")


def test_a_busy_s3_shows_no_older_time_as_the_last_one(monkeypatch, capsys):
    """Nor does a damaged entry end the list, or a publication that can't be reached count as missing."""
    first = datetime(2026, 11, 15, 3, tzinfo=timezone.utc)
    objects = MemoryCloud(first).objects
    last, shown = first.replace(day=22), objects.get
    for at in (first, last):
        begin_entry(objects, "weekly", at, at)
    (schedule,) = read_schedules([SUNDAYS])
    outputs, arguments = SimpleNamespace(retrains=[SUNDAYS]), SimpleNamespace(json=True)
    place, account = SimpleNamespace(no_retrain=""), SimpleNamespace(objects=objects)

    for key in (entry_key("weekly", last), published_key("weekly")):

        def busy(unread=key, **asked):
            if asked["key"] == unread:
                raise ConnectionFailed("cannot read it", why="SlowDown", do="Try again.")
            return shown(**asked)

        monkeypatch.setattr(objects, "get", busy)
        with pytest.raises(ConnectionFailed):
            _list(arguments, outputs, objects, place)
        if key == entry_key("weekly", last):
            with pytest.raises(ConnectionFailed):
                _history(arguments, schedule, account)
    monkeypatch.setattr(objects, "get", shown)
    for key in (entry_key("weekly", last), published_key("weekly")):
        objects.put(key=key, body=b"{}")
    _list(arguments, outputs, objects, place)
    told = capsys.readouterr()
    assert told.err.count("warning: cannot read") == 2 and "2026-11-15T03:00:00Z" in told.out
