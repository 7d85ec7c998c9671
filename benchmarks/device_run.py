"""Train many small models on this machine's device as `mayfly train` does; compare the run with its steps.

    python -m benchmarks.device_run --symbols 20 --bars 100000    LSTMs, on a GPU if there is one
    python -m benchmarks.device_run --quick                       2 symbols of 4,000 bars, on any machine

`steps` are the seconds that the training's windows take at the rate of its own trial; `over` is the whole
command's time over them. The times in between are those of its events: until `tuned` it imports, reads and
has its trial; first steps are told when a pack has taken some; until the last epoch it trains and validates;
then it scores. Data are synthetic, and made before. benchmarks.whole_run splits a run on a CPU by phase.
Writes benchmarks/results/device_run.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.rounds import machine, write
from trainer.bars.document import read_plan

SETTINGS = ("model.hidden=64", "train.batch=256", "train.patience=100", "expert.tune=always")
REACHED = ("tuned", "start", "first_steps", "first_epoch")  # of the figures, in this order


def main() -> None:
    """Train, print and write the figures."""
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--symbols", type=int, default=20)
    parse.add_argument("--bars", type=int, default=100_000)
    parse.add_argument("--epochs", type=int, default=2)
    parse.add_argument("--quick", action="store_true", help="2 symbols of 4,000 bars, hidden 8")
    parse.add_argument("--out", type=Path)
    asked = parse.parse_args()
    settings = [*SETTINGS]
    if asked.quick:
        asked.symbols, asked.bars, asked.epochs = 2, 4_000, 1
        settings += ["model.hidden=8", "model.lookback=10"]
    with tempfile.TemporaryDirectory(prefix="device-run-") as place:
        found = _run(Path(place), asked, settings)
    reached = ", ".join(f"{name.replace('_', ' ')} at {found[name]:.1f}" for name in REACHED)
    times = f"{reached} s, {found['end']:.1f} s after the last epoch"
    print(
        f"{asked.symbols} models, {found['windows']:,} windows by {found['strategy']}: {found['seconds']} s,"
    )
    print(f"  {found['over']} times its steps' {found['steps']} s; {times}")
    figures = {"machine": machine(), "symbols": asked.symbols, "bars": asked.bars, **found}
    print("wrote", write("device_run", figures, asked.out))


def _run(folder: Path, asked: argparse.Namespace, settings: Sequence[str]) -> dict[str, Any]:
    names = ",".join(f"S{number:02d}" for number in range(asked.symbols))
    made = ("--out", str(folder / "data"), "--symbols", names, "--bars", str(asked.bars), "--timeframe", "1m")
    _python("trainer.data.synthetic", *made)
    where = ("--data", str(folder / "data"), "--out", str(folder / "out"), "--events", str(folder / "events"))
    sets = [word for setting in settings for word in ("--set", setting)]
    began = time.time()
    _python("trainer.train", *where, "--epochs", str(asked.epochs), *sets)
    seconds = time.time() - began
    lines = (folder / "events" / "events.jsonl").read_text(encoding="utf-8").splitlines()
    plan = read_plan((folder / "out" / "plan.json").read_bytes())
    windows = asked.epochs * sum(entry.folds[0].bars["train"] for entry in plan.symbols.values())
    return figures_of([json.loads(line) for line in lines], began=began, seconds=seconds, windows=windows)


def figures_of(
    events: Sequence[dict[str, Any]], *, began: float, seconds: float, windows: int
) -> dict[str, Any]:
    """Return a training's figures from its events. `began`: Unix time of the command."""
    first: dict[str, float] = {}  # seconds since then of the first and last event of each kind
    last: dict[str, float] = {}
    for event in events:
        at = datetime.fromisoformat(event["time"]).timestamp() - began
        first.setdefault(event["event"], at)
        last[event["event"]] = at
    (tuned,) = (event for event in events if event["event"] == "tuned")
    best = tuned["timings"][0]
    devices = next(event["workers"] for event in events if event["event"] == "started")
    steps = windows / best["windows_per_second"] / devices
    return {
        "windows": windows,
        "strategy": best["strategy"],
        "windows_per_second": round(best["windows_per_second"], 1),
        "seconds": round(seconds, 2),
        "steps": round(steps, 2),
        "over": round(seconds / steps, 3),
        "tuned": round(last["tuned"], 2),
        "start": round(last["started"], 2),
        "first_steps": round(first["first_steps"], 2),
        "first_epoch": round(first["epoch"], 2),
        "training": round(last["epoch"] - last["started"], 2),
        "end": round(seconds - last["epoch"], 2),
    }


def _python(module: str, *words: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"error: {module} failed: {done.stderr[-2_000:]}")


if __name__ == "__main__":
    main()
