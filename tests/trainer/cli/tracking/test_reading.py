"""What a tracker gets of a run: plain names, finite numbers, and nothing that is secret."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from tests.records import RUN, at
from tests.trainer.cli.tracking.runs import receipt, tracked
from trainer.cli.tracking import reading
from trainer.cli.tracking.reading import MOST_KEY, plain_key, tracked_run

CURVE = "lstm_S0_1m/epoch/validation_loss"


def test_a_run_is_its_settings_tags_scores_and_curves() -> None:
    run = tracked()
    assert (run.job, run.settings["data.symbols"]) == ("crypto", "BTC-USD, ETH-USD")
    assert run.tags["mayfly.run_id"] == RUN and run.tags["mayfly.dollars"] == "0.47 to 0.54"
    assert run.tags["mayfly.receipt"] == f"a-bucket/runs/{RUN}/receipt.json"
    assert run.scores["lstm_S1_1m/test/auc"] == run.scores["mean/test/auc"] == 0.53
    assert (run.scores["run/models"], run.scores["run/failed"]) == (2, 1)
    curve = [point for point in run.points if point[0] == CURVE]
    assert curve == [(CURVE, epoch, 1 / epoch, at(60 * epoch).timestamp()) for epoch in (1, 2, 3)]


def test_variables_of_a_script_are_left_out() -> None:
    job = {
        "name": "sweep",
        "script": {"command": "python t.py", "env": {"TOKEN": "hush"}, "secrets": ["KEY"]},
    }
    assert tracked(job=job).settings == {"script.command": "python t.py", "script.secrets": "KEY"}


def test_many_inputs_are_one_tag(monkeypatch: Any) -> None:
    lines = [("code", "c"), ("input data/a", "1"), ("input data/b", "2"), ("locked packages", "p"), ("x", "")]
    monkeypatch.setattr(reading, "lineage", lambda *_: lines)
    tags = tracked().tags
    assert (tags["mayfly.code"], tags["mayfly.locked_packages"]) == ("c", "p")
    assert tags["mayfly.input"] == "data/a 1\ndata/b 2" and "mayfly.x" not in tags


def test_an_epoch_trained_again_replaces_the_first() -> None:
    about = {"event": "epoch", "model": "m", "epoch": 1}
    events = [{**about, "train_loss": loss, "time": at(0)} for loss in (3.0, 2.0)]
    assert [point[2] for point in tracked_run(receipt(), None, events, bucket="b").points] == [2.0]


@pytest.mark.parametrize("value", [None, math.nan, math.inf, "1", True])
def test_what_is_no_number_is_no_point(value: object) -> None:
    numbers = {"loss": value, "rate": None, "values": {"return": value, "a/../b": 0.5}}
    event = {"event": "script", "model": "m", "step": 7, "time": at(0), **numbers}
    run = tracked_run(receipt(), None, [event], bucket="b")
    assert [(step, number) for _, step, number, _ in run.points] == [(7, 0.5)]
    assert run.points[0][0].startswith("m/a/b-")


@pytest.mark.parametrize(
    "name",
    ["/a", "a//b", "../../b", "a/./b", "^GSPC/x", "a\x00\u202eb", "\ud800", "a" * 400, "...", "", "a\nb"],
)
def test_a_hostile_name_is_a_key(name: str) -> None:
    key = plain_key(name)
    assert 0 < len(key) <= MOST_KEY and re.fullmatch(r"[\w.\- :]+(/[\w.\- :]+)*", key), key
    assert not {"", ".", ".."} & set(key.split("/")) and key != plain_key(f"{name}!")
    assert plain_key("lstm_BRK.B_1m/epoch/a b") == "lstm_BRK.B_1m/epoch/a b"


def test_too_many_points_are_thinned_evenly(monkeypatch: Any) -> None:
    monkeypatch.setattr(reading, "MOST_POINTS", 12)
    run = tracked(2, 12)  # of 48 points every fourth
    assert [(name, step) for name, step, *_ in run.points if name == CURVE] == [
        (CURVE, 1),
        (CURVE, 5),
        (CURVE, 9),
    ]
