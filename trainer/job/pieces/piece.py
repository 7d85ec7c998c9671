"""A piece: one model of a job by its name, the series that it trains on, and its cost. Standard
library only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainer.job.job import Job
from trainer.job.model_names import TRIAL, ModelName, label
from trainer.job.search import Values, shape_of
from trainer.job.trials import TrialEnd


@dataclass(frozen=True, kw_only=True)
class SeriesWork:
    """One symbol's series, with the values that pieces are planned by. Tuples have one item per fold, oldest
    first.
    """

    symbol: str
    bars: int
    windows: tuple[int, ...]  # of training, an epoch
    visits: tuple[float, ...]  # per epoch: windows of training, plus scored ones at their share
    memory_gib: float = 0.0  # of host memory that reading it takes; an estimate
    once_gib: float = 0.0  # the part of it that does not grow with the number of series
    refit: float = 0.0  # windows that an epoch of a refit visits: all with a label


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One piece of a job: the unit of the queue, of checkpoints and of model files."""

    name: str  # of the model: its file's, and the last part of its key
    title: str  # its label, unique in the run
    kind: str  # a name of KINDS
    series: tuple[str, ...]  # symbols, in the order in which their bars are laid end to end
    source: str  # pieces of one source share their rows, so a worker keeps them for the next piece
    estimate: float  # windows to visit: orders the queue, and determines the price
    bars: int = 0  # of all its series
    windows: int = 0  # of training, an epoch
    memory_gib: float = 0.0  # of host memory that reading its series takes
    fold: int = 1  # of the job's, oldest first
    seed: int = 0
    draws: str = ""  # the name that, with the seed, determines its random numbers; empty: its own
    threads: int = 1  # to train with on a CPU; `train.workers.station.threads_of`
    members: int = 1  # networks, with consecutive seeds from `seed` on, whose mean it forecasts
    tried: int = 1  # models of its run: all that were scored on test, and every trial of a search
    trial: int = 0  # its number in the study of a model, from 1 on; 0: it is that model
    study: str = ""  # the name of the model that its search is for; empty: a script's, or no search
    values: Values = ()  # of a trial, the model that won, a script's piece; (): none, or not known yet
    trials: tuple[TrialEnd, ...] = ()  # of a study whose model may begin, the best first
    refit: bool = False  # whether it is trained again on all bars once it is scored

    @property
    def shape(self) -> str:
        """Return what it shares with the others of its pack; '' outside a search."""
        return shape_of(self.values) if self.study else ""

    @property
    def identity(self) -> dict[str, Any]:
        """Return the fields of events about this piece."""
        return {"model": self.name, "piece": self.title, "fold": self.fold, "seed": self.seed}

    @property
    def description(self) -> dict[str, Any]:
        """Return the identity with kind and series."""
        return {**self.identity, "kind": self.kind, "series": list(self.series)}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of piece: a test for its jobs, and a function that makes their pieces."""

    name: str
    takes: Callable[[Job], bool]
    # of the job, its series, their timeframe
    pieces: Callable[[Job, Sequence[SeriesWork], str], tuple[Piece, ...]]
    each: str = "symbols"  # the label of its unit
    command: str = "train"  # that makes its pieces on a machine
    untimed: str = "the machine tries your own model first"  # why a plan may not know its times
    reads_candles: bool = True  # of a data set, which a retrain may have to prepare
    # all devices of the machine train a piece together, one rank each (`trainer.train.ranks`)
    all_devices: bool = False
    # the series are split at the same instants: a model that sees several must not know one's future
    one_split: bool = False


def models_of(
    job: Job,
    series: Sequence[SeriesWork],
    *,
    kind: str,
    stem: str,
    timeframe: str,
    source_by_fold: bool = False,
) -> list[Piece]:
    """Return a piece for each fold and seed of the job, all on these series. `stem` replaces the symbol in
    their names; they have one source, or with `source_by_fold` one for each fold.
    """
    several = job.data.folds * job.train.models_of_a_fold
    grows = sum(one.memory_gib - one.once_gib for one in series)
    made = []
    for fold in range(1, job.data.folds + 1):
        for seed in range(job.train.seed, job.train.seed + job.train.models_of_a_fold):
            numbers = {"fold": fold, "seed": seed} if several > 1 else {}
            family, target = job.model.name, job.target.name
            name = ModelName(family=family, target=target, symbol=stem, timeframe=timeframe, **numbers)
            piece = Piece(
                name=str(name),
                title=label(stem, fold=fold, seed=seed, models_per_symbol=several),
                kind=kind,
                series=tuple(one.symbol for one in series),
                source=f"{stem} f{fold}" if source_by_fold else stem,
                estimate=job.train.members * job.train.epochs * _visits(job, series, fold - 1),
                bars=sum(one.bars for one in series),
                windows=sum(one.windows[fold - 1] for one in series),
                memory_gib=grows + max(one.once_gib for one in series),
                fold=fold,
                seed=seed,
                draws=name.draws,
                members=job.train.members,
            )
            trials = _trials(job, piece)
            if job.train.refit and fold == job.data.folds:  # earlier folds only test the method
                visits = _most(job, sum(one.refit for one in series))
                piece = replace(
                    piece,
                    refit=True,
                    estimate=piece.estimate + job.train.members * job.train.epochs * visits,
                )
            made += [replace(piece, study=piece.name), *trials] if trials else [piece]
    return made


def _trials(job: Job, piece: Piece) -> list[Piece]:
    """Return the trials of a piece's search: one network each, with the piece's first seed and its draws, so
    that the best of them is the piece's own first network.
    """
    if not job.search.over:
        return []
    known: Any = {"study": piece.name, "kind": TRIAL, "members": 1}
    known["estimate"] = piece.estimate / piece.members
    return [
        replace(
            piece,
            name=f"{piece.name}_t{number}",
            title=f"{piece.title} t{number}",
            trial=number,
            values=values,
            **known,
        )
        for number, values in enumerate(job.search.trial_values, 1)
    ]


def _visits(job: Job, series: Sequence[SeriesWork], fold: int) -> float:
    """Return the windows that an epoch visits: of training as many as its steps take, and those scored."""
    windows, visits = sum(one.windows[fold] for one in series), sum(one.visits[fold] for one in series)
    return visits - windows + _most(job, windows)


def _most(job: Job, windows: float) -> float:
    """Return the windows of training that an epoch may visit, by its steps, at their cost."""
    reads = int(-(-windows // job.model.bars_out))
    visited = min(windows, job.reads_of_epoch(reads) * job.model.bars_out)
    return visited * job.cost_of_read
