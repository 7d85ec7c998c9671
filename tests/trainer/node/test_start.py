"""The start of an attempt on its machine: its own id, earlier checkpoints, finished pieces."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.nodes import bundle, listed, node, reported, start, started_by
from tests.pieces import named
from trainer.aws.place import HERE
from trainer.base.errors import DataError, Stopped, TrainerError, TrainingFailed
from trainer.base.instants import utc_now
from trainer.node import stage
from trainer.node.shared import COMMAND, Node
from trainer.node.snapshots import Snapshots
from trainer.node.start import await_own_id, lay_out_checkpoints, read_start_file
from trainer.runs.snapshots import Snapshot, SnapshotFile, read_snapshot
from trainer.runs.start_file import CarriedObject, StartFile
from trainer.runs.store import carried_key, start_key

__all__ = ["bundle", "node", "start"]  # fixtures
Start = Callable[..., None]
KEY = start_key("r", 1)


def carry(node: Node, snapshot: Snapshot) -> dict[str, Any]:
    """Copy a snapshot's objects as the next attempt's caller does; return what its start file says of them."""
    keys, objects = node.status.identity.keys, node.uplink.s3.objects
    copied = []
    for one in snapshot.objects:
        key = carried_key("r", 1, one.sha256)
        objects[key] = objects[keys.snapshot_data(one.slot)]
        copied.append(CarriedObject(sha256=one.sha256, size=one.size, key=key, version_id="v1"))
    return {"objects": tuple(copied), "files": snapshot.files}


def begin_with(node: Node, **more: Any) -> None:
    node.uplink.s3.objects[KEY] = started_by("r", "i-1", **more)


def test_a_second_node_lays_out_what_the_first_sent(node: Node) -> None:
    there = node.work / "first"
    for path, content in {
        "m/10/data": b"x" * 9_000_000,
        "m/10/manifest.json": b"{}",
        "n/.metadata": b"",
    }.items():
        (there / path).parent.mkdir(parents=True, exist_ok=True)
        (there / path).write_bytes(content)
    first = Snapshots(node, there)
    assert first.take()
    keys, objects = node.status.identity.keys, node.uplink.s3.objects
    body = objects[keys.snapshot(1)]
    begin_with(node, **carry(node, read_snapshot(body, run_id="r", attempt=1, number=1)))
    # A zombie's later states change nothing.
    (there / "m/10/data").write_bytes(b"later")
    assert first.take() and keys.snapshot(2) in objects
    lay_out_checkpoints(node, read_start_file(node), node.work / "second")
    laid = node.work / "second"
    assert {path.relative_to(laid).as_posix() for path in laid.rglob("*") if path.is_file()} == {
        *("m/10/data", "m/10/manifest.json", "n/.metadata"),
    }
    assert (laid / "m/10/data").read_bytes() == b"x" * 9_000_000
    assert not (node.work / "resumed").exists()


def test_a_command_goes_on_from_its_checkpoints(node: Node, start: Start) -> None:
    content = b"step 7\nstep 8\n"
    sha256, part = hashlib.sha256(content).hexdigest(), hashlib.sha256(content[7:]).hexdigest()
    key = carried_key("r", 1, sha256)
    node.uplink.s3.objects[key] = content
    objects = (CarriedObject(sha256=sha256, size=14, key=key, version_id="v"),)
    files = (SnapshotFile(path="state", size=7, sha256=part, object=sha256, offset=7),)
    begin_with(node, objects=objects, files=files)
    start('cp "$MAYFLY_CHECKPOINTS/state" "$MAYFLY_OUT/"; echo step 9 > "$MAYFLY_CHECKPOINTS/state"')
    assert listed(node) == {"state": "step 8\n"}
    keys, stored = node.status.identity.keys, node.uplink.s3.objects
    sent = read_snapshot(stored[keys.snapshot(1)], run_id="r", attempt=1, number=1)
    assert [file.path for file in sent.files] == ["state"]
    assert stored[keys.snapshot_data(sent.objects[0].slot)] == b"step 9\n"
    assert json.loads((node.work / COMMAND / "given/finished.json").read_text()) == []


def test_a_finished_value_is_not_started_again(node: Node, start: Start) -> None:
    done = {**named("lr=1"), "values": {"lr": "1"}, "sha256": "", "done": True, "exit_code": 0, "starts": 1}
    done |= {"best": {}, "seconds": 3.0, "last_lines": [], "notes": []}
    begin_with(node, finished=(done,))
    start('echo "$MAYFLY_LR" > "$MAYFLY_OUT/made"', over={"lr": [1, 2]})
    assert list(listed(node)) == ["lr=2/made"]
    assert [entry["piece"] for entry in node.status.scripts] == ["lr=2"]
    assert json.loads((node.work / COMMAND / "given/finished.json").read_text()) == ["lr=1"]


def test_what_failed_on_a_lost_machine_is_not_begun_again(node: Node, start: Start) -> None:
    begin_with(node, failed=({**named("lr=1"), "reason": "loss is NaN"},))
    with pytest.raises(TrainingFailed, match="1 of 2 values failed .lr=1: loss is NaN"):
        start('echo "$MAYFLY_LR" > "$MAYFLY_OUT/made"', over={"lr": [1, 2]})
    assert list(listed(node)) == ["lr=2/made"]
    assert json.loads((node.work / COMMAND / "given/finished.json").read_text()) == ["lr=1"]
    assert [(one["piece"], one["reason"]) for one in reported(node).failed] == [("lr=1", "loss is NaN")]


def test_a_checkpoint_with_other_bytes_is_refused(node: Node) -> None:
    sha256, key = hashlib.sha256(b"ab").hexdigest(), carried_key("r", 1, hashlib.sha256(b"ab").hexdigest())
    objects = (CarriedObject(sha256=sha256, size=2, key=key, version_id="v"),)
    begin_with(
        node, objects=objects, files=(SnapshotFile(path="a", size=1, sha256=sha256, object=sha256, offset=0),)
    )
    node.uplink.s3.objects[key] = b"ab"
    with pytest.raises(DataError, match="the checkpoint a can't be used"):
        lay_out_checkpoints(node, read_start_file(node), node.work / "c")
    node.uplink.s3.objects[key] = b"xx"
    with pytest.raises(DataError, match="its sha256 is"):
        lay_out_checkpoints(node, read_start_file(node), node.work / "d")


def test_a_node_waits_until_its_caller_counts_on_it(node: Node) -> None:
    node.status.identity = replace(node.status.identity, boot_seconds=900)
    node.status.enter("boot", utc_now())
    node.uplink.s3.objects[KEY] = started_by("r")
    finished = {**named("A"), "family": "lstm", "target": "direction", "version_id": "v", "sha256": "ab" * 32}
    finished |= {"key": "models/experiments/AROA:i-0/r/1/lstm-direction_A_1m.safetensors", "metrics": {}}
    paused = []

    def pause(seconds: float) -> None:
        paused.append(seconds)
        begin_with(node, finished=(finished,))

    assert await_own_id(node, read_start_file(node), pause=pause).pieces == ("A",)
    assert len(paused) == 1


def test_a_node_that_nobody_counts_on_ends_with_its_boot(node: Node) -> None:
    node.uplink.s3.objects[KEY] = started_by("r", "i-2")
    node.status.identity = replace(node.status.identity, boot_seconds=60)
    node.status.enter("boot", utc_now() - timedelta(seconds=61))
    with pytest.raises(
        TrainingFailed, match=r"does not count on this machine \(its start file names i-2, not i-1"
    ):
        await_own_id(node, read_start_file(node), pause=lambda _: None)
    node.status.enter("boot", utc_now())
    node.stop("stop.json")
    with pytest.raises(Stopped):
        await_own_id(node, StartFile(run_id="r", attempt=1), pause=lambda _: None)


def test_a_node_named_while_it_staged_for_long_begins(node: Node) -> None:
    """Its caller was late with the file, and its inputs took longer than a boot may."""
    node.status.identity = replace(node.status.identity, boot_seconds=60)
    node.status.enter("boot", utc_now() - timedelta(hours=1))
    node.uplink.s3.objects[KEY] = started_by("r")
    early = read_start_file(node)
    begin_with(node)
    assert await_own_id(node, early, pause=lambda _: None).instances == ("i-1",)


@pytest.mark.parametrize("body", [b"", b"{}", started_by("other", "i-1"), started_by("r", "i-1", attempt=2)])
def test_another_start_file_is_refused(node: Node, body: bytes) -> None:
    node.uplink.s3.objects[KEY] = body
    with pytest.raises(TrainingFailed, match="the start file can't be read"):
        read_start_file(node)


def test_a_missing_start_file_ends_the_node(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "PAUSES", (0.0,))
    del node.uplink.s3.objects[KEY]
    with pytest.raises(TrainerError, match="the start file can't be read") as raised:
        read_start_file(node)
    assert isinstance(raised.value.__cause__, ClientError)


def test_a_machine_of_the_callers_own_has_none(node: Node) -> None:
    node.place = HERE
    del node.uplink.s3.objects[KEY]
    assert await_own_id(node, read_start_file(node)).finished == ()
