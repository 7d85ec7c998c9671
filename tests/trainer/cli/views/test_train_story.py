"""A training at a desk: drawn at a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import json

import pytest

from tests.trainer.cli.test_terminal import Terminal, screen
from trainer.cli.views.train_story import TrainStory

MODELS = [
    {"model": name, "piece": name, "kind": "symbol", "series": [name], "fold": 1, "seed": 0}
    for name in ("BTC-USD", "ETH-USD")
]
STARTED = {
    "event": "started",
    "models": MODELS,
    "workers": 2,
    "device": "cpu",
    "data": {"bars": 1000, "timeframe": "1m", "holes": 3, "synthetic": True},
}
STEP = {"event": "progress", "epoch": 1, "epochs": 2, "loss": 0.7, "rate": 1234.0, "unit": "windows"}
EVENTS = [
    STARTED,
    {**STEP, "model": "BTC-USD", "piece": "BTC-USD", "worker": 0, "step": 10, "steps": 10},
    {**STEP, "model": "ETH-USD", "piece": "ETH-USD", "worker": 1, "step": 5, "steps": 10},
]


@pytest.fixture
def at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_at_a_terminal_all_models_have_a_bar_and_each_a_row(at_a_terminal):
    stream = Terminal()
    story = TrainStory(stream, clock=lambda: 0.0)
    for event in EVENTS:
        story(event)
    shown = screen(stream.getvalue())
    assert shown[0] == "2 models on 2 cpu workers  1,000 bars of 1m, 3 holes  SYNTHETIC"
    assert "● train" in shown[1] and " 38%" in shown[1] and "$" not in shown[1]
    assert shown[2].split()[:3] == ["BTC-USD", "epoch", "1/2"] and "50%" in shown[2]
    assert shown[4].split()[:2] == ["2,468", "windows/s"]
    story({"event": "model_failed", "model": "BTC-USD", "piece": "BTC-USD", "reason": "out of memory"})
    story.finish()
    assert screen(stream.getvalue())[1:] == ["BTC-USD  failed: out of memory"]


def test_elsewhere_it_is_the_plain_lines_of_the_module():
    stream = io.StringIO()
    story = TrainStory(stream, clock=lambda: 0.0)
    for event in EVENTS:
        story(event)
    story.finish()
    assert stream.getvalue().splitlines()[1:] == [
        "BTC-USD  epoch 1/2  step 10/10  loss 0.7000  1,234 windows/s",
        "ETH-USD  epoch 1/2  step 5/10  loss 0.7000  1,234 windows/s",
    ]


@pytest.mark.parametrize("terminal", [True, False])
def test_the_models_are_a_table_at_a_terminal_and_json_elsewhere(terminal, at_a_terminal, monkeypatch):
    stdout = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr("sys.stdout", stdout)
    models = [
        {"piece": name, "file": f"models/{name}.safetensors", "sha256": "ab" * 32}
        for name in ("ETH-USD", "BTC-USD")
    ]
    TrainStory(Terminal()).print_models(models)
    if terminal:
        assert [line.split() for line in screen(stdout.getvalue())] == [
            ["model", "file", "sha256"],
            ["BTC-USD", "models/BTC-USD.safetensors", "abababababab"],
            ["ETH-USD", "models/ETH-USD.safetensors", "abababababab"],
        ]
    else:
        assert [json.loads(line) for line in stdout.getvalue().splitlines()] == models
