"""Compare the step of a TCN over gathered chunks with a plain loop over a DataLoader of materialized chunks.

    python -m benchmarks.tcn_step            a small, a middle and the full size (ten minutes on two cores)
    python -m benchmarks.tcn_step --quick    only the small one (under a minute)

Contenders train the same model on the same chunks in fp32, and their first losses must agree:

    plain loop           default threads and allocator; materialized chunks with context, DataLoader, AdamW;
                         convolutions that pad and cut off, as in locuslab/TCN
    plain, our set-up    the same with one thread and our allocator's thresholds
    ours    a single model as a worker trains it: all cores if it is wide enough to gain from them, allocator,
                         chunks gathered in the step, convolutions that never pad
    ours, one thread     the same on one core
    ours, a core each    as many models as cores, a process each, as in a job of several symbols
    ours, recomputed     ours, one thread, with activation checkpointing: the time that it costs

Prints chunks per second and ratios; and for ours, by batch, chunks and steps per second. Steps per second say
nothing about speed: a step of a hundred chunks is no slower than a hundred steps of one. Writes
benchmarks/results/tcn_step.json. Run it on an idle machine: torch's default threads collapse on busy cores,
which flatters ours; the load is in the file.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.contenders import threads_that_sleep
from benchmarks.rounds import interleave, machine, median, ratio, write
from trainer.job.job import Job
from trainer.job.pieces.piece import Piece
from trainer.job.reading import job_from
from trainer.machines.kernels import cpu_slice
from trainer.models.tcn.network import Block, Tcn
from trainer.train.cpu import keep_freed_memory, num_cores, use_one_thread
from trainer.train.packs.chunks import Chunks
from trainer.train.packs.pack import Member, new_model
from trainer.train.precision import resolve_precision
from trainer.train.workers.station import threads_of

FEATURES = 37
PLAIN, SET_UP, OURS, ONE = "plain loop", "plain, our set-up", "ours", "ours, one thread"
EACH, RECOMPUTED = "ours, a core each", "ours, recomputed"
# fp32 on a GPU, too: the plain loop has nothing else.
SIZES = {
    size: job_from(
        {"model": {"name": "tcn", "dropout": 0.0, **model}, "train": {"batch": batch, "precision": "fp32"}}
    )
    for size, model, batch in (
        ("small", {"blocks": 4, "width": 32, "chunk": 256}, 8),
        ("middle", {"blocks": 8, "width": 128, "chunk": 512}, 4),
        ("full", {"chunk": 1024}, 2),
    )
}
STEPS = {"small": 20, "middle": 4, "full": 1}
CHUNKS = 64  # in the data
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class PaddedTcn(nn.Module):
    """The same network as usually written: every convolution pads both sides and cuts off the right one."""

    def __init__(self, tcn: Tcn) -> None:
        super().__init__()
        self.tcn = tcn
        for block in tcn.blocks:
            assert isinstance(block, Block)
            for convolution in (block.first, block.second):
                convolution.padding = (block.reach // 2,)

    def forward(self, x_BFX: torch.Tensor) -> torch.Tensor:
        """Return outputs (B, X) for scaled bars (B, F, X)."""
        hidden = x_BFX
        for block in self.tcn.blocks:
            assert isinstance(block, Block)
            inner = hidden
            for convolution in (block.first, block.second):
                inner = torch.relu(convolution(inner)[:, :, : -(block.reach // 2)].contiguous())
            hidden = torch.relu(inner + block.straight(hidden))
        outputs: torch.Tensor = self.tcn.head(hidden).squeeze(1)
        return outputs


def main() -> None:
    """Run every size, print the tables, write the file."""
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--quick", action="store_true")
    parse.add_argument("--out", type=Path)
    options = parse.parse_args()
    sizes = ["small"] if options.quick else list(SIZES)
    tables = [_table(size, rounds=3 if options.quick else 5) for size in sizes]
    batches = _by_batch((1, 4, 16, 64))
    print(
        "wrote", write("tcn_step", {"machine": machine(), "tables": tables, "by_batch": batches}, options.out)
    )


def _table(size: str, *, rounds: int) -> dict[str, Any]:
    job, steps = SIZES[size], STEPS[size]
    teams = {
        PLAIN: _Team(_plain, job, 1),
        SET_UP: _Team(_plain_set_up, job, 1),
        OURS: _Team(_ours_alone, job, 1),
    }
    if DEVICE == "cpu":
        teams[ONE] = _Team(_ours, job, 1)
        teams[EACH] = _Team(_ours, job, num_cores())
    teams[RECOMPUTED] = _Team(_ours, job.with_expert(activation_checkpointing=True), 1)
    try:
        losses = {name: team.first_loss() for name, team in teams.items()}
        rates = interleave({name: partial(team.rate, steps) for name, team in teams.items()}, rounds=rounds)
    finally:
        for team in teams.values():
            team.end()
    apart = max(abs(loss / losses[PLAIN] - 1) for loss in losses.values())
    assert apart < 1e-3, f"not the same work: first losses {losses}"
    parameters = sum(parameter.numel() for parameter in new_model(_member(job), job).parameters())
    print(
        f"\n{size}: {job.model.blocks} x {job.model.width}, {parameters:,} parameters, "
        f"sees {job.model.bars_seen} bars; chunk {job.model.chunk}"
    )
    found = {
        name: {
            "chunks_per_second": round(median(rates, name), 2),
            "ratio": round(ratio(rates, name, PLAIN), 2),
            "ratio_to_set_up": round(ratio(rates, name, SET_UP), 2),
        }
        for name in rates
    }
    for name, row in found.items():
        beside = f"{row['ratio']:.2f} x {PLAIN}  {row['ratio_to_set_up']:.2f} x {SET_UP}"
        print(f"  {name:<20} {row['chunks_per_second']:>10,.2f} chunks/s  {beside}")
    return {
        "size": size,
        "parameters": parameters,
        "bars_seen": job.model.bars_seen,
        "chunk": job.model.chunk,
        "rows": found,
        "rates": rates,
    }


def _by_batch(batches: tuple[int, ...]) -> list[dict[str, float]]:
    """Measure ours at several batches: steps per second fall as the batch grows, chunks per second do not."""
    print("\nours, small, by batch:        it/s    chunks/s")
    rows = []
    for batch in batches:
        team = _Team(_ours, SIZES["small"].with_train(batch=batch), 1)
        team.first_loss()
        chunks = max(team.rate(max(1, 64 // batch)) for _ in range(3))
        team.end()
        rows.append(
            {
                "batch": batch,
                "steps_per_second": round(chunks / batch, 2),
                "chunks_per_second": round(chunks, 2),
            }
        )
        print(f"  batch {batch:<4}             {chunks / batch:>10,.2f}  {chunks:>10,.2f}")
    return rows


class _Team:
    """Processes that step one model each, so that each contender has its own threads and allocator."""

    def __init__(self, begin: Callable[[Job], Iterator[float]], job: Job, processes: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._job, self._ends = job, []
        self._processes = []
        for _ in range(processes):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(begin, job, theirs), daemon=True)
            with threads_that_sleep() if begin is _ours_alone else nullcontext():
                process.start()
            self._ends.append(ours)
            self._processes.append(process)

    def first_loss(self) -> float:
        """Return the first step's loss; every contender has the same weights and chunks there."""
        return self._ask(1)

    def rate(self, steps: int) -> float:
        """Return chunks per second of all processes together."""
        began = time.perf_counter()
        self._ask(steps)
        return steps * self._job.train.batch * len(self._ends) / (time.perf_counter() - began)

    def _ask(self, steps: int) -> float:
        """Let every process take `steps` steps; return the last loss of one of them."""
        for end in self._ends:
            end.send(steps)
        return [float(end.recv()) for end in self._ends][0]

    def end(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.join()


def _serve(begin: Callable[[Job], Iterator[float]], job: Job, connection: Connection) -> None:
    losses = begin(job)
    while True:
        steps = connection.recv()
        connection.send([next(losses) for _ in range(steps)][-1])


def _member(job: Job) -> Member:
    generator = torch.Generator().manual_seed(0)
    num_rows = CHUNKS * job.model.chunk + job.model.bars_seen - 1
    rows_TF = torch.randn(num_rows, FEATURES, generator=generator)
    labels_T = rows_TF[:, 0].roll(3) + 0.1 * torch.randn(num_rows, generator=generator)
    return Member(
        name="tcn",
        rows_TF=rows_TF.to(DEVICE),
        labels_TK=labels_T[:, None].to(DEVICE),
        mean_F=rows_TF.mean(0).to(DEVICE),
        std_F=rows_TF.std(0).to(DEVICE),
    )


def _starts(job: Job) -> torch.Tensor:
    return torch.arange(CHUNKS) * job.model.chunk


def _ours_alone(job: Job) -> Iterator[float]:
    alone = Piece(name="tcn", title="A", kind="symbol", series=("A",), source="A", estimate=1)
    return _ours(job, threads_of(job, [alone], num_workers=1, cores=num_cores())[alone.name])


def _ours(job: Job, threads: int = 1) -> Iterator[float]:
    torch.set_num_threads(threads)
    keep_freed_memory()
    micro_batch = cpu_slice(job.cost) if DEVICE == "cpu" else job.train.batch
    pack = Chunks([_member(job)], job, micro_batch=micro_batch)
    first = _starts(job)[: job.train.batch].to(DEVICE)
    yield float(pack.step([True], [first]))
    generator = torch.Generator().manual_seed(0)
    while True:
        order = torch.randperm(CHUNKS, generator=generator)
        for batch in torch.split(_starts(job)[order].to(DEVICE), job.train.batch):
            yield float(pack.step([True], [batch]))


def _plain_set_up(job: Job) -> Iterator[float]:
    use_one_thread()
    keep_freed_memory()
    return _plain(job)


def _plain(job: Job) -> Iterator[float]:
    member = _member(job)
    resolve_precision(job, member.rows_TF.device)  # as ours: without it a convolution's fp32 is TF32 on a GPU
    model = PaddedTcn(new_model(member, job))  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=job.train.learning_rate, weight_decay=job.train.weight_decay
    )
    scaled = ((member.rows_TF - member.mean_F) / member.std_F).cpu()
    read = job.model.chunk + job.model.bars_seen - 1
    chunks = torch.stack([scaled[start : start + read].T for start in _starts(job).tolist()])
    labels = torch.stack(
        [
            member.labels_TK[start + job.model.bars_seen - 1 : start + read, 0].cpu()
            for start in _starts(job).tolist()
        ]
    )
    dataset = TensorDataset(chunks.contiguous(), labels)

    def step(x_BFX: torch.Tensor, labels_BT: torch.Tensor) -> float:
        outputs = model(x_BFX.to(DEVICE))[:, -job.model.chunk :]
        loss = nn.functional.mse_loss(outputs, labels_BT.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), job.train.clip_norm)
        optimizer.step()
        return loss.item()

    yield step(*dataset[: job.train.batch])
    while True:
        for batch in DataLoader(dataset, batch_size=job.train.batch, shuffle=True):
            yield step(*batch)


if __name__ == "__main__":
    main()
