"""Time training steps on this device: rate, FLOP/s, share of time in which a kernel ran, memory.

    python -m benchmarks.steps                     20 LSTMs by strategy and precision, TCN, transformer
    python -m benchmarks.steps --only transformer  those whose name has one of these words: a,b
    python -m benchmarks.steps --quick             tiny models, on any machine (seconds)

All in one process, one model or pack at a time; out of memory is an answer. Shares are of what this device
reached a moment before: `peak`, of a large matrix product in the same precision, and `bandwidth`, of a copy.
A step moves at least what it keeps for its backward pass, out and in again, and each weight with gradient and
moments ten times: `bound` is the share of the bandwidth that this needs. On a CPU there are no kernels to
trace. Writes benchmarks/results/steps.json.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.rounds import half_precision, machine, write
from trainer.job.job import Job
from trainer.job.reading import parse_job
from trainer.machines.memory import GIB, footprint
from trainer.train.cpu import keep_freed_memory, use_one_thread
from trainer.train.observing.trace import WARM_UP_STEPS, traced
from trainer.train.packs.strategy import form_pack
from trainer.train.precision import matmul_dtype
from trainer.train.tuning.timing import batches, make_members, peak_bytes, reason_of

SECONDS, QUICK_SECONDS = 2.0, 0.05
TRACED_STEPS, FEWEST_STEPS, RING = 5, 5, 8
WEIGHT_TRIPS = 10  # of each weight: read twice; gradient and both moments written and read; written; averaged
SIDES = {"cuda": (8192, 1 << 28), "cpu": (512, 1 << 22)}  # of the matrix product; numbers of the copy


def main() -> None:
    """Time every case, print and write the rows."""
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--quick", action="store_true")
    parse.add_argument("--only", default="", help="cases whose name has one of these words: a,b")
    parse.add_argument("--out", type=Path)
    options = parse.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        use_one_thread()
        keep_freed_memory()
    words = [word for word in options.only.split(",") if word]
    half = half_precision(device.type) if device.type == "cuda" else "fp32"
    cases = {
        name: job
        for name, job in (tiny() if options.quick else full(half)).items()
        if not words or any(word in name for word in words)
    }
    reached = {"bandwidth": _bandwidth(device), **{name: _peak(device, name) for name in ("fp32", half)}}
    rows = []
    for name, job in cases.items():
        rows.append(
            {"name": name, **row_of(job, device, reached, QUICK_SECONDS if options.quick else SECONDS)}
        )
        print(_line(rows[-1]), flush=True)
    print("wrote", write("steps", {"machine": machine(), "reached": reached, "rows": rows}, options.out))


def full(half: str) -> dict[str, Job]:
    """Return the cases of a GPU: the models of the promises, by strategy and precision."""
    cases = {}
    for precision in dict.fromkeys(("fp32", half)):
        for strategy in ("sequential", "streams", "fused"):
            keys = {"expert.strategy": strategy, "expert.pack": 20, "train.precision": precision}
            cases[f"20 LSTMs, hidden 64, batch 256, {strategy}, {precision}"] = parse_job({}, keys)
    for chunks in (16, 64):
        keys = {"model.name": "tcn", "model.chunk": 1024, "train.batch": chunks, "train.precision": half}
        cases[f"TCN, {chunks} chunks of 1,024, {half}"] = parse_job({}, keys)
    for windows, compiled in ((64, "never"), (64, "always"), (1_024, "never"), (1_024, "always")):
        keys = {"model.name": "transformer", "model.preset": "large", "train.batch": windows}
        keys |= {"train.precision": half, "expert.compile": compiled}
        told = ", compiled" if compiled == "always" else ""
        cases[f"transformer of 151 M, {windows:,} windows, {half}{told}"] = parse_job({}, keys)
    return cases


def tiny() -> dict[str, Job]:
    """Return a case of each kind that any machine takes in a second."""
    small = {"train.batch": 16, "train.precision": "fp32"}
    lstm = {**small, "model.hidden": 8, "model.lookback": 10, "expert.pack": 2}
    tcn = {"model.name": "tcn", "model.blocks": 2, "model.width": 8, "model.chunk": 32}
    return {
        "2 LSTMs, fused": parse_job({}, {**lstm, "expert.strategy": "fused"}),
        "TCN": parse_job({}, {**small, **tcn}),
        "transformer": parse_job(
            {}, {**small, "model.name": "transformer", "model.preset": "tiny", "model.lookback": 16}
        ),
    }


def flops_of(job: Job) -> float:
    """Return the FLOPs of a read, forward and backward, a multiplication and an addition as two."""
    cost = job.cost
    if cost.flops:
        return cost.flops
    # Each weight of a recurrent layer at each bar, forward and twice backward.
    return cost.mflop * 1e6 * job.model.bars_out if cost.mflop else 6.0 * cost.weights * job.model.bars_seen


def row_of(job: Job, device: torch.device, reached: dict[str, float], seconds: float) -> dict[str, Any]:
    """Return the figures of a job's step on a device, or why there are none."""
    gc.collect()
    before = 0
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = peak_bytes(now=True)
    try:
        step_seconds, events = _timed(job, device, seconds)
    except RuntimeError as error:
        return {"failed": reason_of(error)}
    models = job.expert.pack or 1
    at_once = 1 if job.expert.strategy == "sequential" else models
    windows = job.expert.micro_batch or job.train.batch
    known: dict[str, Any] = {"features": len(job.data.inputs), "bars": 20_000, "windows": windows}
    part = footprint(job, **known, on_gpu=device.type == "cuda")
    moved = models * (2 * part.kept + WEIGHT_TRIPS * 4 * job.cost.weights)
    rate = models * job.train.batch / step_seconds
    precision = "fp32" if matmul_dtype(job, device) == torch.float32 else half_precision(device.type)
    return {
        "windows_per_second": round(rate, 1),
        "step_ms": round(step_seconds * 1e3, 3),
        "tflops": round(rate * flops_of(job) / 1e12, 3),
        "peak_share": round(rate * flops_of(job) / reached[precision], 4),
        "bound": round(moved / step_seconds / reached["bandwidth"], 4),
        "kernel_share": events[0].get("kernel_share") if events else None,
        "memory_gib": round((peak_bytes() - before) / GIB, 3) if before else None,
        "predicted_gib": round(at_once * part.step / GIB, 3),
    }


def _timed(job: Job, device: torch.device, seconds: float) -> tuple[float, list[dict[str, Any]]]:
    """Return the median seconds of a step without a wait for each, and the `trace` event of some others."""
    members, events = make_members(job.expert.pack or 1, job, device), list[dict[str, Any]]()
    ring, active = [batches(members, job, step) for step in range(RING)], [True] * len(members)
    with TemporaryDirectory() as folder:
        file, on_gpu = Path(folder) / "trace.json.gz", device.type == "cuda"
        form: Callable[..., Any] = partial(form_pack, job=job)
        if on_gpu:
            form = traced(form, steps=TRACED_STEPS, file=file, report=events.append, on_gpu=True)
        pack = form(members)
        for step in range(WARM_UP_STEPS + (TRACED_STEPS if on_gpu else 0)):
            pack.step(active, ring[step % RING])
        times = list[float]()
        began = time.perf_counter()
        while len(times) < 3 or time.perf_counter() - began < seconds:
            started = time.perf_counter()
            for step in range(FEWEST_STEPS):
                loss_M = pack.step(active, ring[step % RING])
            loss_M.sum().item()  # waits for the device
            times.append((time.perf_counter() - started) / FEWEST_STEPS)
    return statistics.median(times), events


def _peak(device: torch.device, precision: str) -> float:
    """Return the FLOP/s of a large matrix product, the best of ten."""
    side = SIDES[device.type][0]
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    return 2 * side**3 / _best(device, lambda: torch.mm(left, right))


def _bandwidth(device: torch.device) -> float:
    """Return the bytes per second that a large copy reads and writes."""
    source = torch.zeros(SIDES[device.type][1], device=device)
    into = torch.empty_like(source)
    return 2 * source.nbytes / _best(device, lambda: into.copy_(source))


def _best(device: torch.device, work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(10):
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    return best


def _line(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"  {row['name']:55} {row['failed']}"
    kernels = "" if row["kernel_share"] is None else f"  kernels {row['kernel_share']:.0%}"
    return (
        f"  {row['name']:55} {row['windows_per_second']:>11,.1f}/s  {row['tflops']:8.3f} TFLOP/s"
        f" ({row['peak_share']:.0%} of the peak)  bound {row['bound']:.0%}{kernels}"
    )


if __name__ == "__main__":
    main()
