"""The `[agent]` table of a job: how an agent learns, for a target whose outputs act. Standard library only.

The learner is PPO (Schulman and others 2017, Proximal Policy Optimization Algorithms,
https://arxiv.org/abs/1707.06347). A rollout has `train.batch` x `minibatches` bars, an equal part in each of
`lanes` accounts; the learner then takes `updates` x `minibatches` optimizer steps on them. Defaults are those
that libraries share (Stable-Baselines3 2.9, skrl 2.1), but for lanes, passes and entropy: at first trading
only costs, and with less entropy some agents stop it for good (at 0.01 one seed of five, where the others
win).
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.base.settings import check_limits, setting


@dataclass(frozen=True, kw_only=True)
class AgentSettings:
    """The `[agent]` table."""

    lanes: int = setting(
        16, "Accounts in which an agent acts side by side while it learns.", least=1, most=65_536
    )
    episode: int = setting(
        512,
        "Bars of an episode, after which an account begins anew, flat, at another bar of training.",
        least=2,
        most=10_000_000,
    )
    minibatches: int = setting(
        4, "Batches of train.batch bars into which a rollout is divided.", least=1, most=4_096
    )
    updates: int = setting(4, "Passes over the bars of a rollout.", least=1, most=1_000)
    discount: float = setting(0.99, "Discount of rewards per bar.", least=0, most=1)
    trace: float = setting(0.95, "Decay of the advantage estimate's trace: lambda of GAE.", least=0, most=1)
    clip: float = setting(
        0.2, "Change of an action's probability from which its gradient is cut off.", above=0, most=10
    )
    entropy: float = setting(0.05, "Weight of the policy's entropy in the loss.", least=0, most=100)
    value_weight: float = setting(0.5, "Weight of the value's squared error in the loss.", least=0, most=100)

    environment: str = setting(
        "",
        "Your Gymnasium environment over one symbol's candles, as FILE.py:CLASS; it becomes the target.",
    )

    def __post_init__(self) -> None:
        check_limits("agent", self)
