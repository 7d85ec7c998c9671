"""Compute a user's own features on a seeded random walk, and check by perturbation that none reads later
bars, nor bars before its lookback.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from trainer.base.errors import DataError, UsageError
from trainer.base.own_file import OwnFile
from trainer.data.own_features import DO, OwnFeatures, functions_of, lookback_of
from trainer.data.own_values import compute_own
from trainer.data.read.candles import Candles
from trainer.data.read.shapes import FIELDS
from trainer.data.synthetic import synthetic_candles
from trainer.job.job import Job

BARS = 2_000  # of the trial, besides twice the lookback
TRIED = 6  # places at which bars are changed
# Of a value computed from another beginning: running sums round otherwise
SAME, ALMOST_ZERO = 1e-6, 1e-9


def measure_features(job: Job, say: Callable[[str], None]) -> OwnFile:
    """Return the job's own features with their lookback. Raises UsageError, one line, for anything wrong with
    them.
    """
    own: Any = job.own_files["data"]
    say(f"loading {own.base_name}")
    for name, function in functions_of(own).items():
        say(f"{name} of {own.base_name}")
        _check(job, own, name, lookback_of(name, function))
    measured: OwnFeatures = own.loaded()
    return measured


def _check(job: Job, own: OwnFeatures, name: str, back: int) -> None:
    candles = _candles(job, bars=BARS + 2 * back)
    try:
        values_N = compute_own(own, name, candles)
    except DataError as error:
        raise UsageError(error.what, why=error.why, do=error.do) from error
    if not np.array_equal(values_N, compute_own(own, name, candles)):
        raise UsageError(f"{name} is not deterministic", why="the same bars gave other values", do=DO)
    for number, bar in enumerate(np.linspace(back, len(candles) - 2, TRIED).astype(int)):
        later = compute_own(own, name, _moved(candles, slice(bar + 1, None), seed=number))
        if not np.array_equal(later[: bar + 1], values_N[: bar + 1]):
            first = int((later[: bar + 1] != values_N[: bar + 1]).argmax())
            why = f"its value at bar {first} changes with the bars after {bar}"
            raise UsageError(f"{name} of {own.base_name} looks ahead", why=why, do="Use bars up to t only.")
        begin = max(0, bar - back)
        alone = compute_own(own, name, candles.rows(begin, bar + 1))
        moved = compute_own(own, name, _moved(candles, slice(0, begin), seed=number))
        both = np.array([alone[-1], moved[bar]])
        if not np.allclose(both, values_N[bar], rtol=SAME, atol=ALMOST_ZERO):
            why = f"its value at bar {bar} changes with the bars before {begin}; lookback is {back}"
            raise UsageError(
                f"{name} of {own.base_name} reads further back than its lookback",
                why=why,
                do=f"Raise {name}.lookback, or cut what it reads.",
            )


def _candles(job: Job, *, bars: int) -> Candles:
    """Return the random walk, with a value of each of the job's columns at each bar."""
    candles = synthetic_candles("AAA", bars=bars, timeframe=job.data.timeframe or "1m", seed=0)
    random = np.random.default_rng(1)
    return replace(candles, columns={name: random.normal(0, 1, bars) for name in job.data.further})


def _moved(candles: Candles, part: slice, *, seed: int) -> Candles:
    """Return the candles with prices, volume and columns of the bars in `part` changed at random."""
    random = np.random.default_rng(seed)
    factor_N = np.ones(len(candles))
    factor_N[part] = np.exp(random.normal(0, 0.2, len(factor_N[part])))
    fields: dict[str, Any] = {name: getattr(candles, name) * factor_N for name in FIELDS}
    return replace(candles, **fields, columns={name: one * factor_N for name, one in candles.columns.items()})
