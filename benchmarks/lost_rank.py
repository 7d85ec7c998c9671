"""Rehearse a run on a simulated p4d.24xlarge whose eight ranks train one transformer, and kill one of them.

    python -m benchmarks.lost_rank [--data FILE] [--set KEY=VALUE ...]
    python -m benchmarks.lost_rank --quick                                   on four ranks

Launches `python -m trainer.launch --rehearse --job examples/sp500-transformer.toml`, kills one rank with
signal 9 after the first checkpoint, and prints how the run ended: it must be `done` with one retry. Takes
minutes: the ranks share this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.rounds import machine, write

ROOT = Path(__file__).resolve().parents[1]
JOB = ROOT / "examples" / "sp500-transformer.toml"
LOST = 3  # the rank to kill


def events_of(home: Path) -> list[dict[str, Any]]:
    """Return the events of the node's training so far."""
    files = sorted(home.rglob("events/events.jsonl"))
    lines = files[0].read_text().splitlines(keepends=True) if files else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def main() -> int:
    """Run it; return 0 if a rank was killed and the run ended as it must."""
    parse = argparse.ArgumentParser(
        prog="python -m benchmarks.lost_rank", description=__doc__.splitlines()[0]
    )
    parse.add_argument(
        "--data", type=Path, default=ROOT.parent / "shared" / "data" / "raw" / "SP500_1d_2012-2018.parquet"
    )
    parse.add_argument("--instance", default="p4d.24xlarge")
    parse.add_argument("--set", action="append", default=[], dest="settings")
    parse.add_argument("--quick", action="store_true", help="on the four ranks of a p3.8xlarge")
    parse.add_argument("--out", type=Path, help="the JSON file")
    options = parse.parse_args()
    if options.quick:
        options.instance = "p3.8xlarge"
    with tempfile.TemporaryDirectory(prefix="lost-rank-") as folder:
        home = Path(folder)
        command = [
            sys.executable,
            "-m",
            "trainer.launch",
            "--rehearse",
            "--instance",
            options.instance,
            "--job",
            str(JOB),
        ]
        command += ["--data", str(options.data), "--json", "-y"]
        command += [word for setting in options.settings for word in ("--set", setting)]
        began, killed_at, printed = time.monotonic(), 0.0, 0
        with subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, "MAYFLY_HOME": folder}, stdout=subprocess.PIPE, text=True
        ) as launch:
            while launch.poll() is None:
                events = events_of(home)
                for event in events[printed:]:
                    if event["event"] not in ("progress", "gpu"):
                        print(
                            f"{time.monotonic() - began:6.0f} s  {event['event']}  {event.get('reason', '')}",
                            flush=True,
                        )
                printed = len(events)
                ranks = {
                    event["worker"]: event["pid"] for event in events if event["event"] == "rank_started"
                }
                if not killed_at and any(event["event"] == "checkpoint" for event in events):
                    os.kill(ranks[LOST], signal.SIGKILL)
                    killed_at = time.monotonic() - began
                    print(f"{killed_at:6.0f} s  rank {LOST} of {len(ranks)} killed", flush=True)
                time.sleep(0.5)
            output = launch.stdout.read() if launch.stdout else ""
        subprocess.run(
            [str(Path(sys.executable).with_name("mayfly")), "rehearse", "--stop"],
            env={**os.environ, "MAYFLY_HOME": folder},
        )
    receipt = json.loads(output[output.index("{") :])
    ended = {key: receipt.get(key) for key in ("state", "exit_code", "retries", "seconds")}
    print(json.dumps(ended))
    write("lost_rank", {"machine": machine(), "instance": options.instance, **ended}, options.out)
    return 0 if launch.returncode == 0 and killed_at else 1


if __name__ == "__main__":
    sys.exit(main())
