"""Losses by cell: what is no such thing is refused, cells are matched, and gains are those of the metrics."""

from __future__ import annotations

import numpy as np
import pytest

from tests.models import losses_of
from trainer.targets import TARGETS
from trainer.targets.losses import Losses, gain_of
from trainer.targets.marks import judge
from trainer.train.evaluate.evaluation import Cells, compare

DAY = 86_400
TARGET = TARGETS["return"]()


def losses(*, first: int = 0, cells: int = 30, bars: int = 24, model: float = 1.0) -> Losses:
    begins = tuple(DAY * (first + place) for place in range(cells))
    sums = {"mse": {"model": [model + begin % 7 for begin in begins], "mean": [9.0] * cells}}
    return Losses(begins=begins, bars=(bars,) * cells, sums=sums)


def test_gains_from_losses_are_those_of_the_metrics():
    random = np.random.default_rng(0)
    labels, bars = random.normal(size=900), 900
    cells = Cells(of_bar=np.arange(bars) // 20, length="20 bars", times=np.arange(bars) * DAY * 10**9)
    forecasts = {"mean": np.zeros(bars), "linear": 0.1 * labels + random.normal(size=bars)}
    tested = compare(0.3 * labels, TARGET, labels[:, None], cells=cells, forecasts=forecasts)
    again = losses_of(tested).gains({"mse": True})
    for name, its in tested.scores["better"].items():
        assert again[name]["mse"] == pytest.approx(its["mse"], rel=1e-6)
    about = TARGET.about()
    (first,) = judge([{"about": about, "test": tested.scores}])
    (second,) = judge([{"about": about, "test": {"cells": 45, "better": again}}])
    assert first.mark == second.mark == "better" and first.p == pytest.approx(second.p, rel=1e-4)


def test_cells_with_equal_starts_and_lengths_are_shared():
    ours, theirs = losses(first=10), losses(first=0)
    assert [one.begins for one in ours.shared(theirs)] == [tuple(DAY * day for day in range(10, 30))] * 2
    assert ours.shared(losses(bars=23, first=10))[0].begins == ()
    both = ours.shared(theirs)[0]
    assert both.sums["mse"]["model"] == ours.sums["mse"]["model"][:20] and both.bars == (24,) * 20


def test_a_score_that_is_undefined_has_no_gain():
    assert gain_of(None, [1.0] * 30, [1] * 30, is_lower=True) is None
    assert gain_of([1.0] * 19, [2.0] * 19, [1] * 19, is_lower=True) is None
    assert gain_of([1.0] * 30, [2.0] * 30, [1] * 30, is_lower=True)["gain"] == 1
    assert gain_of([1.0] * 30, [2.0] * 30, [1] * 30, is_lower=False)["gain"] == -1


@pytest.mark.parametrize(
    "broken",
    [
        {"begins": (0, 0)},
        {"begins": (5, 0)},
        {"bars": (1,)},
        {"bars": (1, 0)},
        {"sums": {"mse": {"model": [1.0]}}},
        {"sums": {"mse": {"model": [1.0, float("inf")]}}},
        {"sums": {"mse": {"model": [1.0, float("nan")]}}},
    ],
)
def test_what_has_no_sum_in_each_cell_is_refused(broken):
    whole = {"begins": (0, 5), "bars": (1, 1), "sums": {"mse": {"model": [1.0, 2.0], "mean": None}}}
    Losses(**whole)
    with pytest.raises(ValueError, match="cell|score|order|sum"):
        Losses(**{**whole, **broken})
