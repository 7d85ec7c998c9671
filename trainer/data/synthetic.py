"""Generate seeded candles for demos and tests, labelled synthetic in the file itself:

    python -m trainer.data.synthetic --out DIR --symbols A,B,C --bars N --timeframe 1m --seed 0

A geometric random walk whose volatility clusters over an hour, half a day and a week, with a daily pattern in
volatility and volume. Signs of returns are independent: a model that forecasts direction on them has seen the
future.
"""

from __future__ import annotations

import argparse
import json
import zlib
from pathlib import Path

import numpy as np

from trainer.base.symbols import flaw, quoted, tidy
from trainer.data.read.candles import Candles
from trainer.data.read.writing import write_candles
from trainer.data.timeframes import DAY, canonical, step_of

MOST_BARS = 10_000_000  # of a symbol: nineteen years of minutes
START = 1_704_067_200_000_000_000  # 2024-01-01T00:00:00Z, a Monday
# Duration in bars of a volatility level, deviation of its log.
_CLUSTERS = ((60, 0.3), (720, 0.4), (10_080, 0.4))
_VOLATILITY_PER_DAY = 0.03
_TICKS_PER_BAR = 8  # moves within a bar, for high and low


def synthetic_candles(symbol: str, *, bars: int, timeframe: str = "1m", seed: int = 0) -> Candles:
    """Return `bars` candles without holes from 2024-01-01 on; a symbol's bars depend only on its name and the
    seed.
    """
    step = step_of(timeframe) or 60_000_000_000
    random = np.random.default_rng([seed, zlib.crc32(symbol.encode())])
    timestamp = START + step * np.arange(bars, dtype=np.int64)
    day = 1 + 0.4 * np.sin(2 * np.pi * ((timestamp % DAY) / DAY - 0.3))
    level = np.ones(bars)
    for length, spread in _CLUSTERS:
        level *= np.repeat(np.exp(random.normal(-spread * spread / 2, spread, bars // length + 1)), length)[
            :bars
        ]
    deviation = _VOLATILITY_PER_DAY * np.sqrt(step / DAY) * level * day
    ticks = random.standard_normal((bars, _TICKS_PER_BAR)) * (deviation / np.sqrt(_TICKS_PER_BAR))[:, None]
    path = np.cumsum(ticks, axis=1)
    close = 100 * np.exp(random.normal() + np.cumsum(path[:, -1])).astype(np.float64)
    close = close.astype(np.float32).astype(np.float64)  # as stored
    open_ = np.concatenate([close[:1], close[:-1]])
    inside = open_[:, None] * np.exp(path)
    high = np.maximum(np.maximum(open_, close), inside.max(axis=1).astype(np.float32))
    low = np.minimum(np.minimum(open_, close), inside.min(axis=1).astype(np.float32))
    volume = np.round(random.lognormal(3.0, 0.6, bars) * level * day, 3)
    return Candles(
        symbol=symbol,
        timeframe=canonical(timeframe),
        timestamp=timestamp,
        open=open_,
        high=high,
        low=low,
        close=close,
        volume=volume,
    )


def main(arguments: list[str] | None = None) -> int:
    """Write one file per symbol and print their paths as JSON; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.data.synthetic", description="Write seeded candles, labelled synthetic."
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--symbols", default="BTC-USD,ETH-USD,SOL-USD", help="names, separated by commas")
    parser.add_argument("--bars", type=int, default=20_000, help="bars of each symbol")
    parser.add_argument("--timeframe", default="1m", help="such as 1m, 1h, 1d")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if not 1 <= options.bars <= MOST_BARS:
        parser.error(f"--bars takes 1 to {MOST_BARS:,}")
    if not 0 <= options.seed < 2**63:
        parser.error("--seed takes 0 or more, with 18 digits at most")
    symbols = [tidy(name.strip()) for name in options.symbols.split(",") if name.strip()]
    for symbol in symbols:
        if why := flaw(symbol):
            parser.error(f"{quoted(symbol)} is not a symbol: {why}")
    options.out.mkdir(parents=True, exist_ok=True)
    paths = []
    for symbol in symbols:
        candles = synthetic_candles(symbol, bars=options.bars, timeframe=options.timeframe, seed=options.seed)
        paths.append(options.out / f"{symbol}_{candles.timeframe}_synthetic.parquet")
        write_candles(paths[-1], [candles], synthetic=True)
    print(json.dumps({"files": [str(path) for path in paths], "synthetic": True}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
