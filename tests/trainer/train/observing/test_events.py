"""Events as JSON lines for programs and as text for people."""

from __future__ import annotations

import io
import json
import math
from types import SimpleNamespace
from typing import Any

import pytest

from tests.disks import FullDisk, refused
from trainer.train.observing.events import EventLog, Story, line_of

MODELS = [{"model": symbol, "piece": symbol, "fold": 1, "seed": 0} for symbol in ("BTC-USD", "ETH-USD")]
STARTED = {"event": "started", "models": MODELS, "workers": 2, "device": "cpu"}
DATA = {"bars": 1000, "timeframe": "1m", "holes": 3, "synthetic": True}


def _progress(symbol: str, step: int) -> dict[str, Any]:
    place = {
        "epoch": 1,
        "epochs": 2,
        "step": step,
        "steps": 10,
        "loss": 0.7,
        "rate": 1234.0,
        "unit": "windows",
    }
    return {"event": "progress", "model": symbol, "piece": symbol, "worker": symbol, **place}


def test_each_event_is_one_json_line_without_nan(tmp_path):
    shown: list[dict[str, Any]] = []
    log = EventLog(tmp_path / "events", shown.append)
    log.emit({"event": "epoch", "train_loss": math.nan, "nested": [{"x": math.inf}]})
    log.emit({"event": "ended"})
    lines = [json.loads(line) for line in (tmp_path / "events" / "events.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["epoch", "ended"]
    assert lines[0]["train_loss"] is None and lines[0]["nested"] == [{"x": None}] and "time" in lines[0]
    assert len(shown) == 2


def test_a_full_disk_delays_an_event_and_ends_no_training(tmp_path):
    shown: list[dict[str, Any]] = []
    log, file = EventLog(tmp_path, shown.append), tmp_path / "events.jsonl"
    disk = log._file._file = FullDisk(log._file._file, room=10)
    log.emit({"event": "model_done"})
    disk.room = 1000
    log.emit({"event": "ended"})
    assert [json.loads(line)["event"] for line in file.read_text().splitlines()] == ["model_done", "ended"]
    assert len(shown) == 2


def test_what_cant_be_shown_ends_no_training(tmp_path):
    log, retry = EventLog(tmp_path, Story(SimpleNamespace(write=refused))), {"piece": "A", "reason": "killed"}
    for _ in range(2):
        log.emit({"event": "retry", **retry})
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 2


def test_without_a_terminal_progress_is_printed_now_and_then():
    stream, now = io.StringIO(), iter([0.0, 0.0, 5.0, 11.0, 11.0])
    story = Story(stream, clock=lambda: next(now))
    for step in (1, 2, 3):
        story(_progress("BTC-USD", step))
    lines = stream.getvalue().splitlines()
    assert lines == [
        "BTC-USD  epoch 1/2  step 1/10  loss 0.7000  1,234 windows/s",
        "BTC-USD  epoch 1/2  step 3/10  loss 0.7000  1,234 windows/s",
    ]


MANY = [f"S{number}" for number in range(9)]
CHOICE = {"strategy": "sequential", "pack": 1, "micro_batch": 4, "batch": 16}
TIMED = {**CHOICE, "windows_per_second": 300.0, "excluded": ""}
CHECKPOINT = {"snapshot_seconds": 0.0004, "waited_seconds": 0.0002, "write_seconds": 0.0125}
NOTES = {"warmup": 60, "notes": ["BTC/USD: it trains as BTC-USD"]}


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            {**_progress("SPY", 1), "rate": 1.75, "unit": "chunks"},
            "SPY  epoch 1/2  step 1/10  loss 0.7000  1.8 chunks/s",
        ),
        (
            {"event": "resumed", "piece": "SPY", "epoch": 2, "visited": 12, "unit": "chunks"},
            "SPY  resumed in epoch 2 after 12 chunks",
        ),
        (
            {"event": "tuned", "seconds": 20.0, "entry": CHOICE, "timings": [TIMED], "unit": "chunks"},
            "found in 20 s: batch 16, sequential, 1 models at a time, slices of 4, 300 chunks/s",
        ),
        (
            {"event": "checkpoint", "piece": "BTC-USD", **CHECKPOINT},
            "BTC-USD  checkpoint: training paused 0.0006 s, written in the background in 0.013 s",
        ),
        (
            {**STARTED, "data": DATA},
            "2 models on 2 cpu workers  1,000 bars of 1m, 3 holes  SYNTHETIC",
        ),
        (
            {**STARTED, "models": MODELS[:1], "workers": 1, "data": {**DATA, "holes": 1, "warmup": 1}},
            "1 model on 1 cpu worker  1,000 bars of 1m, 1 hole, warm-up 1 bar  SYNTHETIC",
        ),
        (
            {**STARTED, "data": {**DATA, **NOTES}},
            "2 models on 2 cpu workers  1,000 bars of 1m, 3 holes, warm-up 60 bars  SYNTHETIC\n"
            "note: BTC/USD: it trains as BTC-USD",
        ),
        (
            {"event": "retry", "piece": "BTC-USD", "reason": "its worker was killed by signal 9"},
            "BTC-USD  retried: its worker was killed by signal 9",
        ),
        ({"event": "model_failed", "piece": "BTC-USD", "reason": "again"}, "BTC-USD  failed: again"),
        (
            {"event": "ended", "kept": MANY, "replaced": ["T"], "out": "models"},
            "kept from an earlier run in models with the same bars, settings and code: S0, S1, S2, S3, S4, S5"
            " and 3 more\nreplaced in models, since the earlier run had other bars, settings or code: T",
        ),
        ({"event": "ended", "kept": [], "replaced": [], "out": "models"}, ""),
    ],
    ids=lambda value: value["event"] if isinstance(value, dict) else "",
)
def test_an_event_is_printed_as_a_line(event: dict[str, Any], line: str) -> None:
    assert line_of(event) == line
