"""What predictions are worth, by hand: for tests that compare them with a card's scores."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trainer.artifacts.card import Card
from trainer.data.candles import time_text
from trainer.data.reading import read_candles


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
