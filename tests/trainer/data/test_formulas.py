"""Every feature against its formula in the table, written out in plain Python for a few bars."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from statistics import fmean, pstdev, variance
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from trainer.data.feature_names import LOOKBACK, WARMUP
from trainer.data.feature_table import TABLE
from trainer.data.formulas import FORMULAS
from trainer.data.formulas.shared import FeatureBars
from trainer.data.read.candles import Candles

PLACES = (1_100, 1_328, 1_333, 1_494)  # falling, rising after a hole, falling, rising
TINY = 1e-5
ln, TURN = math.log, 2 * math.pi


class Bars:
    """The bars up to one, in the letters of the table: `C(3)` is the close three bars before it."""

    def __init__(self, candles: Candles, place: int) -> None:
        self.candles, self.place = candles, place

    def opened(self, age: int = 0) -> float:
        return float(self.candles.open[self.place - age])

    def H(self, age: int = 0) -> float:
        return float(self.candles.high[self.place - age])

    def L(self, age: int = 0) -> float:
        return float(self.candles.low[self.place - age])

    def C(self, age: int = 0) -> float:
        return float(self.candles.close[self.place - age])

    def V(self, age: int = 0) -> float:
        return float(self.candles.volume[self.place - age])

    def TP(self, age: int = 0) -> float:
        return (self.H(age) + self.L(age) + self.C(age)) / 3

    def r(self, age: int = 0) -> float:
        return ln(self.C(age) / self.C(age + 1))

    @property
    def time(self) -> datetime:
        seconds = int(self.candles.timestamp[self.place]) // 10**9
        return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=seconds)

    def recursion(self, of: Callable[[int], float], share: float) -> float:
        """Return an exponential mean from the series' second bar on."""
        mean = of(self.place - 1)
        for age in range(self.place - 2, -1, -1):
            mean += share * (of(age) - mean)
        return mean

    def mean_close(self, span: int) -> float:
        return self.recursion(lambda age: ln(self.C(age)), 2 / (span + 1))

    def mean_range(self) -> float:
        def true_range(age: int) -> float:
            before = self.C(age + 1)
            return ln(max(self.H(age), before) / min(self.L(age), before))

        return self.recursion(true_range, 1 / 14)


def each(of: Callable[[int], float], span: int) -> list[float]:
    return [of(age) for age in range(span)]


def sign(value: float) -> int:
    return (value > 0) - (value < 0)


def rogers_satchell(b: Bars, age: int) -> float:
    o, h, low, c = b.opened(age), b.H(age), b.L(age), b.C(age)
    return ln(h / o) * ln(h / c) + ln(low / o) * ln(low / c)


def garman_klass(b: Bars, age: int) -> float:
    return ln(b.H(age) / b.L(age)) ** 2 / 2 - (2 * ln(2) - 1) * ln(b.C(age) / b.opened(age)) ** 2


def yang_zhang(b: Bars, n: int) -> float:
    k = 0.34 / (1.34 + (n + 1) / (n - 1))
    gaps, bodies = (
        each(lambda age: ln(b.opened(age) / b.C(age + 1)), n),
        each(lambda age: ln(b.C(age) / b.opened(age)), n),
    )
    shapes = fmean(each(lambda age: rogers_satchell(b, age), n))
    return ln(math.sqrt(variance(gaps) + k * variance(bodies) + (1 - k) * shapes) + TINY)


def stochastic(b: Bars, n: int) -> float:
    high, low = ln(max(each(b.H, n))), ln(min(each(b.L, n)))
    return (ln(b.C()) - (high + low) / 2) / (high - low + TINY)


def rsi(b: Bars, n: int) -> float:
    up, down = (b.recursion(lambda age, way=way: max(way * b.r(age), 0.0), 1 / n) for way in (1, -1))
    return (up - down) / (up + down)


def cci(b: Bars, n: int) -> float:
    mean = fmean(each(b.TP, n))
    return (b.TP() - mean) / (0.015 * fmean(each(lambda age: abs(b.TP(age) - mean), n)))


def aroon(b: Bars, n: int) -> float:
    lows, highs = each(b.L, n + 1), each(b.H, n + 1)
    return (lows.index(min(lows)) - highs.index(max(highs))) / n


def money_flow(b: Bars, n: int) -> float:
    flows = each(lambda age: b.TP(age) * b.V(age) * sign(b.TP(age) - b.TP(age + 1)), n)
    return sum(flows) / sum(map(abs, flows))


def chaikin(b: Bars, n: int) -> float:
    placed = each(lambda age: b.V(age) * (2 * b.C(age) - b.H(age) - b.L(age)) / (b.H(age) - b.L(age)), n)
    return sum(placed) / sum(each(b.V, n))


def illiquidity(b: Bars, n: int) -> float:
    impact = each(lambda age: abs(b.r(age)) / (b.C(age) * b.V(age)), n)
    return ln(fmean(impact[:15]) / fmean(impact))


def turn_of_month(b: Bars, _: int) -> float:
    return float(b.time.day <= 3 or (b.time + timedelta(days=1)).day == 1)


def of_day(time: datetime) -> float:
    return TURN * (time.hour * 60 + time.minute) / 1440


def of_week(time: datetime) -> float:
    since = time - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return TURN * (since / timedelta(days=7) % 1)


def of_year(time: datetime) -> float:
    begin = datetime(time.year, 1, 1, tzinfo=timezone.utc)
    return TURN * ((time - begin) / (begin.replace(year=time.year + 1) - begin))


def in_new_york(b: Bars) -> datetime:
    return b.time.astimezone(ZoneInfo("America/New_York"))


BY_DEFINITION: dict[str, Callable[[Bars, int], float]] = {
    "log_return": lambda b, n: ln(b.C() / b.C(n)),
    "momentum": lambda b, n: ln(b.C() / b.C(n)) / ((pstdev(each(b.r, n)) + TINY) * math.sqrt(n)),
    "log_volatility": lambda b, n: ln(pstdev(each(b.r, n)) + TINY),
    "price_zscore": lambda b, n: (
        (ln(b.C()) - fmean(map(ln, each(b.C, n)))) / (pstdev(map(ln, each(b.C, n))) + TINY)
    ),
    "volume_zscore": lambda b, n: (b.V() - fmean(each(b.V, n))) / pstdev(each(b.V, n)),
    "bar_range": lambda b, _: ln(b.H() / b.L()),
    "bar_body": lambda b, _: ln(b.C() / b.opened()),
    "upper_wick": lambda b, _: ln(b.H() / max(b.opened(), b.C())),
    "lower_wick": lambda b, _: ln(min(b.opened(), b.C()) / b.L()),
    "bar_gap": lambda b, _: ln(b.opened() / b.C(1)),
    "log_atr": lambda b, _: ln(b.mean_range() + TINY),
    "rsi": rsi,
    "stochastic": stochastic,
    "ema_ratio": lambda b, n: ln(b.C()) - b.mean_close(n),
    "macd": lambda b, _: (b.mean_close(12) - b.mean_close(26)) / (b.mean_range() + TINY),
    "up_share": lambda b, n: fmean(each(lambda age: sign(b.r(age)), n)),
    "volume_imbalance": lambda b, n: sum(each(lambda age: sign(b.r(age)) * b.V(age), n)) / sum(each(b.V, n)),
    "time_of_day_sin": lambda b, _: math.sin(of_day(b.time)),
    "time_of_day_cos": lambda b, _: math.cos(of_day(b.time)),
    "time_of_week_sin": lambda b, _: math.sin(of_week(b.time)),
    "time_of_week_cos": lambda b, _: math.cos(of_week(b.time)),
    "log_seconds_since_last_bar": lambda b, _: ln(
        1 + int(b.candles.timestamp[b.place] - b.candles.timestamp[b.place - 1]) / 1e9
    ),
    "log_parkinson": lambda b, n: ln(
        math.sqrt(fmean(each(lambda age: ln(b.H(age) / b.L(age)) ** 2, n)) / (4 * ln(2))) + TINY
    ),
    "log_garman_klass": lambda b, n: ln(math.sqrt(fmean(each(lambda age: garman_klass(b, age), n))) + TINY),
    "log_rogers_satchell": lambda b, n: ln(
        math.sqrt(fmean(each(lambda age: rogers_satchell(b, age), n))) + TINY
    ),
    "log_yang_zhang": yang_zhang,
    "semivariance_share": lambda b, n: (
        sum(each(lambda age: sign(b.r(age)) * b.r(age) ** 2, n)) / sum(each(lambda age: b.r(age) ** 2, n))
    ),
    "jump_share": lambda b, n: (
        1
        - (math.pi / 2 * fmean(each(lambda age: abs(b.r(age) * b.r(age + 1)), n - 1)))
        / fmean(each(lambda age: b.r(age) ** 2, n))
    ),
    "efficiency_ratio": lambda b, n: ln(b.C() / b.C(n)) / sum(each(lambda age: abs(b.r(age)), n)),
    "return_autocorrelation": lambda b, n: (
        sum(each(lambda age: b.r(age) * b.r(age + 1), n)) / sum(each(lambda age: b.r(age) ** 2, n))
    ),
    "cci": cci,
    "aroon": aroon,
    "near_high": lambda b, n: ln(b.C() / max(each(b.H, n))),
    "skip_return": lambda b, n: ln(b.C(n // 12) / b.C(n)),
    "log_relative_volume": lambda b, n: ln(1 + b.V() / fmean(each(b.V, n))),
    "vwap_distance": lambda b, n: ln(
        b.C() * sum(each(b.V, n)) / sum(each(lambda age: b.TP(age) * b.V(age), n))
    ),
    "money_flow": money_flow,
    "chaikin_money_flow": chaikin,
    "log_illiquidity": illiquidity,
    "price_volume_correlation": lambda b, n: float(np.corrcoef(each(b.r, n), each(b.V, n))[0, 1]),
    "new_york_time_sin": lambda b, _: math.sin(of_day(in_new_york(b))),
    "new_york_time_cos": lambda b, _: math.cos(of_day(in_new_york(b))),
    "time_of_year_sin": lambda b, _: math.sin(of_year(b.time)),
    "time_of_year_cos": lambda b, _: math.cos(of_year(b.time)),
    "turn_of_month": turn_of_month,
    "is_weekend": lambda b, _: float(b.time.weekday() >= 5),
}


@pytest.fixture(scope="module")
def candles() -> Candles:
    """Hours of 2024, of which some are missing, with gaps between a close and the next open."""
    random, bars = np.random.default_rng(11), 1_500
    close = 100 * np.exp(random.normal(0, 0.01, bars).cumsum())
    opened = np.roll(close, 1) * np.exp(random.normal(0, 0.003, bars))
    top, bottom = np.maximum(opened, close), np.minimum(opened, close)
    hours = np.delete(np.arange(bars + 3), [1_328, 1_329, 1_330])
    return Candles(
        symbol="AAA",
        timeframe="1h",
        timestamp=(1_704_067_200 + 3600 * hours) * 10**9,
        open=opened,
        high=top * np.exp(random.gamma(1, 0.002, bars)),
        low=bottom / np.exp(random.gamma(1, 0.002, bars)),
        close=close,
        volume=random.gamma(2, 50, bars),
    )


def made(name: str, candles: Candles) -> np.ndarray:
    """Return a feature (T,) in float64, as it is before it is rounded."""
    bars = FeatureBars(candles, head=max(WARMUP, LOOKBACK[name]))
    return FORMULAS[TABLE[name].function](bars, TABLE[name].span)[-len(candles) :]


@pytest.mark.parametrize("name", TABLE)
def test_a_feature_is_its_formula(name: str, candles: Candles) -> None:
    values, by_definition = made(name, candles), BY_DEFINITION[TABLE[name].function]
    for place in PLACES:
        wanted = by_definition(Bars(candles, place), TABLE[name].span)
        assert values[place] == pytest.approx(wanted, rel=1e-6, abs=1e-8), place


def test_clocks_are_right_on_every_day_of_two_years(candles: Candles) -> None:
    """Leap years, weekends, turns of months and New York's clock changes."""
    days = replace(candles, timestamp=(1_672_534_800 + 13 * 3600 * np.arange(len(candles))) * 10**9)
    for name in [name for name, one in TABLE.items() if one.is_of_time]:
        wanted = [BY_DEFINITION[name](Bars(days, place), 0) for place in range(len(days))]
        np.testing.assert_allclose(made(name, days), wanted, atol=1e-9, err_msg=name)
