"""AdamW of one model: torch's fused kernels by their function, without the class around it.

The first step of `torch.optim.AdamW` loads torch's compiler: two seconds and 70 MB in every process that
trains (torch 2.13). The arithmetic is the same kernels'.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.optim.adamw import adamw

from trainer.train.packs.pack import BETAS, EPSILON, decays

Moments = dict[str, torch.Tensor]  # step (), exp_avg and exp_avg_sq, as in torch


class AdamW:
    """Steps of the weights that train; `state` has the moments of each weight that has taken one."""

    def __init__(
        self, weights: Iterable[torch.Tensor], *, rate: float | torch.Tensor, weight_decay: float
    ) -> None:
        """`rate`: a tensor () on the device if steps are recorded, which read it there."""
        self._weights = [weight for weight in weights if weight.requires_grad]
        self._groups = [
            (
                [weight for weight in self._weights if decays(weight) is decayed],
                weight_decay if decayed else 0.0,
            )
            for decayed in (True, False)
        ]
        self._rate = rate
        self.state: dict[torch.Tensor, Moments] = {}

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the next steps."""
        if isinstance(self._rate, torch.Tensor):
            self._rate.fill_(rate)
        else:
            self._rate = rate

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for weight in self._weights:
            weight.grad = None

    @torch.no_grad()
    def step(self, skips: torch.Tensor | None = None) -> None:
        """Move every weight with a gradient. `skips` (), 1.0 on their device: leave all as they are."""
        for weights, decay in self._groups:
            graded = [(weight, weight.grad) for weight in weights if weight.grad is not None]
            if not graded:  # a part of a user's own module may rest
                continue
            moments = [self._moments(weight) for weight, _ in graded]
            adamw(
                [weight for weight, _ in graded],
                [gradient for _, gradient in graded],
                [one["exp_avg"] for one in moments],
                [one["exp_avg_sq"] for one in moments],
                [],
                [one["step"] for one in moments],
                fused=True,
                found_inf=skips,
                amsgrad=False,
                beta1=BETAS[0],
                beta2=BETAS[1],
                lr=self._rate,
                weight_decay=decay,
                eps=EPSILON,
                maximize=False,
            )

    def _moments(self, weight: torch.Tensor) -> Moments:
        if weight not in self.state:
            self.state[weight] = {
                "step": torch.zeros((), dtype=torch.float32, device=weight.device),
                "exp_avg": torch.zeros_like(weight, memory_format=torch.preserve_format),
                "exp_avg_sq": torch.zeros_like(weight, memory_format=torch.preserve_format),
            }
        return self.state[weight]
