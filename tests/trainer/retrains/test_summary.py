"""Messages to people: ten lines at most."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.records import make_record
from tests.trainer.conftest import METRICS
from tests.trainer.retrains.test_decision import SUNDAY, WEEKLY, entry
from trainer.base.errors import Interrupted
from trainer.retrains.entries import is_scheduled, prepare_run_id_of, run_id_of
from trainer.retrains.summary import MOST_LINES, end_summary, run_notes, scheduled_summary
from trainer.runs.attempts import Attempt, Queue
from trainer.targets.marks import judged, verdict

HOUR = timedelta(hours=1)

BETTER = {**METRICS, "test": {**METRICS["test"], "accuracy": 0.61}}


def receipt(**fields: Any) -> dict[str, Any]:
    return {
        "run_id": "20261122-030000-weekly-abcdef",
        "state": "done",
        "error": None,
        "models": judged([{"piece": "BTC-USD", "metrics": BETTER}]),
        "verdict": "",
        "failed": [],
        "instances": [{"instance_type": "g6.xlarge"}],
        "seconds": {"total": 312.0},
        "dollars": {"estimated": 0.06, "spent_low": 0.05, "spent_high": 0.07},
        "place": "account",
        **fields,
    }


def test_a_run_that_is_done_is_told_in_words_and_numbers() -> None:
    done = entry(state="done", run_id="20261122-030000-weekly-abcdef", spent_usd=0.07)
    before = receipt(models=judged([{"piece": "BTC-USD", "metrics": METRICS}]))
    message = scheduled_summary(done, WEEKLY, receipt(), before, 0.14)
    assert message.subject == "mayfly weekly: done"
    assert message.text.splitlines() == [
        "weekly, scheduled Sun 2026-11-22 03:00 UTC: done",
        "BTC-USD: log loss 0.6912 (last time 0.6912)",
        "5 minutes on g6.xlarge, $0.07 (estimated $0.06)",
        "this month: $0.14 of $20.00",
        "more: mayfly receipts 20261122-030000-weekly-abcdef, mayfly retrains history weekly",
    ]


def test_models_are_told_under_their_verdict() -> None:
    done = entry(state="done", run_id="20261122-030000-weekly-abcdef", spent_usd=0.07)
    baselines = {"logistic": {"log_loss": 0.693}, "base_rate": {"log_loss": 0.7}}

    def model(piece: str, gain: float) -> dict[str, Any]:
        one = {"gain": gain, "error": 0.001, "freedom": 25}
        better = {name: {"log_loss": one, "brier": one} for name in baselines}
        test = {"log_loss": 0.69, "cells": 400, "baselines": baselines, "better": better}
        return {"piece": piece, "metrics": {"about": METRICS["about"], "test": test}}

    models = judged([model("AAA", -0.009), model("BBB", 0.009)])
    before = receipt(models=judged([{"piece": "BBB", "metrics": METRICS}]))
    told = scheduled_summary(done, WEEKLY, receipt(models=models, verdict=verdict(models)), before, 0.14)
    assert told.text.splitlines()[1:4] == [
        "1 of 2 is worth using (BBB), 1 worse",
        "BBB: better, log loss 0.6900 (0.6930 logistic, last time 0.6912)",
        "AAA: worse, log loss 0.6900 (0.6930 logistic)",
    ]


def script(piece: str, **fields: Any) -> dict[str, Any]:
    best = {"metric": "validation_loss", "value": 0.25}
    lines = ["epoch 4", "epoch 5", "saved"]
    return {"piece": piece, "done": True, "starts": 1, "best": best, "last_lines": lines, **fields}


def test_a_script_is_told_by_its_best_metric_and_its_last_lines() -> None:
    done = entry(state="done", run_id="20261122-030000-weekly-abcdef", spent_usd=0.07)
    dollars = {"estimated": 0.0, "spent_low": 0.05, "spent_high": 0.07}
    one = receipt(models=[], scripts=[script("net")], dollars=dollars)
    before = receipt(models=[], scripts=[script("net", best={"metric": "validation_loss", "value": 0.3})])
    assert scheduled_summary(done, WEEKLY, one, before, 0.14).text.splitlines()[1:-2] == [
        *("net: best validation_loss 0.25 (last time 0.3)", "| epoch 5", "| saved"),
        "5 minutes on g6.xlarge, $0.07 (not estimated)",
    ]
    values = [script(f"S{number}", best={}) for number in range(5)] + [script("S5", done=False, starts=2)]
    failed = [{"piece": "S5", "reason": "it ended with exit code 1: no data"}]
    several = receipt(models=[], scripts=values, failed=failed, dollars=dollars)
    told = scheduled_summary(done, WEEKLY, several, one, 0.14).text.splitlines()
    assert len(told) <= MOST_LINES
    assert told[1] == "5 of 6 values done, 1 started again"
    assert told[2:6] == ["S0: done", "S1: done", "S2: done", "and 2 more values"]
    trials = [script(f"t{number}", trial=number, end=end) for number, end in enumerate(("done", "pruned"), 1)]
    told = scheduled_summary(
        done, WEEKLY, receipt(models=[], scripts=trials), several, 0.14
    ).text.splitlines()
    assert told[1:3] == ["1 of 2 trials done", "t1: best validation_loss 0.25"], "its values were others"


def test_a_failed_run_has_cause_and_remedy_in_its_message() -> None:
    error = Interrupted(
        "the spot instance i-1 was taken back", why="Server.SpotInstanceTermination", do="Launch again."
    )
    failed = entry(state="failed", run_id="r", notes=("the image is gone",), error=dict(error.as_dict()))
    models = judged([{"piece": f"S{number}", "metrics": METRICS} for number in range(9)])
    missing = [{"piece": f"F{number}", "reason": "not finished"} for number in range(9)]
    told = scheduled_summary(failed, WEEKLY, receipt(models=models, failed=missing), None, 20.0)
    lines = told.text.splitlines()
    assert len(lines) == MOST_LINES
    assert lines[-3:-1] == [
        "why: the spot instance i-1 was taken back (Server.SpotInstanceTermination)",
        "do: Launch again.",
    ]


def test_skipped_times_and_unwatched_runs_are_reported() -> None:
    error = Interrupted("retrain weekly is paused", do="Go on.").as_dict()
    skipped = entry(state="skipped", error=dict(error))
    assert "why: retrain weekly is paused" in scheduled_summary(skipped, WEEKLY, None, None, 0.0).text
    gone = scheduled_summary(entry(SUNDAY + timedelta(days=7), state="refused"), None, None, None, 0.0)
    assert gone.text.startswith("weekly, scheduled Sun 2026-11-29 03:00 UTC: refused")
    late = {"what": "too late", "why": "", "do": "Give it more time."}
    bad = end_summary(receipt(state="expired", error=late, models=[]))
    assert bad.subject == "mayfly run 20261122-030000-weekly-abcdef: expired"
    assert "do: Give it more time." in bad.text


def test_a_text_from_a_node_brings_no_control_characters() -> None:
    failed = [{"piece": "A\x1b[2J", "reason": "x\ny"}]
    message = end_summary(receipt(run_id="r\u202e", state="failed", failed=failed, error=None))
    assert message.subject == "mayfly run r?: failed"
    assert "\x1b" not in message.text and "x y" in message.text


def test_a_run_that_lost_its_machine_and_waited_says_so() -> None:
    at, gone = SUNDAY, {"what": "the spot instance was taken back", "why": "Server.SpotInstanceTermination"}
    queue = Queue(since=at, until=at + HOUR, deadline=at + HOUR, next_at=at + HOUR / 2, first=2, walks=9)
    first = Attempt(
        number=1, created_at=at + HOUR / 2, ended_at=at + HOUR, cause="lost", error=gone, queue=queue
    )
    second = Attempt(number=2, created_at=at + HOUR, queue=replace(queue, since=at + HOUR - HOUR / 60))
    assert run_notes(make_record(attempts=(first, second))) == (
        "attempt 1 lost its machine: the spot instance was taken back (Server.SpotInstanceTermination)",
        "every pool was full: attempt 1 waited 30 minutes for capacity",
        "every pool was full: attempt 2 waited 60 s for capacity",
    )


@pytest.mark.parametrize(
    ("run_id", "scheduled"),
    [
        (run_id_of("weekly", SUNDAY), True),
        (prepare_run_id_of("a-b-c", SUNDAY), True),
        ("20261122-030000-weekly-abcdef", False),  # of a desk, whose suffix is random
        ("20261120-120000-crypto-k3v9", False),
        ("20261340-030000-weekly-abcdef", False),
        ("x", False),
    ],
)
def test_a_scheduled_run_is_known_by_its_id(run_id: str, scheduled: bool) -> None:
    assert is_scheduled(run_id) is scheduled
