"""The live region at 60, 80 and 120 columns: bars, rows of models, counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.trainer.cli.views.test_watch import START
from trainer.cli.views.drawing import drawn
from trainer.cli.views.progress import counts, models_line, picture, time_left
from trainer.runs.reports import piece_share, share_done


def training(epoch: int, step: int, loss: float | None = 0.691) -> dict:
    return {"state": "training", "epoch": epoch, "epochs": 2, "step": step, "steps": 100, "loss": loss}


TRAIN = replace(
    START,
    state="running",
    phase="train",
    spent_usd=0.05,
    pieces={
        "BTC-USD": training(2, 44),
        "ETH-USD": training(1, 30, None),
        "SOL-USD": {"state": "waiting"},
        "X": {"state": "done"},
    },
    models_total=4,
    models_done=1,
    rate=5510.0,
)


def test_shares_count_steps_of_all_epochs_and_what_has_ended():
    assert piece_share(training(2, 44)) == pytest.approx(0.72)
    assert piece_share({"state": "failed"}) == 1 and piece_share({"state": "training"}) == 0
    assert piece_share({"state": "training", "epochs": 1, "steps": 10, "epoch": 9, "step": 99}) == 1
    assert share_done(TRAIN.pieces.values(), 4) == pytest.approx((0.72 + 0.15 + 0 + 1) / 4)
    assert share_done(TRAIN.pieces.values(), 8) == pytest.approx((0.72 + 0.15 + 0 + 1) / 8)
    assert share_done([], 0) == 0


def test_the_time_left_follows_from_the_share_done():
    assert time_left(30, 0.6) == "20s left" and time_left(30, 0.01) == "" and time_left(30, 1) == ""


def test_the_picture_at_80_columns():
    assert drawn(picture(TRAIN, seconds=30, hint="Ctrl-C: end or leave"), width=80).splitlines() == [
        "  ● train        30s  ━━━━━━━━━━━━━━                   47%   34s left   $0.05",
        "      BTC-USD  epoch 2/2   ━━━━━━━━━━━━━━         72%   loss 0.691",
        "      ETH-USD  epoch 1/2   ━━━                    15%",
        "      1 waiting · 1 done · 5,510 windows/s · Ctrl-C: end or leave",
    ]


def test_a_model_that_is_scored_is_not_left_at_its_last_step():
    scored = {**training(1, 97), "state": "scoring"}
    alone = replace(TRAIN, pieces={"BTC-USD": scored}, models_total=1, models_done=0)
    assert drawn(picture(alone, seconds=30), width=80).splitlines()[1].split() == [
        "BTC-USD",
        "epoch",
        "1/2",
        "━" * 20,
        "scoring",
    ]
    assert models_line(alone) == "100% of 1 model  1 scoring  5,510 windows/s"


def test_a_node_without_a_sign_has_no_time_left_and_no_rate():
    silent = replace(TRAIN, is_silent=True, message="no sign for 40 s")
    first, *_, last = drawn(picture(silent, seconds=30), width=80).splitlines()
    assert first.endswith("  47%   $0.05")
    assert last == "      1 waiting · 1 done · no sign for 40 s"
    assert models_line(silent) == "47% of 4 models  1 waiting  1 done  no sign for 40 s"


def test_a_silent_script_has_no_share_done():
    silent = replace(
        TRAIN, work="script", pieces={"net": {"state": "training"}}, models_total=1, models_done=0, rate=None
    )
    assert drawn(picture(silent, seconds=30), width=80).splitlines() == [
        "  ● train        30s   $0.05",
        "      net  running",
    ]
    assert models_line(silent) == ""
    over = replace(silent, pieces={"a": {"state": "training"}, "b": {"state": "waiting"}}, models_total=2)
    assert models_line(over) == "2 values  1 waiting"
    half = replace(over, pieces={"a": {"state": "done"}, "b": {"state": "training"}})
    assert models_line(half) == "50% of 2 values  1 done" and "50%" in drawn(
        picture(half, seconds=30), width=80
    )


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_is_wider_than_the_terminal_and_the_numbers_stay(width):
    text = drawn(picture(TRAIN, seconds=30, hint="Ctrl-C: end or leave"), width=width)
    assert all(len(line) <= width for line in text.splitlines())
    assert "47%" in text and "72%" in text and "1 waiting" in text
    assert ("━" in text.splitlines()[1]) == (width >= 60)


def test_models_in_training_are_drawn_and_others_counted():
    pieces = {f"S{number:03}": training(1, 50) for number in range(8)}
    pieces |= {f"W{number:03}": {"state": "waiting"} for number in range(300)}
    pieces |= {"D": {"state": "done"}, "F": {"state": "failed"}}
    text = drawn(picture(replace(TRAIN, pieces=pieces, models_total=310), seconds=30), width=80)
    assert text.count("epoch 1/2") == 6 and len(text.splitlines()) == 8
    assert "2 more in training · 300 waiting · 1 done · 1 failed · 5,510 windows/s" in text


def test_models_that_a_node_does_not_name_are_counted():
    many = replace(TRAIN, pieces={"A": {"state": "waiting"}}, models_total=3000, models_done=20)
    assert counts(many)[:2] == ["2,980 waiting", "20 done"]


def test_a_name_is_never_markup_and_a_long_one_is_cut():
    evil = "[red]" + "\x1b[2K" + "N" * 60
    text = drawn(picture(replace(TRAIN, pieces={evil: training(1, 1)}), seconds=1), width=80)
    assert r"[red]\x1b[2K" in text and "…" in text and "\x1b" not in text


def test_a_phase_without_models_shows_message_and_dollars():
    event = replace(TRAIN, phase="stage", message="smoke test")
    assert drawn(picture(event, seconds=3), width=80) == "  ● stage         3s   smoke test   $0.05\n"


def test_a_training_in_one_line():
    assert models_line(TRAIN) == "47% of 4 models  1 waiting  1 done  5,510 windows/s"
