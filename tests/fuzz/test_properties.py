"""Each property of `properties.py` on a few inputs; `scripts/fuzz` looks longer. What it found once is kept here."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from tests.fuzz.properties import PROPERTIES

FEW = settings(max_examples=60, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("holds", PROPERTIES, ids=lambda holds: holds.__name__)
def test_it_holds_for_anything_that_lies_there(holds):
    FEW(holds)()
