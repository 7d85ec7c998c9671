"""Returns of trading on a model's forecasts in the test span, and how far luck explains them.

An agent says what to hold, at its own costs. Other forecasts are traded by a plain rule: at each bar one part
in `horizon` of the money is put to use for `horizon` bars if the forecast is up, and stays in cash if not.
Nothing is sold short, borrowed or compounded. What is bought or sold costs `FEE` and `SLIPPAGE`.
`train/evaluate/trading.py` computes it.

The deflated Sharpe ratio is the chance that the true one is above zero, given how many models were tried, and
skew and fat tails of the returns (Bailey and Lopez de Prado 2014, The Deflated Sharpe Ratio, Journal of
Portfolio Management 40 (5), https://doi.org/10.3905/jpm.2014.40.5.094). Sharpe ratios are those of a bar, not
annualized. Pure, standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import NormalDist, variance
from typing import Any

from trainer.base.strict_json import Unsound, Value

# Shares of what is traded, on each side. A taker of a large coin exchange pays 0.10 % in the first tier
# (Binance, Coinbase Advanced and Kraken ask 0.1 to 0.6 %, 2025); brokers of stocks take less. The slippage
# is an assumption: half a spread of 0.1 %.
FEE, SLIPPAGE = 0.0010, 0.0005
MOST_VALUE, MOST_BARS, MOST_KURTOSIS = 1e9, 10**9, 1e12
_EULER = 0.5772156649015329  # Euler and Mascheroni's constant
_NORMAL = NormalDist()


@dataclass(frozen=True, kw_only=True)
class Traded:
    """Returns and costs of trading, as shares of the money: sums over the bars of the test span."""

    bars: int
    net: float  # after fees and slippage
    low: float | None  # ends of its 95 % interval; None with too few cells
    high: float | None
    gross: float
    turnover: float  # bought and sold, in times the money
    exposure: float  # mean share of the money that was put to use
    hold: float  # of all the money, from the first bar to the last, after the same costs
    beyond_low: float | None  # ends of the 95 % interval of net less hold
    beyond_high: float | None
    sharpe: float  # mean over deviation of a bar's net return
    skew: float
    kurtosis: float  # 3 of a normal one
    fee: float
    slippage: float

    @property
    def break_even(self) -> float | None:
        """Return the cost of what is traded at which nothing is left; None if nothing was traded or won."""
        return self.gross / self.turnover if self.turnover > 0 and self.gross > 0 else None


_BOUNDS = {"bars": (2, MOST_BARS), "kurtosis": (0.0, MOST_KURTOSIS), "turnover": (0.0, MOST_VALUE)}
_MAY_LACK = ("low", "high", "beyond_low", "beyond_high")


def read_traded(metrics: Mapping[str, Any]) -> Traded | None:
    """Return what trading made by a model's metrics; None if they don't tell, or not in our form."""
    test = metrics.get("test") or {}
    try:
        told = Value(test.get("trading"), "the trading").fields()
        known = [item.name for item in fields(Traded) if told.values.get(item.name) is not None]
        values: dict[str, Any] = dict.fromkeys(_MAY_LACK)
        values |= {name: _number(told.value(name), name) for name in known}
        return Traded(**{**values, "bars": told.whole("bars", least=2, most=MOST_BARS)})
    except (Unsound, TypeError, AttributeError):
        return None


def _number(value: Value, name: str) -> float:
    least, most = _BOUNDS.get(name, (-MOST_VALUE, MOST_VALUE))
    return value.number(least=least, most=most)


def deflate(
    traded: Sequence[Traded | None], *, trials: float | None = None, more: int = 0
) -> list[float | None]:
    """Return the deflated Sharpe ratio of each model of a run, all of which were tried; None where it is not
    known. `trials`: their effective number; None: as if all were independent, which deflates the most.
    `more`: trials of searches whose best these are. They were not traded: of a single model their spread is
    that of trials without skill, 1 / (bars - 1).
    """
    known = [one.sharpe for one in traded if one is not None]
    spread = variance(known) if len(known) > 1 else None
    number = more + (float(len(known)) if trials is None else trials)
    return [
        None
        if one is None
        else deflated_sharpe(
            one.sharpe,
            bars=one.bars,
            skew=one.skew,
            kurtosis=one.kurtosis,
            spread=1 / (one.bars - 1) if spread is None else spread,
            trials=number,
        )
        for one in traded
    ]


def deflated_sharpe(
    sharpe: float, *, bars: int, skew: float, kurtosis: float, spread: float, trials: float
) -> float:
    """Return the chance that a Sharpe ratio is above the best of so many trials without any skill.

    `spread` is the variance of the trials' Sharpe ratios.
    """
    beyond = sharpe - expected_maximum(spread, trials)
    noise = 1 - skew * sharpe + (kurtosis - 1) / 4 * sharpe**2
    if noise <= 0:  # no distribution has such a skew and kurtosis
        return 0.0
    return _NORMAL.cdf(beyond * math.sqrt(bars - 1) / math.sqrt(noise))


def expected_maximum(spread: float, trials: float) -> float:
    """Return the Sharpe ratio that the best of so many trials without skill has on average; 0 of one."""
    if trials <= 1 or spread <= 0:
        return 0.0
    first, second = (_NORMAL.inv_cdf(1 - 1 / (trials * times)) for times in (1, math.e))
    return max(0.0, math.sqrt(spread) * ((1 - _EULER) * first + _EULER * second))


def effective_trials(returns: Sequence[Mapping[int, float]]) -> float:
    """Return how many independent trials M ones are worth, by the mean correlation c of their returns by day:
    c + (1 - c) M, as the paper estimates it. A day that one lacks counts as a day in cash.
    """
    days = sorted({day for one in returns for day in one})
    scaled = [one for one in (_standardized([its.get(day, 0.0) for day in days]) for its in returns) if one]
    number = len(returns)
    if len(scaled) < 2:
        return float(number)
    total = [math.fsum(column) for column in zip(*scaled, strict=True)]
    pairs = len(scaled) * (len(scaled) - 1)
    mean = (math.fsum(value**2 for value in total) / len(days) - len(scaled)) / pairs
    alike = min(max(mean, 0.0), 1.0)
    return alike + (1 - alike) * number


def _standardized(values: Sequence[float]) -> list[float]:
    """Return values less their mean, in deviations; [] of values that do not vary."""
    mean = math.fsum(values) / len(values)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
    return [(value - mean) / deviation for value in values] if deviation > 0 else []
