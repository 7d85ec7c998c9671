"""Folds and seeds on their way through a whole run: planned, trained on the node, in the receipt, listed, predicted with."""

from __future__ import annotations

import json

import pytest


@pytest.mark.slow
def test_every_fold_and_seed_of_a_symbol_is_a_model_in_the_receipt_and_predicts(desk, candles):
    settings = ("--symbols", "AAA", "--epochs", "1", "--set", "folds=2", "--set", "seeds=2", "--set", "seed=3")
    run = desk.launch("--data", str(candles), *settings)
    out, err = run.communicate(timeout=250)
    assert run.returncode == 0, err
    receipt = json.loads(out)
    made = {(model["fold"], model["seed"]): model for model in receipt["models"]}
    assert sorted(made) == [(1, 3), (1, 4), (2, 3), (2, 4)] and receipt["failed"] == []
    key = made[2, 4]["key"]
    assert key == f"models/experiments/{receipt['run_id']}/1/lstm-direction_AAA_1m_f2_s4.safetensors"
    assert made[1, 3]["metrics"]["test"]["n"] == made[2, 3]["metrics"]["test"]["n"]  # as long, yet not the same bars
    assert made[1, 3]["metrics"]["test"]["baselines"] != made[2, 3]["metrics"]["test"]["baselines"]

    listed = json.loads(desk.run("models", "list", "--rehearse", "--json").stdout)["models"]
    assert sorted((model["name"], model["fold"], model["seed"]) for model in listed) == [
        (f"lstm-direction_AAA_1m_f{fold}_s{seed}", fold, seed) for fold in (1, 2) for seed in (3, 4)
    ]
    predicted = desk.run("predict", key, "--rehearse", "--data", str(candles), "--last", "2")
    assert predicted.returncode == 0, predicted.stderr
    assert len(predicted.stdout.splitlines()) == 3
