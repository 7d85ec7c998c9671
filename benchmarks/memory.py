"""Compare the predicted and the measured memory of a training step, for LSTMs by strategy and for TCNs.

    python -m benchmarks.memory            a dozen shapes (on a CPU a minute, on a GPU less)
    python -m benchmarks.memory --quick    the smallest of them (seconds)

On a GPU it measures the peak of the memory that torch's allocator had allocated during the steps, and had
reserved. On a CPU it counts what autograd keeps between forward and backward pass (unique storages of saved
tensors), and the peak during a step by torch's profiler. There the count excludes what oneDNN keeps of an
`nn.LSTM`, and the prediction what cuDNN would keep: they are unrelated. Writes
benchmarks/results/memory.json.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import _EventType
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from benchmarks.rounds import half_precision, machine, write
from trainer.data.features import FEATURES
from trainer.job.job import Job
from trainer.job.reading import parse_job
from trainer.machines.memory import STREAM_WORKSPACE, Footprint, footprint
from trainer.train.packs.strategy import form_pack
from trainer.train.tuning.timing import OUT_OF_MEMORY, batches, is_out_of_memory, make_members, warm_up

MIB = 2**20
STEPS = 3
MARK = "the step"
ALLOWED = 0.1  # relative difference from the prediction
LSTM = {"cuda": ((2, 64, 256), (2, 128, 1024)), "cpu": ((1, 32, 128), (2, 64, 256))}  # layers, hidden, batch
TCN = {
    "cuda": ((12, 512, 1024, 4), (12, 512, 1024, 16)),
    "cpu": ((4, 64, 256, 8), (6, 96, 512, 4)),
}  # blocks, width, chunk, chunks
PACK = {"cuda": 8, "cpu": 2}


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Bytes of a pack's step on a CPU: `kept` by autograd, `hidden` in opaque tensors of a library, and the
    `peak`.
    """

    kept: int
    hidden: int
    peak: int


def main() -> None:
    """Measure every shape, print the table, write the file."""
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--quick", action="store_true")
    parse.add_argument("--out", type=Path)
    options = parse.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"
    how = "measured on the GPU" if on_gpu else "counted on a CPU: saved tensors, and the profiler's peak"
    print(f"{how}; MiB of a step, predicted / measured (ratio)")
    if on_gpu:
        warm_up(device)
    rows = []
    for job in jobs(device.type, half=half_precision(device.type), quick=options.quick):
        rows.append(_measured(job, device) if on_gpu else _counted(job))
        cells = [_cell(key, found) for key, found in rows[-1]["figures"].items()]
        print(f"  {rows[-1]['shape']:46} " + ("   ".join(cells) or OUT_OF_MEMORY), flush=True)
    ratios = [found["ratio"] for row in rows for found in row["figures"].values() if "ratio" in found]
    worst = max((abs(ratio - 1) for ratio in ratios), default=0.0)
    print(f"largest difference from the prediction: {worst:.0%}, allowed {ALLOWED:.0%}")
    print(
        "wrote",
        write(
            "memory", {"machine": machine(), "how": how, "worst": round(worst, 3), "rows": rows}, options.out
        ),
    )


def jobs(kind: str, *, half: str, quick: bool) -> list[Job]:
    """Return a job for each shape, in one slice, in full precision and in `half`."""
    lstms = [
        {
            "expert.strategy": strategy,
            "expert.pack": 1 if strategy == "sequential" else PACK[kind],
            "model.layers": layers,
            "model.hidden": hidden,
            "train.batch": batch,
        }
        for layers, hidden, batch in LSTM[kind][: 1 if quick else None]
        for strategy in ("sequential", "streams", "fused")
    ]
    tcns = [
        {
            "model.name": "tcn",
            "model.blocks": blocks,
            "model.width": width,
            "model.chunk": chunk,
            "train.batch": chunks,
        }
        for blocks, width, chunk, chunks in TCN[kind][: 1 if quick else None]
    ]
    plain: list[dict[str, Any]] = [{"train.precision": "fp32"}, {"train.precision": half}][
        : 1 if quick else None
    ]
    again = [{**option, "expert.activation_checkpointing": True} for option in plain]
    settings = [{**shape, **option} for shape in lstms for option in plain]
    settings += [{**shape, **option} for shape in tcns for option in (*plain, *again)]
    return [parse_job({}, {**one, "expert.micro_batch": one["train.batch"]}) for one in settings]


def predicted(job: Job, *, on_gpu: bool) -> tuple[Footprint, int]:
    """Return one model's footprint, and the number of models whose steps hold memory at once: one in a
    sequential pack. On a GPU also one of streams, as torch's allocator sees it: the host records one model
    after another. What the graph keeps for all of them shows as reserved.
    """
    bars = make_members(1, job, torch.device("cpu"))[0].rows_TF.shape[0]
    part = footprint(job, features=len(FEATURES), bars=bars, windows=job.expert.micro_batch, on_gpu=on_gpu)
    at_once = ("fused",) if on_gpu else ("streams", "fused")
    return part, job.expert.pack if job.expert.strategy in at_once else 1


def counted(job: Job) -> Counted:
    """Count the bytes of one step of the job's pack on this CPU, without rows and weights. The job's batch is
    one slice.
    """
    members = make_members(job.expert.pack or 1, job, torch.device("cpu"))
    pack, starts, active = form_pack(members, job), batches(members, job, 0), [True] * len(members)
    pack.step(active, starts)  # the optimizer allocates its state in the first step
    saved: dict[int, tuple[StorageWeakRef, int, bool]] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        # oneDNN's opaque tensors are uint8; masks are bool, keys int32.
        saved[storage._cdata] = (StorageWeakRef(storage), storage.nbytes(), tensor.dtype == torch.uint8)
        return tensor

    gc.collect()
    gc.disable()  # a collection in the middle would make the peak random
    try:
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            pack.step(active, starts)
        # Saved weights and rows still exist.
        gone = [(size, opaque) for weak, size, opaque in saved.values() if weak.expired()]
        # oneDNN's copies in half precision depend on the chip (a seventh more with AMX) and say nothing about
        # a GPU, so it is off; but on for convolutions, which take far more without it.
        with torch.backends.mkldnn.flags(enabled=job.model.name != "lstm"):
            peak = _peak(lambda: pack.step(active, starts))
    finally:
        gc.enable()
    return Counted(
        kept=sum(size for size, opaque in gone if not opaque),
        hidden=sum(size for size, opaque in gone if opaque),
        peak=peak,
    )


def held(job: Job) -> int:
    """Count the bytes of the job's pack after its first step, without rows: weights, gradients, moments,
    averages.
    """
    members = make_members(job.expert.pack or 1, job, torch.device("cpu"))
    starts = batches(members, job, 0)
    gc.collect()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        pack = form_pack(members, job)
        pack.step([True] * len(members), starts)
    *_, (_, level) = _levels(profile)
    del pack  # keeps its memory allocated until here
    return level


def _peak(step: Callable[[], object]) -> int:
    """Return the peak of bytes allocated during a step, including gradients."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        step()  # blocks older than the profile are not counted; in the second step there are none
        with torch.profiler.record_function(MARK):
            step()
    return max(level for marked, level in _levels(profile) if marked)


def _levels(profile: torch.profiler.profile) -> Iterator[tuple[bool, int]]:
    """Yield, after each allocation or release, whether MARK was passed, and the bytes of blocks allocated in
    the profile.
    """
    blocks: dict[int, int] = {}
    marked, level = False, 0
    events = _flat(profile.profiler.kineto_results.experimental_event_tree())
    for event in sorted(events, key=lambda event: event.start_time_ns):
        marked = marked or event.name == MARK
        if event.tag == _EventType.Allocation:
            block = event.extra_fields
            # A freed block may be older than the profile: then its size is unknown and counts 0.
            level -= blocks.pop(block.ptr, 0)
            if block.alloc_size > 0:
                blocks[block.ptr] = block.alloc_size
                level += block.alloc_size
            yield marked, level


def _flat(events: Iterable[Any]) -> Iterator[Any]:
    for event in events:
        yield event
        yield from _flat(event.children)


def _counted(job: Job) -> dict[str, Any]:
    part, models = predicted(job, on_gpu=False)
    step = counted(job)
    is_onednn = job.model.name == "lstm" and job.expert.strategy != "fused"
    figures = {"kept": _figure(models * (part.kept - part.assumed), step.kept)}
    if not is_onednn:
        figures["peak"] = _figure(models * (part.kept + part.workspace), step.peak)
    return {"shape": _name(job), "figures": figures, "hidden_mib": round(step.hidden / MIB, 1)}


def _measured(job: Job, device: torch.device) -> dict[str, Any]:
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(device)
    members = make_members(job.expert.pack or 1, job, device)
    pack = form_pack(members, job)
    torch.cuda.reset_peak_memory_stats(device)
    try:
        for step in range(STEPS):
            pack.step([True] * len(members), batches(members, job, step))
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return {"shape": _name(job), "figures": {}}
    part, models = predicted(job, on_gpu=True)
    expected = len(members) * (part.rows + part.weights) + models * (part.kept + part.workspace)
    if job.expert.strategy == "streams":  # those of the other streams stay
        expected += (len(members) - 1) * STREAM_WORKSPACE
    return {
        "shape": _name(job),
        "figures": {
            "allocated": _figure(expected, torch.cuda.max_memory_allocated(device) - before),
            "reserved": {"found_mib": round(torch.cuda.max_memory_reserved(device) / MIB, 1)},
        },
    }


def _figure(expected: float, found: float) -> dict[str, float]:
    return {
        "predicted_mib": round(expected / MIB, 2),
        "found_mib": round(found / MIB, 2),
        "ratio": round(found / expected, 3),
    }


def _cell(key: str, found: dict[str, float]) -> str:
    if "ratio" not in found:
        return f"{key} {found['found_mib']:,.1f}"
    return f"{key} {found['predicted_mib']:8,.1f} / {found['found_mib']:8,.1f} ({found['ratio']:.2f})"


def _name(job: Job) -> str:
    again = ", checkpointing" if job.expert.activation_checkpointing else ""
    if job.model.name == "tcn":
        return (
            f"TCN {job.model.blocks} x {job.model.width}, {job.train.batch} of {job.model.chunk},"
            f" {job.train.precision}{again}"
        )
    train, expert = job.train, job.expert
    return (
        f"LSTM {expert.strategy} x {expert.pack}, {job.model.layers} x {job.model.hidden}, "
        f"batch {train.batch}, {train.precision}{again}"
    )


if __name__ == "__main__":
    main()
