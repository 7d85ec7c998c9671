"""Runs on rows of noise, and a roster for the loop: it offers runs, keeps what they became, and may die."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from trainer.base.settings import CHUNKS
from trainer.job.job import Job
from trainer.train.checkpoint import newest, write
from trainer.train.checkpoint_files import Made
from trainer.train.evaluate.epoch_scores import Validated, Validation
from trainer.train.loop import train
from trainer.train.notice import STOP
from trainer.train.packs.pack import Member, ModelState, Pack, loss_for
from trainer.train.predict.readers import Inputs, reader_of
from trainer.train.run import Run

Strategy = Callable[[Sequence[Member], Job], Pack]
MADE = Made(torch="2.13", code="c" * 64, settings="5" * 64, data="d" * 64, precision="fp32")


class WorkerKilled(Exception):
    """The end of a worker."""


def noise(number: int, *, rows: int, features: int = 4) -> Member:
    """Return a model whose label is the sign of its second feature."""
    generator = torch.Generator().manual_seed(number)
    rows_TF = torch.randn(rows, features, generator=generator)
    labels_TK, zeros, ones = (rows_TF[:, 1:2] > 0).float(), torch.zeros(features), torch.ones(features)
    return Member(name=f"m{number}", rows_TF=rows_TF, labels_TK=labels_TK, mean_F=zeros, std_F=ones)


def run_of_noise(number: int, job: Job, *, windows: int, features: int = 4) -> Run:
    """Return a run over `windows` windows of noise, or chunks of a third of them, and its validation on bars
    after them.
    """
    member, seen = noise(number, rows=windows + 140, features=features), job.model.bars_seen
    bars = torch.arange(windows + 20, windows + 60) + seen - 1
    inputs = Inputs(rows_TF=member.rows_TF, mean_F=member.mean_F, std_F=member.std_F)
    reader = reader_of(job.model.reads, inputs, bars_seen=seen, first_bar=seen - 1)

    def judged(outputs_NO: np.ndarray) -> Validated:
        outputs = torch.from_numpy(outputs_NO)
        return Validated(loss=float(loss_for(job)(outputs, member.labels_TK[bars].double()).mean()))

    reads = torch.arange(0, windows, 3 if job.model.reads == CHUNKS else 1)
    rate = job.train.learning_rate
    most = job.reads_of_epoch(len(reads))
    return Run(
        member=member,
        title=f"S{number}",
        reads=reads,
        validation=Validation(outputs=reader.forward(bars.numpy()), judged=judged),
        learning_rate=rate,
        most_reads=most,
    )


def always(loss: float) -> Validation:
    """Return a validation with one result."""
    return Validation(outputs=lambda model: torch.zeros(1, 1), judged=lambda outputs: Validated(loss=loss))


def heard_at(step: int, word: str = STOP) -> Callable[[], str]:
    """Return the notice of a word that comes after so many steps."""
    count = itertools.count(1)
    return lambda: word if next(count) == step else ""


class Roster:
    """Runs that join as places become free, and go on from a checkpoint in `folder` if there is one.

    With `dies_after` it dies after so many checkpoints. With that or `saves` it writes them into `folder`.
    """

    def __init__(
        self,
        *runs: Run,
        folder: Path | None = None,
        dies_after: int = 0,
        made: Made = MADE,
        saves: bool = False,
    ) -> None:
        self._waiting, self._folder, self._dies_after, self._made = list(runs), folder, dies_after, made
        self._saves = saves or dies_after > 0
        self.left: list[str] = []  # the models that a notice stopped
        self.done: dict[str, Run] = {}
        self.models: dict[str, nn.Module] = {}
        self.resumed: dict[str, int] = {}  # the batches at which a run went on, by its model
        self.checkpoints: list[int] = []  # the batches of each

    def arrivals(self, free: int, *, wait: bool, make_room: Callable[[], None]) -> list[Run]:
        if free and self._waiting:
            make_room()
        joined, self._waiting = self._waiting[:free], self._waiting[free:]
        for run in joined if self._folder is not None else ():
            if (checkpoint := newest(self._folder, run.member.name, self._made)) is not None:
                checkpoint.put_into(run)
                self.resumed[run.member.name] = checkpoint.state.batches
        return joined

    def checkpoint(self, run: Run, state: ModelState, *, snapshot_seconds: float) -> None:
        self.checkpoints.append(state.batches)
        if self._saves:
            write(self._folder, run, state, self._made, choice={})
        if len(self.checkpoints) == self._dies_after:
            raise WorkerKilled

    def finished(self, run: Run, model: nn.Module) -> None:
        self.done[run.member.name], self.models[run.member.name] = run, model

    def stopped(self, runs: Sequence[Run]) -> None:
        self.left += [run.member.name for run in runs]

    def train(
        self,
        form: Strategy,
        job: Job,
        report: Callable[[dict[str, Any]], None] = lambda event: None,
        *,
        places: int = 1,
        heard: Callable[[], str] = lambda: "",
    ) -> Roster:
        """Train the runs, by a clock that is a second later at each look: with `checkpoint_seconds` 1 a
        checkpoint is always due.
        """
        ticks = iter(range(10**6))
        packs = lambda members: form(members, job)  # noqa: E731
        train(self, packs, job, report, places=places, clock=lambda: next(ticks), heard=heard)
        return self
