"""Hand-made candles for the tests of trainer/data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from trainer.data.candles import Candles
from trainer.data.sources import FIELDS
from trainer.data.timeframes import step_of

MONDAY = 1_704_067_200_000_000_000  # 2024-01-01T00:00:00Z

MakeCandles = Callable[..., Candles]
WriteCsv = Callable[..., Path]


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """Compute as a worker does; threads that wait for each other on a busy machine take seconds for nothing."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def make_candles() -> MakeCandles:
    """Build seeded candles: `make_candles(500, drop=[100, 101])` leaves bars out, `close=[...]` sets every price of a bar."""

    def make(
        num_bars: int = 2000,
        *,
        symbol: str = "AAA",
        timeframe: str = "1m",
        seed: int = 0,
        drop: object = (),
        close: object = None,
    ) -> Candles:
        random = np.random.default_rng(seed)
        timestamp = MONDAY + (step_of(timeframe) or 60_000_000_000) * np.arange(num_bars, dtype=np.int64)
        last = (
            np.asarray(close, dtype=float) if close is not None else 100 * np.exp(np.cumsum(random.normal(0, 1e-3, num_bars)))
        )
        first = np.concatenate([last[:1], last[:-1]]) if close is None else last
        spread = 1 + (np.abs(random.normal(0, 5e-4, num_bars)) if close is None else 0)
        keep = np.ones(num_bars, dtype=bool)
        keep[list(drop)] = False  # type: ignore[call-overload]
        columns = {
            "open": first,
            "high": np.maximum(first, last) * spread,
            "low": np.minimum(first, last) / spread,
            "close": last,
            "volume": random.lognormal(3, 1, num_bars),
        }
        return Candles(
            symbol=symbol, timeframe=timeframe, timestamp=timestamp[keep], **{name: columns[name][keep] for name in FIELDS}
        )

    return make


@pytest.fixture
def write_csv(tmp_path: Path) -> WriteCsv:
    """Write rows of text below a header: `write_csv("AAA_1m.csv", "time,o,h,l,c,v", ["0,1,1,1,1,1"])`."""

    def write(name: str, header: str, rows: list[str]) -> Path:
        path = tmp_path / name
        path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
        return path

    return write
