"""Predict with a panel's models for every symbol of the candles, including those that training never saw.

All symbols are read, wanted or not: they make up the calendar, and ranks are taken among those present on a
date. A symbol that the model was not trained on gets the panel's common scaler and fitted numbers, and series
number 0. One whose bars it only reads beside, for a side series, is no series of its panel, as in training.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from trainer.bars.panel_plan import PanelCalendar, calendar_of
from trainer.base.errors import DataError, TrainerError
from trainer.base.settings import WINDOWS
from trainer.data.columns import told_of
from trainer.data.read.candles import Candles
from trainer.data.read.reading import CandleFolder
from trainer.data.side_names import split_sides, symbols_beside
from trainer.data.timeframes import step_of
from trainer.models import home_of, reads_of
from trainer.store.card import CardPanel, CardSeries
from trainer.train.inputs.panel_rows import PanelRows, masked, panel_rows
from trainer.train.inputs.rows import context_rows
from trainer.train.predict.load_model import CheckedModel, Networks, without_unit
from trainer.train.predict.predictions import BarOutputs, NotPredicted, Predictions
from trainer.train.predict.readers import Inputs, reader_of

# Calendar and inputs by scaler, name of the calendar, and symbols
RowsOfPanels = dict[tuple[str, str, tuple[str, ...]], tuple[PanelCalendar, PanelRows]]


@dataclass(frozen=True, kw_only=True)
class PanelSeries:
    """One symbol of a panel, for one model."""

    candles: Candles
    entry: CardSeries
    rows_DF: torch.Tensor  # not scaled
    bars: np.ndarray  # (N,) int64: to predict at
    place_T: np.ndarray  # int64: the row of each bar
    first: int  # first row whose inputs are complete

    @property
    def places(self) -> np.ndarray:
        """Return the rows (N,) to predict at."""
        return np.asarray(self.place_T[self.bars])


def predict_panels(
    models: Sequence[CheckedModel],
    folder: CandleFolder,
    data: Path,
    *,
    wanted: Sequence[str],
    last: int | None,
    networks: Networks,
) -> Iterator[Predictions | NotPredicted]:
    """Predict with models of panels that read the same inputs, by symbol, then in the order of the models.

    `wanted` are symbols (none: all of the data, and those that the models were trained on). A symbol without
    bars, or with too few, is yielded as `absent`, an unreadable one with its error.
    """
    panel: dict[str, Candles] = {}
    made: dict[tuple[str, int], Predictions | NotPredicted] = {}
    trained = {symbol for model in models for symbol in model.card.symbols}
    for symbol in wanted or sorted(trained - set(folder.symbols)):
        if symbol not in folder.symbols:
            error = DataError(
                f"{data} holds no bars of {symbol}", do="Add its candles, or leave it out with --symbols."
            )
            for number, model in enumerate(models):
                made[symbol, number] = NotPredicted(model=model.name, symbol=symbol, error=error, absent=True)
    for symbol in (one for one in folder.symbols if any(is_in_panel(model, one) for model in models)):
        try:
            panel[symbol] = folder.read(symbol)
        except TrainerError as error:
            for number, model in enumerate(models):
                made[symbol, number] = NotPredicted(model=model.name, symbol=symbol, error=error)
    rows: RowsOfPanels = {}
    for number, model in enumerate(models):
        for symbol in (one for one in wanted if not is_in_panel(model, one)):
            why = "it reads that symbol's bars beside those of its panel"
            do = "Leave it out of --symbols."
            beside = DataError(f"{model.name} does not forecast {symbol}", why=why, do=do)
            made[symbol, number] = NotPredicted(model=model.name, symbol=symbol, error=beside, absent=True)
        members = {symbol: candles for symbol, candles in panel.items() if is_in_panel(model, symbol)}
        if not members:
            continue
        try:
            for item in _predict(
                model, members, wanted=wanted or tuple(members), last=last, networks=networks, rows=rows
            ):
                made[item.symbol, number] = item
        except TrainerError as error:
            made["", number] = NotPredicted(model=model.name, symbol="", error=error)
    for key in sorted(made):
        yield made[key]


def _predict(
    model: CheckedModel,
    panel: dict[str, Candles],
    *,
    wanted: Sequence[str],
    last: int | None,
    networks: Networks,
    rows: RowsOfPanels,
) -> Iterator[Predictions | NotPredicted]:
    """Predict with one model. `rows` caches calendar and inputs for the next models."""
    chosen: list[PanelSeries] = []
    for one in series_to_predict(model, panel, wanted=wanted, last=last, rows=rows):
        if isinstance(one, NotPredicted):
            yield one
        else:
            chosen.append(one)
    if not chosen:
        return
    for one, outputs_NO in zip(chosen, _outputs(model, networks, chosen), strict=True):
        columns = model.target.columns(outputs_NO, one.candles, one.bars, one.entry.fitted)
        bar = one.candles.timestamp[one.bars]
        yield Predictions(
            model=model.name,
            symbol=one.candles.symbol,
            bar=bar,
            available_at=bar + step_of(model.card.timeframe),
            columns=columns,
            synthetic=bool(model.card.data.get("synthetic")),
        )


def outputs_of_panel(
    model: CheckedModel, series: Mapping[str, tuple[Candles, np.ndarray]]
) -> dict[str, BarOutputs]:
    """Return a panel's outputs at those of each series' bars (N,) at which it can forecast. All series make
    up the calendar.
    """
    panel = {symbol: candles for symbol, (candles, _) in series.items()}
    bars, outputs_NO = np.empty(0, dtype=np.int64), np.empty((0, model.card.architecture["outputs"]))
    made = {
        symbol: BarOutputs(bars=bars, outputs_NO=outputs_NO, fitted=entry_of(model, symbol).fitted)
        for symbol in panel
    }
    chosen = []
    for one in series_to_predict(model, panel, wanted=tuple(panel), last=None, rows={}):
        if isinstance(one, NotPredicted):
            continue
        bars = np.intersect1d(one.bars, series[one.candles.symbol][1], assume_unique=True)
        if len(bars):
            chosen.append(replace(one, bars=bars))
    for one, its_NO in zip(chosen, _outputs(model, Networks(), chosen) if chosen else (), strict=True):
        made[one.candles.symbol] = BarOutputs(bars=one.bars, outputs_NO=its_NO, fitted=one.entry.fitted)
    return made


def series_to_predict(
    model: CheckedModel,
    panel: dict[str, Candles],
    *,
    wanted: Sequence[str],
    last: int | None,
    rows: RowsOfPanels,
) -> Iterator[PanelSeries | NotPredicted]:
    """Yield the series of a panel to predict, each with its rows and bars."""
    card, common = model.card, common_of(model)
    warmups = {symbol: model.warmup(candles) for symbol, candles in panel.items()}
    key = common.scaler_of, common.calendar, tuple(panel)
    if key not in rows:
        calendar = calendar_of(panel.values(), common.calendar, card.timeframe)
        made = panel_rows(
            list(panel.values()),
            calendar,
            inputs=tuple(card.features),
            features=model.features,
            warmups=list(warmups.values()),
            scaler=common.scaler_of,
            own=model.own_features,
        )
        rows[key] = calendar, made
    calendar, inputs = rows[key]
    for candles, rows_DF, present_D in zip(
        panel.values(), inputs.split(), inputs.split_present(), strict=True
    ):
        if candles.symbol not in wanted:
            continue
        entry = entry_of(model, candles.symbol)
        dates = calendar.dates(candles)
        warmup, times = warmups[candles.symbol], calendar.times(candles)
        first = times.first_row(warmup=warmup, bars_seen=card.lookback)
        whole = times.readable(warmup=warmup, bars_seen=card.lookback, reach=model.target.reach)
        bars = model.target.with_unit(candles, whole)
        bars = bars if last is None else bars[max(0, len(bars) - last) :]
        if not len(bars):
            needed = f"{warmups[candles.symbol]} bars and then {card.lookback} dates"
            error = DataError(
                f"no bar of {candles.symbol} has enough bars before it",
                why=f"a prediction needs {needed}; there are {len(candles)} bars",
                do="Give more bars.",
            )
            if len(whole):
                error = without_unit(model, candles)
            yield NotPredicted(model=model.name, symbol=candles.symbol, error=error, absent=True)
            continue
        whole_DF = masked(rows_DF, torch.tensor(entry.scaler["mean"]), present_D)
        place_T = dates - dates[0]
        yield PanelSeries(
            candles=candles, entry=entry, rows_DF=whole_DF, bars=bars, place_T=place_T, first=first
        )


def is_in_panel(model: CheckedModel, symbol: str) -> bool:
    """Return whether a symbol of the candles is a series of a model's panel: any but those whose bars its
    training only read beside.
    """
    card = model.card
    beside = symbols_beside(split_sides(card.columns)[1], told_of(card.told_columns)[0].index)
    return symbol in card.symbols or symbol not in beside


def entry_of(model: CheckedModel, symbol: str) -> CardSeries:
    """Return the entry of a symbol in a panel's card; the common one for a symbol that training never saw."""
    return model.card.of(symbol) if symbol in model.card.symbols else common_of(model).unknown(symbol)


def common_of(model: CheckedModel) -> CardPanel:
    assert model.card.panel is not None
    return model.card.panel


def _outputs(model: CheckedModel, networks: Networks, series: Sequence[PanelSeries]) -> list[np.ndarray]:
    """Return the outputs (N, O) of each series. Windows of all series share batches; chunks lie on each
    series' own grid.
    """
    card, network = model.card, networks.of(model)
    reads = reads_of(card.family, card.architecture)
    neutral = {"mean_F": torch.zeros(len(card.features)), "std_F": torch.ones(len(card.features))}
    limit, seen = series[0].entry.scaler["limit"], card.lookback
    scaled = []
    for one in series:
        mean_F, std_F = (torch.tensor(one.entry.scaler[name]) for name in ("mean", "std"))
        scaled.append(torch.div(one.rows_DF - mean_F, std_F))  # as `series.lay` scales
    if reads != WINDOWS:
        return [
            reader_of(
                reads, Inputs(rows_TF=rows_TF, limit=limit, **neutral), bars_seen=seen, first_bar=one.first
            ).outputs(network, one.places)
            for one, rows_TF in zip(series, scaled, strict=True)
        ]
    context = [context_rows(one.candles, one.place_T, series=one.entry.number) for one in series]
    inputs = Inputs(
        rows_TF=torch.cat(scaled),
        limit=limit,
        context_TC=torch.cat(context) if home_of(card.family).reads_context else None,
        **neutral,
    )
    offsets = np.cumsum([0, *(len(one.rows_DF) for one in series)])
    places = np.concatenate([one.places + offset for one, offset in zip(series, offsets, strict=False)])
    outputs_NO = reader_of(reads, inputs, bars_seen=seen, first_bar=seen - 1).outputs(network, places)
    return np.split(outputs_NO, np.cumsum([len(one.places) for one in series])[:-1])
