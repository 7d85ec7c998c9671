"""Step an environment of the user's own over candles, and check what it returns. Numpy; runs the user's code.

An action is as in `environment_policy`. Shapes: D numbers of an observation, A numbers of an action, N bars.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np

from trainer.base.errors import UsageError
from trainer.base.own_file import as_usage_error
from trainer.data.read.candles import Candles

SEED = 0  # of an episode that is scored, and of the random policy
DO = "See docs/agents.md."

Policy = Callable[[np.ndarray], Any]  # an observation (D,) -> an action


class OwnActions(Protocol):
    """The user's class and its actions, as the target `environment` has them."""

    def __hash__(self) -> int: ...

    @property
    def class_name(self) -> str:
        """Return the name of the class."""

    @property
    def given(self) -> dict[str, Any]:
        """Return what its constructor gets besides the candles."""

    @property
    def choices(self) -> int:
        """Return how many discrete actions there are; 0: an action is of numbers."""

    @property
    def numbers(self) -> int:
        """Return how many numbers an action has; 0: it is discrete."""

    @property
    def bars_ahead(self) -> int:
        """Return on how many bars after its own a bar's reward may depend."""

    def features(self, inputs: int) -> int:
        """Return how many numbers an observation has; `inputs` before a trial has measured it."""

    def load(self) -> type[Any]:
        """Run the file and return the class. Raises UsageError."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentStep:
    """The result of an action."""

    seen: np.ndarray  # (D,) float32
    reward: float
    terminated: bool
    truncated: bool
    time: Any  # of the bar that is seen, as the environment tells it


class Steps:
    """One environment over candles."""

    def __init__(self, target: OwnActions, candles: Candles) -> None:
        """Raises UsageError if it can't be built."""
        self._target, self._most, self._taken = target, len(candles), 0
        name = target.class_name
        with as_usage_error(f"{name} can't be built over {len(candles):,} bars", DO):
            self.env = class_of(target)(candles.read_only(), **target.given)

    def reset(self, seed: int) -> tuple[np.ndarray, Any]:
        """Return the first observation (D,) float32 and its time. Raises UsageError."""
        self._taken = 0
        with as_usage_error(f"{self._target.class_name}.reset fails over {self._most:,} bars", DO):
            seen, info = self.env.reset(seed=seed)
        return self._checked(seen, "reset"), info.get("time")

    def step(self, action: Any) -> EnvironmentStep:
        """Take an action. An episode is truncated once it has as many steps as bars. Raises UsageError."""
        self._taken += 1
        with as_usage_error(f"{self._target.class_name}.step fails", DO):
            given = action_of(self._target, self.env.action_space, action)
            seen, reward, terminated, truncated, info = self.env.step(given)
            reward = float(reward)
        if not np.isfinite(reward):
            what = f"{self._target.class_name}.step returns the reward {reward}"
            raise UsageError(what, why=f"at step {self._taken:,} of an episode", do=DO)
        is_over = bool(truncated) or self._taken >= self._most
        return EnvironmentStep(
            seen=self._checked(seen, "step"),
            reward=reward,
            terminated=bool(terminated),
            truncated=is_over and not terminated,
            time=info.get("time"),
        )

    def _checked(self, seen: Any, method: str) -> np.ndarray:
        made = np.asarray(seen, dtype=np.float32)
        expected = (self._target.features(made.size),)
        if made.shape != expected or not np.isfinite(made).all():
            what = f"{self._target.class_name}.{method} returns an observation of shape {made.shape}"
            if made.shape == expected:
                what = f"{self._target.class_name}.{method} returns an observation that is not finite"
            why = f"at step {self._taken:,} of an episode; it must be {expected} finite numbers"
            raise UsageError(what, why=why, do=DO)
        return made


def action_of(target: OwnActions, space: Any, action: Any) -> Any:
    """Return an action as an environment with this action space takes it."""
    if target.choices:
        return int(action) + int(getattr(space, "start", 0))
    share = (np.clip(np.asarray(action, dtype=np.float64), -1, 1) + 1) / 2
    return (space.low + share * (space.high.astype(np.float64) - space.low)).astype(space.dtype)


@cache
def class_of(target: OwnActions) -> Any:
    """Return the user's class; loaded once a process. Raises UsageError."""
    return target.load()


def rewards_of(target: OwnActions, candles: Candles, bars: np.ndarray, policy: Policy) -> np.ndarray:
    """Return the reward (N,) float64 of each of the bars, ascending, in one episode over them: what a step
    brings counts at the bar that was seen before it, or at the nearest one before that. The episode ends with
    the last of them. Raises UsageError.

    The environment is given nothing but the bars from the first to the last, and those that the last reward
    may depend on.
    """
    made = np.zeros(len(bars))
    if not len(bars):
        return made
    part = candles.rows(int(bars[0]), int(bars[-1]) + target.bars_ahead + 1)
    times, steps = candles.timestamp[bars], Steps(target, part)
    seen, time = steps.reset(SEED)
    before = -1
    while True:
        before = _place(target, part, time, before)
        if part.timestamp[before] > times[-1]:
            return made
        step = steps.step(policy(seen))
        made[np.searchsorted(times[1:], part.timestamp[before], side="right")] += step.reward
        if step.terminated or step.truncated:
            return made
        seen, time = step.seen, step.time


def _place(target: OwnActions, candles: Candles, time: Any, before: int) -> int:
    """Return the place of the bar that is seen, by the time that the environment tells; it is later than the
    one before. Raises UsageError.
    """
    what = f'{target.class_name} has no info["time"]'
    if isinstance(time, (int, np.integer)):
        place = int(np.searchsorted(candles.timestamp, time))
        if before < place < len(candles) and candles.timestamp[place] == time:
            return place
        what = f'{target.class_name} has info["time"] = {time}, which is not a later bar of its candles'
    why = "an observation has the time of its newest bar, candles.timestamp[bar], and a step is a bar"
    raise UsageError(what, why=why, do=DO)


def idle(target: OwnActions) -> Policy:
    """Return the policy that always takes the first action, or the middle of each number."""
    action = 0 if target.choices else np.zeros(target.numbers)
    return lambda seen: action


def random_policy(target: OwnActions) -> Policy:
    """Return a policy that takes any action."""
    random = np.random.default_rng(SEED)
    if target.choices:
        return lambda seen: int(random.integers(target.choices))
    return lambda seen: random.uniform(-1, 1, target.numbers)
