"""A symbol's data, made once for all models of that symbol: rows and labels, and each fold's scaler and windows.

A worker that trains folds and seeds of one symbol together keeps its rows once. A source is always prepared on the CPU and
moved to the device when its model joins: what is in it depends neither on the device nor on whether it was staged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

from trainer.data.reading import Part, read_parts
from trainer.data.settings import DataSettings
from trainer.gpu_profiles.memory import GIB
from trainer.job import Job, with_settings
from trainer.plan.document import DataPlan, SymbolPlan, read_plan
from trainer.plan.planning import folder_of, plan_data, plans_of
from trainer.targets import scores_of
from trainer.train.checkpoint import fingerprint
from trainer.train.evaluation import Baselines
from trainer.train.prepare import SymbolData, prepare_folds

_CELLS, _CELL_BYTES = 6, 8  # of a file's row: time, four prices, volume
_PIECE_BYTES = 48 << 20  # what computing features takes besides, a piece of the series at a time


@dataclass(frozen=True, kw_only=True)
class JobData:
    """The data of a job on this machine: its plan, and the files with each symbol's bars. Workers get a copy."""

    plan: DataPlan
    parts: Mapping[str, tuple[Part, ...]]

    def of(self, symbol: str) -> SymbolPlan:
        """Return the plan of a symbol. Raises the DataError with which planning refused it."""
        if symbol in self.plan.refused:
            raise self.plan.refused[symbol].error
        return self.plan.symbols[symbol]


def open_data(job: Job, path: Path, *, scratch: Path, plan: bytes | None = None) -> JobData:
    """Return the job's data, planned here unless `plan` is a plan.json; files of many symbols are split into `scratch`.

    Raises DataError where the files, or the plan, are no use to the job.
    """
    if plan is None:
        folder = folder_of(job, path, scratch=scratch)
        made = plan_data(job, folder)
    else:
        made = read_plan(plan)
        made.check_fits(job)
        files = {file.file for file in made.files}
        symbols = job.data.chosen((*made.symbols, *made.refused))
        chosen = with_settings(job, symbols=symbols, timeframe=made.timeframe)
        folder = folder_of(chosen, path, scratch=scratch, files=files)
    return JobData(plan=made, parts={symbol: folder.parts(symbol) for symbol in folder.symbols})


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

    Each column of `data` adds 8 B to the 48. `rows` are the symbol's in its files: a row is there as read and as numbers. Of
    the bars that are used of them there are besides: inputs, and those of training again while the scaler is fitted; candles,
    and what their hash is made of; and of each fold labels, window starts and what they were chosen by.
    Measured beside it, a million bars of one file: 0.42 GiB for 0.53 with one fold, 0.61 for 0.62 with four (2026-11-21).
    """
    row_bytes = (_CELLS + len(data.columns)) * _CELL_BYTES
    a_bar = 2 * len(data.inputs) * 4 + 2 * row_bytes + folds * 32
    return (_PIECE_BYTES + 2 * rows * row_bytes + bars * a_bar) / GIB


def read_source(symbol: str, job: Job, data: JobData, *, code_sha256: str) -> Source:
    """Read and prepare one symbol, on the CPU. Raises DataError when its bars are not those of the plan."""
    entry, settings = data.of(symbol), job.data
    candles = read_parts(symbol, data.plan.timeframe, data.parts[symbol], bars=settings.bars, columns=settings.columns)
    return Source(
        symbol=symbol,
        folds=prepare_folds(candles, job, plans_of(candles, job, entry)),
        data={
            "files": [{"file": file.file, "sha256": file.sha256} for file in data.plan.files if file.file in entry.files],
            "bars": entry.bars,
            "first": entry.first,
            "last": entry.last,
            "holes": entry.num_holes,
            "synthetic": data.plan.synthetic,
        },
        mark=mark_of(entry, job, code_sha256=code_sha256),
    )


def mark_of(entry: SymbolPlan, job: Job, *, code_sha256: str) -> str:
    """Return what a model of the symbol, and its checkpoints, belong to. It takes no bars: the plan has their hash."""
    return fingerprint(job, data={entry.symbol: entry.mark}, code_sha256=code_sha256)


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
