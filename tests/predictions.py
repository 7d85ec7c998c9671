"""What predictions are worth, by hand: for tests that compare them with a card's scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.artifacts.card import Card
from trainer.data.candles import time_text
from trainer.data.reading import read_candles
from trainer.train.predict import Predictions, predict_models


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a model forecasts at one bar, times as ISO 8601."""

    bar: str
    available_at: str
    values: dict[str, float]


def predict_file(
    model: Path, data: Path, last: int | None = None, *, model_file: Path | None = None, symbol: str = ""
) -> Sequence[Prediction]:
    """Return the predictions of a model for its one symbol, or for `symbol`. Raises what kept it from predicting."""
    symbols = (symbol,) if symbol else ()
    (made,) = predict_models([model], data, symbols=symbols, last=last, model_file=model_file)
    if not isinstance(made, Predictions):
        raise made.error
    rows = zip(*(column.tolist() for column in made.columns.values()), strict=True)
    return [
        Prediction(bar=time_text(bar), available_at=time_text(end), values=dict(zip(made.columns, row, strict=True)))
        for bar, end, row in zip(made.bar, made.available_at, rows, strict=True)
    ]


def accuracy(chances: Mapping[str, float], file: Path, card: Card) -> tuple[int, float]:
    """Return how many bars of the card's test span have a direction, and the share that chances (by bar) were right about.

    The span must have no hole.
    """
    candles = read_candles(file, symbols=(card.of().symbol,), timeframe=card.timeframe)[card.of().symbol]
    times = [time_text(bar) for bar in candles.timestamp]
    span, close, ahead = card.of().splits["test"], candles.close, card.of().horizon
    places = range(times.index(span["first"]), times.index(span["last"]) + 1 - ahead)
    known = [place for place in places if close[place + ahead] != close[place]]
    right = [(chances[times[place]] >= 0.5) == (close[place + ahead] > close[place]) for place in known]
    return len(right), sum(right) / len(right)
