"""Volatility: the log of the realized volatility over the next `horizon_sessions` sessions. One output,
scaled.

A label is the log of the root of the sum of squared log returns, from bar t to the same time of day
`horizon_sessions` sessions later, including the nights. It is in units of the log return over the whole
horizon, not annualized. Realized volatility after Andersen and Bollerslev 1998.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from trainer.base.settings import setting
from trainer.targets.target import CLOCK, CLOSES, LOWER, Column, Metric, TargetSettings

if TYPE_CHECKING:
    import numpy as np
    import torch

    from trainer.data.read.candles import Candles
    from trainer.targets.bars import Labels
    from trainer.targets.scoring import PerBar, Rows

MAX_HORIZON_SESSIONS = 21  # that is chosen: a month of an exchange
LONGEST_HORIZON_SESSIONS = 63  # that a job may ask for: a quarter of one, two months of a coin
# A day, a week and a month: Corsi 2009, https://doi.org/10.1093/jjfinec/nbp001, equation 8.
HAR_SESSIONS = (1, 5, 22)
SMEARING = "smearing"  # a fitted value: mean variance over the exponential of the mean log variance
MOST_SMEARING = 1e6
# Training sessions per session that a term of HAR looks back: longer terms have too few values.
FEWEST_HAR_SESSIONS = 4


@dataclass(frozen=True, kw_only=True)
class Volatility(TargetSettings):
    """The target `volatility`. Labels are logs of realized volatility."""

    name = "volatility"
    metrics = (
        Metric(name="correlation", title="correlation"),
        Metric(name="qlike", title="QLIKE", better=LOWER),
        Metric(name="mse", title="MSE of logs", better=LOWER),
    )
    proper = ("qlike", "mse")
    table = (
        Column(title="correlation (HAR)", value=("correlation",), beside=("baselines", "har", "correlation")),
        Column(title="QLIKE (HAR)", value=("qlike",), beside=("baselines", "har", "qlike")),
    )
    farther = "target.horizon_sessions"
    scores_read = frozenset({CLOSES, CLOCK})
    needs_fitted = ("label_mean", "label_std")

    horizon_sessions: int = setting(
        0,
        f"Horizon in sessions; 0: the longest (max {MAX_HORIZON_SESSIONS}) with 20 non-overlapping test"
        " labels.",
        least=0,
        most=LONGEST_HORIZON_SESSIONS,
    )

    def options(self) -> tuple[Self, ...]:
        if self.horizon_sessions:
            return (self,)
        return tuple(
            replace(self, horizon_sessions=sessions) for sessions in range(MAX_HORIZON_SESSIONS, 0, -1)
        )

    def label(self, candles: Candles, clock: np.ndarray) -> Labels:
        """Return the labels; NaN if the series ends before, or if the close does not move."""
        import numpy as np

        from trainer.data.timeframes import DAY
        from trainer.targets.bars import Labels, log_root, squared_returns, sums_over

        bars = np.arange(len(clock), dtype=np.int64)
        then = clock + self.horizon_sessions * DAY
        # A label is known once there is a bar at or after the horizon's end.
        ends = np.searchsorted(clock, then, side="right") - 1
        ends = np.where((then <= clock[-1]) & (ends > bars), ends, -1)
        known = np.flatnonzero(ends >= 0)
        labels = np.full((len(bars), 1), np.nan, dtype=np.float32)
        labels[known, 0] = log_root(sums_over(squared_returns(candles.close), known + 1, ends[known] - known))
        # If the bar at the label's very end is missing, the hole is before the next bar.
        whole = clock[ends] == then
        return Labels(values_TK=labels, ends_T=ends, unbroken_T=ends + ~whole)

    def fit(self, labels_NK: np.ndarray) -> dict[str, Any]:
        """Return the mean and deviation of the training labels."""
        seen = labels_NK[:, 0].astype("float64")
        return {"label_mean": float(seen.mean()), "label_std": float(seen.std()) or 1.0}

    def scale(self, labels_NK: np.ndarray, fitted: Mapping[str, Any]) -> np.ndarray:
        """Return the labels (N, 1) float64 less their mean, in deviations."""
        scaled: np.ndarray = (labels_NK.astype("float64") - fitted["label_mean"]) / fitted["label_std"]
        return scaled

    def loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the squared error (...) of the scaled log: outputs (..., 1), labels (..., 1)."""
        return (outputs - labels).squeeze(-1).square()

    def forecast(self, outputs_NO: np.ndarray, fitted: Mapping[str, Any]) -> np.ndarray:
        """Return the mean log volatility and the log of the root of the mean variance (N, Q)."""
        logs_N = outputs_NO[:, 0] * fitted["label_std"] + fitted["label_mean"]
        return _with_variance(logs_N, fitted.get(SMEARING, 1.0))

    def calibrate(
        self, outputs_NO: np.ndarray, labels_NK: np.ndarray, fitted: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return `fitted` with the smearing factor of the forecasts' errors."""
        forecast_N = self.forecast(outputs_NO, fitted)[:, 0]
        return {**fitted, SMEARING: _smearing(forecast_N, labels_NK[:, 0])}

    def order(self, forecast_N: np.ndarray) -> np.ndarray:
        """Return the mean log volatility (N,)."""
        return forecast_N[:, 0]

    def columns(
        self, outputs_NO: np.ndarray, candles: Candles, bars: np.ndarray, fitted: Mapping[str, Any]
    ) -> dict[str, np.ndarray]:
        """Return the root of the expected variance of the whole horizon's log return, not annualized."""
        import numpy as np

        return {"volatility": np.exp(self.forecast(outputs_NO, fitted)[:, 1])}

    def cells(self, rows: Rows) -> tuple[np.ndarray, str]:
        """Return cells of as many sessions as the horizon."""
        from trainer.base.text import counted
        from trainer.data.timeframes import DAY

        sessions = self.horizon_sessions
        return rows.clock[rows.scored] // DAY // sessions, counted(sessions, "session")

    def baselines(self, *series: Rows) -> dict[str, np.ndarray]:
        """Return the forecasts (N, Q) of each baseline, each with its own smearing factor in training.

        mean: the mean log of training. trailing: the volatility of the last `horizon_sessions` sessions. har:
        a regression on the log volatility of the last session, week and month (Corsi 2009), without terms for
        which training has too few sessions. lightgbm: trees on the features of each bar; its factor is from
        the bars that they were not fitted to.
        """
        import numpy as np

        from trainer.data.timeframes import DAY
        from trainer.targets.bars import past_log_volatility
        from trainer.targets.boosting import NAME, boosted
        from trainer.targets.scoring import of_training, with_intercept

        sessions = max(
            (rows.clock[rows.train[-1]] - rows.clock[rows.train[0]]) // DAY
            for rows in series
            if len(rows.train)
        )
        terms = [term for term in HAR_SESSIONS if term == 1 or term * FEWEST_HAR_SESSIONS <= sessions]
        parts: dict[str, list[np.ndarray]] = {"train": [], "scored": []}
        for rows in series:  # columns: mean, trailing, terms
            past = [
                past_log_volatility(rows.candles.close, rows.clock, term)
                for term in (self.horizon_sessions, *terms)
            ]
            for span, bars in (("train", rows.train), ("scored", rows.scored)):
                mean = np.full(len(bars), rows.fitted["label_mean"])
                parts[span].append(np.stack([mean, *(one[bars] for one in past)], axis=1))
        train, scored, labels = (*map(np.concatenate, parts.values()), of_training(series)[:, 0])
        known = np.isfinite(train[:, 2:]).all(axis=1)
        weights = np.linalg.lstsq(with_intercept(train[known, 2:]), labels[known], rcond=None)[0]

        def logs(columns: np.ndarray) -> dict[str, np.ndarray]:
            # The mean of training replaces values of a series that did not move or is too short.
            filled = np.where(np.isfinite(columns), columns, columns[:, :1])
            har = with_intercept(filled[:, 2:]) @ weights
            return {"mean": filled[:, 0], "trailing": filled[:, 1], "har": har}

        smearing = {name: _smearing(log_N, labels) for name, log_N in logs(train).items()}
        made = {name: _with_variance(log_N, smearing[name]) for name, log_N in logs(scored).items()}
        if trees := boosted(series, labels, "regression"):
            made[NAME] = _with_variance(trees.scored, _smearing(trees.held, labels[trees.held_bars]))
        return made

    def per_bar(self, forecast_N: np.ndarray, labels_NK: np.ndarray) -> PerBar:
        """Return correlation (None if either is constant), qlike and mse.

        qlike is the mean of v/f - log(v/f) - 1 over realized variance v and forecast variance f, zero if they
        agree. It ranks forecasts consistently despite noise in v (Patton 2011,
        https://doi.org/10.1016/j.jeconom.2010.03.034).
        """
        import numpy as np

        from trainer.targets.scoring import correlation_per_bar

        labels = labels_NK.reshape(len(forecast_N))
        log_N, variance_N = forecast_N.T
        missed = 2 * (labels - variance_N)  # log of v/f
        return {
            "correlation": correlation_per_bar(log_N, labels),
            "qlike": np.exp(missed) - missed - 1,
            "mse": (labels - log_N) ** 2,
        }


def _smearing(log_N: np.ndarray, labels_N: np.ndarray) -> float:
    """Return the mean over labels of realized variance by the variance whose log is forecast."""
    import numpy as np

    with np.errstate(over="ignore"):
        factor = float(np.exp(2 * (labels_N - log_N)).mean()) if len(log_N) else 1.0
    return min(max(factor, 1 / MOST_SMEARING), MOST_SMEARING)


def _with_variance(log_N: np.ndarray, smearing: float) -> np.ndarray:
    """Return forecasts (N, Q) of a mean log volatility."""
    import numpy as np

    return np.stack([log_N, log_N + 0.5 * np.log(smearing)], axis=1)
