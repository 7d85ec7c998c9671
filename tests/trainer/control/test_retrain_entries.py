"""The entries of scheduled times that decide about another: all of its month, and all that may be open."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.records import make_record
from tests.retrains import RETRAINS
from tests.trainer.aws.test_stack_outputs import OUTPUTS
from tests.trainer.control.conftest import MemoryCloud
from tests.trainer.retrains.test_decision import PUBLISHED
from trainer.control.retrain import advance
from trainer.control.retrain_calls import begin, tell, unfinished
from trainer.control.retrain_home import RetrainHome
from trainer.retrains.decision import spent_in_month
from trainer.retrains.entries import ScheduledRun, entry_key, run_id_of
from trainer.retrains.published import write_published
from trainer.retrains.summary import PersonMessage
from trainer.runs.observation import Observation
from trainer.runs.receipt import make_receipt
from trainer.runs.record_json import to_json
from trainer.runs.store import receipt_key, record_key

NOW = datetime.fromisoformat("2026-11-23T12:00:00Z")
HALF_HOUR = timedelta(minutes=30)


def test_a_half_hourly_retrain_counts_its_whole_month() -> None:
    cloud: Any = MemoryCloud(NOW)
    home = RetrainHome(access=None, outputs=replace(OUTPUTS, retrains=RETRAINS), cloud=cloud, publish=print)  # type: ignore[arg-type]
    write_published(cloud.objects, PUBLISHED)

    def write(scheduled_at: datetime, **more: Any) -> ScheduledRun:
        entry = ScheduledRun(
            retrain="weekly", scheduled_at=scheduled_at, began_at=NOW, updated_at=NOW, **more
        )
        cloud.objects.put(key=entry_key("weekly", scheduled_at), body=to_json(entry))
        return entry

    open_since = NOW - timedelta(hours=30)
    at_work = write(open_since, state="training", run_id=run_id_of("weekly", open_since), most_usd=0.2)
    for number in range(1, 51):
        write(open_since + number * HALF_HOUR, state="skipped", told_at=NOW)
    assert unfinished(home, {}) == [at_work]
    # taken out of the setting
    assert unfinished(replace(home, outputs=replace(home.outputs, retrains=[])), {}) == [at_work]
    overlaps = begin(home, "weekly", open_since + timedelta(hours=29))
    assert overlaps.state == "skipped" and "has not ended" in str(overlaps.error)

    first, schedule = datetime.fromisoformat("2031-05-01T00:00:00Z"), home.schedule("weekly")
    write(first, state="done", spent_usd=0.95, told_at=NOW)
    for number in range(1, 51):
        write(first + number * HALF_HOUR, state="skipped", told_at=NOW)
    latest = write(first + timedelta(days=20), state="waiting")
    assert schedule is not None and spent_in_month(schedule, latest, home.others(latest)) == 0.95


@pytest.mark.parametrize(("spent_usd", "counts"), [(0.01, 0.5), (0.6, 0.6)])
def test_a_run_with_an_unreadable_receipt_cost_its_most(spent_usd: float, counts: float) -> None:
    """As after an upgrade: its month counts what it may have cost, since nobody can read what it did."""
    home, (entry,) = home_with({"state": "training", "most_usd": 0.5, "spent_usd": spent_usd}, messages=[])
    home.cloud.objects.put(key=receipt_key(entry.run_id), body=b'{"format": 4}')
    ended = advance(home, entry)
    assert (ended.state, ended.spent_usd) == ("failed", counts)
    assert "cannot read the receipt" in str(ended.error)


def test_a_run_whose_record_cannot_be_read_blocks_no_other() -> None:
    """Nobody settles it, as after an upgrade while it was open: its time fails, and the next one begins."""
    home, (stuck, latest) = home_with({"state": "training", "most_usd": 0.5}, {"state": "due"}, messages=[])
    write_published(home.cloud.objects, PUBLISHED)
    home.cloud.objects.put(key=record_key(stuck.run_id), body=b'{"format": 11}')
    ended = advance(home, stuck)
    assert (ended.state, ended.spent_usd) == ("failed", 0.5)
    assert "cannot read the record" in str(ended.error)
    assert "has not ended" not in str(advance(home, latest).error)


def test_an_end_is_told_though_receipts_cannot_be_read() -> None:
    """The receipt of the run before is of an earlier version; then its own is, too."""
    messages: list[PersonMessage] = []
    home, (earlier, latest) = home_with(
        {"state": "done", "told_at": NOW}, {"state": "done"}, messages=messages
    )
    objects = home.cloud.objects
    objects.put(key=receipt_key(earlier.run_id), body=b'{"format": 4}')
    made = make_receipt(make_record(run_id=latest.run_id, outcome="done"), Observation())
    for body in (json.dumps(made).encode(), b'{"format": 4}'):
        objects.put(key=receipt_key(latest.run_id), body=body)
        objects.put(key=entry_key("weekly", latest.scheduled_at), body=to_json(latest))
        assert tell(home, latest).told_at == NOW
    assert [one.subject for one in messages] == 2 * ["mayfly weekly: done"]
    assert "estimated $0.50" in messages[0].text


def home_with(*entries: dict[str, Any], messages: list[PersonMessage]) -> tuple[Any, list[ScheduledRun]]:
    """Return a home of the retrain weekly with these entries, a week apart, the last one's time now."""
    cloud: Any = MemoryCloud(NOW)
    outputs = replace(OUTPUTS, retrains=RETRAINS)
    home = RetrainHome(access=None, outputs=outputs, cloud=cloud, publish=messages.append)  # type: ignore[arg-type]
    made = []
    for weeks, fields in enumerate(reversed(entries)):
        at = NOW - timedelta(weeks=weeks)
        run_id = run_id_of("weekly", at)
        entry = ScheduledRun(
            retrain="weekly", scheduled_at=at, began_at=at, updated_at=at, run_id=run_id, **fields
        )
        cloud.objects.put(key=entry_key("weekly", at), body=to_json(entry))
        made.append(entry)
    return home, made[::-1]
