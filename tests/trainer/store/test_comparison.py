"""Comparisons of models from the losses in their cards: paired by cell, refused where that can't be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.trainer.store.test_weights import CARD
from trainer.base.errors import UsageError
from trainer.store.card import Card, card_from_json
from trainer.store.comparison import ALL, Side, compare_sides
from trainer.targets import TARGETS

DAY = 86_400
ABOUT = TARGETS["direction"]().about()
NOISE = np.random.default_rng(0).normal(0, 0.02, 400)


def card(symbol: str, *, better: float = 0.0, first: int = 0, cells: int = 100, **fields: Any) -> Card:
    """Return the card of a model of a symbol whose log loss is better by so much, with 24 bars in each cell."""
    days = range(first, first + cells)
    own = np.random.default_rng(100 + int(1e4 * better)).normal(0, 0.002, 400)
    sums = [24 * float(0.69 - better + NOISE[day] + own[day]) for day in days]
    losses = {
        "begins": [day * DAY for day in days],
        "bars": [24] * cells,
        "sums": {"log_loss": {"model": sums, "base_rate": [24 * 0.69] * cells}},
    }
    series = [replace(CARD.series[0], symbol=one) for one in symbol.split("+")]
    made = replace(
        CARD, series=series, losses=losses, metrics={"about": ABOUT, "test": {}}, target="direction"
    )
    return replace(made, **fields)


def side(name: str, *cards: Card) -> Side:
    return Side(name=name, cards=cards, dollars=1.0, seconds=60.0)


def test_sides_are_paired_by_symbol_and_pooled() -> None:
    first = side("one", card("AAA"), card("BBB"))
    title, rows = compare_sides([first, side("two", card("AAA", better=0.004), card("BBB", better=-0.004))])
    assert title == "log loss"
    assert [(row.symbol, row.judgement.mark) for row in rows][1:] == [("AAA", "better"), ("BBB", "worse")]
    pooled = rows[0]
    assert pooled.symbol == ALL and pooled.bars == 4_800 and abs(pooled.judgement.gain) < 5e-4
    assert rows[1].judgement.gain == pytest.approx(rows[1].reference - rows[1].score)
    assert rows[1].judgement.low < 0.004 < rows[1].judgement.high, "what both miss in a cell cancels out"
    assert rows[1].judgement.high - rows[1].judgement.low < 0.003


def test_the_reference_beside_itself_is_no_different() -> None:
    _, rows = compare_sides([side("one", card("AAA")), side("again", card("AAA"))])
    assert [(row.judgement.mark, row.judgement.gain) for row in rows] == [("no different", 0.0)]


def test_spans_that_differ_are_compared_where_they_overlap() -> None:
    _, (row,) = compare_sides([side("old", card("AAA")), side("new", card("AAA", first=40, better=0.004))])
    assert row.judgement.cells == 60 and row.bars == 60 * 24
    assert row.reference == pytest.approx(0.69 + NOISE[40:100].mean(), abs=2e-3)


def test_a_pooled_model_stands_beside_models_of_its_symbols() -> None:
    pooled = card("AAA+BBB", better=0.004)
    pooled.losses["bars"] = [48] * 100
    pooled.losses["sums"]["log_loss"]["model"] = [
        2 * one for one in pooled.losses["sums"]["log_loss"]["model"]
    ]
    _, (row,) = compare_sides([side("each", card("AAA"), card("BBB")), side("pooled", pooled)])
    assert (row.symbol, row.bars, row.judgement.mark) == (ALL, 4_800, "better")


def of_five_days(symbol: str, *, first: int, cells: int, better: float = 0.0) -> Card:
    """Return a card of cells of five daily bars."""
    made = card(symbol, cells=cells, better=better)
    made.losses["begins"] = [(first + 5 * cell) * DAY for cell in range(cells)]
    made.losses["bars"] = [5] * cells
    return made


def test_cells_of_all_symbols_are_as_long_as_those_of_each() -> None:
    """Each symbol's cells are counted from its own first bar: five of them begin on five days of a week."""
    for cells, counts in ((40, {40, 41}), (10, set())):
        one, two = (
            side(
                name,
                *(of_five_days(symbol, first=i, cells=cells, better=by) for i, symbol in enumerate("ABCDE")),
            )
            for name, by in (("one", 0.0), ("two", 0.004))
        )
        if counts:
            _, rows = compare_sides([one, two])
            assert [row.symbol for row in rows] == [ALL, *"ABCDE"]
            assert rows[0].judgement.cells in counts and rows[0].bars == 5 * 5 * cells
        else:
            with pytest.raises(UsageError, match="they scored 1[01] cells of the test span alike"):
                compare_sides([one, two])


def test_all_symbols_are_compared_only_if_both_have_them() -> None:
    first = side("one", card("AAA"), card("BBB"))
    _, (row,) = compare_sides([first, side("two", card("AAA"), card("CCC", better=0.01))])
    assert (row.symbol, row.judgement.mark) == ("AAA", "no different")
    for others in ([card("CCC"), card("DDD")], [card("CCC+DDD")]):
        with pytest.raises(UsageError, match="no symbol in common .*one has AAA, BBB, two has CCC, DDD"):
            compare_sides([side("one", card("AAA"), card("BBB")), side("two", *others)])


def test_a_model_without_losses_is_left_out() -> None:
    first, other = (side(name, card("AAA"), card("BBB", losses={})) for name in ("one", "two"))
    _, rows = compare_sides([first, other])
    assert [row.symbol for row in rows] == ["AAA"]


def test_seeds_are_averaged() -> None:
    seeds = [card("AAA", better=by, seed=number) for number, by in enumerate((0.006, 0.002))]
    _, (row,) = compare_sides([side("one", card("AAA")), side("seeds", *seeds)])
    assert row.bars == 2_400 and row.judgement.gain == pytest.approx(0.004, abs=1e-3)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (card("BBB"), "no symbol in common"),
        (card("AAA", first=90), "they scored 10 cells of the test span alike, and a comparison takes 20"),
        (card("AAA", first=200), "they scored 0 cells"),
        (card("AAA", cells=1), "they scored 1 cell"),
        (card("AAA", losses={}), "no losses by cell"),
        (card("AAA", timeframe="1d"), "the models forecast different things"),
        (card("AAA", target_settings={"horizon": 9}), "the models forecast different things"),
    ],
)
def test_what_cant_be_compared_is_refused(other: Card, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        compare_sides([side("one", card("AAA")), side("two", other)])


def test_losses_are_read_back_strictly() -> None:
    whole = card("AAA")
    assert card_from_json(whole.to_json()).losses == whole.losses
