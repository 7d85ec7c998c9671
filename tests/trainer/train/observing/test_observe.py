from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trainer.train.observing.observe import Observed, points_of

PROGRESS = {
    "event": "progress",
    "model": "lstm_A-USD_1m",
    "piece": "A-USD",
    "worker": 1,
    "epoch": 2,
    "epochs": 3,
    "step": 10,
    "steps": 100,
    "loss": 0.7,
    "rate": 2000.0,
    "unit": "windows",
}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_event_is_kept_by_model_and_by_worker(tmp_path):
    observed = Observed(tmp_path, clock=lambda: 1_795_000_000.0)
    observed({"event": "started", "models": []})
    observed(PROGRESS)
    observed({**PROGRESS, "model": "lstm_B-USD_1m", "loss": float("nan")})
    assert [event["worker"] for event in lines(tmp_path / "models" / "lstm_A-USD_1m.jsonl")] == [1]
    assert [event["model"] for event in lines(tmp_path / "workers" / "1.jsonl")] == [
        "lstm_A-USD_1m",
        "lstm_B-USD_1m",
    ]
    assert lines(tmp_path / "workers" / "1.jsonl")[0]["time"] == "2026-11-18T11:06:40.000+00:00"
    assert sorted(path.name for path in (tmp_path / "tensorboard").iterdir()) == [
        "lstm_A-USD_1m",
        "lstm_B-USD_1m",
    ]


def test_a_clock_that_is_set_back_hides_no_progress(tmp_path):
    times = iter([4000.0, 4001.0, 400.0, 401.0, 405.0])
    observed = Observed(tmp_path, clock=lambda: next(times))
    for step in range(5):
        observed({**PROGRESS, "step": step})
    assert [event["step"] for event in lines(tmp_path / "workers" / "1.jsonl")] == [0, 2, 4]


def test_progress_is_limited_and_other_events_are_not(tmp_path):
    times = iter([0.0, 1.0, 2.0, 5.5])
    observed = Observed(tmp_path, clock=lambda: next(times))
    epoch = {
        "event": "epoch",
        "model": PROGRESS["model"],
        "worker": 1,
        "epoch": 1,
        "train_loss": 0.5,
        "validation_loss": 0.6,
    }
    for event in (PROGRESS, PROGRESS, epoch, PROGRESS):
        observed(event)
    assert [event["event"] for event in lines(tmp_path / "workers" / "1.jsonl")] == [
        "progress",
        "epoch",
        "progress",
    ]


def test_points_have_the_step_of_the_whole_training():
    assert points_of(PROGRESS) == (
        "lstm_A-USD_1m",
        110,
        {"step/train_loss": 0.7, "step/windows_per_second": 2000.0},
    )
    assert points_of({**PROGRESS, "loss": None})[2] == {"step/windows_per_second": 2000.0}
    assert points_of({**PROGRESS, "unit": "chunks", "rate": 1.5})[2]["step/chunks_per_second"] == 1.5
    done = {
        "event": "model_done",
        "model": "m",
        "metrics": {"test": {"auc": 0.6, "n": 5, "note": "x", "mcc": float("nan")}},
    }
    assert points_of(done) == ("m", 0, {"test/auc": 0.6, "test/n": 5.0})
    epoch = {"event": "epoch", "model": "m", "epoch": 4, "train_loss": 0.5, "validation_loss": 0.6}
    assert points_of(epoch) == ("m", 4, {"epoch/train_loss": 0.5, "epoch/validation_loss": 0.6})
    assert points_of({"event": "retry", "model": "m"})[2] == {}
