"""Compare our training of many small models with plain torch and Lightning, on the same work.

    python -m benchmarks.packs            3 and 8 models, hidden 64 and 128 (half an hour on two cores)
    python -m benchmarks.packs --quick    8 models, hidden 64, batch 256 (a minute on an idle machine)
    python -m benchmarks.packs --only plain,streams --seconds 1 --shape 20,64,256

Contenders train the same models on the same windows in fp32, and the losses of their first steps are
compared:

    plain   one process, torch's default threads and allocator, nn.LSTM(num_layers=2), one model after another
    plain + allocator      the same, with glibc keeping freed memory (trainer/train/cpu.py)
    plain, our set-up      a process per core, one thread each, allocator: only the slices differ from ours
    Lightning            its Trainer and a DataLoader of windows, one model after another; if it is installed:
                           pip install --no-deps -r benchmarks/requirements.lock
    a process per model    as with mp.spawn, default threads (not in --quick: it starves a small machine)
    ours     a process per core, one thread each, allocator, slices (packs.sequential); on a GPU also
                           streams and fused in one CUDA graph
    ours, by trial         on a GPU: with the strategy that a training's trial chooses, made on the spot
    ours, bf16             with matrix products in bf16

One contender is resident at a time, and out of memory is an answer. Plain torch is timed again at the end:
`drift` is how far it is from its first rate.

Prints windows per second and ratios, and GFLOP/s with the measured peak of the cores, or of the GPU by
precision; on a CPU also the share of a step outside forward, backward and optimizer, on a GPU (but not with
--quick) the share of some traced steps in which a kernel ran. A rate counts equally many windows of each
model: with three models on two cores the third trains after the others, on both cores, as with workers.
Rows are half-year slices of real candles if --data has them, else noise. Writes
benchmarks/results/packs.json. Run it on an idle machine: torch's default threads collapse on busy cores,
which flatters ours; the load is in the file.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.contenders import (
    Failed,
    Phases,
    Share,
    Team,
    batches,
    in_order,
    lightning,
    ours,
    plain,
    plain_as_ours,
)
from benchmarks.rounds import half_precision, machine, write
from trainer.base.errors import DataError
from trainer.data.features import FEATURES, compute_inputs
from trainer.data.read.reading import read_candles
from trainer.job.job import Job
from trainer.job.reading import job_from
from trainer.machines.kernels import CPU_SLICE
from trainer.train.cpu import keep_freed_memory, num_cores, use_one_thread
from trainer.train.observing.trace import WARM_UP_STEPS, traced
from trainer.train.packs.strategy import form_pack
from trainer.train.precision import cpu_has_bf16_recurrence
from trainer.train.predict.readers import gather
from trainer.train.seeds import dropout_keys
from trainer.train.tuning.trial import TRIAL_SECONDS, run_trial

SERIES = ("BTC-USD", "ETH-USD", "SOL-USD", "SPY")
HALF_YEAR = 6 * 30 * 24 * 60
BASE = "plain"
TRACED_STEPS = 10
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """The rounds of each shape: their contenders, their number, and the seconds of one."""

    quick: bool
    only: tuple[str, ...]
    seconds: float
    rounds: int


def main() -> None:
    """Run every shape, print the tables, write the file."""
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--quick", action="store_true")
    parse.add_argument(
        "--shape", action="append", metavar="M,H,B", help="only this: models, hidden, batch (repeatable)"
    )
    parse.add_argument("--only", default="", help="contenders whose name has one of these words: a,b")
    parse.add_argument("--seconds", type=float, help="of a round (default: 2, with --quick 1)")
    parse.add_argument(
        "--data", type=Path, default=Path("../shared/data/raw"), help="folder of minute candles"
    )
    parse.add_argument("--out", type=Path)
    options = parse.parse_args()
    rows, source = _rows(options.data)
    counts = (3, 8, 20, 64) if torch.cuda.is_available() else (3, 8)
    shapes = [(models, hidden, batch) for models in counts for hidden in (64, 128) for batch in (256, 1024)]
    if options.quick:
        shapes = [(8, 64, 256)]
    if options.shape:
        shapes = [_shape(parse, text) for text in options.shape]
    print(f"rows: {source}")
    asked = Rounds(
        quick=options.quick,
        only=tuple(word for word in options.only.split(",") if word),
        seconds=options.seconds or (1.0 if options.quick else 2.0),
        rounds=3 if options.quick else 5,
    )
    tables = [_table(rows, *shape, asked) for shape in shapes]
    found = {"machine": machine(), "rows": source, "tables": tables}
    if torch.cuda.is_available():
        found["peak_gflops"] = {
            precision: _peak_of_gpu(DTYPES[precision]) for precision in ("fp32", half_precision("cuda"))
        }
        for precision, peak in found["peak_gflops"].items():
            print(
                f"peak of the GPU in {precision}, as a large matrix product reaches it: {peak:,.0f} GFLOP/s"
            )
    else:
        found["peak_gflops"], found["outside_share"] = {"fp32": _peak_of_cores()}, _outside_share(rows)
        print(
            f"peak of {num_cores()} cores, as a convolution reaches it: {found['peak_gflops']['fp32']:.0f}"
            " GFLOP/s"
        )
        print(f"share of a step outside forward, backward and optimizer: {found['outside_share']:.1%}")
    print("wrote", write("packs", found, options.out))


def _table(
    rows: Sequence[torch.Tensor], models: int, hidden: int, batch: int, asked: Rounds
) -> dict[str, Any]:
    """Time each contender of a shape alone; print and return its table."""
    job = job_from(
        {"model": {"hidden": hidden, "dropout": 0.0}, "train": {"batch": batch, "precision": "fp32"}}
    )
    rows = [rows[number % len(rows)] for number in range(models)]
    print(f"{models} models, hidden {hidden}, batch {batch}")
    found, chosen = dict[str, dict[str, Any]](), dict[str, Any]()
    contenders = _contenders(job, rows, chosen, quick=asked.quick)
    asked_for = [name for name in contenders if not asked.only or any(word in name for word in asked.only)]
    for name in dict.fromkeys((BASE, *asked_for)):
        found[name] = _timed(contenders[name], asked, base=found.get(BASE, {}))
        found[name]["gflops"] = round(
            found[name].get("windows_per_second", 0) * _flops_per_window(job) / 1e9, 1
        )
        if torch.cuda.is_available() and not asked.quick and name in (variants := gpu_variants(job)):
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                found[name]["kernel_share"] = pool.apply(trace_steps, (variants[name], rows))["kernel_share"]
        print("  " + _line(name, found[name]), flush=True)
    again = _timed(contenders[BASE], asked, base=found[BASE]) if len(found) > 2 else found[BASE]
    drift = round(again.get("ratio", 1.0) - 1, 3)
    print(f"  plain torch again: {drift:+.1%}", flush=True)
    shape = {"models": models, "hidden": hidden, "batch": batch}
    return {**shape, "drift": drift, "trial": chosen, "variants": found}


def _timed(form: Callable[[], Team | Phases], asked: Rounds, *, base: Mapping[str, Any]) -> dict[str, Any]:
    """Return the median rate of a contender, its ratio to plain torch, and how far its first losses are."""
    team = form()
    try:
        losses = team.losses()
        rate = statistics.median(team.rate(asked.seconds) for _ in range(asked.rounds))
    except Failed as failed:
        return {"failed": str(failed)}
    finally:
        team.close()
    expected, slow = base.get("first_losses", losses), base.get("windows_per_second", rate)
    worst = max(abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True))
    return {
        "windows_per_second": round(rate),
        "ratio": round(rate / slow, 2),
        "first_losses_differ_by": float(f"{worst:.1e}"),
        "first_losses": losses,
    }


def _line(name: str, figures: Mapping[str, Any]) -> str:
    if "failed" in figures:
        return f"{name:22} {figures['failed']}"
    speed = f"{figures['windows_per_second']:>9,.0f} windows/s  {figures['ratio']:5.2f}x"
    kernels = f"  a kernel ran {figures['kernel_share']:.0%} of the time" if "kernel_share" in figures else ""
    differ = f"losses differ by {figures['first_losses_differ_by']:.0e}"
    return f"{name:22} {speed}  {figures['gflops']:7.1f} GFLOP/s  {differ}{kernels}"


def _contenders(
    job: Job, rows: Sequence[torch.Tensor], chosen: dict[str, Any], *, quick: bool
) -> dict[str, Callable[[], Team | Phases]]:
    """Return how to start each contender, by name. The trial puts its choice in `chosen` when it has run."""
    whole, alone = in_order(rows, 1), in_order(rows, len(rows))
    found: dict[str, Callable[[], Team | Phases]] = {
        BASE: partial(Team, plain, job, whole, False),
        "plain + allocator": partial(Team, plain, job, whole, True),
    }
    if find_spec("pytorch_lightning"):
        found["Lightning"] = partial(Team, lightning, job, whole)
    if not quick:
        found["a process per model"] = partial(Team, plain, job, alone, False)
    if not torch.cuda.is_available():
        by_core = partial(Phases, rows=rows, cores=num_cores())
        found["plain, our set-up"] = partial(by_core, plain_as_ours, job)
        found["ours"] = partial(by_core, ours, job)
        if cpu_has_bf16_recurrence():
            found["ours, bf16"] = partial(by_core, ours, job.with_train(precision="bf16"))
        return found
    for name, variant in gpu_variants(job).items():
        found[name] = partial(Team, ours, variant, whole, 1)

    def tried() -> Team:
        best = run_trial(job.with_expert(pack=len(rows)), device="cuda", seconds=TRIAL_SECONDS, batch_limit=0)
        chosen.update(best.timings[0].to_dict() if best.timings else {"failed": best.failure})
        strategy = chosen.get("strategy", "sequential")
        return Team(ours, job.with_expert(strategy=strategy), whole, 1)

    found["ours, by trial"] = tried
    return found


def gpu_variants(job: Job) -> dict[str, Job]:
    """Return the job by name in every strategy, in full precision and in this chip's half precision."""
    return {
        f"ours, {strategy}, {precision}": job.with_train(precision=precision).with_expert(strategy=strategy)
        for precision in ("fp32", half_precision("cuda"))
        for strategy in ("sequential", "streams", "fused")
    }


def trace_steps(job: Job, rows: Sequence[torch.Tensor]) -> dict[str, Any]:
    """Record some steps of all models as one pack; return the `trace` event."""
    events: list[dict[str, Any]] = []
    members = Share(rows=rows, first=0).members()
    starts = [batches(members, job, step) for step in range(WARM_UP_STEPS + TRACED_STEPS)]
    with TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json.gz"
        on_gpu = torch.cuda.is_available()
        form = traced(
            partial(form_pack, job=job), steps=TRACED_STEPS, file=file, report=events.append, on_gpu=on_gpu
        )
        pack = form(members)
        for step in starts:
            pack.step([True] * len(members), step)
    return events[0]


def _shape(parse: argparse.ArgumentParser, text: str) -> tuple[int, int, int]:
    try:
        models, hidden, batch = (int(number) for number in text.split(","))
    except ValueError:
        parse.error(f"--shape {text}: give models, hidden and batch, such as 8,64,256")
    return models, hidden, batch


def _rows(folder: Path) -> tuple[list[torch.Tensor], str]:
    """Return eight models' feature rows: two half-year slices of each series, else noise."""
    try:
        series = read_candles(folder, symbols=SERIES, timeframe="1m")
    except DataError:
        generator = torch.Generator().manual_seed(0)
        return [torch.randn(100_000, len(FEATURES), generator=generator) for _ in range(8)], "noise"
    slices = []
    for candles in series.values():
        half = min(HALF_YEAR, len(candles) // 2)
        slices += [candles.rows(0, half), candles.rows(len(candles) - half)]
    return [compute_inputs(part) for part in slices], f"half-year slices of {', '.join(series)}"


def _flops_per_window(job: Job) -> float:
    """Return the FLOPs of forward, weight gradients and input gradients (none for the first layer), 2 per
    multiply-add.
    """
    features, hidden = len(FEATURES), job.model.hidden
    forward = sum(
        2 * 4 * hidden * ((hidden if layer else features) + hidden) * job.model.lookback
        for layer in range(job.model.layers)
    )
    return 3 * forward - 2 * 4 * hidden * features * job.model.lookback


def _peak_of_gpu(dtype: torch.dtype) -> float:
    """Return the rate of a large matrix product on the GPU in GFLOP/s, the best of ten."""
    side, best = 8192, 0.0
    left, right = (torch.randn(side, side, device="cuda").to(dtype) for _ in range(2))
    for _ in range(10):
        torch.cuda.synchronize()
        began = time.perf_counter()
        torch.mm(left, right)
        torch.cuda.synchronize()
        best = max(best, 2 * side**3 / (time.perf_counter() - began) / 1e9)
    return round(best, 1)


def _peak_of_cores() -> float:
    """Return the peak of all cores in GFLOP/s: one core's rate in a convolution that fits its cache, times
    the cores.

    The convolution is oneDNN's, like the LSTM. `torch.mm` is MKL's, which reaches less than half of that on
    an AMD core.
    """
    torch.set_num_threads(1)
    channels, side, kernel = 128, 32, 3
    image = torch.randn(1, channels, side, side).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(channels, channels, kernel, kernel).contiguous(memory_format=torch.channels_last)
    flops = 2 * channels**2 * kernel**2 * side**2
    best = 0.0
    with torch.inference_mode():
        for _ in range(100):
            began = time.perf_counter()
            torch.conv2d(image, weight, padding=1)
            best = max(best, flops / (time.perf_counter() - began) / 1e9)
    return round(best * num_cores(), 1)


def _outside_share(rows: Sequence[torch.Tensor]) -> float:
    """Return the share of a `SequentialPack` step outside forward, backward and optimizer: keys, gather and
    scaling.
    """
    use_one_thread()
    keep_freed_memory()
    job = job_from({"model": {"hidden": 64}, "train": {"batch": 256}})
    members = [
        replace(member, rows_TF=member.rows_TF.cpu()) for member in Share(rows=rows[:1], first=0).members()
    ]
    pack = form_pack(members, job)
    steps_T1 = torch.arange(job.model.lookback)[:, None]
    whole = outside = 0.0
    for step in range(24):
        starts = batches(members, job, step)
        began = time.perf_counter()
        pack.step([True], starts)
        middle = time.perf_counter()
        dropout_keys(seed=0, model="m0", steps=[step], layers=job.model.num_dropouts)
        for first in range(0, job.train.batch, CPU_SLICE):
            part = starts[0][first : first + CPU_SLICE]
            gather(members[0].rows_TF, part, steps_T1, members[0].mean_F, members[0].std_F)
            members[0].labels_TK[part + job.model.lookback - 1]
        if step >= 4:
            whole += middle - began
            outside += time.perf_counter() - middle
    return round(outside / whole, 4)


if __name__ == "__main__":
    main()
