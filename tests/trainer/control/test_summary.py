"""Messages about runs: ten lines, scores beside the last run's, and what to do."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from tests.trainer.conftest import METRICS
from trainer.control.summary import MOST_LINES, MOST_SUBJECT, MonthToDate, of_run, of_scheduled
from trainer.retrains.entries import ScheduledRun
from trainer.runs.receipt import Receipt

SUNDAY = datetime(2026, 11, 22, 3, 0, tzinfo=timezone.utc)
ERROR = {"code": 100, "what": "training failed for ETH-USD", "why": "signal 9", "do": "Give it a larger machine."}


def model(piece: str, auc: float) -> dict[str, Any]:
    return {"piece": piece, "metrics": {**METRICS, "test": {**METRICS["test"], "auc": auc}}}


def receipt(**changed: Any) -> Receipt:
    values: Receipt = {
        "run_id": "20261122-030000-weekly-k3v9",
        "state": "done",
        "error": None,
        "models": [model("BTC-USD", 0.53), model("ETH-USD", 0.51)],
        "failed": [],
        "seconds": {"total": 2530.0},
        "dollars": {"estimated": 1.0, "spent_low": 1.1, "spent_high": 1.2},
        "rehearsal": False,
    }
    return values | changed


def entry(**changed: Any) -> ScheduledRun:
    values = {"retrain": "weekly", "scheduled_at": SUNDAY, "began_at": SUNDAY, "updated_at": SUNDAY, "state": "done"}
    return ScheduledRun(**(values | changed))


def test_a_scheduled_run_stands_beside_the_last_one_and_its_month() -> None:
    last, month = receipt(models=[model("BTC-USD", 0.52)]), MonthToDate(spent_usd=4.8, budget_usd=20)
    message = of_scheduled(entry(notes=("the image is gone",)), receipt(), last=last, month=month)
    assert message.subject == "mayfly: weekly 2026-11-22 03:00 UTC: done"
    assert message.text.splitlines() == [
        "2 of 2 models in 42 min; $1.10 to $1.20, estimated $1.00; this month $4.80 of $20.00",
        "BTC-USD: AUC 0.5300 (last run AUC 0.5200)",
        "ETH-USD: AUC 0.5100",
        "See: mayfly receipts 20261122-030000-weekly-k3v9, mayfly logs 20261122-030000-weekly-k3v9",
        "the image is gone",
    ]


def test_a_run_that_failed_says_why_and_what_to_do() -> None:
    failed = [{"piece": "ETH-USD", "reason": "its worker was killed by signal 9"}]
    message = of_run(receipt(state="failed", error=ERROR, failed=failed, models=[model("BTC-USD", 0.53)], rehearsal=True))
    assert message.subject == "mayfly: 20261122-030000-weekly-k3v9: failed"
    assert message.text.splitlines()[:5] == [
        "1 of 2 models in 42 min; $1.10 to $1.20, estimated $1.00 (a rehearsal)",
        "training failed for ETH-USD (signal 9)",
        "Give it a larger machine.",
        "BTC-USD: AUC 0.5300",
        "failed: ETH-USD: its worker was killed by signal 9",
    ]


def test_a_time_that_never_became_a_run_is_told_as_well() -> None:
    refusal = {"code": 103, "what": "retrain weekly was never published", "why": "", "do": "Publish it."}
    message = of_scheduled(entry(state="refused", error=refusal), None, last=None, month=None)
    assert message.text.splitlines() == [
        "retrain weekly was never published",
        "Publish it.",
        "See: mayfly retrains history weekly",
    ]


def test_five_hundred_models_and_a_hostile_reason_are_ten_lines() -> None:
    failed = [{"piece": f"S{number}", "reason": "\x1b[2J\n" + "x" * 9_000} for number in range(250)]
    models = [model(f"M{number}", 0.5) for number in range(250)]
    message = of_scheduled(
        entry(retrain="ü" * 300), receipt(failed=failed, models=models, error=ERROR), last=receipt(models=models), month=None
    )
    assert len(message.text.splitlines()) <= MOST_LINES and "\x1b" not in message.text
    assert len(message.subject) <= MOST_SUBJECT and message.subject.isascii()
    assert "and 247 more" in message.text
