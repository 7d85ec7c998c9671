"""The policy that a network's outputs are: chances, values and best actions of a position held. Torch.

A position held is its place among `Position.positions` (int64), or a share of the money (float) with
continuous actions. Shapes: P positions, O outputs (`position` has their order), M networks.
"""

from __future__ import annotations

import math

import torch

from trainer.targets.position_account import Terms, growth

BASIS = 10_000
# Log deviation of an output of 0, and the bounds of any, in half ranges of positions.
FIRST_LOG_DEVIATION, LEAST_LOG_DEVIATION, MOST_LOG_DEVIATION = -1.0, -5.0, 1.0


def log_chances(target: Terms, outputs: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
    """Return the log probability (..., P) of each next position: outputs (..., O), held (...) int64."""
    number = len(target.positions)
    place = held[..., None, None].expand(*held.shape, 1, number)
    return _logits(target, outputs).gather(-2, place).squeeze(-2).log_softmax(-1)


def log_chances_of_each(target: Terms, outputs: torch.Tensor) -> torch.Tensor:
    """Return the log probability (..., P held, P next) of each next position by the position held."""
    return _logits(target, outputs).log_softmax(-1)


def value(target: Terms, outputs: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
    """Return the value (...) of holding a position: outputs (..., O), held (...)."""
    values = _values(target, outputs)
    if target.is_continuous:
        return _between(target, values, held)
    return values.gather(-1, held[..., None]).squeeze(-1)


def mean_and_log_deviation(
    target: Terms, outputs: torch.Tensor, held: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and log deviation (...) of the next position, of which a normal one is drawn and clipped:
    outputs (..., O), held (...) shares. The mean is within the limits.
    """
    deviation = (outputs[..., -1] + FIRST_LOG_DEVIATION).clamp(LEAST_LOG_DEVIATION, MOST_LOG_DEVIATION)
    return _between(target, _means(target, outputs), held), deviation + math.log(_half(target))


def greedy(target: Terms, outputs: torch.Tensor) -> torch.Tensor:
    """Return the position (..., P) to take for each position held: the likeliest, or the mean."""
    if target.is_continuous:
        return _means(target, outputs)
    return _shares(target, outputs)[_logits(target, outputs).argmax(-1)]


def combined(target: Terms, outputs_MNO: torch.Tensor) -> torch.Tensor:
    """Return the outputs (..., O) with the mean chances, or means, and mean values of several (M, ..., O)."""
    values = _values(target, outputs_MNO).mean(0)
    if target.is_continuous:
        number = len(target.positions)
        means = mean_of_tanh(outputs_MNO[..., :number])
        return torch.cat([means, values, outputs_MNO[..., -1:].mean(0)], -1)
    chances = _logits(target, outputs_MNO).log_softmax(-1).logsumexp(0) - math.log(len(outputs_MNO))
    return torch.cat([chances.flatten(-2), values], -1)


def mean_of_tanh(outputs_M: torch.Tensor) -> torch.Tensor:
    """Return the outputs (...) whose tanh is the mean of those of several networks (M, ...); finite, also
    where all are at an end.
    """
    most = 1 - torch.finfo(outputs_M.dtype).eps
    return outputs_M.tanh().mean(0).clamp(-most, most).atanh()


def regret(target: Terms, outputs: torch.Tensor, log_return: torch.Tensor) -> torch.Tensor:
    """Return by how many basis points (...) the policy's expected growth at a bar is below that of the best
    position, as a mean over positions held: outputs (..., O), log returns (...).
    """
    held = _shares(target, outputs)
    gains = growth(held[:, None], held, log_return[..., None, None], target.cost)  # (..., P held, P next)
    if target.is_continuous:
        means = _means(target, outputs)
        made = growth(held, means, log_return[..., None], target.cost)
    else:
        made = (_logits(target, outputs).softmax(-1) * gains).sum(-1)
    missed: torch.Tensor = BASIS * (gains.amax(-1) - made).clamp(min=0).mean(-1)
    return missed


def _logits(target: Terms, outputs: torch.Tensor) -> torch.Tensor:
    """Return the logits (..., P held, P next)."""
    number = len(target.positions)
    return outputs[..., : number * number].reshape(*outputs.shape[:-1], number, number)


def _values(target: Terms, outputs: torch.Tensor) -> torch.Tensor:
    """Return the value (..., P) of each position held."""
    number = len(target.positions)
    first = number if target.is_continuous else number * number
    return outputs[..., first : first + number]


def _means(target: Terms, outputs: torch.Tensor) -> torch.Tensor:
    """Return the mean (..., P) of the next position for each position held, within the limits."""
    low, high = target.positions[0], target.positions[-1]
    return (low + high) / 2 + _half(target) * outputs[..., : len(target.positions)].tanh()


def _half(target: Terms) -> float:
    return (target.positions[-1] - target.positions[0]) / 2


def _shares(target: Terms, like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(target.positions, dtype=like.dtype, device=like.device)


def _between(target: Terms, each: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
    """Return values (..., P) of the positions at a share (...), linear between them."""
    low, width = target.positions[0], target.positions[1] - target.positions[0]
    place = (held - low) / width
    knot = place.detach().floor().clamp(0, len(target.positions) - 2).long()
    first, second = (each.gather(-1, (knot + add)[..., None]).squeeze(-1) for add in (0, 1))
    return first + (second - first) * (place - knot)
