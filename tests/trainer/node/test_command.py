"""A command on its machine, hostile ones too, without one: the bucket is a dictionary, and time is
passed in.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.nodes import NOW, bundle, listed, node, reported, start, stop_when
from tests.processes import cut_name
from trainer.aws.place import HERE
from trainer.base import environment
from trainer.base.errors import ConfigError, Stopped, TrainingFailed
from trainer.node import command as module
from trainer.node import events, piece_run
from trainer.node import own_user as own_user_module
from trainer.node.own_user import OwnUser, make_own_user
from trainer.node.report import progress
from trainer.runs.reports import (
    heartbeat,
)
from trainer.runs.training_events import EventReader
from trainer.train.observing.observe import points_of

__all__ = ["bundle", "node", "start", "stop_when"]  # fixtures
PYTHON = Path("/usr/bin/python3")


def test_the_last_event_may_have_no_end_of_line(node, start):
    start("""
[ -f again ] || { touch again; printf '{"st' >> $MAYFLY_EVENTS; kill -KILL $$; }
printf '{"step": 1, "loss": 0.25}\n{"step": 2, "loss": 0.125}' >> $MAYFLY_EVENTS
""")
    (script,) = reported(node).scripts
    assert script["best"]["value"] == 0.125 and script["starts"] == 2
    assert node.status.progress.pieces["s"]["step"] == 2
    assert script["notes"][-1] == "1 line of its events could not be read"


def test_a_killed_script_continues_from_its_checkpoint(node, start):
    text = """
[ "$(cat $MAYFLY_DATA/a/x.csv)" = 1,2 ] && cmp $MAYFLY_DATA/a/x.csv $MAYFLY_DATA/z.csv || exit 9
if [ ! -f $MAYFLY_CHECKPOINTS/half ]; then touch $MAYFLY_CHECKPOINTS/half; kill -KILL $$; fi
echo '{"step": 5, "steps": 10, "epoch": 1, "train_loss": 0.5}' >> $MAYFLY_EVENTS
echo nothing >> $MAYFLY_EVENTS
echo done > $MAYFLY_OUT/model.pt; echo devices $MAYFLY_DEVICES $A
"""
    start(text)
    read = reported(node)
    (script,) = read.scripts
    assert (read.state, read.retries, read.failed) == ("done", 1, ())
    assert read.python_packages == "the desk's .venv"
    assert (script["piece"], script["exit_code"], script["starts"]) == ("s", 0, 2)
    assert script["last_lines"] == ["devices 1 1"]
    assert script["best"] == {"metric": "train_loss", "value": 0.5, "better": "min"}
    assert script["notes"] == ["1 line of its events could not be read"]
    assert listed(node) == {"model.pt": "done\n"}
    events = [json.loads(line) for line in (node.work / "events" / "events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == [
        *("started", "model_started", "retry", "model_started", "script", "epoch", "script_done")
    ]
    told = heartbeat(SimpleNamespace(instance_id="i-1", at=NOW, lease_until=NOW), progress(node.status))
    assert (told.models_done, told.progress["s"]["state"], told.unit) == (1, "done", "steps")


def test_a_script_that_tells_epochs_has_a_curve_of_them(node, start):
    start(
        """for epoch in 1 2 3; do echo '{"epoch": '$epoch', "epochs": 3, "loss": 0.5}' >> $MAYFLY_EVENTS; done"""
    )
    read = (node.work / "events" / "events.jsonl").read_bytes().splitlines()
    told = [event for event in EventReader().read(read) if event["event"] == "script"]
    assert [points_of(event) for event in told] == [("script_s", epoch, {"loss": 0.5}) for epoch in (1, 2, 3)]
    assert [event["rate"] for event in told] == [None] * 3  # of steps, which it does not tell


def test_events_written_at_the_end_are_read_to_the_last(node, start, monkeypatch):
    monkeypatch.setattr(events, "MOST_BLOCK", 1 << 10)
    lines = "".join(f'{{"step": {step}, "score": {step}}}\\n' for step in range(1, 101))
    without_end = "truncate -s 1T $MAYFLY_EVENTS"  # it is not read to its end
    start(f"printf '{lines}' >> $MAYFLY_EVENTS; {without_end}")
    assert reported(node).scripts[0]["best"] == {"metric": "score", "value": 100, "better": "max"}


def test_a_name_that_is_not_utf_8_is_told_and_spoils_no_result(node, start):
    start(
        """cd $MAYFLY_OUT; echo x > "$(printf 'caf\\351')"; echo x > kept; mkdir "$(printf 'caf\\351.d')" """
    )
    notes = reported(node).scripts[0]["notes"]
    assert [note.partition(" was not")[0] for note in notes] == ["caf\ufffd", "caf\ufffd.d/"]
    assert listed(node) == {"kept": "x\n"}


def test_a_result_is_readable_whatever_the_script_left(node, start, monkeypatch):
    monkeypatch.setattr(environment, "image_python", lambda: f"/{'a' * 300}/python")
    decide = piece_run.PieceRun._decide

    def decided(run: Any) -> None:
        run._note = "it failed on GPU 1 first"
        decide(run)

    monkeypatch.setattr(piece_run.PieceRun, "_decide", decided)
    node.place = HERE
    text = """echo '{"score": 2000000000000000000, "step": 7}' > $MAYFLY_EVENTS; echo no >> $MAYFLY_EVENTS"""
    start(f"{text}; for i in $(seq 50); do touch $MAYFLY_OUT/.$i; done")
    (script,) = reported(node).scripts
    assert len(script["notes"]) == 42 and script["best"] == {} and script["done"]


def test_failed_packages_are_removed_from_an_own_disk(node, start, monkeypatch):
    def fails(*_: Any, venv: Path, **__: Any) -> None:
        (venv / "lib").mkdir(parents=True)
        raise TrainingFailed("can't install")

    monkeypatch.setattr(module, "install", fails)
    node.place = HERE
    with pytest.raises(TrainingFailed, match="can't install"):
        start("true", requirements="run.sh")
    assert not (node.work / "command" / "venv").exists()


def test_a_failed_script_is_not_restarted_and_its_files_are_sent(node, start):
    with pytest.raises(TrainingFailed, match=r"the script ended with exit code 3 \(no such file\)") as failed:
        start("echo half > $MAYFLY_OUT/half; echo no such file; exit 3")
    read = reported(node, failed.value)
    assert (read.state, read.exit_code, read.scripts[0]["exit_code"]) == ("failed", 100, 3)
    assert read.scripts[0]["starts"] == 1
    assert [entry["reason"] for entry in read.failed] == ["it ended with exit code 3: no such file"]
    assert listed(node) == {"half": "half\n"}


def test_a_missing_program_is_one_line_without_exit_code(node, start):
    with pytest.raises(TrainingFailed, match="the machine has no torchrunn") as failed:
        start("", command="torchrunn train.py")
    read = reported(node, failed.value)
    assert (read.state, read.scripts) == ("failed", ())
    assert [entry["reason"] for entry in read.failed] == ["the machine has no torchrunn"]


def test_a_stopped_script_gets_sigterm_and_is_not_done(node, start, stop_when):
    stop_when((node.work / "command" / "out" / "ready").exists)
    text = (
        "trap 'echo saved > $MAYFLY_OUT/saved; exit 0' TERM; touch $MAYFLY_OUT/ready; while :; do sleep 0.05;"
        " done"
    )
    with pytest.raises(Stopped) as stopped:
        start(text)
    read = reported(node, stopped.value)
    assert (read.state, read.scripts[0]["exit_code"]) == ("stopped", 0)
    assert [entry["reason"] for entry in read.failed] == ["stopped"]
    assert listed(node) == {"ready": "", "saved": "saved\n"}


def test_a_process_with_a_cut_name_is_found(tmp_path: Path) -> None:
    with cut_name(tmp_path, {"MAYFLY_EVENTS": str(tmp_path)}) as pid:
        own = OwnUser(uid=os.geteuid(), gid=os.getegid())
        assert list(own.processes(f"MAYFLY_EVENTS={tmp_path}")) == [pid]


@pytest.mark.skipif(
    os.geteuid() != 0 or not PYTHON.exists(), reason="needs root, and a Python that every user may run"
)
def test_no_script_begins_while_its_user_reaches_metadata(tmp_path, monkeypatch):
    ran: list[str] = []
    monkeypatch.setattr(own_user_module, "ETC", tmp_path)
    (tmp_path / "at.deny").write_text("daemon\n")
    monkeypatch.setattr(own_user_module, "_run", lambda line: ran.append(line) or 0)
    monkeypatch.setattr(
        own_user_module.pwd, "getpwnam", lambda name: SimpleNamespace(pw_uid=64_321, pw_gid=64_321)
    )
    with socket.create_server(("127.0.0.1", 0)) as metadata:
        monkeypatch.setattr(own_user_module, "METADATA", metadata.getsockname())
        with pytest.raises(ConfigError, match="the script can't be kept from the machine's credentials"):
            make_own_user(metadata=False)
    assert make_own_user(metadata=False) == OwnUser(uid=64_321, gid=64_321)  # nothing answers there any more
    assert [line.split()[0] for line in ran] == ["useradd", "iptables", "ip6tables"] * 2
    rule = "-m owner --uid-owner 64321 -j REJECT"
    assert ran[4:] == [
        f"iptables -I OUTPUT -d 127.0.0.1 {rule}",
        f"ip6tables -I OUTPUT -d fd00:ec2::254 {rule}",
    ]
    assert (tmp_path / "at.deny").read_text() == "daemon\nmayfly-script\n"
    assert (tmp_path / "cron.deny").read_text() == "mayfly-script\n"
    monkeypatch.setattr(own_user_module, "_run", lambda line: 3 if line.startswith("iptables") else 0)
    with pytest.raises(
        ConfigError, match=r"can't be kept from the machine's credentials \(iptables ended with 3, so its"
    ):
        make_own_user(metadata=False)
    monkeypatch.setattr(own_user_module, "_run", lambda line: 1)
    with pytest.raises(ConfigError, match="the user mayfly-script can't be made .useradd ended with 1"):
        make_own_user(metadata=False)
