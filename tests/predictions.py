"""Predictions of a model by bar, for tests that compare them with its card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.read.candles import Candles, time_text
from trainer.data.read.reading import read_candles
from trainer.store.card import Card
from trainer.train.predict.symbols import Predictions, predict_models


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The forecast of a model at one bar, times as ISO 8601."""

    bar: str
    available_at: str
    values: dict[str, float]


def predict_file(
    model: Path, data: Path, last: int | None = None, *, model_file: Path | None = None, symbol: str = ""
) -> Sequence[Prediction]:
    """Return the predictions of a model for its one symbol, or for `symbol`. Raises what kept it from
    predicting.
    """
    symbols = (symbol,) if symbol else ()
    (made,) = predict_models(
        [model], data, symbols=symbols, last=last, own_files=[model_file] if model_file else []
    )
    if not isinstance(made, Predictions):
        raise made.error
    rows = zip(*(column.tolist() for column in made.columns.values()), strict=True)
    return [
        Prediction(
            bar=time_text(bar), available_at=time_text(end), values=dict(zip(made.columns, row, strict=True))
        )
        for bar, end, row in zip(made.bar, made.available_at, rows, strict=True)
    ]


def accuracy(chances: Mapping[str, float], file: Path, card: Card) -> tuple[int, float]:
    """Return how many bars of the card's test span have a direction, and the share that chances (by bar) were
    right about.

    The span must have no hole.
    """
    candles = read_candles(file, symbols=(card.of().symbol,), timeframe=card.timeframe)[card.of().symbol]
    times = [time_text(bar) for bar in candles.timestamp]
    span, close, ahead = card.of().splits["test"], candles.close, card.of().horizon
    places = range(times.index(span["first"]), times.index(span["last"]) + 1 - ahead)
    known = [place for place in places if close[place + ahead] != close[place]]
    right = [(chances[times[place]] >= 0.5) == (close[place + ahead] > close[place]) for place in known]
    return len(right), sum(right) / len(right)


def of_test(
    rows: Sequence[Prediction], candles: Candles, span: Mapping[str, Any]
) -> tuple[np.ndarray, np.ndarray]:
    """Return forecasts and labels of a test span, one bar ahead."""
    place = {time_text(time): row for row, time in enumerate(candles.timestamp)}
    said = {place[row.bar]: row.values["probability"] for row in rows}
    bars = [
        bar
        for bar in range(place[span["first"]], place[span["last"]])
        if candles.close[bar + 1] != candles.close[bar]
    ]
    labels = (candles.close[[bar + 1 for bar in bars]] > candles.close[bars]).astype(np.float64)
    return np.array([said[bar] for bar in bars]), labels[:, None]
