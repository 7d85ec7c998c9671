"""The baseline `lightgbm`: gradient boosting on the features of each window's last bar, where LightGBM is
installed (`pip install 'mayfly[boosting]'`).

Trees are added on the first four fifths of each series' training bars, until the last fifth no longer gains.
One thread, deterministic. Numpy on the CPU.

Shapes: N bars to score, H bars held out, F features, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.targets.scoring import MOST_FITTED, Rows, features_of

NAME = "lightgbm"
HELD_OUT = 0.2  # of training: decides on the number of trees
MOST_TREES, PATIENCE = 300, 20
SETTINGS: dict[str, Any] = {
    "learning_rate": 0.05,
    "num_leaves": 15,
    "min_data_in_leaf": 100,
    "num_threads": 1,
    "deterministic": True,
    "force_row_wise": True,
    "seed": 0,
    "verbose": -1,
}


@dataclass(frozen=True, kw_only=True)
class Boosted:
    """Forecasts of the scored bars, and of the training bars that were held out."""

    scored: np.ndarray  # (N,) or (N, C)
    held: np.ndarray  # (H,) or (H, C)
    held_bars: np.ndarray  # (H,) places among the training bars of all series


def boosted(series: Sequence[Rows], labels_N: np.ndarray, objective: str, **settings: Any) -> Boosted | None:
    """Fit trees to the training labels of all series; None without LightGBM, or without bars to hold out.

    `objective` and `settings` are LightGBM's: binary, multiclass, regression, quantile.
    """
    try:
        import lightgbm  # late, and no dependency: it is in no lock
    except (ImportError, OSError):  # OSError: it lacks the system's OpenMP
        return None
    x_train, x_scored = features_of(series)
    held_N = np.concatenate([_last(len(rows.train)) for rows in series])
    learned, held = (_evenly(np.flatnonzero(some)) for some in (~held_N, held_N))
    if not len(learned) or not len(held):
        return None
    x_held = x_train.take(held)
    fitted = lightgbm.Dataset(
        x_train.take(learned), labels_N[learned].astype(np.float64), free_raw_data=False
    )
    booster = lightgbm.train(
        {**SETTINGS, "objective": objective, **settings},
        fitted,
        num_boost_round=MOST_TREES,
        valid_sets=[fitted.create_valid(x_held, labels_N[held])],
        callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False)],
    )

    def forecast(x: np.ndarray) -> np.ndarray:
        return np.asarray(booster.predict(x, num_iteration=booster.best_iteration), dtype=np.float64)

    return Boosted(
        scored=np.concatenate([forecast(x) for x in x_scored.blocks()]), held=forecast(x_held), held_bars=held
    )


def _last(bars: int) -> np.ndarray:
    """Return which of a series' training bars (bars,) are held out."""
    return np.arange(bars) >= bars - int(HELD_OUT * bars)


def _evenly(bars: np.ndarray) -> np.ndarray:
    """Return at most `MOST_FITTED` of bars, evenly spread."""
    return bars[:: 1 + len(bars) // MOST_FITTED]
