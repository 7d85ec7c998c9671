"""Learning curves: the last epochs of each model, and the files that TensorBoard reads."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import pytest

from tests.trainer.runs.test_training_events import EPOCH, PROGRESS
from trainer.cli.parts import RunEvents
from trainer.cli.views.curves import CurveFiles, curves_view, small_curve
from trainer.cli.views.drawing import drawn

AT = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)


def epochs(*losses, piece="BTC-USD"):
    model = f"lstm-direction_{piece}_1m"
    return [
        {
            **EPOCH,
            "time": AT,
            "model": model,
            "piece": piece,
            "epoch": number,
            "train_loss": 0.9,
            "validation_loss": loss,
        }
        for number, loss in enumerate(losses, 1)
    ]


def test_the_last_epochs_of_each_model_and_the_one_that_is_kept():
    events = RunEvents(events=[*epochs(0.7, 0.5, 0.6, None), *epochs(0.4, piece="ETH-USD")])
    assert drawn(curves_view(events.epochs, last=3), width=80).splitlines() == [
        "model    epoch  train loss  validation loss     validation loss so far",
        "BTC-USD      2      0.9000           0.5000  ✓  █▁▅",
        "             3      0.9000           0.6000",
        "             4      0.9000                -",
        "ETH-USD      1      0.9000           0.4000  ✓  ▁",
        "✓ lowest validation loss: these weights are the model",
    ]


def test_each_training_of_an_ensemble_keeps_its_own_epoch():
    events = [
        {**event, "fit": fit} for fit, event in zip((1, 1, 2, 2), epochs(0.5, 0.7, 0.9, 0.8), strict=True)
    ]
    shown = drawn(curves_view(RunEvents(events=events).epochs, last=4), width=80).splitlines()
    assert ["✓" in line for line in shown[1:5]] == [True, False, False, True]


def test_the_score_of_an_epoch_stands_beside_its_losses():
    scored = [
        {**event, "score": "accuracy", "train_score": 0.61, "validation_score": score}
        for event, score in zip(epochs(0.7, 0.5), (None, 0.53), strict=True)
    ]
    shown = drawn(curves_view(RunEvents(events=scored).epochs, last=3), width=120).splitlines()
    titles = (
        "model epoch train loss validation loss train accuracy validation accuracy validation loss so far"
    )
    assert shown[0].split() == titles.split()
    assert shown[2].split() == ["2", "0.9000", "0.5000", "0.6100", "0.5300", "✓"]
    assert "validation accuracy" in drawn(curves_view(RunEvents(events=scored).epochs, last=3), width=80)


def test_a_script_may_have_no_validation_loss():
    shown = drawn(
        curves_view(RunEvents(events=epochs(None, piece="net")).epochs, last=3, work="script"), width=80
    )
    assert shown.splitlines()[0].startswith("script  epoch") and "✓" not in shown
    over = drawn(
        curves_view(RunEvents(events=[*epochs(0.4), *epochs(0.4, piece="b")]).epochs, last=3, work="script"),
        width=80,
    )
    assert over.splitlines()[0].startswith("value ") and over.splitlines()[-1] == "✓ lowest validation loss"


def test_the_epoch_that_is_kept_is_shown_however_old():
    shown = drawn(
        curves_view(RunEvents(events=epochs(0.4, 0.5, 0.6, 0.7)).epochs, last=2), width=80
    ).splitlines()
    assert [line.split()[-4:] for line in shown[1:-1]] == [
        ["0.9000", "0.4000", "✓", "▁▃▆█"],
        ["3", "0.9000", "0.6000"],
        ["4", "0.9000", "0.7000"],
    ]


def test_of_an_epoch_that_was_trained_again_the_last_counts():
    events = RunEvents(events=[*epochs(0.7, 0.5), *epochs(0.6)])
    assert [values["validation_loss"] for values in events.epochs["BTC-USD"].values()] == [0.6, 0.5]


@pytest.mark.parametrize("count", [1, 24, 25, 1000])
def test_a_curve_is_short_and_ends_with_the_last_value(count):
    curve = small_curve([float(count - number) for number in range(count)])
    assert len(curve) == min(count, 24) and curve[-1] == "▁" and (count == 1 or curve[0] > curve[-1])
    assert small_curve([]) == ""


def test_pulling_twice_writes_the_same_files(tmp_path):
    events = RunEvents(raw=b"{}\n", events=[{**PROGRESS, "time": AT, "unit": "windows"}, *epochs(0.7, 0.5)])

    def contents():
        return {
            path.relative_to(tmp_path).as_posix(): path.read_bytes()
            for path in tmp_path.rglob("*")
            if path.is_file()
        }

    assert CurveFiles(tmp_path).add(events) == [tmp_path / "events.jsonl", tmp_path / "observed"]
    first = contents()
    live = CurveFiles(tmp_path)  # in two pieces, as a running node sends them
    live.add(RunEvents(raw=b"{", events=events.events[:1]))
    live.add(RunEvents(raw=b"}\n", events=events.events[1:]))
    assert contents() == first
    name = "lstm-direction_BTC-USD_1m"
    board = f"observed/tensorboard/{name}/events.out.tfevents.{int(AT.timestamp())}.{name}"
    assert set(first) == {"events.jsonl", board, f"observed/models/{name}.jsonl", "observed/workers/0.jsonl"}
    assert b"epoch/validation_loss" in first[board]
    lines = [json.loads(line) for line in first[f"observed/models/{name}.jsonl"].splitlines()]
    assert [line["time"] for line in lines] == ["2026-11-20T12:00:00.000+00:00"] * 3


def test_a_run_that_sent_no_event_writes_nothing(tmp_path):
    assert CurveFiles(tmp_path).add(RunEvents()) == [] and not list(tmp_path.iterdir())
