"""A pack: the models that one worker trains together, behind one small interface.

    step(active, starts) -> loss per model

`starts` has the first rows of the windows in each model's batch; the pack gathers them from rows on its
device, runs forward, backward, clipping and optimizer, and returns each active model's loss.
`trainer.train.loop` decides which model is active, its next batch and when it stops. A model's result does
not depend on its pack.

Here: the interface, and what its implementations share: `sequential`, `chunks`, and `stacked`, two strategies
for GPUs.

Shapes: M models, B batch, T time steps, F features, K label columns, O outputs, R rows, C columns of the
context.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, overload

import torch
from torch import nn

from trainer.data.read.candles import Candles
from trainer.job.job import Job
from trainer.models import network_of
from trainer.train.inputs.encoder import start_from
from trainer.train.seeds import derive, seed_generators

BETAS = (0.9, 0.999)  # Adam's, as in torch
EPSILON = 1e-8
AVERAGE_RISE = 9  # see `newest_share`


@dataclass(frozen=True, kw_only=True)
class Member:
    """One model of a pack: its name, and the rows of its symbol on the pack's device."""

    name: str
    rows_TF: torch.Tensor
    labels_TK: torch.Tensor  # scaled for training; NaN for bars without one
    mean_F: torch.Tensor
    std_F: torch.Tensor
    candles: Candles | None = None  # of training, for an environment of the user's own
    context_RC: torch.Tensor | None = None  # int16, of each row (`data.context`), for a model that reads it
    series: tuple[str, ...] = ()  # symbols of its piece, in the order of their numbers in the context
    seed: int = 0  # of all its random numbers, with `draws`
    # The name that seeds them; empty: its own. Folds and seeds of a symbol share one, so that a seed gives
    # the same weights and order whatever else the job trains.
    draws: str = ""
    job: Job | None = None  # its own, of a trial: as the pack's, but for rates and limits; None: the pack's

    @property
    def draws_as(self) -> str:
        """Return the name from which, with the seed, all random numbers of this model are derived."""
        return self.draws or self.name


@dataclass(frozen=True, kw_only=True)
class ModelState:
    """State on which a step of one model depends, besides its batch and learning rate. Tensors by weight's
    name.
    """

    weights: Mapping[str, torch.Tensor]
    exp_avg: Mapping[str, torch.Tensor]  # Adam's two moments
    exp_avg_sq: Mapping[str, torch.Tensor]
    updates: int  # optimizer steps taken, for Adam's bias correction
    batches: int  # batches seen, skipped ones too: the step in dropout's key
    loss_scale: float = 1.0  # another only in fp16
    good_steps: int = 0  # since the scale last changed
    # Of the weights, with buffers; empty without `ema`.
    average: Mapping[str, torch.Tensor] = field(default_factory=dict)
    buffers: Mapping[str, torch.Tensor] = field(default_factory=dict)  # of a user's own module
    # Optimizer steps of weights that took fewer than `updates`, because some batches do not use them.
    steps: Mapping[str, int] = field(default_factory=dict)


class Pack(Protocol):
    """Interface between the loop and a strategy. Members are numbered in the given order."""

    def step(self, active: Sequence[bool], starts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Take one optimizer step of every active member over its windows `starts[m]` (B,) int64.

        Return the losses (M,) before the step, NaN for inactive members; if ranks share batches, this rank's
        share of them. A member whose loss or gradient is not finite keeps its weights and moments. Its loss
        is then NaN on every rank, unless the scale of an fp16 loss may be the cause: then the scale is
        lowered.
        """

    def model(self, member: int) -> nn.Module:
        """Return the member as a plain module for evaluation: with its current weights, or their average if
        the job has one.
        """

    def set_learning_rate(self, member: int, learning_rate: float) -> None:
        """Set the learning rate of the member's next steps."""

    def told(self, member: int) -> Mapping[str, float]:
        """Return the numbers of an epoch's event besides losses and scores, by name. Waits for a GPU."""

    def snapshot(self, member: int) -> ModelState:
        """Return a copy of the member's state, on the pack's device."""

    def restore(self, member: int, state: ModelState) -> None:
        """Continue the member from a state, which may come from another strategy."""


@overload
def newest_share(decay: float, updates: int) -> float: ...
@overload
def newest_share(decay: float, updates: torch.Tensor) -> torch.Tensor: ...
def newest_share(decay: float, updates: int | torch.Tensor) -> float | torch.Tensor:
    """Return the share of the newest weights in their moving average after `updates` updates, this one
    included.

    That is 1 - min(decay, (1 + updates) / (10 + updates)): TensorFlow's rule, which most libraries use
    (https://www.tensorflow.org/api_docs/python/tf/train/ExponentialMovingAverage). The average starts as the
    first weights and forgets them within about ten updates at any decay, so it needs no bias correction.
    """
    share = AVERAGE_RISE / (AVERAGE_RISE + 1 + updates)
    return share.clamp(min=1 - decay) if isinstance(share, torch.Tensor) else max(1 - decay, share)


def decays(weight: torch.Tensor) -> bool:
    """Return whether AdamW decays a weight: matrices and kernels, but no bias, no norm's gain, and no length
    (C, 1, 1) of weight norm.
    """
    return weight.ndim > 1 and weight.numel() > len(weight)


def loss_for(job: Job) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return the loss function of the job's target: (..., O) outputs and (..., K) labels -> (...) losses."""
    return job.target.loss


def architecture_of(job: Job, *, features: int) -> dict[str, Any]:
    """Return the architecture of the job's model over rows of so many features, as JSON values."""
    return job.model.architecture(features=job.target.features(features), outputs=job.target.outputs)


def new_model(member: Member, job: Job) -> nn.Module:
    """Build a member's model, with weights drawn from its seed and name, on the device and with the dtype of
    its rows.
    """
    architecture = architecture_of(job, features=member.rows_TF.shape[1])
    with torch.random.fork_rng(devices=[]):
        seed_generators(derive(member.seed, member.draws_as, "weights"))
        options = {"recompute": job.expert.activation_checkpointing, **job.model.build_options}
        model: nn.Module = network_of(job.model.name).build(architecture, **options)
    start_from(model, job, series=member.series)
    # A user's own module keeps its dtypes.
    return model.to(member.rows_TF.device) if job.model.is_any_module else model.to(member.rows_TF)


def fresh_state(weights: Mapping[str, torch.Tensor], like: ModelState) -> ModelState:
    """Return the state of a model with these weights (and buffers) and a fresh optimizer, at the same batch.

    An average of weights restarts from them.
    """
    own = {name: tensor for name, tensor in weights.items() if name in like.weights}
    zero = {name: torch.zeros_like(own[name]) for name in like.exp_avg}
    return replace(
        like,
        weights=own,
        buffers={name: tensor for name, tensor in weights.items() if name not in own},
        exp_avg=zero,
        exp_avg_sq=zero,
        updates=0,
        steps={},
        average=weights if like.average else {},
    )
