"""What a command leaves in OUT: the bucket is a dictionary, and time is passed in."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ConnectTimeoutError

from tests.manifests import command
from tests.nodes import bundle, listed, node, reported, start, stop_when
from trainer.base.errors import TrainingFailed
from trainer.base.strict_json import read_object
from trainer.job.script_values import MOST_COMBINATIONS
from trainer.node.outputs import LIST_BYTES_PER_SECOND, SCAN_SECONDS, UNCHANGED_SECONDS, Outputs
from trainer.node.shared import Node
from trainer.runs.reports import (
    LAST_LINES,
    MOST_LINE,
    MOST_NOTES,
    MOST_OUTPUTS_BYTES,
    read_scripts,
)

__all__ = ["bundle", "node", "start", "stop_when"]  # fixtures


@pytest.fixture
def outputs(node: Node, tmp_path: Path) -> Outputs:
    (tmp_path / "out").mkdir()
    clock = [0.0]
    made = Outputs(
        folder=tmp_path / "out", node=node, command=command(out_bytes=1000), clock=lambda: clock[0]
    )
    made.pass_time = lambda seconds: clock.__setitem__(0, clock[0] + seconds)  # type: ignore[attr-defined]
    return made


def test_a_file_goes_up_once_it_is_unchanged_for_30_seconds(node, outputs):
    (outputs.folder / "a").mkdir()
    (outputs.folder / "a" / "m.pt").write_text("one")
    outputs.scan()
    outputs.pass_time(UNCHANGED_SECONDS - 1)
    outputs.scan()
    assert listed(node) == {}
    outputs.pass_time(1)
    outputs.scan()
    outputs.scan()
    assert listed(node) == {"a/m.pt": "one"} and len(node.uplink.s3.puts) == 1
    (outputs.folder / "a" / "m.pt").write_text("second")
    (outputs.folder / "same").write_text("one")
    outputs.scan()
    assert listed(node) == {"a/m.pt": "one"}, "it has just changed"
    outputs.finish()
    assert listed(node) == {"a/m.pt": "second", "same": "one"} and len(node.uplink.s3.puts) == 2
    assert outputs.notes() == []
    (outputs.folder / "same").unlink()
    outputs.finish()
    assert listed(node) == {"a/m.pt": "second"}


def test_a_long_list_is_sent_less_often_and_whole_at_the_end(node, outputs, monkeypatch):
    """Each state of it stays in the bucket: 20,000 trials would be 80 GB of them."""
    sent, send = list[bytes](), node.uplink.try_send

    def noted(key: str, body: bytes) -> bool:
        sent.append(body)
        return send(key, body)

    monkeypatch.setattr(node.uplink, "try_send", noted)
    for number in range(1, 401):
        outputs.trial_done({"piece": f"A t{number}", "notes": ["x" * 4_000]})
        outputs.pass_time(SCAN_SECONDS)
        outputs.scan()
    assert [len(json.loads(body)["scripts"]) for body in sent[:3]] == [1, 2, 3]
    seconds, last = 400 * SCAN_SECONDS, len(sent[-1])
    assert sum(map(len, sent)) < LIST_BYTES_PER_SECOND * seconds + last
    outputs.finish()
    assert len(json.loads(sent[-1])["scripts"]) == 400


def test_unfit_names_links_and_large_files_are_refused(node, outputs, tmp_path):
    secret = tmp_path / "node.log"
    secret.write_text("the agent's")
    out = outputs.folder
    for name in (".bashrc", "\x1b[2J", "kept"):
        (out / name).write_text(name)
    (out / ".ssh").mkdir()
    (out / ".ssh" / "authorized_keys").write_text("x")
    (out / "link").symlink_to(secret)
    (out / "folder").symlink_to(tmp_path)
    (out / "zzz").write_bytes(b"x" * 1000)
    os.mkfifo(out / "pipe")
    outputs.finish()
    assert listed(node) == {"kept": "kept"}
    told = {note.partition(" was not uploaded: ")[0]: note for note in outputs.notes()}
    assert set(told) == {".bashrc", "\x1b[2J", ".ssh/", "link", "folder", "zzz", "pipe"}
    assert "begins with a dot" in told[".bashrc"]
    assert "is a link" in told["link"]
    assert "is a link" in told["folder"]
    assert "(script.out_gib)" in told["zzz"] and "not a plain file" in told["pipe"]
    assert not any(b"the agent's" in body for body in node.uplink.s3.objects.values())


def test_a_state_of_the_same_size_and_time_is_another(node, outputs):
    file, passing = outputs.folder / "m.pt", outputs.folder / "m.pt.tmp"
    file.write_text("one")
    passing.write_text("x")
    outputs.finish()
    at = file.stat().st_mtime_ns
    file.write_text("two")
    os.utime(file, ns=(at, at))  # as cp -p and rsync -t leave it
    passing.write_text("longer")
    outputs.scan()
    passing.unlink()
    outputs.finish()
    assert listed(node) == {"m.pt": "two"} and outputs.notes() == []


def test_a_file_may_become_a_folder_and_a_folder_a_file(node, outputs):
    out = outputs.folder
    (out / "a").write_text("file")
    (out / "b").mkdir()
    (out / "b" / "m").write_text("below")
    outputs.scan()
    outputs.pass_time(UNCHANGED_SECONDS)
    outputs.scan()
    assert listed(node) == {"a": "file", "b/m": "below"}
    (out / "a").unlink()
    (out / "a").mkdir()
    (out / "a" / "m").write_text("below a")
    (out / "b" / "m").unlink()
    (out / "b").rmdir()
    (out / "b").write_text("file b")
    outputs.scan()
    assert listed(node) == {}, "neither is there any more"
    outputs.pass_time(UNCHANGED_SECONDS)
    outputs.scan()
    assert listed(node) == {"a/m": "below a", "b": "file b"}


def test_large_files_and_endless_folders_leave_the_rest_alone(node, outputs, monkeypatch):
    monkeypatch.setattr("trainer.node.outputs.MOST_LOOKED_AT", 30)
    (outputs.folder / "a-large").write_bytes(b"x" * 1001)
    (outputs.folder / "b").write_bytes(b"x")
    (outputs.folder / "c").mkdir()
    for number in range(100):
        (outputs.folder / "c" / f".{number}").touch()
        (outputs.folder / "c" / f"..{number}").mkdir()
    outputs.finish()
    assert listed(node) == {"b": "x"}
    assert "a-large was not uploaded: files above" in outputs.notes()[0]
    assert len(outputs.refused) <= 31 and any(
        "a run looks at 30 files and folders" in why for why in outputs.refused.values()
    )


def test_a_list_that_s3_did_not_take_is_sent_again(node, outputs, monkeypatch):
    monkeypatch.setattr("trainer.node.outputs.POLL_SECONDS", 0.0)
    node.uplink.fails = {1, 2}
    (outputs.folder / "m").write_text("m")
    outputs.finish()
    assert listed(node) == {"m": "m"} and node.uplink.tries == 3


def test_the_last_trial_of_a_training_is_listed_at_its_end(node, outputs, monkeypatch):
    """It leaves no file in OUT by itself: an attempt after this one would try it again."""
    monkeypatch.setattr("trainer.node.outputs.POLL_SECONDS", 0.0)
    node.uplink.fails = {1, 2}
    outputs.command = command(out_bytes=0)
    outputs.trial_done({"piece": "A t1"})
    outputs.finish()
    assert listed_ends(node) == [{"piece": "A t1"}] and node.uplink.tries == 3


def test_files_are_listed_together_and_during_long_scans(node, outputs):
    for number in range(10):
        (outputs.folder / f"{number}").write_text(f"{number}")
    put_object = node.uplink.s3.put_object

    def slowly(**asked: Any) -> Any:
        outputs.pass_time(2.0)
        return put_object(**asked)

    node.uplink.s3.put_object = slowly
    outputs.finish()
    assert len(listed(node)) == 10 and node.uplink.tries == 4, "the first, two in 20 seconds, and the last"


def test_a_piece_is_listed_as_over_once_its_files_are_sent(node, outputs):
    (outputs.folder / "a").mkdir()
    (outputs.folder / "a" / "m").write_text("m")
    outputs.piece_done("a/", lambda: {"piece": "a"})
    node.uplink.s3.refuses = True
    outputs.scan()
    assert listed_ends(node) == [] and not listed(node)
    node.uplink.s3.refuses = False
    outputs.scan()
    assert listed_ends(node) == [{"piece": "a"}] and listed(node) == {"a/m": "m"}, (
        "without waiting for changes"
    )


def test_a_piece_is_over_once_its_files_last_state_is_sent(node, outputs):
    """The next attempt leaves it out, and would keep an older state."""
    file = outputs.folder / "a" / "m"
    file.parent.mkdir()
    file.write_text("epoch 1")
    outputs.scan()
    outputs.pass_time(UNCHANGED_SECONDS)
    outputs.scan()
    assert listed(node) == {"a/m": "epoch 1"}
    file.write_text("epoch 2, the last")
    outputs.piece_done("a/", lambda: {"piece": "a"})
    node.uplink.s3.refuses = True
    outputs.scan()
    assert listed_ends(node) == []
    node.uplink.s3.refuses = False
    outputs.scan()
    assert listed_ends(node) == [{"piece": "a"}] and listed(node) == {"a/m": "epoch 2, the last"}


def test_the_end_of_a_piece_is_made_once(node, outputs):
    """Its notes look at every file, and a scan comes every few seconds."""
    made = []
    outputs.piece_done("a/", lambda: made.append("a") or {"piece": "a"})
    for _ in range(3):
        outputs.scan()
    assert made == ["a"] and listed_ends(node) == [{"piece": "a"}]


def test_a_piece_is_over_whose_files_are_more_than_a_run_keeps(node, outputs):
    (outputs.folder / "a").mkdir()
    (outputs.folder / "a" / "m").write_text("m")
    (outputs.folder / "a" / "too-large").write_bytes(b"x" * 1000)
    outputs.piece_done("a/", lambda: {"piece": "a"})
    outputs.scan()
    assert listed(node) == {"a/m": "m"} and "(script.out_gib)" in outputs.refused["a/too-large"]
    assert listed_ends(node) == [{"piece": "a"}], "no attempt of the run keeps more"


def test_the_list_stays_within_what_its_readers_take(node, outputs):
    """Of the most values, whose last lines have no Latin letter."""
    entry = {"kind": "script", "series": [], "fold": 0, "seed": 0, "values": {"n": "1"}, "done": True}
    entry |= {"exit_code": 0, "starts": 1, "best": {}, "seconds": 1.0, "notes": ["x" * 300] * MOST_NOTES}
    entry |= {"last_lines": ["\u6642" * MOST_LINE] * LAST_LINES}
    for number in range(MOST_COMBINATIONS):
        outputs.piece_done(f"n={number}/", partial(dict, entry, piece=f"n={number}"))
    outputs.scan()
    body = node.uplink.s3.objects[node.status.identity.keys.output_index]
    read = read_scripts(read_object(body, most_bytes=MOST_OUTPUTS_BYTES, name="the list"))
    assert len(read) == MOST_COMBINATIONS and all(one["done"] for one in read)


def listed_ends(node) -> list[dict[str, Any]]:
    body = node.uplink.s3.objects.get(node.status.identity.keys.output_index, b"{}")
    return json.loads(body).get("scripts", [])


def test_an_empty_folder_is_told_and_what_s3_refuses_too(node, outputs, monkeypatch):
    outputs.finish()
    assert outputs.notes() == ["MAYFLY_OUT stayed empty: nothing was uploaded"]
    (outputs.folder / "m").write_text("m")
    node.uplink.s3.refuses = True
    monkeypatch.setattr("trainer.node.shared.LAST_UPLOADS_SECONDS", 0.0)
    outputs.finish()
    assert outputs.notes() == ["m was not uploaded: S3 did not take it within 0 s"]


def test_uploads_end_in_time_though_each_try_hangs(node, outputs, monkeypatch):
    """A try of each of the many files takes hours while S3 hangs; the machine is paid for meanwhile."""
    tries = []

    def hanging(**asked: Any) -> Any:
        tries.append(asked["Key"])
        outputs.pass_time(120.0)
        raise ConnectTimeoutError(endpoint_url="s3")

    monkeypatch.setattr(node.uplink.s3, "put_object", hanging)
    for number in range(50):
        (outputs.folder / f"{number:02d}").write_text(f"{number}")
    outputs.finish()
    assert len(tries) == 8 and len(outputs.refused) == 50, "900 s, and the try that has begun then"


def test_a_file_beside_the_result_is_sent_again(node, outputs, monkeypatch):
    """A score run leaves nothing else: its scores decide what goes to production."""
    monkeypatch.setattr("trainer.node.outputs.POLL_SECONDS", 0.0)
    outputs.command = command(out_bytes=0, beside=("scores.json",))
    (outputs.folder / "scores.json").write_text("{}")
    put_object, tries = node.uplink.s3.put_object, []

    def busy(**asked: Any) -> Any:
        tries.append(asked["Key"])
        node.uplink.s3.refuses = len(tries) < 3
        return put_object(**asked)

    monkeypatch.setattr(node.uplink.s3, "put_object", busy)
    outputs.finish()
    key = f"{node.status.identity.keys.folder}scores.json"
    assert tries == [key] * 3 and node.uplink.s3.objects[key] == b"{}"


def test_files_beside_the_result_end_with_the_patience(node, outputs, monkeypatch):
    outputs.command = command(out_bytes=0, beside=("trace/*.json",))
    (outputs.folder / "trace").mkdir()
    for number in range(50):
        (outputs.folder / "trace" / f"{number:02d}.json").write_text("{}")
    tries = []

    def hanging(**asked: Any) -> Any:
        tries.append(asked["Key"])
        outputs.pass_time(120.0)
        raise ConnectTimeoutError(endpoint_url="s3")

    monkeypatch.setattr("trainer.node.outputs.POLL_SECONDS", 0.0)
    monkeypatch.setattr(node.uplink.s3, "put_object", hanging)
    outputs.finish()
    assert len(tries) == 8, "900 s, and the try that has begun then"


@pytest.mark.parametrize("over", [{}, {"over": {"n": [1, 2]}}])
def test_a_script_whose_file_s3_did_not_take_is_not_done(node, start, monkeypatch, over):
    monkeypatch.setattr("trainer.node.shared.LAST_UPLOADS_SECONDS", 0.0)
    node.uplink.s3.refuses = True
    with pytest.raises(TrainingFailed, match=r"a file was not sent .(n=1/)?m: S3 did not take it") as failed:
        start('[ "$MAYFLY_VALUE_N" = 2 ] || echo m > $MAYFLY_OUT/m', **over)
    read = reported(node, failed.value)
    assert (read.state, read.exit_code) == ("failed", 100)
    assert [one["done"] for one in read.scripts] == ([False, True] if over else [False])
    assert "S3 did not take it" in read.scripts[0]["notes"][0]
