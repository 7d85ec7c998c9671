"""Measure the core-seconds of a rehearsal: a run of one small model on the embedded AWS, with every process
that it starts.

    python -m benchmarks.rehearsal_seconds            a minute on two idle cores
    python -m benchmarks.rehearsal_seconds --quick    only the first run
    python -m benchmarks.rehearsal_seconds --fresh    a new Python for each process, as in `make demo`

The first run applies the Pulumi program, the second replays its calls. Counts user and system time by
getrusage after all descendants have ended: this process adopts orphans (Linux), so server, functions and node
are included. On a busy machine a core does less per second: compare figures of an idle machine only. Writes
benchmarks/results/rehearsal_seconds.json.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from benchmarks.rounds import machine, write

ROOT = str(Path(__file__).resolve().parents[1])
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
CANDLES = ("--out", "candles", "--symbols", "AAA", "--bars", "2500", "--timeframe", "1m", "--seed", "7")
LAUNCH = ("launch", "--rehearse", "--instance", "p3.8xlarge", "--json", "--data", "candles", "--epochs", "1")
SMALL = ("--set", "model.hidden=8", "--set", "model.lookback=20", "--set", "train.batch=128")


def core_seconds() -> float:
    """Wait for all descendants to end; return the user and system seconds of all so far."""
    with suppress(ChildProcessError):  # no child is left
        while True:
            os.waitpid(-1, 0)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rehearsal_seconds", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--fresh", action="store_true", help="start a new Python for each process of a node")
    parser.add_argument("--quick", action="store_true", help="only the first run")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found: dict[str, float] = {}
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "MAYFLY_"))}
        own = {"MAYFLY_HOME": f"{name}/home", "MAYFLY_PROGRAMS": f"{name}/programs", "PYTHONPATH": ROOT}
        environment = kept | own | ({"MAYFLY_REHEARSAL_NODES": "fresh"} if options.fresh else {})

        def run(*words: str) -> None:
            command = [sys.executable, "-m", *words]
            subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)

        run("trainer.data.synthetic", *CANDLES)
        for title in ("with an application of the program", "with a replay of its calls")[
            : 1 if options.quick else 2
        ]:
            before = core_seconds()
            run("trainer.cli.main", *LAUNCH, *SMALL)
            run("trainer.cli.main", "rehearse", "--stop")
            found[title] = round(core_seconds() - before, 1)
            print(f"{found[title]:6.1f} core-seconds {title}", flush=True)
    write(
        "rehearsal_seconds",
        {"machine": machine(), "fresh": options.fresh, "core_seconds": found},
        options.out,
    )


if __name__ == "__main__":
    main()
