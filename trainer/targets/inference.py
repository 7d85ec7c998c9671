"""Intervals and p values of a mean over cells of time.

A cell is a session, or a label's horizon where that is longer. Neighbouring cells are alike, so the variance
of a mean is estimated from the slowest cosines of the series of cells (equal-weighted cosines: Mueller 2007,
https://doi.org/10.1016/j.jeconom.2007.01.019; their number, and Student's t, after Lazarus, Lewis, Stock and
Watson 2018, https://doi.org/10.1080/07350015.2018.1506926). `benchmarks/coverage.py` measures what its
intervals cover. Standard library only: the control plane decides by it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import mul

LEVEL = 0.95
FEWEST_CELLS = 20  # intervals of fewer cover less than nine times in ten
FEWEST_COSINES = 4
_BISECTIONS, _MOST_T = 80, 1e6
_TINY = 1e-300


@dataclass(frozen=True, kw_only=True)
class CellMean:
    """A mean over cells, its standard error, and the degrees of freedom of that error."""

    value: float
    error: float
    freedom: int

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Return the ends of the interval that covers the truth at this level."""
        reach = t_quantile(0.5 + level / 2, self.freedom) * self.error
        return self.value - reach, self.value + reach

    @property
    def t(self) -> float:
        """Return the value in standard errors; of one without any, a million with its sign, 0 of zero."""
        if self.error > 0:
            return self.value / self.error
        return math.copysign(_MOST_T, self.value) if self.value else 0.0

    @property
    def p_positive(self) -> float:
        """Return the chance of such a value or a higher one if the truth is zero."""
        return t_tail(self.t, self.freedom)

    @property
    def p_negative(self) -> float:
        """Return the chance of such a value or a lower one if the truth is zero."""
        return t_tail(-self.t, self.freedom)


def estimate(sums: Sequence[float], counts: Sequence[float]) -> CellMean | None:
    """Return the mean of values from their sums and counts in consecutive cells; None with fewer than twenty
    cells.
    """
    cells, total = len(sums), math.fsum(counts)
    if cells < FEWEST_CELLS or total <= 0:
        return None
    mean = math.fsum(sums) / total
    per_cell = total / cells
    left = [(part - mean * count) / per_cell for part, count in zip(sums, counts, strict=True)]
    freedom = num_cosines(cells)
    squares = [sum(map(mul, wave, left)) ** 2 for wave in _cosines(cells, freedom)]
    return CellMean(value=mean, error=math.sqrt(math.fsum(squares) / freedom / cells), freedom=freedom)


def num_cosines(cells: int) -> int:
    """Return the cosines from which the variance is estimated, its degrees of freedom."""
    return max(FEWEST_COSINES, int(0.4 * cells ** (2 / 3)))


@lru_cache(maxsize=8)
def _cosines(cells: int, number: int) -> tuple[tuple[float, ...], ...]:
    """Return the slowest cosines over cells, each orthogonal to a constant and of squares that sum to one."""
    scale = math.sqrt(2 / cells)
    return tuple(
        tuple(scale * math.cos(math.pi * wave * (cell + 0.5) / cells) for cell in range(cells))
        for wave in range(1, number + 1)
    )


def t_tail(t: float, freedom: int) -> float:
    """Return the chance that Student's t with these degrees of freedom exceeds `t`."""
    half = 0.5 * _incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5)
    return half if t >= 0 else 1 - half


@lru_cache(maxsize=256)
def t_quantile(share: float, freedom: int) -> float:
    """Return the value that Student's t stays below with this chance, from 0.5 to 1."""
    low, high = 0.0, 1.0
    while t_tail(high, freedom) > 1 - share and high < _MOST_T:
        high *= 2
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if t_tail(middle, freedom) > 1 - share else (low, middle)
    return high


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Return the regularized incomplete beta function (DLMF 8.17, continued fraction 8.17.22, by Lentz)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # there the fraction of the complement is the one that converges
        return 1 - _incomplete_beta(1 - x, b, a)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    above, below, value = 1.0, 1 / _away(1 - (a + b) * x / (a + 1)), 0.0
    value = below
    for step in range(1, 500):
        twice = 2 * step
        for term in (
            step * (b - step) * x / ((a + twice - 1) * (a + twice)),
            -(a + step) * (a + b + step) * x / ((a + twice) * (a + twice + 1)),
        ):
            below = 1 / _away(1 + term * below)
            above = _away(1 + term / above)
            value *= below * above
        if abs(below * above - 1) < 1e-15:
            break
    return front * value / a


def _away(value: float) -> float:
    """Return a value that can be divided by."""
    return value if abs(value) > _TINY else _TINY
