"""Sources: data that pieces share and a worker reads once: rows and labels, and each fold's scaler and
windows.

A worker that trains folds and seeds of one symbol together holds its rows once. A source is always prepared
on the CPU and moved to the device when its model joins, so that its content does not depend on the device or
on staging.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from trainer.bars.document import DataPlan, SymbolPlan
from trainer.bars.job_plan import folder_of, folds_of, plan_data, plans_of, refuse_other_bars
from trainer.bars.series_plan import on_all_bars
from trainer.base.code_files import training_sha256
from trainer.base.errors import DataError
from trainer.base.freed_memory import LARGE_BARS, release_freed_memory
from trainer.base.settings import CHUNKS
from trainer.base.text import counted
from trainer.data.read.candles import Candles
from trainer.data.read.parts import Part
from trainer.data.read.reading import CandleFolder, read_parts
from trainer.data.read.side import SideSeries
from trainer.job.job import Job
from trainer.job.pieces import kind_of
from trainer.job.pieces.piece import Piece
from trainer.job.search import job_of
from trainer.machines.host_memory import rows_gib, rows_on_disk
from trainer.targets.target import BARS, CLOCK
from trainer.train.checkpoint import made_by
from trainer.train.checkpoint_files import Made
from trainer.train.evaluate.evaluation import Baselines
from trainer.train.evaluate.panel_scores import panel_baselines
from trainer.train.inputs.arriving import ArrivingCandles, by_symbol
from trainer.train.inputs.panel_rows import read_panel
from trainer.train.inputs.rows import SymbolData, inputs_of, prepare, prepare_folds
from trainer.train.inputs.series import PieceData, alone, lay

MOST_OPENED = 8  # symbols that need a file, on average, if it is opened for each of them alone


@dataclass(frozen=True, kw_only=True)
class JobData:
    """The data of a job on this machine: its plan, and the files with each symbol's bars. Workers get
    a copy.
    """

    plan: DataPlan
    code_sha256: str  # of what trains on it: hashed once, and not by each process
    parts: Mapping[str, tuple[Part, ...]]  # {} while they arrive
    sides: tuple[SideSeries, ...] = ()
    arriving: ArrivingCandles | None = None
    folder: Path | None = None  # of rows that stay on the disk
    host_gib: float = math.inf
    workers: int = 1  # that share the host's memory

    def rows_folder(self, piece: Piece, job: Job) -> Path | None:
        """Return the folder of a piece's rows if they stay on the disk, else None."""
        on_disk = rows_on_disk(job, bars=piece.bars, host_gib=self.host_gib, workers=self.workers)
        return self.folder if on_disk else None

    def with_room(self, *, folder: Path, host_gib: float, workers: int) -> JobData:
        """Return the data with the host's memory, and the folder of rows that are too large for it."""
        return replace(self, folder=folder, host_gib=host_gib, workers=workers)

    def notes(self, pieces: Sequence[Piece], job: Job) -> list[str]:
        """Return notes on pieces whose rows stay on the disk."""
        large = [piece for piece in pieces if self.rows_folder(piece, job)]
        if not large:
            return []
        gib = max(rows_gib(job, bars=piece.bars) for piece in large)
        return [f"rows of {counted(len(large), 'model')} stay on the disk, up to {gib:.1f} GiB each"]

    def of(self, symbol: str) -> SymbolPlan:
        """Return the plan of a symbol. Raises the DataError with which planning refused it."""
        if symbol in self.plan.refused:
            raise self.plan.refused[symbol].error
        return self.plan.symbols[symbol]

    def has(self, piece: Piece) -> bool:
        """Return whether the files of a piece's series are there, or will never be: then reading it says
        why.
        """
        if self.arriving is None:
            return True
        with suppress(DataError):
            return all(self.arriving.is_there(self.of(symbol).files) for symbol in piece.series)
        return True

    def read(self, symbol: str, job: Job) -> Candles:
        """Return the candles of a symbol that the job uses, once its files are there. Raises DataError."""
        timeframe, data, sides = self.plan.timeframe, job.data, self.sides
        if self.arriving is None:
            parts = self.parts[symbol]
        else:
            parts, sides = self.arriving.opened(symbol, self.of(symbol).files, job, timeframe)
        return read_parts(symbol, timeframe, parts, bars=data.bars, columns=data.columns, sides=sides)


def open_data(
    job: Job,
    path: Path,
    *,
    scratch: Path,
    plan: DataPlan,
    arriving: Path | None = None,
    together: bool = False,
) -> JobData:
    """Return the job's data as it was planned; files of many symbols are split into `scratch`. `arriving`:
    the document about files that are not there yet. They are waited for when a model needs them; here, if a
    model needs all of them, most models need many (an index), or processes train one model `together`.

    Raises DataError if the files or the plan do not fit the job.
    """
    plan.check_fits(job)
    files = {file.file for file in plan.files}
    if arriving is not None and arriving.exists():
        coming = ArrivingCandles(folder=path, document=arriving, scratch=scratch)
        needed = sum(len(entry.files) for entry in plan.symbols.values())  # each is opened for each symbol
        if not (together or kind_of(job).one_split or needed > MOST_OPENED * len(files)) and by_symbol(files):
            return JobData(plan=plan, code_sha256=code_sha256(job), parts={}, arriving=coming)
        coming.wait(files)
    symbols = job.data.chosen((*plan.symbols, *plan.refused))
    chosen = job.with_data(symbols=symbols, timeframe=plan.timeframe)
    return _data_of(plan, job, folder_of(chosen, path, scratch=scratch, files=files))


def plan_and_open(job: Job, path: Path, *, scratch: Path) -> JobData:
    """Plan the job's data and return it; as `open_data`."""
    folder = folder_of(job, path, scratch=scratch)
    return _data_of(plan_data(job, folder), job, folder)


def _data_of(plan: DataPlan, job: Job, folder: CandleFolder) -> JobData:
    parts = {symbol: folder.parts(symbol) for symbol in folder.symbols}
    return JobData(plan=plan, code_sha256=code_sha256(job), parts=parts, sides=folder.sides)


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The bars of a model's series, by its plan."""

    entries: tuple[SymbolPlan, ...]  # of the series, in their order
    files: tuple[Mapping[str, str], ...]
    timeframe: str
    synthetic: bool
    origins: tuple[str, ...]  # of fetched files
    made: Made  # what a finished model and its checkpoints must share, but for the precision


@dataclass(frozen=True, kw_only=True)
class Source:
    """Data of all pieces of one source: each fold's training data, and its description for their cards.

    Folds of one series share one `rows_TF`. A source of several series holds only one fold, since its rows
    are scaled by the fold's scaler.
    """

    name: str  # `Piece.source`
    folds: Mapping[int, PieceData]  # from 1 on
    origin: Origin
    _baselines: dict[int, list[Baselines]] = field(default_factory=dict, repr=False)
    # Those of all folds, where a helper of the worker computes them.
    foreseen: Future[Mapping[int, list[Baselines]]] | None = field(default=None, repr=False)

    def baselines(self, fold: int) -> list[Baselines]:
        """Return the baselines' forecasts in the test span of a fold, by series; computed once for all its
        seeds.
        """
        if self.foreseen is not None:
            return self.foreseen.result()[fold]
        if fold not in self._baselines:
            data = self.folds[fold]
            if data.panel:
                self._baselines[fold] = panel_baselines(data)
            else:
                self._baselines[fold] = [one.target.baselines(one.scored("test")) for one in data.series]
        return self._baselines[fold]

    def bare(self, fold: int) -> Source:
        """Return what the scores of one fold need besides its baselines: all but the rows, on the CPU."""
        folds = {fold: self.folds[fold].without_rows()}
        return replace(self, folds=folds, foreseen=None, _baselines={})

    def with_baselines(self, fold: int, baselines: list[Baselines]) -> Source:
        """Return the source with known baselines of a fold."""
        return replace(self, foreseen=None, _baselines={**self._baselines, fold: baselines})


def read_source(piece: Piece, job: Job, data: JobData, *, refit: bool = False, whole: bool = True) -> Source:
    """Read and prepare the source of a piece, or of its `refit`, on the CPU. Without `whole` its candles have
    only what its target's scores need. Raises DataError if its bars are not those of the plan.

    A large series takes at its peak its bars and 1.2 times its rows (see `machines.host_memory`).
    """
    closes = not whole and BARS not in job.target.scores_read
    clock = not closes or CLOCK in job.target.scores_read
    entries, folder = tuple(data.of(symbol) for symbol in piece.series), data.rows_folder(piece, job)

    def fold_of(entry: SymbolPlan, number: int) -> SymbolData:
        candles = data.read(entry.symbol, job)
        return _fold_of(candles, job, entry, piece.fold, series=number, refit=refit, folder=folder)

    if len(entries) == 1 and not job.data.panel and not refit:
        candles = data.read(piece.series[0], job)
        refuse_other_bars(candles, entries[0])
        rows_TF = inputs_of(candles, job, folder)  # before its windows: most of the prices go after it
        if closes and not candles.columns:
            candles = candles.closes()
        plans = [plan.to_train(clock=clock) for plan in folds_of(candles, job, entries[0])]
        prepared = prepare_folds(candles, job, plans, rows_TF)
        folds = {fold: alone(one) for fold, one in enumerate(prepared, 1)}
    elif job.data.panel:
        panel = {symbol: data.read(symbol, job) for symbol in piece.series}
        folds = {piece.fold: read_panel(panel, job, entries, piece.fold, refit=refit)}
    elif len(entries) == 1:
        folds = {piece.fold: alone(fold_of(entries[0], 1))}
    else:
        parts = (fold_of(entry, number) for number, entry in enumerate(entries, 1))
        # A chunk that starts in a series may extend this far beyond it.
        padding = job.model.bars_out if job.model.reads == CHUNKS else 0
        rows = [entry.bars for entry in entries]
        folds = {piece.fold: lay(parts, rows=rows, padding=padding, folder=folder)}
    if closes:
        folds = {fold: one.with_closes(clock=clock) for fold, one in folds.items()}
    if sum(entry.bars for entry in entries) >= LARGE_BARS:
        release_freed_memory()
    name = f"{piece.source} refit f{piece.fold}" if refit else piece.source
    return Source(name=name, folds=folds, origin=origin_of(piece, job, data))


def origin_of(piece: Piece, job: Job, data: JobData) -> Origin:
    """Return where a piece's bars come from. Raises the DataError with which planning refused one of its
    series.
    """
    entries = tuple(data.of(symbol) for symbol in piece.series)
    read = {name for entry in entries for name in entry.files}
    return Origin(
        entries=entries,
        files=tuple(
            {"file": file.file, "sha256": file.sha256} for file in data.plan.files if file.file in read
        ),
        timeframe=data.plan.timeframe,
        synthetic=data.plan.synthetic,
        origins=data.plan.origins,
        made=made_of(piece, job, data),
    )


def _fold_of(
    candles: Candles, job: Job, entry: SymbolPlan, fold: int, *, series: int, refit: bool, folder: Path | None
) -> SymbolData:
    plan = plans_of(candles, job, entry)[fold - 1]
    plan = on_all_bars(plan, job.model) if refit else plan
    return prepare(candles, job, plan=plan, series=series, folder=folder)


def made_of(piece: Piece, job: Job, data: JobData, *, precision: str = "") -> Made:
    """Return what a piece's model and checkpoints must share. Reads no bars: their hashes are in the plan.

    Raises the DataError with which planning refused one of its series.
    """
    marks, job = {symbol: data.of(symbol).mark for symbol in piece.series}, job_of(job, piece.values)
    return made_by(job, data=marks, code_sha256=data.code_sha256, precision=precision)


def source_of(source: Source, piece: Piece, job: Job, data: JobData) -> Source:
    """Return a source as a piece has it: trials that share its rows are not made of the same settings."""
    if not piece.values:
        return source
    return replace(source, origin=replace(source.origin, made=made_of(piece, job, data)))


def code_sha256(job: Job) -> str:
    """Return the hash of the code that trains the job's models."""
    return training_sha256((type(job.model).__module__, type(job.target).__module__))


def on_device(source: Source, device: str) -> Source:
    """Return the source with its tensors on a device, shared ones copied once; the same source for "cpu"."""
    if device == "cpu":
        return source
    moved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by id; keeping the tensor keeps its id unique

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in moved:
                moved[id(value)] = (value, value.to(device))
            return moved[id(value)][1]
        if isinstance(value, dict):
            return {name: move(part) for name, part in value.items()}
        return value

    return replace(source, folds={fold: data.moved(move) for fold, data in source.folds.items()})


class SourceCache:
    """Keeps the last source of a worker, which the next piece often needs."""

    def __init__(self) -> None:
        self._last: Source | None = None

    @property
    def last(self) -> str:
        """Return the name of the source that it keeps, or ''."""
        last = self._last
        return last.name if last else ""

    def get(self, name: str, in_use: Sequence[Source], read: Callable[[], Source]) -> Source:
        """Return the source of that name: one of `in_use`, the last one, or else the result of `read`."""
        there = [*in_use, self._last] if self._last else [*in_use]
        chosen = next((source for source in there if source.name == name), None)
        if chosen is None:
            # Dropped before the next is read: rows take most of the memory.
            self._last = None
            del there
            chosen = read()
        self._last = chosen
        return chosen
