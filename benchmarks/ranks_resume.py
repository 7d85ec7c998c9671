"""Check that training resumes after kills and on other numbers of ranks, with the losses of an uninterrupted
training.

    python -m benchmarks.ranks_resume        two ranks, kill -9, one process, kill -9, two ranks (two minutes)
    python -m benchmarks.ranks_resume --quick           two ranks, kill -9, one process
    python -m benchmarks.ranks_resume --seed 3          kill at other times
    python -m benchmarks.ranks_resume --ranks 4,1,2,3   other numbers of ranks

Each part is `python -m trainer.train` with its own --workers. All but the last are killed with signal 9, the
whole process group, at a time drawn from the seed: 1 to 3 checkpoints after the part's start, plus up to a
second, in the middle of a step or of a checkpoint. Checkpoints are a second apart. The job is a small LSTM of
all symbols, in fp32 with dropout.

Prints where each part resumed, and the largest relative difference of any epoch's training or validation loss
from the uninterrupted training in one process. Fails if it is above 1e-5. Writes
benchmarks/results/ranks_resume.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.rounds import machine, write
from trainer.data.synthetic import main as make_candles
from trainer.store.card import read_card

KEYS = (
    "model.hidden=24",
    "model.layers=2",
    "model.lookback=60",
    "model.dropout=0.2",
    "train.batch=64",
    "train.learning_rate=3e-4",
    "train.epochs=24",
    "train.patience=24",
)
KEYS += ("data.pooled=true", "train.distributed=always", "train.checkpoint_seconds=1", "expert.tune=never")
TOLERANCE = 1e-5


class RunOnRanks:
    """One training command, in a process group of its own."""

    def __init__(self, data: Path, folder: Path, number: int, *, ranks: int) -> None:
        self._out, self._events = folder / "out", folder / f"events-{number}"
        command = [
            sys.executable,
            "-m",
            "trainer.train",
            "--device",
            "cpu",
            "--data",
            str(data),
            "--out",
            str(self._out),
        ]
        command += [
            "--events",
            str(self._events),
            "--workers",
            str(ranks),
            *(w for key in KEYS for w in ("--set", key)),
        ]
        self._process = subprocess.Popen(
            command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )

    def history(self) -> list[dict[str, Any]]:
        """Return the history in the card of its model."""
        (done,) = self.events("model_done")
        return list(read_card(self._out / done["file"]).training["history"])

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return its events of this name so far."""
        file = self._events / "events.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [
            event
            for event in (json.loads(line) for line in lines if line.endswith("\n"))
            if event["event"] == name
        ]

    def kill_after(self, checkpoints: int, seconds: float) -> bool:
        """Kill it `seconds` after its `checkpoints`-th checkpoint; return whether it was still running."""
        while len(self.events("checkpoint")) < checkpoints and self._process.poll() is None:
            time.sleep(0.01)
        time.sleep(seconds)
        running = self._process.poll() is None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        return running

    def end(self) -> None:
        """Wait for its end. Exits if it failed."""
        _, error = self._process.communicate()
        if self._process.returncode:
            raise SystemExit(f"the training failed: {error.decode(errors='replace')[-2000:]}")


def main() -> None:
    """Train without interruption, train with kills, compare."""
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--seed", type=int, default=14)
    parse.add_argument("--ranks", help="ranks of each part, default 2,1,2")
    parse.add_argument("--quick", action="store_true", help="two parts, 2,1")
    parse.add_argument("--out", type=Path)
    options = parse.parse_args()
    chance, parts = (
        random.Random(options.seed),
        _parts(options.ranks or ("2,1" if options.quick else "2,1,2")),
    )
    with tempfile.TemporaryDirectory(prefix="mayfly-ranks-") as scratch:
        folder = Path(scratch)
        data = folder / "candles"
        make_candles(["--out", str(data), "--symbols", "A-USD,B-USD", "--bars", "2000"])
        alone = RunOnRanks(data, folder / "alone", 0, ranks=1)
        alone.end()
        began = []
        for number, ranks in enumerate(parts):
            part = RunOnRanks(data, folder / "cut", number, ranks=ranks)
            if number < len(parts) - 1:
                moment = (chance.randint(1, 3), chance.random())
                if not part.kill_after(*moment):
                    raise SystemExit("the training ended before it could be killed: raise epochs")
            else:
                part.end()
            resumed = [(event["epoch"], event["visited"]) for event in part.events("resumed")]
            began.append({"ranks": ranks, "resumed_at": resumed[0] if resumed else None})
            print(
                f"{ranks} rank(s): "
                + (f"resumed at epoch {resumed[0][0]}, window {resumed[0][1]:,}" if resumed else "started")
            )
        pairs = list(zip(alone.history(), part.history(), strict=True))
    apart = max(
        abs(there[key] - here[key]) / abs(here[key])
        for here, there in pairs
        for key in ("train_loss", "validation_loss")
    )
    print(f"{len(pairs)} epochs, largest relative difference of a loss: {apart:.2e}")
    result = {
        "seed": options.seed,
        "parts": began,
        "epochs": len(pairs),
        "largest_relative_difference": apart,
    }
    write("ranks_resume", {"machine": machine(), **result}, options.out)
    if apart > TOLERANCE or any(one["resumed_at"] is None for one in began[1:]):
        raise SystemExit("the losses differ, or a part did not resume")


def _parts(text: str) -> list[int]:
    """Return the ranks of each part."""
    return [int(ranks) for ranks in text.split(",")]


if __name__ == "__main__":
    main()
