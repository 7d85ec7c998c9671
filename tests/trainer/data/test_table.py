"""The [data] table: which inputs a model has by it."""

from __future__ import annotations

import pytest

from tests.jobs import job_of
from trainer.base.errors import UsageError
from trainer.data.feature_names import FEATURES, WARMUP
from trainer.data.table import DataSettings


def test_inputs_are_the_features_then_the_columns() -> None:
    assert DataSettings().inputs == FEATURES and DataSettings().warmup == WARMUP
    both = DataSettings(columns=("funding_rate", "open_interest"))
    assert both.inputs == (*FEATURES, "funding_rate", "open_interest") and both.warmup == WARMUP
    alone = job_of(columns="funding_rate,open_interest", features="none").data
    assert alone.inputs == ("funding_rate", "open_interest") and alone.warmup == 0


def test_spans_in_days_are_shares_of_the_bars() -> None:
    days = {"validation_days": 5, "test_days": 10}
    assert DataSettings(timeframe="1h", **days).shares_of(960) == (0.125, 0.25)
    assert DataSettings(timeframe="1w", **days).shares_of(40) == (0.125, 0.25), "a bar a day at most"
    assert DataSettings(timeframe="1h", **days).shares_of(100) == (1, 1)
    usual = DataSettings().validation_fraction, DataSettings().test_fraction
    assert DataSettings(timeframe="tick100", **days).shares_of(960) == usual


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"features": ("none",)},
            "data.features = none leaves the model nothing to read .data.columns is empty",
        ),
        ({"features": ("rsi_41",)}, "job key 'data.features' has 'rsi_41' .*Did you mean rsi_14"),
        ({"features": ("none", "rsi_14")}, "none alone"),
        ({"features": ("set:rsi",)}, "has 'set:rsi'"),
        ({"features": ("rsi_14@60m",)}, "has 'rsi_14@60m'"),
        ({"features": ("is_weekend@1h",)}, "has 'is_weekend@1h'"),
        ({"features": ("rsi_14@1h",), "timeframe": "1h"}, "rsi_14@1h can't be computed from bars of 1h"),
        ({"features": ("rsi_14@1h",), "timeframe": "tick2800"}, "can't be computed from bars of tick2800"),
        ({"features": ("cci_20",), "columns": ("cci_20",)}, "none of them a feature's"),
        ({"features": ("rsi_14", "rsi_14")}, "names that differ"),
        ({"features": ()}, "auto, all, none alone, sets such as set:broad, or names that differ"),
        ({"columns": ("a", "a")}, "names that differ"),
        ({"columns": ("rsi_14",)}, "none of them a feature's"),
    ],
)
def test_contradictory_inputs_are_refused(settings, said) -> None:
    with pytest.raises(UsageError, match=said):
        DataSettings(**settings)


def test_a_bad_timeframe_of_a_job_is_refused() -> None:
    with pytest.raises(UsageError, match="'1x' is not a timeframe"):
        job_of(timeframe="1x")


@pytest.mark.parametrize(
    ("timeframe", "warmup", "features"),
    [
        ("", 256, 37),
        ("1m", 256, 37),
        ("6h", 256, 37),
        ("12h", 60, 26),
        ("1d", 60, 26),
        ("1w", 5, 13),
        ("tick100", 256, 37),
    ],
)
def test_the_warmup_follows_from_features_and_timeframe(timeframe: str, warmup: int, features: int) -> None:
    data = DataSettings(timeframe=timeframe)
    assert (data.warmup, len(data.computed)) == (warmup, features)
    assert DataSettings(timeframe=timeframe, features=("all",)).warmup == 256
    named = job_of(timeframe=timeframe or "1m", features="bar_gap,log_return_15").data
    assert (named.warmup, named.inputs) == (15, ("log_return_15", "bar_gap"))  # in the order of all


def test_a_symbol_with_a_slash_trains_with_a_dash() -> None:
    data = job_of(symbols="BTC/USD,^GSPC", exclude="ETH/USDT:USDT").data
    assert (data.symbols, data.exclude) == (("BTC-USD", "^GSPC"), ("ETH-USDT:USDT",))
    with pytest.raises(UsageError, match="it has a slash or a comma"):
        DataSettings(symbols=("../x",))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"refresh": "fetch.sh"}, "'data.refresh' is 'fetch.sh'"),
        ({"refresh": "fe\ntch.py"}, "'data.refresh'"),
        ({"secrets": ("API_KEY",)}, "data.secrets without data.refresh"),
        ({"secrets": ("API_KEY",), "refresh": "fetch"}, "data.secrets with data.refresh = fetch"),
        ({"refresh": "fetch.py", "stale": "wait"}, "'data.stale' is 'wait'"),
        *(
            ({"refresh": "fetch.py", "secrets": secrets}, "'data.secrets'")
            for secrets in (
                ("api_key",),
                ("../KEY",),
                ("LD_PRELOAD",),
                ("PATH",),
                ("PYTHONPATH",),
                ("A", "A"),
                ("A" * 65,),
            )
        ),
        (
            {"refresh": "fetch.py", "secrets": tuple(f"KEY_{number}" for number in range(21))},
            "20 names at most",
        ),
    ],
)
def test_contradictory_refresh_settings_are_refused(settings, said) -> None:
    with pytest.raises(UsageError, match=said):
        DataSettings(**settings)
    assert DataSettings(refresh="fetch.py", secrets=("API_KEY", "AWS_SECRET_ACCESS_KEY")).stale == "train"
