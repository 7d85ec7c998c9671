"""A stored model in Python: its network with the scaler, its card, and the inputs of bars. In Python:
`trainer.load`.

    model = trainer.load("models/lstm-direction_BTC-USD_1m.safetensors")
    for symbol, bars in model.prepare("candles/", last=1).items():
        print(symbol, bars.forecast(model.module(**bars.inputs)))

Shapes: B windows or chunks, T bars read of each, F features, S scalers, C columns of the context, O outputs.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parametrize

from trainer.base.errors import DataError, TrainerError, UsageError, renaming
from trainer.base.files import HeldFolder
from trainer.base.settings import WINDOWS
from trainer.base.text import some_of
from trainer.data.read.candles import Candles
from trainer.data.read.reading import CandleFolder
from trainer.data.timeframes import step_of
from trainer.models import home_of, reads_of
from trainer.store.card import Card, CardSeries
from trainer.targets.target import TargetSettings
from trainer.train.inputs.rows import context_rows
from trainer.train.predict.load_model import CheckedModel, check_file, network_from, unfit
from trainer.train.predict.panels import common_of, is_in_panel, series_to_predict
from trainer.train.predict.predictions import NotPredicted
from trainer.train.predict.symbols import (
    MOST_NAMED,
    context_of_task,
    inputs_of,
    open_candles_of,
    task_of,
    wanted_symbols,
)

if TYPE_CHECKING:
    import pandas

X, SERIES, CONTEXT_INPUT = "x", "series", "context"  # inputs of a module, and of its ONNX file


class ScaledModel(nn.Module):
    """A network with its scaler: the outputs of bars whose features are not scaled.

    `network` is the plain network, its weight norm multiplied out. The buffers `mean` and `std` (S, F) are
    its scalers, one for each series of the card in its order (of a panel one more, of any other symbol), or
    one if all are equal.
    """

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, network: nn.Module, scalers: Sequence[Mapping[str, Any]], *, windows: bool) -> None:
        super().__init__()
        self.network, self._windows = network, windows
        self.limit = float(scalers[0]["limit"])  # deviations to which scaled features are clamped
        self.register_buffer("mean", torch.tensor([one["mean"] for one in scalers]))
        self.register_buffer("std", torch.tensor([one["std"] for one in scalers]))

    def forward(
        self, x: torch.Tensor, series: torch.Tensor | None = None, context: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the outputs: (B, O) of windows x (B, T, F) float32, or (B, T - reach, O) of chunks.

        `series` (B,) int64 is the row of each one's scaler, needed if there are several; `context` (B, C)
        int64 is that of its last bar, for a transformer (None: unknown).
        """
        mean_B1F, std_B1F = self.mean[:1, None], self.std[:1, None]
        if series is not None:
            mean_B1F, std_B1F = self.mean[series][:, None], self.std[series][:, None]
        scaled_BTF = (x - mean_B1F).div_(std_B1F).clamp_(-self.limit, self.limit)
        named = {} if context is None else {"context_BC": context}
        turned = scaled_BTF.transpose(0, 1) if self._windows else scaled_BTF.transpose(1, 2)
        outputs: torch.Tensor = self.network(turned, **named)
        return outputs


@dataclass(frozen=True, kw_only=True, eq=False)
class PreparedBars:
    """The inputs of a symbol's bars, oldest first. Shapes: N bars to forecast at."""

    symbol: str
    # By the module's arguments: x of N windows, or of one chunk; a view of the bars' features where it can be
    inputs: dict[str, torch.Tensor]
    bar: np.ndarray  # (N,) datetime64[ns] UTC: the start of the last bar that each forecast sees
    available_at: np.ndarray  # (N,) datetime64[ns] UTC: its end
    target: TargetSettings
    candles: Candles
    bars: np.ndarray  # (N,) int64 rows of the candles
    fitted: Mapping[str, Any]
    outputs: int  # numbers that the module gives for each
    places: np.ndarray | None  # (N,) int64: outputs of the chunk that are theirs; None: of windows

    def forecast(
        self, outputs: torch.Tensor | np.ndarray, *, held: float | None = None
    ) -> dict[str, np.ndarray]:
        """Return the target's columns (N,), as `mayfly predict` has them, of the module's outputs for
        `inputs`. `held`: a share of the money that an account holds, of an agent (then of the last bar).

        Raises UsageError for outputs of another shape, and for a share that can't be held.
        """
        made = outputs.detach().cpu().numpy() if isinstance(outputs, torch.Tensor) else np.asarray(outputs)
        bars, wanted = self.bars, (len(self.bars), self.outputs)
        if self.places is not None and made.ndim == 3:
            is_whole = len(made) == 1 and made.shape[1] > self.places[-1]
            made = made[0, self.places] if is_whole else made[:, -1]
        if made.shape != wanted:
            what = f"the outputs are {made.shape}, and those of {self.symbol}'s bars {wanted}"
            raise UsageError(what, do="Give the module's outputs for its inputs.")
        if held is not None:
            self.target.check_held(held)
            made, bars = made[-1:], bars[-1:]
        columns = self.target.columns(made.astype(np.float64), self.candles, bars, self.fitted)
        return columns if held is None else self.target.columns_of_held(columns, held)


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedModel:
    """A model file: the network with its scaler in evaluation mode, and its card."""

    module: ScaledModel
    card: Card
    checked: CheckedModel

    @property
    def reads_windows(self) -> bool:
        """Return whether it reads windows of `card.lookback` bars; else chunks of that many or more."""
        return reads_of(self.card.family, self.card.architecture) == WINDOWS

    @property
    def told(self) -> dict[str, str]:
        """Say what each input is, and the outputs, with shapes."""
        bars = f"{self.card.lookback}" if self.reads_windows else f"{self.card.lookback} or more"
        of_bar = len(self.card.features)
        means = {
            X: f"(batch, {bars}, {of_bar}) float32: the card's features, unscaled, oldest bar first",
            SERIES: "(batch,) int64: the place of each one's series in the card",
            CONTEXT_INPUT: "(batch, 4) int64: series, weekday, month and time of day of the last bar",
        }
        if self.checked.target.has_environment:
            means[X] = f"(batch, 1, {of_bar}) float32: observations of the environment, as it gives them"
        each = "" if self.reads_windows else f"bars after the first {self.card.lookback - 1}, "
        shape = f"(batch, {each}{self.card.architecture['outputs']})"
        outputs = f"{shape} float32: {self.checked.target.outputs_are}"
        return {**{name: means[name] for name in self.input_names}, "outputs": outputs}

    @property
    def input_names(self) -> tuple[str, ...]:
        """Return the arguments of its module that it needs."""
        reads_context = home_of(self.card.family).reads_context
        several = (SERIES,) if len(self.module.mean) > 1 else ()
        return (X, *several, *((CONTEXT_INPUT,) if reads_context else ()))

    def prepare(
        self, bars: pandas.DataFrame | str | Path, *, symbols: Sequence[str] = (), last: int | None = None
    ) -> dict[str, PreparedBars]:
        """Return the inputs at every bar (or the `last` of each symbol) that has enough bars before it.

        `bars` are candles: a file, a folder, or a table with the same columns (a time index counts as one,
        unless a column has its name). A table or file without symbols is of the model's only one, or of the
        one in `symbols`. A panel's model takes any symbol, and needs the bars of all.

        A symbol without bars, or with too few, is a warning; if none is left, or if it was named, its
        DataError is raised. Raises UsageError for symbols that the model does not know, and DataError for an
        agent in an environment of the user's: bars are not what it sees.
        """
        self.checked.check_reads_bars()
        if last is not None and last < 1:
            raise UsageError(f"last is {last}", do="Give 1 or more, or leave it out for every bar.")
        wanted = wanted_symbols([self.checked], symbols)
        with HeldFolder("prepare") as scratch:
            path, names = Path(scratch, "table", "bars.parquet"), dict[str, str]()
            if isinstance(bars, (str, Path)):
                path = Path(bars)
            else:
                _write(bars, path)
                names = {str(path): "the table", path.name: "the table"}  # in errors
            of_one = wanted or (self.card.symbols if len(self.card.symbols) == 1 else ())
            only = () if self.card.panel else of_one
            with renaming(names):
                folder = open_candles_of([self.checked], path, Path(scratch), symbols=only)
                is_panel = self.card.panel is not None
                made = [*(self._panel(folder, wanted, last) if is_panel else self._each(folder, path, last))]
        errors = [one.error for one in made if isinstance(one, NotPredicted)]
        for error in errors:
            error.rename(names)
        prepared = {one.symbol: one for one in made if isinstance(one, PreparedBars)}
        if errors and (wanted or not prepared):
            raise errors[0]
        for error in errors:
            warnings.warn(str(error), stacklevel=2)
        held_by, absent = names.get(str(path), path), {*self.card.symbols} - {*folder.symbols}
        if not prepared:
            raise DataError(f"{held_by} holds no symbol of {self.checked.name}", do="Name one with symbols.")
        if absent and not wanted:
            warnings.warn(f"{held_by} holds no bars of {some_of(sorted(absent), MOST_NAMED)}", stacklevel=2)
        return prepared

    def _each(
        self, folder: CandleFolder, data: Path, last: int | None
    ) -> Iterator[PreparedBars | NotPredicted]:
        """Yield the bars of each symbol by itself."""
        tasks = []
        for symbol in (one for one in folder.symbols if one in self.card.symbols):
            try:
                tasks.append(task_of(self.checked, folder.read(symbol), data, last=last))
            except TrainerError as error:
                yield NotPredicted(model=self.checked.name, symbol=symbol, error=error)
        for task, rows_TF in inputs_of(tasks):
            if isinstance(rows_TF, TrainerError):
                yield NotPredicted(model=self.checked.name, symbol=task.series.symbol, error=rows_TF)
                continue
            yield self._prepared(
                task.candles,
                task.series,
                rows_TF,
                bars=task.bars,
                places=task.bars - task.first_row,
                context_TC=context_of_task(task, len(rows_TF)),
            )

    def _panel(
        self, folder: CandleFolder, wanted: Sequence[str], last: int | None
    ) -> Iterator[PreparedBars | NotPredicted]:
        """Yield the bars of each symbol of a panel: all of them make up the calendar and the ranks."""
        members = [symbol for symbol in folder.symbols if is_in_panel(self.checked, symbol)]
        panel = {symbol: folder.read(symbol) for symbol in members}
        chosen = wanted or tuple(panel)
        each = series_to_predict(self.checked, panel, wanted=chosen, last=last, rows={}) if panel else ()
        for one in each:
            if isinstance(one, NotPredicted):
                yield one
                continue
            has = home_of(self.card.family).reads_context
            yield self._prepared(
                one.candles,
                one.entry,
                one.rows_DF,
                bars=one.bars,
                places=one.places,
                context_TC=context_rows(one.candles, one.place_T, series=one.entry.number) if has else None,
            )

    def _prepared(
        self,
        candles: Candles,
        entry: CardSeries,
        rows_TF: torch.Tensor,
        *,
        bars: np.ndarray,
        places: np.ndarray,
        context_TC: torch.Tensor | None,
    ) -> PreparedBars:
        """Return the inputs at rows `places` (N,) of unscaled features."""
        first = places - self.card.lookback + 1
        if self.reads_windows:
            x_BTF = rows_TF.unfold(0, self.card.lookback, 1).transpose(1, 2)
            one_run = len(first) == first[-1] - first[0] + 1
            x_BTF = x_BTF[first[0] : first[-1] + 1] if one_run else x_BTF[torch.from_numpy(first)]
        else:
            x_BTF = rows_TF[None, first[0] : places[-1] + 1]
        inputs = {X: x_BTF}
        if SERIES in self.input_names:
            inputs[SERIES] = torch.full((len(x_BTF),), self._number(entry.symbol))
        if context_TC is not None:
            inputs[CONTEXT_INPUT] = context_TC[torch.from_numpy(places)].long()
        bar = candles.timestamp[bars]
        return PreparedBars(
            symbol=candles.symbol,
            inputs=inputs,
            bar=bar.astype("datetime64[ns]"),
            available_at=(bar + step_of(self.card.timeframe)).astype("datetime64[ns]"),
            target=self.checked.target,
            candles=candles,
            bars=bars,
            fitted=entry.fitted,
            outputs=self.card.architecture["outputs"],
            places=None if self.reads_windows else places - places[0],
        )

    def _number(self, symbol: str) -> int:
        """Return the row of a symbol's scaler; of a panel the last one for a symbol that it never saw."""
        symbols = self.card.symbols
        return symbols.index(symbol) if symbol in symbols else len(symbols)


def load(path: Path, *, own_files: Sequence[Path] = ()) -> LoadedModel:
    """Load a model; see `trainer.load`."""
    checked = check_file(path, own_files)
    network = network_from(checked.card, checked.tensors(), path, **checked.build_options)
    if not home_of(checked.card.family).is_any_module:
        _multiply_out(network)
    reads = reads_of(checked.card.family, checked.card.architecture)
    module = ScaledModel(network, _scalers(checked), windows=reads == WINDOWS)
    return LoadedModel(module=module.eval(), card=checked.card, checked=checked)


def _multiply_out(network: nn.Module) -> None:
    """Replace a weight that is computed of others, as by weight norm, by its value: it is computed at each
    forecast else, an eighth of the time of a small TCN.
    """
    for part in list(network.modules()):
        if parametrize.is_parametrized(part):
            parametrize.remove_parametrizations(part, "weight")


def _scalers(model: CheckedModel) -> list[Mapping[str, Any]]:
    """Return the scaler of each series, and of a panel that of any other symbol; one if all are equal."""
    scalers: list[Mapping[str, Any]] = [one.scaler for one in model.card.series]
    if model.card.panel is not None:
        scalers.append(common_of(model).scaler)
    if len({one["limit"] for one in scalers}) > 1:
        raise unfit(model.path, "its series are clamped to different limits")
    return scalers[:1] if all(one == scalers[0] for one in scalers) else scalers


def _write(table: pandas.DataFrame, path: Path) -> None:
    """Write a table of candles to a file, which the reader of files then checks. Raises DataError for one
    that no file can hold.
    """
    import pandas  # late: only tables need it

    times = table.index.name or "timestamp"
    if isinstance(table.index, pandas.DatetimeIndex) and times not in table.columns:
        table = table.rename_axis(times).reset_index()
    path.parent.mkdir()
    try:
        table.to_parquet(path, index=False)
    except (ValueError, TypeError, NotImplementedError) as error:  # pyarrow's errors are of these
        do = "Give columns of numbers and texts, each name once."
        raise DataError("the table can't be read", why=str(error)[:200], do=do) from error
