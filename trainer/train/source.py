"""A symbol's data on the device, made once for all models of that symbol: rows and labels, and each fold's scaler and windows.

A worker that trains folds and seeds of one symbol together keeps its rows once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trainer.config import Job
from trainer.data.candles import read_candles, time_text
from trainer.data.folds import prepare_folds
from trainer.data.windows import SymbolData
from trainer.train.checkpoint import fingerprint
from trainer.train.evaluation import Baselines, baselines


@dataclass(frozen=True, kw_only=True)
class Source:
    """What every model of a symbol is made from. `folds` share one `rows_TF`; `data` is what their cards say of it."""

    symbol: str
    folds: tuple[SymbolData, ...]
    close: np.ndarray
    data: dict[str, Any]
    mark: str  # what a checkpoint of these trainings belongs to
    _baselines: dict[int, Baselines] = field(default_factory=dict, repr=False)

    def baselines(self, fold: int, job: Job) -> Baselines:
        """Return what simple forecasts say in the test span of a fold (from 1 on); computed once for all its seeds."""
        if fold not in self._baselines:
            data = self.folds[fold - 1]
            found = baselines(data, self.close, lookback=job.lookback, horizon=job.horizon, span="test")
            self._baselines[fold] = found
        return self._baselines[fold]


def read_source(symbol: str, timeframe: str, job: Job, *, folder: Path, device: str, code_sha256: str) -> Source:
    """Read and prepare one symbol. Raises DataError when its bars can't be trained on."""
    candle_set = read_candles(folder, symbols=(symbol,), timeframe=timeframe, bars=job.bars)
    candles = candle_set.symbols[symbol]
    folds = prepare_folds(candles, job, device=device)
    columns = {name: getattr(candles, name).tobytes() for name in ("timestamp", "open", "high", "low", "close", "volume")}
    return Source(
        symbol=symbol,
        folds=folds,
        close=candles.close,
        data={
            "files": [{"file": read.file, "bars": read.bars} for read in candle_set.files],
            "bars": len(candles),
            "first": time_text(candles.timestamp[0]),
            "last": time_text(candles.timestamp[-1]),
            "holes": folds[0].holes,
            "synthetic": candle_set.synthetic,
        },
        mark=fingerprint(job, data=columns, code_sha256=code_sha256),
    )


class Sources:
    """The sources that a worker holds: those in use, and the last one, which the next model often needs, too."""

    def __init__(self) -> None:
        self._last: Source | None = None

    def get(self, symbol: str, in_use: Sequence[Source], read: Callable[[], Source]) -> Source:
        """Return a symbol's source: one that is there, else what `read` returns."""
        there = [*in_use, self._last] if self._last else [*in_use]
        found = next((source for source in there if source.symbol == symbol), None)
        if found is None:
            # Before the next is read, not after: rows are what fills the memory.
            self._last = None
            del there
            found = read()
        self._last = found
        return found
