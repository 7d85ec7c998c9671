"""A run whose machine is ended half-way, without notice: another one goes on, and what was finished is kept."""

from __future__ import annotations

import json
import os
import signal

import pytest

from tests.desk import QUICK
from tests.jobs import sets
from trainer.runs.keys import of_experiment


@pytest.mark.slow
def test_a_run_survives_its_machine(desk, candles, eventually):
    one_after_another = ("--instance", "g6.xlarge", "--data", str(candles), "--symbols", "AAA,BBB")
    work = ("--epochs", "40", *sets("train.patience=40", "expert.tune=never", "train.checkpoint_seconds=1"))
    lost = ("--interrupt", "51%,no-notice")
    run = desk.start("launch", "--rehearse", "--json", *QUICK, *one_after_another, *work, *lost)
    # So far its machine is taken; stopped, the second model can't be finished before that.
    eventually(lambda: [one for one in desk.events("epoch") if (one["piece"], one["epoch"]) == ("BBB", 1)])
    (begun,) = [one for one in desk.events("model_started") if one["piece"] == "BBB"]
    os.kill(begun["pid"], signal.SIGSTOP)
    out, err = run.communicate(timeout=500)
    assert run.returncode == 0, f"{out[:2500]} {err[-2500:]}"
    receipt = json.loads(out)
    assert receipt["state"] == "done"
    first, second = receipt["attempts"]
    assert (first["cause"], second["cause"]) == ("lost", "")
    made = {model["piece"]: of_experiment(model["key"]) for model in receipt["models"]}
    assert {piece: attempt for piece, (_, attempt, _) in made.items()} == {"AAA": 1, "BBB": 2}
    assert "attempt 1 lost its machine: " in err
    done = [event["piece"] for event in desk.events("model_done")]
    assert sorted(done) == ["AAA", "BBB"], "a finished model is not trained again"
