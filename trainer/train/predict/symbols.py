"""Predict with stored models for the bars of a file or folder. On a model's test bars, and on the kind of CPU
that trained it, the predictions are those that its card was scored from: features are computed from the
candles and go through `readers`, as in training.

Each symbol's candles are read once, features of many short series are computed in one pass, and models of one
shape share one network, so that each further symbol takes a few milliseconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import nn

from trainer.bars.series_plan import clear_of_holes
from trainer.base.errors import DataError, TrainerError, UsageError, nearest
from trainer.base.files import HeldFolder
from trainer.base.settings import WINDOWS
from trainer.base.text import some_of
from trainer.data.calendar import holes
from trainer.data.context import context_of
from trainer.data.features import compute_each
from trainer.data.read.candles import Candles
from trainer.data.read.reading import CandleFolder
from trainer.data.read.refusals import OtherTimeframe
from trainer.data.timeframes import step_of
from trainer.models import home_of, reads_of
from trainer.store.card import CardSeries
from trainer.train.cpu import keep_freed_memory, use_one_thread
from trainer.train.predict.load_model import CheckedModel, Networks, check_model, without_unit
from trainer.train.predict.panels import predict_panels
from trainer.train.predict.predictions import BarOutputs, NotPredicted, Predictions
from trainer.train.predict.readers import EVALUATION_BATCH, EVALUATION_CHUNK, Inputs, Reader, reader_of

# Windows: 0.8 and 1.7 ms, and 19 ms for EVALUATION_BATCH (LSTM, hidden 64, 2026-11-22)
SMALL_BATCHES = (4, 16)
TRIAL_WINDOWS = 64  # that are compared in small batches and in a full one
MOST_ROWS = 1 << 16  # whose features are computed in one pass
MOST_NAMED = 6  # models or symbols, in a message

__all__ = ["NotPredicted", "Predictions", "predict_models"]


@dataclass(frozen=True, kw_only=True)
class PredictionTask:
    """One series of a model, and the bars to predict."""

    model: CheckedModel
    series: CardSeries
    candles: Candles
    warmup: int
    bars: np.ndarray  # (N,) int64 rows of `candles`, ascending, never empty

    @cached_property
    def first_row(self) -> int:
        """Return the first row of the candles that is needed: warm-up and lookback before the first bar.

        Chunks start on the grid of training, so that their sums agree to the last digit.
        """
        first = int(self.bars[0]) - self.model.card.lookback + 1 - self.warmup
        return first if self.reads == WINDOWS else first // EVALUATION_CHUNK * EVALUATION_CHUNK

    @property
    def reads(self) -> str:
        return reads_of(self.model.card.family, self.model.card.architecture)


def predict_models(
    paths: Sequence[Path],
    data: Path,
    *,
    symbols: Sequence[str] = (),
    last: int | None = None,
    own_files: Sequence[Path] = (),
    held: float | None = None,
    note: Callable[[str], None] = lambda line: None,
) -> Iterator[Predictions | NotPredicted]:
    """Predict at every bar (or the last `last` of each symbol) that has enough bars before it.

    `paths` are model files of one target; `symbols` limits the symbols (none: all). `own_files` are the
    Python files of a user's own models and features, since a card runs no code. `held`, a share of the money,
    is what an account holds: agents then say what to hold next. A bar needs warm-up + lookback bars before it
    without a hole. Yields by symbol, then in the order of `paths`; a model or symbol that fails is yielded as
    NotPredicted. `note` receives each remark on how the files were read, such as resampled bars, once. Uses
    one thread, as training did, so that sums are the same.

    Raises DataError for data that can't be read or has another timeframe, UsageError for symbols that no
    model knows and for models of several targets.
    """
    use_one_thread()
    keep_freed_memory()
    checked: list[CheckedModel] = []
    for path in paths:
        try:
            model = check_model(path, own_files)
            if held is not None:
                model.target.check_held(held)
            checked.append(model)
            if model.card.knows_later_bars:
                of = f"fold {model.card.fold} of {model.card.folds}, k-fold"
                note(
                    f"{model.name} was trained on bars after its test span ({of}): forecasts before"
                    f" {model.card.trained_until} are of bars that it knows"
                )
        except TrainerError as error:
            yield NotPredicted(model=path.stem, symbol="", error=error)
    _refuse_several_targets(checked)
    wanted = wanted_symbols(checked, symbols)
    groups = defaultdict[tuple[str, tuple[str, ...], tuple[str, ...]], list[CheckedModel]](list)
    for model in checked:
        columns = (*model.card.told_columns, *model.card.columns)
        own = (model.own_features.code,) if model.own_features else ()
        groups[model.card.timeframe, columns, (*model.features, *own)].append(model)
    running = _Running(held=held)
    noted: list[str] = []
    for models in groups.values():
        single = [model for model in models if model.card.panel is None]
        panels = [model for model in models if model.card.panel is not None]
        lines: tuple[str, ...] = ()
        if single:
            lines += yield from _predict_group(single, data, wanted=wanted, last=last, running=running)
        if panels:
            lines += yield from _predict_panels(panels, data, wanted=wanted, last=last, running=running)
        for line in lines:
            if line not in noted:
                note(line)
                noted.append(line)


def outputs_at(model: CheckedModel, candles: Candles, bars: np.ndarray) -> BarOutputs:
    """Return a model's outputs at those of the rows `bars` (N,) of a symbol's candles at which it can
    forecast.

    Raises DataError for a symbol that the model was not trained on.
    """
    if candles.symbol not in model.card.symbols:
        why, do = f"{model.name} was trained on others", "Leave the symbol out, or name a model of it."
        raise DataError(f"no model of {candles.symbol}", why=why, do=do)
    series = model.card.of(candles.symbol)
    warmup = model.warmup(candles)
    whole = model.target.with_unit(candles, _whole_bars(candles, model, series, warmup=warmup))
    chosen = np.intersect1d(bars, whole, assume_unique=True)
    outputs_NO = np.empty((0, 1))
    if len(chosen):
        task = PredictionTask(model=model, series=series, candles=candles, warmup=warmup, bars=chosen)
        (rows_TF,) = compute_each(
            [candles.rows(task.first_row)], features=model.features, own=model.own_features
        )
        outputs_NO = _reader(task, rows_TF).outputs(Networks().of(model), chosen - task.first_row)
    return BarOutputs(bars=chosen, outputs_NO=outputs_NO, fitted=series.fitted)


def inputs_of(
    tasks: Sequence[PredictionTask],
) -> Iterator[tuple[PredictionTask, torch.Tensor | TrainerError]]:
    """Yield tasks that read the same inputs, each with those of its rows (T, F); or with its error, where
    features of longer bars, or of the user's, can't be computed of its bars.
    """
    parts = [task.candles.rows(task.first_row) for task in tasks]
    each: Iterator[torch.Tensor] | None = None
    for number, task in enumerate(tasks):
        model = task.model
        each = each or compute_each(parts[number:], features=model.features, own=model.own_features)
        rows_TF: torch.Tensor | TrainerError
        try:
            rows_TF = next(each)
        except TrainerError as error:  # which ends the iterator
            rows_TF, each = error, None
        yield task, rows_TF


def _predict_panels(
    models: Sequence[CheckedModel], data: Path, *, wanted: Sequence[str], last: int | None, running: _Running
) -> Generator[Predictions | NotPredicted, None, tuple[str, ...]]:
    """Predict with panels that read the same inputs; return the notes on their files."""
    with HeldFolder("candles") as scratch:
        folder = open_candles_of(models, data, Path(scratch))
        yield from predict_panels(models, folder, data, wanted=wanted, last=last, networks=running.networks)
        return folder.notes


def open_candles_of(
    models: Sequence[CheckedModel], data: Path, scratch: Path, *, symbols: Sequence[str] = ()
) -> CandleFolder:
    """Return the candles that models read. Raises DataError for candles of another timeframe."""
    card = models[0].card
    columns = [*card.told_columns, *card.columns]
    try:
        return CandleFolder(data, scratch, symbols=symbols, timeframe=card.timeframe, columns=columns)
    except OtherTimeframe as error:
        what = f"{_trained(models)} trained on bars of {card.timeframe}"
        raise DataError(
            what, why=f"{error.what}, {error.why}", do=f"Give --data with candles of {card.timeframe}."
        ) from error


def _predict_group(
    models: Sequence[CheckedModel], data: Path, *, wanted: Sequence[str], last: int | None, running: _Running
) -> Generator[Predictions | NotPredicted, None, tuple[str, ...]]:
    """Predict with models that read the same inputs of the same bars; return the notes on their files."""
    by_symbol = defaultdict[str, list[CheckedModel]](list)
    for model in models:
        for symbol in model.card.symbols:
            if not wanted or symbol in wanted:
                by_symbol[symbol].append(model)
    with HeldFolder("candles") as scratch:
        only = tuple(by_symbol) if len(by_symbol) == 1 else ()  # one symbol: no other is split off its file
        folder = open_candles_of(models, data, Path(scratch), symbols=only)
        tasks: list[PredictionTask] = []
        for symbol in sorted(by_symbol):
            absent = symbol not in folder.symbols
            try:
                if absent:
                    do = "Add its candles, or leave it out with --symbols."
                    raise DataError(f"{data} holds no bars of {symbol}", do=do)
                candles = folder.read(symbol)
            except TrainerError as error:
                for model in by_symbol[symbol]:
                    yield NotPredicted(model=model.name, symbol=symbol, error=error, absent=absent)
                continue
            for model in by_symbol[symbol]:
                try:
                    tasks.append(task_of(model, candles, data, last=last))
                except TrainerError as error:
                    yield NotPredicted(model=model.name, symbol=symbol, error=error)
            if sum(len(task.candles) - task.first_row for task in tasks) >= MOST_ROWS:
                yield from running.run(tasks)
                tasks = []
        yield from running.run(tasks)
        return folder.notes_of(by_symbol.keys() & set(folder.symbols))


@dataclass
class _Running:
    """Networks by shape, and whether a small batch gives the digits of a full one, by shape and size."""

    networks: Networks = field(default_factory=Networks)
    is_exact: dict[tuple[str, int], bool] = field(default_factory=dict)
    held: float | None = None

    def run(self, tasks: Sequence[PredictionTask]) -> Iterator[Predictions | NotPredicted]:
        """Predict the bars of tasks that read the same inputs."""
        for task, rows_TF in inputs_of(tasks):
            card, symbol = task.model.card, task.series.symbol
            try:
                if isinstance(rows_TF, TrainerError):
                    raise rows_TF
                network = self.networks.of(task.model)
                outputs_NO = self._outputs(task, network, rows_TF)
                columns = self._columns(task, outputs_NO)
            except TrainerError as error:
                yield NotPredicted(model=task.model.name, symbol=symbol, error=error)
                continue
            bar = task.candles.timestamp[task.bars]
            # An event bar has its last trade's time, which is its end.
            available_at = bar + step_of(card.timeframe)
            yield Predictions(
                model=task.model.name,
                symbol=symbol,
                bar=bar,
                available_at=available_at,
                columns=columns,
                synthetic=bool(card.data.get("synthetic")),
            )

    def _columns(self, task: PredictionTask, outputs_NO: np.ndarray) -> dict[str, np.ndarray]:
        target = task.model.target
        columns = target.columns(outputs_NO, task.candles, task.bars, task.series.fitted)
        return columns if self.held is None else target.columns_of_held(columns, self.held)

    def _outputs(self, task: PredictionTask, network: nn.Module, rows_TF: torch.Tensor) -> np.ndarray:
        """Return the outputs (N, O). A few windows run in a small batch if that gives the digits of a full
        one.
        """
        bars = task.bars - task.first_row
        small = next((size for size in SMALL_BATCHES if len(bars) <= size), 0)
        may_be_small = small and task.reads == WINDOWS and task.model.shape
        if may_be_small and self._same_digits(task.model, network, small):
            return _reader(task, rows_TF, batch=small).outputs(network, bars)
        return _reader(task, rows_TF).outputs(network, bars)

    def _same_digits(self, model: CheckedModel, network: nn.Module, small: int) -> bool:
        """Return whether small batches give the digits of a full one, by a trial on random windows, once for
        each shape.

        On many windows: with some shapes only a few of them differ.
        """
        key = model.shape, small
        if key not in self.is_exact:
            seen, features = model.card.lookback, len(model.card.features)
            shape = EVALUATION_BATCH + seen - 1, features
            rows_TF = torch.randn(shape, generator=torch.Generator().manual_seed(0))
            inputs = Inputs(rows_TF=rows_TF, mean_F=torch.zeros(features), std_F=torch.ones(features))
            bars = np.arange(EVALUATION_BATCH) + seen - 1
            full, few = (
                reader_of(WINDOWS, inputs, bars_seen=seen, first_bar=seen - 1, batch=batch)
                for batch in (EVALUATION_BATCH, small)
            )
            few_NO = few.outputs(network, bars[:TRIAL_WINDOWS])
            self.is_exact[key] = np.array_equal(few_NO, full.outputs(network, bars)[:TRIAL_WINDOWS])
        return self.is_exact[key]


def _reader(task: PredictionTask, rows_TF: torch.Tensor, *, batch: int = EVALUATION_BATCH) -> Reader:
    scaler, seen = task.series.scaler, task.model.card.lookback
    inputs = Inputs(
        rows_TF=rows_TF,
        mean_F=torch.tensor(scaler["mean"]),
        std_F=torch.tensor(scaler["std"]),
        limit=scaler["limit"],
        context_TC=context_of_task(task, len(rows_TF)),
    )
    return reader_of(task.reads, inputs, bars_seen=seen, first_bar=task.warmup + seen - 1, batch=batch)


def context_of_task(task: PredictionTask, num_rows: int) -> torch.Tensor | None:
    """Return the context of the rows that a task reads, for a model that reads it."""
    card = task.model.card
    if not home_of(card.family).reads_context:
        return None
    timestamp = task.candles.timestamp[task.first_row : task.first_row + num_rows]
    number = card.symbols.index(task.series.symbol) + 1
    return torch.from_numpy(context_of(timestamp, card.timeframe, series=number))


def task_of(model: CheckedModel, candles: Candles, data: Path, *, last: int | None) -> PredictionTask:
    """Return a symbol's bars to predict. Raises DataError if no bar has enough bars before it."""
    series, card = model.card.of(candles.symbol), model.card
    warmup = model.warmup(candles)
    whole = _whole_bars(candles, model, series, warmup=warmup)
    bars = model.target.with_unit(candles, whole)
    if last is not None:
        bars = bars[max(0, len(bars) - last) :]
    if not len(bars):
        if len(whole):
            raise without_unit(model, candles)
        needed = f"{warmup + card.lookback} bars of {series.symbol}, the last {card.lookback} without a hole"
        raise DataError(
            f"no bar of {data} has enough bars before it",
            why=f"a prediction needs {needed}; there are {len(candles)}",
            do="Give more bars.",
        )
    return PredictionTask(model=model, series=series, candles=candles, warmup=warmup, bars=bars)


def _whole_bars(candles: Candles, model: CheckedModel, series: CardSeries, *, warmup: int) -> np.ndarray:
    """Return the bars (N,) int64 whose inputs are complete and without a hole, as in training, but with or
    without a label.
    """
    lookback, reach = model.card.lookback, model.target.reach
    hole = holes(candles.timestamp, candles.timeframe, series.calendar)
    bars = np.arange(max(warmup + lookback - 1, reach), len(candles), dtype=np.int64)
    return np.asarray(bars[clear_of_holes(hole, bars - max(lookback - 1, reach), bars)])


def wanted_symbols(models: Sequence[CheckedModel], symbols: Sequence[str]) -> tuple[str, ...]:
    """Return the symbols to predict (none: all). Raises UsageError for one that no model knows; a panel's
    takes any.
    """
    known = {symbol for model in models for symbol in model.card.symbols}
    takes_any = any(model.card.panel for model in models)
    for symbol in symbols if known and not takes_any else ():
        if symbol not in known:
            why = f"{_trained(models)} trained on {some_of(sorted(known), MOST_NAMED)}"
            raise UsageError(
                f"no model of {symbol}", why=why, do=nearest(symbol, known) or "Choose one of these."
            )
    return tuple(symbols)


def _refuse_several_targets(models: Sequence[CheckedModel]) -> None:
    targets = sorted({model.target.name for model in models})
    if len(targets) > 1:
        why = "their predictions have different columns"
        raise UsageError(
            f"these models forecast {', '.join(targets)}",
            why=why,
            do="Predict with those of one target at a time.",
        )


def _trained(models: Sequence[CheckedModel]) -> str:
    return f"{some_of([model.name for model in models], MOST_NAMED)} {'was' if len(models) == 1 else 'were'}"
