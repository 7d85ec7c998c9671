"""The first hour on a GPU: steps are resumed, have limits, and leave tables. Commands are injected; by night the
whole day runs on this machine's CPU.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from benchmarks.device_run import figures_of
from benchmarks.gpu_day import DONE, FAILED, GPU_TESTS, LATE, Day, GpuStep, call, steps_of

ROOT = Path(__file__).resolve().parents[2]
MACHINE = {"date": "2026-11-27", "chip": "NVIDIA H200", "torch": "2.13.0"}
ROW = {"windows_per_second": 490_128, "ratio": 8.27, "gflops": 9_800.0, "first_losses_differ_by": 1e-7}
PACKS = {
    "machine": MACHINE,
    "tables": [
        {"models": 20, "hidden": 64, "batch": 256, "variants": {
            "plain": {**ROW, "ratio": 1.0}, "streams": ROW, "fused": {"failed": "out of memory"},
        }},
    ],
}  # fmt: skip
STEPS = tuple(
    GpuStep(name=name, words=("-m", name, "--out", "OUT"), quick=("--quick",), seconds=60.0, gpus=gpus)
    for name, gpus in (("packs-20", 0), ("memory", 0), ("ddp", 2))
)


class Played:
    """A machine on which each command takes a minute, and writes or prints what it is told."""

    def __init__(self, folder: Path, **answers: Any) -> None:
        self.answers, self.now = answers, 0.0
        self.asked: list[tuple[str, ...]] = []
        self.day = Day(
            folder=folder, chip="NVIDIA H200", gpus=1, quick=True, clock=lambda: self.now, call=self.call
        )

    def call(self, words: list[str], seconds: float, *, on_gpu: bool) -> tuple[str, int | None, str, str]:
        assert on_gpu
        self.asked.append(tuple(words))
        self.now += 60.0
        answer = self.answers.get(words[1], {"rows": []})
        if isinstance(answer, str):
            return answer, 1, "", "Traceback\nRuntimeError: no kernel image"
        Path(words[3]).write_text(json.dumps(answer))
        return DONE, 0, "said", ""

    def names(self) -> list[str]:
        return [words[1] for words in self.asked]


def test_a_day_goes_on_with_the_steps_that_are_not_done(tmp_path):
    first = Played(tmp_path, **{"packs-20": PACKS, "memory": FAILED})
    assert first.day.run(STEPS) == 1 and first.names() == ["packs-20", "memory"]
    assert first.asked[0][-1] == "--quick"
    stored = json.loads((tmp_path / "packs-20.json").read_text())
    assert (stored["state"], stored["chip"], stored["seconds"]) == (DONE, "NVIDIA H200", 60.0)
    assert json.loads((tmp_path / "ddp.json").read_text())["skipped"] == "it needs 2 GPUs"
    assert not list(tmp_path.glob("*.part"))
    second = Played(tmp_path)
    assert second.day.run(STEPS) == 0 and second.names() == ["memory"]
    again = Played(tmp_path)
    assert again.day.run(STEPS, again="packs") == 0 and again.names() == ["packs-20"]
    (tmp_path / "memory.json").write_text("{")
    assert again.day.run(STEPS) == 0 and again.names()[-1] == "memory"


def test_a_rehearsal_and_a_skipped_step_are_not_done(tmp_path):
    rehearsed = Played(tmp_path)
    rehearsed.day.run(STEPS)
    measured = Played(tmp_path)
    measured.day = replace(measured.day, quick=False, gpus=2)
    assert measured.day.run(STEPS) == 0 and measured.names() == ["packs-20", "memory", "ddp"]
    again = Played(tmp_path)
    assert again.day.run(STEPS) == 0 and not again.names(), "a rehearsal replaces no measurement"
    assert again.day.result("packs-20")["quick"] is False and "skipped" not in again.day.result("ddp")


def test_each_result_is_there_before_the_next_step_begins(tmp_path):
    played = Played(tmp_path, **{"packs-20": PACKS})

    def killed(words: list[str], seconds: float, **how: Any) -> tuple[str, int | None, str, str]:
        if words[1] == "memory":
            raise KeyboardInterrupt
        return played.call(words, seconds, **how)

    day = Day(folder=tmp_path, chip="NVIDIA H200", gpus=1, call=killed)
    with pytest.raises(KeyboardInterrupt):
        day.run(STEPS)
    assert day.result("packs-20")["state"] == DONE and "490,128" in (tmp_path / "tables.md").read_text()


def test_a_step_that_could_take_longer_than_is_left_is_left_out(tmp_path, capsys):
    played = Played(tmp_path)
    assert played.day.run(STEPS, minutes=1.5) == 0 and played.names() == ["packs-20"]
    assert "memory: no time left, 60 s needed" in capsys.readouterr().out
    assert not (tmp_path / "memory.json").exists()


def test_tables_have_chip_and_date_and_what_has_none(tmp_path):
    played = Played(tmp_path, **{"packs-20": PACKS, "memory": LATE})
    played.day.run(STEPS)
    told = (tmp_path / "tables.md").read_text()
    assert "## Many small models: packs" in told and ", NVIDIA H200, torch 2.13.0." in told
    assert "| 20, 64, 256 | streams | 490,128 | 8.27 | 9.8 | 1e-07 |" in told
    assert "| 20, 64, 256 | fused | out of memory |" in told
    assert "a rehearsal, not a measurement" in told
    assert "- memory: took too long (RuntimeError: no kernel image)" in told
    assert "- ddp: it needs 2 GPUs" in told


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_step_has_a_name_a_limit_and_a_tiny_form(device):
    steps = steps_of(device)
    assert len({step.name for step in steps}) == len(steps) and all(step.seconds <= 600 for step in steps)
    assert all(step.quick or step.name == "smoke" for step in steps)
    modules = {step.words[1].replace(".", "/") + ".py" for step in steps} - {"pytest.py"}
    assert all((ROOT / module).exists() for module in modules)


def test_a_command_past_its_limit_ends_with_its_children():
    words = ("-c", "import subprocess; print('begun', flush=True); subprocess.run(['sleep', '600'])")
    state, code, output, _ = call(words, 0.5, on_gpu=False)
    assert (state, code) == (LATE, None) and output in ("", "begun\n")


def test_a_runs_time_is_compared_with_that_of_its_steps():
    def at(second: float, event: str, **fields: Any) -> dict[str, Any]:
        return {"time": datetime.fromtimestamp(second, timezone.utc).isoformat(), "event": event, **fields}

    best = {"strategy": "streams", "windows_per_second": 100_000.0}
    events = [
        at(103, "tuned", timings=[best, {"strategy": "fused"}]),
        at(104, "started", workers=1),
        *(at(second, "first_steps") for second in (105, 108)),
        *(at(second, "epoch") for second in (106, 110)),
        at(111, "ended"),
    ]
    found = figures_of(events, began=100.0, seconds=12.0, windows=800_000)
    assert (found["steps"], found["over"], found["strategy"]) == (8.0, 1.5, "streams")
    assert (found["tuned"], found["start"], found["first_steps"], found["first_epoch"]) == (
        3.0,
        4.0,
        5.0,
        6.0,
    )
    assert (found["training"], found["end"]) == (6.0, 2.0)


@pytest.mark.nightly
def test_the_whole_day_runs_on_a_cpu(tmp_path):
    words = [str(ROOT / "scripts/gpu-day"), "--quick", "--device", "cpu", "--out", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=1_800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    states = {path.stem: json.loads(path.read_text())["state"] for path in tmp_path.glob("*.json")}
    assert states == dict.fromkeys((step.name for step in steps_of("cpu")), DONE)
    told = (tmp_path / "tables.md").read_text()
    sections = ("The trial", "Steps", "packs", "Memory", "A whole training", "Beside", "The cost of a TCN")
    assert all(f"## {title}" in told or title in told for title in sections)


@pytest.mark.slow
def test_its_tests_need_what_trains_alone():
    """A borrowed machine has torch, and neither AWS's libraries nor Pulumi's."""
    missing = ("botocore", "boto3", "moto", "pulumi", "paramiko", "ray")
    hides = f"import sys; sys.modules.update(dict.fromkeys({missing}))"
    collects = f"import pytest; sys.exit(pytest.main(['--co', '-q', '-p', 'no:cacheprovider', *{GPU_TESTS}]))"
    ended = subprocess.run(
        [sys.executable, "-c", f"{hides}; {collects}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
