"""A symbol's data, made once for all models of that symbol: rows and labels, and each fold's scaler and windows.

A worker that trains folds and seeds of one symbol together keeps its rows once. A source is always prepared on the CPU and
moved to the device when its model joins: what is in it depends neither on the device nor on whether it was staged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

from trainer.data.candles import read_candles, time_text
from trainer.data.settings import DataSettings
from trainer.gpu_profiles.memory import GIB
from trainer.job import Job
from trainer.targets import scores_of
from trainer.train.checkpoint import fingerprint
from trainer.train.evaluation import Baselines
from trainer.train.prepare import SymbolData, prepare_folds

_CELLS, _CELL_BYTES = 6, 8  # of a file's row: time, four prices, volume
_PIECE_BYTES = 48 << 20  # what computing features takes besides, a piece of the series at a time


@dataclass(frozen=True, kw_only=True)
class Source:
    """What every model of a symbol is made from. `folds` share one `rows_TF`; `data` is what their cards say of it."""

    symbol: str
    folds: tuple[SymbolData, ...]
    data: dict[str, Any]
    mark: str  # what a checkpoint of these trainings belongs to
    _baselines: dict[int, Baselines] = field(default_factory=dict, repr=False)

    def baselines(self, fold: int) -> Baselines:
        """Return what simple forecasts say in the test span of a fold (from 1 on); computed once for all its seeds."""
        if fold not in self._baselines:
            data = self.folds[fold - 1]
            self._baselines[fold] = scores_of(data.target).baselines(data.target, data.scored("test"))
        return self._baselines[fold]


def source_gib(*, bars: int, rows: int, folds: int, data: DataSettings = DataSettings()) -> float:
    """Return the host memory that reading and preparing a symbol takes at its peak, in GiB; an estimate.

        48 MiB + rows x 48 B x 2 + bars x (inputs x 4 B x 2 + 48 B x 2 + folds x 32 B)

    Each column of `data` adds 8 B to the 48. `rows` are those of the files that hold the symbol, which are read whole: a row
    is there as read and as numbers. Of the symbol's own bars there are besides: inputs, and those of training again while the
    scaler is fitted; candles, and their bytes for the checkpoints' fingerprint; and of each fold labels, window starts and
    what they were chosen by.
    Measured beside it, a million bars of one file: 0.42 GiB for 0.53 with one fold, 0.61 for 0.62 with four (2026-11-21).
    """
    row_bytes = (_CELLS + len(data.columns)) * _CELL_BYTES
    a_bar = 2 * len(data.inputs) * 4 + 2 * row_bytes + folds * 32
    return (_PIECE_BYTES + 2 * rows * row_bytes + bars * a_bar) / GIB


def read_source(
    symbol: str, timeframe: str, job: Job, *, folder: Path, code_sha256: str, files: Collection[str] = ()
) -> Source:
    """Read and prepare one symbol, on the CPU. Raises DataError when its bars can't be trained on.

    `files` are the names of the folder's files that hold it, where they are known: of hundreds, the others stay unopened.
    """
    candle_set = read_candles(
        folder, symbols=(symbol,), timeframe=timeframe, bars=job.data.bars, columns=job.data.columns, files=files
    )
    candles = candle_set.symbols[symbol]
    folds = prepare_folds(candles, job)
    cells = {name: getattr(candles, name).tobytes() for name in ("timestamp", "open", "high", "low", "close", "volume")}
    cells |= {f"column {name}": values.tobytes() for name, values in candles.columns.items()}
    return Source(
        symbol=symbol,
        folds=folds,
        data={
            "files": [{"file": read.file, "bars": read.bars} for read in candle_set.files],
            "bars": len(candles),
            "first": time_text(candles.timestamp[0]),
            "last": time_text(candles.timestamp[-1]),
            "holes": folds[0].holes,
            "synthetic": candle_set.synthetic,
        },
        mark=fingerprint(job, data=cells, code_sha256=code_sha256),
    )


def on_device(source: Source, device: str) -> Source:
    """Return the source with its tensors on a device, those that folds share once; the same one where they lie there."""
    if device == "cpu":
        return source
    moved: dict[int, torch.Tensor] = {}

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in moved:
                moved[id(value)] = value.to(device)
            return moved[id(value)]
        if isinstance(value, dict):
            return {name: move(part) for name, part in value.items()}
        return value

    folds = tuple(
        replace(data, **{item.name: move(getattr(data, item.name)) for item in fields(data)}) for data in source.folds
    )
    return replace(source, folds=folds)


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
