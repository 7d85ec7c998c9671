"""Split the time of a whole training by phase: plan, features, steps, validation, scores, files, idle.

    python -m benchmarks.whole_run                        3 and 20 symbols of 20,000 minutes, one epoch
    python -m benchmarks.whole_run --symbols 200 --free   steps that cost nothing: all the rest
    python -m benchmarks.whole_run --data FOLDER          every bar of the minute files there
    python -m benchmarks.whole_run --quick                3 of 5,000 minutes

Trains as `mayfly train` does, an LSTM a symbol (hidden 64, batch 256), with timers around the parts of each
process. `--free` replaces each step by none, which is what a chip without limits would leave. Beside it the
same models, each in a process of its own, as many at a time as there are workers; and Lightning's Trainer
(`benchmarks.lightning_run`), if it is installed: one process with its defaults, and a process a worker with
our set-up, which make no baselines, scores or cards. CPU-seconds are of all
processes; those that no timer has are `other`, and what the cores did not use is `idle`. `import` is measured
alone: a process that loads what a worker loads. Writes benchmarks/results/whole_run.json.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import multiprocessing
import multiprocessing.forkserver
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from pyarrow.parquet import read_metadata

from benchmarks.rounds import machine, write
from trainer.train.evaluate.epoch_scores import Validation
from trainer.train.packs.sequential import SequentialPack

TIMED = {  # module and name of a function -> phase; time inside of another one counts there
    ("trainer.train.inputs.source", "plan_and_open"): "plan",
    ("trainer.train.inputs.source", "read_parts"): "read",
    ("trainer.train.inputs.source", "inputs_of"): "features",
    ("trainer.train.workers.worker", "read_source"): "prepare",
    ("trainer.train.workers.helpers", "read_source"): "prepare",
    ("trainer.train.packs.sequential", "SequentialPack.step"): "steps",
    ("trainer.train.workers.piece_files", "PieceFiles.evaluated"): "forwards",
    ("trainer.train.inputs.source", "Source.baselines"): "baselines",
    ("trainer.train.piece", "score_series"): "score",
    ("trainer.train.piece", "save"): "write",
}
PHASES = (*dict.fromkeys(TIMED.values()), "validation")
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
SETTINGS = ("model.hidden=64", "train.batch=256", "train.epochs=1", "expert.tune=never")
LOADED = "import trainer.train.workers.worker"


class Timers:
    """Seconds of CPU by phase of this process; a phase excludes those inside of it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._spent = folder, defaultdict[str, float](float)
        self._inside = threading.local()
        os.register_at_fork(after_in_child=self._spent.clear)  # what the parent spent is the parent's

    def timed(self, function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        """Return the function with its CPU-seconds added to a phase, and written after each file."""

        @wraps(function)
        def run(*arguments: Any, **keys: Any) -> Any:
            stack: list[float] = self._inside.__dict__.setdefault("stack", [])
            stack.append(0.0)
            began = time.thread_time()
            try:
                return function(*arguments, **keys)
            finally:
                whole = time.thread_time() - began
                self._spent[phase] += whole - stack.pop()
                if stack:
                    stack[-1] += whole
                (self._folder / f"{os.getpid()}.json").write_text(json.dumps(self._spent))

        return run

    def install(self, *, free: bool) -> None:
        """Put timers around the parts of a training, in this process and those that it forks."""
        for (module, name), phase in TIMED.items():
            owner: Any = importlib.import_module(module)
            *classes, last = name.split(".")
            for one in classes:
                owner = getattr(owner, one)
            is_free = free and phase == "steps"  # not timed: timers cost more than such a step
            setattr(owner, last, _no_step if is_free else self.timed(getattr(owner, last), phase))
        piece: Any = importlib.import_module("trainer.train.piece")
        made = piece.validation_of
        piece.validation_of = lambda *given: self._validation(made(*given))

    def _validation(self, made: Validation) -> Validation:
        outputs, judged = self.timed(made.outputs, "validation"), self.timed(made.judged, "validation")
        return Validation(outputs=outputs, judged=judged)


def _no_step(pack: SequentialPack, active: list[bool], _: Any) -> torch.Tensor:
    return torch.zeros(len(active))


def main() -> None:
    """Measure, print a table, write the file."""
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--symbols", default="3,20", help="numbers of symbols (default: 3,20)")
    parse.add_argument("--bars", type=int, default=20_000, help="minutes of each (default: 20,000)")
    parse.add_argument("--data", type=Path, help="real candles of a minute, instead of generated ones")
    parse.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parse.add_argument("--free", action="store_true", help="steps cost nothing")
    parse.add_argument("--quick", action="store_true", help="3 symbols of 5,000 minutes")
    parse.add_argument("--out", type=Path, help="the JSON file")
    asked = parse.parse_args()
    if asked.quick:
        asked.symbols, asked.bars = "3", 5_000
    if asked.data is not None:
        asked.symbols = "0"
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # to see what servers of workers took
    found: dict[str, Any] = {"import": round(_measured([sys.executable, "-c", LOADED])[1], 2)}
    bars_of = {}
    print(f"import: {found['import']} CPU-seconds a process that nothing forks")
    for number in (int(word) for word in asked.symbols.split(",")):
        with tempfile.TemporaryDirectory(prefix="whole-run-") as place:
            names, bars = _laid_out(Path(place) / "data", number, asked)
            found[str(len(names))] = _compare(Path(place), names, bars, asked)
            bars_of[str(len(names))] = bars
    figures = {"machine": machine(), "free": asked.free, "bars": bars_of, "symbols": found}
    print(write("whole_run", figures, asked.out))


def _laid_out(data: Path, number: int, asked: argparse.Namespace) -> tuple[list[str], int]:
    """Put files of minutes into a folder; return their symbols, and their bars in all."""
    if asked.data is None:
        names = [f"S{place:03d}" for place in range(number)]
        words = ("--symbols", ",".join(names), "--bars", str(asked.bars), "--timeframe", "1m")
        command = [sys.executable, "-m", "trainer.data.synthetic", "--out", str(data), *words]
        subprocess.run(command, check=True, capture_output=True)
        return names, number * asked.bars
    data.mkdir()
    files = sorted(asked.data.glob("*_1m_*.parquet"))
    for file in files:
        shutil.copy(file, data)
    return [file.name.partition("_")[0] for file in files], sum(
        read_metadata(file).num_rows for file in files
    )


def _compare(folder: Path, names: list[str], bars: int, asked: argparse.Namespace) -> dict[str, Any]:
    ours = _ours(folder, asked)
    made = {"ours": ours}
    if not asked.free:
        trained = [["trainer.train", *_words(folder, name, "--symbols", name)] for name in names]
        alone = [[*words, "--workers", "1"] for words in trained]
        made["a process a model"] = _processes(alone, asked.workers)
    if not asked.free and find_spec("pytorch_lightning"):
        made["Lightning"] = _processes([_lightning(folder, names)], 1)
        shares = [names[first :: asked.workers] for first in range(asked.workers)]
        as_ours = [[*_lightning(folder, share), "--our-set-up"] for share in shares if share]
        made["Lightning, our set-up"] = _processes(as_ours, asked.workers)
    millions = bars / 1e6
    print(f"\n{len(names)} symbols, {bars:,} bars in all, {asked.workers} workers")
    for name, its in made.items():
        each = its["cpu"] / millions
        print(f"  {name:22}{its['wall']:8.1f} s   {its['cpu']:8.1f} CPU-s   {each:8.1f} a million bars")
    for phase, seconds in ours["phases"].items():
        print(f"    {phase:14}{seconds:8.2f} CPU-s  {seconds / millions:8.2f} a million bars")
    return made


def _words(folder: Path, out: str, *more: str) -> list[str]:
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    return ["--data", str(folder / "data"), "--out", str(folder / out), "--device", "cpu", *settings, *more]


def _ours(folder: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """Train all symbols as one job, with timers; workers are forked from here, so that they have them."""
    timers = folder / "timers"
    timers.mkdir()
    words = _words(folder, "ours", "--workers", str(asked.workers))
    forked = multiprocessing.get_context("fork").Process(target=_train, args=(words, timers, asked.free))
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    forked.start()
    forked.join()
    wall, cpu = time.monotonic() - began, _cpu_since(before)
    if forked.exitcode:
        sys.exit("error: the training failed")
    spent = [json.loads(file.read_text()) for file in timers.glob("*.json")]
    phases = {phase: round(sum(one.get(phase, 0.0) for one in spent), 2) for phase in PHASES}
    phases["other"] = round(cpu - sum(phases.values()), 2)
    phases["idle"] = round(asked.workers * wall - cpu, 2)
    return {"wall": round(wall, 1), "cpu": round(cpu, 1), "phases": phases}


def _train(words: list[str], timers: Path, free: bool) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    contexts: Any = multiprocessing.context  # fork the workers, whose server would load all of it again
    contexts._concrete_contexts["forkserver"] = multiprocessing.get_context("fork")
    multiprocessing.forkserver.ensure_running = lambda: None
    importlib.import_module("trainer.train.workers.worker")
    Timers(timers).install(free=free)
    from trainer.train.__main__ import main as train

    sys.exit(train(words))


def _lightning(folder: Path, names: list[str]) -> list[str]:
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    data = ("--data", str(folder / "data"), "--symbols", ",".join(names))
    return ["benchmarks.lightning_run", *data, *settings]


def _processes(modules: list[list[str]], at_once: int) -> dict[str, Any]:
    """Run modules with their words, each in a process of its own, so many at a time."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()

    def one(words: list[str]) -> None:
        subprocess.run([sys.executable, "-m", *words], check=True, capture_output=True)

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(one, modules))
    wall = time.monotonic() - began
    with suppress(ChildProcessError):  # servers of workers, which have become our children
        while True:
            os.wait()
    return {"wall": round(wall, 1), "cpu": round(_cpu_since(before), 1)}


def _measured(command: list[str]) -> tuple[float, float]:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, check=True)
    return time.monotonic() - began, _cpu_since(before)


def _cpu_since(before: resource.struct_rusage) -> float:
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    return now.ru_utime + now.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
