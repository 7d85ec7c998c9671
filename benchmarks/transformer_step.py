"""Measure ten steps of the large transformer in fp32 on this CPU: seconds, FLOP/s, and peak memory beside the
formula.

    python -m benchmarks.transformer_step              32 windows of 32 tokens; then 8 (some minutes)
    python -m benchmarks.transformer_step --steps 2    the same peaks, sooner
    python -m benchmarks.transformer_step --quick      the base preset, two steps each

Each batch size has a process of its own. Its peak is the kernel's (VmHWM) minus what the process held after a
tiny model's step. Freed blocks from 64 KiB on are returned to the kernel at once, so that the peak is what
the step needs: with glibc's thresholds, or a worker's (train/cpu.py), which keep freed blocks, a process held
a fifth more. The formula is that of `gpu_profiles.memory` for weights, gradients, moments and the step; 10 %
are allowed. Writes benchmarks/results/transformer_step.json.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.rounds import machine, write
from trainer.job.job import Job
from trainer.job.reading import job_from
from trainer.machines.memory import GIB, footprint
from trainer.train.packs.strategy import form_pack
from trainer.train.tuning.timing import batches, make_members

ALLOWED = 0.1
_M_MMAP_THRESHOLD = -3  # malloc.h
SHAPES = {"large": ((32, 10), (8, 3)), "base": ((32, 2), (8, 2))}  # batch and steps


def main() -> int:
    """Run each batch size in a process of its own and print its figures; return 1 if the formula is off."""
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--quick", action="store_true")
    parse.add_argument("--steps", type=int, help="of each batch size (default: 10 and 3)")
    parse.add_argument("--out", type=Path)
    parse.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parse.parse_args()
    if options.child:
        preset, batch, steps = options.child
        print(json.dumps(_run(_job(preset, int(batch)), int(steps))))
        return 0
    preset = "base" if options.quick else "large"
    rows = []
    for batch, steps in SHAPES[preset]:
        command = [
            sys.executable,
            "-m",
            "benchmarks.transformer_step",
            "--child",
            preset,
            str(batch),
            str(options.steps or steps),
        ]
        row = json.loads(
            subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
        )
        rows.append(row)
        print(
            f"{preset}: {row['weights']:,} weights, {batch} windows: {row['seconds']:.2f} s per step,"
            f" {row['gflops']} GFLOP/s"
        )
        print(
            f"  peak {row['peak_gib']:.2f} GiB, predicted {row['predicted_gib']:.2f} ({row['ratio']:.3f})",
            flush=True,
        )
    worst = max(abs(row["ratio"] - 1) for row in rows)
    print(f"largest difference from the formula: {worst:.1%}, allowed {ALLOWED:.0%}")
    print("wrote", write("transformer_step", {"machine": machine(), "rows": rows}, options.out))
    return int(worst > ALLOWED)


def _job(preset: str, batch: int) -> Job:
    model = {"name": "transformer", "preset": preset, "lookback": 128}
    train, expert = {"batch": batch, "precision": "fp32"}, {"micro_batch": batch}
    return job_from({"model": model, "train": train, "expert": expert})


def _run(job: Job, steps: int) -> dict[str, Any]:
    ctypes.CDLL("libc.so.6").mallopt(_M_MMAP_THRESHOLD, 1 << 16)
    torch.set_num_threads(2)
    warm_up = _job("tiny", 2)  # the first step of any model loads libraries and starts threads
    form_pack(small := make_members(1, warm_up, torch.device("cpu")), warm_up).step(
        [True], batches(small, warm_up, 0)
    )
    del small
    before = _kib("VmRSS")
    members = make_members(1, job, torch.device("cpu"))
    pack = form_pack(members, job)
    times = []
    for step in range(steps):
        began = time.perf_counter()
        loss = pack.step([True], batches(members, job, step))
        times.append(time.perf_counter() - began)
        assert bool(torch.isfinite(loss).all())
    peak = (_kib("VmHWM") - before) / 2**20
    features = members[0].rows_TF.shape[1]
    known = {"features": features, "bars": members[0].rows_TF.shape[0], "windows": job.train.batch}
    predicted = footprint(job, **known, on_gpu=False).step / GIB
    seconds = sorted(times)[len(times) // 2]
    cost = job.model.cost(features=features, outputs=job.target.outputs)
    return {
        "batch": job.train.batch,
        "steps": steps,
        "weights": cost.weights,
        "seconds": round(seconds, 3),
        "gflops": round(job.train.batch * cost.flops / seconds / 1e9, 1),
        "peak_gib": round(peak, 3),
        "predicted_gib": round(predicted, 3),
        "ratio": round(peak / predicted, 4),
    }


def _kib(field: str) -> int:
    """Return a field of /proc/self/status in KiB."""
    found = re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text(encoding="utf-8"))
    assert found is not None
    return int(found[1])


if __name__ == "__main__":
    sys.exit(main())
