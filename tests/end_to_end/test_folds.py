"""Folds and seeds of a pooled model through a whole run that nobody watches: planned, trained over the end of a
worker, settled, listed, predicted.
"""

from __future__ import annotations

import json

import pytest

from tests.end_to_end.test_run import kill_worker
from tests.jobs import sets


@pytest.mark.nightly
@pytest.mark.slow
def test_a_run_of_folds_and_seeds_outlives_its_launcher(desk, candles, eventually):
    pooled = ("--symbols", "AAA,BBB", *sets("data.pooled=true", "name=pool"))
    settings = (*pooled, "--epochs", "1", *sets("data.folds=2", "train.seeds=2", "train.seed=3"))
    run = desk.launch("--data", str(candles), *settings)
    kill_worker(desk, "pool f1 s3", 1, eventually)
    run.kill()
    run.communicate()
    eventually(lambda: not desk.processes())  # the node ends by itself, then the embedded AWS does

    told = desk.run("status", "--rehearse", "--json")
    assert told.returncode == 0, told.stderr
    (run_id,) = [told_of["run_id"] for told_of in json.loads(told.stdout)["runs"]]
    receipt = json.loads(desk.run("receipts", run_id, "--rehearse", "--json").stdout)
    assert receipt["state"] == "done" and receipt["instances"][0]["state"] == "terminated"
    assert receipt["retries"] == 1
    made = {(model["fold"], model["seed"]): model for model in receipt["models"]}
    assert sorted(made) == [(1, 3), (1, 4), (2, 3), (2, 4)] and receipt["failed"] == []
    assert (made[2, 4]["piece"], made[2, 4]["series"]) == ("pool f2 s4", ["AAA", "BBB"])
    key = made[2, 4]["key"]
    assert key.startswith("models/experiments/AROA")
    assert key.endswith(f"/{receipt['run_id']}/1/lstm-direction_pool_1m_f2_s4.safetensors")
    older, newer = (made[fold, 3]["metrics"]["test"]["n"] for fold in (1, 2))
    # As long but for closes that stand still, yet not the same bars
    assert older == pytest.approx(newer, rel=0.02)
    assert made[1, 3]["metrics"]["test"]["baselines"] != made[2, 3]["metrics"]["test"]["baselines"]

    listed = json.loads(desk.run("models", "list", "--rehearse", "--json").stdout)["models"]
    assert sorted((model["name"], model["fold"], model["seed"]) for model in listed) == [
        (f"lstm-direction_pool_1m_f{fold}_s{seed}", fold, seed) for fold in (1, 2) for seed in (3, 4)
    ]
    words = ("--data", str(candles), "--symbols", "BBB", "--last", "2")
    predicted = desk.run("predict", key, "--rehearse", *words)
    assert predicted.returncode == 0, predicted.stderr
    assert len(predicted.stdout.splitlines()) == 3
