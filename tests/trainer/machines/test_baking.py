"""Savings of a baked image, and the runs a month from which it pays."""

from __future__ import annotations

import pytest

from trainer.machines.baking import ASSUMED_SECONDS, KEPT_SECONDS, baking, pipeline_usd_per_month

STEPS = {"machine": 40.0, "code": 2.0, "environment": 31.0, "agent": 3.0, "import": 14.0}
PLAIN = {"runs": 3.0, **STEPS}


def test_without_a_measurement_the_install_is_assumed() -> None:
    weighed = baking({}, usd_per_hour=3.6, in_use=False)
    assert (weighed.saved_seconds, weighed.runs_measured) == (ASSUMED_SECONDS - KEPT_SECONDS, 0)
    assert weighed.usd_per_run == pytest.approx(0.029)


def test_baking_pays_once_runs_save_the_pipelines_cost() -> None:
    weighed = baking({"plain": PLAIN}, usd_per_hour=36.0, in_use=False)
    assert (weighed.saved_seconds, weighed.runs_measured) == (30.0, 3)
    assert weighed.usd_per_month == pipeline_usd_per_month()
    assert weighed.usd_per_month == pytest.approx(0.526 + 2 * 100 * 0.05, abs=0.01)
    assert weighed.runs_per_month == 36  # 10.53 / 0.30
    assert (weighed.runs_per_month - 1) * weighed.usd_per_run < weighed.usd_per_month


def test_with_boots_of_both_kinds_every_step_counts() -> None:
    # A baked image of one's own is read from a cold volume
    slower = {**PLAIN, "runs": 2.0, "environment": 1.0, "machine": 55.0}
    weighed = baking({"plain": PLAIN, "baked": slower}, usd_per_hour=3.6, in_use=True)
    assert (weighed.saved_seconds, weighed.runs_measured, weighed.in_use) == (15.0, 5, True)


def test_an_image_that_saves_nothing_never_pays() -> None:
    slower = {**PLAIN, "machine": 90.0}
    weighed = baking({"plain": PLAIN, "baked": slower}, usd_per_hour=3.6, in_use=True)
    assert (weighed.saved_seconds, weighed.runs_per_month) == (0.0, None)
