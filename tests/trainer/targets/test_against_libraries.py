"""Scores of frozen forecasts, beside those of scikit-learn, scipy and scoringrules."""

from __future__ import annotations

import numpy as np
import pytest

from trainer.targets import TARGETS
from trainer.targets.logistic import logistic
from trainer.targets.scoring import BLOCK, Features

# The libraries are loaded in tests, late: each worker of pytest imports this file, and they take two seconds.
RANDOM = np.random.default_rng(11)
TRUTH = (RANDOM.random(3_000) < 0.45).astype(float)
CHANCES = np.round(np.clip(0.45 + 0.1 * (TRUTH - 0.5) + RANDOM.normal(0, 0.15, 3_000), 0.001, 0.999), 3)


def test_direction() -> None:
    import scoringrules
    from sklearn import metrics

    found = TARGETS["direction"]().scores(CHANCES, TRUTH[:, None])
    expected = {
        "auc": metrics.roc_auc_score(TRUTH, CHANCES),
        "accuracy": metrics.accuracy_score(TRUTH, CHANCES >= 0.5),
        "mcc": metrics.matthews_corrcoef(TRUTH, CHANCES >= 0.5),
        "log_loss": metrics.log_loss(TRUTH, CHANCES),
        "brier": metrics.brier_score_loss(TRUTH, CHANCES),
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-9)
    assert found["brier"] == pytest.approx(scoringrules.brier_score(TRUTH, CHANCES).mean(), abs=1e-9)
    assert found["log_loss"] == pytest.approx(scoringrules.log_score(TRUTH, CHANCES).mean(), abs=1e-9)


def test_barrier() -> None:
    from sklearn import metrics

    classes = RANDOM.integers(0, 3, 2_000)
    chances = RANDOM.dirichlet([2.0, 3.0, 1.0], 2_000)
    found = TARGETS["barrier"]().scores(chances, classes[:, None].astype(float))
    expected = {
        "accuracy": metrics.accuracy_score(classes, chances.argmax(axis=1)),
        "log_loss": metrics.log_loss(classes, chances),
        "brier": metrics.brier_score_loss(classes, chances, scale_by_half=False),
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-9)


def test_quantiles() -> None:
    import scoringrules
    from sklearn import metrics

    target = TARGETS["quantiles"](coverage=0.8)
    labels = RANDOM.standard_t(4, 2_000)
    forecast = np.sort(RANDOM.normal(0, 1, (2_000, 3)), axis=1)
    found = target.scores(forecast, labels[:, None])
    each = [
        metrics.mean_pinball_loss(labels, forecast[:, place], alpha=level)
        for place, level in enumerate(target.levels)
    ]
    low, high = forecast[:, 0], forecast[:, 2]
    interval = scoringrules.interval_score(labels, low, high, 0.2).mean()
    expected = {"pinball": np.mean(each), "interval_score": interval}
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-9)
    quantile = scoringrules.quantile_score(labels[:, None], forecast, np.array(target.levels))
    assert found["pinball"] == pytest.approx(quantile.mean(), abs=1e-9)


@pytest.mark.parametrize("name", ["return", "volatility"])
def test_numbers(name: str) -> None:
    from scipy import stats
    from sklearn import metrics

    labels = RANDOM.normal(0, 1, 2_000)
    forecast = 0.2 * labels + RANDOM.normal(0, 0.5, 2_000)
    said = np.stack([forecast, forecast + 0.1], axis=1) if name == "volatility" else forecast
    found = TARGETS[name]().scores(said, labels[:, None])
    assert found["mse"] == pytest.approx(metrics.mean_squared_error(labels, forecast), abs=1e-9)
    assert found["correlation"] == pytest.approx(stats.pearsonr(labels, forecast)[0], abs=1e-9)
    if name == "return":
        assert found["hits"] == pytest.approx(metrics.accuracy_score(labels > 0, forecast > 0), abs=1e-9)
    else:  # a gamma deviance is twice QLIKE
        deviance = metrics.mean_gamma_deviance(np.exp(2 * labels), np.exp(2 * said[:, 1]))
        assert 2 * found["qlike"] == pytest.approx(deviance, abs=1e-9)


@pytest.mark.parametrize("classes", [2, 3])
def test_logistic_regression(classes: int) -> None:
    from sklearn.linear_model import LogisticRegression

    x = RANDOM.normal(0, 1, (BLOCK + 300, 5)) @ RANDOM.normal(0, 1, (5, 5))
    x[:, 4] = x[:, 3]  # collinear
    logits = np.cumsum(x[:, :classes], axis=1) + np.arange(classes)
    labels = (logits + RANDOM.gumbel(size=logits.shape)).argmax(axis=1)
    theirs = LogisticRegression(C=1, solver="newton-cholesky", tol=1e-10).fit(x, labels).predict_proba(x)
    assert logistic(x, labels, x) == pytest.approx(theirs, abs=1e-7)
    halves = (np.arange(2_000), np.arange(2_000, len(x)))
    by_series = Features(parts=tuple((x.__getitem__, rows) for rows in halves))
    assert logistic(by_series, labels, by_series) == pytest.approx(theirs, abs=1e-7)
