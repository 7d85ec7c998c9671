"""The training command: files, exit codes, and workers that are killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.disks import refused
from tests.jobs import sets
from tests.processes import await_end_of
from tests.trainer.train.conftest import SMALL
from trainer.bars.document import DataPlan
from trainer.base.files import held_alone
from trainer.train.__main__ import main
from trainer.train.checkpoint_files import CheckpointManifest, Made

ENDLESS = sets("train.epochs=100000", "train.patience=100000")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, write_candles: Any) -> Path:
    folder = tmp_path_factory.mktemp("candles")
    write_candles(folder, "BIG-USD", bars=4000)
    write_candles(folder, "LOW-USD", bars=1200, seed=1)
    return folder


def _descendants(pid: int) -> set[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, queue = set(), [pid]
    while queue:
        for child in children.get(queue.pop(), []):
            found.add(child)
            queue.append(child)
    return found


def test_a_worker_killed_twice_fails_its_model_alone(start, data):
    training = start(data, "--workers", "1", *sets("train.epochs=8", "train.patience=8"))
    for count in (1, 2):
        os.kill(training.await_event("model_started", symbol="BIG-USD", count=count)["pid"], signal.SIGKILL)
    assert training.end() == 100
    (failed,) = training.events("model_failed")
    assert failed["piece"] == "BIG-USD" and "signal 9" in failed["reason"]
    assert [event["piece"] for event in training.events("model_done")] == ["LOW-USD"]
    assert [path.name for path in training.out.glob("*.safetensors")] == [
        "lstm-direction_LOW-USD_1m.safetensors"
    ]
    ended = training.events("ended")[0]
    assert (ended["done"], ended["failed"], ended["retries"]) == (1, 1, 1)


@pytest.mark.nightly
def test_a_dead_workers_pack_is_retried_together_then_one_by_one(start, data):
    training = start(data, "--workers", "1", *ENDLESS, *sets("expert.pack=2", "expert.strategy=fused"))
    for count in (1, 2):  # both models in one worker, which dies twice
        pids = {
            training.await_event("model_started", symbol=symbol, count=count)["pid"]
            for symbol in ("BIG-USD", "LOW-USD")
        }
        assert len(pids) == 1
        os.kill(pids.pop(), signal.SIGKILL)
    first = training.await_event("retry", count=4)["piece"]  # now one by one
    alone = [training.await_event("model_started", count=5)]
    assert alone[0]["piece"] == "BIG-USD" and first in ("BIG-USD", "LOW-USD")
    os.kill(alone[0]["pid"], signal.SIGKILL)
    os.kill(training.await_event("model_started", count=6)["pid"], signal.SIGKILL)
    assert training.end() == 100
    assert [event["piece"] for event in training.events("model_failed")] == ["BIG-USD", "LOW-USD"]
    assert training.events("ended")[0]["retries"] == 4


@pytest.mark.nightly
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes by /proc")
def test_no_worker_outlives_a_supervisor_that_was_killed(start, data):
    training = start(data, "--workers", "2", *ENDLESS, anew=True)
    for symbol in ("BIG-USD", "LOW-USD"):
        training.await_event("progress", symbol=symbol)
    family = _descendants(training.process.pid)
    assert {event["pid"] for event in training.events("model_started")} <= family
    training.process.kill()
    training.process.wait()
    await_end_of(family)


def test_bad_data_exits_2_at_a_desk_and_100_on_a_node(tmp_path, data, capsys, write_candles):
    write_candles(tmp_path, "TINY-USD", bars=100)
    desk = ["--data", str(tmp_path), "--out", str(tmp_path / "out"), "--device", "cpu"]
    assert main(desk) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: TINY-USD has 100 bars")
    assert main([*desk, "--events", str(tmp_path / "events")]) == 100
    (event,) = [json.loads(line) for line in (tmp_path / "events" / "events.jsonl").read_text().splitlines()]
    assert (event["event"], event["code"], event["what"]) == ("error", 100, "TINY-USD has 100 bars")


def test_a_full_disk_before_a_training_is_one_line(tmp_path, data, capsys, monkeypatch):
    out, events = tmp_path / "out", tmp_path / "events"
    monkeypatch.setattr(DataPlan, "to_bytes", refused)
    desk = ["--data", str(data), "--out", str(out), "--device", "cpu"]
    assert main(desk) == 103
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"error: cannot write {out}/plan.json (No space left on device). Free some space."
    assert main([*desk, "--events", str(events)]) == 100
    (event,) = [json.loads(line) for line in (events / "events.jsonl").read_text().splitlines()]
    assert (event["event"], event["what"]) == ("error", f"cannot write {out}/plan.json")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--symbols", "BGI-USD"], "unknown symbol 'BGI-USD'"),
        (["--set", "hiden=4"], "unknown job key 'hiden'. Did you mean model.hidden"),
        (["--set", "train.batch=5000"], "--set train.batch=auto"),
        (["--set", "train.precision=fp16"], "precision fp16 on a CPU"),
        (["--workers", "0"], "--workers is 0"),
        (["--job", "nix.json"], "cannot read job nix.json"),
        (["--job", "deep.json"], "cannot read job deep.json"),
        (["--out", __file__], "test_main.py is not a folder"),
        (["--out", f"{__file__}/models"], "test_main.py is a file). Name a folder"),
    ],
)
def test_bad_input_at_a_desk_is_one_line_and_exit_2(tmp_path, data, capsys, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep.json").write_text("[" * 100_000)
    assert main(["--data", str(data), "--out", str(tmp_path), "--device", "cpu", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


WITHOUT_TORCH = """
import sys
from trainer.train.__main__ import main
code = main(sys.argv[1:])
assert "torch" not in sys.modules and "pyarrow" not in sys.modules
sys.exit(code)
"""


def test_variables_of_the_job_are_set_before_anything_is_read(tmp_path, monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG", "")
    words = ["--data", str(tmp_path / "none"), "--out", str(tmp_path / "out")]
    assert main([*words, "--set", 'machine.env=["NCCL_DEBUG=INFO"]']) == 2
    assert os.environ["NCCL_DEBUG"] == "INFO"


def test_missing_data_is_refused_before_torch_loads(tmp_path):
    words = ["--data", str(tmp_path / "nope"), "--out", str(tmp_path / "out")]
    ended = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *words], capture_output=True, text=True)
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.startswith(f"error: data folder {tmp_path}/nope does not exist")
    assert not (tmp_path / "out").exists()


def test_an_error_that_cant_be_shown_keeps_its_exit_code(tmp_path, data, monkeypatch):
    desk = ["--data", str(data), "--out", str(tmp_path), "--device", "cpu", "--symbols", "BGI-USD"]
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=refused))
    assert main(desk) == 2


def test_finished_pieces_are_known_and_not_made_again(tmp_path, data, capsys):
    finished, events = tmp_path / "finished.json", tmp_path / "events"
    desk = ["--data", str(data), "--out", str(tmp_path / "out"), "--device", "cpu", "--events", str(events)]
    finished.write_text(json.dumps(["BIG-USD", "LOW-USD"]))
    assert main([*desk, "--finished", str(finished), "--workers", "2"]) == 0
    assert not list((tmp_path / "out").glob("*.safetensors")) and not capsys.readouterr().out
    started, ended = [json.loads(line) for line in (events / "events.jsonl").read_text().splitlines()]
    assert [model["piece"] for model in started["models"]] == ["BIG-USD", "LOW-USD"] == started["finished"]
    assert (ended["event"], ended["done"], ended["failed"], ended["stopped"]) == ("ended", 0, 0, [])
    results = json.loads((tmp_path / "out" / "training_results.json").read_text())
    assert [model["state"] for model in results["models"]] == ["finished", "finished"]


def test_a_notice_ends_a_training_with_a_last_checkpoint(start, data, tmp_path, monkeypatch):
    notice, finished = tmp_path / "notice", tmp_path / "finished.json"
    monkeypatch.setenv("MAYFLY_NOTICE", str(notice))
    finished.write_text('["LOW-USD"]')
    training = start(data, "--workers", "1", "--finished", str(finished), *ENDLESS)
    training.await_event("epoch", symbol="BIG-USD")  # no checkpoint is due within its first minute
    notice.write_text("stop\n")
    assert training.end() == 130
    assert {event["piece"] for event in training.events("model_started")} == {"BIG-USD"}
    (saved,), (stopped,) = training.events("checkpoint"), training.events("model_stopped")
    place = training.out / "checkpoints" / saved["folder"]
    assert (place / "manifest.json").exists() and int(place.name) == stopped["step"] > 0
    ended = training.events()[-1]
    assert (ended["event"], ended["stopped"]) == ("ended", ["BIG-USD"]) and not training.events("error")


@pytest.mark.skipif(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, reason="these tests run under nohup")
def test_a_closed_terminal_ends_a_training_like_a_stop(start, data, tmp_path):
    finished = tmp_path / "finished.json"
    finished.write_text('["LOW-USD"]')
    training = start(data, "--workers", "1", "--finished", str(finished), *ENDLESS)
    training.await_event("epoch", symbol="BIG-USD")
    training.process.send_signal(signal.SIGHUP)
    _, err = training.process.communicate()
    assert training.process.returncode == 130 and "training stopped by SIGHUP" in err


def test_a_full_disk_costs_the_files_about_a_training(data, tmp_path, capsys):
    """Checkpoints fill the disk that these are on, too."""
    out = tmp_path / "out"
    (out / "training_results.json" / "in").mkdir(parents=True)
    (out / "observed").mkdir()
    (out / "observed" / "models").touch()
    desk = ["--data", str(data), "--out", str(out), "--device", "cpu", "--symbols", "LOW-USD", *SMALL]
    assert main([*desk, "--epochs", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["piece"] == "LOW-USD"


def test_a_model_that_cant_be_written_is_one_line(data, tmp_path, capfd):
    out = tmp_path / "out"
    (card := out / "lstm-direction_LOW-USD_1m.json").mkdir(parents=True)
    desk = ["--data", str(data), "--out", str(out), "--device", "cpu", "--symbols", "LOW-USD", *SMALL]
    assert main([*desk, "--epochs", "1", "--set", "train.retries=0"]) == 100
    said = capfd.readouterr().err
    assert f"failed: cannot use {card} (Is a directory). Check the path" in said
    assert "Traceback" not in said


def test_a_folder_that_another_command_writes_is_refused(data, tmp_path, capsys):
    out = tmp_path / "out"
    (out / ".candles").mkdir(parents=True)
    with held_alone(out):
        assert main(["--data", str(data), "--out", str(out), "--device", "cpu"]) == 2
        assert "another command writes to" in capsys.readouterr().err
        assert (out / ".candles").exists()


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    """Return the checkpoints that a training of another torch left of one of two models."""
    folder = tmp_path_factory.mktemp("left")
    made = Made(torch="2.99", code="c", settings="s", data="d", precision="fp32")
    empty = {"choice": {}, "state": {}, "run": {}, "shards": {}, "tensors": {}}
    place = folder / "lstm-direction_LOW-USD_1m" / "000000000009"
    place.mkdir(parents=True)
    CheckpointManifest(model=place.parent.name, made=made, **empty).write(place)
    return folder


def _events_of(folder: Path, data: Path, left: Path, *words: str) -> tuple[int, list[dict[str, Any]]]:
    shutil.copytree(left, folder / "checkpoints", dirs_exist_ok=True)
    command = ["--data", str(data), "--out", str(folder / "out"), "--device", "cpu", "--epochs", "1"]
    command += ["--events", str(folder), "--checkpoints", str(folder / "checkpoints"), *SMALL, *words]
    code = main(command)
    return code, [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def test_given_checkpoints_of_another_torch_end_a_run_at_once(tmp_path, data, left):
    (tmp_path / "machine.json").write_text('{"instance_type": "g5.xlarge"}')
    code, events = _events_of(tmp_path, data, left, "--machine", str(tmp_path / "machine.json"))
    (error,) = events
    assert (code, error["event"], error["code"]) == (100, "error", 100)
    assert error["what"] == "the checkpoints of LOW-USD can't be continued here"
    assert error["why"].startswith("torch 2.99 wrote it, this is ") and "--resume" in error["do"]
    (tmp_path / "events.jsonl").unlink()
    (tmp_path / "finished.json").write_text('["BIG-USD", "LOW-USD"]')
    finished = ("--finished", str(tmp_path / "finished.json"))
    assert _events_of(tmp_path, data, left, "--machine", str(tmp_path / "machine.json"), *finished)[0] == 0


@pytest.mark.nightly
def test_a_desk_is_told_why_a_model_begins_anew(tmp_path, data, left):
    code, events = _events_of(tmp_path, data, left)
    (anew,) = [event for event in events if event["event"] == "begun_anew"]
    assert not list((tmp_path / "checkpoints").iterdir())  # it stays: the agent sends what it holds
    assert code == 0 and anew["piece"] == "LOW-USD" and "torch 2.99 wrote it" in anew["reason"]
    assert len([event for event in events if event["event"] == "model_done"]) == 2
