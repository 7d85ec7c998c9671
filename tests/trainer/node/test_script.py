"""A script on its machine, hostile ones too, without one: the bucket is a dictionary, and time is
passed in.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import logging
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.processes import cut_name
from trainer.base import environment
from trainer.base.errors import ConfigError, Stopped, TrainingFailed
from trainer.base.strict_json import Fields
from trainer.job.script import CONTRACT
from trainer.job.script_values import combinations
from trainer.node import script as module
from trainer.node import script_events, script_run
from trainer.node import script_user as script_user_module
from trainer.node.identity import NodeIdentity
from trainer.node.report import Status, ending, progress, result
from trainer.node.script import run_script
from trainer.node.script_events import EventFile, ScriptEvents, StepRate
from trainer.node.script_outputs import UNCHANGED_SECONDS, Outputs
from trainer.node.script_process import ScriptOutput, ScriptProcess
from trainer.node.script_user import ScriptUser, make_script_user
from trainer.node.shared import Node
from trainer.runs.reports import heartbeat, read_outputs, read_result

PYTHON = Path("/usr/bin/python3")
NOW = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)


class Bucket:
    """S3 as far as a script's node needs it: it checks each body against its hash."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.puts: list[str] = []
        self.refuses = False

    def put_object(self, *, Key: str, Body: Any, ChecksumSHA256: str, **_: Any) -> dict[str, str]:
        body = Body.read()
        if self.refuses or base64.b64encode(hashlib.sha256(body).digest()).decode() != ChecksumSHA256:
            raise ClientError({"Error": {"Code": "BadDigest"}}, "PutObject")
        self.objects[Key] = body
        self.puts.append(Key)
        return {"VersionId": f"v{len(self.puts)}"}

    def get_object(self, *, Key: str, **_: Any) -> dict[str, Any]:
        body = self.objects[Key]
        return {"Body": SimpleNamespace(iter_chunks=lambda size: [body])}


class Uplink:
    bucket = "b"

    def __init__(self) -> None:
        self.s3 = Bucket()
        self.tries = 0
        self.fails: set[int] = set()  # those of the tries that S3 does not take

    def try_send(self, key: str, body: bytes) -> bool:
        self.tries += 1
        if self.tries in self.fails:
            return False
        self.s3.objects[key] = body
        return True


@pytest.fixture
def node(tmp_path: Path) -> Node:
    identity = NodeIdentity(
        run_id="r",
        attempt=1,
        node=0,
        deadline=NOW + timedelta(hours=1),
        instance_id="i-1",
        instance_type="t",
        role_id="AROA",
    )
    work = tmp_path / "work"
    work.mkdir()
    return Node(work=work, rehearsal=True, uplink=Uplink(), status=Status(identity=identity))  # type: ignore[arg-type]


@pytest.fixture
def outputs(node: Node, tmp_path: Path) -> Outputs:
    (tmp_path / "out").mkdir()
    clock = [0.0]
    made = Outputs(folder=tmp_path / "out", node=node, most_bytes=1000, clock=lambda: clock[0])
    made.pass_time = lambda seconds: clock.__setitem__(0, clock[0] + seconds)  # type: ignore[attr-defined]
    return made


def listed(node: Node) -> dict[str, str]:
    """Return what outputs.json names: path -> content."""
    keys, objects = node.status.identity.keys, node.uplink.s3.objects
    if keys.output_index not in objects:
        return {}
    files = read_outputs(Fields(json.loads(objects[keys.output_index]), "the list"), prefix=keys.outputs)
    return {item["file"]: objects[item["key"]].decode() for item in files}


# --- OUT
# ------------------------------------------------------------------------------------------


def test_a_file_goes_up_once_it_is_unchanged_for_thirty_seconds_and_each_state_has_its_own_key(node, outputs):
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


def test_names_links_and_bytes_past_the_bound_stay_behind_and_are_told(node, outputs, tmp_path):
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
    assert (
        "begins with a dot" in told[".bashrc"]
        and "is a link" in told["link"]
        and "is a link" in told["folder"]
    )
    assert "(script.out_gib)" in told["zzz"] and "not a plain file" in told["pipe"]
    assert not any(b"the agent's" in body for body in node.uplink.s3.objects.values())


def test_a_state_of_the_same_size_and_time_is_another_and_one_that_was_removed_is_no_failure(node, outputs):
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


def test_what_does_not_fit_leaves_room_for_what_does_and_endless_files_are_not_looked_at(
    node, outputs, monkeypatch
):
    monkeypatch.setattr("trainer.node.script_outputs.MOST_LOOKED_AT", 30)
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
    monkeypatch.setattr("trainer.node.script_outputs.POLL_SECONDS", 0.0)
    node.uplink.fails = {1, 2}
    (outputs.folder / "m").write_text("m")
    outputs.finish()
    assert listed(node) == {"m": "m"} and node.uplink.tries == 3


def test_files_that_are_sent_together_are_listed_together_and_while_a_long_scan_lasts(node, outputs):
    for number in range(10):
        (outputs.folder / f"{number}").write_text(f"{number}")
    put_object = node.uplink.s3.put_object

    def slowly(**asked: Any) -> Any:
        outputs.pass_time(2.0)
        return put_object(**asked)

    node.uplink.s3.put_object = slowly
    outputs.finish()
    assert len(listed(node)) == 10 and node.uplink.tries == 4, "the first, two in 20 seconds, and the last"


def test_an_empty_folder_is_told_and_what_s3_refuses_too(node, outputs, monkeypatch):
    outputs.finish()
    assert outputs.notes() == ["MAYFLY_OUT stayed empty: nothing was uploaded"]
    (outputs.folder / "m").write_text("m")
    node.uplink.s3.refuses = True
    monkeypatch.setattr("trainer.node.shared.LAST_UPLOADS_SECONDS", 0.0)
    outputs.finish()
    assert outputs.notes() == ["m was not uploaded: S3 did not take it within 0 s"]


# --- events
# ------------------------------------------------------------------------------------------


def test_events_are_read_as_they_come_strictly_and_within_bounds(tmp_path):
    path = tmp_path / "events.jsonl"
    events = ScriptEvents(path)
    assert list(events.new()) == []
    path.write_text('{"step": 1, "loss": 0.5, "accuracy": 0.25, "note": "x", "event": "model_done"}\n{"step"')
    assert list(events.new()) == [{"counts": {"step": 1}, "loss": 0.5, "values": {"accuracy": 0.25}}]
    with path.open("a") as file:
        file.write(': 2}\nnot json\n[1]\n{"step": -1}\n{"loss": NaN}\n{"a": true, "../x": 1, "b": 1e400}\n')
        file.write("{" + " " * 20_000 + "}\n" + '{"step": 3}\n')
    assert [event["counts"] for event in events.new()] == [{"step": 2}, {"step": 3}] and events.unsound == 6
    path.unlink()
    path.symlink_to("/etc/passwd")
    assert list(events.new()) == []


def test_events_file_and_step_rate_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("trainer.node.script_events.MOST_BYTES", 100)
    file = EventFile(tmp_path / "events" / "e.jsonl", now=lambda: NOW)
    for number in range(10):
        file.write({"event": "script", "number": number})
    lines = (tmp_path / "events" / "e.jsonl").read_text().splitlines()
    assert [json.loads(line)["number"] for line in lines] == [0]
    clock = [0.0]
    rate = StepRate(lambda: clock[0])
    clock[0] = 2.0
    assert (rate.update(10), rate.update(11)) == (5.0, 5.0)


def test_an_event_for_which_the_disk_has_no_room_is_lost_and_nothing_else(tmp_path):
    (tmp_path / "e.jsonl").symlink_to("/dev/full")
    EventFile(tmp_path / "e.jsonl").write({"event": "script_done"})


# --- the process
# ------------------------------------------------------------------------------------------


def run(words: list[str], tmp_path: Path, *, grace_seconds: float = 10.0, **keys: Any) -> ScriptProcess:
    variables = environment.for_script({}, path="/usr/bin")
    return ScriptProcess(words, folder=tmp_path, environment=variables, grace_seconds=grace_seconds, **keys)


def wait_for(process: ScriptProcess) -> int:
    while (code := process.poll()) is None:
        time.sleep(0.01)
    return code


def test_its_last_lines_are_kept_a_progress_bar_counts_once_and_the_log_is_bounded(caplog, monkeypatch):
    reader, writer = os.pipe()
    os.write(
        writer,
        b"10%\r50%\r100%\nline \xff\x1b[2J\n" + b"x" * 300 + b"\n" + b"".join(b"%d\n" % n for n in range(19)),
    )
    os.close(writer)
    output = ScriptOutput(most_bytes=100)
    with caplog.at_level(logging.INFO):
        output.follow(os.fdopen(reader, "rb"))
    assert (
        output.last_lines[0] == "x" * 190 and len(output.last_lines) == 20 and output.last_lines[-1] == "18"
    )
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "| 100%" and "the rest is left out" in said[-1] and len(said) == 3


def test_lines_without_text_and_letters_of_several_bytes_count_as_what_they_take(caplog, monkeypatch):
    for line in ("\n", "я" * 100 + "\n"):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            ScriptOutput(most_bytes=1 << 10).follow(io.BytesIO(line.encode() * 1000))
        said = [record.getMessage() for record in caplog.records]
        assert 0 < sum(len(f"2026-11-20 12:00:00,000 {text}\n".encode()) for text in said[:-1]) <= 1 << 10


def test_one_that_ignores_sigterm_and_forks_away_is_killed_after_its_grace(tmp_path, monkeypatch):
    monkeypatch.setattr("trainer.node.script_process.READER_SECONDS", 0.01)
    clock = [0.0]
    code = "trap '' TERM; (setsid sleep 1000 & echo $! > child); touch ready; sleep 1000"
    with run(["sh", "-c", code], tmp_path, clock=lambda: clock[0]) as process:
        while not (tmp_path / "ready").exists():
            time.sleep(0.01)
        process.stop()
        process.stop()
        assert process.poll() is None
        clock[0] = 11.0
        assert wait_for(process) == -signal.SIGKILL
    forked = int(
        (tmp_path / "child").read_text()
    )  # of the desk's user: the machine ends it (rehearsal/supervisor.py)
    os.kill(forked, signal.SIGKILL)


def test_a_first_word_that_the_machine_has_not_is_one_line(tmp_path):
    with pytest.raises(TrainingFailed, match=r"the machine has no torchrunn \(no folder of its PATH has one"):
        run(["torchrunn", "train.py"], tmp_path)
    with pytest.raises(TrainingFailed, match=r"the machine has no ./a \(it is not a program there\)"):
        run(["./a"], tmp_path)


# --- the whole
# ------------------------------------------------------------------------------------------


@pytest.fixture
def start(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Return a function that runs a shell script as the node's whole work; its data is one file of
    two names.
    """
    packed = tmp_path / "code" / "trainer" / "script_files"
    packed.mkdir(parents=True)
    (packed.parent / "__init__.py").touch()
    monkeypatch.setattr(module.trainer, "__file__", str(packed.parent / "__init__.py"))
    monkeypatch.setattr(module, "make_venv", lambda *_, **__: Path("/usr/bin"))
    monkeypatch.setattr(script_run, "POLL_SECONDS", 0.01)
    sha256 = hashlib.sha256(b"1,2").hexdigest()
    node.uplink.s3.objects[f"raw/.files/{sha256}"] = b"1,2"
    entry = {"key": f"raw/.files/{sha256}", "version_id": "v", "sha256": sha256, "bytes": 3}
    node.uplink.s3.objects["raw/points/z.csv"] = b"1,2"
    of_a_set = {**entry, "key": "raw/points/z.csv"}

    def run_it(text: str, **keys: Any) -> int:
        (packed / "run.sh").write_text(text)
        (node.work / "node.log").write_text("the agent's own")
        named = {f"script_s_{name}": name for name in combinations(keys.get("over"))} or {"script_s": "s"}
        models = [
            {"model": model, "piece": name, "kind": "script", "series": [], "fold": 1, "seed": 0}
            for model, name in named.items()
        ]
        manifest = {
            "job": {"script": {"command": "sh run.sh", "env": ["A=1"], **keys}},
            "script_files": {"run.sh": ""},
            "script_sha256": "",
            "inputs": [
                {"path": "a/x.csv", **entry},
                {"path": "y.csv", **entry},
                {"path": "z.csv", **of_a_set},
            ],
            "pieces": models,
        }
        return run_script(node, manifest)

    return run_it


def reported(node: Node, code: int | None, error: Any = None) -> Any:
    ended = ending(status=node.status, stop_reason=node.stop_reason, error=error, trainer_exit=code, now=NOW)
    body = json.dumps(result(node.status, ended=ended, unfinished="stopped", python_packages="")).encode()
    return read_result(
        body, models_prefix=node.status.identity.keys.models, names=["script_s"], work="script"
    )


def test_a_script_killed_once_goes_on_from_its_checkpoint_and_its_end_is_in_the_result(node, start):
    text = """
[ "$(cat $MAYFLY_DATA/a/x.csv)" = 1,2 ] && cmp $MAYFLY_DATA/a/x.csv $MAYFLY_DATA/z.csv || exit 9
if [ ! -f $MAYFLY_CHECKPOINTS/half ]; then touch $MAYFLY_CHECKPOINTS/half; kill -KILL $$; fi
echo '{"step": 5, "steps": 10, "epoch": 1, "train_loss": 0.5}' >> $MAYFLY_EVENTS
echo nothing >> $MAYFLY_EVENTS
echo done > $MAYFLY_OUT/model.pt; echo devices $MAYFLY_DEVICES $A
"""
    assert start(text) == 0
    read = reported(node, 0)
    (script,) = read.scripts
    assert (read.state, read.retries, read.failed, read.python_packages) == (
        "done",
        1,
        (),
        "the desk's .venv",
    )
    assert (script["piece"], script["exit_code"], script["starts"], script["last_lines"]) == (
        "s",
        0,
        2,
        ["devices 1 1"],
    )
    assert script["best"] == {"metric": "train_loss", "value": 0.5}
    assert script["notes"] == ["1 lines of its events could not be read"]
    assert listed(node) == {"model.pt": "done\n"}
    events = [json.loads(line) for line in (node.work / "events" / "events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == [
        *("started", "model_started", "retry", "model_started", "script", "epoch", "script_done")
    ]
    told = heartbeat(SimpleNamespace(instance_id="i-1", at=NOW, lease_until=NOW), progress(node.status))
    assert (told.models_done, told.progress["s"]["state"], told.unit) == (1, "done", "steps")


def test_events_that_a_script_writes_all_at_once_as_it_ends_are_read_to_the_last(node, start, monkeypatch):
    monkeypatch.setattr(script_events, "MOST_BLOCK", 1 << 10)
    events = "".join(f'{{"step": {step}, "score": {step}}}\\n' for step in range(1, 101))
    without_end = "truncate -s 1T $MAYFLY_EVENTS"  # it is not read to its end
    assert start(f"printf '{events}' >> $MAYFLY_EVENTS; {without_end}") == 0
    assert reported(node, 0).scripts[0]["best"] == {"metric": "score", "value": 100}


def test_a_name_that_is_not_utf_8_is_told_and_spoils_no_result(node, start):
    assert (
        start(
            """cd $MAYFLY_OUT; echo x > "$(printf 'caf\\351')"; echo x > kept; mkdir "$(printf 'caf\\351.d')" """
        )
        == 0
    )
    notes = reported(node, 0).scripts[0]["notes"]
    assert [note.partition(" was not")[0] for note in notes] == ["caf\ufffd", "caf\ufffd.d/"]
    assert listed(node) == {"kept": "x\n"}


def test_a_result_is_readable_whatever_the_script_reported_and_left(node, start, monkeypatch):
    monkeypatch.setattr(environment, "image_python", lambda: f"/{'a' * 300}/python")
    decide = script_run.ScriptRun._decide

    def decided(run: Any, life: Any) -> None:
        life.note = "it failed on GPU 1 first"
        decide(run, life)

    monkeypatch.setattr(script_run.ScriptRun, "_decide", decided)
    node.rehearsal, node.here = False, True
    text = """echo '{"score": 2000000000000000000, "step": 7}' > $MAYFLY_EVENTS; echo no >> $MAYFLY_EVENTS"""
    assert start(f"{text}; for i in $(seq 50); do touch $MAYFLY_OUT/.$i; done") == 0
    (script,) = reported(node, 0).scripts
    assert len(script["notes"]) == 42 and script["best"] == {} and script["done"]


def test_packages_that_could_not_be_installed_take_no_room_on_ones_own_disk(node, start, monkeypatch):
    def fails(_: Node, *, venv: Path, **__: Any) -> None:
        (venv / "lib").mkdir(parents=True)
        raise TrainingFailed("can't install")

    monkeypatch.setattr(module, "install", fails)
    node.rehearsal, node.here = False, True
    with pytest.raises(TrainingFailed, match="can't install"):
        start("true", requirements="run.sh")
    assert not (node.work / "script" / "venv").exists()


def test_one_that_fails_is_not_started_again_and_what_it_left_comes(node, start):
    with pytest.raises(TrainingFailed, match=r"the script ended with exit code 3 \(no such file\)") as failed:
        start("echo half > $MAYFLY_OUT/half; echo no such file; exit 3")
    read = reported(node, None, failed.value)
    assert (read.state, read.exit_code, read.scripts[0]["exit_code"], read.scripts[0]["starts"]) == (
        "failed",
        100,
        3,
        1,
    )
    assert [entry["reason"] for entry in read.failed] == ["it ended with exit code 3: no such file"]
    assert listed(node) == {"half": "half\n"}


def test_one_that_the_machine_can_not_run_says_so_and_has_no_exit_code(node, start):
    with pytest.raises(TrainingFailed, match="the machine has no torchrunn") as failed:
        start("", command="torchrunn train.py")
    read = reported(node, None, failed.value)
    assert (read.state, read.scripts, [entry["reason"] for entry in read.failed]) == (
        "failed",
        (),
        ["the machine has no torchrunn"],
    )


def test_one_that_is_stopped_gets_sigterm_and_is_not_done_even_if_it_ends_well(node, start, monkeypatch):
    follow = script_run.ScriptRun._follow

    def stop_once_ready(run: Any, life: Any) -> None:
        follow(run, life)
        if (node.work / "script" / "out" / "ready").exists():
            node.stop("stop.json")

    monkeypatch.setattr(script_run.ScriptRun, "_follow", stop_once_ready)
    text = (
        "trap 'echo saved > $MAYFLY_OUT/saved; exit 0' TERM; touch $MAYFLY_OUT/ready; while :; do sleep 0.05;"
        " done"
    )
    with pytest.raises(Stopped) as stopped:
        start(text)
    read = reported(node, None, stopped.value)
    assert (read.state, read.scripts[0]["exit_code"], [entry["reason"] for entry in read.failed]) == (
        "stopped",
        0,
        ["stopped"],
    )
    assert listed(node) == {"ready": "", "saved": "saved\n"}


def test_data_larger_than_the_disk_is_one_line(start, monkeypatch):
    monkeypatch.setattr("trainer.node.stage.shutil.disk_usage", lambda folder: SimpleNamespace(free=10))
    with pytest.raises(TrainingFailed, match=r"the inputs take 0.0 GiB, .* has 0.0 GiB free"):
        start("true")


# What a hostile script tries, and whether it can. It runs as on EC2, as a user of its own; metadata is the
# firewall's.
HOSTILE = """
import ctypes, os, signal, socket, sys, time
work, out = os.path.abspath("../.."), os.environ["MAYFLY_OUT"]
def can(what, act):
    try: act()
    except OSError: return
    print("CAN", what, flush=True)
can("read its data", lambda: open(os.environ["MAYFLY_DATA"] + "/y.csv").read())
can("change its data", lambda: open(os.environ["MAYFLY_DATA"] + "/y.csv", "w"))
can("write to its folder", lambda: open("x", "w").close())
can("read the agent's log", lambda: open(work + "/node.log").read())
can("write to the agent's folder", lambda: open(work + "/x", "w"))
can("read the run's events", lambda: os.listdir(work + "/events"))
can("read the agent's inputs", lambda: os.listdir(work + "/inputs"))
can("read the agent's variables", lambda: open(f"/proc/{os.getppid()}/environ").read())
can("read the agent's memory", lambda: open(f"/proc/{os.getppid()}/mem", "rb"))
can("kill the agent", lambda: os.kill(os.getppid(), 0))
can("become root", lambda: os.setuid(0))
can("reach instance metadata", lambda: socket.create_connection(("169.254.169.254", 80), timeout=1))
can("list the agent's code", lambda: os.listdir(work + "/../code"))
can("write above OUT", lambda: open(out + "/../x", "w"))
can("make a folder above OUT", lambda: os.mkdir(out + "/../../x"))
can("take a file of the agent's away", lambda: os.rename(work + "/node.log", out + "/stolen"))
can("have a timer start it again", lambda: open("/var/spool/cron/crontabs/root", "a"))
for number in os.listdir("/proc"):
    if number.isdecimal() and os.stat("/proc/" + number).st_uid != os.getuid():
        can("read another process's variables", lambda: open("/proc/" + number + "/environ").read())
print(sorted(name for name in os.environ if name.startswith(("AWS_", "MAYFLY_"))))
print("\\x1b]0;title\\x07", flush=True)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for name in ("good", ".bashrc"):
    open(out + "/" + name, "w").write(name)
os.symlink(work + "/node.log", out + "/log")
can("link to the agent's log", lambda: os.link(work + "/node.log", out + "/hard"))
open(out + "/zzz-large", "wb").truncate(20_000_001)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: most of its files in /proc are root's
        with open(out + "/.ready", "w") as file:
            file.write(str(os.getpid()))
        os.rename(out + "/.ready", out + "/ready")
    while True:
        time.sleep(1000)
while True:
    time.sleep(1000)
"""


def test_a_process_with_half_a_letter_in_its_name_hides_nobody(tmp_path: Path) -> None:
    with cut_name(tmp_path, {"MAYFLY_EVENTS": str(tmp_path)}) as pid:
        own = ScriptUser(uid=os.geteuid(), gid=os.getegid())
        assert list(own.processes(f"MAYFLY_EVENTS={tmp_path}")) == [pid]


@pytest.mark.skipif(
    os.geteuid() != 0 or not PYTHON.exists(), reason="needs root, and a Python that every user may run"
)
def test_a_hostile_script_ends_in_time_with_what_it_made_and_gets_no_more_than_its_own(
    node, start, monkeypatch
):
    script_user = ScriptUser(uid=64_321, gid=64_321)
    base = Path(
        tempfile.mkdtemp(prefix="script-user-", dir="/tmp")
    )  # pytest's own folders are closed to others
    base.chmod(0o755)
    node.work = base / "work"
    node.work.mkdir(parents=True)
    monkeypatch.setattr(module, "make_script_user", lambda **_: script_user)
    monkeypatch.setattr(script_run, "REHEARSAL_GRACE_SECONDS", 0.2)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    follow = script_run.ScriptRun._follow

    def stop_once_ready(running: Any, life: Any) -> None:
        follow(running, life)
        if (node.work / "script" / "out" / "ready").exists():
            node.stop("SIGTERM")

    monkeypatch.setattr(script_run.ScriptRun, "_follow", stop_once_ready)
    try:
        with pytest.raises(Stopped) as stopped:
            start(HOSTILE, command=f"{PYTHON} -I run.sh", out_gib=20_000_000 / 2**30)
        read = reported(node, None, stopped.value)
        assert list(script_user.processes()) == [], "whatever it forked away is gone"
        hidden = Path("/proc") / listed(node)["ready"] / "stat"  # of the one that hid
        assert not hidden.exists() or hidden.read_text().rpartition(")")[2].split()[0] in "ZX"
        assert (read.state, read.scripts[0]["exit_code"]) == ("stopped", -signal.SIGKILL)
        said = read.scripts[0]["last_lines"]
        assert [line.removeprefix("CAN ") for line in said[:-2]] == ["read its data", "write to its folder"]
        assert (
            said[-2] == str(sorted(CONTRACT)) and said[-1] == "\x1b]0;title\x07"
        )  # escaped where it is printed
        assert set(listed(node)) == {"good", "ready"} and listed(node)["good"] == "good"
        told = "\n".join(read.scripts[0]["notes"])
        assert (
            ".bashrc was not" in told
            and "log was not uploaded: it is a link" in told
            and "zzz-large was not" in told
        )
        assert not any(b"the agent's own" in body for body in node.uplink.s3.objects.values())
    finally:
        script_user.kill_all()
        shutil.rmtree(base)


@pytest.mark.skipif(
    os.geteuid() != 0 or not PYTHON.exists(), reason="needs root, and a Python that every user may run"
)
def test_no_script_begins_while_its_user_reaches_the_machines_credentials(tmp_path, monkeypatch):
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(script_user_module, "ETC", tmp_path)
    (tmp_path / "at.deny").write_text("daemon\n")
    monkeypatch.setattr(script_user_module, "_run", lambda *words: ran.append(words) or 0)
    monkeypatch.setattr(
        script_user_module.pwd, "getpwnam", lambda name: SimpleNamespace(pw_uid=64_321, pw_gid=64_321)
    )
    with socket.create_server(("127.0.0.1", 0)) as metadata:
        monkeypatch.setattr(script_user_module, "METADATA", metadata.getsockname())
        with pytest.raises(ConfigError, match="the script can't be kept from the machine's credentials"):
            make_script_user(rehearsal=False)
    assert make_script_user(rehearsal=False) == ScriptUser(
        uid=64_321, gid=64_321
    )  # nothing answers there any more
    assert make_script_user(rehearsal=True) is None
    assert [words[0] for words in ran] == ["useradd", "iptables", "ip6tables"] * 2
    rule = ("-m", "owner", "--uid-owner", "64321", "-j", "REJECT")
    assert ran[4:] == [
        ("iptables", "-I", "OUTPUT", "-d", "127.0.0.1", *rule),
        ("ip6tables", "-I", "OUTPUT", "-d", "fd00:ec2::254", *rule),
    ]
    assert (tmp_path / "at.deny").read_text() == "daemon\nmayfly-script\n"
    assert (tmp_path / "cron.deny").read_text() == "mayfly-script\n"
    monkeypatch.setattr(script_user_module, "_run", lambda *words: 3 if words[0] == "iptables" else 0)
    with pytest.raises(
        ConfigError, match=r"can't be kept from the machine's credentials \(iptables ended with 3, so its"
    ):
        make_script_user(rehearsal=False)
    monkeypatch.setattr(script_user_module, "_run", lambda *words: 1)
    with pytest.raises(ConfigError, match="the user mayfly-script can't be made .useradd ended with 1"):
        make_script_user(rehearsal=False)
