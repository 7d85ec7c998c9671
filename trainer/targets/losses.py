"""Losses by cell of time of a model and its baselines, and the gains that they tell.

A card has them, and what scores models again writes them. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from trainer.targets.inference import estimate
from trainer.targets.marks import gain_values

MODEL = "model"  # its name beside those of baselines

Sums = Sequence[float] | None  # by cell; None of a score that is undefined


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Loss sums by score and forecaster in consecutive cells of C bars counts.

    Raises ValueError for cells out of order, sums of another length, and values that are not finite.
    """

    begins: tuple[int, ...]  # seconds since 1970 of the first bar of each cell
    bars: tuple[int, ...]
    sums: Mapping[str, Mapping[str, Sums]]  # score -> model or baseline -> (C,)

    def __post_init__(self) -> None:
        cells = len(self.begins)
        if any(later <= one for one, later in zip(self.begins, self.begins[1:], strict=False)):
            raise ValueError("cells are out of order")
        if len(self.bars) != cells or any(bars < 1 for bars in self.bars):
            raise ValueError(f"{cells} cells have other bars")
        for score, by_name in self.sums.items():
            for name, sums in by_name.items():
                if sums is not None and (len(sums) != cells or not all(map(math.isfinite, sums))):
                    raise ValueError(f"{score} of {name} has no finite sum in each of {cells} cells")

    def shared(self, other: Losses) -> tuple[Self, Losses]:
        """Return both on the cells that begin together and in which both scored as many bars."""
        theirs = set(zip(other.begins, other.bars, strict=True))
        common = {cell for cell in zip(self.begins, self.bars, strict=True) if cell in theirs}
        return self._on(common), other._on(common)

    def gains(self, scores: Mapping[str, bool]) -> dict[str, dict[str, Any]]:
        """Return the model's gain over each baseline in each of `scores`, as `judge` reads it. The values of
        `scores` tell whether a lower one is better.
        """
        names = [name for name in self.sums.get(next(iter(scores), ""), {}) if name != MODEL]
        return {
            name: {
                score: gain_of(self._of(score, MODEL), self._of(score, name), self.bars, is_lower=is_lower)
                for score, is_lower in scores.items()
            }
            for name in names
        }

    def beside(self, other: Losses, scores: Mapping[str, bool]) -> dict[str, Any]:
        """Return the gain of this model over another one in each of `scores`, on the same cells."""
        return {
            score: gain_of(self._of(score, MODEL), other._of(score, MODEL), self.bars, is_lower=is_lower)
            for score, is_lower in scores.items()
        }

    def _of(self, score: str, name: str) -> Sums:
        return self.sums.get(score, {}).get(name)

    def _on(self, cells: set[tuple[int, int]]) -> Self:
        kept = [place for place, cell in enumerate(zip(self.begins, self.bars, strict=True)) if cell in cells]
        return type(self)(
            begins=tuple(self.begins[place] for place in kept),
            bars=tuple(self.bars[place] for place in kept),
            sums={
                score: {
                    name: None if sums is None else [sums[place] for place in kept]
                    for name, sums in by_name.items()
                }
                for score, by_name in self.sums.items()
            },
        )


def gain_of(ours: Sums, theirs: Sums, bars: Sequence[float], *, is_lower: bool) -> dict[str, Any] | None:
    """Return the mean gain of sums over others in the same cells, as metrics tell it; None with too few
    cells, or if a score is undefined.
    """
    if ours is None or theirs is None:
        return None
    sign = 1.0 if is_lower else -1.0
    found = estimate([sign * (other - mine) for mine, other in zip(ours, theirs, strict=True)], bars)
    return gain_values(found) if found else None
