"""A clock that all ranks share: rank 0's time, sent every few steps.

Ranks that read the same time make the same decisions by time (progress reports, checkpoints). Rank 0 also
sends the number of steps until the next agreement, so that there are about two a second at any speed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from trainer.train.packs.pack import Member, Pack
from trainer.train.ranks.group import Ranks

SECONDS = 0.5  # between agreements, approximately
MOST_STEPS = 256


class AgreedClock:
    """A clock that only advances at agreements."""

    def __init__(self, ranks: Ranks, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._ranks, self._clock = ranks, clock
        self._now, self._steps, self._left = 0.0, 1, 1
        self._agree(steps=1)

    def __call__(self) -> float:
        """Return the time of the last agreement, in seconds."""
        return self._now

    def tick(self) -> None:
        """Count a step, and agree again if due. Every rank must call it after each step."""
        self._left -= 1
        if self._left == 0:
            elapsed = self._clock() - self._now  # only rank 0's counts
            self._agree(steps=steps_until_next(self._steps, elapsed))

    def _agree(self, *, steps: int) -> None:
        self._now, agreed = self._ranks.numbers_of_first([self._clock(), steps])
        self._steps = self._left = int(agreed)


def steps_until_next(steps: int, elapsed: float) -> int:
    """Return the number of steps until the next agreement, if the last `steps` took `elapsed` seconds."""
    return max(1, min(MOST_STEPS, 2 * steps, round(steps * SECONDS / max(elapsed, 1e-9))))


def ticking(
    form: Callable[[Sequence[Member]], Pack], clock: AgreedClock
) -> Callable[[Sequence[Member]], Pack]:
    """Return `form` with packs whose steps the clock counts."""
    return lambda members: cast(Pack, _Ticking(form(members), clock))


class _Ticking:
    """A pack whose steps are counted; everything else is delegated."""

    def __init__(self, pack: Pack, clock: AgreedClock) -> None:
        self._pack, self._clock = pack, clock

    def step(self, active: Sequence[bool], starts: Sequence[torch.Tensor]) -> torch.Tensor:
        """See `Pack.step`."""
        losses = self._pack.step(active, starts)
        self._clock.tick()
        return losses

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pack, name)
