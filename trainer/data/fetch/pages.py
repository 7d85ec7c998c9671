"""The strict reading of a source's rows: a page has bars of its range alone, in order, each once, or it is a
BadAnswer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trainer.data.fetch.source import BadAnswer, BarPage
from trainer.data.timeframes import origin_of

MILLISECOND = 1_000_000  # ns


def page_of_rows(
    rows: Any, *, since: int, until: int, step: int, covers_until: int, may_skip: bool
) -> BarPage:
    """Return the page of rows [milliseconds, open, high, low, close, volume] in any order. Raises BadAnswer.

    Bars outside [since, until) are left out: exchanges answer with some. Unless `may_skip`, that is all that
    a source may do: answers without any bar of the range, although it has rows, are refused.
    """
    if not isinstance(rows, Sequence) or isinstance(rows, str):
        raise BadAnswer(f"a list of bars was expected, not {str(rows)[:60]!r}")
    try:
        table = np.array(
            [[float("nan") if cell is None else float(cell) for cell in row[:6]] for row in rows]
        )
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise BadAnswer(f"a row is not a bar: {str(error)[:80]}") from error
    if not len(rows):
        return BarPage(covers_until=covers_until)
    if table.ndim != 2 or table.shape[1] != 6:
        raise BadAnswer("a row is not time, open, high, low, close and volume")
    if not (np.isfinite(table[:, 0]) & (np.abs(table[:, 0]) < 9e12)).all():
        raise BadAnswer("a bar has no time")
    timestamp = table[:, 0].astype(np.int64) * MILLISECOND
    inside = (timestamp >= since) & (timestamp < until)
    if not inside.any() and not may_skip:
        raise BadAnswer("none of the bars is of the time that was asked for")
    return _in_order(timestamp[inside], table[inside, 1:].T, step, covers_until)


def _in_order(timestamp: np.ndarray, values: np.ndarray, step: int, covers_until: int) -> BarPage:
    if ((timestamp - origin_of(step)) % step).any():
        raise BadAnswer("a bar does not begin at a multiple of its length")
    order = np.argsort(timestamp, kind="stable")
    timestamp, values = timestamp[order], values[:, order]
    again = np.flatnonzero(timestamp[1:] == timestamp[:-1]) + 1
    if not np.array_equal(values[:, again], values[:, again - 1], equal_nan=True):
        raise BadAnswer("two bars of one time differ")
    keep = np.ones(len(timestamp), dtype=bool)
    keep[again] = False
    possible = keep & possible_bars(values)
    return BarPage(
        covers_until=covers_until,
        timestamp=timestamp[possible],
        values=np.ascontiguousarray(values[:, possible]),
        dropped=int(keep.sum() - possible.sum()),
    )


def possible_bars(values: np.ndarray) -> np.ndarray:
    """Return (N,) bool: bars of `values` (5, N) with finite prices above zero, high not below low, volume not
    below zero.
    """
    with np.errstate(invalid="ignore"):
        finite = np.isfinite(values).all(axis=0) & (values[:4] > 0).all(axis=0)
        return np.asarray(finite & (values[1] >= values[2]) & (values[4] >= 0))


def missing_runs(timestamp: np.ndarray, first: int, until: int, step: int) -> list[tuple[int, int]]:
    """Return the holes of [first, until) as (first missing bar, number of bars)."""
    edges = np.concatenate([[first - step], timestamp, [until]])
    gaps = np.diff(edges) // step - 1
    return [(int(edges[place] + step), int(gaps[place])) for place in np.flatnonzero(gaps > 0)]
