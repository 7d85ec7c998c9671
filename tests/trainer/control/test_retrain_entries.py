"""The entries of scheduled times that decide about another: all of its month, and all that may be open."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from tests.retrains import RETRAINS
from tests.trainer.aws.test_stack_outputs import OUTPUTS
from tests.trainer.control.conftest import MemoryCloud
from tests.trainer.retrains.test_decision import PUBLISHED
from trainer.control.retrain_calls import begin, unfinished
from trainer.control.retrain_home import RetrainHome
from trainer.retrains.decision import spent_in_month
from trainer.retrains.entries import ScheduledRun, entry_key, run_id_of
from trainer.retrains.published import write_published
from trainer.runs.record_json import to_json

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
