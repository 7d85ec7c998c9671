"""The two strategies for GPUs. All models step in one program without the host, recorded as one CUDA graph.

`Streams`: each model is a plain module with a stream of its own inside the graph. Any chip; the same kernels
as alone. `Fused`: one batched program over stacked weights (`network.stacked` in the model's home).

Both keep weights, gradients and moments of all models in (M, P) tensors, one row per model, so that clipping,
AdamW, and the rule for stopped or broken models are written once, here, row by row. Rows never mix, not even
NaN (masks are `where`, never a product: 0 x NaN is NaN). Without a GPU the same program runs eagerly, slower
than `SequentialPack`; tests use that.

Shapes: M models, B the job's batch, T time steps, F features, P weights of one model, L layers, R rows of all
symbols, K label columns, O outputs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol, cast

import torch
from torch import nn

from trainer.job.job import Job
from trainer.models import network_of
from trainer.train.off_device import put
from trainer.train.packs.pack import (
    BETAS,
    EPSILON,
    Member,
    ModelState,
    architecture_of,
    decays,
    loss_for,
    new_model,
    newest_share,
)
from trainer.train.packs.recorded import WARM_UP_STEPS, graph_of
from trainer.train.packs.tensors import put_tensors, weights_of
from trainer.train.precision import GROWTH_STEPS, autocast, first_scale, resolve_precision
from trainer.train.predict.readers import scale_
from trainer.train.seeds import DropoutKeys, key_table


class Form(Protocol):
    """Networks of one architecture over stacked weights (M, P), a row each."""

    def flatten(self, state: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return one model's weights (P,) from its tensors by name."""

    def unflatten(self, weights_P: torch.Tensor) -> Mapping[str, torch.Tensor]:
        """Return one model's tensors by name, as views of its weights (P,)."""

    def forward(
        self, weights_MP: torch.Tensor, x_MTBF: torch.Tensor, keys_LM2: torch.Tensor | None, first_row: int
    ) -> torch.Tensor:
        """Return outputs (M, B, O) for scaled windows."""


class Stacked(ABC):
    """Base of packs that keep all weights in (M, P): rows, inputs of a step, optimizer, and graph."""

    purpose = "dropout"  # of the keys of a step

    def __init__(self, members: Sequence[Member], job: Job, *, micro_batch: int = 0) -> None:
        self._members, self._job = members, job
        self._seen, self._loss = job.model.bars_seen, loss_for(job)
        self._micro_batch = min(micro_batch or job.train.batch, job.train.batch)
        self._device, self._dtype = members[0].rows_TF.device, members[0].rows_TF.dtype
        models = len(members)
        self._models = [new_model(member, job) for member in members]  # for evaluation, filled on demand
        self._matmul_dtype = resolve_precision(job, self._device)
        self._is_scaled = self._matmul_dtype == torch.float16  # its loss
        constants = torch.tensor([0.0, torch.nan], dtype=self._dtype)
        self._zero, self._nan = constants.to(self._device)
        each = [(member.job or job).train for member in members]
        self._clip_M = torch.tensor([its.clip_norm for its in each], dtype=self._dtype, device=self._device)
        # One number where all have the same, whose arithmetic is shorter.
        decays_M1 = torch.tensor([[its.weight_decay] for its in each], dtype=self._dtype, device=self._device)
        self._decays_M1 = decays_M1 if len({its.weight_decay for its in each}) > 1 else None
        self._layout: Form = self._form()
        self._join_rows()
        flat = [self._layout.flatten(weights_of(model)) for model in self._models]
        self._weights_MP = torch.stack(flat).detach()
        like = weights_of(self._models[0])
        self._decays_P = self._layout.flatten(
            {name: torch.full_like(weight, float(decays(weight))) for name, weight in like.items()}
        )
        self._gradient_MP = torch.zeros_like(self._weights_MP)
        self._exp_avg_MP = torch.zeros_like(self._weights_MP)
        self._exp_avg_sq_MP = torch.zeros_like(self._weights_MP)
        self._average_MP = self._weights_MP.clone() if job.train.ema else None
        self._betas_211 = torch.tensor(BETAS, dtype=torch.float64).view(2, 1, 1).to(self._device)
        self._updates_M = torch.zeros(models, dtype=torch.float64, device=self._device)
        self._scales_M = torch.full(
            (models,), first_scale(self._matmul_dtype), dtype=torch.float64, device=self._device
        )
        self._good_steps_M = torch.zeros(models, dtype=torch.int64, device=self._device)
        self._batches = [0] * models
        self._rates = [job.train.learning_rate] * models
        # The step's inputs: buffers at fixed addresses, which a recorded graph reads.
        self._rates_M = torch.full(
            (models,), job.train.learning_rate, dtype=torch.float64, device=self._device
        )
        self._starts_MB = torch.zeros(models, *self._of_step, dtype=torch.int64, device=self._device)
        self._lengths_M = torch.zeros(models, dtype=torch.int64, device=self._device)
        self._table_MSL2 = key_table(models, layers=self._num_keys, device=self._device)
        self._keys = [
            DropoutKeys(keys, seed=member.seed, model=member.draws_as, purpose=self.purpose)
            for keys, member in zip(self._table_MSL2, members, strict=True)
        ]
        self._keys_LM2: torch.Tensor  # of the step under way
        self._places_M = torch.zeros(models, dtype=torch.int64, device=self._device)
        self._numbers_M = torch.arange(models, device=self._device)
        self._ones_M = torch.ones(models, dtype=self._dtype, device=self._device)
        self._losses_M = torch.zeros(models, dtype=self._dtype, device=self._device)
        self._place_B = torch.arange(job.train.batch, device=self._device)
        self._steps_T1 = torch.arange(self._seen, device=self._device)[:, None]
        self._graph: torch.cuda.CUDAGraph | None = None

    @property
    def _of_step(self) -> tuple[int, ...]:
        """Return the shape of a model's input: the first rows of its windows."""
        return (self._job.train.batch,)

    @property
    def _num_keys(self) -> int:
        """Return how many keys of random numbers a step has."""
        return self._job.model.num_dropouts

    @property
    def _is_recorded(self) -> bool:
        """Return whether a GPU's step is recorded as a graph."""
        return True

    def _form(self) -> Form:
        """Return the networks as one program over stacked weights."""
        return cast(
            Form,
            network_of(self._job.model.name).stacked(
                architecture_of(self._job, features=self._members[0].rows_TF.shape[1]),
                recompute=self._job.expert.activation_checkpointing,
                matmul_dtype=None if self._matmul_dtype == torch.float32 else self._matmul_dtype,
            ),
        )

    def step(self, active: Sequence[bool], starts: Sequence[torch.Tensor]) -> torch.Tensor:
        """See `Pack.step`."""
        lengths = [len(its) if on else 0 for its, on in zip(starts, active, strict=True)]
        places = [keys.place(batch) for keys, batch in zip(self._keys, self._batches, strict=True)]
        if set(lengths) == {self._starts_MB.shape[1]} and starts[0].device == self._device:
            torch.stack(list(starts), out=self._starts_MB)  # one call for all, in most steps
        else:
            for number, length in enumerate(lengths):
                if length:
                    put(self._starts_MB[number, :length], starts[number])
                # Beyond a short batch its first window repeats, with weight zero.
                if 0 < length < self._starts_MB.shape[1]:
                    self._starts_MB[number, length:] = self._starts_MB[number, 0].clone()
        self._batches = [batch + (length > 0) for batch, length in zip(self._batches, lengths, strict=True)]
        put(self._lengths_M, torch.tensor(lengths))
        put(self._rates_M, torch.tensor(self._rates, dtype=torch.float64))
        put(self._places_M, torch.tensor(places))
        if self._device.type == "cuda" and self._is_recorded:
            self._graph = self._graph or self._record()
            self._graph.replay()
        else:
            self._run()
        return self._losses_M.clone()

    def model(self, member: int) -> nn.Module:
        """See `Pack.model`."""
        weights_MP = self._weights_MP if self._average_MP is None else self._average_MP
        put_tensors(self._models[member], self._layout.unflatten(weights_MP[member]))
        return self._models[member]

    def told(self, member: int) -> Mapping[str, float]:
        """See `Pack.told`."""
        return {}

    def set_learning_rate(self, member: int, learning_rate: float) -> None:
        """See `Pack.set_learning_rate`."""
        self._rates[member] = learning_rate

    def snapshot(self, member: int) -> ModelState:
        """See `Pack.snapshot`."""

        def copied(of_MP: torch.Tensor) -> dict[str, torch.Tensor]:
            return dict(self._layout.unflatten(of_MP[member].clone()))

        return ModelState(
            weights=copied(self._weights_MP),
            exp_avg=copied(self._exp_avg_MP),
            exp_avg_sq=copied(self._exp_avg_sq_MP),
            updates=int(self._updates_M[member]),
            batches=self._batches[member],
            loss_scale=float(self._scales_M[member]),
            good_steps=int(self._good_steps_M[member]),
            average={} if self._average_MP is None else copied(self._average_MP),
        )

    def restore(self, member: int, state: ModelState) -> None:
        """See `Pack.restore`."""

        def put(into_MP: torch.Tensor, tensors: Mapping[str, torch.Tensor]) -> None:
            into_MP[member] = self._layout.flatten(tensors).to(into_MP)

        put(self._weights_MP, state.weights)
        put(self._exp_avg_MP, state.exp_avg)
        put(self._exp_avg_sq_MP, state.exp_avg_sq)
        if self._average_MP is not None:
            put(self._average_MP, state.average)
        self._updates_M[member] = state.updates
        self._scales_M[member], self._good_steps_M[member] = state.loss_scale, state.good_steps
        self._batches[member] = state.batches

    def _modules(self) -> list[nn.Module]:
        """Return a module for each model, whose weights and gradients are views of (M, P) tensors, so that
        one optimizer serves all.
        """
        models = [new_model(member, self._job) for member in self._members]
        for number, model in enumerate(models):
            weights = self._layout.unflatten(self._weights_MP[number])
            gradients = self._layout.unflatten(self._gradient_MP[number])
            for name, parameter in model.named_parameters():
                parameter.data, parameter.grad = weights[name], gradients[name]
        return models

    def _rows(self) -> list[torch.Tensor]:
        """Return the rows (R, F) that each member reads."""
        return [member.rows_TF for member in self._members]

    def _join_rows(self) -> None:
        """Concatenate every symbol's rows, and labels; members that share them share their offset. Folds of a
        symbol share rows alone.
        """
        self._rows_RF, self._offsets_M1 = joined(self._rows())
        labels_RK, offsets_M1 = joined([member.labels_TK for member in self._members])
        self._label_offsets_M1 = offsets_M1 + (self._seen - 1)  # from a window's first row to its label
        self._labels_RK = labels_RK.to(self._dtype)
        self._mean_MF = torch.stack([member.mean_F for member in self._members]).to(self._dtype)
        self._std_MF = torch.stack([member.std_F for member in self._members]).to(self._dtype)

    def _update(self, active_M: torch.Tensor, losses_M: torch.Tensor) -> torch.Tensor:
        """Clip and apply AdamW row by row, for active models with a finite loss and gradient.

        Return (M,) bool: whether the step was taken, or only needs a smaller loss scale.
        """
        job, (beta_1, beta_2) = self._job, BETAS
        if self._is_scaled:
            self._gradient_MP.div_(self._scales_M[:, None].to(self._dtype))
        norm_M = self._gradient_MP.norm(dim=1)
        moves_M: torch.Tensor = active_M & (losses_M.abs() + norm_M < math.inf)  # both are finite
        moves_M1 = moves_M[:, None]
        scale_M = torch.div(self._clip_M, norm_M + 1e-6).clamp(max=1.0)
        gradient_MP = self._gradient_MP * scale_M[:, None]
        updates_M = self._updates_M + 1
        torch.where(moves_M, updates_M, self._updates_M, out=self._updates_M)
        updates_M1 = updates_M[:, None]  # a row that does not move is masked below
        exp_avg = torch.lerp(self._exp_avg_MP, gradient_MP, 1 - beta_1)
        exp_avg_sq = torch.addcmul(self._exp_avg_sq_MP * beta_2, gradient_MP, gradient_MP, value=1 - beta_2)
        rates_M1 = self._rates_M[:, None].to(self._dtype)
        corrections = (1 - torch.pow(self._betas_211, updates_M1)).to(self._dtype)
        denominator = exp_avg_sq.sqrt() / corrections[1].sqrt() + EPSILON
        decay = rates_M1 * self._decays_P
        share = job.train.weight_decay
        if self._decays_M1 is not None:
            decay, share = decay * self._decays_M1, 1.0
        weights = torch.addcmul(self._weights_MP, self._weights_MP, decay, value=-share)
        weights = torch.addcdiv(weights, rates_M1 / corrections[0] * exp_avg, denominator, value=-1)
        kept_MP = (self._weights_MP, self._exp_avg_MP, self._exp_avg_sq_MP)
        for kept, moved in zip(kept_MP, (weights, exp_avg, exp_avg_sq), strict=True):
            torch.where(moves_M1, moved, kept, out=kept)
        if self._average_MP is not None:
            share_M1 = newest_share(job.train.ema, updates_M1).to(self._dtype)
            average_MP = torch.lerp(self._average_MP, weights, share_M1)
            torch.where(moves_M1, average_MP, self._average_MP, out=self._average_MP)
        return moves_M | self._rescale(active_M, moves_M) if self._is_scaled else moves_M

    def _rescale(self, active_M: torch.Tensor, moves_M: torch.Tensor) -> torch.Tensor:
        """Halve the loss scale after a step that was not finite, double it after GROWTH_STEPS; return (M,)
        bool: halved.
        """
        halved_M = active_M & ~moves_M & (self._scales_M > 1)
        good_M = torch.where(halved_M, 0, self._good_steps_M + moves_M)
        doubled_M = good_M == GROWTH_STEPS
        scales_M = torch.where(doubled_M, self._scales_M * 2, self._scales_M)
        self._scales_M.copy_(torch.where(halved_M, self._scales_M / 2, scales_M))
        self._good_steps_M.copy_(torch.where(doubled_M, 0, good_M))
        return halved_M

    @abstractmethod
    def _run(self) -> None:
        """Take the step of the input buffers. Uses the device only: a graph records this function."""

    def _record(self) -> torch.cuda.CUDAGraph:
        """Record the step. Warm-up steps have no active model, so they change nothing."""
        lengths_M = self._lengths_M.clone()
        self._lengths_M.zero_()
        main, side = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(main)
        with torch.cuda.stream(side):
            for _ in range(WARM_UP_STEPS):
                self._run()
        main.wait_stream(side)
        graph = graph_of(self._run, stream=side)  # of the warm-up, for which libraries have initialized
        self._lengths_M.copy_(lengths_M)
        return graph


def joined(parts: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tensors (R, ...) concatenated, each once, and the row (M, 1) at which each begins."""
    place: dict[int, int] = {}
    each, total = list[torch.Tensor](), 0
    for part in parts:
        if id(part) not in place:
            place[id(part)] = total
            each.append(part)
            total += len(part)
    offsets = torch.tensor([place[id(part)] for part in parts], device=parts[0].device)
    return each[0] if len(each) == 1 else torch.cat(each), offsets[:, None]


class _Supervised(Stacked):
    """Base of both strategies for labels: a step is an optimizer step on a batch, taken in slices."""

    def _run(self) -> None:
        """Take the step of the input buffers. Uses the device only: a graph records this function."""
        lengths_M1 = self._lengths_M[:, None]
        inside_MB = self._place_B[None, :] < lengths_M1
        weight_MB = torch.where(inside_MB, lengths_M1.clamp(min=1).to(self._dtype).reciprocal(), self._zero)
        self._keys_LM2 = self._table_MSL2[self._numbers_M, self._places_M].transpose(0, 1)
        losses_M = self._slice(0, weight_MB[:, : self._micro_batch])
        for first in range(self._micro_batch, self._job.train.batch, self._micro_batch):
            losses_M = losses_M + self._slice(first, weight_MB[:, first : first + self._micro_batch])
        counts_M = self._update(self._lengths_M > 0, losses_M)
        torch.where(counts_M, losses_M, self._nan, out=self._losses_M)

    def _weighted_loss(
        self, outputs_MBO: torch.Tensor, rows_MB: torch.Tensor, weight_MB: torch.Tensor
    ) -> torch.Tensor:
        """Return the sum (M,) of the losses of labels in these rows, each with its weight."""
        each_MB = self._loss(outputs_MBO, self._labels_RK[rows_MB])
        return torch.where(weight_MB > 0, each_MB * weight_MB, self._zero).sum(-1)

    @abstractmethod
    def _slice(self, first: int, weight_MB: torch.Tensor) -> torch.Tensor:
        """Add the gradients of sum(weight_MB x loss) over the windows from `first` on, or set them for the
        first of all; return that sum (M,).
        """


class Fused(_Supervised):
    """All models as one batched program."""

    def _slice(self, first: int, weight_MB: torch.Tensor) -> torch.Tensor:
        models, windows = weight_MB.shape
        rows_MB = self._starts_MB[:, first : first + windows] + self._offsets_M1
        index = (rows_MB[:, None, :] + self._steps_T1).view(-1)
        x_MTBF = self._rows_RF.index_select(0, index).view(models, len(self._steps_T1), windows, -1)
        scale_(x_MTBF, self._mean_MF[:, None, None, :], self._std_MF[:, None, None, :])
        weights_MP = self._weights_MP.detach().requires_grad_()
        outputs_MBO = self._layout.forward(weights_MP, x_MTBF, self._keys_LM2, first)
        del x_MTBF  # the backward pass has what it needs of it
        labelled_MB = self._starts_MB[:, first : first + windows] + self._label_offsets_M1
        losses_M = self._weighted_loss(outputs_MBO, labelled_MB, weight_MB)
        factor_M = self._scales_M.to(self._dtype) if self._is_scaled else self._ones_M
        (gradient_MP,) = torch.autograd.grad(losses_M, weights_MP, factor_M)
        if first:
            self._gradient_MP.add_(gradient_MP)
        else:
            self._gradient_MP.copy_(gradient_MP)
        return losses_M.detach()


class Streams(_Supervised):
    """Each model a plain module on a stream of its own; the streams join before the optimizer."""

    def __init__(self, members: Sequence[Member], job: Job, *, micro_batch: int = 0) -> None:
        super().__init__(members, job, micro_batch=micro_batch)
        count = len(members) if self._device.type == "cuda" else 0
        self._streams = [torch.cuda.Stream() for _ in range(count)]  # type: ignore[no-untyped-call]
        self._lanes = self._modules()

    def _slice(self, first: int, weight_MB: torch.Tensor) -> torch.Tensor:
        if not first:
            self._gradient_MP.zero_()
        if not self._streams:
            return torch.stack([self._one(number, first, one) for number, one in enumerate(weight_MB)])
        main = torch.cuda.current_stream()
        # Wait for one event: torch reuses 32 streams in turn, so `main` may also be a model's stream, and
        # waiting for all of `main` would wait for that model.
        started = main.record_event()
        losses, forked = list[torch.Tensor](), list[torch.cuda.Stream]()
        try:
            for number, stream in enumerate(self._streams):
                stream.wait_event(started)
                forked.append(stream)
                with torch.cuda.stream(stream):
                    losses.append(self._one(number, first, weight_MB[number]))
        finally:
            # Also if a model runs out of memory: a recording can't end before all streams have joined.
            for stream in forked:
                main.wait_stream(stream)
        return torch.stack(losses)

    def _one(self, number: int, first: int, weight_B: torch.Tensor) -> torch.Tensor:
        starts_B = self._starts_MB[number, first : first + len(weight_B)]
        rows_B = starts_B + self._offsets_M1[number]
        index = (rows_B + self._steps_T1).view(-1)
        x_TBF = self._rows_RF.index_select(0, index).view(len(self._steps_T1), len(rows_B), -1)
        scale_(x_TBF, self._mean_MF[number], self._std_MF[number])
        with autocast(self._matmul_dtype, self._device):
            outputs_BO = self._lanes[number](x_TBF, self._keys_LM2[:, number], first)
        loss = self._weighted_loss(outputs_BO, starts_B + self._label_offsets_M1[number], weight_B)
        scaled = loss * self._scales_M[number].to(self._dtype) if self._is_scaled else loss
        scaled.backward()  # type: ignore[no-untyped-call]
        return loss.detach()
