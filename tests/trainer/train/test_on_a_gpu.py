"""A whole training on a GPU, beside the same on a CPU. These tests need a CUDA device, and skip themselves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.jobs import sets

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
LSTM = ("model.hidden=16", "model.lookback=20", "train.batch=64")
TCN = (
    "model.name=tcn",
    "target.name=direction",
    "model.blocks=4",
    "model.width=16",
    "model.chunk=64",
    "train.batch=8",
)
PANEL = (
    "model.name=transformer",
    "model.preset=tiny",
    "target.name=return",
    "data.panel=true",
    "train.batch=64",
)


def trained(data: Path, out: Path, device: str, *settings: str) -> list[dict[str, Any]]:
    """Train for two epochs, without dropout, in fp32; return the events."""
    same = ("train.epochs=2", "train.precision=fp32", "model.dropout=0", "data.calendar=24x7")
    words = ["--data", str(data), "--out", str(out), "--events", str(out), "--device", device]
    ended = subprocess.run(
        [sys.executable, "-m", "trainer.train", *words, *sets(*same, *settings)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "Warning" not in ended.stderr
    return [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("settings", "strategy"),
    [
        ((*LSTM, "expert.strategy=sequential"), "sequential"),
        ((*LSTM, "expert.tune=always"), ""),
        ((*LSTM, "expert.strategy=streams"), "streams"),
        ((*LSTM, "expert.strategy=fused"), "fused"),
        (TCN, "sequential"),
        (PANEL, "sequential"),
    ],
)  # fmt: skip
def test_a_gpu_learns_what_a_cpu_learns(tmp_path, write_candles, monkeypatch, settings, strategy):
    monkeypatch.setenv("MAYFLY_PROFILES", str(tmp_path / "gpu_profiles.toml"))
    data = tmp_path / "candles"
    data.mkdir()
    for number, symbol in enumerate(("AAA", "BBB", "CCC")):
        write_candles(data, symbol, bars=2_000, seed=number, signal=1.0)
    cpu, gpu = (trained(data, tmp_path / device, device, *settings) for device in ("cpu", "cuda"))

    def epochs(events: list[dict[str, Any]]) -> dict[tuple[str, int], tuple[float, float]]:
        epochs = [event for event in events if event["event"] == "epoch"]
        return {(one["piece"], one["epoch"]): (one["train_loss"], one["validation_loss"]) for one in epochs}

    assert epochs(gpu).keys() == epochs(cpu).keys()
    for key, losses in epochs(gpu).items():
        assert losses == pytest.approx(epochs(cpu)[key], rel=2e-3), key
    (started,) = (event for event in gpu if event["event"] == "started")
    assert started["device"] == "cuda" and started["gpu_profile"]["name"] != "cpu"
    assert started["choice"]["strategy"] == strategy or not strategy
    # Few models are tried together, and with all of them at a time.
    tried = [one["pack"] for event in gpu if event["event"] == "tuned" for one in event["timings"]]
    assert set(tried) <= {1, 3} and bool(tried) == (strategy != "sequential")
