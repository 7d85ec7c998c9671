"""Runs of several nodes from their launch to the receipt, on a cloud in memory, some of which lose a node."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from trainer.cli.parts import LogReader
from trainer.cli.terminal import Console
from trainer.cli.verbs.status import _detail, _of_progress
from trainer.cli.views.drawing import drawn
from trainer.cli.views.receipt import receipt_view
from trainer.cli.views.watch import Watch
from trainer.control.drive import drive, start, step
from trainer.control.observe import reports
from trainer.control.progress import progress_of
from trainer.runs.record import RunRecord
from trainer.runs.start_file import StartFile, read_start
from trainer.runs.store import read_record, receipt_key, start_key
from trainer.runs.stored_receipt import receipt_from_json
from trainer.runs.timeline import timeline

SPOT = "Server.SpotInstanceTermination"
Make = Callable[..., tuple[Any, RunRecord]]


def start_of(cloud: Any, record: RunRecord, number: int = 1) -> StartFile:
    body = cloud.objects.body(start_key(record.run_id, number))
    return read_start(body, run_id=record.run_id, attempt=number)


def tokens(cloud: Any) -> dict[str, bytes]:
    return {key: cloud.objects.body(key) for key in cloud.objects.stored if key.startswith("tokens/")}


def driven(cloud: Any, record: RunRecord, *, pause: float = 5.0, **more: Any) -> dict[str, Any]:
    receipt = drive(cloud, record.run_id, poll_seconds=pause, sleep=cloud.sleep, **more)
    assert receipt is not None
    return receipt


def losing(cloud: Any, instance_id: str, after: float, reason: str = SPOT) -> Callable[[Any], None]:
    """Return what ends an instance once a run has worked so long; '': its node only falls silent."""
    begun: list[Any] = []

    def on_event(progress: Any) -> None:
        if progress.phase == "train" and not begun:
            begun.append(cloud.clock)
        if begun and cloud.clock >= begun[0] + timedelta(seconds=after):
            if reason:
                cloud.end(instance_id, reason)
            else:
                cloud.silent.add(instance_id)

    return on_event


def test_three_nodes_know_each_other_and_leave_no_token(make_cloud: Make) -> None:
    cloud, record = make_cloud(num_nodes=3)
    started = start(cloud, record.run_id, poll_seconds=5.0, sleep=cloud.sleep)
    named = start_of(cloud, record)
    assert named.instances == started.working_ids
    assert named.addresses == ("127.1.0.1", "127.1.0.2", "127.1.0.3")
    held = tokens(cloud)
    assert set(held) == {keys.token for keys in started.nodes} and len(set(held.values())) == 1
    calls = cloud.done()
    written = f"put {start_key(record.run_id, 1)}"
    assert max(calls.index(f"put {key}") for key in held) < len(calls) - 1 - calls[::-1].index(written)

    receipt = driven(cloud, record)
    assert receipt["state"] == "done" and not tokens(cloud)
    assert [(one["node"], one["state"]) for one in receipt["nodes"]] == [
        (0, "done"),
        (1, "done"),
        (2, "done"),
    ]
    assert all(one["proof"] for one in receipt["instances"])
    assert len(receipt["models"]) == 2  # each there once, whoever made it
    assert token_in_nothing_else(cloud, next(iter(held.values())))


def token_in_nothing_else(cloud: Any, token: bytes) -> bool:
    bodies = (item.body for items in cloud.objects.stored.values() for item in items)
    return not any(token in body for body in bodies)


def test_one_node_has_no_token_and_no_addresses(make_cloud: Make) -> None:
    cloud, record = make_cloud()
    receipt = driven(cloud, record)
    assert receipt["nodes"] == [] and not any("tokens/" in call for call in cloud.calls)
    assert b"addresses" not in cloud.objects.body(start_key(record.run_id, 1))


@pytest.mark.parametrize("kill_at", range(1, 40, 2))
def test_a_driver_killed_anywhere_gives_and_takes_back_one_token(
    make_cloud: Make, killed: type[BaseException], kill_at: int
) -> None:
    cloud, record = make_cloud(num_nodes=3)
    cloud.kill_at = kill_at
    try:
        driven(cloud, record)
    except killed:
        cloud.kill_at = None
        assert len(set(tokens(cloud).values())) <= 1
        driven(cloud, record)
    assert not tokens(cloud) and not cloud.alive()
    receipt = receipt_from_json(cloud.objects.body(receipt_key(record.run_id)), record.run_id)
    assert receipt["state"] == "done" and len(receipt["nodes"]) == 3


@pytest.mark.parametrize("reason", [SPOT, ""])
def test_nodes_that_share_pieces_go_on_without_one(make_cloud: Make, reason: str) -> None:
    cloud, record = make_cloud(num_nodes=3)
    said: list[Any] = []
    lose = losing(cloud, "i-0001", 20, reason)

    def on_event(progress: Any) -> None:
        lose(progress)
        said.append(progress)

    receipt = driven(cloud, record, on_event=on_event)
    assert receipt["state"] == "done" and len(receipt["attempts"]) == 1 and len(receipt["models"]) == 2
    states = [one["state"] for one in receipt["nodes"]]
    assert states == ["done", "lost", "done"]
    why = SPOT if reason else "its last heartbeat came at"
    assert why in receipt["nodes"][1]["error"]["why"]
    lines = {node.line for progress in said for node in progress.nodes if node.line}
    assert len(lines) == 1 and next(iter(lines)).startswith("node 1 is lost: ")
    assert all(one["proof"] for one in receipt["instances"]) and not cloud.alive()
    assert "node 1 is lost" in events_of(cloud, record)


def events_of(cloud: Any, record: RunRecord) -> str:
    record, _ = read_record(cloud.objects, record.run_id)
    events = timeline(record, reports(cloud, record))
    return "\n".join(f"{event.by}: {event.what} ({event.why})" for event in events)


@pytest.mark.parametrize(("lost", "one_model"), [("i-0000", False), ("i-0002", True)])
def test_a_loss_that_all_miss_begins_the_next_attempt(make_cloud: Make, lost: str, one_model: bool) -> None:
    cloud, record = make_cloud(num_nodes=3, one_model=one_model)
    held: dict[str, bytes] = {}
    lose = losing(cloud, lost, 20)

    def on_event(progress: Any) -> None:
        if progress.attempt == 1:
            lose(progress)
        held.update(tokens(cloud))

    receipt = driven(cloud, record, on_event=on_event)
    assert receipt["state"] == "done" and len(receipt["attempts"]) == 2
    number = int(lost[-1])
    assert receipt["attempts"][0]["error"]["what"].startswith(f"node {number}: ")
    assert receipt["attempts"][0]["instances"] == ["i-0000", "i-0001", "i-0002"]
    assert receipt["attempts"][1]["instances"] == ["i-0003", "i-0004", "i-0005"]
    assert start_of(cloud, record, 2).addresses == ("127.1.0.4", "127.1.0.5", "127.1.0.6")
    by_attempt = {number: {held[key] for key in held if key.endswith(f"/{number}")} for number in (1, 2)}
    assert all(len(values) == 1 for values in by_attempt.values()) and by_attempt[1] != by_attempt[2]
    assert not tokens(cloud)
    assert f"node {number}: phase train" in events_of(cloud, record)


def test_a_machine_that_dies_is_known_within_a_minute(make_cloud: Make) -> None:
    """No event of EC2 says so: the instance runs on, and its node says nothing."""
    cloud, record = make_cloud(num_nodes=3, one_model=True)
    lose, instants = losing(cloud, "i-0001", 20, ""), dict[str, Any]()

    def on_event(progress: Any) -> None:
        if progress.attempt == 1:
            lose(progress)
        if cloud.silent:
            instants.setdefault("silent", cloud.clock)
        if progress.state == "recovering":
            instants.setdefault("known", cloud.clock)
            cloud.silent.clear()

    receipt = driven(cloud, record, pause=1.0, on_event=on_event)  # five seconds by this cloud's clock
    assert receipt["state"] == "done"
    assert timedelta(0) < instants["known"] - instants["silent"] <= timedelta(seconds=60)


def test_status_watch_and_receipt_tell_of_each_node(make_cloud: Make, capsys: Any) -> None:
    cloud, record = make_cloud(num_nodes=3)
    start(cloud, record.run_id, poll_seconds=5.0, sleep=cloud.sleep)
    cloud.sleep(60)
    cloud.end("i-0002", SPOT)
    for _ in range(3):
        look = step(cloud, record.run_id)
    progress = progress_of(look, cloud.now())
    shown = _of_progress(progress, cloud.now())
    assert [one["state"] for one in shown["nodes"]] == ["", "", "lost"]
    assert json.loads(json.dumps(shown["nodes"])) == shown["nodes"]
    text = drawn(_detail(shown))
    assert "2 at work, 1 lost" in text and "node 2 is lost: instance i-0002" in text
    watch = Watch(Console(), None)
    for _ in range(2):
        watch.on_event(progress)
    assert capsys.readouterr().err.count("node 2 is lost") == 1
    view = drawn(receipt_view(driven(cloud, record), 30))
    assert "i-0002" in view and "lost: instance i-0002 was ended from outside" in " ".join(view.split())


def test_a_log_of_several_nodes_names_each(make_cloud: Make) -> None:
    cloud, record = make_cloud(num_nodes=2)
    record = start(cloud, record.run_id, poll_seconds=5.0, sleep=cloud.sleep)
    for number, keys in enumerate(record.nodes):
        cloud.objects.write(f"{keys.log}000001.log", f"first of {number}\nsecond\n".encode())
    reader = LogReader(cloud, record.run_id)
    assert reader.read_new() == "node 0 | first of 0\nnode 0 | second\nnode 1 | first of 1\nnode 1 | second\n"
    cloud.objects.write(f"{record.nodes[1].log}000002.log", b"third\n")
    assert reader.read_new() == "node 1 | third\n"
