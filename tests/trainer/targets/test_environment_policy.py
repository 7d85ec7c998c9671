"""Actions of agents in environments of the user's own, beside torch's distributions."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.distributions import Categorical, Independent, Normal

from trainer.targets import environment_policy as policy

NUMBERS = SimpleNamespace(choices=0, numbers=3)
CHOICES = SimpleNamespace(choices=4, numbers=0)


def outputs_of(many: int) -> torch.Tensor:
    return torch.randn(50, many, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def normal_of(outputs: torch.Tensor) -> Independent:
    """A deviation is exp(-1) where the output is 0, and bounded."""
    deviations = (outputs[:, 3:6] - 1).clamp(policy.LEAST_LOG_DEVIATION, policy.MOST_LOG_DEVIATION).exp()
    return Independent(Normal(outputs[:, :3].tanh(), deviations), 1)


def test_numbers_are_normal_around_their_mean() -> None:
    outputs = outputs_of(7)
    outputs[0, 3:6] = torch.tensor([-100.0, 0.0, 100.0])
    normal, draws = normal_of(outputs), torch.rand(50, 3, dtype=torch.float64) * 0.98 + 0.01
    actions = policy.drawn(NUMBERS, outputs, draws)  # type: ignore[arg-type]
    torch.testing.assert_close(normal.base_dist.cdf(actions), draws)
    log_density, entropy = policy.judged(NUMBERS, outputs, actions)  # type: ignore[arg-type]
    torch.testing.assert_close(log_density, normal.log_prob(actions))
    torch.testing.assert_close(entropy, normal.entropy())
    assert torch.equal(policy.greedy(NUMBERS, outputs), normal.mean)  # type: ignore[arg-type]
    assert torch.equal(policy.value(outputs), outputs[:, 6])


def test_choices_are_drawn_by_their_chances() -> None:
    outputs = outputs_of(5)
    chances, draws = Categorical(logits=outputs[:, :4]), torch.rand(50, 1, dtype=torch.float64)
    actions = policy.drawn(CHOICES, outputs, draws)  # type: ignore[arg-type]
    up_to = chances.probs.cumsum(-1).gather(-1, actions[:, None])
    assert ((up_to - chances.probs.gather(-1, actions[:, None]) <= draws) & (draws < up_to)).all()
    log_chance, entropy = policy.judged(CHOICES, outputs, actions)  # type: ignore[arg-type]
    torch.testing.assert_close(log_chance, chances.log_prob(actions))
    torch.testing.assert_close(entropy, chances.entropy())
    assert torch.equal(policy.greedy(CHOICES, outputs), chances.probs.argmax(-1))  # type: ignore[arg-type]


@pytest.mark.parametrize("target", [NUMBERS, CHOICES], ids=["numbers", "choices"])
def test_one_agent_combined_with_itself_acts_alike(target: SimpleNamespace) -> None:
    outputs = outputs_of(7 if target.numbers else 5)
    both = policy.combined(target, torch.stack([outputs, outputs]))  # type: ignore[arg-type]
    torch.testing.assert_close(policy.greedy(target, both), policy.greedy(target, outputs))  # type: ignore[arg-type]
    torch.testing.assert_close(policy.value(both), policy.value(outputs))
