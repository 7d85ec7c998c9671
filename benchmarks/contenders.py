"""Contenders of benchmarks.packs: processes that take the same steps on the same windows with different code.

A contender is a `Team` of processes. Each sends the losses of its models' first step, for comparison, and
then steps for the requested seconds, repeatedly. One that runs out of memory, or crashes, has `Failed`.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import nn

from trainer.data.features import WARMUP
from trainer.job.job import Job
from trainer.train.cpu import keep_freed_memory
from trainer.train.packs.pack import Member, new_model
from trainer.train.packs.strategy import form_pack
from trainer.train.precision import resolve_precision
from trainer.train.predict.readers import INPUT_LIMIT, gather, scale_
from trainer.train.seeds import derive
from trainer.train.tuning.timing import reason_of
from trainer.train.workers.station import let_threads_sleep

Step = Callable[[int], torch.Tensor]  # number of a step -> loss of each model (M,)
RING = 32  # different batches, used in turn


@dataclass(frozen=True, kw_only=True)
class Share:
    """The models of one process: their rows (T, F) each, and the number of the first model."""

    rows: Sequence[torch.Tensor]
    first: int

    def members(self) -> list[Member]:
        """Return the models, with their rows on this process's device."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return [
            Member(
                name=f"m{self.first + number}",
                rows_TF=rows.to(device),
                labels_TK=(rows[:, :1] > 0).float().to(device),
                mean_F=rows.mean(0).to(device),
                std_F=rows.std(0).clamp(min=1e-6).to(device),
            )
            for number, rows in enumerate(self.rows)
        ]


class Failed(Exception):
    """A contender ran out of memory, or ended."""


class Team:
    """One contender: its processes, each with its share of the models."""

    def __init__(self, work: Callable[..., None], job: Job, shares: Sequence[Share], *arguments: Any) -> None:
        # On a GPU of a server that has loaded torch, which takes seconds. On a CPU each has its own OpenMP.
        context: Any = multiprocessing.get_context("forkserver" if torch.cuda.is_available() else "spawn")
        context.set_forkserver_preload([__name__])
        self._pipes: list[Connection] = []
        self._processes = []
        for share in shares:
            ours, theirs = context.Pipe()
            # Not a daemon: a DataLoader may start workers.
            process = context.Process(target=_guarded, args=(work, theirs, job, share, *arguments))
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        atexit.register(self.close)  # if the benchmark fails: Python waits for processes that are not daemons

    def losses(self) -> list[float]:
        """Return the loss of each model's first step."""
        return [loss for pipe in self._pipes for loss in _received(pipe)]

    def rate(self, seconds: float) -> float:
        """Let every process step for `seconds`, at least one step; return windows per second of all
        of them.
        """
        for pipe in self._pipes:
            pipe.send(seconds)
        counts: list[tuple[int, float]] = [_received(pipe) for pipe in self._pipes]
        return sum(windows / elapsed for windows, elapsed in counts)

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.join()


def _guarded(work: Callable[..., None], pipe: Connection, *arguments: Any) -> None:
    try:
        work(pipe, *arguments)
    except RuntimeError as error:
        pipe.send(Failed(reason_of(error)))


def _received(pipe: Connection) -> Any:
    try:
        answer = pipe.recv()
    except EOFError as end:
        raise Failed("its process ended") from end
    if isinstance(answer, Failed):
        raise answer
    return answer


class Phases:
    """A contender that trains as many models at a time as there are cores, then the rest on all cores, as
    workers do.

    See `trainer.train.workers.station.threads_of`.
    """

    def __init__(
        self, work: Callable[..., None], job: Job, rows: Sequence[torch.Tensor], *, cores: int
    ) -> None:
        left = len(rows) % cores
        full, rest = rows[: len(rows) - left], rows[len(rows) - left :]
        self._phases: list[tuple[Team, int]] = []
        if full:
            self._phases.append((Team(work, job, in_order(full, cores), 1), len(full)))
        if rest:
            shares = [Share(rows=[one], first=len(full) + number) for number, one in enumerate(rest)]
            with threads_that_sleep():
                self._phases.append((Team(work, job, shares, cores // left), left))

    def losses(self) -> list[float]:
        """See `Team.losses`."""
        return [loss for team, _ in self._phases for loss in team.losses()]

    def rate(self, seconds: float) -> float:
        """Let the phases step one after the other; return windows per second, for equally many windows of
        each model.
        """
        return sum(models for _, models in self._phases) / sum(
            models / team.rate(seconds) for team, models in self._phases
        )

    def close(self) -> None:
        """End the processes."""
        for team, _ in self._phases:
            team.close()


@contextmanager
def threads_that_sleep() -> Iterator[None]:
    """Give processes started in the block the OpenMP settings of our workers; others keep torch's
    defaults.
    """
    before = dict(os.environ)
    let_threads_sleep()
    yield
    os.environ.clear()
    os.environ.update(before)


def in_order(rows: Sequence[torch.Tensor], parts: int) -> list[Share]:
    """Return the models in `parts` shares, in order, so that losses can be compared one by one."""
    edges = [round(part * len(rows) / parts) for part in range(parts + 1)]
    return [Share(rows=rows[first:last], first=first) for first, last in zip(edges, edges[1:], strict=False)]


def ours(pipe: Connection, job: Job, share: Share, threads: int) -> None:
    """Run as a worker of `trainer.train.workers.worker`, with the job's strategy and slices."""
    torch.set_num_threads(threads)
    keep_freed_memory()
    members = share.members()
    pack, ring = form_pack(members, job), ring_of_batches(members, job)
    _serve(
        pipe, len(members) * job.train.batch, lambda step: pack.step([True] * len(members), ring[step % RING])
    )


def plain_as_ours(pipe: Connection, job: Job, share: Share, threads: int) -> None:
    """Run the contender `plain` in a process set up like a worker's."""
    torch.set_num_threads(threads)
    plain(pipe, job, share, True)


def plain(pipe: Connection, job: Job, share: Share, allocator: bool) -> None:
    """Run models as a user writes them: an nn.LSTM of several layers, AdamW, a clipped norm, the whole batch
    at once.
    """
    if allocator:
        keep_freed_memory()
    members = share.members()
    resolve_precision(job, members[0].rows_TF.device)  # as ours: without it an LSTM's fp32 is TF32 on a GPU
    nets = [PlainNet(member, job) for member in members]
    optimizers = [_adamw(net, job) for net in nets]
    steps_T1 = torch.arange(job.model.lookback, device=members[0].rows_TF.device)[:, None]
    ring = ring_of_batches(members, job)

    def step(number: int) -> torch.Tensor:
        losses = []
        for member, net, optimizer, starts in zip(
            members, nets, optimizers, ring[number % RING], strict=True
        ):
            x_TBF = gather(member.rows_TF, starts, steps_T1, member.mean_F, member.std_F)
            loss = nn.functional.binary_cross_entropy_with_logits(
                net(x_TBF), member.labels_TK[starts + job.model.lookback - 1]
            )
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(net.parameters(), job.train.clip_norm)
            optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses)

    _serve(pipe, len(members) * job.train.batch, step)


def lightning(pipe: Connection, job: Job, share: Share) -> None:
    """Run the same models under PyTorch Lightning, fitted one after another, with a Dataset of windows and
    its DataLoader.

    Rates are those of the first model's fit: one after another, all models have the rate of one.
    """
    import logging
    import warnings

    import pytorch_lightning

    warnings.filterwarnings("ignore", module="pytorch_lightning")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    there = share.members()
    resolve_precision(job, there[0].rows_TF.device)
    members = [
        replace(member, rows_TF=member.rows_TF.cpu(), labels_TK=member.labels_TK.cpu()) for member in there
    ]

    class SequenceModule(pytorch_lightning.LightningModule):
        def __init__(self, member: Member) -> None:
            super().__init__()
            self.net, self.losses = PlainNet(member, job), list[float]()

        def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
            x_BTF, labels_B = batch
            loss = nn.functional.binary_cross_entropy_with_logits(self.net(x_BTF.transpose(0, 1)), labels_B)
            if not self.losses:
                self.losses.append(float(loss.detach()))
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return _adamw(self.net, job)

    class Serve(pytorch_lightning.Callback):
        """Report the windows of each request when its time is over, then wait for the next request."""

        def __init__(self) -> None:
            self.windows, self.until, self.began = 0, 0.0, 0.0

        def on_train_batch_start(self, *_: Any) -> None:
            if self.windows and time.perf_counter() >= self.until:
                pipe.send((self.windows, time.perf_counter() - self.began))
                self.windows = 0
            if not self.windows:
                seconds = pipe.recv()
                self.began = time.perf_counter()
                self.until = self.began + seconds
            self.windows += job.train.batch

    def fit(member: Member, *, steps: int, callbacks: list[Any]) -> list[float]:
        module = SequenceModule(member)
        trainer = pytorch_lightning.Trainer(
            max_steps=steps,
            max_epochs=-1,
            gradient_clip_val=job.train.clip_norm,
            precision="bf16-mixed" if job.train.precision == "bf16" else "32-true",
            callbacks=callbacks,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        on_gpu = torch.cuda.is_available()
        loader = torch.utils.data.DataLoader(
            PlainWindows(member, job),
            batch_size=job.train.batch,
            sampler=Draws(member, job),
            num_workers=(
                4 if on_gpu else 0
            ),  # on a CPU its workers only take cores from training (slower here)
            pin_memory=on_gpu,
        )
        trainer.fit(module, loader)
        return module.losses

    pipe.send([fit(member, steps=1, callbacks=[])[0] for member in members])
    fit(members[0], steps=-1, callbacks=[Serve()])


class PlainWindows(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Windows of one model as a typical Dataset: rows scaled once; an item is a slice (T, F) and its label
    (1,).
    """

    def __init__(self, member: Member, job: Job) -> None:
        self._rows_TF = scale_(member.rows_TF.clone(), member.mean_F.cpu(), member.std_F.cpu(), INPUT_LIMIT)
        self._labels_TK, self._lookback = member.labels_TK, job.model.lookback

    def __len__(self) -> int:
        return len(self._rows_TF) - self._lookback

    def __getitem__(self, start: int) -> tuple[torch.Tensor, torch.Tensor]:
        end = start + self._lookback
        return self._rows_TF[start:end], self._labels_TK[end - 1]


class Draws(torch.utils.data.Sampler[int]):
    """The windows of `batches`, one by one, endlessly."""

    def __init__(self, member: Member, job: Job) -> None:
        self._member, self._job = member, job

    def __iter__(self) -> Iterator[int]:
        step = 0
        while True:
            yield from batches([self._member], self._job, step)[0].tolist()
            step += 1


class PlainNet(nn.Module):
    """The same network with the same initial weights, as a user would write it."""

    def __init__(self, member: Member, job: Job) -> None:
        super().__init__()
        model = new_model(member, job)
        layers = job.model.layers
        dropout = job.model.dropout if layers > 1 else 0.0
        self.lstm = nn.LSTM(member.rows_TF.shape[1], job.model.hidden, layers, dropout=dropout)
        self.lstm.to(member.rows_TF)
        self.head = nn.Linear(job.model.hidden, 1).to(member.rows_TF)
        state = model.state_dict()
        self.head.load_state_dict({"weight": state["head.weight"], "bias": state["head.bias"]})
        names = [
            (layer, kind)
            for layer in range(job.model.layers)
            for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        ]
        self.lstm.load_state_dict(
            {f"{kind}_l{layer}": state[f"lstms.{layer}.{kind}_l0"] for layer, kind in names}
        )

    def forward(self, x_TBF: torch.Tensor) -> torch.Tensor:
        """Return the logits (B, 1) of windows (T, B, F)."""
        logits: torch.Tensor = self.head(self.lstm(x_TBF)[0][-1])
        return logits


def batches(members: Sequence[Member], job: Job, step: int) -> list[torch.Tensor]:
    """Return the starts (B,) of each model's windows in a step, the same in every process."""
    drawn = []
    for member in members:
        generator = torch.Generator().manual_seed(derive(step, member.name))
        starts = torch.randint(
            WARMUP, len(member.rows_TF) - job.model.lookback, (job.train.batch,), generator=generator
        )
        drawn.append(starts.to(member.rows_TF.device))
    return drawn


def ring_of_batches(members: Sequence[Member], job: Job) -> list[list[torch.Tensor]]:
    """Return the windows of `RING` steps, on the device: drawing them may take longer than a GPU's step."""
    return [batches(members, job, step) for step in range(RING)]


def _adamw(net: nn.Module, job: Job) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        net.parameters(), lr=job.train.learning_rate, weight_decay=job.train.weight_decay
    )


def _serve(pipe: Connection, windows_a_step: int, step: Step) -> None:
    """Send the first step's losses; then, for each request in seconds, step and send (windows, seconds
    taken).
    """
    pipe.send(step(0).tolist())
    done = 1
    while True:
        seconds, windows, began = pipe.recv(), 0, time.perf_counter()
        while not windows or time.perf_counter() - began < seconds:
            step(done).sum().item()  # waits for the GPU
            done, windows = done + 1, windows + windows_a_step
        pipe.send((windows, time.perf_counter() - began))
