"""An agent on a machine of its caller's own: no instance type says what the machine should be."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.manifests import MACHINE, manifest
from tests.nodes import bundle, node, start
from trainer.aws.place import HERE
from trainer.base.environment import temporary_folder
from trainer.base.errors import UsageError
from trainer.base.instants import utc_now
from trainer.node.command import machine_document
from trainer.node.devices import Devices
from trainer.node.identity import own_identity
from trainer.node.work_folder import WorkFolder, make_scratch, open_work, prune, remove_scratch
from trainer.train.machine_file import MachineFacts, read_machine

__all__ = ["bundle", "node", "start"]  # fixtures
EMPTY_BUNDLE = b"PK\x05\x06" + bytes(18)  # a zip without files


def given(folder: Path, document: dict[str, Any]) -> MachineFacts:
    """Return what a training reads of its machine."""
    (folder / "machine.json").write_text(json.dumps(document))
    return read_machine(folder / "machine.json")


def test_a_training_on_an_own_machine_has_no_instance_type(tmp_path: Path) -> None:
    state = tmp_path / "here.json"
    state.write_text(
        json.dumps({"run_id": "r", "user_id": "AIDAEXAMPLE", "deadline": "2026-11-22T20:00:00Z"})
    )
    identity = own_identity(state)
    assert identity.keys.folder == "attempts/AIDAEXAMPLE/r/1/0/"
    status = SimpleNamespace(identity=identity, phases={"boot": utc_now()})
    own = cast(Any, SimpleNamespace(status=status))
    machine = given(tmp_path, machine_document(own, manifest()))
    assert (machine.instance_type, machine.gpus, machine.usd_per_hour) == ("", 0, None)


@pytest.mark.parametrize(
    ("zone", "known", "price"),
    [("", {}, 1.0), ("us-east-1a", {"us-east-1a": 0.4}, 0.4), ("us-east-1c", {"us-east-1a": 0.4}, 1.0)],
)
def test_a_trainings_price_is_that_of_its_market(tmp_path, zone, known, price) -> None:
    identity = SimpleNamespace(instance_type="g6.xlarge", spot_zone=zone)
    machine = replace(
        MACHINE, usd_per_hour=1.0, spot_usd_per_hour=known, lost_seconds={"spot": 600.0, "on_demand": 120.0}
    )
    spot = cast(Any, SimpleNamespace(status=SimpleNamespace(identity=identity, phases={"boot": utc_now()})))
    document = machine_document(spot, manifest(machines={"g6.xlarge": machine}))
    assert given(tmp_path, document).usd_per_hour == price
    assert given(tmp_path, document).checkpoint_seconds == (480 if zone else 96)


def test_the_deadline_ends_a_run_whose_machine_slept(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    node.place, now = HERE, [node.status.identity.deadline - timedelta(hours=8)]
    monkeypatch.setattr("trainer.node.shared.utc_now", lambda: now[0])
    assert not node.is_stopping()  # a command at work asks this several times a second, whatever S3 does
    now[0] += timedelta(hours=9)
    assert node.is_stopping() and node.stop_reason == "deadline"


def test_a_new_run_keeps_checkpoints_models_and_inputs_alone(tmp_path: Path) -> None:
    work = open_work(tmp_path, "ab" * 32)
    kept = ("command/checkpoints/last", "command/out/made", "inputs/a")
    for name in (*kept, "command/venv/x", "command/data/a.csv", "events/events.jsonl", "node.log"):
        (work.path / name).parent.mkdir(parents=True, exist_ok=True)
        (work.path / name).write_text("")
    assert work.resumable and not work.last_run
    (tmp_path / "b.csv").write_text("b")
    work.clear()
    work.lay_out(EMPTY_BUNDLE, {"run_id": "r2"}, [(tmp_path / "b.csv", "inputs/b")])
    left = {path.relative_to(work.path).as_posix() for path in work.path.rglob("*") if path.is_file()}
    assert left == {*kept, "inputs/b", "here.json", "lock"} and work.last_run == "r2"
    work.release()


def test_a_copy_that_was_cut_short_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, source = open_work(tmp_path, "ab" * 32), tmp_path / "b.csv"
    source.write_text("all of it")

    def killed(_: Path, target: Path) -> None:
        Path(target).write_text("all")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("trainer.node.work_folder.shutil.copyfile", killed)
        work.lay_out(EMPTY_BUNDLE, {"run_id": "r1"}, [(source, "inputs/b")])
    work.lay_out(EMPTY_BUNDLE, {"run_id": "r2"}, [(source, "inputs/b")])
    assert [path.read_text() for path in (work.path / "inputs").iterdir()] == ["all of it"]
    work.release()


def test_a_folder_that_can_not_be_cleared_is_not_locked_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_work(tmp_path, "ab" * 32).release()

    def refused(_: WorkFolder) -> int:
        raise PermissionError

    with monkeypatch.context() as patch:
        patch.setattr(WorkFolder, "clear", refused)
        prune(tmp_path)
    open_work(tmp_path, "ab" * 32).release()


def test_own_secrets_come_from_the_environment_and_are_redacted(
    node: Any, start: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node.place = HERE
    monkeypatch.setenv("TRACKER_KEY", "s3cr3t-of-mine")
    monkeypatch.setenv("ANOTHER_KEY", "nobodys")
    with caplog.at_level("INFO"):
        start('echo "key $TRACKER_KEY, other <$ANOTHER_KEY>"', secrets=["TRACKER_KEY"])
    assert node.status.scripts[0]["last_lines"] == ["key [TRACKER_KEY], other <>"]
    assert "s3cr3t" not in caplog.text


def test_leftovers_of_a_killed_agent_go_at_the_next_start(tmp_path: Path) -> None:
    work = open_work(tmp_path, "cd" * 32)
    (work.path / "here.json").write_text(json.dumps({"run_id": "r1"}))
    (work.path / "command" / "venv").mkdir(parents=True)
    (work.path / "command" / "checkpoints").mkdir()
    scratch = make_scratch(work.path)
    (scratch / "x").touch()
    with ExitStack() as ends:

        def sleeping(**variables: str) -> subprocess.Popen[bytes]:
            child = subprocess.Popen(["sleep", "1000"], env=variables, start_new_session=True)
            ends.callback(child.wait)
            ends.callback(child.kill)
            return child

        left = [sleeping(MAYFLY_WORK=str(work.path)), sleeping(MAYFLY_OUT=f"{work.path}/command/out/a")]
        others = [sleeping(MAYFLY_OUT=f"{work.path}-2/out"), sleeping(PWD=str(work.path))]
        prune(tmp_path)
        assert scratch.exists() and left[0].poll() is None, "its agent has the lock"
        work.release()
        prune(tmp_path)
        assert [child.wait() for child in left] == [-9, -9]
        assert [child.poll() for child in others] == [
            None,
            None,
        ]
    kept = sorted(path.name for path in work.path.rglob("*"))
    assert not scratch.exists() and kept == ["checkpoints", "command", "here.json", "lock"]
    os.utime(work.path / "here.json", (0, 0))
    prune(tmp_path)
    assert not work.path.exists()


def test_checkpoints_of_a_run_of_weeks_stay_after_it_was_killed(tmp_path: Path) -> None:
    """Another job's start clears its folder: it began long ago, and worked until yesterday."""
    work = open_work(tmp_path, "cd" * 32)
    checkpoint = work.path / "command/checkpoints/lstm_BTC-USD_1m/900/data.safetensors"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()
    (work.path / "here.json").write_text(json.dumps({"run_id": "r1"}))
    os.utime(work.path / "here.json", (0, 0))
    work.release()
    prune(tmp_path)
    assert checkpoint.exists()
    os.utime(checkpoint, (0, 0))
    prune(tmp_path)
    assert not work.path.exists()


def test_temporary_files_have_short_paths_and_go_with_the_run(node: Any, start: Any) -> None:
    (node.work / "command" / "venv" / "lib").mkdir(parents=True)
    start("mkdir -p $TMPDIR/$(printf 'd/%.0s' $(seq 1500)); echo $TMPDIR")  # deeper than Python's frames
    assert not (node.work / "command" / "venv").exists()
    (line,) = node.status.scripts[0]["last_lines"]
    assert Path(line).parent == temporary_folder()
    assert not Path(line).exists()
    assert not (node.work / "tmp").is_symlink()


def test_a_link_to_elsewhere_is_no_folder_of_ours(tmp_path: Path) -> None:
    (tmp_path / "mayfly-script-x").mkdir()
    (tmp_path / "tmp").symlink_to(tmp_path / "mayfly-script-x")
    remove_scratch(tmp_path)
    assert (tmp_path / "mayfly-script-x").exists() and not (tmp_path / "tmp").is_symlink()


@pytest.mark.parametrize(
    ("left", "over", "expected"),
    [
        ("5,7", "", ["5,7 of 2"]),
        ("5,7", {"seed": [0, 1]}, ["5 of 1", "7 of 1"]),
        ("", "", [" of 1"]),
        ("", {"seed": [0]}, [" of 1"]),
    ],
)
def test_a_script_sees_the_gpus_that_the_caller_leaves_to_it(
    node: Any, start: Any, monkeypatch: pytest.MonkeyPatch, left: str, over: Any, expected: list[str]
) -> None:
    found = len(left.split(","))
    node.place, node.status.devices = (
        HERE,
        Devices(expected=found, found=found, kind="cuda" if left else "cpu", note=""),
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", left)
    start('echo "$CUDA_VISIBLE_DEVICES of $MAYFLY_DEVICES"', over=over)
    assert [line for script in node.status.scripts for line in script["last_lines"]] == expected


def test_a_second_start_of_the_same_work_is_refused(tmp_path: Path) -> None:
    work = open_work(tmp_path, "ab" * 32)
    with pytest.raises(UsageError, match="another command starts this job on this machine"):
        open_work(tmp_path, "ab" * 32)
    (work.path / "here.json").write_text('{"run_id": "a-run"}')
    with pytest.raises(UsageError, match="runs on this machine already, as a-run"):
        open_work(tmp_path, "ab" * 32)
    work.release()
