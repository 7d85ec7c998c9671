"""The policy of a model file that acts in an environment of the user's own.

act = policy(Path("models/mlp-environment_BTC-USD_1m.safetensors"), env)
action = act(seen)    # what env.step takes
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from trainer.base.errors import UsageError
from trainer.store.card import read_card
from trainer.store.weights import load_tensors
from trainer.targets.environment import EnvironmentTarget
from trainer.targets.environment_steps import Policy, action_of
from trainer.train.agents.episodes import policy_of
from trainer.train.predict.load_model import check_card, network_from, target_of


def policy(file: Path, env: Any) -> Policy:
    """Return the greedy policy of a model file: from an observation (D,) to an action of `env`, of which only
    the action space is read. Runs none of the file's code.

    Raises UsageError for a model that acts in no environment of its user's, DataError for a file that can't
    be read.
    """
    card = read_card(file)
    target = target_of(card, file)
    if not isinstance(target, EnvironmentTarget):
        do = "mayfly predict says what it forecasts, or what to hold."
        raise UsageError(f"{file} is not an agent of your own environment", do=do)
    check_card(card, target, file)
    act = policy_of(network_from(card, load_tensors(file), file).eval(), target)
    space = env.action_space
    return lambda seen: action_of(target, space, act(np.asarray(seen, dtype=np.float32)))
