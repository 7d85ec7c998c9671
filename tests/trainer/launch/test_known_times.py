from __future__ import annotations

import json
from typing import Any

from tests.records import NOON, at, launched, make_record, piece, rung, seen
from tests.trainer.control.conftest import MemoryCloud
from trainer.aws.place import ACCOUNT
from trainer.launch.known_times import _seconds_of, known_times
from trainer.runs.attempts import Attempt
from trainer.runs.index import begin_run, take_out
from trainer.runs.observation import Observation
from trainer.runs.receipt import make_receipt
from trainer.runs.reports import NodeResult
from trainer.runs.store import receipt_key

SHA256 = "ab" * 32


def script(piece: str, seconds: float, **more: Any) -> dict[str, Any]:
    return {"piece": piece, "seconds": seconds, "sha256": "a", "done": True, **more}


def test_finished_pieces_say_how_long_a_script_takes():
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


def test_a_run_that_did_only_a_part_says_nothing_of_the_whole() -> None:
    """One that lost a machine went on from its checkpoints, and so did one that continues another."""
    objects: Any = MemoryCloud(NOON).objects
    identity = {"piece": "fit", "kind": "script", "series": [], "fold": 1, "seed": 0}
    ran = {**identity, "values": {}, "sha256": SHA256, "done": True, "exit_code": 0, "starts": 1}
    result = NodeResult(
        state="done",
        scripts=({**ran, "best": {}, "seconds": 9.0, "last_lines": [], "notes": []},),
        phases={"boot": at(10), "train": at(20), "upload": at(620), "end": at(630)},
    )
    lost = Attempt(number=1, launches=launched()[0].launches, created_at=at(5), ended_at=at(9), cause="lost")
    again = Attempt(number=2, launches=launched()[0].launches, created_at=at(10))
    runs = {
        "whole": {"attempts": launched(), "ladder": (rung("g6.xlarge"),)},
        "lost": {"attempts": (lost, again), "ladder": (rung("g6.xlarge"),)},
        "more": {"attempts": launched(), "parent": "20261119-120000-fit-aaaa", "parent_counts": "all"},
    }
    for number, (end, fields) in enumerate(runs.items()):
        record = make_record(
            run_id=f"20261120-12000{number}-fit-{end}",
            work="script",
            leaves="files",
            pieces=(piece("fit", kind="script", series=()),),
            instances=(seen(instance_type="g6.xlarge", terminated_at=at(640)),),
            outcome="done",
            closed_at=at(700),
            **fields,
        )
        begin_run(objects, record)
        receipt = make_receipt(record, Observation(result=result, models=()))
        receipt["seconds"]["train"] = 600.0 if end == "whole" else 60.0
        objects.write(receipt_key(record.run_id), json.dumps(receipt).encode())
        take_out(objects, closed=[record.run_id])
    known = known_times(objects, ["fit"], SHA256, ACCOUNT)
    assert known.rates["g6.xlarge"].per_second == 1 / 600
