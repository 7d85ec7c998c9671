"""Compare models on the cells of the test span that they share, from the losses in their cards.

The first of several sides is the reference. A pair of models is compared by the target's deciding score, as a
model and its baseline are (`targets/marks.py`): a cell counts if both sides scored as many bars in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, pairwise
from statistics import median
from typing import Any

from trainer.base.errors import UsageError
from trainer.base.text import some_of
from trainer.store.card import Card
from trainer.targets.inference import FEWEST_CELLS
from trainer.targets.losses import MODEL, gain_of
from trainer.targets.marks import Judgement, judge

DAY_SECONDS = 86_400
ALL = "all"  # the row of all symbols together
DO = "Compare models of the same data, target and test span."


class TooFewShared(UsageError):
    """Sides that scored too few cells alike to be compared: candles would score them again."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side of a comparison: the models of a run, or one model."""

    name: str
    cards: tuple[Card, ...]
    dollars: float | None = None  # the high bound of its run; None if it has no receipt
    seconds: float | None = None
    gone: tuple[str, ...] = ()  # models of the run that are not in the bucket any more


@dataclass(frozen=True, kw_only=True)
class ComparedRow:
    """A side on one symbol, or on all, beside the reference: mean scores over the cells that both have."""

    side: str
    symbol: str
    score: float
    reference: float
    bars: int
    judgement: Judgement  # its baseline is the reference


@dataclass(frozen=True, kw_only=True)
class _LossesByDay:
    """Loss sums and bars by cell, each by the day on which it begins."""

    bars: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    sums: dict[int, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, card: Card, score: str, share: float) -> None:
        losses = card.losses
        for begin, bars, total in zip(
            losses["begins"], losses["bars"], losses["sums"][score][MODEL], strict=True
        ):
            self.bars[begin // DAY_SECONDS] += bars
            self.sums[begin // DAY_SECONDS] += total * share


def compare_sides(sides: Sequence[Side]) -> tuple[str, list[ComparedRow]]:
    """Return the title of the score, and a row of each further side for all symbols, then for each.

    Raises UsageError for sides that can't be compared.
    """
    reference, *others = sides
    about = _described(sides)
    score = str(about["proper"][0])
    title, lower = str(about["metrics"][score]["title"]), about["metrics"][score]["better"] == "lower"
    rows = [row for other in others for row in _rows(reference, other, score, lower)]
    return title, rows


def returns_by_day(card: Card) -> dict[int, float]:
    """Return what the plain rule made in each cell, by the day on which it begins."""
    return {
        begin // DAY_SECONDS: net
        for begin, net in zip(card.trades["begins"], card.trades["net"], strict=True)
    }


def _rows(reference: Side, other: Side, score: str, lower: bool) -> list[ComparedRow]:
    """Return the rows of a side that share enough cells with the reference, judged together. All symbols have
    one if both sides are of the same symbols.
    """
    theirs, ours = _by_symbol(reference, score), _by_symbol(other, score)
    symbols, others = _symbols(reference, score), _symbols(other, score)
    common = [place for place in ours if place in theirs and (place != ALL or symbols == others)]
    if not common:
        why = f"{reference.name} has {some_of(symbols, 3)}, {other.name} has {some_of(others, 3)}"
        raise UsageError("the models have no symbol in common", why=why, do=DO)
    length = max(_days_of_a_cell(card) for side in (reference, other) for card in _scored(side, score))
    pairs = {
        symbol: _shared(theirs[symbol], ours[symbol], length if symbol == ALL else 1) for symbol in common
    }
    enough = {symbol: cells for symbol, cells in pairs.items() if len(cells) >= FEWEST_CELLS}
    if not enough:
        most = max(map(len, pairs.values()))
        why = f"they scored {most} cells of the test span alike, and a comparison takes {FEWEST_CELLS}"
        do = "Give the candles of the later one, to score them again: --data PATH."
        raise TooFewShared(f"{other.name} and {reference.name} can't be compared", why=why, do=do)
    gains = [_gain(theirs[symbol], ours[symbol], cells, score, lower) for symbol, cells in enough.items()]
    judged = [one for one in judge(gains) if one is not None]
    return [
        ComparedRow(
            side=other.name,
            symbol=symbol,
            score=_mean(ours[symbol], cells),
            reference=_mean(theirs[symbol], cells),
            bars=sum(ours[symbol].bars[day] for day in chain(*cells)),
            judgement=judgement,
        )
        for (symbol, cells), judgement in zip(enough.items(), judged, strict=True)
    ]


def _described(sides: Sequence[Side]) -> Mapping[str, Any]:
    """Return the description of all sides' scores. Raises UsageError if they forecast different things."""
    cards = [card for side in sides for card in side.cards]
    without = [side.name for side in sides if not any(card.losses for card in side.cards)]
    if without:
        why = "its card has no losses by cell: it was made by an earlier version, or is a script's"
        raise UsageError(f"{without[0]} can't be compared", why=why, do=DO)
    targets = {(card.target, str(sorted(card.target_settings.items())), card.timeframe) for card in cards}
    if len(targets) > 1:
        told = some_of(sorted(f"{target} of {timeframe}" for target, _, timeframe in targets), 3)
        raise UsageError("the models forecast different things", why=f"{told}, or other settings", do=DO)
    about: Mapping[str, Any] = cards[0].metrics["about"]
    if not about["proper"]:
        why = f"no score of {cards[0].target} with these settings decides anything"
        raise UsageError(f"{sides[0].name} can't be compared", why=why, do=DO)
    return about


def _scored(side: Side, score: str) -> list[Card]:
    return [card for card in side.cards if card.losses and card.losses["sums"].get(score, {}).get(MODEL)]


def _symbols(side: Side, score: str) -> list[str]:
    """Return the symbols of a side's scored models, sorted."""
    return sorted({symbol for card in _scored(side, score) for symbol in card.symbols})


def _by_symbol(side: Side, score: str) -> dict[str, _LossesByDay]:
    """Return a side's losses: of all symbols first if it has several, then of each with models of its own.
    Those of several seeds are averaged.
    """
    seeds: dict[tuple[tuple[str, ...], int], list[Card]] = defaultdict(list)
    for card in _scored(side, score):
        seeds[card.symbols, card.fold].append(card)
    made: dict[str, _LossesByDay] = defaultdict(_LossesByDay)
    several = len(_symbols(side, score)) > 1
    for (symbols, _), cards in seeds.items():
        for place in [ALL] * several + list(symbols) * (len(symbols) == 1):
            one = _LossesByDay()
            for card in cards:
                one.add(card, score, 1 / len(cards))
            _join(made[place], one, len(cards))
    return made


def _join(into: _LossesByDay, one: _LossesByDay, seeds: int) -> None:
    for day, bars in one.bars.items():
        into.bars[day] += bars // seeds
        into.sums[day] += one.sums[day]


def _days_of_a_cell(card: Card) -> int:
    """Return the median time between starts of a card's cells, in days, 1 or more."""
    begins = [begin // DAY_SECONDS for begin in card.losses["begins"]]
    return max(1, round(median([later - one for one, later in pairwise(begins)] or [1])))


def _shared(first: _LossesByDay, second: _LossesByDay, length: int) -> list[list[int]]:
    """Return the days on which cells begin in which both scored as many bars, as cells of `length` days:
    cells of several symbols overlap if each is counted from its own first bar.
    """
    days = sorted(day for day, bars in first.bars.items() if second.bars.get(day) == bars)
    return [list(cell) for _, cell in groupby(days, lambda day: day // length)]


def _mean(losses: _LossesByDay, cells: Iterable[Sequence[int]]) -> float:
    days = list(chain(*cells))
    return sum(losses.sums[day] for day in days) / sum(losses.bars[day] for day in days)


def _gain(
    reference: _LossesByDay, other: _LossesByDay, cells: Sequence[Sequence[int]], score: str, lower: bool
) -> dict[str, Any]:
    """Return the gain over the reference in the form that a model's metrics have."""
    gain = gain_of(
        [sum(other.sums[day] for day in cell) for cell in cells],
        [sum(reference.sums[day] for day in cell) for cell in cells],
        [sum(other.bars[day] for day in cell) for cell in cells],
        is_lower=lower,
    )
    return {
        "about": {"proper": [score]},
        "test": {"cells": len(cells), "better": {"reference": {score: gain}}},
    }
