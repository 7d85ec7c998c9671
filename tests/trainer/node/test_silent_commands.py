"""A command without progress: what is known of it goes into the log, it is ended, restarted once, then failed.
By the node's own clock, which only these tests move.
"""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.nodes import bundle, node, reported, run_task, silence_of, start, task_of
from tests.processes import alive
from trainer.base.errors import TrainingFailed
from trainer.base.instants import utc_now
from trainer.cluster.waiting import OwnPieces
from trainer.node import command_run, piece_run
from trainer.node.heartbeat import HeartbeatThread
from trainer.node.report import lease
from trainer.runs.lease import read_lease

__all__ = ["bundle", "node", "silence_of", "start"]  # fixtures
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_a_stopped_script_is_restarted_once_and_done(node, start, silence_of, caplog):
    caplog.set_level(logging.INFO)
    stopped = silence_of(lambda before: not before)
    start("echo begun; [ -f again ] && exit 0; touch again; sleep 1000", restarts=0)
    (pid,) = stopped
    assert f"process {pid}: state T (stopped)" in caplog.text and "made no progress for 901 s" in caplog.text
    read = reported(node)
    assert (read.state, read.retries, read.scripts[0]["starts"]) == ("done", 1, 2)


def test_a_stopped_trainer_is_restarted_once_and_done(node, bundle, silence_of):
    """The process that watches the workers; one of its workers or ranks is its own affair."""
    stopped = silence_of(lambda before: not before)
    event = json.dumps({"event": "message", "message": "at work"})
    text = (
        f"echo begun; echo '{event}' >> $EVENTS/events.jsonl; [ -f again ] && exit 0; touch again; sleep 1000"
    )
    task = task_of(node, "train")
    run_task(node, replace(task, command=replace(task.command, words=("sh", "-c", text), beside=())))
    assert len(stopped) == 1 and not alive(stopped[0])
    assert node.status.progress.message == "at work" and not reported(node).failed


def test_a_script_that_hangs_twice_has_failed(node, start, silence_of):
    stopped = silence_of(lambda before: True)
    with pytest.raises(TrainingFailed, match=r"the script made no progress for 90\d s, 2 times .begun"):
        start("echo begun; sleep 1000", restarts=5)
    assert len(stopped) == 2
    read = reported(node, unfinished="")
    assert "made no progress" in read.failed[0]["reason"] and read.scripts[0]["starts"] == 2


def test_a_hung_python_script_writes_its_stacks(node, start, silence_of, caplog):
    caplog.set_level(logging.INFO)
    stopped = silence_of(lambda before: not before)
    text = "import os, time\\nif os.path.exists('again'): os._exit(0)\\nopen('again', 'w')\\nprint(1)\\ntime.sleep(1000)"
    program = f'printf "{text}" > hang.py; exec {sys.executable} -X faulthandler -u hang.py'
    start(program)
    assert len(stopped) == 1 and 'hang.py", line 5' in caplog.text
    assert reported(node).state == "done"


def test_processor_time_counts_only_before_a_script_has_a_rate(node, start, monkeypatch):
    now, ticks, bounds = [0.0], [0], list[float]()
    node.clock = lambda: now[0]
    monkeypatch.setattr(piece_run, "ticks_of", lambda pid: ticks[0])
    look = piece_run.PieceRun._look_at_progress

    def looked(run: Any) -> None:
        now[0] += 800.0
        ticks[0] += 1 if len(bounds) < 5 else 0  # then it stands still
        look(run)
        bounds.append(run.progress_bound)

    monkeypatch.setattr(piece_run.PieceRun, "_look_at_progress", looked)
    with pytest.raises(TrainingFailed, match="2 times .it printed nothing"):
        start("sleep 1000")
    assert len(bounds) >= 7 and set(bounds) == {900.0}


def test_what_a_script_tells_is_progress_without_a_word(node, start, monkeypatch):
    """It prints nothing, and waits for another machine's processor."""
    now, told = [0.0], [0]
    node.clock = lambda: now[0]
    monkeypatch.setattr(piece_run, "ticks_of", lambda pid: 0)
    follow = piece_run.PieceRun.follow

    def followed(run: Any) -> None:
        if told[0] == 5:
            (run.piece.folder / "end").touch()
        else:
            told[0], now[0] = told[0] + 1, now[0] + 800.0
            with run.piece.events.open("a") as file:
                file.write(json.dumps({"step": told[0], "loss": 0.5}) + "\n")
        follow(run)

    monkeypatch.setattr(piece_run.PieceRun, "follow", followed)
    start("while [ ! -f end ]; do sleep 0.05; done")
    read = reported(node)
    assert (read.state, read.retries, read.scripts[0]["starts"]) == ("done", 0, 1) and told == [5]


def test_the_lease_says_what_the_running_pieces_allow(node, start, monkeypatch):
    said: list[dict[str, Any]] = []
    follow = piece_run.PieceRun.follow

    def followed(run: Any) -> None:
        follow(run)
        said.append(lease(node.status, utc_now()))

    monkeypatch.setattr(piece_run.PieceRun, "follow", followed)
    start("sleep 0.2")
    assert {one["progress_bound"] for one in said[1:]} == {900}
    assert all(one["progress_at"] <= one["at"] for one in said)


def test_a_trainer_may_act_before_its_node_does(node, bundle, monkeypatch):
    """Its own watch begins with 900 s, however short the boot of its type is."""
    node.status.identity = replace(node.status.identity, boot_seconds=600)
    said, follow = list[float](), piece_run.PieceRun.follow

    def followed(run: Any) -> None:
        follow(run)
        said.append(run.progress_bound)

    monkeypatch.setattr(piece_run.PieceRun, "follow", followed)
    task = task_of(node, "train")
    run_task(node, replace(task, command=replace(task.command, words=("sh", "-c", "true"), beside=())))
    assert set(said) == {1.5 * 900}


def test_a_head_that_waits_for_other_nodes_makes_progress(node, start, monkeypatch):
    """Nothing is at work here, and the others' last value may take hours: each node watches its own."""
    moved, long_ago = list[Any](), utc_now() - timedelta(hours=2)

    class Shared(OwnPieces):
        def is_over(self, *, has_devices: bool) -> bool:
            return len(moved) >= 3

        def look(self, *, is_busy: bool) -> list[Any]:
            if not is_busy:
                moved.append(node.status.progress_at)
                node.status.progress_at = long_ago
            return []

    monkeypatch.setattr(command_run, "OwnPieces", Shared)
    start("true", over={"seed": [1]})
    assert len(moved) == 3 and long_ago not in moved


def test_a_lease_is_renewed_while_nothing_moves(node):
    thread, key = HeartbeatThread(node, lambda offset, most: b""), node.status.identity.keys.lease
    node.moved()
    node.status.progress_at -= timedelta(seconds=600)
    renewed = []
    for _ in range(2):
        thread._send_heartbeat()
        renewed.append(read_lease(node.uplink.s3.objects[key], utc_now()))
    for read in renewed:
        assert utc_now() - read.at < timedelta(seconds=300) <= read.at - read.progress_at
        assert read.progress_bound == timedelta(seconds=900) and not read.is_stalled


def test_the_heartbeat_gives_up_a_node_that_stands_still(node, caplog):
    thread = HeartbeatThread(node, lambda offset, most: b"")
    node.moved()
    thread._look_at_progress()
    assert not node.stop_reason
    node.status.progress_at -= timedelta(seconds=1351)
    thread._look_at_progress()
    assert node.failure and "test_silent_commands.py" in caplog.text
    assert "no progress for 1351 s in its phase boot" in node.failure.what


def test_a_laptop_that_slept_is_not_given_up(node, monkeypatch):
    now = [utc_now()]
    for name in ("trainer.node.heartbeat.utc_now", "trainer.node.shared.utc_now"):
        monkeypatch.setattr(name, lambda: now[0])
    thread = HeartbeatThread(node, lambda offset, most: b"")
    node.moved()
    thread._look_at_progress()
    now[0] += timedelta(hours=8)  # nobody worked, or watched
    thread._look_at_progress()
    assert not node.stop_reason
    for _ in range(27):  # awake, and without progress
        now[0] += timedelta(seconds=50)
        thread._look_at_progress()
        assert not node.stop_reason
    now[0] += timedelta(seconds=50)
    thread._look_at_progress()
    assert node.failure and "no progress for 1400 s" in node.failure.what
