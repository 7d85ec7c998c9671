"""A node among several: it waits until it knows the others, and tells its command of them and of no secret."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.jobs import job_of
from tests.nodes import bundle, listed, node, start, started_by
from trainer.base.cluster import Cluster, read_cluster
from trainer.base.errors import TrainingFailed
from trainer.base.instants import utc_now
from trainer.cluster.waiting import OwnPieces
from trainer.launch.inputs import ChosenCandles
from trainer.launch.tasks import training_task
from trainer.node import command, stage
from trainer.node.shared import COMMAND, Node
from trainer.node.start import await_own_id, read_start_file, write_down_nodes
from trainer.runs.store import start_key

__all__ = ["bundle", "node", "start"]  # fixtures
KEY, TOKEN = start_key("r", 1), "0a" * 32
IDS, ADDRESSES = ("i-0", "i-1"), ("10.0.0.4", "10.0.0.9")


@pytest.fixture
def second(node: Node) -> Node:
    """The second of two nodes, whose caller has named both."""
    node.uplink.s3.objects[KEY] = started_by("r", *IDS, addresses=ADDRESSES)
    node.uplink.s3.objects[node.status.identity.keys.token] = TOKEN.encode()
    return node


def test_nodes_wait_for_each_others_addresses(second: Node) -> None:
    second.status.identity = replace(second.status.identity, boot_seconds=900)
    second.status.enter("boot", utc_now())
    whole = second.uplink.s3.objects[KEY]
    for early in (started_by("r"), started_by("r", *IDS)):
        second.uplink.s3.objects[KEY] = early
        paused = []

        def pause(seconds: float, paused: list[float] = paused) -> None:
            paused.append(seconds)
            second.uplink.s3.objects[KEY] = whole

        read = await_own_id(second, read_start_file(second), nodes=2, pause=pause)
        assert read.addresses == ADDRESSES and len(paused) == 1


def test_without_addresses_a_node_ends_with_its_boot(second: Node) -> None:
    second.uplink.s3.objects[KEY] = started_by("r", *IDS)
    second.status.identity = replace(second.status.identity, boot_seconds=60)
    second.status.enter("boot", utc_now() - timedelta(seconds=61))
    with pytest.raises(TrainingFailed, match="names the addresses of 0 of 2 nodes"):
        await_own_id(second, read_start_file(second), nodes=2, pause=lambda _: None)


def test_the_nodes_and_their_token_are_written_down(second: Node, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        write_down_nodes(second, read_start_file(second))
    assert read_cluster(second.cluster_file) == Cluster(node=1, addresses=ADDRESSES)
    assert second.token_file.read_text() == TOKEN
    assert second.token_file.stat().st_mode & 0o777 == 0o600
    assert "node 1 of 10.0.0.4, 10.0.0.9" in caplog.text
    assert TOKEN not in caplog.text and TOKEN not in repr(second)


@pytest.mark.parametrize("body", [b"", b"0a" * 31, b"0A" * 32, b"0a" * 32 + b"\n", None])
def test_a_node_without_a_sound_token_ends(
    second: Node, body: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "PAUSES", (0.0,))
    key = second.status.identity.keys.token
    del second.uplink.s3.objects[key]
    if body is not None:
        second.uplink.s3.objects[key] = body
    with pytest.raises(Exception, match="the nodes' token can't be read"):
        write_down_nodes(second, read_start_file(second))
    assert not second.token_file.exists() and not second.cluster_file.exists()


def test_a_script_knows_the_nodes_and_no_token(
    second: Node, start: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "nodes_of", lambda _: 2)
    text = 'env > "$MAYFLY_OUT/env"; echo "$(cat ../../cluster-token)" > "$MAYFLY_OUT/guess"'
    start(text)
    out = second.work / COMMAND / "out"
    told = dict(line.partition("=")[::2] for line in (out / "env").read_text().splitlines())
    mine = {name: told[f"MAYFLY_{name}"] for name in ("NODE", "NODES", "ADDRESSES")}
    assert mine == {"NODE": "1", "NODES": "2", "ADDRESSES": "10.0.0.4,10.0.0.9"}
    assert not any(TOKEN in value or name.startswith("RAY_") for name, value in told.items())


def test_a_node_leaves_the_queue_after_its_last_checkpoints(
    second: Node, start: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else another node goes on from an older one: it looks for the newest as soon as this one has left."""
    sent: list[bool] = []

    class Queue:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def __enter__(self) -> None:
            pass

        def __exit__(self, *_: object) -> None:
            key = second.status.identity.keys.snapshot(1)
            sent.append(b"n=1/state" in second.uplink.s3.objects.get(key, b""))  # type: ignore[attr-defined]

    monkeypatch.setattr(command, "nodes_of", lambda _: 2)
    monkeypatch.setattr(command, "install_ray", lambda _: None)
    monkeypatch.setattr(command, "SharedQueue", Queue)
    monkeypatch.setattr(command, "SharedPieces", lambda *_, **__: OwnPieces())
    start("echo 1 > $MAYFLY_CHECKPOINTS/state", over={"n": [1]})
    assert sent == [True]


def test_one_node_has_no_file_and_no_variable(node: Node, start: Callable[..., None]) -> None:
    start('env > "$MAYFLY_OUT/env"')
    assert "MAYFLY_NODE" not in listed(node)["env"] and "MAYFLY_ADDRESSES" not in listed(node)["env"]
    assert not node.cluster_file.exists() and not node.token_file.exists()
    assert not [key for key in node.uplink.s3.objects if key.startswith("tokens/")]


@pytest.mark.parametrize("nodes", [0, 65, "2", None])
def test_a_manifest_with_another_number_of_nodes_is_refused(nodes: Any) -> None:
    manifest: Any = type("M", (), {"job": {"machine": {"nodes": nodes}}})
    with pytest.raises(TrainingFailed, match="a run can't have"):
        command.nodes_of(manifest)
    assert command.nodes_of(type("M", (), {"job": {}})) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize(("root", "admitted"), [(True, [ADDRESSES]), (False, [])])
def test_a_machine_of_its_own_admits_the_nodes_alone(
    second: Node,
    start: Callable[..., None],
    root: bool,
    admitted: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not in a rehearsal, whose machine is the desk's."""
    made: list[Any] = []
    monkeypatch.setattr(command, "nodes_of", lambda _: 2)
    monkeypatch.setattr(command, "admit_only", made.append)
    monkeypatch.setattr(command, "make_own_user", lambda **_: None)
    monkeypatch.setattr(command.os, "geteuid", lambda: 0 if root else 1000)
    start("true")
    assert made == []
    second.place, second.work = replace(second.place, own_user=True), second.work.with_name("again")
    second.work.mkdir()
    start("true")
    assert made == admitted


def test_the_trainer_is_told_of_the_others_by_their_file(second: Node) -> None:
    for nodes, told in ((2, [str(second.cluster_file)]), (1, [])):
        record: Any = SimpleNamespace(run_id="r", ladder=(), place="rehearsal", num_nodes=nodes)
        candles = ChosenCandles(timeframe="1m", bars={}, synthetic=True)
        task = training_task(record, job_of(), candles, cast(Any, None))
        variables = dict.fromkeys(("PYTHON", "GIVEN", "EVENTS", "DEVICE"), "x")
        variables |= dict.fromkeys(("MAYFLY_DATA", "MAYFLY_OUT", "MAYFLY_CHECKPOINTS", "MAYFLY_DEVICES"), "x")
        words = command.words_of(task.command, {**variables, "CLUSTER": str(second.cluster_file)})
        assert words[words.index("--cluster") + 1 :][:1] == told if told else "--cluster" not in words
