"""Rolling sums, moments, extremes and exponential averages over the last w bars, reproducible to the last
bit.

Instead of prefix sums, windows are combined from blocks of 1, 2, 4, ... bars by doubling: log2(w) passes over
the series. A row depends only on the bars of its own window, combined in a fixed order, so that the same bars
give the same bits wherever the series begins or ends. Errors do not accumulate, and no mean of the whole
series, which includes the future, is subtracted.

Shapes: arrays are (..., N) float64, aligned at their end: the last row is always that of the last bar. A
result lacks the rows with fewer than w - 1 bars before them, so that nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

State = tuple[Any, ...]  # arrays
# (newer, older, bars in newer, bars in older) -> combined
Combine = Callable[[State, State, int, int], State]


def lag(x_N: np.ndarray, bars: int) -> np.ndarray:
    """Return the values of `bars` bars earlier: a view that ends with the value for the last bar."""
    return x_N[..., : x_N.shape[-1] - bars]


def last(x_N: np.ndarray, rows: int) -> np.ndarray:
    """Return the last `rows` rows: a view."""
    return x_N[..., x_N.shape[-1] - rows :]


def change(x_N: np.ndarray, bars: int) -> np.ndarray:
    """Return the value minus that of `bars` bars earlier."""
    return np.asarray(x_N[..., bars:] - lag(x_N, bars))


def rolling(values: State, spans: Sequence[int], combine: Combine) -> dict[int, State]:
    """Return for each span the combination of the last `span` rows, the current one included. An array of
    `values` may be None: all zero.
    """
    block, size = values, 1
    done: dict[int, State] = {}
    covered = dict.fromkeys(spans, 0)
    while True:
        for span in spans:
            if span & size:
                older = _parts(lag, block, covered[span])
                done[span] = (
                    combine(_parts(_from, done[span], size), older, covered[span], size)
                    if covered[span]
                    else older
                )
                covered[span] += size
        if size * 2 > max(spans):
            return done
        block = combine(_parts(_from, block, size), _parts(lag, block, size), size, size)
        size *= 2


def _parts(cut: Callable[[np.ndarray, int], np.ndarray], state: State, bars: int) -> State:
    return tuple(None if part is None else cut(part, bars) for part in state)


def _from(x_N: np.ndarray, bars: int) -> np.ndarray:
    return x_N[..., bars:]


def rolling_sum(x_N: np.ndarray, spans: Sequence[int]) -> dict[int, np.ndarray]:
    """Return the sum of the last `span` values for each span."""
    sums = rolling((x_N,), spans, lambda a, b, m, n: (np.add(a[0], b[0]),))
    return {span: state[0] for span, state in sums.items()}


def rolling_extremes(low_N: np.ndarray, high_N: np.ndarray, spans: Sequence[int]) -> dict[int, State]:
    """Return (lowest low, highest high) of the last `span` bars for each span."""
    return rolling(
        (low_N, high_N), spans, lambda a, b, m, n: (np.minimum(a[0], b[0]), np.maximum(a[1], b[1]))
    )


def rolling_ages(x_N: np.ndarray, span: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the greatest of the last `span` values and how long ago it was, the latest of equal ones."""

    def combine(newer: State, older: State, m: int, n: int) -> State:
        is_older = older[0] > newer[0]
        return np.maximum(newer[0], older[0]), np.where(is_older, older[1] + m, newer[1])

    greatest, age = rolling((x_N, np.zeros_like(x_N)), (span,), combine)[span]
    return greatest, age


def rolling_moments(x_N: np.ndarray, spans: Sequence[int]) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Return (mean, standard deviation with divisor n) of the last `span` values for each span.

    Blocks are joined by the pairwise update of Chan, Golub, LeVeque (1979), which avoids cancellation at any
    level.
    """
    moments = rolling((x_N, None), spans, _join_moments)
    made = {}
    for span, (mean_N, squares_N) in moments.items():
        deviation_N = np.zeros_like(mean_N) if squares_N is None else squares_N / span
        made[span] = mean_N, np.sqrt(deviation_N, out=deviation_N)
    return made


def _join_moments(newer: State, older: State, m: int, n: int) -> State:
    """Return mean and sum of squares of two blocks together; the squares of single values are None."""
    delta_N = older[0] - newer[0]
    squares_N = delta_N * delta_N
    if (weight := m * n / (m + n)) != 1:
        squares_N *= weight
    both = [one[1] for one in (newer, older) if one[1] is not None]
    if both:
        squares_N += both[0] + both[1] if len(both) > 1 else both[0]
    delta_N *= n / (m + n)
    delta_N += newer[0]
    return delta_N, squares_N


def rolling_correlation(x_N: np.ndarray, y_N: np.ndarray, span: int) -> np.ndarray:
    """Return the correlation of the last `span` pairs; 0 where one of the two does not vary."""

    def combine(newer: State, older: State, m: int, n: int) -> State:
        delta_x, delta_y = older[0] - newer[0], older[1] - newer[1]
        share, weight = n / (m + n), m * n / (m + n)
        return (
            newer[0] + delta_x * share,
            newer[1] + delta_y * share,
            newer[2] + older[2] + delta_x * delta_x * weight,
            newer[3] + older[3] + delta_y * delta_y * weight,
            newer[4] + older[4] + delta_x * delta_y * weight,
        )

    zero_N = np.zeros_like(x_N)
    _, _, square_x, square_y, product = rolling((x_N, y_N, zero_N, zero_N, zero_N), (span,), combine)[span]
    both_N = np.sqrt(square_x) * np.sqrt(square_y)
    varies_N = both_N > 0
    return np.where(varies_N, product / np.where(varies_N, both_N, 1.0), 0.0)


def exponential_mean(x_N: np.ndarray, decay: float, bars: int) -> np.ndarray:
    """Return the exponentially weighted mean of the last `bars` values (a power of two); a value k bars old
    weighs decay**k.

    The tail is cut, so that a row depends on a known number of bars; 256 bars omit 1e-8 of the weight at
    decay 13/14.
    """

    def combine(newer: State, older: State, m: int, n: int) -> State:
        weighted_N = older[0] * decay**m
        weighted_N += newer[0]
        return (weighted_N,)

    total_N = rolling((x_N,), (bars,), combine)[bars][0]
    return np.asarray(total_N * ((1 - decay) / (1 - decay**bars)))
