from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.jobs import job_of
from trainer.data.read.candles import Candles
from trainer.data.synthetic import synthetic_candles
from trainer.targets.scoring import block_length
from trainer.train.evaluate.evaluation import block_bootstrap, evaluate
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


@pytest.fixture(scope="module")
def guesses() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(1)
    labels = (random.random(600) < 0.55).astype(float)
    return np.round(np.clip(0.5 + 0.1 * (labels - 0.5) + random.normal(0, 0.1, 600), 0, 1), 2), labels


def test_a_block_holds_a_day_and_the_horizon() -> None:
    minutes = np.arange(5000, dtype=np.int64) * MINUTE
    assert block_length(minutes, 5) == 1440
    assert block_length(minutes, 2000) == 2000
    sessions = np.concatenate([day * DAY + np.arange(7, dtype=np.int64) * 60 * MINUTE for day in range(30)])
    assert block_length(sessions, 5) == 7
    assert block_length(np.arange(50, dtype=np.int64) * DAY, 5) == 5


def test_single_bars_give_the_textbook_interval() -> None:
    hits = (np.random.default_rng(3).random(2000) < 0.6).astype(float)
    found = block_bootstrap(
        lambda w: {"mean": float((w * hits).sum() / w.sum())}, np.arange(2000), replicates=2000
    )["mean"]
    assert found is not None
    error = 1.96 * np.sqrt(hits.mean() * (1 - hits.mean()) / 2000)
    assert found == pytest.approx([hits.mean() - error, hits.mean() + error], abs=error / 8)


def test_blocks_see_that_neighbours_repeat_each_other() -> None:
    hits = np.repeat(np.random.default_rng(4).random(100), 20)

    def width(blocks: np.ndarray) -> float:
        found = block_bootstrap(lambda w: {"mean": float((w * hits).sum() / w.sum())}, blocks)["mean"]
        assert found is not None
        return found[1] - found[0]

    assert width(np.arange(2000) // 20) > 3 * width(np.arange(2000))


def test_same_seed_same_intervals_and_few_blocks_have_none(guesses) -> None:
    statistic = TARGET.weighted(*guesses, np.arange(600))
    blocks = np.arange(600) // 30
    assert block_bootstrap(statistic, blocks, seed=5) == block_bootstrap(statistic, blocks, seed=5)
    assert block_bootstrap(statistic, blocks, seed=5) != block_bootstrap(statistic, blocks, seed=6)
    assert block_bootstrap(statistic, np.arange(600) // 200)["auc"] is None


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
    report = evaluate(oracle, TARGET, trending.scored("test"), replicates=200)
    assert report["auc"] == TARGET.scores(oracle, labels)["auc"] and report["block_bars"] == 24
    assert report["intervals"]["auc"][0] < report["auc"] < report["intervals"]["auc"][1]
    assert all(
        report["better"][name]["auc"][0] > 0 for name in ("base_rate", "persistence", "reversal", "logistic")
    )
    assert json.loads(json.dumps(report)) == report


def test_a_test_span_of_one_class_is_scored_without_auc(trending) -> None:
    bars, labels = trending.bars("test"), trending.labels_TK.copy()
    labels[bars] = 1.0
    rows = replace(trending, labels_TK=labels).scored("test")
    report = evaluate(np.full(len(bars), 0.6), TARGET, rows, replicates=50)
    assert report["auc"] is None
    assert report["intervals"]["auc"] is None
    assert report["better"]["logistic"]["auc"] is None
    assert report["accuracy"] == report["base_rate"] == 1.0 and report["intervals"]["log_loss"] is not None


def test_a_baseline_is_not_better_than_itself(trending) -> None:
    rows = trending.scored("test")
    report = evaluate(TARGET.baselines(rows)["logistic"], TARGET, rows, replicates=100)
    assert report["better"]["logistic"] == {"auc": [0.0, 0.0], "log_loss": [0.0, 0.0]}


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
