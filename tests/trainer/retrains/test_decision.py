"""Whether a scheduled time begins."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from trainer.base.errors import BudgetError
from trainer.retrains.decision import decide, refuse_beyond_month
from trainer.retrains.entries import ScheduledRun, run_id_of
from trainer.retrains.published import PublishedRetrain
from trainer.retrains.schedule import RetrainSchedule

SUNDAY = datetime(2026, 11, 22, 3, tzinfo=timezone.utc)
WEEK = timedelta(days=7)
WEEKLY = RetrainSchedule(name="weekly", weekdays=("SUN",), hour=3, budget=5.0, budget_month=20.0)
PUBLISHED = PublishedRetrain(
    name="weekly",
    job_key=f"code/{'a' * 64}.json",
    job_sha256="a" * 64,
    code_key=f"code/{'b' * 64}.whl",
    code_sha256="b" * 64,
    lock_sha256="c",
    image_line="oss-nvidia-driver-gpu-pytorch-2.13-ubuntu-26.04",
    image_id="ami-1",
    commit="",
    published_at=SUNDAY,
)


def entry(at: datetime = SUNDAY, **fields: Any) -> ScheduledRun:
    return ScheduledRun(retrain="weekly", scheduled_at=at, began_at=at, updated_at=at, **fields)


BUSY = entry(SUNDAY - WEEK, state="training", run_id="r", most_usd=5.0)


@pytest.mark.parametrize(
    ("schedule", "published", "others", "after", "step", "what"),
    [
        (WEEKLY, PUBLISHED, [], 0, "begin", ""),
        (WEEKLY, PUBLISHED, [replace(BUSY, state="failed")], 0, "begin", ""),
        (WEEKLY, PUBLISHED, [entry(SUNDAY + WEEK)], 0, "begin", ""),  # a later one waits for this one
        (None, PUBLISHED, [], 0, "refuse", "the stack has no retrain weekly"),
        (WEEKLY, None, [], 0, "refuse", "retrain weekly was never published"),
        (WEEKLY, replace(PUBLISHED, paused=True), [], 0, "skip", "retrain weekly is paused"),
        (WEEKLY, PUBLISHED, [BUSY], 0, "skip", "has not ended, so this one was skipped"),
        (replace(WEEKLY, overlap="wait"), PUBLISHED, [BUSY], 0, "wait", "waits for it"),
        (replace(WEEKLY, overlap="wait"), PUBLISHED, [BUSY], 6.9, "wait", "waits for it"),
        (replace(WEEKLY, overlap="wait"), PUBLISHED, [BUSY], 7, "skip", "was skipped"),
    ],
)
def test_a_scheduled_time_begins_waits_or_is_left_out(
    schedule: Any, published: Any, others: Any, after: float, step: str, what: str
) -> None:
    verdict = decide(entry(), schedule, published, others, SUNDAY + timedelta(days=after))
    assert verdict.step == step
    assert what in str(verdict.error or "")


def test_a_month_is_spent_by_receipts_and_open_runs() -> None:
    others = [
        entry(SUNDAY - 3 * WEEK, state="done", spent_usd=6.0, most_usd=50.0),
        entry(SUNDAY - 2 * WEEK, state="training", most_usd=9.0),
        entry(SUNDAY - 4 * WEEK, state="done", spent_usd=100.0),  # in October
    ]
    refuse_beyond_month(WEEKLY, entry(), others, 5.0)
    line = r"\$15.00 of \$20.00 are spent or reserved, and it may cost \$5.01"
    with pytest.raises(BudgetError, match=line):
        refuse_beyond_month(WEEKLY, entry(), others, 5.01)


def test_the_run_of_a_schedule_and_a_time_has_one_id() -> None:
    elsewhere = SUNDAY.astimezone(timezone(timedelta(hours=-5)))
    assert run_id_of("weekly", SUNDAY) == run_id_of("weekly", elsewhere)
    assert run_id_of("weekly", SUNDAY).startswith("20261122-030000-weekly-")
    others = {run_id_of("weekly", SUNDAY + WEEK), run_id_of("weekly-2", SUNDAY)}
    assert len(others - {run_id_of("weekly", SUNDAY)}) == 2
    assert len(f"mayfly-{run_id_of('w' * 24, SUNDAY)}-kill-999") <= 64
