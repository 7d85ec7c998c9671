"""Five of five agents make money, after fees, on the unseen end of a market whose drift turns now and then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainer.store.card import read_card

BARS, SEEDS = 12_000, 5
DEVIATION, DRIFT, TURNS = 2e-3, 6e-4, 1 / 300  # of a bar's log return; its size; how often a bar turns it
SETTINGS = {
    "model": "mlp",
    "target": "position",
    "lookback": 1,
    "hidden": 32,
    "features": ("log_return_60", "momentum_60", "momentum_240", "ema_ratio_26"),
}  # else the defaults


def write_regimes(folder: Path, symbol: str) -> None:
    """Write a symbol's minute candles: steps around a drift up or down, of which a bar turns one in 300."""
    random = np.random.default_rng(0)
    drift = DRIFT * np.where(random.random(BARS) < TURNS, -1.0, 1.0).cumprod()
    close = 100 * np.exp(np.cumsum(DEVIATION * random.standard_normal(BARS) + drift))
    open_ = np.concatenate([[100.0], close[:-1]])
    timestamp = np.datetime64("2024-01-01T00:00", "ns") + np.arange(BARS) * np.timedelta64(1, "m")
    columns = {
        "timestamp": timestamp.astype("datetime64[ns]"),
        "open": open_,
        "high": np.maximum(open_, close),
        "low": np.minimum(open_, close),
        "close": close,
        "volume": np.exp(random.standard_normal(BARS)),
    }
    pq.write_table(pa.table(columns), folder / f"{symbol}_1m_2024-2024.parquet")


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(SEEDS))
def test_an_agent_profits_from_a_planted_regime(seed: int, tmp_path: Path, train: Callable[..., Any]) -> None:
    write_regimes(tmp_path, "REG-USD")
    trained = train(tmp_path, tmp_path / "out", symbol="REG-USD", seed=seed, **SETTINGS)
    test = read_card(trained.file).metrics["test"]
    assert test["growth"] > 1.0 > test["baselines"]["hold"]["growth"], "basis points a bar, after costs"
    assert test["traded_share"] > 0 and test["gross_growth"] > test["growth"]
