"""A spot run whose machine is taken away three times ends with the models of a run that nobody interrupted.

With notice, without one, and with one that leads to another type with two GPUs; each model comes out as by an
uninterrupted run of the same job. Nightly: each test trains two runs, on up to five machines.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import safetensors.torch
import torch

from tests.desk import QUICK, Desk
from tests.jobs import sets
from tests.taken import TakenRun, adds_up

ONE_GPU, TWO_GPUS = "g6.xlarge", "g7.12xlarge"
TYPES = ("--instance", ONE_GPU, "--instance", TWO_GPUS)
# Only a notice writes a checkpoint: the next one would be due after an hour of training.
LONG = ("--epochs", "120", *sets("train.patience=120", "train.checkpoint_seconds=3600", "expert.tune=never"))
LOST = ("lost", "lost", "lost", "")


def uninterrupted(desk: Desk, *words: str) -> dict[str, Any]:
    run = desk.run("launch", "--rehearse", "--json", *words, timeout_seconds=2000)
    assert run.returncode == 0, run.stderr[-2500:]
    receipt: dict[str, Any] = json.loads(run.stdout)
    assert receipt["state"] == "done" and len(receipt["attempts"]) == 1
    return receipt


def weights_of(desk: Desk, receipt: dict[str, Any]) -> dict[str, dict[str, torch.Tensor]]:
    """Return the tensors of each piece's model, whose bytes have the receipt's hash."""
    weights = {}
    for model in receipt["models"]:
        name, out = model["key"].rpartition("/")[2], f"pulled-{receipt['run_id']}"
        if not (desk.folder / out).exists():
            pulled = desk.run("pull", receipt["run_id"], "--rehearse", "--out", out)  # checks each hash
            assert pulled.returncode == 0, pulled.stderr
        (file,) = (desk.folder / out).rglob(name)
        weights[model["piece"]] = safetensors.torch.load_file(file)
    return weights


def same(desk: Desk, run: dict[str, Any], whole: dict[str, Any], *, tolerance: float) -> None:
    """Check that both runs made the same models, to a tolerance of each weight; 0: bit for bit."""
    ours, theirs = weights_of(desk, run), weights_of(desk, whole)
    assert ours.keys() == theirs.keys()
    for piece, tensors in theirs.items():
        assert ours[piece].keys() == tensors.keys()
        for name, tensor in tensors.items():
            torch.testing.assert_close(ours[piece][name], tensor, rtol=0, atol=tolerance, equal_nan=True)


def after_notice(run: TakenRun, attempt: int) -> tuple[int, int]:
    """Return the steps that the attempt after a notice computed a second time, and those that it would have
    without the checkpoint that the notice asked for: all that were reached of models under way.
    """
    twice = run.start_file(attempt + 2).steps_twice - run.start_file(attempt + 1).steps_twice
    return twice, sum(run.start_file(attempt + 1).reached.values())


@pytest.mark.nightly
@pytest.mark.timeout(3000)
def test_three_interruptions_change_no_bit_of_two_models(desk, candles):
    words = ("--data", str(candles), "--symbols", "AAA,BBB", *QUICK, *LONG)
    run = TakenRun(desk, *words, *TYPES)
    run.take(1, notice=True, stopped=run.stop_at(1, "AAA", 4))
    run.stop_at(2, "BBB", 4)  # AAA is done
    run.take(2, notice=False)
    run.take(3, notice=True, stopped=run.stop_at(3, "BBB", 8))
    run.fill(ONE_GPU, until_attempt=4)
    receipt = run.receipt()
    adds_up(receipt, ONE_GPU, ONE_GPU, ONE_GPU, TWO_GPUS, causes=LOST)
    assert sorted(model["piece"] for model in receipt["models"]) == ["AAA", "BBB"]
    assert [entry["piece"] for entry in run.start_file(3).finished] == ["AAA"]

    twice, otherwise = after_notice(run, 1)
    final = receipt["steps_twice"] - run.start_file(4).steps_twice, run.start_file(4).reached["BBB"]
    untold = run.start_file(4).steps_twice - run.start_file(3).steps_twice
    print(f"steps computed twice: {twice} and {final[0]} after a notice, {untold} without one;", end=" ")
    print(f"without a checkpoint on notice {otherwise} and {final[1]}")
    assert otherwise > 0 and final[1] > 0 and untold > 0
    assert twice + final[0] <= 0.05 * (otherwise + final[1])
    assert receipt["steps_twice"] == twice + untold + final[0]
    resumed = {attempt: run.events(attempt, "resumed") for attempt in (2, 3, 4)}
    assert [[one["piece"] for one in events] for events in resumed.values()] == [["AAA"], [], ["BBB"]]
    stopped = next(one for one in run.events(1, "model_stopped") if one["piece"] == "AAA")
    assert stopped["step"] == resumed[2][0]["step"], "a notice loses no step"

    same(desk, receipt, uninterrupted(desk, *words, "--instance", ONE_GPU), tolerance=0)


@pytest.mark.nightly
@pytest.mark.timeout(3000)
def test_three_interruptions_change_nothing_beyond_rounding(desk, candles):
    packed = sets("expert.strategy=fused", "expert.pack=2")
    words = ("--data", str(candles), "--symbols", "AAA,BBB", *QUICK, *LONG, *packed)
    run = TakenRun(desk, *words, *TYPES)
    run.take(1, notice=True, stopped=run.stop_at(1, "AAA", 4))
    run.stop_at(2, "BBB", 8)
    run.take(2, notice=False)
    run.take(3, notice=True, stopped=run.stop_at(3, "BBB", 12))
    run.fill(ONE_GPU, until_attempt=4)
    receipt = run.receipt()
    adds_up(receipt, ONE_GPU, ONE_GPU, ONE_GPU, TWO_GPUS, causes=LOST)
    resumed = [sorted(one["piece"] for one in run.events(attempt, "resumed")) for attempt in (2, 3, 4)]
    assert resumed == [["AAA", "BBB"]] * 3
    assert len({one["pid"] for one in run.events(4, "model_started")}) == 2, "a GPU each"
    twice, otherwise = after_notice(run, 1)
    print(f"steps computed twice after a notice: {twice} of {otherwise}; in all {receipt['steps_twice']}")
    assert otherwise > 0 and twice <= 0.05 * otherwise
    same(desk, receipt, uninterrupted(desk, *words, "--instance", ONE_GPU), tolerance=1e-5)


@pytest.mark.nightly
@pytest.mark.timeout(3000)
def test_a_panel_goes_on_with_another_number_of_ranks(desk, candles):
    panel = (*sets("name=pan", "data.panel=true"), "--data", str(candles))
    words = (*panel, *QUICK, *LONG)
    run = TakenRun(desk, *words, "--instance", TWO_GPUS, "--instance", ONE_GPU)
    run.take(1, notice=True, stopped=run.stop_at(1, "pan", 4, started="rank_started"))
    run.fill(TWO_GPUS, until_attempt=2)
    run.stop_at(2, "pan", 8)
    run.take(2, notice=False)
    run.fill(ONE_GPU, until_attempt=3)
    receipt = run.receipt()
    adds_up(receipt, TWO_GPUS, ONE_GPU, TWO_GPUS, causes=("lost", "lost", ""))
    shards = [file.path for file in run.start_file(2).files if file.path.endswith(".safetensors")]
    assert len(shards) == len({path.rpartition("/")[2] for path in shards}) == 2, "each rank wrote its own"
    assert [len(run.events(attempt, "resumed")) for attempt in (2, 3)] == [1, 1]
    twice, otherwise = after_notice(run, 1)
    print(f"steps computed twice after a notice: {twice} of {otherwise}; in all {receipt['steps_twice']}")
    assert otherwise > 0 and twice <= 0.05 * otherwise
    same(desk, receipt, uninterrupted(desk, *words, "--instance", TWO_GPUS), tolerance=1e-5)
