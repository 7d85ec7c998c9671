"""Gains of a model over its baselines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trainer.targets import TARGETS
from trainer.targets.described import BETTER, BEYOND_CHANCE, gain_over_baselines
from trainer.train.evaluate.evaluation import compare


def scored(target: str, *, signal: float, rival: float, bars: int = 2000) -> dict[str, Any]:
    """Score a forecast of a target beside a constant one and a rival; the signals are weights of the label in
    them.
    """
    random = np.random.default_rng(0)
    labels = random.normal(0, 1, bars)
    ours, other = (weight * labels + random.normal(0, 1, bars) for weight in (signal, rival))
    forecasts = {"mean": np.zeros(bars), "rival": other}
    settings = TARGETS[target]()
    blocks = np.arange(bars) // 20
    return {
        "about": settings.about(),
        "test": compare(
            ours, settings, labels[:, None], blocks=blocks, length={}, forecasts=forecasts, replicates=100
        ),
    }


@pytest.mark.parametrize("target", ["return", "volatility"])
def test_a_model_beats_a_constant_baseline_beyond_chance(
    target,
):
    metrics = scored(target, signal=1.0, rival=0.3)
    assert metrics["test"]["better"]["mean"]["correlation"] is None
    assert gain_over_baselines(metrics) == BEYOND_CHANCE
    assert gain_over_baselines(scored(target, signal=0.3, rival=1.0)) == ""


def test_an_uncorrelated_model_does_not_beat_a_constant_baseline():
    without = scored("return", signal=0.0, rival=-1.0)
    assert without["test"]["better"]["rival"]["correlation"][0] > 0
    assert gain_over_baselines(without) in ("", BETTER)
    assert gain_over_baselines(scored("return", signal=-0.2, rival=-1.0)) == ""
