"""Features against TA-Lib on real bars, in float64: `pip install TA-Lib`; skipped without it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trainer.data.feature_names import LOOKBACK, WARMUP
from trainer.data.feature_table import TABLE
from trainer.data.formulas import FORMULAS
from trainer.data.formulas.shared import FeatureBars
from trainer.data.read.candles import Candles
from trainer.data.read.reading import CandleFolder

RAW = Path(__file__).parents[4] / "shared" / "data" / "raw"
SMALLEST = 1e-5
SETTLED = 2000  # bars after which TA-Lib's exponential means have forgotten their beginning


def expected(candles: Candles) -> dict[str, np.ndarray]:
    """Return features from TA-Lib's functions; log prices go in where the feature is of logs."""
    import talib

    opened, high, low, close = (np.log(getattr(candles, name)) for name in ("open", "high", "low", "close"))
    high_, low_, close_, volume = (candles.high, candles.low, candles.close, candles.volume)
    returns = np.diff(close, prepend=close[0])
    sign, typical = np.sign(returns), talib.TYPPRICE(high_, low_, close_)
    highest, lowest = talib.MAX(high, 60), talib.MIN(low, 60)
    place = np.where(high_ > low_, (2 * close_ - high_ - low_) / np.where(high_ > low_, high_ - low_, 1), 0)
    wide, body = (high - low) ** 2, (close - opened) ** 2
    garman_klass = 0.5 * wide - (2 * np.log(2) - 1) * body
    return {
        "log_return_60": talib.MOM(close, 60),
        "log_volatility_60": np.log(talib.STDDEV(returns, 60) + SMALLEST),
        "stochastic_60": (close - (highest + lowest) / 2) / (highest - lowest + SMALLEST),
        "ema_ratio_12": close - talib.EMA(close, 12),
        "up_share_60": talib.SUM(sign, 60) / 60,
        "volume_imbalance_60": talib.SUM(sign * volume, 60) / talib.SUM(volume, 60),
        "log_parkinson_60": np.log(np.sqrt(talib.SMA(wide, 60) / (4 * np.log(2))) + SMALLEST),
        "log_garman_klass_60": np.log(np.sqrt(talib.SMA(garman_klass, 60)) + SMALLEST),
        "near_high_252": close - talib.MAX(high, 252),
        "aroon_25": talib.AROONOSC(high_, low_, 25) / 100,
        "money_flow_14": talib.MFI(high_, low_, close_, volume, 14) / 50 - 1,
        "chaikin_money_flow_20": talib.SUM(place * volume, 20) / talib.SUM(volume, 20),
        "price_volume_correlation_60": talib.CORREL(returns, volume, 60),
        "log_relative_volume_60": np.log1p(volume / talib.SMA(volume, 60)),
        "vwap_distance_60": close - np.log(talib.SUM(typical * volume, 60) / talib.SUM(volume, 60)),
        "efficiency_ratio_60": talib.MOM(close, 60) / talib.SUM(np.abs(returns), 60),
    }


@pytest.mark.nightly
@pytest.mark.skipif(not RAW.is_dir(), reason=f"no real candles at {RAW}")
def test_sixteen_features_are_those_of_ta_lib(tmp_path: Path) -> None:
    pytest.importorskip("talib")
    folder = CandleFolder(RAW / "BTC-USD_1m_2021-2022.parquet", tmp_path)
    candles = folder.read("BTC-USD").rows(0, 60_000)
    for name, values in expected(candles).items():
        # In float64, as it is before it is rounded.
        bars = FeatureBars(candles, head=max(WARMUP, LOOKBACK[name]))
        made = FORMULAS[TABLE[name].function](bars, TABLE[name].span)[-len(candles) :]
        np.testing.assert_allclose(made[SETTLED:], values[SETTLED:], rtol=1e-12, atol=1e-12, err_msg=name)
