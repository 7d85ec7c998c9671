"""Scores and baselines of a forecast of volatility. Numpy on the CPU, float64, deterministic.

Forecasts and labels are logs of realized volatility. Baselines learn from the training bars only.

Shapes: N bars.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trainer.data.read.candles import Candles
from trainer.data.timeframes import DAY
from trainer.targets.scoring import Rows, Statistic, correlation, plain, whole
from trainer.targets.volatility import Volatility
from trainer.targets.volatility.labels import trailing

HAR_SESSIONS = (
    1,
    5,
    22,
)  # a day, a week and a month: Corsi 2009, https://doi.org/10.1093/jjfinec/nbp001, equation 8
FEWEST_HAR_SESSIONS = (
    4  # training sessions per session that a term of HAR looks back: longer terms have too few values
)

order = whole


def forecast(target: Volatility, outputs_NO: np.ndarray, fitted: Mapping[str, Any]) -> np.ndarray:
    """Return the forecast log volatility (N,)."""
    return np.asarray(outputs_NO[:, 0] * fitted["label_std"] + fitted["label_mean"])


def calibrate(
    target: Volatility, outputs_NO: np.ndarray, labels_NK: np.ndarray, fitted: Mapping[str, Any]
) -> dict[str, Any]:
    """Return `fitted` unchanged: nothing is calibrated."""
    return dict(fitted)


def columns(
    target: Volatility, outputs_NO: np.ndarray, candles: Candles, bars: np.ndarray, fitted: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Return the columns of a prediction: the volatility of the whole horizon's log return, not
    annualized.
    """
    return {"volatility": np.exp(forecast(target, outputs_NO, fitted))}


def blocks(target: Volatility, rows: Rows) -> tuple[np.ndarray, dict[str, int]]:
    """Return the block (N,) of each scored bar, and the length of a block: as many sessions as the
    horizon.
    """
    return rows.clock[rows.scored] // DAY // target.horizon_sessions, {
        "block_sessions": target.horizon_sessions
    }


def baselines(target: Volatility, *series: Rows) -> dict[str, np.ndarray]:
    """Return the log volatility (N,) of each baseline for the scored bars of all series, fitted on the
    training of all.

    mean: the mean log of training. trailing: the volatility of the last `horizon_sessions` sessions. har: a
    regression on the log volatility of the last session, week and month (Corsi 2009), without terms for which
    training has too few sessions.
    """
    sessions = max(
        (rows.clock[rows.train[-1]] - rows.clock[rows.train[0]]) // DAY for rows in series if len(rows.train)
    )
    terms = [term for term in HAR_SESSIONS if term == 1 or term * FEWEST_HAR_SESSIONS <= sessions]
    mean = np.concatenate([np.full(len(rows.scored), rows.fitted["label_mean"]) for rows in series])
    last, learned, scored, labels = [], [], [], []
    for rows in series:
        close, clock = rows.candles.close, rows.clock
        last.append(trailing(close, clock, target.horizon_sessions)[rows.scored])
        logs = np.stack([trailing(close, clock, term) for term in terms], axis=1)
        known = rows.train[np.isfinite(logs[rows.train]).all(axis=1)]
        learned.append(logs[known])
        labels.append(rows.labels(known)[:, 0])
        scored.append(logs[rows.scored])
    weights = np.linalg.lstsq(_with_intercept(np.concatenate(learned)), np.concatenate(labels), rcond=None)[0]
    # The mean of training replaces values of a series that did not move or is too short.
    last_N, scored_NT = np.concatenate(last), np.concatenate(scored)
    return {
        "mean": mean,
        "trailing": np.where(np.isfinite(last_N), last_N, mean),
        "har": _with_intercept(np.where(np.isfinite(scored_NT), scored_NT, mean[:, None])) @ weights,
    }


def metrics(target: Volatility, forecast_N: np.ndarray, labels_NK: np.ndarray) -> dict[str, Any]:
    """Return n, correlation (of the logs; null if either is constant), qlike and mse (of the logs)."""
    return plain(lambda place: weighted(target, forecast_N, labels_NK, place), len(forecast_N))


def weighted(
    target: Volatility, forecast_N: np.ndarray, labels_NK: np.ndarray, place: np.ndarray
) -> Statistic:
    """Return a function of block weights (B,) that gives `metrics`' values.

    qlike is the mean of v/f - log(v/f) - 1 over realized variance v and forecast variance f, zero if they
    agree. It ranks forecasts consistently despite noise in v (Patton 2011,
    https://doi.org/10.1016/j.jeconom.2010.03.034).
    """
    labels = labels_NK.reshape(len(forecast_N))
    missed = 2 * (labels - forecast_N)  # log of v/f
    qlike, squared = np.exp(missed) - missed - 1, (labels - forecast_N) ** 2

    def values(weights_B: np.ndarray) -> dict[str, float | None]:
        weights = weights_B[place]
        share = weights / weights.sum()
        return {
            "correlation": correlation(forecast_N, labels, weights),
            "qlike": float(share @ qlike),
            "mse": float(share @ squared),
        }

    return values


def _with_intercept(columns: np.ndarray) -> np.ndarray:
    return np.concatenate([columns, np.ones((len(columns), 1))], axis=1)
