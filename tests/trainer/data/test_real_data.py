"""The real candles beside the checkout: what their README says is what the product sees."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from trainer.data.calendar import holes
from trainer.data.read.reading import read_candles
from trainer.job.job import Job
from trainer.train.inputs.rows import prepare

RAW = Path(__file__).parents[4] / "shared" / "data" / "raw"
pytestmark = pytest.mark.skipif(not RAW.is_dir(), reason=f"no real candles at {RAW}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("symbol", "timeframe", "bars", "calendar", "count"),
    [
        ("BTC-USD", "1m", 524_686, "24x7", 5),
        ("SOL-USD", "1m", 198_450, "24x7", 6),
        ("ETH-USD", "1h", 15_299, "24x7", 6),
        ("XTZ-USD", "1d", None, "24x7", 0),
        ("AAPL", "1d", 1_760, "sessions", 0),
        ("SPY", "1h", 40_832, "sessions", 1),  # 11 to 14 September 2001
        ("ES", "tick2800", 41_123, "events", 0),
    ],
)
def test_each_kind_of_series_is_prepared(
    symbol: str, timeframe: str, bars: int | None, calendar: str, count: int
) -> None:
    candles = read_candles(RAW, symbols=[symbol], timeframe=timeframe)[symbol]
    data = prepare(candles, Job())
    assert bars in (None, len(candles))
    assert (data.calendar, holes(candles.timestamp, timeframe, calendar).sum()) == (calendar, count)
    assert min(len(starts) for starts in data.starts.values()) > 100
    assert torch.isfinite(data.rows_TF).all()


def test_minutes_have_holes_only_where_the_source_has_them() -> None:
    candles = read_candles(RAW, symbols=["SPY"], timeframe="1m")["SPY"]
    data = prepare(candles, Job())
    assert data.calendar == "sessions"
    days = np.unique(
        candles.timestamp[np.flatnonzero(_holes(candles))].astype("datetime64[ns]").astype("datetime64[D]")
    )
    early_closes = {"2024-07-03", "2024-11-29", "2024-12-24"}
    assert {
        str(day) for day in days if str(day) < "2025-03-26"
    } <= early_closes  # from then on, hours before and after trading


def test_a_named_exchange_leaves_no_hole_in_real_minutes() -> None:
    candles = read_candles(RAW, symbols=["SPY"], timeframe="1m")["SPY"]
    assert not holes(candles.timestamp, "1m", "XNYS").any()
    assert _holes(candles).sum() == 385


def _holes(candles) -> np.ndarray:
    return holes(candles.timestamp, candles.timeframe, "sessions")
