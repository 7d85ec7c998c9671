"""Run every example of examples/scripts in a rehearsal as documented, kill it in the middle, and check its
output.

    python -m benchmarks.script_examples            about five minutes; packages come from the package index
    python -m benchmarks.script_examples --quick    only plain torch

Prints a line for each: the number of starts, its message on resuming, the files that `pull` fetched, and
whether their hashes match. The tests run each at its smallest (tests/end_to_end/test_script_examples.py), and
kill the one of plain torch.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.rounds import machine, write

ROOT = Path(__file__).resolve().parents[1]
PLAIN = (
    "--instance",
    "g6.xlarge",
    "--max-duration",
    "2h",
    "--set",
    "script.command=python train.py --epochs 60",
)
EXAMPLES = {  # arguments of the launch, and a text in the log once there is a checkpoint
    "plain-torch": (("--script", "{}/train.py", "--data", "{}/points", *PLAIN), "epoch 3 "),
    "lightning": (
        ("--job", "{}/job.toml", "--set", "script.command=python train.py --epochs 60"),
        "epoch 3 ",
    ),
    "huggingface": (
        ("--job", "{}/job.toml", "--set", "script.command=python train.py --epochs 20"),
        "'epoch': '2'",
    ),
}


def main() -> int:
    """Run them one after the other; return 1 if one is not as expected."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.script_examples", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="only plain torch")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    good: dict[str, bool] = {}
    with tempfile.TemporaryDirectory(prefix="mayfly-examples-") as folder:
        home = Path(folder)
        for name in list(EXAMPLES)[: 1 if options.quick else None]:
            good[name] = run(name, home)
        mayfly(home, "rehearse", "--stop").wait()
    write("script_examples", {"machine": machine(), "as_it_should_be": good}, options.out)
    return 0 if all(good.values()) else 1


def mayfly(home: Path, *words: str) -> subprocess.Popen[str]:
    """Start a `mayfly` command."""
    return subprocess.Popen(
        [sys.executable, "-m", "trainer.cli.main", *words],
        cwd=ROOT,
        env={**os.environ, "MAYFLY_HOME": str(home / "mayfly")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(name: str, home: Path) -> bool:
    """Run one example, kill its script once it has a checkpoint, and print the result; return whether it is
    as expected.
    """
    words, sign = EXAMPLES[name]
    began = time.monotonic()
    launched = mayfly(
        home,
        "launch",
        "--rehearse",
        "--json",
        *(word.format(ROOT / "examples/scripts" / name) for word in words),
    )
    killed = kill_after(sign, home / "mayfly", launched)
    out, err = launched.communicate()
    if launched.returncode:
        print(f"{name}: exit code {launched.returncode}: {err[-300:]}")
        return False
    receipt = json.loads(out)
    pulled = home / name
    mayfly(home, "pull", receipt["run_id"], "--rehearse", "--out", str(pulled)).communicate()
    whole = [
        hashlib.sha256((pulled / "out" / one["file"]).read_bytes()).hexdigest() == one["sha256"]
        for one in receipt["files"]
    ]
    log = (pulled / "log.txt").read_text()
    resumed = re.findall(r"\| (resume[sd] .*)", log)
    (end,) = receipt["scripts"]
    print(
        f"{name}: {receipt['state']} in {time.monotonic() - began:.0f} s, killed {killed}, started"
        f" {end['starts']} times, {resumed}, {sum(whole)} of {len(whole)} files as in the receipt:"
        f" {', '.join(one['file'] for one in receipt['files'])}"
    )
    return receipt["state"] == "done" and end["starts"] == 2 and bool(resumed) and all(whole) and bool(whole)


def kill_after(sign: str, home: Path, launched: subprocess.Popen[str]) -> bool:
    """Kill the script of the launched run once its log contains `sign`; return whether it was killed."""
    known = set(home.glob("sandbox/*"))
    while launched.poll() is None:
        for sandbox in set(home.glob("sandbox/*")) - known:
            log = sandbox / "opt/mayfly/work/node.log"
            if log.exists() and sign in log.read_text():
                for entry in Path("/proc").iterdir():
                    if entry.name.isdecimal() and works_in(entry, sandbox / "opt/mayfly/work/command/files"):
                        os.kill(int(entry.name), signal.SIGKILL)
                        return True
        time.sleep(0.05)
    return False


def works_in(process: Path, folder: Path) -> bool:
    """Return whether a process, given by its folder in /proc, has `folder` as working directory."""
    try:
        return (process / "cwd").readlink() == folder.resolve()
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main())
