"""A pack: the models that one worker trains together, behind one small interface.

    step(active, starts) -> loss per model

`starts` names the windows of each model's batch; the pack gathers them from rows that lie on its device, runs forward,
backward, clipping and optimizer, and returns what each active model's loss was. Which model is active, what its next
batch is and when it stops belongs to `trainer.train.loop`. A model's result does not depend on its pack.

Shapes: M models, B batch, T time steps, F features, L layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from trainer.config import Job
from trainer.models.families import architecture_of, build
from trainer.train.score import gather
from trainer.train.seeds import derive, dropout_keys

# Slices of a batch on a CPU: the working set of about 128 windows fits the cache (performance measurements in cpu.py).
CPU_MICRO_BATCH = 128


@dataclass(frozen=True, kw_only=True)
class Member:
    """One model of a pack: its name, and the rows of its symbol on the pack's device."""

    name: str
    rows_TF: torch.Tensor
    labels_T: torch.Tensor
    mean_F: torch.Tensor
    std_F: torch.Tensor


class Pack(Protocol):
    """What the loop needs of a strategy. Members are numbered as they were given."""

    def step(self, active: Sequence[bool], starts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Take one optimizer step of every active member over its windows `starts[m]` (B,) int64.

        Return the loss of each (M,) before the step, NaN for members that are not active. A member whose loss or gradient
        is not finite keeps its weights and moments.
        """

    def model(self, member: int) -> nn.Module:
        """Return the member as a plain module with its present weights, for evaluation."""

    def restart(self, member: int, weights: dict[str, torch.Tensor], *, learning_rate: float) -> None:
        """Set the member's weights and forget its optimizer's moments."""


class Lanes:
    """Member after member, each a plain module with its own optimizer, its batch in slices: what a CPU is fastest with."""

    def __init__(self, members: Sequence[Member], job: Job, *, micro_batch: int = CPU_MICRO_BATCH) -> None:
        self._members, self._job, self._micro_batch = members, job, micro_batch
        device = members[0].rows_TF.device
        self._steps_T1 = torch.arange(job.lookback, device=device)[:, None]
        self._models = [new_model(member, job) for member in members]
        self._optimizers = [optimizer_of(model, job, learning_rate=job.learning_rate) for model in self._models]
        self._steps = [0] * len(members)

    def step(self, active: Sequence[bool], starts: Sequence[torch.Tensor]) -> torch.Tensor:
        """See `Pack.step`."""
        losses = torch.full((len(self._members),), torch.nan, device=self._steps_T1.device)
        for number, member in enumerate(self._members):
            if active[number]:
                losses[number] = self._step_one(number, member, starts[number])
        return losses

    def model(self, member: int) -> nn.Module:
        """See `Pack.model`."""
        return self._models[member]

    def restart(self, member: int, weights: dict[str, torch.Tensor], *, learning_rate: float) -> None:
        """See `Pack.restart`."""
        self._models[member].load_state_dict(weights)
        self._optimizers[member] = optimizer_of(self._models[member], self._job, learning_rate=learning_rate)

    def _step_one(self, number: int, member: Member, starts_B: torch.Tensor) -> torch.Tensor:
        model, optimizer, job = self._models[number], self._optimizers[number], self._job
        keys_L2 = dropout_keys(seed=job.seed, model=member.name, step=self._steps[number], layers=job.layers)
        keys_L2 = keys_L2.to(starts_B.device)
        self._steps[number] += 1
        optimizer.zero_grad(set_to_none=True)
        loss = torch.zeros((), device=starts_B.device)
        for first in range(0, len(starts_B), self._micro_batch):
            slice_B = starts_B[first : first + self._micro_batch]
            x_TBF = gather(member.rows_TF, slice_B, self._steps_T1, member.mean_F, member.std_F)
            labels_B = member.labels_T[slice_B + (job.lookback - 1)]
            summed = nn.functional.binary_cross_entropy_with_logits(model(x_TBF, keys_L2, first), labels_B, reduction="sum")
            # Dividing each slice's sum by the whole batch gives the batch's mean gradient, whatever the slices.
            part = summed / len(starts_B)
            part.backward()  # type: ignore[no-untyped-call]
            loss += part.detach()
        norm = nn.utils.clip_grad_norm_(model.parameters(), job.clip_norm)
        if torch.isfinite(loss) and torch.isfinite(norm):
            optimizer.step()
        return loss


def new_model(member: Member, job: Job) -> nn.Module:
    """Build a member's model with weights drawn from (seed, name), on the member's device."""
    architecture: dict[str, Any] = architecture_of(job, num_features=member.rows_TF.shape[1])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(job.seed, member.name, "weights"))
        model = build(job.model, architecture)
    return model.to(member.rows_TF.device)


def optimizer_of(model: nn.Module, job: Job, *, learning_rate: float) -> torch.optim.AdamW:
    """Return the optimizer of one model alone."""
    return torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=job.weight_decay, fused=True)
