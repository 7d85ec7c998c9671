"""The rule for marks: better only beyond chance, among all models of a run, and in every proper score."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trainer.base.strict_json import MOST_NUMBER
from trainer.targets import TARGETS
from trainer.targets.inference import FEWEST_CELLS, CellMean, num_cosines
from trainer.targets.marks import MOST_NEEDED, in_order, judge, judged, verdict
from trainer.train.evaluate.evaluation import Cells, compare

DAY_NS = 86_400 * 10**9


def scored(target: str, *, signal: float, rival: float, bars: int = 2000, seed: int = 0) -> dict[str, Any]:
    """Score a forecast of a target beside a constant one and a rival; the signals are weights of the label in
    them.
    """
    random = np.random.default_rng(seed)
    labels = random.normal(0, 1, bars)
    ours, other = (weight * labels + 0.3 * random.normal(0, 1, bars) for weight in (signal, rival))
    settings, zero = TARGETS[target](), np.zeros(bars)
    if target == "volatility":
        ours, other, zero = (np.stack([one, one], axis=1) for one in (ours, other, zero))
    cells = Cells(of_bar=np.arange(bars) // 20, length="20 bars", times=np.arange(bars) * DAY_NS)
    forecasts = {"mean": zero, "rival": other}
    tested = compare(ours, settings, labels[:, None], cells=cells, forecasts=forecasts)
    return {"about": settings.about(), "test": tested.scores}


def told(gain: float, *, error: float = 1.0, cells: int = 200, brier: float = 0.0) -> dict[str, Any]:
    """Return the metrics of a model that gains so much over each of two baselines, the second easier to beat."""
    freedom = num_cosines(cells)

    def one(value: float) -> dict[str, Any]:
        return {"gain": value, "error": error, "freedom": freedom}

    better = {
        name: {"log_loss": one(gain + more), "brier": one(brier + more)}
        for name, more in (("logistic", 0.0), ("base_rate", 0.5))
    }
    return {
        "about": TARGETS["direction"]().about(),
        "test": {"better": better, "cells": cells, "n": 10 * cells},
    }


def marks(*metrics: dict[str, Any]) -> list[str]:
    return [one.mark if one else "" for one in judge(metrics)]


@pytest.mark.parametrize("target", ["return", "volatility"])
def test_a_model_is_better_if_it_beats_every_baseline(target):
    assert marks(scored(target, signal=1.0, rival=0.3)) == ["better"]
    (one,) = judge([scored(target, signal=0.4, rival=1.0)])
    assert (one.mark, one.baseline) == ("worse", "rival") and one.high < 0
    (one,) = judge([scored(target, signal=0.0, rival=-1.0)])
    assert (one.mark, one.baseline) == ("worse", "mean"), "better than the rival alone is not better"


@pytest.mark.parametrize(
    ("gain", "error"), [(1e-300, 1.0), (5e-324, 1.0), (1e-300, 1e15), (1e14, 5e-324), (1e14, 1e14)]
)
def test_a_nodes_extreme_gain_is_judged_within_bounds(gain, error):
    """A run is closed by what its node says: no number of it may break that, or the receipt's reading."""
    for sign in (1, -1):
        (one,) = judge([told(sign * gain, error=error, cells=20)])
        assert (
            (one.needed is None or one.needed < MOST_NEEDED)
            and abs(one.low) < MOST_NUMBER
            and abs(one.high) < MOST_NUMBER
        )
    (one,) = judge([told(1e17, error=error)])
    assert one.gain is None, "it counts as not known"


@pytest.mark.parametrize("brier", [-5.0, 0.0, 5.0])
@pytest.mark.parametrize("gain", [1.8, 2.0, 2.1, 2.2, 2.3, 3.0, -1.8, -2.1, -2.3, -3.0])
def test_a_mark_never_contradicts_its_interval(gain, brier):
    (one,) = judge([told(gain, brier=brier)])
    if one.mark == "better":
        assert one.low > 0
    if one.low <= 0 <= one.high:
        assert one.mark in ("no different", "too little to tell")


def test_a_model_worse_in_another_proper_score_is_not_better():
    assert marks(told(5.0)) == ["better"]
    assert marks(told(5.0, brier=-1.9)) == ["no different"]
    assert marks(told(5.0, brier=-5.0)) == ["no different"]
    assert marks(told(-5.0, brier=5.0)) == ["worse"], "the first proper score decides"


def test_a_gain_has_to_stand_out_among_all_models_of_its_run():
    one = told(2.2)
    assert marks(one) == ["better"]
    assert marks(one, *[told(-1.0)] * 30)[0] == "too little to tell"
    assert marks(one, *[told(9.0)] * 30)[0] == "better", "one in twenty discoveries may be false"


def test_the_best_of_many_trials_has_to_stand_out_among_them():
    one = told(2.2)
    assert marks(one) == ["better"]
    searched = {**one, "about": {**one["about"], "tried": 30}}
    assert marks(searched) == ["too little to tell"]
    assert marks(told(9.0), searched)[0] == "better"


def test_too_few_cells_are_withheld_with_how_many_it_takes():
    few = scored("return", signal=1.0, rival=0.0, bars=20 * (FEWEST_CELLS - 1))
    (one,) = judge([few])
    assert (one.mark, one.gain, one.cells, one.needed) == (
        "too little to tell",
        None,
        FEWEST_CELLS - 1,
        FEWEST_CELLS,
    )
    (one,) = judge([told(1.0, cells=100)])
    assert one.mark == "too little to tell" and 900 < one.needed < 1_100
    (one,) = judge([told(0.001)])
    assert one.mark == "too little to tell" and one.needed is None, "no number of cells that anybody has"


@pytest.mark.parametrize("gain", [1e-15, 1e-100, 1e-200, 1e-320])
def test_a_gain_of_almost_nothing_takes_more_cells_than_any(gain):
    (one,) = judge([told(gain)])
    assert (one.mark, one.gain, one.needed) == ("too little to tell", gain, None)


def test_no_gain_and_no_loss_is_no_different():
    assert marks(told(-0.5)) == ["no different"]
    assert marks(told(0.0)) == ["no different"]


@pytest.mark.parametrize(
    "broken",
    [
        {"gain": float("nan"), "error": 1.0, "freedom": 5},
        {"gain": "1e9", "error": 1.0, "freedom": 5},
        {"gain": 1e9, "error": -1.0, "freedom": 5},
        {"gain": 1e9, "error": 0.0, "freedom": 0},
        {"gain": 1e9, "error": 0.0, "freedom": 2.5},
        {"gain": 1e9},
        None,
        [1e9],
    ],
)
def test_a_gain_that_cant_be_read_is_no_gain(broken):
    metrics = told(5.0)
    metrics["test"]["better"]["base_rate"]["log_loss"] = broken
    assert marks(metrics) == ["too little to tell"]
    metrics["test"]["better"] = {"base_rate": broken}
    assert marks(metrics) == ["too little to tell"]


@pytest.mark.parametrize("metrics", [{}, {"test": {"mse": 1.0}}, {"about": {}, "test": {"better": {}}}])
def test_metrics_without_proper_scores_have_no_mark(metrics):
    assert judge([metrics]) == [None]
    assert verdict(judged([{"piece": "A", "metrics": metrics}])) == ""


def test_a_baseline_beside_itself_is_no_different():
    metrics = told(0.0, error=0.0)
    (one,) = judge([metrics])
    assert (one.mark, one.low, one.high) == ("no different", 0.0, 0.0)
    assert CellMean(value=0.0, error=0.0, freedom=9).p_positive == 0.5


def named(**gains: dict[str, Any]) -> list[dict[str, Any]]:
    return judged([{"piece": name, "metrics": metrics} for name, metrics in gains.items()])


def test_the_verdict_is_one_sentence():
    models = named(D=told(-9.0), C=told(-0.1), B=told(1.0), A=told(9.0), E=told(12.0))
    assert verdict(models) == (
        "2 of 5 are worth using (E, A), 1 too little to tell, 1 no different from logistic, 1 worse"
    )
    assert [model["piece"] for model in in_order(models)] == ["E", "A", "B", "C", "D"]
    assert verdict(named(C=told(-0.1), D=told(-9.0))) == (
        "none of 2 is worth using, 1 no different from logistic, 1 worse; nothing to put to use"
    )
    many = verdict(named(**{f"S{number}": told(9.0) for number in range(9)}))
    assert many == "9 of 9 are worth using (S0, S1, S2, S3, S4 and 4 more)"
