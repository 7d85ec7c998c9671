"""A trading agent's world of your own: long or flat, at the cost of a fee, over one symbol's candles.

Built with the candles of one episode, which it runs over once, a step a bar. docs/agents.md says what Mayfly
asks of it.
"""

import gymnasium
import numpy as np


class MyEnv(gymnasium.Env):
    def __init__(self, candles, window=30, fee=10.0):
        closes, opens = np.log(candles.close), np.log(candles.open)
        self.times = candles.timestamp
        self.moves = np.diff(closes, prepend=closes[0]) / 1e-3  # about 1 for minutes
        self.brings = np.diff(opens)[1:] * 1e4  # by bar t, open of t + 1 to open of t + 2, in basis points
        self.window, self.fee = window, fee  # the fee in basis points, too
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (window + 1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)  # flat, long
        if len(self.brings) < window:
            raise ValueError(f"a window has {window} bars")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.bar, self.held = self.window - 1, 0  # the first bar at which a window is there
        return self.seen()

    def step(self, action):
        reward = action * self.brings[self.bar] - self.fee * abs(action - self.held)
        self.bar, self.held = self.bar + 1, action
        is_over = self.bar == len(self.brings)  # nothing is known of what the next action would bring
        seen, info = self.seen()
        return seen, float(reward), False, is_over, info

    def seen(self):
        """Return the moves of the last bars, what is held, and the time of the newest bar."""
        moves = self.moves[self.bar - self.window + 1 : self.bar + 1]
        seen = np.append(moves, self.held).astype(np.float32)
        return seen, {"time": int(self.times[self.bar])}
