"""The baseline of trees: beside the others where LightGBM is installed, and left out where it is not."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trainer.data.calendar import session_clock
from trainer.data.synthetic import synthetic_candles
from trainer.targets import TARGETS
from trainer.targets.boosting import boosted
from trainer.targets.scoring import Rows

BARS = 900


class FakeData:
    """A LightGBM data set."""

    def __init__(self, x: np.ndarray, labels: np.ndarray, free_raw_data: bool = True) -> None:
        self.x, self.labels = x, labels

    def create_valid(self, x: np.ndarray, labels: np.ndarray) -> FakeData:
        return FakeData(x, labels)


class FakeBooster:
    """Forecasts the mean label of training."""

    best_iteration = 3

    def __init__(self, asked: dict[str, Any], data: FakeData, valid: FakeData) -> None:
        self.asked, self.data, self.valid = asked, data, valid

    def predict(self, x: np.ndarray, num_iteration: int) -> np.ndarray:
        assert num_iteration == self.best_iteration
        if self.asked["objective"] == "multiclass":
            return np.full((len(x), self.asked["num_class"]), 1 / self.asked["num_class"])
        return np.full(len(x), self.data.labels.mean())


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[FakeBooster]:
    """Replace LightGBM; return the boosters that are trained."""
    made: list[FakeBooster] = []

    def train(asked: dict[str, Any], data: FakeData, **options: Any) -> FakeBooster:
        made.append(FakeBooster(asked, data, *options["valid_sets"]))
        return made[-1]

    fake = SimpleNamespace(Dataset=FakeData, train=train, early_stopping=lambda rounds, verbose: None)
    monkeypatch.setitem(sys.modules, "lightgbm", fake)
    return made


def rows_of(name: str, *, bars: int = BARS, train: int = 500, signal: bool = False) -> tuple[Any, Rows]:
    """Return a target and a series' rows; `signal`: one feature is the label."""
    candles = synthetic_candles("AAA", bars=bars, timeframe="1h", seed=3)
    target = TARGETS[name](**({"horizon_sessions": 1} if name == "volatility" else {}))
    clock = session_clock(candles.timestamp, candles.timeframe, "24x7")
    labels = target.label(candles, clock).values_TK
    known = np.flatnonzero(np.isfinite(labels[:, 0]) & (np.arange(bars) >= 100))
    noise = np.random.default_rng(0).normal(size=(bars, 2)).astype(np.float32)
    if signal:
        noise[known, 0] = labels[known, 0]
    return target, Rows(
        candles=candles, clock=clock, labels_TK=labels, fitted=target.fit(labels[known[:train]]),
        train=known[:train], scored=known[train + 20 :], features=lambda bars: noise[bars],
    )  # fmt: skip


@pytest.mark.parametrize("name", [name for name, home in TARGETS.items() if not home.acts])
def test_trees_are_a_baseline_where_they_are_installed(name, trained):
    target, rows = rows_of(name)
    made = target.baselines(rows)
    others = [one for key, one in made.items() if key != "lightgbm"]
    assert made["lightgbm"].shape == others[0].shape and np.isfinite(made["lightgbm"]).all()
    assert target.scores(made["lightgbm"], rows.labels(rows.scored))["n"] == len(rows.scored)
    assert len(trained) == (3 if name == "quantiles" else 1)
    for one in trained:
        assert (len(one.data.labels), len(one.valid.labels)) == (400, 100), "the last fifth is held out"
        assert one.asked["num_threads"] == 1 and one.asked["deterministic"]


def test_each_series_has_its_last_bars_held_out(trained):
    _, rows = rows_of("direction")
    found = boosted([rows, rows], np.arange(1000.0), "regression")
    assert found is not None and found.held_bars.tolist() == [*range(400, 500), *range(900, 1000)]
    assert trained[0].valid.labels.tolist() == found.held_bars.tolist()


@pytest.mark.parametrize("error", [ImportError("no lightgbm"), OSError("libgomp.so.1: cannot open")])
def test_a_library_that_cant_be_loaded_is_no_baseline(error, monkeypatch):
    class Broken:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
            if name == "lightgbm":
                raise error

    monkeypatch.delitem(sys.modules, "lightgbm", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    target, rows = rows_of("direction")
    assert target.baselines(rows).keys() == {"base_rate", "persistence", "reversal", "logistic"}


@pytest.mark.parametrize("name", TARGETS)
def test_real_trees_find_a_signal(name):
    pytest.importorskip("lightgbm")
    target, rows = rows_of(name, bars=3_000, train=2_000, signal=True)
    made, labels = target.baselines(rows), rows.labels(rows.scored)
    assert all(np.array_equal(one, target.baselines(rows)[key]) for key, one in made.items())
    score = target.proper[0]
    constant = next(key for key in ("base_rate", "mean", "unconditional") if key in made)
    assert target.scores(made["lightgbm"], labels)[score] < target.scores(made[constant], labels)[score]
