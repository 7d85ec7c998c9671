"""Each property of `properties.py` on a few inputs; `scripts/fuzz` looks longer. What it found once is kept
here.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from tests.fuzz import candle_files, cards, data_files
from tests.fuzz.properties import PROPERTIES

FEW = settings(
    max_examples=15, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
FEWER = settings(FEW, max_examples=8)
# 20 ms each
WHOLE_FILES = (cards.model_predicts_or_is_refused, *data_files.PROPERTIES, *candle_files.PROPERTIES)


@pytest.mark.parametrize("holds", PROPERTIES, ids=lambda holds: holds.__name__)
def test_a_property_holds_for_drawn_input(holds):
    (FEWER if holds in WHOLE_FILES else FEW)(holds)()
