"""Series with a planted signal: the volume of the bars 20 to 40 before determines the direction, or the size,
of a move; in a panel, the order of a date's volumes that of the next date's returns. And walks without any.

Shapes: N bars, D dates, S series.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from trainer.data.ranks import ranks
from trainer.data.read.candles import Candles
from trainer.data.timeframes import DAY
from trainer.job.job import Job
from trainer.job.reading import parse_job

FIRST_LAG, LAST_LAG = 20, 40  # bars before a move that it depends on
FLIPPED = 0.03  # share of the moves in the other direction, which keeps the attainable score below 1
MINUTE = 60_000_000_000
# Of a panel.
FIRST = 18_262 * DAY  # 2020-01-01
MARKET, SIGNAL, NOISE = 0.02, 0.01, 0.005  # deviations of a day's return
MISSING = 0.02  # share of a series' days


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


def planted_next(seed: int, *, bars: int) -> Candles:
    """Return minute candles of which each rises or falls by the volume of the one before, loud or quiet, but
    for a tenth, which does the opposite: the least log loss is 0.325.
    """
    random = np.random.default_rng(seed)
    loudness = random.standard_normal(bars)
    signs = np.sign(np.concatenate([[1.0], loudness[:-1]])) * np.where(random.random(bars) < 0.1, -1, 1)
    return _series(1e-3 * signs * random.uniform(0.5, 1.5, bars), loudness, timeframe="1m", step=MINUTE)[0]


def planted_panel(
    seed: int, *, series: int, dates: int, shuffled: bool = False, product: bool = False
) -> list[Candles]:
    """Return the candles of a panel with missing days, late beginnings and early ends. `product`: the order
    of the next returns is that of the product of today's volume and that of two days ago, not of today's.
    """
    random = np.random.default_rng(seed)
    loudness_DS = random.standard_normal((dates, series))
    order_DS = ranks(loudness_DS)
    if product:
        order_DS[2:] = ranks(loudness_DS[2:] * loudness_DS[:-2])
    if shuffled:
        order_DS = random.permuted(order_DS, axis=1)
    market_D1 = MARKET * random.standard_normal((dates, 1))
    noise_DS = NOISE * random.standard_normal((dates, series))
    returns_DS = market_D1 + noise_DS
    returns_DS[1:] += SIGNAL * order_DS[:-1]
    level_S = np.exp(random.normal(0, 2, series))  # volumes differ by series far more than by day
    made = []
    for number in range(series):
        close = 50 * np.exp(np.cumsum(returns_DS[:, number]))
        first = np.concatenate([[50.0], close[:-1]])
        begins = dates // 3 if number % 7 == 3 else 0
        ends = dates - dates // 4 if number % 7 == 5 else dates
        there = (np.arange(dates) >= begins) & (np.arange(dates) < ends) & (random.random(dates) >= MISSING)
        columns = {
            "open": first,
            "high": np.maximum(first, close),
            "low": np.minimum(first, close),
            "close": close,
            "volume": level_S[number] * np.exp(loudness_DS[:, number]),
        }
        timestamp = FIRST + DAY * np.arange(dates, dtype=np.int64)[there]
        bars = {name: values[there] for name, values in columns.items()}
        made.append(Candles(symbol=f"S{number:02d}", timeframe="1d", timestamp=timestamp, **bars))
    return made


def constant_walk(
    seed: int, *, bars: int, symbol: str = "WALK", timeframe: str = "15m", step: int = 15 * MINUTE
) -> Candles:
    """Return the candles of a walk of constant volatility, in which nothing can be forecast."""
    random = np.random.default_rng(seed)
    close = 100 * np.exp(np.cumsum(1e-3 * random.standard_normal(bars)))
    first = np.concatenate([[100.0], close[:-1]])
    return Candles(
        symbol=symbol,
        timeframe=timeframe,
        timestamp=step * np.arange(bars, dtype=np.int64),
        open=first,
        high=np.maximum(first, close),
        low=np.minimum(first, close),
        close=close,
        volume=np.exp(random.standard_normal(bars)),
    )


def panel_job(scaler: str, *, seed: int) -> Job:
    """Return the job of a small model that reads only volume."""
    keys: dict[str, Any] = {
        "name": "planted",
        "data.panel": True,
        "data.scaler": scaler,
        "data.timeframe": "1d",
        "data.calendar": "sessions",
        "data.features": ("volume_zscore_15",),
        "target.name": "return",
        "target.horizon": 1,
        "target.volatility_bars": 20,
        "model.lookback": 3,
        "model.hidden": 8,
        "model.layers": 1,
        "model.dropout": 0.0,
        "train.batch": 256,
        "train.epochs": 6,
        "train.learning_rate": 1e-2,
        "data.test_fraction": 0.25,
        "train.seed": seed,
    }
    return parse_job({}, keys)


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
