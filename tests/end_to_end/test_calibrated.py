"""Three rehearsals of a shape: the fourth's plan has the times that they took, and no deadline is shorter."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from typing import Any

import pytest

from tests.desk import QUICK, Desk

PHASES = ("boot", "stage", "train", "upload", "terminate")


def launch(desk: Desk, *words: str) -> dict[str, Any]:
    """Rehearse, and return what is printed."""
    run = desk.run(
        "launch", "--rehearse", "--instance", "g6.xlarge", "--json", "--epochs", "1", *QUICK, *words
    )
    assert run.returncode == 0, run.stderr
    told: dict[str, Any] = json.loads(run.stdout)
    return told


@pytest.mark.nightly
@pytest.mark.slow
def test_a_fourth_plan_has_the_times_of_three_runs(desk, candles):
    data = ("--data", str(candles))
    before = launch(desk, *data, "--dry-run")
    receipts = [launch(desk, *data)["seconds"] for _ in range(3)]
    after = launch(desk, *data, "--dry-run")
    middle = {phase: statistics.median(one[phase] for one in receipts) for phase in PHASES[:3]}
    ends = statistics.median(one["upload"] + one["terminate"] for one in receipts)
    (candidate,), (guessed,) = after["candidates"], before["candidates"]
    assert candidate["here"]["seconds"] == pytest.approx(sum(middle.values()) + ends, abs=1.5)
    assert (candidate["here"]["source"], guessed["here"]["source"]) == ("measured here", "formula")
    assert candidate["seconds"] == guessed["seconds"], "AWS's time is not this desk's"
    assert after["times_are"] == "rough: what its last 3 runs took for g6.xlarge"
    assert after["hard_stop"]["seconds"] >= before["hard_stop"]["seconds"]
    shell = replace(desk, shared=desk.shared | {"MAYFLY_REHEARSE": "1"})
    told = shell.run("plan", "--calibration", "10", "--json")
    assert told.returncode == 0, told.stderr
    document = json.loads(told.stdout)
    assert len(document["runs"]) == 3 and document["median_error"] >= 0
