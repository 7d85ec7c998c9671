"""Try a user's own environment: Gymnasium's checker, its spaces, its seed, and no look-ahead.

The bars are a seeded random walk. Shapes: D numbers of an observation, A numbers of an action.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from trainer.base.errors import DataError, UsageError
from trainer.base.own_file import OwnFile, as_usage_error
from trainer.data.read.candles import Candles
from trainer.data.synthetic import synthetic_candles
from trainer.job.job import Job
from trainer.targets.environment import AHEAD, MOST_SEEN, EnvironmentTarget
from trainer.targets.environment_steps import DO, class_of, random_policy, rewards_of

MOST_BARS = 512  # of the trial


def measure_environment(job: Job, say: Callable[[str], None]) -> OwnFile:
    """Return the job's environment with its measurements. Raises UsageError, one line, for anything wrong
    with it, ConfigError without gymnasium.
    """
    # Before any import of gymnasium: it says what to install.
    from trainer.train.agents.environment import refuse_look_ahead

    target: Any = job.own_files["target"]
    name = target.class_name
    say(f"loading {target.base_name} and building {name}")
    bars = min(MOST_BARS, job.agent.episode)
    candles = synthetic_candles("AAA", bars=bars, timeframe=job.data.timeframe or "1m", seed=0)

    def make(given: Candles) -> Any:
        with as_usage_error(f"{name} can't be built over {len(given):,} bars", DO):
            return class_of(target)(given, **target.given)

    env = make(candles)
    tried: EnvironmentTarget = replace(target, measured=_spaces(target, env))
    say(f"checking {name} by Gymnasium's checker")
    _check(name, env)
    say(f"{name} over {bars:,} bars")
    places = np.arange(bars - AHEAD)
    first, second = (rewards_of(tried, candles, places, random_policy(tried)) for _ in range(2))
    if not np.array_equal(first, second):
        why = "the same actions brought other rewards after reset with the same seed"
        raise UsageError(f"{name} is not deterministic", why=why, do="Draw from self.np_random only.")
    try:
        refuse_look_ahead(make, candles, ahead=AHEAD, steps=bars)
    except DataError as error:
        raise UsageError(f"{name}: {error.what}", why=error.why, do=error.do) from error
    return tried


def _check(name: str, env: Any) -> None:
    from gymnasium.utils.env_checker import check_env

    with warnings.catch_warnings(action="ignore"), as_usage_error(f"{name} fails Gymnasium's checker", DO):
        check_env(env, skip_render_check=True)


def _spaces(target: Any, env: Any) -> Any:
    """Return the measurements of an environment by its spaces. Raises UsageError for any that no policy of
    ours has.
    """
    from gymnasium import Env
    from gymnasium.spaces import Box, Discrete

    name = target.class_name
    if not isinstance(env, Env):
        raise UsageError(f"{name} is not a gymnasium.Env", why="an agent acts in one", do=DO)
    seen: Any = getattr(env, "observation_space", None)
    action: Any = getattr(env, "action_space", None)
    if not isinstance(seen, Box) or len(seen.shape) != 1 or not seen.shape[0]:
        why = f"it is {str(seen)[:80]}"
        raise UsageError(f"{name}.observation_space is not a Box of one dimension", why=why, do=DO)
    if seen.shape[0] > MOST_SEEN:
        why, do = f"a card has {MOST_SEEN:,} at most", "Show fewer."
        raise UsageError(f"{name} shows {seen.shape[0]:,} numbers", why=why, do=do)
    is_free = isinstance(action, Box) and len(action.shape) == 1 and action.shape[0] > 0
    if not isinstance(action, Discrete) and not (is_free and action.is_bounded()):
        why = f"it is {str(action)[:80]}"
        what = f"{name}.action_space is neither Discrete nor a bounded Box of one dimension"
        raise UsageError(what, why=why, do=DO)
    return target.measured_as(
        of=target.code,
        seen=int(seen.shape[0]),
        choices=0 if is_free else int(action.n),
        numbers=int(action.shape[0]) if is_free else 0,
    )
