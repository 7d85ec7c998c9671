"""Time what a device does beside the steps of a training: rows, windows of a batch, checkpoints.

    python -m benchmarks.overheads            a million rows; an LSTM, and the TCN of 18 M weights
    python -m benchmarks.overheads --quick    few rows and tiny models, on any machine (seconds)

`gather` reads, scales and casts the windows of a batch from rows on the device, as a step does. A checkpoint
is copied on the device, then leaves it by a side stream and is written in the background, while training
steps on: `slower` is how much longer steps take meanwhile. Writes benchmarks/results/overheads.json.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.rounds import machine, write
from trainer.job.job import Job
from trainer.job.reading import parse_job
from trainer.train.checkpoint_files import write_tensors
from trainer.train.packs.pack import Member, Pack
from trainer.train.packs.strategy import form_pack
from trainer.train.predict.readers import gather
from trainer.train.tuning.timing import batches, make_members, warm_up

FEATURES, LOOKBACK = 37, 60
ROWS, QUICK_ROWS = 1_000_000, 20_000
STEPS, QUICK_STEPS = 40, 4


def main() -> None:
    """Measure, print and write the figures."""
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--quick", action="store_true")
    parse.add_argument("--out", type=Path)
    options = parse.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    warm_up(device)
    rows = torch.randn(QUICK_ROWS if options.quick else ROWS, FEATURES)
    steps = QUICK_STEPS if options.quick else STEPS
    figures = {
        "rows": _upload(rows, device),
        "gather": [_gather(rows.to(device), batch) for batch in (256, 2048)],
        "checkpoints": [_checkpoint(name, job, device, steps) for name, job in models(options.quick).items()],
    }
    print(f"  rows to the device: {figures['rows']['gb_per_second']} GB/s")
    for found in figures["gather"]:
        print(f"  windows of {LOOKBACK} bars, batch {found['batch']}: {found['windows_per_second']:,.0f}/s")
    for found in figures["checkpoints"]:
        print(
            f"  checkpoint of {found['name']}, {found['mb']} MB: copied in {found['copy_ms']} ms, written in"
            f" {found['write_ms']} ms, steps {found['slower']:+.1%}"
        )
    print("wrote", write("overheads", {"machine": machine(), **figures}, options.out))


def models(quick: bool) -> dict[str, Job]:
    """Return the models whose checkpoints are timed, by name."""
    if quick:
        small: dict[str, Any] = {"train.batch": 4, "model.chunk": 32, "model.blocks": 2, "model.width": 8}
        return {"a tiny TCN": parse_job({}, {"model.name": "tcn", **small})}
    tcn = parse_job({}, {"model.name": "tcn", "train.batch": 16})
    return {"an LSTM, hidden 64": parse_job({}, {"expert.strategy": "sequential"}), "the TCN": tcn}


def _upload(rows: torch.Tensor, device: torch.device) -> dict[str, float]:
    seconds = _median(device, lambda: rows.to(device, copy=True), tries=3)
    return {"bytes": rows.nbytes, "gb_per_second": round(rows.nbytes / seconds / 1e9, 2)}


def _gather(rows_TF: torch.Tensor, batch: int) -> dict[str, float]:
    device = rows_TF.device
    mean_F, std_F = torch.zeros(FEATURES, device=device), torch.ones(FEATURES, device=device)
    steps_T1 = torch.arange(LOOKBACK, device=device)[:, None]
    starts = torch.randint(0, len(rows_TF) - LOOKBACK, (batch,)).to(device)
    seconds = _median(device, lambda: gather(rows_TF, starts, steps_T1, mean_F, std_F), tries=20)
    return {"batch": batch, "windows_per_second": round(batch / seconds)}


def _checkpoint(name: str, job: Job, device: torch.device, steps: int) -> dict[str, Any]:
    (member,) = members = make_members(1, job, device)
    pack = form_pack(members, job)
    _step(pack, member, job, 3)
    alone = _median(device, lambda: _step(pack, member, job, 1), tries=steps)
    copy = _median(device, lambda: pack.snapshot(0), tries=3)
    state = pack.snapshot(0)
    tensors = {
        f"{part}.{key}": tensor
        for part in ("weights", "exp_avg", "exp_avg_sq")
        for key, tensor in getattr(state, part).items()
    }
    took, times = list[float](), list[float]()
    with tempfile.TemporaryDirectory() as folder:

        def written() -> None:
            began = time.perf_counter()
            write_tensors(Path(folder) / "data.safetensors", tensors)
            took.append(time.perf_counter() - began)

        writer = threading.Thread(target=written)
        writer.start()
        while writer.is_alive() or not times:
            times.append(_median(device, lambda: _step(pack, member, job, 1), tries=1))
        writer.join()
    return {
        "name": name,
        "mb": round(sum(tensor.nbytes for tensor in tensors.values()) / 1e6, 1),
        "copy_ms": round(copy * 1e3, 2),
        "write_ms": round(took[0] * 1e3, 1),
        "step_ms": round(alone * 1e3, 2),
        "slower": round(statistics.median(times) / alone - 1, 3),
    }


def _step(pack: Pack, member: Member, job: Job, count: int) -> None:
    for step in range(count):
        pack.step([True], batches([member], job, step))


def _median(device: torch.device, work: Callable[[], object], *, tries: int) -> float:
    times = []
    for _ in range(tries):
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


if __name__ == "__main__":
    main()
