"""Steps that a run computed twice, from the reports of machines that were lost and of those after them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.records import at
from trainer.runs.lease import Lease
from trainer.runs.repeated import reached_steps, steps_twice
from trainer.runs.reports import MOST_COUNT, Heartbeat, heartbeat
from trainer.runs.start_file import StartFile


def told(**pieces: dict[str, Any]) -> Heartbeat:
    """Return a node's last report about pieces of ten steps in each of five epochs, as it is read."""
    lease = Lease(instance_id="i-1", at=at(60), lease_until=at(90))
    shown = {name: {"state": "training", "epochs": 5, "steps": 10, **own} for name, own in pieces.items()}
    return heartbeat(lease, json.dumps({"progress": shown}).encode())


def at_step(step: int, *, began: int, **more: Any) -> dict[str, Any]:
    return {"epoch": step // 10 + 1, "step": step % 10, "began": began, **more}


def reached(start: StartFile, last: Heartbeat | None) -> dict[str, int]:
    return reached_steps(start, last, pieces=["A", "B"])


def begun_with(twice: int = 0, **reached: int) -> StartFile:
    return StartFile(run_id="r", attempt=2, reached=reached, steps_twice=twice)


def test_a_first_attempt_repeats_nothing() -> None:
    last = told(A=at_step(23, began=0), B=at_step(0, began=0))
    assert steps_twice(begun_with(), last) == 0 == steps_twice(None, last)
    assert reached(begun_with(), last) == {"A": 23}


@pytest.mark.parametrize(
    ("now", "twice"),
    [
        (at_step(23, began=23), 0),  # a checkpoint on notice
        (at_step(20, began=10), 10),  # it is not yet as far as the one before
        (at_step(30, began=10), 13),
        (at_step(30, began=0), 23),  # without any checkpoint
        ({"state": "scoring", "began": 10}, 13),
        ({"state": "done", "began": 10, "epoch": 2, "step": 3}, 13),  # it stopped early
        ({"state": "waiting"}, 0),
        (at_step(30, began=40), 0),  # nonsense makes it no less than nothing
        (at_step(49, began=0, epochs=1, epoch=9), 9),  # and no more than its epochs have
    ],
)
def test_steps_between_last_report_and_checkpoint_are_repeated(now: dict[str, Any], twice: int) -> None:
    assert steps_twice(begun_with(A=23), told(A=now)) == twice
    assert steps_twice(begun_with(7, A=23), told(A=now, B=at_step(40, began=1))) == twice + 7


def test_a_machine_that_said_nothing_leaves_what_was_reached() -> None:
    assert reached(begun_with(A=23), None) == {"A": 23} and steps_twice(begun_with(7, A=23), None) == 7
    assert reached(begun_with(A=23), told(A=at_step(14, began=10))) == {"A": 23}
    assert reached(begun_with(A=23), told(A=at_step(31, began=10), B={})) == {"A": 31}


def test_a_script_tells_no_step_with_which_it_began() -> None:
    assert reached(begun_with(), told(A={"epoch": 3, "step": 2})) == {}


def test_a_report_adds_no_piece_to_a_run() -> None:
    assert reached(begun_with(), told(**{"x" * 200: at_step(23, began=0), "": at_step(23, began=0)})) == {}
    done = {"piece": "A", "done": True}
    assert reached(replace(begun_with(A=3, B=4), finished=(done,)), None) == {"B": 4}


def test_no_count_leaves_its_bound() -> None:
    most = told(A={"epoch": MOST_COUNT, "epochs": MOST_COUNT, "steps": MOST_COUNT, "began": 0})
    assert reached(begun_with(), most) == {"A": MOST_COUNT}
    assert steps_twice(begun_with(5, A=MOST_COUNT), most) == MOST_COUNT
