"""The [data] table: which inputs a model has by it."""

from __future__ import annotations

import pytest

from trainer.data.feature_names import FEATURES, WARMUP
from trainer.data.settings import DataSettings
from trainer.errors import UsageError
from trainer.job import job_of


def test_inputs_are_the_features_then_the_columns() -> None:
    assert DataSettings().inputs == FEATURES and DataSettings().warmup == WARMUP
    both = DataSettings(columns=("funding_rate", "open_interest"))
    assert both.inputs == (*FEATURES, "funding_rate", "open_interest") and both.warmup == WARMUP
    alone = job_of(columns="funding_rate,open_interest", features="none").data
    assert alone.inputs == ("funding_rate", "open_interest") and alone.warmup == 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"features": "none"}, "data.features = none leaves the model nothing to read .data.columns is empty"),
        ({"features": "ours"}, "one of all, none"),
        ({"columns": ("a", "a")}, "names that differ"),
        ({"columns": ("rsi_14",)}, "none of them a feature's"),
    ],
)
def test_inputs_that_make_no_sense_are_refused(settings, said) -> None:
    with pytest.raises(UsageError, match=said):
        DataSettings(**settings)
