"""What the runs of a month cost, and the warning that one more would pass the account's budget."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timezone

import pytest

from tests.records import make_record
from tests.trainer.control.conftest import MemoryCloud
from trainer.runs.month import MonthOfRuns, month_of_runs
from trainer.runs.observation import Observation
from trainer.runs.receipt import make_receipt
from trainer.runs.store import create_record, receipt_key

NOW = datetime(2026, 11, 26, 12, tzinfo=timezone.utc)


def test_receipts_and_plans_of_this_month_are_summed():
    objects = MemoryCloud(NOW).objects
    for run_id, high in (("20261031-235959-a-aaaa", 5.0), ("20261101-000000-b-bbbb", 2.5)):
        closed = replace(make_record(run_id=run_id), state="closed", outcome="done", closed_at=NOW)
        receipt = make_receipt(closed, Observation())
        receipt["dollars"]["spent_high"] = high
        objects.write(receipt_key(run_id), json.dumps(receipt).encode())
    create_record(objects, make_record(run_id="20261126-110000-c-cccc", estimated_usd=1.25))
    create_record(objects, make_record(run_id="20261126-113000-d-dddd", estimated_usd=0.0, budget_usd=4.0))
    objects.write("runs/20261126-114500-e-eeee/run.json", b"{")
    objects.write("runs/20261126-114700-f-ffff/manifest.json", b"{}")  # its launch was killed as it began
    assert month_of_runs(objects, NOW) == MonthOfRuns(month="2026-11", spent_usd=2.5, open_usd=5.25, unread=1)


@pytest.mark.parametrize(
    ("budget", "planned", "most", "words"),
    [
        (0, 99.0, 99.0, None),
        (20, 1.0, 5.0, None),
        (20, 1.0, 12.5, "this run passes at its hard stop ($12.50) account_budget, $20.00 a month"),
        (20, 11.0, 12.5, "this run, planned at $11.00, passes account_budget, $20.00 a month"),
        (20, 0.0, 12.5, "this run, planned at $12.50, passes account_budget"),  # no time is known
    ],
)
def test_a_run_that_passes_the_budget_is_a_note(budget, planned, most, words):
    month = MonthOfRuns(month="2026-11", spent_usd=8.0, open_usd=2.0)
    notes = month.notes(budget, planned_usd=planned, most_usd=most)
    assert bool(notes) == bool(words)
    if words:
        assert notes[0].startswith("runs of 2026-11 have cost $8.00, open ones plan $2.00: ")
        assert words in notes[0]
