"""Events of a training, read strictly: what a node wrote is hostile."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import pytest

from trainer.runs import training_events
from trainer.runs.training_events import EventReader
from trainer.train.observing.observe import points_of

TIME = "2026-11-20T12:00:00.250+00:00"
NAMES = {"time": TIME, "model": "lstm-direction_BTC-USD_1m", "piece": "BTC-USD"}
PROGRESS = {
    "event": "progress",
    **NAMES,
    "epoch": 1,
    "epochs": 2,
    "step": 3,
    "steps": 9,
    "loss": 0.7,
    "rate": 5.5,
    "worker": 0,
}
EPOCH = {"event": "epoch", **NAMES, "epoch": 1, "train_loss": 0.7, "validation_loss": None}
DONE = {"event": "model_done", **NAMES, "metrics": {"test": {"auc": 0.53, "better": {"x": [1]}}, "about": {}}}
GPU = {"event": "gpu", "time": TIME, "gpu": 0, "sample": 4, "use_percent": 91.0, "power_watts": None}


def read(*events):
    reader = EventReader()
    lines = [event if isinstance(event, bytes) else json.dumps(event).encode() for event in events]
    return list(reader.read(lines)), reader.unsound


def test_what_a_curve_is_made_of_is_kept_and_drawn_as_at_a_desk():
    events, unsound = read({"event": "started", "time": TIME}, PROGRESS, EPOCH, DONE, GPU)
    assert unsound == 0 and [event["event"] for event in events] == ["progress", "epoch", "model_done", "gpu"]
    assert events[0]["time"] == datetime(2026, 11, 20, 12, 0, 0, 250_000, tzinfo=timezone.utc)
    assert [points_of(event) for event in events] == [
        ("lstm-direction_BTC-USD_1m", 3, {"step/train_loss": 0.7, "step/windows_per_second": 5.5}),
        ("lstm-direction_BTC-USD_1m", 1, {"epoch/train_loss": 0.7}),
        ("lstm-direction_BTC-USD_1m", 0, {"test/auc": 0.53}),
        ("gpu0", 4, {"use_percent": 91.0}),
    ]


def test_numbers_of_an_agents_rollout_are_read_and_drawn():
    told = {"entropy": 1.0, "rollout_return": 0.1, "rollout_drawdown": 0.2}
    (event,), unsound = read({**EPOCH, **told, "other": 5.0})
    assert unsound == 0 and told.items() <= event.items() and "other" not in event
    assert points_of(event)[2] == {"epoch/train_loss": 0.7} | {f"epoch/{key}": told[key] for key in told}
    assert read({**EPOCH, "entropy": "high"})[1] == 1


def test_the_score_of_an_epoch_is_read_with_its_name():
    scored = {**EPOCH, "score": "accuracy", "train_score": 0.6, "validation_score": None}
    (event,), unsound = read(scored)
    assert (event["score"], event["train_score"], event["validation_score"], unsound) == (
        *("accuracy", 0.6, None, 0),
    )
    assert points_of(event)[2] == {"epoch/train_loss": 0.7, "epoch/train_score": 0.6}
    (event,), _ = read({**scored, "score": "a\x1b[2J"})
    assert "score" not in event


@pytest.mark.parametrize(
    "line",
    [
        b"\xff",
        b"[" * 100_000,
        b"{" + b" " * 300_000 + b"}",
        {**EPOCH, "model": "../../etc/cron.d/x"},
        {**EPOCH, "model": "/root/.bashrc"},
        {**EPOCH, "model": ""},
        {**EPOCH, "model": ".ssh"},
        {**EPOCH, "model": "a\x1b[2Jb"},
        {**EPOCH, "epoch": -1},
        {**EPOCH, "epoch": "1"},
        {**EPOCH, "train_loss": "low"},
        {**EPOCH, "score": "x" * 65},
        {**EPOCH, "score": "accuracy", "train_score": "high"},
        {**EPOCH, "time": "yesterday"},
        {**PROGRESS, "steps": 0},
        {**PROGRESS, "worker": 10**9},
        {**PROGRESS, "unit": "../x"},
        {**GPU, "gpu": "../x"},
        {**DONE, "metrics": []},
    ],
)
def test_a_foreign_line_is_left_out_and_counted(line):
    events, unsound = read(EPOCH, line, EPOCH)
    assert (len(events), unsound) == (2, 1)


def test_no_more_models_than_a_run_can_have_become_files(monkeypatch):
    monkeypatch.setattr(training_events, "MOST_MODELS", 2)
    named = [{**EPOCH, "model": f"m{number}"} for number in range(5)]
    events, unsound = read(*named, GPU, named[0])  # the others' go on
    assert [event.get("model") for event in events] == ["m0", "m1", None, "m0"] and unsound == 3
