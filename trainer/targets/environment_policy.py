"""The policy that a network's outputs are in an environment of the user's own. Torch.

An action is a number of a choice (int64), or numbers (A,) of which -1 and 1 are the ends of the
environment's range. Shapes: A numbers of an action, O outputs (`environment` has their order), M networks.
"""

from __future__ import annotations

import math

import torch

from trainer.targets.environment_steps import OwnActions
from trainer.targets.position_policy import (
    FIRST_LOG_DEVIATION,
    LEAST_LOG_DEVIATION,
    MOST_LOG_DEVIATION,
    mean_of_tanh,
)

_NORMAL_ENTROPY = 0.5 + 0.5 * math.log(2 * math.pi)  # of a deviation of 1


def log_chances(target: OwnActions, outputs: torch.Tensor) -> torch.Tensor:
    """Return the log probability (..., choices) of each discrete action."""
    return outputs[..., : target.choices].log_softmax(-1)


def mean_and_log_deviation(target: OwnActions, outputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and log deviation (..., A) of an action's numbers; the mean is within their range."""
    means, deviations = outputs[..., : 2 * target.numbers].chunk(2, dim=-1)
    return means.tanh(), (deviations + FIRST_LOG_DEVIATION).clamp(LEAST_LOG_DEVIATION, MOST_LOG_DEVIATION)


def value(outputs: torch.Tensor) -> torch.Tensor:
    """Return the value (...) of what is seen."""
    return outputs[..., -1]


def greedy(target: OwnActions, outputs: torch.Tensor) -> torch.Tensor:
    """Return the likeliest choice (...), or the mean (..., A)."""
    if target.choices:
        return log_chances(target, outputs).argmax(-1)
    return mean_and_log_deviation(target, outputs)[0]


def drawn(target: OwnActions, outputs: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """Return actions of the policy: a choice (...) int64, or numbers (..., A), which may lie beyond the ends.
    `draws` (..., A, or 1) are uniform in (0, 1).
    """
    if target.choices:
        chances = log_chances(target, outputs).double().exp()
        # The last choice takes what rounding leaves.
        chosen: torch.Tensor = (chances.cumsum(-1)[..., :-1] <= draws).sum(-1)
        return chosen
    mean, log_deviation = mean_and_log_deviation(target, outputs.double())
    numbers: torch.Tensor = mean + log_deviation.exp() * torch.special.ndtri(draws)
    return numbers


def judged(
    target: OwnActions, outputs: torch.Tensor, action: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log probability (...) of an action, or its log density, and the policy's entropy (...)."""
    if target.choices:
        logs = log_chances(target, outputs)
        return logs.gather(-1, action[..., None]).squeeze(-1), -(logs.exp() * logs).sum(-1)
    mean, log_deviation = mean_and_log_deviation(target, outputs)
    scaled = (action.to(outputs.dtype) - mean) / log_deviation.exp()
    log_density = -0.5 * scaled.square() - log_deviation - 0.5 * math.log(2 * math.pi)
    return log_density.sum(-1), (log_deviation + _NORMAL_ENTROPY).sum(-1)


def combined(target: OwnActions, outputs_MNO: torch.Tensor) -> torch.Tensor:
    """Return the outputs (..., O) with the mean chances, or means, and mean values of several (M, ..., O)."""
    values = outputs_MNO[..., -1:].mean(0)
    if target.choices:
        chances = log_chances(target, outputs_MNO).logsumexp(0) - math.log(len(outputs_MNO))
        return torch.cat([chances, values], -1)
    numbers = target.numbers
    means = mean_of_tanh(outputs_MNO[..., :numbers])
    return torch.cat([means, outputs_MNO[..., numbers : 2 * numbers].mean(0), values], -1)
