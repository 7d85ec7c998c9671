"""Evaluate an agent in an environment of the user's own: one greedy episode over the bars of a span.

Shapes: N bars, D numbers of an observation, O outputs.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from trainer.data.read.candles import Candles
from trainer.targets.environment import EnvironmentTarget
from trainer.targets.environment_policy import greedy
from trainer.targets.environment_steps import Policy, rewards_of
from trainer.train.predict.readers import Forward


class EpisodeReader:
    """Runs a policy over bars; its outputs are the rewards (N, 1). See `Reader`."""

    def __init__(self, target: EnvironmentTarget, candles: Candles) -> None:
        self._target, self._candles = target, candles

    def outputs(self, model: nn.Module, bars: np.ndarray) -> np.ndarray:
        """See `Reader.outputs`."""
        policy = policy_of(model, self._target)
        return rewards_of(self._target, self._candles, bars, policy)[:, None]

    def forward(self, bars: np.ndarray) -> Forward:
        """See `Reader.forward`. This one waits: the environment needs each action."""
        return lambda model: torch.from_numpy(self.outputs(model, bars))

    def units(self, bars: np.ndarray) -> np.ndarray:
        """See `Reader.units`: all bars are one episode."""
        return np.zeros(len(bars), dtype=np.int64)


def policy_of(model: nn.Module, target: EnvironmentTarget) -> Policy:
    """Return the greedy policy of a network."""
    weight = next(model.parameters())

    @torch.inference_mode()
    def act(seen: np.ndarray) -> np.ndarray:
        x_TBF = torch.from_numpy(seen).to(weight)[None, None]
        made: np.ndarray = greedy(target, model(x_TBF)[0]).cpu().numpy()
        return made

    return act
