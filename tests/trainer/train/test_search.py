"""A search as the training command runs it: trials, the model of the best, and a second run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from benchmarks.search import keeps, measured
from tests.jobs import job_of, sets
from tests.trainer.train.conftest import SMALL
from trainer.base.errors import UsageError
from trainer.cluster.studies import bounds_of, check_bounds, trial_done
from trainer.job.pieces.piece import Piece
from trainer.job.search import SearchSettings
from trainer.job.trials import TrialEnd
from trainer.store.card import Card, read_card
from trainer.train.__main__ import main
from trainer.train.inputs.source import made_of, plan_and_open
from trainer.train.inputs.survey import ends_observed, survey
from trainer.train.observing.meter import Meter

RATES = (0.003, 0.01, 90.0)
GRID = sets(f"search.over={{train={{learning_rate={list(RATES)}}}}}", "search.method=grid", "train.epochs=3")


def told(folder: Path, out: str, *words: str) -> list[dict[str, Any]]:
    """Run the command; return its events."""
    events = folder / f"{out}-events"
    command = ["--data", str(folder / "candles"), "--out", str(folder / out), "--events", str(events)]
    assert main([*command, *SMALL, "--workers", "2", *words]) == 0
    lines = [json.loads(line) for line in (events / "events.jsonl").read_text().splitlines()]
    begun = max(place for place, one in enumerate(lines) if one["event"] == "started")  # they are added
    return lines[begun:]


def trained(
    folder: Path, out: str, *words: str
) -> tuple[list[dict[str, Any]], Card, dict[str, torch.Tensor]]:
    """Run the command; return its events, and its model's card and weights."""
    events = told(folder, out, *words)
    (file,) = (folder / out).glob("*.safetensors")
    return events, read_card(file), load_file(file)


@pytest.mark.nightly
def test_the_best_trial_is_the_model_and_alone_is_scored(tmp_path, write_candles):
    (tmp_path / "candles").mkdir()
    write_candles(tmp_path / "candles", "BIG-USD", bars=2500)
    events, card, weights = trained(tmp_path, "out", *GRID)
    ends = {one["trial"]: one for one in events if one["event"] == "trial_done"}
    assert sorted(ends) == [1, 2, 3] and len([one for one in events if one["event"] == "scoring"]) == 1
    scored = {number: one["score"] for number, one in ends.items() if one["score"] is not None}
    best = min(scored, key=lambda number: scored[number])
    told = card.training["search"]
    assert (told["tried"], card.tried, told["score"]) == (3, 3, scored[best])
    assert (
        card.training["history"][-1]["validation_loss"]
        >= scored[best]
        == min(one["validation_loss"] for one in card.training["history"])
    ), "the trial's own losses"
    assert card.metrics["about"]["tried"] == 3

    alone = sets(f"train.learning_rate={RATES[best - 1]}", "train.epochs=3")
    _, plain, same = trained(tmp_path, "plain", *alone)
    assert all(torch.equal(weights[name], same[name]) for name in same)
    assert plain.metrics["test"] == card.metrics["test"] and "tried" not in plain.metrics["about"]

    ended = next((tmp_path / "out" / "observed" / "models").glob("*_t2.jsonl"))
    ended.unlink()  # as if that trial had not ended
    again, kept, _ = trained(tmp_path, "out", *GRID)
    assert kept == card, "it chose the same"
    begun = [one["piece"] for one in again if one["event"] == "model_started"]
    failed = [f"BIG-USD t{number}" for number, one in ends.items() if one["end"] == "failed"]
    assert sorted(set(begun) - {*failed, "BIG-USD"}) == ["BIG-USD t2"]

    short, bounded, _ = trained(tmp_path, "bounded", *GRID, *sets("search.within=1s"))
    ended = {one["piece"]: one["end"] for one in short if one["event"] == "trial_done"}
    assert len(ended) == 3 and "done" in ended.values()
    assert bounded.training["search"]["left_out"] == list(ended.values()).count("left_out")


@pytest.mark.nightly
def test_what_comes_after_the_validation_changes_no_trial(tmp_path, write_candles):
    """Nothing is chosen by the test span, which the gate scores: with other bars there all trials are the
    same, to the bit, and so is the choice.
    """
    scores, tested = [], []
    for number in range(2):
        folder = tmp_path / str(number)
        (folder / "candles").mkdir(parents=True)
        file = write_candles(folder / "candles", "BIG-USD", bars=2500)
        if number:
            table = pq.read_table(file)
            late = pc.greater_equal(table["timestamp"], pa.scalar(tested[0][0], table["timestamp"].type))
            columns = {
                name: pc.if_else(late, pc.multiply(table[name], 1.5), table[name])
                for name in ("open", "high", "low", "close", "volume")
            }
            noise = pa.array(np.exp(np.random.default_rng(1).normal(size=table.num_rows)))
            columns["volume"] = pc.if_else(late, noise, table["volume"])
            pq.write_table(pa.table({"timestamp": table["timestamp"], **columns}), file)
        events, card, _ = trained(folder, "out", *GRID)
        scores.append({one["trial"]: one["score"] for one in events if one["event"] == "trial_done"})
        first = np.datetime64(card.series[0].splits["test"]["first"].rstrip("Z"), "ns")
        tested.append((first, card.training["search"]["values"], card.metrics["test"]["log_loss"]))
    assert len(scores[0]) == 3 and scores[0] == scores[1] and tested[0][:2] == tested[1][:2]
    assert tested[0][2] != tested[1][2], "the bars are others"


NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self, features, outputs, hidden):
        super().__init__()
        self.gru, self.head = nn.GRU(features, hidden, batch_first=True), nn.Linear(hidden, outputs)

    def forward(self, x_NLF):
        return self.head(self.gru(x_NLF)[0][:, -1])
"""
OTHERS: dict[str, tuple[str, ...]] = {
    "refit": ("train.refit=true",),
    "ensemble": ("train.seeds=2", "train.ensemble=true", "train.refit=true"),
    "k folds": ("data.split=kfold", "data.folds=3"),
    "init": ("train.init={folder}/first/lstm-direction_BIG-USD_1m.safetensors",),
    "agent": ("model.name=mlp", "target.name=position", "agent.lanes=16"),
    "own": ("model.file={folder}/net.py", "model.class=Net"),
    "cross": ('data.columns=["log_return_5 of ETH-USD", "log_return_1 of index"]',),
}


@pytest.mark.nightly
@pytest.mark.parametrize("other", OTHERS)
def test_a_search_over_features_trains_its_best_trial_again(tmp_path, write_candles, other):
    (tmp_path / "candles").mkdir()
    (tmp_path / "net.py").write_text(NET)
    write_candles(tmp_path / "candles", "BIG-USD", bars=1000 if other == "init" else 2500, signal=1.0)
    if other == "init":
        told(tmp_path, "first")
        write_candles(tmp_path / "candles", "BIG-USD", bars=2500, signal=1.0)
    if other == "cross":
        write_candles(tmp_path / "candles", "ETH-USD", bars=2500, seed=1)
    over = sets("search.over={train={learning_rate=[0.003,0.01]}}", "search.method=grid", "train.epochs=3")
    words = sets(*(key.format(folder=tmp_path) for key in OTHERS[other]), "data.symbols=BIG-USD")
    events = told(tmp_path, "out", *over, *words)
    searched = {one["piece"]: one for one in events if one["event"] == "searched"}
    scored = [one["piece"] for one in events if one["event"] == "scoring"]
    assert sorted(scored) == sorted(searched) and len(searched) == (3 if other == "k folds" else 1)
    for piece, study in searched.items():
        epochs = [one for one in events if one["event"] == "epoch" and one["piece"] == piece]
        losses = [one["validation_loss"] for one in epochs[:3]]
        assert min(losses) == study["score"], "the trial's own network"
        assert (study["tried"], study["done"]) == (2, 2)
    for file in (tmp_path / "out").glob("*.safetensors"):
        assert read_card(file).metrics["about"]["tried"] == 2


@pytest.mark.nightly
@pytest.mark.timeout(3000)
def test_nine_of_ten_pruned_grids_find_what_the_whole_one_does():
    rows = [measured(seed) for seed in range(10)]
    print(rows)
    assert all(row["learned"] <= 9 for row in rows), "half of the trials can't learn"
    assert sum(map(keeps, rows)) >= 9


def test_ends_count_again_for_the_same_bars_settings_and_code(tmp_path, write_candles):
    write_candles(tmp_path, "A-USD", bars=1000)
    over = {"train": {"learning_rate": {"low": 0.001, "high": 0.1}}}
    job = job_of(batch=64, lookback=20, **{"search.over": over, "search.method": "tpe", "search.trials": 3})
    data = plan_and_open(job, tmp_path, scratch=tmp_path)
    pieces = survey(job, data.plan).pieces
    end = TrialEnd(trial=1, values=(("train.learning_rate", 0.05),), end="done", score=0.5, epochs=2)
    first = tmp_path / f"{pieces[1].name}.jsonl"

    def known(piece: Piece = pieces[1], told: TrialEnd = end, **more: Any) -> dict[str, TrialEnd]:
        event = trial_done(piece, told, **{"epochs_asked": job.train.epochs, "fingerprint": made, **more})
        first.write_text('{"event": "epoch"}\n' + json.dumps(event) + "\n")
        return ends_observed(pieces, job, data, tmp_path)

    made = made_of(replace(pieces[1], values=end.values), job, data).fingerprint
    assert made != made_of(pieces[1], job, data).fingerprint
    assert known() == {pieces[1].name: end}
    assert (
        known(fingerprint="f" * 64) == known(epochs_asked=1) == known(told=replace(end, end="failed")) == {}
    )
    assert known(told=replace(end, values=(("train.learning_rate", 7.0),))) == {}


def test_no_trial_begins_after_the_time_or_the_dollars():
    now = [0.0]
    meter = Meter(
        flops_per_read=0.0,
        peak_flops=0.0,
        usd_per_hour=18.0,
        paid_seconds=100.0,
        began=0.0,
        clock=lambda: now[0],
    )
    over = {"train.ema": [0.0, 0.9]}
    timed, paid = (SearchSettings(over=over, within="5m"), SearchSettings(over=over, dollars=1.0))
    for at, expected in (
        (0.0, (True, True)),
        (99.0, (True, True)),
        (100.0, (True, False)),
        (101.0, (True, False)),
        (200.0, (False, False)),
    ):
        now[0] = at
        assert (
            tuple(bounds_of(one, seconds=lambda: meter.seconds, usd_per_hour=18.0)() for one in (timed, paid))
            == expected
        )
    with pytest.raises(UsageError, match="search.dollars is 1"):
        check_bounds(paid, usd_per_hour=None)
    check_bounds(paid, usd_per_hour=1.0)
