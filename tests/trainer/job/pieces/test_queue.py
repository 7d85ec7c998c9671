"""The queue: the worker for the next piece."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.pieces import piece
from trainer.job.pieces import queue as queue_of_pieces
from trainer.job.pieces.queue import PieceQueue


def test_the_longest_goes_first():
    queue = PieceQueue([piece("A", estimate=10), piece("B", estimate=30), piece("C", estimate=20)])
    assert [queue.take().source for _ in range(3)] == ["B", "C", "A"]
    assert len(queue) == 0
    with pytest.raises(IndexError):
        queue.take()


def test_a_worker_stays_with_its_symbol_while_nearly_the_longest():
    queue = PieceQueue([piece("A", estimate=100), piece("B", estimate=95), piece("B", estimate=50, seed=1)])
    assert queue.take(held={"B"}).source == "B"
    assert queue.take(held={"B"}).source == "A"  # the other of B is half as long: it can wait


def test_a_worker_gets_held_pieces_before_staged_ones():
    pieces = [piece("A", estimate=100), piece("B", estimate=95), piece("C", estimate=91)]
    assert PieceQueue(pieces).take(held={"B"}, staged={"C"}).source == "B"
    assert PieceQueue(pieces).take(held={"X"}, staged={"C"}).source == "C"


def test_symbols_of_other_workers_are_left_to_them():
    pieces = [piece("A", estimate=100), piece("A", estimate=100, seed=1), piece("B", estimate=95)]
    assert PieceQueue(pieces).take(elsewhere={"A"}).source == "B"


def test_a_free_worker_takes_the_longest_staged_or_not():
    assert PieceQueue([piece("A", estimate=100), piece("B", estimate=50)]).take(elsewhere={"A"}).source == "A"


def test_peek_takes_nothing_and_has_knows_the_rest():
    queue = PieceQueue([piece("A", estimate=100)])
    assert queue.peek() == queue.take()
    assert not queue.has("A")


def test_a_look_ahead_takes_nothing_and_costs_what_it_shows(monkeypatch: pytest.MonkeyPatch):
    """A supervisor looks ahead for each busy worker, again and again."""
    pieces = [piece(f"S{number:04d}", estimate=5000 - number) for number in range(5_000)]
    queue, ordered, order = PieceQueue(pieces), list[str](), queue_of_pieces._order

    def noted(one: Any) -> Any:
        ordered.append(one.name)
        return order(one)

    monkeypatch.setattr(queue_of_pieces, "_order", noted)
    ahead = queue.ahead(3, held={"S0001"}, elsewhere={"S0000"})
    assert ahead == [], "the worker's own comes next"
    assert [one.source for one in queue.ahead(3, held={"X"}, elsewhere={"S0000"})] == [
        "S0001",
        "S0002",
        "S0003",
    ]
    assert len(ordered) < 500
    assert queue.pieces == pieces and queue.has("S0002")


def test_seeds_of_a_symbol_go_to_the_worker_that_began_it():
    shuffled = random.Random(0)
    queue = PieceQueue(
        piece(f"S{number:03d}", estimate=1000 - number % 7, seed=seed)
        for number in range(40)
        for seed in range(3)
    )
    holds = dict.fromkeys(range(4), "")
    given, readings = [], 0
    while len(queue):
        worker = shuffled.randrange(4)
        elsewhere = {symbol for other, symbol in holds.items() if other != worker}
        taken = queue.take(held={holds[worker]}, elsewhere=elsewhere)
        readings += taken.source != holds[worker]
        holds[worker] = taken.source
        given.append(taken.name)
    assert len(given) == len(set(given)) == 120
    assert readings <= 40 + 6  # at the end, workers help with each other's symbols
