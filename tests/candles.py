"""Helpers for tests of a data set's candles."""

from __future__ import annotations

from collections.abc import Callable

from trainer.base.errors import DataError


def fewest(least: int) -> Callable[[str, int, str], DataError | None]:
    """Return a `too_few` of `trainer.launch.inputs.choose` that refuses symbols with fewer bars."""

    def too_few(symbol: str, bars: int, timeframe: str) -> DataError | None:
        return (
            DataError(f"{symbol} has {bars} bars", why=f"{least} are needed", do="Bring more.")
            if bars < least
            else None
        )

    return too_few
