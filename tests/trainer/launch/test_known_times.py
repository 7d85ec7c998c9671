from __future__ import annotations

from typing import Any

from trainer.launch.known_times import _seconds_of


def script(piece: str, seconds: float, **more: Any) -> dict[str, Any]:
    return {"piece": piece, "seconds": seconds, "sha256": "a", "done": True, **more}


def test_pieces_that_came_to_their_end_say_how_long_a_script_takes():
    scripts = [
        script("t1", 60.0, end="done"),
        script("t2", 5.0, end="pruned"),
        script("t3", 7.0, done=False),
        script("t4", 30.0, sha256="another script's"),
        script("t5", 0.2),
    ]
    assert _seconds_of({"scripts": scripts, "state": "done"}, "a") == {"t1": 60.0, "t5": 1.0}


def test_a_script_that_ran_once_takes_its_train_phase():
    receipt = {"scripts": [script("fit", 5.0)], "state": "done", "seconds": {"train": 9.0}}
    assert _seconds_of(receipt, "a") == {"fit": 9.0}
