"""Environments of a user's own, sound ones and those with a mistake each, for test_own_environment."""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Long(gymnasium.Env):
    """Long or flat. Ruined by one bar in `ruin`; the seed decides on the fills."""

    action_space = Discrete(2, start=3)

    def __init__(self, candles, window=3, ruin=0, noise=0.5):
        self.times, self.closes = candles.timestamp, np.log(candles.close)
        self.window, self.ruin, self.noise = window, ruin, noise
        self.observation_space = Box(-np.inf, np.inf, (window + 1,), np.float32)
        if len(candles) < window + 2:
            raise ValueError("too few bars")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.bar, self.held = self.window, 0.0
        return self.seen(), {"time": int(self.times[self.bar])}

    def step(self, action):
        position = self.position(action)
        fill = self.noise * self.np_random.normal()
        reward = 100 * position * (self.closes[self.bar + 1] - self.closes[self.bar])
        reward -= abs(position - self.held) * (1 + fill)
        self.bar, self.held = self.bar + 1, position
        ruined = bool(self.ruin and (self.times[self.bar] // 10**9 // 3600) % self.ruin == 0)
        return (
            self.seen(),
            reward,
            ruined,
            self.bar + 1 == len(self.closes),
            {"time": int(self.times[self.bar])},
        )

    def position(self, action):
        return float(action - 3)

    def seen(self):
        part = 100 * np.diff(self.closes[self.bar - self.window : self.bar + 1])
        return np.append(part, self.held).astype(np.float32)


class Two(Long):
    """Shares of two accounts."""

    action_space = Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 0.5], np.float32))

    def position(self, action):
        return float(action.sum())


class Told(Long):
    """The next move's sign is seen: what to do is in plain view."""

    def __init__(self, candles, window=3):
        super().__init__(candles, window, noise=0.0)
        closes = self.closes
        self.signs = np.sign(np.diff(np.log(candles.volume), prepend=0.0))
        self.closes = np.concatenate([[0.0], np.cumsum(0.05 * self.signs[:-1])]) + 0 * closes

    def seen(self):
        return np.append(np.full(self.window, self.signs[self.bar]), self.held).astype(np.float32)


class ToldTwo(Told):
    action_space = Two.action_space

    def position(self, action):
        return float(action.sum())


class Ahead(Long):
    def seen(self):
        last = min(self.bar + 1, len(self.closes) - 1)
        return np.append(100 * np.diff(self.closes[last - self.window : last + 1]), self.held).astype(
            np.float32
        )


class Escapes(Long):
    """Is over before a large loss of the bars to come."""

    def step(self, action):
        seen, reward, _, over, info = super().step(action)
        return seen, reward, bool((np.diff(self.closes[self.bar + 2 :][:2]) < -0.01).any()), over, info


class Chance(Long):
    def step(self, action):
        if self.bar > 20:  # the library's checker looks at the first step
            self.held = np.random.default_rng().normal()
        return super().step(action)


class Timeless(Long):
    def step(self, action):
        return *super().step(action)[:4], {}


class Late(Long):
    def step(self, action):
        return *super().step(action)[:4], {"time": int(self.times[self.bar]) // 10**9}


class Broken(Long):
    def step(self, action):
        seen, reward, *rest = super().step(action)
        return seen, reward if self.bar < 20 else float("nan"), *rest


class Blind(Long):
    def seen(self):
        return np.full(self.window + 1, np.nan if self.bar > 20 else 0.0, np.float32)


class Pictures(Long):
    def __init__(self, candles):
        super().__init__(candles)
        self.observation_space = Box(0, 1, (4, 4), np.float32)


class Endless(Long):
    action_space = Box(-np.inf, np.inf, (1,), np.float32)


class Wrong(Long):
    def reset(self, *, seed=None, options=None):
        seen, info = super().reset(seed=seed)
        return seen.astype(np.float64)[:2], info


class Plain:
    def __init__(self, candles):
        pass
