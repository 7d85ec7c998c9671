"""Run what a first hour on a GPU has to show, step by step, and render docs' tables of it.

    scripts/gpu-day                              every step, in order; again: those that are not done
    scripts/gpu-day --minutes 14 --only trial,packs-20   what fits, of steps whose name begins so
    scripts/gpu-day --again steps                a step that is done
    python -m benchmarks.gpu_day --quick --device cpu    everything, tiny, on any machine

Each step is a command in a process group of its own, with a limit; its result is in OUT/<step>.json before
the next begins, and OUT/tables.md has the tables of all results so far, with chip and date. A step that
fails, or takes too long, says so in its result, and the next one begins. This process loads no torch. OUT is
benchmarks/results/gpu-day/<chip> unless --out says otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.gpu_day_tables import tables_of

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "gpu-day"
DONE, FAILED, LATE, NO_TIME = "done", "failed", "took too long", "no time left"
TAIL = 4_000  # characters of a step's output that its result has
GPU_TESTS = (
    "tests/trainer/models/test_lstm_bars.py",
    "tests/trainer/train/test_on_a_gpu.py",
    "tests/trainer/train/packs/test_stacked.py",
    "tests/trainer/train/packs/test_waits.py",
)
LSTM_SHAPES = ("8,64,256", "20,64,256", "64,64,256", "20,128,1024")  # models, hidden, batch
NAMES_OF_GPUS = ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")

# Of words, seconds and `on_gpu`: -> state, exit code, stdout, stderr.
Run = Callable[..., tuple[str, int | None, str, str]]


@dataclass(frozen=True, kw_only=True)
class GpuStep:
    """A command of the day. OUT in its words is the file of its figures; without it they are what it
    prints.
    """

    name: str
    words: tuple[str, ...]
    full: tuple[str, ...] = ()  # further words of a measurement
    quick: tuple[str, ...] = ()  # those that make it tiny instead
    seconds: float  # after which it is ended
    gpus: int = 0  # that it needs


def steps_of(device: str) -> tuple[GpuStep, ...]:
    """Return the steps in order: the cheap and decisive ones first."""
    smoke = "cpu" if device == "cpu" else "cuda:0"
    profiles = ("-m", "trainer.cli.main", "profiles")
    memory = ("-m", "benchmarks.memory", "--out", "OUT")
    packs = ("-m", "benchmarks.packs", "--data", "none")  # rows of noise
    tiny = ("--set", "model.hidden=8", "--set", "model.lookback=10", "--set", "expert.pack=2")
    return (
        GpuStep(name="smoke", words=("-m", "trainer.train.smoke", "--device", smoke), seconds=120),
        GpuStep(
            name="trial",
            words=(*profiles, "tune", "--json"),
            full=("--set", "expert.pack=20"),
            quick=("--seconds", "0.3", *tiny),
            seconds=120,
        ),
        GpuStep(
            name="steps", words=("-m", "benchmarks.steps", "--out", "OUT"), quick=("--quick",), seconds=300
        ),
        *(
            GpuStep(
                name=f"packs-{shape.replace(',', '-')}",
                words=(*packs, "--out", "OUT"),
                full=("--seconds", "1", "--shape", shape),
                quick=("--quick", "--shape", "2,8,32", "--only", "set-up", "--seconds", "0.05"),
                seconds=400,
            )
            for shape in LSTM_SHAPES
        ),
        GpuStep(name="tests", words=("-m", "pytest", "-q", *GPU_TESTS), quick=("--co",), seconds=600),
        GpuStep(name="memory", words=memory, quick=("--quick",), seconds=180),
        GpuStep(
            name="device_run",
            words=("-m", "benchmarks.device_run", "--out", "OUT"),
            quick=("--quick",),
            seconds=300,
        ),
        GpuStep(
            name="whole_run",
            words=("-m", "benchmarks.whole_run", "--symbols", "3,20", "--out", "OUT"),
            quick=("--quick",),
            seconds=600,
        ),
        GpuStep(
            name="overheads",
            words=("-m", "benchmarks.overheads", "--out", "OUT"),
            quick=("--quick",),
            seconds=120,
        ),
        GpuStep(
            name="bench",
            words=(*profiles, "bench", "--json"),
            quick=("--quick", "--set", "model.blocks=2", "--set", "model.width=8", "--set", "model.chunk=32"),
            seconds=300,
        ),
        GpuStep(
            name="ddp",
            words=("-m", "benchmarks.ddp", "--ranks", "1,2", "--out", "OUT"),
            quick=("--quick", "--seconds", "0.2", "--batch", "16"),
            seconds=300,
            gpus=2,
        ),
    )


def main() -> int:
    """Run the steps that are not done; return 1 if one of them failed."""
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parse.add_argument("--quick", action="store_true", help="tiny sizes")
    parse.add_argument("--only", default="", help="steps whose name begins with one of these: a,b")
    parse.add_argument("--again", default="", help="steps to run though they are done: a,b")
    parse.add_argument("--minutes", type=float, help="of all steps: one that could take longer is left out")
    parse.add_argument("--list", action="store_true", help="print the steps and their limits")
    parse.add_argument("--out", type=Path, help="folder of the results")
    options = parse.parse_args()
    steps = [one for one in steps_of(options.device) if _begins(one.name, options.only, all_if_none=True)]
    if options.list:
        print("\n".join(f"{one.name:18}{one.seconds:5.0f} s" for one in steps))
        return 0
    gpus = _gpus() if options.device == "cuda" else []
    if options.device == "cuda" and not gpus:
        parse.error("nvidia-smi shows no GPU here: take --device cpu")
    chip = gpus[0] if gpus else "cpu"
    folder = options.out or RESULTS / re.sub(r"[^a-z0-9]+", "-", chip.lower()).strip("-")
    day = Day(folder=folder, chip=chip, gpus=len(gpus) if gpus else 2, quick=options.quick)
    return day.run(steps, again=options.again, minutes=options.minutes)


@dataclass(frozen=True, kw_only=True)
class Day:
    """The results of one chip, in a folder."""

    folder: Path
    chip: str
    gpus: int
    quick: bool = False
    clock: Callable[[], float] = time.monotonic
    call: Run | None = None  # of a command; None: a process

    def run(self, steps: Sequence[GpuStep], *, again: str = "", minutes: float | None = None) -> int:
        """Run the steps that have no result that is done; return 1 if one failed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        ends, failures = self.clock() + (minutes or 1e9) * 60, 0
        for step in steps:
            if self._is_done(step) and not _begins(step.name, again):
                print(f"{step.name}: done before")
                continue
            if step.gpus > self.gpus:
                self._write(step, {"state": DONE, "skipped": f"it needs {step.gpus} GPUs"})
            elif self.clock() + step.seconds > ends:
                print(f"{step.name}: {NO_TIME}, {step.seconds:.0f} s needed", flush=True)
                continue
            else:
                failures += self._run(step)
            (self.folder / "tables.md").write_text(self.tables(), encoding="utf-8")
        print(f"tables: {self.folder / 'tables.md'}")
        return int(failures > 0)

    def _is_done(self, step: GpuStep) -> bool:
        """Return whether a step has its result, from enough GPUs; a tiny one is none of a measurement."""
        known = self.result(step.name)
        is_tiny = bool(known.get("quick")) and not self.quick
        return known.get("state") == DONE and not known.get("skipped") and not is_tiny

    def tables(self) -> str:
        """Return the tables of all results so far, in Markdown."""
        results = {path.stem: self.result(path.stem) for path in sorted(self.folder.glob("*.json"))}
        return tables_of(results)

    def result(self, name: str) -> dict[str, Any]:
        """Return a step's result; {} if it has none."""
        with suppress(OSError, ValueError):
            read = json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))
            return read if isinstance(read, dict) else {}
        return {}

    def _run(self, step: GpuStep) -> bool:
        """Run a step and write its result; return whether it failed."""
        figures = self.folder / f"figures-{step.name}.part"
        figures.unlink(missing_ok=True)
        words = [str(figures) if word == "OUT" else word for word in step.words]
        words += step.quick if self.quick else step.full
        print(f"{step.name}: {step.seconds:.0f} s at most", flush=True)
        began = self.clock()
        state, code, output, errors = (self.call or call)(words, step.seconds, on_gpu=self.chip != "cpu")
        found = _json_in(figures.read_text("utf-8") if figures.exists() else output)
        figures.unlink(missing_ok=True)
        result = {
            "state": state,
            "exit_code": code,
            "words": words,
            "found": found,
            "tail": (errors + output)[-TAIL:],
        }
        self._write(step, {**result, "seconds": round(self.clock() - began, 1)})
        print(
            f"{step.name}: {state}" + ("" if state == DONE else f"\n{(errors + output)[-600:]}"), flush=True
        )
        return state != DONE

    def _write(self, step: GpuStep, result: Mapping[str, Any]) -> None:
        known = {"step": step.name, "chip": self.chip, "date": date.today().isoformat(), "quick": self.quick}
        partial = self.folder / f"{step.name}.part"
        partial.write_text(json.dumps({**known, **result}, indent=1), encoding="utf-8")
        partial.replace(self.folder / f"{step.name}.json")


def call(words: Sequence[str], seconds: float, *, on_gpu: bool) -> tuple[str, int | None, str, str]:
    """Run Python with these words for at most so long; return state, exit code, stdout and stderr. The whole
    process group is ended.
    """
    hidden = {} if on_gpu else {"CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **hidden},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=seconds)
        return (DONE if process.returncode == 0 else FAILED), process.returncode, output, errors
    except subprocess.TimeoutExpired:
        _end(process)
        output, errors = process.communicate()
        return LATE, None, output, errors
    finally:
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _gpus() -> list[str]:
    try:
        shown = subprocess.run(NAMES_OF_GPUS, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in shown.splitlines() if line.strip()]


def _json_in(text: str) -> Any:
    """Return the JSON document that a text is, or its last line; None if there is none."""
    for part in (text, *reversed(text.strip().splitlines()[-1:]), text[text.find("{") :]):
        with suppress(ValueError):
            return json.loads(part)
    return None


def _begins(name: str, words: str, *, all_if_none: bool = False) -> bool:
    wanted = [word for word in words.split(",") if word]
    return all_if_none if not wanted else any(name.startswith(word) for word in wanted)


if __name__ == "__main__":
    sys.exit(main())
