"""Curves of a report: folded from a node's events, which are hostile, and bounded."""

from __future__ import annotations

import json
from typing import Any

from tests.records import at
from tests.trainer.runs.test_training_events import EPOCH, GPU, PROGRESS
from trainer.base.instants import iso
from trainer.runs.report import curves
from trainer.runs.report.curves import RunCurves

SCRIPT = {"event": "script", "model": "a", "piece": "a", "time": EPOCH["time"], "unit": "steps"}


def folded(*events: dict[str, Any] | bytes, node: str = "", seconds: float = 240.0) -> RunCurves:
    made = RunCurves(begin=at(0), end=at(seconds))
    for event in events:
        made.add(event if isinstance(event, bytes) else json.dumps(event).encode(), node=node)
    return made


def epoch(number: int, loss: float, *, piece: str = "BTC-USD") -> dict[str, Any]:
    model = f"lstm-direction_{piece}_1m"
    return {**EPOCH, "model": model, "piece": piece, "epoch": number, "validation_loss": loss}


def test_an_epoch_that_is_trained_again_replaces_the_first():
    (one,) = folded(epoch(1, 0.7), epoch(2, 0.6), epoch(2, 0.65), b"{bad").to_dict()["pieces"]
    assert (one["piece"], one["along"], one["x"]) == ("BTC-USD", "epoch", [1, 2])
    assert one["series"] == {"validation loss": [0.7, 0.65], "training loss": [0.7, 0.7]}


def test_numbers_of_a_script_are_curves_over_its_steps():
    told = [{**SCRIPT, "step": step, "loss": 1 / step, "values": {"reward": step * 2.0}} for step in (1, 2)]
    (one,) = folded(*told).to_dict()["pieces"]
    assert one["along"] == "step" and one["series"] == {"loss": [1.0, 0.5], "reward": [2.0, 4.0]}


def test_long_curves_are_thinned_and_pieces_bounded(monkeypatch):
    monkeypatch.setattr(curves, "MOST_HELD", 100)
    made = folded(*(epoch(number, float(number)) for number in range(1, 1_001)))
    (one,) = made.to_dict()["pieces"]
    assert one["x"][0] == 1 and one["x"][-1] == 1_000 and len(one["x"]) <= curves.MOST_POINTS
    monkeypatch.setattr(curves, "MOST_NUMBERS", 3 * curves.FEWEST_POINTS * 2)
    many = folded(*(epoch(1, 0.7, piece=f"S{place}") for place in range(5))).to_dict(order=["S3", "S1"])
    assert [one["piece"] for one in many["pieces"]] == ["S3", "S1"] and many["left_out"] == 3


def test_throughput_is_the_sum_over_workers_and_nodes():
    made = folded(
        {**PROGRESS, "rate": 100.0}, {**PROGRESS, "rate": 300.0}, {**PROGRESS, "worker": 1, "rate": 50.0}
    )
    made.add(json.dumps({**PROGRESS, "rate": 7.0}).encode(), node="node 1")
    assert made.to_dict()["throughput"] == {"unit": "windows", "buckets": [0], "rates": [257.0]}


def test_a_rate_holds_until_the_next_report_of_its_machine():
    told = [(0, 0, 100.0), (1, 5, 50.0), (0, 10, 200.0), (1, 15, 50.0), (0, 20, 100.0), (0, 200, 100.0)]
    events = [
        {**PROGRESS, "time": iso(at(then)), "worker": worker, "rate": rate} for worker, then, rate in told
    ]
    throughput = folded(*events).to_dict()["throughput"]
    rates = dict(zip(throughput["buckets"], throughput["rates"], strict=True))
    assert [rates[bucket] for bucket in (0, 5, 9, 10, 15, 16, 20)] == [100, 150, 150, 250, 250, 200, 100]
    assert 100 not in rates and rates[200] == 100


def test_a_rare_number_keeps_its_points_beside_a_frequent_one():
    told = [
        {**SCRIPT, "step": step, "loss": 1.0, "values": {} if step % 1_000 else {"accuracy": step / 1e4}}
        for step in range(1, 3_001)
    ]
    (one,) = folded(*told).to_dict()["pieces"]
    assert len(one["x"]) == curves.MOST_POINTS and None not in one["series"]["loss"]
    assert [value for value in one["series"]["accuracy"] if value is not None] == [0.1, 0.2, 0.3]


def test_use_of_a_gpu_is_a_mean_of_each_bucket_inside_the_run():
    late = {**GPU, "time": "2031-01-01T00:00:00Z", "use_percent": 10.0, "memory_used_mib": 2_048.0}
    made = folded(GPU, {**GPU, "use_percent": 89.0}, late, {**GPU, "gpu": 1}, node="node 0").to_dict()
    first, second = made["gpus"]
    assert first == {
        "name": "node 0 GPU 0",
        "buckets": [0, 240],
        "use": [90.0, 10.0],
        "memory": [None, 2_048.0],
    }
    assert second["name"] == "node 0 GPU 1" and made["bucket_seconds"] == 1.0


def test_gpus_and_series_of_a_hostile_node_are_bounded():
    gpus = [{**GPU, "gpu": number} for number in range(200)]
    numbers = {f"n{number}": 1.0 for number in range(100)}
    made = folded(*gpus, {**SCRIPT, "step": 1, "loss": None, "values": numbers}).to_dict()
    assert len(made["gpus"]) == curves.MOST_GPUS
    assert len(made["pieces"][0]["series"]) == curves.MOST_SERIES
