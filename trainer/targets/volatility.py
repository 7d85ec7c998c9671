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
from trainer.targets.target import LOWER, Column, Metric, TargetSettings

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
# Training sessions per session that a term of HAR looks back: longer terms have too few values.
FEWEST_HAR_SESSIONS = 4


@dataclass(frozen=True, kw_only=True)
class Volatility(TargetSettings):
    """The target `volatility`. Forecasts and labels are logs of realized volatility."""

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
        logs: np.ndarray = outputs_NO[:, 0] * fitted["label_std"] + fitted["label_mean"]
        return logs

    def columns(
        self, outputs_NO: np.ndarray, candles: Candles, bars: np.ndarray, fitted: Mapping[str, Any]
    ) -> dict[str, np.ndarray]:
        """Return the volatility of the whole horizon's log return, not annualized."""
        import numpy as np

        return {"volatility": np.exp(self.forecast(outputs_NO, fitted))}

    def cells(self, rows: Rows) -> tuple[np.ndarray, str]:
        """Return cells of as many sessions as the horizon."""
        from trainer.base.text import counted
        from trainer.data.timeframes import DAY

        sessions = self.horizon_sessions
        return rows.clock[rows.scored] // DAY // sessions, counted(sessions, "session")

    def baselines(self, *series: Rows) -> dict[str, np.ndarray]:
        """Return the log volatility (N,) of each baseline.

        mean: the mean log of training. trailing: the volatility of the last `horizon_sessions` sessions. har:
        a regression on the log volatility of the last session, week and month (Corsi 2009), without terms for
        which training has too few sessions.
        """
        import numpy as np

        from trainer.data.timeframes import DAY
        from trainer.targets.bars import past_log_volatility
        from trainer.targets.scoring import with_intercept

        sessions = max(
            (rows.clock[rows.train[-1]] - rows.clock[rows.train[0]]) // DAY
            for rows in series
            if len(rows.train)
        )
        terms = [term for term in HAR_SESSIONS if term == 1 or term * FEWEST_HAR_SESSIONS <= sessions]
        mean = np.concatenate([np.full(len(rows.scored), rows.fitted["label_mean"]) for rows in series])
        last, learned, scored, labels = [], [], [], []
        for rows in series:
            close, clock = rows.candles.close, rows.clock
            last.append(past_log_volatility(close, clock, self.horizon_sessions)[rows.scored])
            logs = np.stack([past_log_volatility(close, clock, term) for term in terms], axis=1)
            known = rows.train[np.isfinite(logs[rows.train]).all(axis=1)]
            learned.append(logs[known])
            labels.append(rows.labels(known)[:, 0])
            scored.append(logs[rows.scored])
        x_train = with_intercept(np.concatenate(learned))
        weights = np.linalg.lstsq(x_train, np.concatenate(labels), rcond=None)[0]
        # The mean of training replaces values of a series that did not move or is too short.
        last_N, scored_NT = np.concatenate(last), np.concatenate(scored)
        return {
            "mean": mean,
            "trailing": np.where(np.isfinite(last_N), last_N, mean),
            "har": with_intercept(np.where(np.isfinite(scored_NT), scored_NT, mean[:, None])) @ weights,
        }

    def per_bar(self, forecast_N: np.ndarray, labels_NK: np.ndarray) -> PerBar:
        """Return correlation (None if either is constant), qlike and mse.

        qlike is the mean of v/f - log(v/f) - 1 over realized variance v and forecast variance f, zero if they
        agree. It ranks forecasts consistently despite noise in v (Patton 2011,
        https://doi.org/10.1016/j.jeconom.2010.03.034).
        """
        import numpy as np

        from trainer.targets.scoring import correlation_per_bar

        labels = labels_NK.reshape(len(forecast_N))
        missed = 2 * (labels - forecast_N)  # log of v/f
        return {
            "correlation": correlation_per_bar(forecast_N, labels),
            "qlike": np.exp(missed) - missed - 1,
            "mse": (labels - forecast_N) ** 2,
        }
