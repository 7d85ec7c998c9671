"""Agents: a step is a rollout, and the PPO updates on its bars, of all agents as one program.

`trainer.train.agents` acts and has the loss; here are the networks, the windows that they read, and the
accounts that go on from rollout to rollout. The optimizer is that of `stacked`. Networks run in their stacked
form where the home has one and it pays, else each as a module whose weights are a row of (M, P).

Random numbers of a step are those of its keys: of actions, and of the order of bars in each pass. Networks
run without dropout, a module of the user's own in evaluation mode: a policy that is another at each look has
no ratio to the one that acted.

Shapes: M agents, L lanes, S bars of a rollout in a lane, N = L x S, E bars after which an episode ends, A =
N + L x E windows that are read at first, B bars of a slice, T time steps, F features, C columns of the
context, P weights of one model, O outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import nn

from trainer.base.settings import RECURRENT
from trainer.job.agent import AgentSettings
from trainer.job.job import Job
from trainer.models.layers import numbers_of
from trainer.targets.described import OF_A_ROLLOUT
from trainer.targets.position_account import Terms
from trainer.train.agents.ppo import Experience, judged, losses, normalized, values_of
from trainer.train.agents.rollout import (
    Acted,
    Bars,
    act,
    advantages,
    bars_of,
    drawdowns,
    ends_of,
    flat_of,
    grown,
    held_after,
    next_values,
)
from trainer.train.packs.pack import Member, ModelState
from trainer.train.packs.stacked import Form, Stacked, joined
from trainer.train.precision import autocast
from trainer.train.predict.readers import scale_

BASIS = 10_000  # basis points, in which growth is reported, as by the target
HELD, NEXT = "agent.held", "agent.next"  # buffers of a state: positions, and the windows that lanes go on at
_BITS = 24  # of a uniform number


class Agents(Stacked):
    """The agents of a worker; see `Pack`."""

    purpose = "agent"

    def __init__(self, members: Sequence[Member], job: Job, *, micro_batch: int = 0) -> None:
        self._target = cast(Terms, job.target)
        self._agent, self._lanes = job.agent, job.agent.lanes
        self._bars = job.reads_of_step // self._lanes
        # Ends of episodes within a rollout, at most, and its own.
        self._most_ends = -(-(self._bars - 1) // job.agent.episode)
        self._is_fused = stacks_agents(job, on_cpu=members[0].rows_TF.device.type == "cpu")
        super().__init__(members, job, micro_batch=micro_batch)
        told = (len(members), len(OF_A_ROLLOUT))
        self._told_MK = torch.zeros(*told, dtype=torch.float64, device=self._device)
        self._open()
        self._contexts = None if members[0].context_RC is None else _contexts(members)
        for model in self._models:
            model.eval()
        self._networks = [] if self._is_fused else [network.eval() for network in self._modules()]

    def _open(self) -> None:
        """Open the accounts."""
        models, on = len(self._members), self._device
        kind = torch.float64 if self._target.is_continuous else torch.int64
        self._held_ML = torch.full((models, self._lanes), flat_of(self._target), dtype=kind, device=on)
        self._next_ML = torch.full((models, self._lanes), -1, dtype=torch.int64, device=on)
        self._units_M = torch.stack([_unit(member, self._agent) for member in self._members])

    @property
    def _of_step(self) -> tuple[int, ...]:
        return (self._job.reads_of_step, 2)

    @property
    def _num_keys(self) -> int:
        return 1 + self._agent.updates

    def _form(self) -> Form:
        return super()._form() if self._is_fused else WeightRows(self._models[0])

    @property
    def _is_recorded(self) -> bool:
        return not self._job.model.is_any_module  # which may wait for the device

    def _rows(self) -> list[torch.Tensor]:
        """Return the rows of each member, already scaled: a rollout reads them several times."""
        known: dict[tuple[int, ...], torch.Tensor] = {}
        rows = []
        for one in self._members:  # folds of a symbol have their own scalers
            key = (id(one.rows_TF), id(one.mean_F), id(one.std_F))
            if key not in known:
                known[key] = scale_(one.rows_TF.clone(), one.mean_F, one.std_F)
            rows.append(known[key])
        return rows

    def told(self, member: int) -> Mapping[str, float]:
        """See `Pack.told`: of the last rollout, entropy, mean log growth of a lane, and its mean drawdown."""
        return dict(zip(OF_A_ROLLOUT, self._told_MK[member].tolist(), strict=True))

    def snapshot(self, member: int) -> ModelState:
        """See `Pack.snapshot`."""
        return replace(super().snapshot(member), buffers=self._accounts(member))

    def restore(self, member: int, state: ModelState) -> None:
        """See `Pack.restore`. Without accounts all begin anew."""
        super().restore(member, state)
        self._continue(member, state.buffers)

    def _accounts(self, member: int) -> dict[str, torch.Tensor]:
        """Return a copy of the accounts of a member."""
        return {HELD: self._held_ML[member].clone(), NEXT: self._next_ML[member].clone()}

    def _continue(self, member: int, accounts: Mapping[str, torch.Tensor]) -> None:
        """Continue the accounts of a member; without them they begin anew."""
        self._held_ML[member], self._next_ML[member] = flat_of(self._target), -1
        if HELD in accounts:
            self._held_ML[member] = accounts[HELD].to(self._held_ML)
            self._next_ML[member] = accounts[NEXT].to(self._next_ML)

    def _run(self) -> None:
        """Act for a rollout, then learn from it."""
        active_M, models = self._lengths_M > 0, len(self._members)
        first_MLS, next_MLS = self._starts_MB.view(models, self._lanes, self._bars, 2).unbind(-1)
        keys_KM2 = self._table_MSL2[self._numbers_M, self._places_M].transpose(0, 1)
        with torch.no_grad():
            bars = bars_of(self._returns_of(first_MLS), first_MLS, next_MLS)
            ends_MLE = ends_of(bars, self._most_ends)
            starts_MA = torch.cat((first_MLS.flatten(1), next_MLS.gather(2, ends_MLE).flatten(1)), dim=1)
            outputs_MAO = self._outputs_of_all(starts_MA)
            acted, made = self._acted(outputs_MAO, keys_KM2[0], bars, ends_MLE, first_MLS)
            growth_MLS = grown(self._target, acted, bars)
        taken_M = self._learn(first_MLS.flatten(1), made, keys_KM2[1:], active_M)
        finite_M = growth_MLS.isfinite().flatten(1).all(1)
        loss_M = torch.where(taken_M & finite_M, -BASIS * growth_MLS.mean((1, 2)), self._nan.double())
        self._losses_M.copy_(loss_M)
        torch.where(active_M[:, None], acted.last_ML, self._held_ML, out=self._held_ML)
        torch.where(active_M[:, None], next_MLS[..., -1], self._next_ML, out=self._next_ML)
        told = (
            self._entropy_M.double(),
            growth_MLS.sum(-1).mean(-1),
            drawdowns(growth_MLS).mean(-1),
        )
        self._told_MK.copy_(torch.where(active_M[:, None], torch.stack(told, dim=1), self._told_MK))

    def _acted(
        self,
        outputs_MAO: torch.Tensor,
        keys_M2: torch.Tensor,
        bars: Bars,
        ends_MLE: torch.Tensor,
        first_MLS: torch.Tensor,
    ) -> tuple[Acted, Experience]:
        """Act by the outputs of a rollout's windows; return what was done, and what it teaches."""
        target, shape = self._target, first_MLS.shape
        windows = shape[1] * shape[2]
        outputs_MLSO = outputs_MAO[:, :windows].reshape(*shape, -1)
        outputs_MLEO = outputs_MAO[:, windows:].reshape(*ends_MLE.shape, -1)
        goes_on_ML = self._next_ML == first_MLS[..., 0]
        held_ML = torch.where(goes_on_ML, self._held_ML, flat_of(target))
        draws_MLS = uniform(keys_M2, windows).view(shape)
        acted = act(target, outputs_MLSO, draws_MLS, held_ML, bars)
        log_chance_MLS, entropy_MLS = judged(target, outputs_MLSO, acted.held_MLS, acted.action_MLS)
        self._entropy_M = entropy_MLS.mean((1, 2))
        value_MLS = values_of(target, outputs_MLSO, acted.held_MLS).double()
        after_MLE = values_of(target, outputs_MLEO, held_after(target, acted, bars, ends_MLE)).double()
        advantage_MLS = advantages(
            grown(target, acted, bars) / self._units_M[:, None, None],
            value_MLS,
            next_values(value_MLS, ends_MLE, after_MLE),
            ruined_MLS=acted.ruined_MLS,
            ends_MLS=bars.ends_MLS,
            discount=self._agent.discount,
            trace=self._agent.trace,
        )
        made = Experience(
            held=acted.held_MLS.flatten(1),
            action=acted.action_MLS.flatten(1),
            log_chance=log_chance_MLS.flatten(1),
            advantage=normalized(advantage_MLS.flatten(1)).to(self._dtype),
            value_target=(advantage_MLS + value_MLS).flatten(1).to(self._dtype),
        )
        return acted, made

    def _learn(
        self, starts_MN: torch.Tensor, made: Experience, keys_KM2: torch.Tensor, active_M: torch.Tensor
    ) -> torch.Tensor:
        """Take the optimizer steps of a rollout; return (M,) bool: whether all were taken, or only need a
        smaller loss scale.
        """
        batch, taken_M = self._job.train.batch, active_M
        for keys_M2 in keys_KM2:
            order_MN = numbers_of(keys_M2, self._job.reads_of_step).argsort(dim=1, stable=True)
            for bars_MB in torch.split(order_MN, batch, dim=1):
                loss_M = torch.zeros_like(self._losses_M)
                self._gradient_MP.zero_()
                for slice_MB in torch.split(bars_MB, self._micro_batch, dim=1):
                    starts_MB = starts_MN.gather(1, slice_MB)
                    loss_M = loss_M + self._add_gradient(starts_MB, made.of(slice_MB), batch)
                taken_M = taken_M & self._update(active_M, loss_M)
        return taken_M

    def _add_gradient(self, starts_MB: torch.Tensor, part: Experience, batch: int) -> torch.Tensor:
        """Add the gradient of a slice's share of its minibatch's loss; return the share (M,)."""
        weights_MP = self._weights_MP.detach().requires_grad_() if self._is_fused else self._weights_MP
        outputs_MBO = self._outputs(weights_MP, starts_MB)
        loss_M = self._losses_of(outputs_MBO, part).sum(1) / batch
        factor_M = self._scales_M.to(self._dtype) if self._is_scaled else self._ones_M
        if self._is_fused:
            (gradient_MP,) = torch.autograd.grad(loss_M, weights_MP, factor_M)
            self._gradient_MP.add_(gradient_MP)
        else:  # into the modules' gradients, which are views of the same matrix
            loss_M.backward(factor_M)  # type: ignore[no-untyped-call]
        return loss_M.detach()

    def _losses_of(self, outputs_MBO: torch.Tensor, part: Experience) -> torch.Tensor:
        """Return the loss (M, B) of each bar."""
        return losses(self._target, self._agent, outputs_MBO, part)

    def _outputs_of_all(self, starts_MA: torch.Tensor) -> torch.Tensor:
        """Return the outputs (M, A, O) of all windows of a rollout, in slices."""
        parts = torch.split(starts_MA, self._micro_batch, dim=1)
        return torch.cat([self._outputs(self._weights_MP, part) for part in parts], dim=1)

    def _outputs(self, weights_MP: torch.Tensor, starts_MB: torch.Tensor) -> torch.Tensor:
        """Return the outputs (M, B, O) of the windows from these first rows."""
        x_MTBF = self._windows(starts_MB).transpose(1, 2)
        if self._is_fused:
            return self._layout.forward(weights_MP, x_MTBF, None, 0)
        ours, made = not self._job.model.is_any_module, []
        contexts = self._contexts_of(starts_MB)
        for number, network in enumerate(self._networks):
            with autocast(self._matmul_dtype, self._device):
                x_TBF, context = x_MTBF[number], contexts[number]
                made.append(network(x_TBF, None, 0, *context) if ours else network(x_TBF, *context))
        return torch.stack(made)

    def _windows(self, starts_MB: torch.Tensor) -> torch.Tensor:
        """Return the windows (M, B, T, F) from these first rows, scaled."""
        # As rows of a matrix that overlap: a window is one piece of memory.
        width = self._rows_RF.shape[1]
        windows = len(self._rows_RF) - self._seen + 1
        each = self._rows_RF.as_strided((windows, self._seen * width), (width, 1))
        x = each.index_select(0, (starts_MB + self._offsets_M1).flatten())
        return x.view(*starts_MB.shape, self._seen, width)

    def _contexts_of(self, starts_MB: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
        """Return the context (B, C) of each agent's windows, if the model reads it."""
        if self._contexts is None:
            return [()] * len(starts_MB)
        context_RC, offsets_M1 = self._contexts
        last_MB = starts_MB + offsets_M1 + self._seen - 1
        return [(each,) for each in context_RC[last_MB].long().unbind()]

    def _returns_of(self, first_MLS: torch.Tensor) -> torch.Tensor:
        """Return the log return (M, L, S) float64 of the bars that are held after each window."""
        rows_MLS = first_MLS + self._label_offsets_M1[..., None]
        return self._labels_RK[..., 0][rows_MLS].double()


class WeightRows:
    """The weights of plain modules as rows, for homes without a stacked form; see `Form`."""

    def __init__(self, like: nn.Module) -> None:
        self._shapes = {name: weight.shape for name, weight in like.named_parameters()}

    def flatten(self, state: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return torch.cat([state[name].reshape(-1) for name in self._shapes])

    def unflatten(self, weights_P: torch.Tensor) -> Mapping[str, torch.Tensor]:
        parts = weights_P.split_with_sizes([shape.numel() for shape in self._shapes.values()])
        return {
            name: part.view(shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)
        }

    def forward(
        self, weights_MP: torch.Tensor, x_MTBF: torch.Tensor, keys_LM2: torch.Tensor | None, first_row: int
    ) -> torch.Tensor:
        raise NotImplementedError("modules run one after another")


def stacks_agents(job: Job, *, on_cpu: bool) -> bool:
    """Return whether networks run in their stacked form: the job's choice, else on a GPU, and on a CPU unless
    it is a recurrence, which is slower there than module after module.
    """
    if not job.model.has_stacked_form or job.expert.strategy in ("sequential", "streams"):
        return False
    return job.expert.strategy == "fused" or not on_cpu or job.cost.kernel != RECURRENT


def _unit(member: Member, agent: AgentSettings) -> torch.Tensor:
    """Return the unit () of a member's rewards: the deviation of the log return over the discount's horizon,
    1 / (1 - discount) bars, by that of a bar in training; else 1.

    It keeps values near 1. In units of a single bar their error drowned the policy of the shared network: of
    a planted regime two of five seeds made 1.7 and 2.4 basis points a bar, and all five make 4.1 or more now.
    """
    returns = member.labels_TK[:, 0].double()
    is_known = returns.isfinite()
    known, count = torch.where(is_known, returns, 0.0), is_known.sum()
    mean = known.sum() / count
    variance = torch.where(is_known, (known - mean).square(), 0.0).sum() / count
    bars = min(agent.episode, 1 / max(1 - agent.discount, 1 / agent.episode))
    return torch.where(variance > 0, (bars * variance).sqrt(), 1.0)


def _contexts(members: Sequence[Member]) -> tuple[torch.Tensor, torch.Tensor]:
    parts = [member.context_RC for member in members if member.context_RC is not None]
    return joined(parts)


def uniform(keys_M2: torch.Tensor, count: int) -> torch.Tensor:
    """Return random numbers (M, count) float64 in (0, 1)."""
    numbers = (numbers_of(keys_M2, count) >> (32 - _BITS)) & ((1 << _BITS) - 1)
    return (numbers.double() + 0.5) / (1 << _BITS)
