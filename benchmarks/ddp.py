"""Compare our data parallelism with plain DDP, Lightning DDP and Accelerate: the same model, weights, batches
and optimizer.

    python -m benchmarks.ddp [--ranks 1,2] [--preset tiny] [--batch 256]     three rounds of five seconds each
    python -m benchmarks.ddp --quick                                         one round of a second

Each contender is a script as its project documents it, under the same torchrun, on GPUs (NCCL) if there are
any, else on CPUs (gloo, one thread per rank). All take the first five steps on the same windows, and their
losses must agree; then they step for `--seconds`, in rounds. Prints windows/s of all ranks and the ratio of
ours to each contender, or why a contender failed.

Lightning and Accelerate are not installed with Mayfly: pip install --no-deps -r benchmarks/requirements.lock
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.rounds import interleave, machine, median, ratio, write
from trainer.job.job import Job
from trainer.job.reading import job_from
from trainer.train.cpu import keep_freed_memory
from trainer.train.packs.pack import Member, loss_for, new_model
from trainer.train.packs.strategy import form_pack
from trainer.train.precision import autocast, matmul_dtype
from trainer.train.predict.readers import gather
from trainer.train.ranks.group import Ranks, share
from trainer.train.ranks.layout import DataParallel

ROWS, FEATURES, RING, FIRST = 20_000, 32, 32, 5
TOLERANCE = 2e-4  # relative, of losses over five steps with another order of sums
# Of every contender: the seconds that it is measured, and keys of the job.
OPTIONS = {
    "seconds": 5.0,
    "preset": "tiny",
    "lookback": 32,
    "batch": 256,
    "precision": "auto",
    "compile": "auto",
}
Step = Callable[[int], torch.Tensor]  # number of a step -> mean loss of this rank's rows


def job_for(options: argparse.Namespace) -> Job:
    """Return the job: a transformer without dropout, whose random numbers other contenders could not
    reproduce.
    """
    model = {"preset": options.preset, "lookback": options.lookback, "dropout": 0.0, "hide_series": 0.0}
    return job_from(
        {
            "model": {"name": "transformer", **model},
            "target": {"name": "direction"},
            "train": {"batch": options.batch, "precision": options.precision},
            "expert": {"compile": options.compile},
        }
    )


class Problem:
    """The windows, batches and network that all contenders share."""

    def __init__(self, job: Job, rank: int, ranks: int, device: torch.device) -> None:
        draw = torch.Generator().manual_seed(1)
        rows = torch.randn(ROWS, FEATURES, generator=draw)
        self.job, self.rank, self.ranks, self.device = job, rank, ranks, device
        labels, zero, one = (rows[:, :1] > 0).float(), torch.zeros(FEATURES), torch.ones(FEATURES)
        tensors = {"rows_TF": rows, "labels_TK": labels, "mean_F": zero, "std_F": one}
        self.member = Member(name="m", **{name: tensor.to(device) for name, tensor in tensors.items()})
        last = ROWS - job.model.bars_seen
        self.batches = [
            torch.randint(last, (job.train.batch,), generator=draw).to(device) for _ in range(RING)
        ]
        self._steps_T1 = torch.arange(job.model.bars_seen, device=device)[:, None]
        self.loss, self.dtype = loss_for(job), matmul_dtype(job, device)

    def part(self, step: int) -> torch.Tensor:
        """Return the starts of this rank's windows of a step."""
        rows = share(self.job.train.batch, rank=self.rank, ranks=self.ranks)
        return self.batches[step % RING][rows.start : rows.stop]

    def network(self) -> nn.Module:
        """Return the untrained network, the same in every contender."""
        return new_model(self.member, self.job)

    def mean_loss(self, network: nn.Module, starts_B: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of a network over windows."""
        member = self.member
        x_TBF = gather(member.rows_TF, starts_B, self._steps_T1, member.mean_F, member.std_F)
        with autocast(self.dtype, self.device):
            outputs_BO = network(x_TBF)
        return self.loss(outputs_BO, member.labels_TK[starts_B + (self.job.model.bars_seen - 1)]).mean()

    def optimizer(self, network: nn.Module, **keys: Any) -> torch.optim.Optimizer:
        """Return AdamW with the job's settings."""
        train = self.job.train
        return torch.optim.AdamW(
            network.parameters(), lr=train.learning_rate, weight_decay=train.weight_decay, **keys
        )


class RankWindows(Dataset[torch.Tensor]):
    """This rank's windows, an item per step, endlessly: for loops that need a DataLoader."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, step: int) -> torch.Tensor:
        return self._problem.part(step)


def ours(problem: Problem) -> Step:
    """Return the step of Mayfly's pack with its layout for several ranks."""
    ranks = Ranks(rank=problem.rank, count=problem.ranks, device=problem.device)
    pack = form_pack([problem.member], problem.job, DataParallel(ranks, problem.job))
    # A pack returns this rank's share of the batch's mean loss; the other contenders return the mean over
    # their rows.
    return lambda step: pack.step([True], [problem.batches[step % RING]])[0] * problem.ranks


def plain(problem: Problem, *, tuned: bool = False) -> Step:
    """Return the step of DDP as in torch's tutorial; `tuned`: with its faster settings and the fused
    optimizer.
    """
    faster = {"gradient_as_bucket_view": True, "static_graph": True} if tuned else {}
    devices = [problem.device.index] if problem.device.type == "cuda" else None
    network = nn.parallel.DistributedDataParallel(problem.network(), device_ids=devices, **faster)
    optimizer = problem.optimizer(network, **({"fused": True} if tuned else {}))

    def step(number: int) -> torch.Tensor:
        optimizer.zero_grad()
        loss = problem.mean_loss(network, problem.part(number))
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), problem.job.train.clip_norm)
        optimizer.step()
        return loss.detach()

    return step


def accelerated(problem: Problem) -> Step:
    """Return the step of Hugging Face Accelerate, as in its quick tour."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=problem.device.type == "cpu")
    bare = problem.network()
    network, optimizer = accelerator.prepare(bare, problem.optimizer(bare))
    loader = iter(DataLoader(RankWindows(problem), batch_size=None))

    def step(number: int) -> torch.Tensor:
        optimizer.zero_grad()
        loss = problem.mean_loss(network, next(loader))
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(network.parameters(), problem.job.train.clip_norm)
        optimizer.step()
        return loss.detach()

    return step


def lightning(problem: Problem, seconds: float) -> None:
    """Measure PyTorch Lightning's Trainer with strategy ddp, which owns the loop, from a callback."""
    import pytorch_lightning as pl

    class DdpModule(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = problem.network()

        def training_step(self, starts_B: torch.Tensor, number: int) -> torch.Tensor:
            return problem.mean_loss(self.network, starts_B)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return problem.optimizer(self.network)

    class Listener(pl.Callback):
        def __init__(self) -> None:
            self.steps = measuring(problem, seconds)
            next(self.steps)

        def on_train_batch_end(
            self, trainer: Any, module: Any, outputs: Any, batch: Any, number: int
        ) -> None:
            try:
                self.steps.send(outputs["loss"].detach())
            except StopIteration:
                trainer.should_stop = True

    precision = {torch.float32: "32-true", torch.bfloat16: "bf16-mixed", torch.float16: "16-mixed"}[
        problem.dtype
    ]
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = pl.Trainer(
        accelerator=problem.device.type if problem.device.type == "cpu" else "gpu",
        devices=problem.ranks,
        strategy="ddp",
        precision=precision,
        max_steps=-1,
        max_epochs=-1,
        gradient_clip_val=problem.job.train.clip_norm,
        use_distributed_sampler=False,
        callbacks=[Listener()],
        **quiet,
    )
    trainer.fit(DdpModule(), DataLoader(RankWindows(problem), batch_size=None))


CONTENDERS: dict[str, Callable[[Problem], Step]] = {
    "ours": ours,
    "plain DDP": plain,
    "tuned DDP": partial(plain, tuned=True),
    "Accelerate": accelerated,
}


LIGHTNING = "Lightning DDP"
PACKAGES = {
    "Accelerate": "accelerate",
    LIGHTNING: "pytorch_lightning",
}  # without which a contender is left out


def measuring(problem: Problem, seconds: float) -> Generator[None, torch.Tensor, None]:
    """Receive the loss of each step, and end `seconds` after the first ones. Rank 0 then prints the first
    losses over the whole batch, and windows per second, as JSON.
    """
    losses = []
    for _ in range(FIRST):
        losses.append((yield))
    began, steps = time.perf_counter(), 0
    running = True
    while running:
        yield
        steps += 1
        if steps % 8 == 0:  # all ranks stop at the same step, by rank 0's clock: others would wait for ever
            answer = torch.tensor([int(time.perf_counter() - began < seconds)], device=problem.device)
            dist.broadcast(answer, src=0)
            running = bool(answer.item())
    if problem.device.type == "cuda":
        torch.cuda.synchronize()
    rate = steps * problem.job.train.batch / (time.perf_counter() - began)
    whole = torch.stack(losses).float()
    dist.all_reduce(whole)
    if problem.rank == 0:
        print(json.dumps({"losses": (whole / problem.ranks).tolist(), "rate": rate}), flush=True)


def measure(problem: Problem, options: argparse.Namespace) -> None:
    """Step a contender until it is measured. Its network goes with this function, before the process group.

    A reducer that goes last ends the group's thread while it holds the GIL, which that thread may wait for
    (torch 2.13 with gloo, seen 2026-11-23 by gdb: one run in five hung).
    """
    step, steps = CONTENDERS[options.contender](problem), measuring(problem, options.seconds)
    next(steps)
    with suppress(StopIteration):
        for number in count():
            steps.send(step(number))


def be_a_rank(options: argparse.Namespace) -> None:
    """Run one rank of one contender."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
        torch.set_num_threads(1)
        keep_freed_memory()
    problem = Problem(job_for(options), rank, ranks, device)
    if options.contender == LIGHTNING:
        lightning(problem, options.seconds)
        return
    if options.contender != "Accelerate":  # which creates the group itself
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    measure(problem, options)
    gc.collect()  # of DDP's reducer, which would be the last to hold the group
    dist.destroy_process_group()


class Runs:
    """Runs of the contenders on one number of ranks: first losses by name, and reasons of failures."""

    def __init__(self, ranks: int, options: argparse.Namespace) -> None:
        self._ranks, self._options = ranks, options
        self.losses: dict[str, list[float]] = {}
        self.failed: dict[str, str] = {}

    def rate_of(self, name: str) -> float:
        """Run a contender under torchrun; return its windows per second, NaN if it fails now or failed
        before.
        """
        if name in self.failed:
            return math.nan
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(self._ranks)]
        words = ["-m", "benchmarks.ddp", "--contender", name]
        for key in OPTIONS:
            words += [f"--{key}", str(getattr(self._options, key))]
        loopback = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        ended = subprocess.run(
            [*launcher, *words], env={**os.environ, **loopback}, capture_output=True, text=True
        )
        lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
        if ended.returncode or not lines:
            print(ended.stderr[-4000:], file=sys.stderr)
            error = re.search(r".*(Error\b|terminate called).*", ended.stderr)
            self.failed[name] = error[0].strip() if error else f"exit code {ended.returncode}"
            return math.nan
        result = json.loads(lines[-1])
        self._check(name, result["losses"])
        return float(result["rate"])

    def _check(self, name: str, losses: list[float]) -> None:
        """Mark a contender as failed if its first losses differ from those of the first contender."""
        self.losses.setdefault(name, losses)
        base, expected = next(iter(self.losses.items()))
        worst = max(abs(one - other) / abs(other) for one, other in zip(losses, expected, strict=True))
        if worst > TOLERANCE:
            self.failed[name] = f"its losses are not those of {base}: {worst:.1e}"


def row_of(name: str, row: dict[str, Any]) -> str:
    """Return a contender's line of the table."""
    if row["failed"]:
        return f"  {name:14} failed: {row['failed']}"
    beside = "" if row["ours_is"] is None else f"   ours is {row['ours_is']:.2f} times as fast"
    return f"  {name:14} {row['windows_per_second']:9,.0f} windows/s{beside}"


def main() -> int:
    """Measure every contender on each number of ranks; return 1 if one of them failed."""
    parse = argparse.ArgumentParser(prog="python -m benchmarks.ddp", description=__doc__.splitlines()[0])
    parse.add_argument("--ranks", default="1,2")
    parse.add_argument("--rounds", type=int, default=3)
    for key, default in OPTIONS.items():
        parse.add_argument(f"--{key}", type=type(default), default=default)
    parse.add_argument("--quick", action="store_true", help="one round of a second")
    parse.add_argument("--out", type=Path, help="the JSON file")
    parse.add_argument("--contender", help=argparse.SUPPRESS)
    options = parse.parse_args()
    if options.contender:
        be_a_rank(options)
        return 0
    if options.quick:
        options.rounds, options.seconds = 1, 1.0
    names = [name for name in (*CONTENDERS, LIGHTNING) if find_spec(PACKAGES.get(name, "torch"))]
    results: dict[str, Any] = {"machine": machine(), "options": {**vars(options), "out": None}, "ranks": {}}
    failed = False
    for ranks in map(int, options.ranks.split(",")):
        runs = Runs(ranks, options)
        rates = interleave({name: partial(runs.rate_of, name) for name in names}, rounds=options.rounds)
        failed = failed or bool(runs.failed)
        table = {
            name: {
                "windows_per_second": finite(median(rates, name)),
                "ours_is": finite(ratio(rates, "ours", name)),
                "failed": runs.failed.get(name, ""),
            }
            for name in names
        }
        results["ranks"][ranks] = {**table, "losses": runs.losses.get("ours")}
        print(f"{ranks} ranks", *(row_of(name, row) for name, row in table.items()), sep="\n", flush=True)
    write("ddp", results, options.out)
    return int(failed)


def finite(number: float) -> float | None:
    """Return a number, None for NaN, which JSON lacks."""
    return number if math.isfinite(number) else None


if __name__ == "__main__":
    sys.exit(main())
