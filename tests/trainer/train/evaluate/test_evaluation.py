from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.jobs import job_of
from trainer.data.read.candles import Candles
from trainer.data.synthetic import synthetic_candles
from trainer.targets.inference import estimate, num_cosines, t_quantile
from trainer.targets.scoring import begins_of, day_cells
from trainer.train.evaluate.evaluation import evaluate, interval
from trainer.train.inputs.rows import SymbolData, prepare

MINUTE = 60_000_000_000
DAY = 1440 * MINUTE
JOB = job_of(lookback=10, horizon=1)
TARGET = JOB.target


@pytest.fixture(scope="module")
def trending() -> SymbolData:
    """Hourly bars whose moves go on three times out of four, with the last return as the only feature."""
    random = np.random.default_rng(0)
    steps = random.uniform(0.5, 1.5, 4000) * 1e-3
    signs = np.cumprod(np.where(random.random(4000) < 0.75, 1, -1))
    close = 100 * np.exp(np.cumsum(signs * steps))
    candles = Candles(
        symbol="AAA",
        timeframe="1h",
        timestamp=np.arange(4000, dtype=np.int64) * 60 * MINUTE,
        open=close,
        high=close,
        low=close,
        close=close,
        volume=np.ones(4000),
    )
    returns = torch.from_numpy(np.diff(np.log(close), prepend=np.log(close[0])))[:, None]
    return prepare(candles, JOB, features=returns, warmup=1)


@pytest.mark.parametrize(
    ("step", "horizon", "cells", "length"),
    [
        (MINUTE, 5, 4, "1 day"),
        (MINUTE, 2000, 3, "2,000 bars"),
        (60 * MINUTE, 5, 209, "1 day"),
        (DAY, 5, 1000, "5 bars"),
        (DAY, 1, 5000, "1 day"),
    ],
)
def test_a_cell_is_a_day_or_a_longer_horizon(step, horizon, cells, length) -> None:
    bars = np.arange(5000, dtype=np.int64)
    candles = SimpleNamespace(timestamp=bars * step)
    of_bar, told = day_cells(SimpleNamespace(candles=candles, scored=bars), horizon)
    assert (len(np.unique(of_bar)), told) == (cells, length)
    parts = [candles.timestamp[:2001], candles.timestamp[2001:2003], candles.timestamp[2003:]]
    days = candles.timestamp // DAY
    assert begins_of(part // DAY for part in parts).tolist() == np.unique(days, return_index=True)[1].tolist()


def test_single_bars_give_the_textbook_interval() -> None:
    hits = (np.random.default_rng(3).random(2000) < 0.6).astype(float)
    found = interval(hits, np.arange(2000))
    error = t_quantile(0.975, num_cosines(2000)) * np.sqrt(hits.mean() * (1 - hits.mean()) / 2000)
    assert found == pytest.approx([hits.mean() - error, hits.mean() + error], abs=error / 4)


def test_cells_see_that_neighbours_repeat_each_other() -> None:
    hits = np.repeat(np.random.default_rng(4).random(100), 20)

    def width(cells: np.ndarray) -> float:
        found = interval(hits, cells)
        assert found is not None
        return found[1] - found[0]

    # Single bars would do as well, since the variance knows of neighbours; shuffled ones know nothing.
    shuffled = np.random.default_rng(0).permutation(2000)
    assert width(np.arange(2000) // 20) > 3 * width(shuffled)
    assert width(np.arange(2000)) > 2 * width(shuffled)


def test_few_cells_have_no_interval() -> None:
    assert interval(np.arange(19.0), np.arange(19)) is None
    assert interval(np.arange(20.0), np.arange(20)) is not None
    assert interval(None, np.arange(600)) is None


def test_losses_by_cell_give_the_gains_again(trending) -> None:
    rows = trending.scored("test")
    forecasts = TARGET.baselines(rows)
    found = evaluate(forecasts["logistic"], TARGET, rows, forecasts=forecasts)
    losses = found.losses
    assert len(losses["begins"]) == len(losses["bars"]) == found.scores["cells"]
    assert sum(losses["bars"]) == found.scores["n"] and losses["begins"] == sorted(losses["begins"])
    sums = losses["sums"]["log_loss"]
    again = estimate(
        [base - mine for base, mine in zip(sums["base_rate"], sums["model"], strict=True)], losses["bars"]
    )
    told = found.scores["better"]["base_rate"]["log_loss"]
    assert (again.value, again.error) == pytest.approx((told["gain"], told["error"]), rel=1e-6)


def test_baselines_see_the_trend_that_is_there(trending) -> None:
    rows = trending.scored("test")
    labels = rows.labels(rows.scored)
    found = {name: TARGET.scores(forecast, labels) for name, forecast in TARGET.baselines(rows).items()}
    assert found["persistence"]["accuracy"] == pytest.approx(0.75, abs=0.04)
    assert found["reversal"]["accuracy"] == pytest.approx(1 - found["persistence"]["accuracy"])
    assert found["base_rate"]["auc"] == 0.5
    assert found["logistic"]["auc"] > 0.7 and found["logistic"]["log_loss"] < found["base_rate"]["log_loss"]
    assert found["persistence"]["log_loss"] < found["base_rate"]["log_loss"] < found["reversal"]["log_loss"]


def test_baselines_learn_from_training_alone(trending) -> None:
    labels = trending.labels_TK.copy()
    labels[trending.spans.validation.start :] = 1 - labels[trending.spans.validation.start :]
    flipped = TARGET.baselines(replace(trending, labels_TK=labels).scored("test"))
    for name, forecast in TARGET.baselines(trending.scored("test")).items():
        assert np.array_equal(forecast, flipped[name])


def test_a_model_stands_beside_its_baselines_with_intervals(trending) -> None:
    labels = trending.labels("test")
    oracle = np.where(labels[:, 0] > 0.5, 0.9, 0.1)
    oracle[::10] = 0.5
    found = evaluate(oracle, TARGET, trending.scored("test"))
    report = found.scores
    assert report["auc"] == TARGET.scores(oracle, labels)["auc"] and report["cell"] == "1 day"
    assert report["intervals"]["auc"][0] < report["auc"] < report["intervals"]["auc"][1]
    assert report["first"] < report["last"] and report["cells"] > 20
    assert all(
        report["better"][name][score]["low"] > 0
        for name in ("base_rate", "persistence", "reversal", "logistic")
        for score in TARGET.proper
    )
    assert json.loads(json.dumps([report, found.losses])) == [report, found.losses]


def test_a_test_span_of_one_class_is_scored_without_auc(trending) -> None:
    bars, labels = trending.bars("test"), trending.labels_TK.copy()
    labels[bars] = 1.0
    rows = replace(trending, labels_TK=labels).scored("test")
    report = evaluate(np.full(len(bars), 0.6), TARGET, rows).scores
    assert report["auc"] is None
    assert report["intervals"]["auc"] is None
    assert report["accuracy"] == report["base_rate"] == 1.0 and report["intervals"]["log_loss"] is not None


def test_a_baseline_is_not_better_than_itself(trending) -> None:
    rows = trending.scored("test")
    report = evaluate(TARGET.baselines(rows)["logistic"], TARGET, rows).scores
    assert all(gain["gain"] == gain["error"] == 0 for gain in report["better"]["logistic"].values())


@pytest.mark.slow
def test_scores_tell_chance_from_one_bar_of_look_ahead() -> None:
    """Random-walk candles through features, splits and scalers: five seeds, 10,000 test bars each."""
    job = job_of(lookback=10, horizon=1, test_fraction=0.25)
    honest, leaking = [], []
    for seed in range(5):
        candles = synthetic_candles("WALK", bars=40_000, seed=seed)
        data = prepare(candles, job)
        ahead = data.rows_TF.clone()
        ahead[:-1, 0] = data.rows_TF[1:, 0]  # the one-bar return, read one bar too early
        for found, rows_TF in ((honest, data.rows_TF), (leaking, ahead)):
            forecast = TARGET.baselines(replace(data, rows_TF=rows_TF).scored("test"))["logistic"]
            found.append(TARGET.scores(forecast, data.labels("test"))["auc"])
    assert np.mean(honest) == pytest.approx(0.5, abs=0.01)
    assert np.mean(leaking) > 0.9
