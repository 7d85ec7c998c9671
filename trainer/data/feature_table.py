"""The table of features: name, formula, source, and how many bars each looks back. Standard library only.

`trainer.data.formulas` computes them; a function there has the name of its `function` here. Every feature is
a return, a ratio, a rank or a clock, independent of the scale of price and volume, so that symbols compare.

A value that would change in any bit is a new feature or a new version, never an edit of a formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_WILDER = "Wilder 1978, New Concepts in Technical Trading Systems"
_LANE = "Lane 1984, Stocks & Commodities 2(3)"
_APPEL = "Appel 1979, The Moving Average Convergence-Divergence Trading Method"
_PLAIN = "plain"  # by its definition
_YANG_ZHANG = "Yang, Zhang 2000, J. of Business 73"
_OF_CLOSES = frozenset(
    {
        *("log_return", "momentum", "log_volatility", "price_zscore", "rsi", "ema_ratio", "up_share"),
        *("semivariance_share", "jump_share", "efficiency_ratio", "return_autocorrelation", "skip_return"),
    }
)


@dataclass(frozen=True, kw_only=True)
class Feature:
    """One feature of the bars of one series."""

    name: str
    function: str  # in trainer/data/formulas
    span: int  # n of the formula; 0: it has none
    lookback: int  # row t depends on rows t - lookback to t, and on no other
    formula: str  # O, H, L, C, V: the bar; r: its log return; n: span
    source: str
    version: str = "1.0"

    @property
    def is_of_clock(self) -> bool:
        """Return whether it tells the time, which longer bars know no better."""
        return self.function.startswith(("time_of_", "new_york_", "turn_of_", "is_weekend", "log_seconds"))

    @property
    def is_of_time(self) -> bool:
        """Return whether it reads nothing but the time of its own bar."""
        return self.is_of_clock and not self.lookback

    @property
    def reads_closes(self) -> bool:
        """Return whether it reads closes alone: no other price, no volume, no clock."""
        return self.function in _OF_CLOSES


def _of(
    stem: str,
    formula: str,
    source: str,
    *,
    spans: Sequence[int],
    back: int = 0,
    lookback: int = 0,
    name: str = "",
) -> tuple[Feature, ...]:
    """Return a feature for each span, which looks back span + `back` bars, or `lookback` bars."""
    return tuple(
        Feature(
            name=name or f"{stem}_{span}",
            function=stem,
            span=span,
            lookback=lookback or span + back,
            formula=formula,
            source=source,
        )
        for span in spans
    )


def _one(name: str, formula: str, source: str = _PLAIN, *, back: int = 0) -> Feature:
    """Return a feature without a span."""
    return Feature(name=name, function=name, span=0, lookback=back, formula=formula, source=source)


_STAND = (15, 60, 240)

# A feature of returns looks back its whole span, since the first return needs the bar before it; one of
# levels looks back a bar less. Exponential means are cut at 256 bars.
VERSION_1 = (
    *_of("log_return", "ln(C_t / C_(t-n))", _PLAIN, spans=(1, 5, 15, 60, 240), back=0),
    *_of(
        "momentum",
        "log return of n bars / ((deviation of r over n + 1e-5) x root of n)",
        "Moskowitz, Ooi, Pedersen 2012, J. of Financial Economics 104",
        spans=(60, 240),
        back=0,
    ),
    *_of("log_volatility", "ln(deviation of r over n + 1e-5)", _PLAIN, spans=(5, 15, 60, 240), back=0),
    *_of(
        "price_zscore",
        "(ln C - mean over n) / (deviation over n + 1e-5)",
        "Bollinger 2001, Bollinger on Bollinger Bands",
        spans=_STAND,
        back=-1,
    ),
    *_of("volume_zscore", "(V - mean over n) / deviation over n", _PLAIN, spans=_STAND, back=-1),
    _one("bar_range", "ln(H / L)"),
    _one("bar_body", "ln(C / O)"),
    _one("upper_wick", "ln(H / max(O, C))"),
    _one("lower_wick", "ln(min(O, C) / L)"),
    _one("bar_gap", "ln(O_t / C_(t-1))", back=1),
    *_of(
        "log_atr",
        "ln(Wilder's mean over n of the true range of logs + 1e-5)",
        _WILDER,
        spans=(14,),
        lookback=256,
    ),
    *_of(
        "rsi", "(up - down) / (up + down) of Wilder's means over n of r", _WILDER, spans=(14,), lookback=256
    ),
    *_of(
        "stochastic",
        "(ln C - middle) / (highest H - lowest L + 1e-5), logs over n",
        _LANE,
        spans=_STAND,
        back=-1,
    ),
    *_of("ema_ratio", "ln C - its exponential mean over n", _APPEL, spans=(12, 26), lookback=255),
    *_of(
        "macd",
        "(exponential mean of ln C over 12 - that over 26) / (average true range over 14 + 1e-5)",
        _APPEL,
        spans=(26,),
        lookback=256,
        name="macd_12_26",
    ),
    *_of("up_share", "(rising - falling bars) / n", _PLAIN, spans=(60,), back=0),
    *_of(
        "volume_imbalance",
        "(V of rising - V of falling bars) / V of n bars",
        "Granville 1963, New Key to Stock Market Profits",
        spans=(60,),
        back=0,
    ),
    _one("time_of_day_sin", "sin of the UTC time of day"),
    _one("time_of_day_cos", "cos of the UTC time of day"),
    _one("time_of_week_sin", "sin of the UTC time of the week"),
    _one("time_of_week_cos", "cos of the UTC time of the week"),
    _one("log_seconds_since_last_bar", "ln(1 + seconds since the bar before)", back=1),
)

VOLATILITY = (
    *_of(
        "log_parkinson",
        "ln(root of the mean over n of (ln H/L)^2 / (4 ln 2) + 1e-5)",
        "Parkinson 1980, J. of Business 53(1)",
        spans=_STAND,
        back=-1,
    ),
    *_of(
        "log_garman_klass",
        "ln(root of the mean over n of (ln H/L)^2 / 2 - (2 ln 2 - 1) (ln C/O)^2 + 1e-5)",
        "Garman, Klass 1980, J. of Business 53(1)",
        spans=_STAND,
        back=-1,
    ),
    *_of(
        "log_rogers_satchell",
        "ln(root of the mean over n of ln H/O ln H/C + ln L/O ln L/C + 1e-5)",
        "Rogers, Satchell 1991, Annals of Applied Probability 1(4)",
        spans=_STAND,
        back=-1,
    ),
    *_of(
        "log_yang_zhang",
        "ln(root of var(ln O_t/C_(t-1)) + k var(ln C/O) + (1-k) Rogers-Satchell + 1e-5),"
        " k = 0.34 / (1.34 + (n+1)/(n-1))",
        _YANG_ZHANG,
        spans=_STAND,
        back=0,
    ),
    *_of(
        "semivariance_share",
        "(r^2 of rising - r^2 of falling bars) / r^2 of n bars",
        "Barndorff-Nielsen, Kinnebrock, Shephard 2010, Volatility and Time Series Econometrics",
        spans=(60, 240),
        back=0,
    ),
    *_of(
        "jump_share",
        "1 - (pi/2) mean of |r_t r_(t-1)| / mean of r^2, over n",
        "Barndorff-Nielsen, Shephard 2004, J. of Financial Econometrics 2(1)",
        spans=(60, 240),
        back=0,
    ),
)

TREND = (
    *_of(
        "efficiency_ratio",
        "log return of n bars / sum of |r|",
        "Kaufman 1995, Smarter Trading",
        spans=_STAND,
        back=0,
    ),
    *_of(
        "return_autocorrelation",
        "sum of r_t r_(t-1) / sum of r^2, over n",
        "Lo, MacKinlay 1988, Review of Financial Studies 1(1)",
        spans=(60, 240),
        back=1,
    ),
    *_of(
        "cci",
        "(TP - mean) / (0.015 x mean deviation) over n, TP = (H+L+C)/3",
        "Lambert 1980, Commodities 9(10)",
        spans=(20,),
        back=-1,
    ),
    *_of(
        "aroon",
        "(bars since the lowest L - bars since the highest H) / n, of n+1 bars",
        "Chande 1995, Stocks & Commodities 13(9)",
        spans=(25,),
        back=0,
    ),
    *_of(
        "near_high",
        "ln(C / highest H of n bars)",
        "George, Hwang 2004, J. of Finance 59(5)",
        spans=(252,),
        back=-1,
    ),
    *_of(
        "skip_return",
        "ln(C_(t-n/12) / C_(t-n))",
        "Jegadeesh, Titman 1993, J. of Finance 48(1)",
        spans=(252,),
        back=0,
    ),
)

VOLUME = (
    *_of("log_relative_volume", "ln(1 + V / mean of V over n)", _PLAIN, spans=_STAND, back=-1),
    *_of(
        "vwap_distance",
        "ln(C / mean of (H+L+C)/3 over n, weighted by V)",
        "Berkowitz, Logue, Noser 1988, J. of Finance 43(1)",
        spans=_STAND,
        back=-1,
    ),
    *_of(
        "money_flow",
        "(up - down) / (up + down) of TP x V over n, TP = (H+L+C)/3",
        "Quong, Soudack 1989, Stocks & Commodities 7(3)",
        spans=(14,),
        back=0,
    ),
    *_of(
        "chaikin_money_flow",
        "sum of V (2C - H - L) / (H - L) / sum of V, over n",
        "Chaikin, by Achelis 2000, Technical Analysis from A to Z",
        spans=(20,),
        back=-1,
    ),
    *_of(
        "log_illiquidity",
        "ln(mean of |r| / (C V) over 15 / that over n)",
        "Amihud 2002, J. of Financial Markets 5(1)",
        spans=(240,),
        back=0,
    ),
    *_of(
        "price_volume_correlation",
        "correlation of r and V over n",
        "Karpoff 1987, J. of Financial and Quantitative Analysis 22(1)",
        spans=(60,),
        back=0,
    ),
)

CALENDAR = (
    _one("new_york_time_sin", "sin of New York's time of day, with daylight saving"),
    _one("new_york_time_cos", "cos of New York's time of day, with daylight saving"),
    _one("time_of_year_sin", "sin of the share of the year passed"),
    _one("time_of_year_cos", "cos of the share of the year passed"),
    _one(
        "turn_of_month",
        "1 on the last day of a month and the first three, else 0",
        "Ariel 1987, J. of Financial Economics 18(1)",
    ),
    _one("is_weekend", "1 on Saturday and Sunday (UTC), else 0"),
)

TABLE = {one.name: one for one in (*VERSION_1, *VOLATILITY, *TREND, *VOLUME, *CALENDAR)}
