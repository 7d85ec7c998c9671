from __future__ import annotations

import numpy as np
import pytest

from trainer.base.errors import DataError
from trainer.data.read.candles import commonest_step
from trainer.data.read.file_names import parse_flat_name, parse_name
from trainer.data.timeframes import canonical, step_of


@pytest.mark.parametrize(
    ("stem", "expected"),
    [
        ("BTC-USD_1m_2021-2022", ("BTC-USD", "1m")),
        ("ES_tick2800_2015-2016", ("ES", "tick2800")),
        ("SP500_1d", ("SP500", "1d")),
        ("BTC_USDT_60min_x", ("BTC_USDT", "1h")),
        ("BTCUSDT-1h-2021-01", ("BTCUSDT", "1h")),
        ("AAPL_2012-2018", ("AAPL", "")),
        ("AAPL_1M_2012", ("AAPL_1M", "")),
        ("candles", ("candles", "")),
        ("intraday_5min_IBM", ("IBM", "5m")),
        ("daily_adjusted_BRK.B", ("BRK.B", "1d")),
        ("AAPL_1d (2)", ("AAPL", "1d")),
        ("AAPL_1d copy 3", ("AAPL", "1d")),
        ("AAPL_1d - Copy", ("AAPL", "1d")),
        ("Copy", ("Copy", "")),
        ("EURUSD_M15_2021", ("EURUSD", "15m")),
        ("EURUSDH4", ("EURUSD", "4h")),
        ("CME_ESH4", ("CME_ESH4", "")),  # futures of March, and of June
        ("ES_H24", ("ES_H24", "")),
        ("ES_M24", ("ES_M24", "")),
        ("ES_M24_1d", ("ES_M24", "1d")),
        ("EURUSD_Daily_202101010000_202101310000", ("EURUSD", "1d")),
        ("AAPL-daily-2020-2021", ("AAPL", "1d")),
        ("eurusd-m1-bid-2021-01-01-2022-01-01", ("eurusd", "1m")),
        ("EURUSD_2021.01.01_2021.01.31", ("EURUSD", "")),
    ],
)
def test_symbol_and_timeframe_are_read_from_a_name(stem: str, expected: tuple[str, str]) -> None:
    assert parse_name(stem) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("SSE!600519_1d", ("600519", "1d")),
        ("HK!0700_1d_2021", ("0700", "1d")),
        ("BTC!2021_1m", ("BTC", "1m")),
        ("BTC!2021-01_1m", ("BTC", "1m")),
        ("BTC!202101_1m", ("BTC", "1m")),
        ("BTC!0001", ("BTC", "")),
        ("BTC!part-0_1m", ("BTC", "1m")),
    ],
)
def test_a_number_before_a_timeframe_is_a_symbol(name: str, expected: tuple[str, str]) -> None:
    assert parse_flat_name(name) == expected


def test_a_timeframe_has_one_name() -> None:
    names = {"60m": "1h", "1H": "1h", "24h": "1d", "7d": "1w", "90s": "90s", "Tick2800": "tick2800"}
    assert {name: canonical(name) for name in names} == names


@pytest.mark.parametrize("name", ["", "1M", "0m", "fast", "m"])
def test_a_malformed_timeframe_is_refused(name: str) -> None:
    with pytest.raises(DataError, match="is not a timeframe"):
        step_of(name)


def test_event_bars_have_no_length() -> None:
    assert step_of("tick2800") == 0


def test_the_commonest_step_names_the_timeframe() -> None:
    minutes = np.array([0, 1, 2, 3, 60, 61], dtype=np.int64) * 60_000_000_000
    assert commonest_step(minutes) == "1m"


def test_irregular_steps_are_events() -> None:
    assert commonest_step(np.array([0, 17, 29, 88, 90], dtype=np.int64) * 1_000_000_000) == "events"
