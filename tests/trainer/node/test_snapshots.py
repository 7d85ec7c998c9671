"""CHECKPOINTS on their way to S3, without a machine: the bucket is a dictionary, and time is passed in."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.nodes import NOW, node, reported
from trainer.base.errors import ConnectionFailed, TrainingFailed
from trainer.node import checkpoint_folder as folder_module
from trainer.node import snapshots as module
from trainer.node import uplink
from trainer.node.other_nodes import newest_number
from trainer.node.report import progress
from trainer.node.shared import Node
from trainer.node.snapshots import MOST_LAG_SECONDS, Snapshots, seconds_between
from trainer.runs.lease import Lease
from trainer.runs.reports import heartbeat, sent_by
from trainer.runs.snapshots import SMALL_BYTES, Snapshot, read_snapshot, snapshot_numbers

__all__ = ["node"]  # a fixture
LEASE = Lease(instance_id="i-1", at=NOW, lease_until=NOW)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "checkpoints").mkdir()
    return tmp_path / "checkpoints"


def newest(node: Node) -> Snapshot:
    """Return the newest snapshot in S3, as a later attempt's caller reads it."""
    keys, objects = node.status.identity.keys, node.uplink.s3.objects
    below = [key.removeprefix(keys.checkpoints) for key in objects if key.startswith(keys.checkpoints)]
    number = snapshot_numbers(below)[0]
    named: dict[str, Any] = {"run_id": "r", "attempt": 1, "number": number}
    return read_snapshot(objects[keys.snapshot(number)], **named)


def held(node: Node) -> dict[str, bytes]:
    """Return the files of the newest snapshot: path -> content."""
    keys, objects = node.status.identity.keys, node.uplink.s3.objects
    slots = {one.sha256: one.slot for one in newest(node).objects}
    return {
        file.path: objects[keys.snapshot_data(slots[file.object])][file.offset : file.offset + file.size]
        for file in newest(node).files
    }


def put(folder: Path, **files: bytes) -> None:
    for name, content in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def test_many_small_files_are_a_few_requests(node: Node, folder: Path) -> None:
    for number in range(2_000):
        put(folder, **{f"m{number % 50}__{number}": b"%d" % number})
    snapshots = Snapshots(node, folder)
    assert snapshots.take()
    assert len(node.uplink.s3.puts) == 2 and len(held(node)) == 2_000
    assert held(node)["m7/1207"] == b"1207"
    assert node.uplink.s3.puts[-1].endswith("/000001.json"), "its manifest comes last"


def test_unchanged_content_is_not_sent_twice(node: Node, folder: Path) -> None:
    put(folder, a=b"one", b__large=b"x" * (SMALL_BYTES + 1), c=b"one")
    snapshots = Snapshots(node, folder)
    assert snapshots.take() and snapshots.take()
    puts = node.uplink.s3.puts
    assert len(puts) == 3, "two objects and a manifest, and nothing new since"
    put(folder, d=b"two")
    (folder / "a").rename(folder / "e")
    assert snapshots.take() and len(puts) == 5
    assert held(node) == {"b/large": b"x" * (SMALL_BYTES + 1), "c": b"one", "d": b"two", "e": b"one"}
    assert newest(node).number == 2 and snapshots.counts["objects"] == 3


def test_a_new_object_replaces_one_that_no_snapshot_needs(node: Node, folder: Path) -> None:
    """No node may delete: what is replaced is an old version, which the bucket's lifecycle ends."""
    snapshots, objects = Snapshots(node, folder), node.uplink.s3.objects
    put(folder, kept=b"k" * (SMALL_BYTES + 1))
    for step in range(6):
        put(folder, large=b"%d" % step * (SMALL_BYTES + 1), small=b"%d" % step)
        before = newest(node).objects if step else ()
        bodies = {one.slot: objects[node.status.identity.keys.snapshot_data(one.slot)] for one in before}
        puts = len(node.uplink.s3.puts)
        assert snapshots.take()
        assert held(node)["large"][:1] == held(node)["small"] == b"%d" % step
        sent = node.uplink.s3.puts[puts:-1]
        assert not {node.status.identity.keys.snapshot_data(slot) for slot in bodies} & set(sent)
    assert len([key for key in objects if "/data/" in key]) == 5, "of two states, and one that never changed"


def test_links_pipes_and_secrets_stay_behind(node: Node, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "node.log").write_text("the agent's")
    put(folder, kept=b"1", **{".metadata": b"2"})
    (folder / "link").symlink_to(tmp_path / "node.log")
    (folder / "folder").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe")
    assert Snapshots(node, folder).take()
    assert held(node) == {"kept": b"1", ".metadata": b"2"}


def test_a_checkpoint_counts_once_its_manifest_is_there(node: Node, folder: Path) -> None:
    snapshots = Snapshots(node, folder, whole_with="manifest.json")
    put(folder, m__10__manifest_json=b"")  # no manifest
    put(folder, m__10__data=b"ten", m__20__data=b"twenty")
    (folder / "m/10/manifest.json").write_text("{}")
    assert snapshots.take()
    assert set(held(node)) == {"m/10/data", "m/10/manifest.json", "m/10/manifest_json"}
    (folder / "m/20/manifest.json").write_text("{}")
    for path in (folder / "m/10").iterdir():
        path.unlink()
    assert snapshots.take()
    assert set(held(node)) == {"m/20/data", "m/20/manifest.json"}


def test_a_models_last_checkpoint_stays_in_s3(node: Node, folder: Path) -> None:
    snapshots = Snapshots(node, folder, whole_with="manifest")
    put(folder, a__10__data=b"ten", a__10__manifest=b"{}", b__10__manifest=b"{}")
    assert snapshots.take()
    for name in ("data", "manifest"):  # its model is written
        (folder / "a/10" / name).unlink()
    put(folder, b__20__manifest=b"{2}")
    (folder / "b/10/manifest").unlink()
    assert snapshots.take()
    assert set(held(node)) == {"a/10/data", "a/10/manifest", "b/20/manifest"}
    node.status.models.append({"key": "models/experiments/AROA:i-1/r/1/a.safetensors"})
    put(folder, b__30__manifest=b"{3}")
    assert snapshots.take()
    assert set(held(node)) == {"a/10/data", "a/10/manifest", "b/20/manifest", "b/30/manifest"}
    assert held(node)["a/10/data"] == b"ten", "a finished model's stays, too"


def test_what_was_sent_is_counted_in_the_result(node: Node, folder: Path) -> None:
    put(folder, a=b"x" * 1000)
    snapshots = Snapshots(node, folder)
    assert snapshots.take()
    assert reported(node).checkpoints == snapshots.counts == {"snapshots": 1, "objects": 1, "bytes": 1000}
    beat = heartbeat(LEASE, progress(node.status))
    assert beat.durable["number"] == 1 and 0 <= beat.durable["lag_seconds"] < 60
    assert sent_by(progress(node.status)) == snapshots.counts and sent_by(b"{") == {}


def test_a_file_that_changes_while_it_is_read_is_read_again(
    node: Node, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(folder, a=b"first", b=b"same")
    reads, sha256_of = [0], folder_module.sha256_of

    def changing(body: Any) -> tuple[str, int]:
        reads[0] += 1
        if reads[0] == 1:
            put(folder, a=b"second")
        return sha256_of(body)

    monkeypatch.setattr(folder_module, "sha256_of", changing)
    assert Snapshots(node, folder).take()
    assert held(node) == {"a": b"second", "b": b"same"}


def test_a_piece_that_never_stands_still_stays_as_it_was(
    node: Node, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(folder, x__a=b"0", y__a=b"0")
    snapshots = Snapshots(node, folder, folders=["x", "y"])
    assert snapshots.take()
    put(folder, y__a=b"1")
    reads, sha256_of = [0], folder_module.sha256_of

    def changing(body: Any) -> tuple[str, int]:
        reads[0] += 1
        put(folder, x__a=b"%d" % reads[0])
        return sha256_of(body)

    put(folder, x__a=b"new")
    monkeypatch.setattr(folder_module, "sha256_of", changing)
    assert snapshots.take()
    assert held(node) == {"x/a": b"0", "y/a": b"1"}


def test_a_checkpoint_that_vanishes_leaves_a_newer_one(
    node: Node, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(folder, m__10__data=b"ten", m__10__manifest=b"{}")
    open_inside = module.open_inside

    def vanishing(inside: Path, path: str) -> Any:
        if path == "m/10/data" and (folder / path).exists():
            put(folder, m__20__data=b"twenty", m__20__manifest=b"{}")
            (folder / path).unlink()
            (folder / "m/10/manifest").unlink()
        return open_inside(inside, path)

    for reader in (module, folder_module):
        monkeypatch.setattr(reader, "open_inside", vanishing)
    assert Snapshots(node, folder, whole_with="manifest").take()
    assert held(node) == {"m/20/data": b"twenty", "m/20/manifest": b"{}"}


def test_no_manifest_names_content_that_s3_lacks(node: Node, folder: Path) -> None:
    put(folder, a=b"one")
    snapshots = Snapshots(node, folder)
    node.uplink.s3.refuses = True
    assert not snapshots.take()
    assert snapshots.durable() is None and node.uplink.s3.puts == []
    node.uplink.s3.refuses = False
    assert snapshots.take() and held(node) == {"a": b"one"}


def test_a_file_that_is_what_others_are_together_is_sent(node: Node, folder: Path) -> None:
    """Such as shards that are joined: the small files of one look share an object, in the order of their names."""
    snapshots = Snapshots(node, folder)
    put(folder, shard1=b"first", shard2=b"second")
    assert snapshots.take()
    put(folder, whole=b"firstsecond")
    assert snapshots.take() and newest(node).number == 2
    assert held(node) == {"shard1": b"first", "shard2": b"second", "whole": b"firstsecond"}


def test_a_manifest_is_created_once_and_a_try_has_its_own_number(node: Node, folder: Path) -> None:
    keys = node.status.identity.keys
    put(folder, a=b"one")
    node.uplink.s3.objects[keys.snapshot(1)] = b"the first"
    snapshots = Snapshots(node, folder)
    assert snapshots.take(), "the answer to an earlier try of this call was lost"
    assert node.uplink.s3.objects[keys.snapshot(1)] == b"the first"
    put(folder, b=b"two")
    assert snapshots.take() and newest(node).number == 2


def test_a_manifest_that_s3_did_not_take_leaves_no_gap(
    node: Node, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another node may list no keys: it takes the number before the first that is missing for the newest."""
    create, fails = node.uplink.create, [True, True]

    def refusing(body: bytes, key: str) -> None:
        if fails and fails.pop():
            raise ClientError({"Error": {"Code": "SlowDown"}}, "PutObject")
        create(body, key)

    monkeypatch.setattr(node.uplink, "create", refusing)
    snapshots = Snapshots(node, folder)
    for content in (b"one", b"two"):
        put(folder, a=content)
        assert not snapshots.take()
    put(folder, a=b"three")
    assert snapshots.take() and held(node) == {"a": b"three"}
    keys = node.status.identity.keys
    assert newest_number(lambda one: keys.snapshot(one) in node.uplink.s3.objects) == newest(node).number
    assert (node.status.durable() or {})["number"] == newest(node).number


def test_the_lag_is_in_the_progress_and_ends_the_run(node: Node, folder: Path) -> None:
    now = [0.0]
    snapshots = Snapshots(node, folder, clock=lambda: now[0])
    assert b'"durable": null' in progress(node.status)
    put(folder, a=b"one")
    assert snapshots.take()
    assert (node.status.durable() or {})["number"] == 1 and b'"lag_seconds": ' in progress(node.status)
    put(folder, b=b"two")
    node.uplink.s3.refuses = True
    snapshots.take()
    assert snapshots.look_seconds == module.AGAIN_SECONDS
    now[0] += MOST_LAG_SECONDS - 1
    snapshots.take()
    snapshots.check_lag()
    assert not node.is_stopping()
    now[0] += 1
    snapshots.check_lag()
    assert node.is_stopping() and isinstance(node.failure, ConnectionFailed)
    assert "no checkpoint reached S3 for 15 minutes" in str(node.failure) and "SlowDown" in str(node.failure)


def test_dear_checkpoints_may_lag_for_two_looks(node: Node, folder: Path) -> None:
    now = [0.0]
    snapshots = Snapshots(node, folder, usd_per_hour=1e-5, clock=lambda: now[0])
    put(folder, a=b"one")
    assert snapshots.take() and snapshots.look_seconds > MOST_LAG_SECONDS
    for now[0], ends in ((2 * snapshots.look_seconds - 1, False), (2 * snapshots.look_seconds, True)):
        snapshots.check_lag()
        assert node.is_stopping() == ends


def test_an_end_of_refusals_begins_the_bound_anew(node: Node, folder: Path) -> None:
    now = [0.0]
    snapshots = Snapshots(node, folder, clock=lambda: now[0])
    for refuses in (True, False, True):
        put(folder, a=b"%f" % now[0])
        node.uplink.s3.refuses = refuses
        snapshots.take()
        now[0] += MOST_LAG_SECONDS / 2 - 1
        snapshots.check_lag()
    assert not node.is_stopping()


def hang(node: Node, monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Have each PutObject wait; return what tells that one does, and what lets it go on."""
    hangs, goes_on = threading.Event(), threading.Event()
    put_object = node.uplink.s3.put_object

    def hanging(**called: Any) -> Any:
        hangs.set()
        assert goes_on.wait(60)
        return put_object(**called)

    monkeypatch.setattr(node.uplink.s3, "put_object", hanging)
    return hangs, goes_on


def test_a_save_that_hangs_ends_the_run(node: Node, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, (hangs, goes_on) = [0.0], hang(node, monkeypatch)
    monkeypatch.setattr(module, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    put(folder, a=b"one")
    with Snapshots(node, folder, clock=lambda: now[0]) as snapshots:
        assert hangs.wait(60)
        snapshots.check_lag()
        assert not node.is_stopping()
        now[0] = MOST_LAG_SECONDS
        snapshots.check_lag()
        assert isinstance(node.failure, ConnectionFailed) and node.failure.exit_code == 103
        assert "15 minutes (a state is still being read and sent)" in str(node.failure)
        goes_on.set()
    assert held(node) == {"a": b"one"}, "it still arrives, if it can"


def test_a_save_that_hangs_to_the_end_is_told_of(
    node: Node, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hangs, goes_on = hang(node, monkeypatch)
    monkeypatch.setattr(Node, "patience_seconds", 0.0)
    monkeypatch.setattr(module, "LEAST_SECONDS", 0.0)
    put(folder, a=b"1")
    with Snapshots(node, folder):
        assert hangs.wait(60)
    goes_on.set()
    assert "the last checkpoints are not in S3" in caplog.text


def test_a_state_that_never_stands_still_ends_the_run(
    node: Node, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, reads, sha256_of = [0.0], [0], folder_module.sha256_of
    snapshots = Snapshots(node, folder, clock=lambda: now[0])
    put(folder, a=b"0")
    assert snapshots.take()

    def changing(body: Any) -> tuple[str, int]:
        reads[0] += 1
        put(folder, a=b"%d" % reads[0])
        return sha256_of(body)

    monkeypatch.setattr(folder_module, "sha256_of", changing)
    put(folder, a=b"1")
    for _ in range(2):
        assert snapshots.take() and held(node) == {"a": b"0"}
        snapshots.check_lag()
        assert node.is_stopping() == (now[0] > 0)
        now[0] += MOST_LAG_SECONDS
    assert isinstance(node.failure, TrainingFailed) and "changed each time" in str(node.failure)


def test_more_than_a_snapshot_holds_ends_the_run(
    node: Node, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(folder_module, "MOST_FILES", 2)
    snapshots = Snapshots(node, folder, folders=["x", "y"], clock=lambda: now[0])
    put(folder, x__a=b"0", y__a=b"0", y__b=b"0")
    assert snapshots.take() and held(node) == {"x/a": b"0"}
    now[0] = MOST_LAG_SECONDS
    snapshots.check_lag()
    assert "2 files of 2 bytes in y are too many" in str(node.failure)


def test_no_lag_counts_once_the_command_has_ended(node: Node, folder: Path) -> None:
    now = [0.0]
    snapshots = Snapshots(node, folder, clock=lambda: now[0])
    node.status.phase, now[0] = "upload", 2 * MOST_LAG_SECONDS
    snapshots.check_lag()
    assert not node.is_stopping()


def test_a_request_to_stop_outranks_s3(node: Node) -> None:
    node.stop("stop.json")
    node.fail(ConnectionFailed("no checkpoint reached S3"))
    assert node.failure is None and node.stop_reason == "stop.json"


def test_the_last_state_is_sent_at_the_end(node: Node, folder: Path) -> None:
    with Snapshots(node, folder):
        put(folder, a=b"last")
    assert held(node) == {"a": b"last"}


def test_a_folder_that_its_trainer_removed_is_an_empty_one(node: Node, folder: Path) -> None:
    put(folder, m__manifest=b"{}")
    snapshots = Snapshots(node, folder)
    assert snapshots.take() and len(held(node)) == 1
    (folder / "m" / "manifest").unlink()
    (folder / "m").rmdir()
    folder.rmdir()
    assert snapshots.take() and held(node) == {}


def test_the_interval_follows_save_time_losses_and_cost() -> None:
    known: dict[str, Any] = {"spot": True, "usd": 0.0, "usd_per_hour": 1.0}
    assert seconds_between(0.05, **known) == pytest.approx((2 * 0.05 * 36_000) ** 0.5)
    assert seconds_between(0.0, **known) == module.LEAST_SECONDS
    assert seconds_between(30.0, **known) == module.MOST_SECONDS == 120
    assert seconds_between(0.05, **{**known, "spot": False}) == 120, "it is seldom lost"
    assert seconds_between(0.0, **{**known, "usd": 0.0002}) == pytest.approx(72), "1 % of a dollar an hour"
    assert seconds_between(0.0, **{**known, "usd": 0.002}) == pytest.approx(720), "more than two minutes too"
    assert seconds_between(0.0, **{**known, "usd": 1.0, "usd_per_hour": None}) == module.LEAST_SECONDS


def test_a_trainer_is_told_how_often_to_write(
    node: Node, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the time that a snapshot takes, and by what all checkpoints of its models cost."""
    monkeypatch.setattr(uplink, "WHOLE_BYTES", 10**9)  # this bucket knows no parts
    now, told, put_object = [0.0], list[int](), node.uplink.s3.put_object
    node.status.identity = replace(node.status.identity, spot_zone="us-east-1a")

    def slow(**called: Any) -> Any:
        now[0] += 0.01
        return put_object(**called)

    node.uplink.s3.put_object = slow
    with_price: dict[str, Any] = {"whole_with": "manifest", "tell": told.append, "clock": lambda: now[0]}
    snapshots = Snapshots(node, folder, usd_per_hour=0.5, **with_price)
    put(folder, a__10__data=b"ten", a__10__manifest=b"{}")
    assert snapshots.take() and snapshots.take()
    assert told == [int((2 * 0.02 * 36_000) ** 0.5)] == [37], "once"
    assert snapshots.look_seconds == pytest.approx(snapshots.every_seconds / 4)
    for number, (size, seconds) in enumerate([(20_000_000, 50), (80_000_000, 130)], 2):
        put(folder, **{f"a__{number}0__data": b"%d" % number * size, f"a__{number}0__manifest": b"{}"})
        assert snapshots.take() and told[-1] == seconds, "1 % of 50 cents an hour"


@pytest.mark.parametrize(("whole_with", "seconds"), [("", 120), ("manifest", 96)])
def test_a_lost_machine_costs_two_minutes_at_most(
    node: Node, folder: Path, whole_with: str, seconds: float
) -> None:
    """Of a trainer's model a look, a quarter of the time between two checkpoints, comes after the newest."""
    now, put_object = [0.0], node.uplink.s3.put_object

    def slow(**called: Any) -> Any:
        now[0] += 30
        return put_object(**called)

    node.uplink.s3.put_object = slow
    snapshots = Snapshots(node, folder, whole_with=whole_with, clock=lambda: now[0])
    put(folder, a__10__data=b"ten", a__10__manifest=b"{}")
    assert snapshots.take() and snapshots.every_seconds == seconds
    assert seconds + (snapshots.look_seconds if whole_with else 0) == 120
