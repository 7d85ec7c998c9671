"""A model's training under way: its data, its position, and its best weights so far."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from trainer.job.job import Job
from trainer.train.evaluate.epoch_scores import Validation
from trainer.train.orders import Orders
from trainer.train.packs.pack import Member, ModelState
from trainer.train.schedule import rate_factor
from trainer.train.seeds import Episodes

MAX_SKIPPED_STEPS = 10  # of an epoch: see the loop's rule for losses that are not finite
FIRST_STEPS = 32  # whose losses a card has: as many as the loop reads at once
MOST_MATES = 4_096
EARLIER = "those before a checkpoint"  # among the mates of a run that goes on from one


@dataclass(kw_only=True)
class Run:
    """Progress of one model's training: its position, and its best weights so far."""

    member: Member
    title: str  # of its piece
    reads: torch.Tensor  # int64: the first row of each window, or chunk, that an epoch visits
    validation: Validation | None  # of a network, after an epoch; None: of a refit, and of a run to be sent
    learning_rate: float
    most_reads: int = 0  # of an epoch; 0: all
    episodes: Episodes | None = None  # of an agent, which visits windows in turn
    last_epoch: int = 0  # 0: the job's
    epochs_asked: int = 0  # by its job
    scored_before: int = 0  # how often a training that ended with fewer epochs was scored on test
    # Of the piece's other stages: epochs and steps before this run, epochs after it at most, and what the
    # earlier ones left, for its checkpoints (`trainer.train.stages`).
    fit: int = 0  # its number among the trainings of its piece, from 1 on; 0: there is one
    epochs_before: int = 0
    steps_before: int = 0
    epochs_after: int = 0
    earlier: Mapping[str, torch.Tensor] = field(default_factory=dict)
    epoch: int = 0  # epochs finished
    position: int = 0  # windows of the current epoch that were visited
    order: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    orders: Orders | None = None  # once its first epoch has begun
    loss_sum: float = 0.0
    loss_windows: int = 0
    skipped: int = 0  # steps of this epoch
    lowered: int = 0
    best_loss: float = math.inf
    best_epoch: int = 0
    best_weights: dict[str, torch.Tensor] = field(default_factory=dict)  # with buffers: `packs.tensors`
    best_outputs: np.ndarray | None = None  # of these weights on validation, see `Validated`
    history: list[dict[str, Any]] = field(default_factory=list)
    first_steps: list[dict[str, float]] = field(default_factory=list)  # losses of the first epoch's first
    told_first: bool = False  # whether they were reported
    mates: tuple[str, ...] = ()  # models that were in a pack with it, itself included; MOST_MATES at most
    active: bool = True
    drop: bool = False  # it is to end early: set by another thread
    dropped: bool = False  # it has ended so
    failure: str = ""
    resume: ModelState | None = None  # state of the checkpoint to resume from
    saved_at: float = -math.inf  # by the loop's clock

    @property
    def num_windows(self) -> int:
        """Return how many windows, or chunks, an epoch has."""
        return self.most_reads or len(self.reads)

    @property
    def epoch_is_over(self) -> bool:
        """Return whether every window of the current epoch was visited."""
        return self.position >= self.num_windows

    def without_data(self) -> Run:
        """Return the run without its data, weights and functions."""
        none = torch.empty(0)
        member = replace(self.member, rows_TF=none, labels_TK=none, mean_F=none, std_F=none, context_RC=None)
        return replace(
            self,
            member=member,
            validation=None,
            reads=none,
            order=none,
            orders=None,
            best_outputs=None,
            best_weights={},
            earlier={},
            resume=None,
        )

    @property
    def knows_first_steps(self) -> bool:
        """Return whether no more losses of its first steps will come."""
        return len(self.first_steps) >= FIRST_STEPS or self.epoch > 0 or self.epoch_is_over

    @property
    def is_broken(self) -> bool:
        """Return whether too many steps of the current epoch were skipped."""
        return self.skipped > MAX_SKIPPED_STEPS or (self.epoch_is_over and not self.loss_windows)


def steps_of(run: Run, job: Job) -> int:
    """Return the steps from the start of a run to its position."""
    of_epochs = run.epoch * math.ceil(run.num_windows / job.reads_of_step)
    position = 0 if run.epoch_is_over else run.position  # of a finished run: its last epoch's is counted
    return of_epochs + math.ceil(position / job.reads_of_step)


def steps_told(run: Run, job: Job) -> int:
    """Return the steps to the position of a run as who hears its `progress` counts them: those of this epoch,
    and as many for each epoch before it, of earlier stages too, whose epochs may have fewer.
    """
    steps_of_epoch = math.ceil(run.num_windows / job.reads_of_step)
    before = (run.epochs_before + run.epoch) * steps_of_epoch
    return before + math.ceil(run.position / job.reads_of_step)


def rate_of(run: Run, job: Job) -> float:
    """Return the learning rate of the next step. A schedule counts optimizer steps, and those of an agent's
    rollout have one rate.
    """
    updates = job.updates_of_step
    steps_of_epoch = updates * math.ceil(run.num_windows / job.reads_of_step)
    step = run.epoch * steps_of_epoch + updates * (run.position // job.reads_of_step)
    return run.learning_rate * rate_factor(job, step=step, steps=job.train.epochs * steps_of_epoch)
