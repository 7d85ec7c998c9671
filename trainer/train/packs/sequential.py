"""The plain strategy: models one after another, each a module with its own optimizer. It is the fastest on a
CPU, and the one of ranks.

Shapes: B batch, T time steps, F features, L layers, K label columns, O outputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from trainer.job.job import Job
from trainer.models.pretrained import UNFREEZE, encoder_of
from trainer.train.inputs.encoder import drop_early_gradients
from trainer.train.packs.adamw import AdamW
from trainer.train.packs.layout import ONE, Layout, blocks_of, slices_of
from trainer.train.packs.pack import Member, ModelState, loss_for, new_model, newest_share
from trainer.train.packs.recorded import RecordedStep, Recording, may_record
from trainer.train.packs.tensors import (
    buffers_of,
    placed_like,
    put_buffers,
    put_tensors,
    put_whole,
    restore_buffers,
    tensors_of,
    update_average,
    weights_of,
    whole,
)
from trainer.train.precision import GROWTH_STEPS, autocast, first_scale, resolve_precision
from trainer.train.predict.readers import gather, gather_context
from trainer.train.seeds import DropoutKeys, derive, drawing, key_table


class SequentialPack:
    """Members one after another; batches are sliced."""

    def __init__(
        self, members: Sequence[Member], job: Job, *, micro_batch: int = 256, layout: Layout = ONE
    ) -> None:
        self._members, self._job, self._layout = members, job, layout
        # Models that can't be sliced get a batch of one window twice (`_step_one`).
        self._may_slice = job.cost.may_slice
        self._micro_batch = micro_batch if self._may_slice else max(2, job.train.batch)
        self._seen, self._loss = job.model.bars_seen, loss_for(job)
        self._steps_T1 = torch.arange(self._seen, device=members[0].rows_TF.device)[:, None]
        self._models = [new_model(member, job) for member in members]
        averaged = members if job.train.ema else ()
        self._averages = [new_model(member, job).requires_grad_(False) for member in averaged]
        for model in (*self._models, *self._averages):
            layout.divide(model)
        # For evaluation if weights are divided, filled on demand; and those that are not out of date.
        self._wholes: dict[int, nn.Module] = {}
        self._current = set[int]()
        self._batches = [0] * len(members)
        table = key_table(len(members), layers=job.model.num_dropouts, device=members[0].rows_TF.device)
        self._keys = [
            DropoutKeys(keys, seed=member.seed, model=member.draws_as)
            for keys, member in zip(table, members, strict=True)
        ]
        self._dtype = resolve_precision(job, members[0].rows_TF.device)
        self._scales = [first_scale(self._dtype)] * len(members)
        self._good_steps = [0] * len(members)
        encoder = encoder_of(job.model)
        # Whether some weights may take fewer steps than others.
        self._is_uneven = job.model.is_any_module or (
            encoder is not None and encoder.encoder_training == UNFREEZE
        )
        # In a step the host waits for a GPU only if it has to decide: on the loss scale of fp16, and whether
        # ranks that divide the weights take it.
        host_decides = self._dtype == torch.float16 or layout.divides
        self._skips_on_device = members[0].rows_TF.device.type != "cpu" and not host_decides
        # What a graph records has no decision of the host in it.
        decides = host_decides or self._is_uneven or layout is not ONE
        self._records = may_record(members[0].rows_TF.device) and not decides
        self._optimizers = [
            AdamW(
                model.parameters(), rate=self._first_rate(), weight_decay=(one.job or job).train.weight_decay
            )
            for one, model in zip(members, self._models, strict=True)
        ]
        self._recorded: list[RecordedStep] = []
        self._forget_graphs()
        slices = math.ceil(len(layout.part(job.train.batch)) / self._micro_batch)
        self._networks = [layout.wrap(model, slices=slices) for model in self._models]  # what runs forward
        if layout is ONE and job.expert.compile == "always":  # ranks compile by their layouts
            for block in (block for model in self._models for block in blocks_of(model)):
                block.compile()

    def step(self, active: Sequence[bool], starts: Sequence[torch.Tensor]) -> torch.Tensor:
        """See `Pack.step`."""
        rows_TF = self._members[0].rows_TF
        losses = torch.full((len(self._members),), torch.nan, device=rows_TF.device, dtype=rows_TF.dtype)
        for number in range(len(self._members)):
            if active[number]:
                losses[number] = self._step_one(number, starts[number])
        return losses

    def model(self, member: int) -> nn.Module:
        """See `Pack.model`."""
        model = (self._averages or self._models)[member]
        if self._layout.divides:
            if member not in self._wholes:
                self._wholes[member] = new_model(self._members[member], self._job)
            if member not in self._current:
                put_whole(self._wholes[member], model)
                self._current.add(member)
            return self._wholes[member]
        self._layout.share_buffers(model)
        return model.eval() if self._job.model.is_any_module else model

    def told(self, member: int) -> Mapping[str, float]:
        """See `Pack.told`."""
        return {}

    def set_learning_rate(self, member: int, learning_rate: float) -> None:
        """See `Pack.set_learning_rate`."""
        self._optimizers[member].set_rate(learning_rate)

    def snapshot(self, member: int) -> ModelState:
        """See `Pack.snapshot`."""
        weights, moments = dict(self._models[member].named_parameters()), self._optimizers[member].state
        trained = {name: weight for name, weight in weights.items() if weight.requires_grad}
        updates = self._updates(member)
        for model in (self._models[member], *self._averages[member : member + 1]):
            self._layout.share_buffers(model)

        def moment(part: str) -> dict[str, torch.Tensor]:
            return {
                name: moments[weight][part].clone() if weight in moments else torch.zeros_like(weight)
                for name, weight in trained.items()
            }

        return ModelState(
            weights=weights_of(self._models[member]),
            exp_avg=moment("exp_avg"),
            exp_avg_sq=moment("exp_avg_sq"),
            updates=updates,
            batches=self._batches[member],
            loss_scale=self._scales[member],
            good_steps=self._good_steps[member],
            average=tensors_of(self._averages[member]) if self._averages else {},
            buffers=buffers_of(self._models[member]),
            steps=self._fewer_steps(trained, moments, updates) if self._is_uneven else {},
        )

    def restore(self, member: int, state: ModelState) -> None:
        """See `Pack.restore`."""
        self._current.discard(member)
        self._forget_graphs()  # they have the addresses of the moments
        moments = self._optimizers[member].state
        moments.clear()
        put_tensors(self._models[member], {**state.weights, **state.buffers})
        if self._averages:
            put_tensors(self._averages[member], state.average)
        self._batches[member] = state.batches
        self._scales[member], self._good_steps[member] = state.loss_scale, state.good_steps
        for name, weight in self._models[member].named_parameters():
            if weight.requires_grad and (count := state.steps.get(name, state.updates)):
                moments[weight] = {
                    "step": torch.tensor(float(count), dtype=torch.float32, device=weight.device),
                    "exp_avg": placed_like(weight, state.exp_avg[name]).clone(),
                    "exp_avg_sq": placed_like(weight, state.exp_avg_sq[name]).clone(),
                }

    def _first_rate(self) -> float | torch.Tensor:
        rate = self._job.train.learning_rate
        return torch.full((), rate, device=self._members[0].rows_TF.device) if self._records else rate

    def _forget_graphs(self) -> None:
        """Record steps anew, after a few eager ones."""
        if not self._records:
            return
        recording = Recording()
        self._recorded = [RecordedStep(recording) for _ in self._members]

    def _step_one(self, number: int, starts_B: torch.Tensor) -> torch.Tensor:
        keys_L2 = self._keys[number].of(self._batches[number])
        if len(starts_B) == 1 and not self._may_slice:
            starts_B = starts_B.repeat(2)  # batch statistics need two windows; the mean loss is the same
        self._current.discard(number)
        self._batches[number] += 1
        if self._records and len(starts_B) == self._job.train.batch:
            return self._recorded[number](partial(self._take, number), starts_B, keys_L2)
        return self._take(number, starts_B, keys_L2)

    def _take(self, number: int, starts_B: torch.Tensor, keys_L2: torch.Tensor) -> torch.Tensor:
        """Take a member's step; return its loss (). A graph may record this function."""
        model, optimizer, member = self._models[number], self._optimizers[number], self._members[number]
        job, before = member.job or self._job, self._begin(number)
        optimizer.zero_grad()
        loss = torch.zeros((), device=starts_B.device, dtype=member.rows_TF.dtype)
        num_labels = self._num_labels(member, starts_B)
        least = self._layout.least_slices(len(starts_B), self._micro_batch)
        slices = slices_of(self._layout.part(len(starts_B)), self._micro_batch, least=least)
        for place, (rows, counts) in enumerate(slices, 1):
            is_last = place == len(slices)
            with (
                self._drawing(number, rows.start),
                self._layout.slicing(self._networks[number], last=is_last),
            ):
                # Dividing each slice's sum by the whole batch gives the batch's mean gradient, whatever the
                # slices.
                share = (
                    self._summed_loss(number, starts_B[rows.start : rows.stop], keys_L2, rows.start)
                    / num_labels
                )
                # A loss that is not finite makes the gradients of every rank NaN, so that all of them skip
                # the step.
                one_or_nan = torch.where(share.detach().isfinite(), 1.0, torch.nan)
                factor = self._scales[number] * self._layout.weight * counts
                (share * one_or_nan * factor).backward()  # type: ignore[no-untyped-call]
            if counts:
                loss += share.detach()
        drop_early_gradients(model, job, batches=self._batches[number] - 1)
        if self._scales[number] != 1.0:
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(1 / self._scales[number])
        norm = whole(nn.utils.clip_grad_norm_(model.parameters(), job.train.clip_norm))
        if self._skips_on_device:
            is_finite = torch.isfinite(norm)
            optimizer.step(skips=(~is_finite).float())
            restore_buffers(model, before, unless=is_finite)
            if self._averages:
                self._follow(number, is_finite)
            return loss.where(is_finite, torch.nan)
        if torch.isfinite(norm):
            optimizer.step()
            self._count_good_step(number)
            if self._averages:
                self._follow(number)
            return loss
        put_buffers(model, before)
        if self._scales[number] > 1.0:
            self._scales[number], self._good_steps[number] = self._scales[number] / 2, 0
        else:
            loss.fill_(torch.nan)
        return loss

    def _begin(self, number: int) -> dict[str, torch.Tensor]:
        """Put a user's own module into training mode; return its buffers, to restore them if the step is not
        taken.
        """
        if not self._job.model.is_any_module:
            return {}
        return buffers_of(self._models[number].train())

    def _drawing(self, number: int, first: int) -> AbstractContextManager[object]:
        """Return a context that seeds a user's own module for the slice that starts at the batch's row
        `first`.
        """
        if not self._job.model.is_any_module:
            return nullcontext()
        member, step = self._members[number], self._batches[number] - 1
        seed = derive(member.seed, member.draws_as, "slice", step, first)
        return drawing(self._models[number], seed=seed, device=member.rows_TF.device)

    def _num_labels(self, member: Member, starts_B: torch.Tensor) -> int | torch.Tensor:
        """Return the number of labels in a batch, the divisor of its summed loss."""
        return len(starts_B)

    def _summed_loss(
        self, number: int, starts_B: torch.Tensor, keys_L2: torch.Tensor, first: int
    ) -> torch.Tensor:
        """Return the loss, summed over labels, of the slice that starts at the batch's row `first`."""
        member = self._members[number]
        x_TBF = gather(member.rows_TF, starts_B, self._steps_T1, member.mean_F, member.std_F)
        last_B = starts_B + (self._seen - 1)
        labels_BK = member.labels_TK[last_B]
        context = () if member.context_RC is None else (gather_context(member.context_RC, last_B),)
        with autocast(self._dtype, starts_B.device):
            outputs_BO = self._networks[number](x_TBF, keys_L2, first, *context)
        return self._loss(outputs_BO, labels_BK).sum()

    def _updates(self, number: int) -> int:
        """Return how many optimizer steps a member has taken."""
        # Each waits for the GPU.
        counts = (int(state["step"]) for state in self._optimizers[number].state.values())
        return max(counts, default=0) if self._is_uneven else next(counts, 0)

    def _fewer_steps(
        self, weights: Mapping[str, torch.Tensor], moments: Mapping[torch.Tensor, Any], updates: int
    ) -> dict[str, int]:
        """Return the optimizer steps of weights that took fewer than `updates`."""
        steps = {}
        for name, weight in weights.items():
            count = int(moments[weight]["step"]) if weight in moments else 0
            if count != updates:
                steps[name] = count
        return steps

    def _follow(self, number: int, is_finite: torch.Tensor | None = None) -> None:
        """Update the average of the weights after a step; on a device without waiting for it, and not after a
        step that was skipped there.
        """
        decay = self._job.train.ema
        share: float | torch.Tensor
        if is_finite is None:
            share = newest_share(decay, self._updates(number))
        else:
            steps = [state["step"] for state in self._optimizers[number].state.values()]
            share = newest_share(decay, torch.stack(steps).amax()).where(is_finite, 0.0)
        update_average(self._averages[number], self._models[number], share)

    def _count_good_step(self, number: int) -> None:
        if self._dtype == torch.float16:
            self._good_steps[number] += 1
            if self._good_steps[number] == GROWTH_STEPS:
                self._scales[number], self._good_steps[number] = self._scales[number] * 2, 0
