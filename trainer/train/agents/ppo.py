"""Proximal policy optimization: its loss, for M agents at once.

Schulman and others 2017, equation 9 (https://arxiv.org/abs/1707.06347). Advantages are normalized over an
agent's rollout, as skrl 2.1 does, so that a minibatch may be taken in slices; the squared error of values is
not clipped and not halved, as in skrl and Stable-Baselines3 2.9.

Shapes: M agents, N bars of a rollout, B of them in a slice, P positions, O outputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch

from trainer.job.agent import AgentSettings
from trainer.targets.position_account import Terms
from trainer.targets.position_policy import log_chances, mean_and_log_deviation, value

TINY = 1e-8  # added to the deviation of advantages, as in both libraries
_NORMAL_ENTROPY = 0.5 + 0.5 * math.log(2 * math.pi)  # of a deviation of 1


@dataclass(frozen=True, kw_only=True)
class Experience:
    """Training data of an update, by bar (M, N). Positions and actions as in `rollout.Acted`."""

    held: torch.Tensor
    action: torch.Tensor
    log_chance: torch.Tensor  # of the action, by the policy that took it
    advantage: torch.Tensor  # normalized
    value_target: torch.Tensor

    def of(self, bars_MB: torch.Tensor) -> Experience:
        """Return the experience of these bars."""
        models_M1 = torch.arange(len(bars_MB), device=bars_MB.device)[:, None]
        picked = {item.name: getattr(self, item.name)[models_M1, bars_MB] for item in fields(self)}
        return Experience(**picked)


def normalized(advantage_MN: torch.Tensor) -> torch.Tensor:
    """Return advantages with mean 0 and deviation 1 for each agent."""
    deviation, mean = torch.std_mean(advantage_MN, dim=1, keepdim=True)
    return (advantage_MN - mean) / (deviation + TINY)


def judged(
    target: Terms, outputs: torch.Tensor, held: torch.Tensor, action: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log probability (...) of an action, or of a continuous one its log density, and the policy's
    entropy (...): outputs (..., O).
    """
    if target.is_continuous:
        mean, log_deviation = mean_and_log_deviation(target, outputs, held.to(outputs.dtype))
        scaled = (action.to(outputs.dtype) - mean) / log_deviation.exp()
        log_density = -0.5 * scaled.square() - log_deviation - 0.5 * math.log(2 * math.pi)
        return log_density, log_deviation + _NORMAL_ENTROPY
    logs = log_chances(target, outputs, held)
    return logs.gather(-1, action[..., None]).squeeze(-1), -(logs.exp() * logs).sum(-1)


def values_of(target: Terms, outputs: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
    """Return the value (...) of holding a position: outputs (..., O)."""
    return value(target, outputs, held.to(outputs.dtype) if target.is_continuous else held)


def losses(
    target: Terms, settings: AgentSettings, outputs_MBO: torch.Tensor, part: Experience
) -> torch.Tensor:
    """Return the loss (M, B) of each bar; their mean is a minibatch's."""
    log_chance_MB, entropy_MB = judged(target, outputs_MBO, part.held, part.action)
    value_MB = values_of(target, outputs_MBO, part.held)
    return clipped_losses(settings, log_chance_MB, entropy_MB, value_MB, part)


def clipped_losses(
    settings: AgentSettings,
    log_chance_MB: torch.Tensor,
    entropy_MB: torch.Tensor,
    value_MB: torch.Tensor,
    part: Experience,
) -> torch.Tensor:
    """Return the loss (M, B) of each bar, by the policy as it is now."""
    ratio_MB = (log_chance_MB - part.log_chance).exp()
    clipped_MB = ratio_MB.clamp(1 - settings.clip, 1 + settings.clip)
    gain_MB = torch.minimum(part.advantage * ratio_MB, part.advantage * clipped_MB)
    error_MB = (value_MB - part.value_target).square()
    return settings.value_weight * error_MB - gain_MB - settings.entropy * entropy_MB
