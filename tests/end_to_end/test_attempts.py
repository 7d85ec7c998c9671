"""A run whose machine is taken away without notice: another one goes on, and what was finished is kept."""

from __future__ import annotations

import pytest

from tests.desk import QUICK, Desk
from tests.jobs import sets
from tests.taken import TakenRun, adds_up
from trainer.runs.keys import of_experiment

WORK = ("--symbols", "AAA,BBB", "--epochs", "60", *sets("train.patience=60", "expert.tune=never"))


@pytest.mark.nightly
@pytest.mark.slow
def test_a_run_survives_its_machine(desk: Desk, candles: str) -> None:
    run = TakenRun(desk, "--instance", "g6.xlarge", "--data", str(candles), *QUICK, *WORK)
    run.stop_at(1, "BBB", 1)  # AAA is done
    run.take(1, notice=False)
    receipt = run.receipt()
    adds_up(receipt, "g6.xlarge", "g6.xlarge", causes=("lost", ""))
    made = {model["piece"]: of_experiment(model["key"]) for model in receipt["models"]}
    assert {piece: attempt for piece, (_, attempt, _) in made.items()} == {"AAA": 1, "BBB": 2}
    assert "attempt 1 lost its machine: " in run.said
    done = [event["piece"] for event in desk.events("model_done")]
    assert sorted(done) == ["AAA", "BBB"], "a finished model is not trained again"
