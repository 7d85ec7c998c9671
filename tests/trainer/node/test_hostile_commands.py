"""Limits of every command: each of Mayfly's, and one from outside, runs a hostile program in place of its own."""

from __future__ import annotations

import base64
import json
import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.nodes import bundle, listed, node, own_user, reported, run_task, stop_when, task_of
from tests.processes import alive
from trainer.base.errors import Stopped, TrainerError, TrainingFailed
from trainer.job.script import CONTRACT
from trainer.node import command as module
from trainer.node import command_process, command_work, events
from trainer.node.report import progress
from trainer.node.shared import Node

if TYPE_CHECKING:
    pass

__all__ = ["bundle", "node", "own_user", "stop_when"]  # fixtures
COMMANDS = ("train", "script", "prepare", "score")
APART = ("script", "score")  # those with a user of their own, whatever pieces they have
PYTHON = Path("/usr/bin/python3")
LOG = "the agent's own"
Run = Callable[..., TrainerError | None]


@pytest.fixture
def run(node: Node, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs a program as the command of a name; it returns the run's error."""
    node.place = replace(node.place, stop_seconds=0.2)
    monkeypatch.setattr(command_process, "READER_SECONDS", 0.01)

    def run_it(name: str, source: str, **changed: Any) -> TrainerError | None:
        (bundle / "run.py").write_text(f"import json, os, signal, socket, sys, time\n{BEGIN}{source}")
        (node.work / "node.log").write_text(LOG)
        task = task_of(node, name)
        words = {"words": (sys.executable, "-I", "run.py"), "files": {"run.py": ""}, **changed}
        try:
            run_task(node, replace(task, command=replace(task.command, **words)))
        except (Stopped, TrainingFailed) as error:
            return error
        return None

    return run_it


BEGIN = """
out, told = os.environ["MAYFLY_OUT"].rstrip("/"), os.environ["MAYFLY_EVENTS"]
work = os.path.abspath("../..")
def tell(*events):
    with open(told, "a") as file:
        for event in events:
            file.write((event if isinstance(event, str) else json.dumps(event)) + "\\n")
"""
IDENTITY = {"piece": "A", "kind": "symbol", "series": ["A"], "fold": 1, "seed": 0}

LEAVES = f"""
import hashlib
sha256 = hashlib.sha256({LOG!r}.encode()).hexdigest()
for folder in ("trace", "files", "index", "d"):
    os.mkdir(f"{{out}}/{{folder}}")
log = work + "/node.log"
for name in ("training_results.json", "scores.json", "m.safetensors", "files/a.csv", "link"):
    os.symlink(log, f"{{out}}/{{name}}")
os.symlink(work, f"{{out}}/folder")
for name in ("trace/worker-0.json.gz", "p.safetensors", "files/b.csv", "pipe"):
    os.mkfifo(f"{{out}}/{{name}}")
socket.socket(socket.AF_UNIX).bind(f"{{out}}/socket")
for name in ("m.json", "p.json", "node.json", f"index/{{sha256}}.json", "d/.hidden"):
    open(f"{{out}}/{{name}}", "w").write("{{}}")
model = {{"event": "model_done", "model": "m", **{IDENTITY!r}, "family": "x", "metrics": {{}}, "sha256": sha256}}
tell({{"event": "started", "models": [model]}})
for name in ("m.safetensors", "p.safetensors", "folder/node.log", "../../node.log", log, "link", "no", 5, None):
    tell({{**model, "file": name}})
for name in ("a.csv", "b.csv", "../link", "../../../node.log", log, 5):
    tell({{"event": "file", "file": name, "sha256": sha256, "bytes": 1, "added": True}})
tell({{"event": "file", "file": "a.csv", "sha256": "../../../node.log", "bytes": 1, "added": False}})
"""


@pytest.mark.parametrize("name", COMMANDS)
def test_no_file_is_sent_that_is_not_a_plain_one_of_its_own(node: Node, run: Run, name: str) -> None:
    failed = run(name, LEAVES)
    assert not any(LOG.encode() in body for body in node.uplink.s3.objects.values())
    read = reported(node, failed)
    assert read.models == read.files == () and (read.state == "done") == (name in APART)
    if name in APART:
        sent = {file for file in listed(node) if not file.startswith("index/")}
        assert sent == {"m.json", "p.json", "node.json"}
        told = "\n".join(read.scripts[0]["notes"])
        plain = dict.fromkeys(("pipe", "socket"), "not a plain")
        for path, why in {"link": "a link", "folder": "a link", **plain}.items():
            assert f"{path} was not uploaded: it is {why}" in told
    else:
        assert listed(node) == {}, "it may announce files, and leave no others"


KINDS = ("started", "tuned", "error", "script", "progress", "model_done", "file", "retry")
MODEL = {**IDENTITY, "model": "m"}
WRONG = [
    *("not json", "[1]", "[" * 5_000, "\0"),
    *('{"event": NaN}', '{"event": "x", "a": 1e400}', '{"a": "\\ud800"}'),
    *({"event": kind} for kind in KINDS),
    *({"event": "started", "models": [{**MODEL, **wrong}]} for wrong in ({"model": {}}, {"piece": []})),
    *({"event": "started", "models": models} for models in ([1], 7)),
    *({"event": "started", "models": [MODEL], "data": data} for data in (7, {})),
    {"event": "progress", "model": "m", "worker": [], "rate": 1},
    {"event": "progress", "model": "m", "worker": 0, "rate": "fast", "epoch": "x" * 600_000},
    {"event": "script", "model": "m", "worker": 0, "rate": {}, "unit": "steps", "loss": None},
    {"event": "model_failed", "model": "m", "reason": {"a": 1}},
    {"event": "message", "message": {"a": ["x" * 9_000]}},
    {"event": {}, "model": []},
    {"event": "tuned", "profile": [], "entry": {"a": 1}},
    {"step": -1, "loss": "x"},
]


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("end", ["", "os.unlink(told); os.mkfifo(told)", "os.truncate(told, 1 << 40)"])
def test_events_of_any_kind_end_in_a_readable_report(node: Node, run: Run, name: str, end: str) -> None:
    passes_on = "while os.path.getsize(read) == before: time.sleep(0.01)"  # until the agent has read some
    begins = "read = work + '/events/events.jsonl'; before = os.path.getsize(read)\n"
    failed = run(name, f"{begins}tell(*{WRONG!r}, 'x' * (20 << 20))\n{passes_on}\n{end}", seconds=400.0)
    assert len(progress(node.status)) < 1 << 20 and reported(node, failed).state in ("done", "failed")
    passed = (node.work / "events" / "events.jsonl").read_text().splitlines()
    assert all(isinstance(json.loads(line)["event"], (str, dict)) for line in passed)


FORKS = """
import ctypes
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            open(f"{work}/command/checkpoints/{os.getpid()}", "w").close()
            while True:
                time.sleep(1000)
        os._exit(0)
while len(os.listdir(f"{work}/command/checkpoints")) < 3:
    time.sleep(0.01)
"""


SPOILT = f"""
import hashlib
def model(name, **more):
    return {{**{IDENTITY!r}, "model": name, "piece": name, "series": [name], **more}}
def made(name, sha256):
    open(f"{{out}}/{{name}}.json", "w").write("{{}}")
    open(f"{{out}}/{{name}}.safetensors", "w").write(name)
    done = {{"event": "model_done", "family": "lstm", "metrics": {{}}, "file": f"{{name}}.safetensors"}}
    tell(model(name, **done, sha256=sha256))
tell({{"event": "started", "models": [model(name) for name in "ABC"]}})
made("A", "0" * 64)
tell(model("B", event="retry", reason="killed"), model("B", event="model_failed", reason="killed twice"))
made("C", hashlib.sha256(b"C").hexdigest())
tell({{"event": "ended"}})
sys.exit(100)
"""


def test_a_failed_or_spoilt_model_leaves_its_neighbour_uploaded(node: Node, run: Run) -> None:
    read = reported(node, run("train", SPOILT), names=("A", "B", "C"))
    assert (read.state, read.retries) == ("failed", 1)
    assert [model["piece"] for model in read.models] == ["C"]
    assert not [key for key in node.uplink.s3.objects if key.endswith("A.safetensors")]
    reasons = {entry["piece"]: entry["reason"] for entry in read.failed}
    assert reasons.keys() == {"A", "B"} and reasons["B"] == "killed twice"


HALF_TOLD = f"""
import hashlib
sha256 = hashlib.sha256(b"x").hexdigest()
for folder in ("files", "index"):
    os.mkdir(f"{{out}}/{{folder}}")
for name in ("m.safetensors", "files/a.csv"):
    open(f"{{out}}/{{name}}", "w").write("x")
for name in ("m.json", f"index/{{sha256}}.json"):
    open(f"{{out}}/{{name}}", "w").write("{{}}")
tell({{"event": "started", "models": [{MODEL!r}]}})
tell({{"event": "model_done", "file": "m.safetensors", "sha256": sha256, **{MODEL!r}}})
tell({{"event": "model_done", "file": "m.safetensors", "sha256": sha256, "family": "x", "metrics": {{}}}})
tell({{"event": "file", "file": "a.csv", "sha256": sha256, "added": True}})
"""


@pytest.mark.parametrize("name", ["train", "prepare"])
def test_a_file_that_is_half_told_is_not_sent(node: Node, run: Run, name: str, caplog: Any) -> None:
    read = reported(node, run(name, HALF_TOLD))
    assert read.models == read.files == () and "lines of its events could not be read" in caplog.text


def test_a_killed_training_says_so(node: Node, run: Run) -> None:
    failed = run("train", "os.kill(os.getpid(), signal.SIGKILL)")
    assert failed is not None and failed.exit_code == 100
    assert failed.what == "the trainer was killed by signal 9"


@pytest.mark.parametrize("name", COMMANDS)
def test_forked_processes_end_with_the_command(node: Node, run: Run, name: str) -> None:
    run(name, FORKS)
    pids = [int(path.name) for path in (node.work / "command" / "checkpoints").iterdir()]
    assert len(pids) == 3 and not any(map(alive, pids))


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("by", ["stop", "time"])
def test_a_command_that_ignores_a_stop_is_killed(
    node: Node, run: Run, stop_when: Callable[..., None], name: str, by: str
) -> None:
    if by == "stop":
        stop_when((node.work / "command" / "checkpoints" / "ready").exists)
    ignores = (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); open(f'{work}/command/checkpoints/ready', 'w')\n"
    )
    failed = run(name, f"{ignores}while True: time.sleep(1000)", seconds=0.5 if by == "time" else 0.0)
    if by == "time":
        assert failed is not None and "did not end within" in failed.what
    else:
        assert reported(node, failed).state == "stopped"


@pytest.mark.parametrize("name", COMMANDS)
def test_its_output_and_its_events_are_bounded(
    node: Node, run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    monkeypatch.setattr(command_process, "MOST_LOG_BYTES", 10_000)
    monkeypatch.setattr(command_process, "LEAST_LOG_BYTES", 10_000)
    monkeypatch.setattr(command_work, "MOST_BYTES", dict.fromkeys(events.MOST_BYTES, 10_000))
    tells = 'tell(*({"event": "x", "step": n} for n in range(1000)))'
    with caplog.at_level(logging.INFO):
        run(name, f"for n in range(1000): print('x' * 100)\nprint('y' * (9 << 20))\n{tells}")
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("| ")]
    assert sum(map(len, lines)) < 10_200 and "the rest is left out" in lines[-1]
    assert 0 < (node.work / "events" / "events.jsonl").stat().st_size <= 10_000


SECRET = "k3y/of+the=tracker"
SAYS = """
import base64, urllib.parse
key = os.environ["API_KEY"]
for said in (key, urllib.parse.quote(key), base64.b64encode(b"me:" + key.encode()).decode(), repr({"a": key})):
    print("said", said)
    tell({"event": "message", "message": said}, {"step": 1, said: 2.0}, {"event": "error", "what": said})
    open(f"{out}/{said.replace('/', '')}-{key.replace('/', '')}", "w").close()
print(sorted(name for name in os.environ if name.startswith(("AWS_", "MAYFLY_", "API_", "OTHER_"))))
sys.exit(3)
"""


@pytest.mark.parametrize("name", COMMANDS)
def test_its_secrets_are_in_nothing_that_the_agent_sends(
    node: Node, run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    monkeypatch.setattr(module, "read_secrets", lambda node, named: dict.fromkeys(named, SECRET))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    with caplog.at_level(logging.INFO):
        failed = run(name, SAYS, secrets={"API_KEY": "/mayfly/mayfly/dev/script-secrets/API_KEY"})
    read = reported(node, failed)
    stored = [*node.uplink.s3.objects, *(body.decode() for body in node.uplink.s3.objects.values())]
    said = "\n".join([caplog.text, repr(read), progress(node.status).decode(), *stored])
    said += (node.work / "events" / "events.jsonl").read_text()
    encoded = base64.b64encode(b"me:" + SECRET.encode()).decode()
    assert "| said [API_KEY]" in said and SECRET not in said and encoded[6:-4] not in said
    (names,) = [record.getMessage()[2:] for record in caplog.records if "MAYFLY_OUT" in record.getMessage()]
    if name in APART:
        assert names == str(sorted(["API_KEY", *CONTRACT])), "and none of the agent's variables"
    else:
        assert "AWS_SECRET_ACCESS_KEY" in names, "docs/security.md says so"


@pytest.mark.parametrize("name", COMMANDS)
def test_only_mayflys_own_programs_run_as_the_agent(node: Node, name: str) -> None:
    command = task_of(node, name).command
    assert (command.user == "own", command.network == "internet") == (name in APART,) * 2
    assert command.user == "own" or command.words[:2] == ("$PYTHON", "-m"), "and no word of a user's"
