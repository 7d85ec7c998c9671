"""Rolling sums, moments, extremes and exponential averages over the last w bars, reproducible to the last
bit.

Instead of prefix sums, windows are combined from blocks of 1, 2, 4, ... bars by doubling: log2(w) passes over
the series. A row depends only on the bars of its own window, combined in a fixed order, so that the same bars
give the same bits wherever the series begins or ends. Errors do not accumulate, and no mean of the whole
series, which includes the future, is subtracted.

Shapes: every tensor is (N,) float64 on the caller's device. Rows with fewer than w bars before them repeat
the first bar.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

State = tuple[Tensor, ...]
# (newer, older, bars in newer, bars in older) -> combined
Combine = Callable[[State, State, int, int], State]


def shift(x_N: Tensor, bars: int) -> Tensor:
    """Return the series shifted by `bars` bars into the past; before its beginning, the first value."""
    bars = min(bars, len(x_N))
    return torch.cat((x_N[:1].expand(bars), x_N[: len(x_N) - bars])) if bars else x_N


def rolling(values: State, spans: Sequence[int], combine: Combine) -> dict[int, State]:
    """Return for each span the combination of the last `span` rows, the current one included."""
    block, size = values, 1
    done: dict[int, State] = {}
    covered = dict.fromkeys(spans, 0)
    while True:
        for span in spans:
            if span & size:
                older = tuple(shift(part, covered[span]) for part in block)
                done[span] = combine(done[span], older, covered[span], size) if covered[span] else older
                covered[span] += size
        if size * 2 > max(spans):
            return done
        block = combine(block, tuple(shift(part, size) for part in block), size, size)
        size *= 2


def rolling_sum(x_N: Tensor, spans: Sequence[int]) -> dict[int, Tensor]:
    """Return the sum of the last `span` values for each span."""
    return {
        span: state[0] for span, state in rolling((x_N,), spans, lambda a, b, m, n: (a[0] + b[0],)).items()
    }


def rolling_extremes(low_N: Tensor, high_N: Tensor, spans: Sequence[int]) -> dict[int, State]:
    """Return (lowest low, highest high) of the last `span` bars for each span."""
    return rolling(
        (low_N, high_N), spans, lambda a, b, m, n: (torch.minimum(a[0], b[0]), torch.maximum(a[1], b[1]))
    )


def rolling_moments(x_N: Tensor, spans: Sequence[int]) -> dict[int, State]:
    """Return (mean, standard deviation with divisor n) of the last `span` values for each span.

    Blocks are joined by the pairwise update of Chan, Golub, LeVeque (1979), which avoids cancellation at any
    level.
    """

    def combine(newer: State, older: State, m: int, n: int) -> State:
        delta = older[0] - newer[0]
        return newer[0] + delta * (n / (m + n)), newer[1] + older[1] + delta * delta * (m * n / (m + n))

    moments = rolling((x_N, torch.zeros_like(x_N)), spans, combine)
    return {span: (mean, (squares / span).sqrt_()) for span, (mean, squares) in moments.items()}


def exponential_mean(x_N: Tensor, decay: float, bars: int) -> Tensor:
    """Return the exponentially weighted mean of the last `bars` values (a power of two); a value k bars old
    weighs decay**k.

    The tail is cut, so that a row depends on a known number of bars; 256 bars omit 1e-8 of the weight at
    decay 13/14.
    """
    total = rolling((x_N,), (bars,), lambda newer, older, m, n: (newer[0] + decay**m * older[0],))[bars][0]
    return total * ((1 - decay) / (1 - decay**bars))
