"""Series with a planted signal: the volume of the bars 20 to 40 before determines the direction, or the size,
of a move.

Shapes: N bars.
"""

from __future__ import annotations

import numpy as np
import torch

from trainer.data.read.candles import Candles

FIRST_LAG, LAST_LAG = 20, 40  # bars before a move that it depends on
FLIPPED = 0.03  # share of the moves in the other direction, which keeps the attainable score below 1
MINUTE = 60_000_000_000


def planted_candles(seed: int, *, moves: int) -> tuple[Candles, torch.Tensor]:
    """Return minute candles whose price is constant between moves of a planted direction, and two features of
    each bar (N, 2): the logs of its return and its volume.
    """
    random = np.random.default_rng(seed)
    gaps = LAST_LAG - FIRST_LAG + random.geometric(0.2, moves)  # no two moves depend on the same bars
    at = LAST_LAG + np.cumsum(gaps)
    loudness = random.standard_normal(int(at[-1]) + 2)
    moved = np.zeros(len(loudness))
    flipped = np.where(random.random(moves) < FLIPPED, -1, 1)
    moved[at] = 1e-3 * direction_of(loudness)[at] * flipped * random.uniform(0.5, 1.5, moves)
    return _series(moved, loudness, timeframe="1m", step=MINUTE)


def planted_volatility(seed: int, *, bars: int) -> tuple[Candles, torch.Tensor]:
    """Return two-hour candles with moves of a planted size and random sign, and two features as in
    `planted_candles`.
    """
    random = np.random.default_rng(seed)
    loudness = random.standard_normal(bars)
    size = 0.002 * np.exp(0.5 * (_past(loudness) / np.sqrt(LAST_LAG - FIRST_LAG + 1)))
    moved = size * np.exp(0.1 * random.standard_normal(bars)) * random.choice([-1.0, 1.0], bars)
    return _series(moved, loudness, timeframe="2h", step=120 * MINUTE)


def direction_of(loudness: np.ndarray) -> np.ndarray:
    """Return (N,): 1 if the volume of the bars 20 to 40 before was above its mean, else -1."""
    return np.where(_past(loudness) > 0, 1, -1)


def _past(loudness: np.ndarray) -> np.ndarray:
    """Return (N,): the sum of `loudness` over the bars LAST_LAG to FIRST_LAG before each bar."""
    total, bar = np.concatenate([[0.0], np.cumsum(loudness)]), np.arange(len(loudness))
    return total[np.maximum(bar - FIRST_LAG + 1, 0)] - total[np.maximum(bar - LAST_LAG, 0)]


def _series(
    moved: np.ndarray, loudness: np.ndarray, *, timeframe: str, step: int
) -> tuple[Candles, torch.Tensor]:
    close = 100 * np.exp(np.cumsum(moved))
    candles = Candles(
        symbol="PLANTED",
        timeframe=timeframe,
        timestamp=step * np.arange(len(close), dtype=np.int64),
        open=np.concatenate([close[:1], close[:-1]]),
        high=close,
        low=close,
        close=close,
        volume=np.exp(loudness),
    )
    return candles, torch.from_numpy(np.stack([moved, loudness], axis=1)).float()
