"""Pieces of a queue that several machines share, as a supervisor meets them: without Ray, and by the clock of
the test.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from tests.pieces import piece
from tests.queues import QueueOfNode, Time, hand_out_of
from trainer.base import signs
from trainer.cluster.waiting import STRAGGLER_SECONDS, OwnPieces, SharedPieces
from trainer.train.workers.carried import MOST_SECONDS, Carried

NOTHING: dict[str, Collection[str]] = {"held": (), "staged": (), "elsewhere": ()}
PIECES = [piece(f"{symbol}-USD", estimate=size) for symbol, size in (("A", 3), ("B", 2), ("C", 1))]


class Stage:
    """Two machines and what node 0's supervisor says."""

    def __init__(self, carried: Path | None = None) -> None:
        self.time, self.events = Time(), list[dict[str, Any]]()
        self.hand_out = hand_out_of(PIECES, self.time)
        self.queues = [QueueOfNode(self.hand_out, node) for node in (0, 1)]
        carrier = Carried(carried, self.events.append, clock=self.time)
        self.nodes = [
            SharedPieces(queue, self.events.append, carrier)  # type: ignore[arg-type]
            for queue in self.queues
        ]
        for node in self.nodes:
            node.open(PIECES)

    def close(self) -> None:
        for queue in self.queues:
            os.close(queue.handle)


@pytest.fixture
def stage() -> Any:
    made = Stage()
    yield made
    made.close()


def test_a_single_machine_takes_all_of_its_pieces():
    own = OwnPieces()
    assert own.take(**NOTHING) is None
    own.open(list(PIECES))
    assert own.has("A-USD") and [own.take(**NOTHING) for _ in range(4)] == [*PIECES, None]
    assert own.is_over(has_devices=True) and own.elsewhere(()) == set() and not own.leave_to_others(PIECES)


def test_each_piece_is_begun_on_one_node(stage):
    head, other = stage.nodes
    assert [head.take(**NOTHING), other.take(**NOTHING), head.take(**NOTHING)] == PIECES
    assert head.take(**NOTHING) is None and other.take(**NOTHING) is None
    for node, made in ((head, PIECES[0]), (other, PIECES[1]), (head, PIECES[2])):
        assert not head.is_over(has_devices=True)
        node.done(made.name)
        head.look(is_busy=False)
    assert head.is_over(has_devices=True)
    assert other.elsewhere({PIECES[1].name}) == {PIECES[0].name, PIECES[2].name}


def test_a_lost_node_is_named_and_its_pieces_are_asked_for(tmp_path):
    stage = Stage(carried := tmp_path / "carried.json")
    head, other = stage.nodes
    first, second = other.take(**NOTHING), other.take(**NOTHING)
    other.done(first.name)
    stage.time.now = 40.0
    assert head.look(is_busy=True) == []
    assert stage.events == [{"event": "node_lost", "node": 1}]
    assert head.take(**NOTHING) is None  # the model of A, if S3 has it
    assert head.take(**NOTHING) is None  # one at a time
    assert stage.events[1] == {"event": "taken_over", **PIECES[0].identity, "node": 1}
    assert not head.is_over(has_devices=True)
    carried.write_text(json.dumps({first.name: {"left": "made"}}))
    stage.time.now += 1
    head.look(is_busy=True)
    assert head.take(**NOTHING) is None
    carried.write_text(json.dumps({first.name: {"left": "made"}, second.name: {"left": "checkpoint"}}))
    stage.time.now += 1
    head.look(is_busy=True)
    assert head.take(**NOTHING) is second
    assert head.take(**NOTHING) is PIECES[2]
    for made in (second, PIECES[2]):
        head.done(made.name)
    assert head.is_over(has_devices=True)
    stage.close()


def test_a_node_without_devices_leaves_its_pieces(stage):
    head, other = stage.nodes
    taken = other.take(**NOTHING)
    assert other.leave_to_others([taken])
    assert other.is_over(has_devices=False) and not other.is_over(has_devices=True)
    head.look(is_busy=False)
    assert head.leave_to_others([]) and not head.is_over(has_devices=False)
    stage.hand_out.leave(1)
    head.look(is_busy=False)
    assert not head.leave_to_others([])  # nobody is left: they fail here


def test_head_names_a_straggler_once(stage):
    head, other = stage.nodes
    late = other.take(**NOTHING)
    for _ in range(4):
        stage.time.now += STRAGGLER_SECONDS / 3
        other.look(is_busy=True)
        head.look(is_busy=False)
    assert [event["event"] for event in stage.events] == ["straggler"]
    assert stage.events[0]["piece"] == late.title


def test_a_head_that_waits_for_others_makes_progress(stage, monkeypatch):
    """Else its watch, and the sweeper, would take it for hung: the other piece may take hours."""
    moved: list[dict[str, Any]] = []
    monkeypatch.setattr(signs, "SECONDS", 0.0)
    signs.tell_signs(moved.append)
    try:
        head, other = stage.nodes
        head.look(is_busy=False)
        assert moved == []
        late = other.take(**NOTHING)
        head.look(is_busy=True)
        assert moved == []
        head.look(is_busy=False)
        assert [event["event"] for event in moved] == ["moved"]
        other.done(late.name)
        head.look(is_busy=False)
        assert len(moved) == 1
    finally:
        signs.tell_signs(None)


def test_a_piece_begins_anew_if_nobody_answers(tmp_path):
    time, events = Time(), list[dict[str, Any]]()
    carried = Carried(tmp_path / "none.json", events.append, clock=time)
    carried.ask(PIECES[0], 3)
    assert carried.arrived() == [] and len(carried) == 1
    time.now = MOST_SECONDS + 1
    assert carried.arrived() == [(PIECES[0], "nothing")] and len(carried) == 0
    unasked = Carried(None, events.append, clock=time)
    unasked.ask(PIECES[1], 3)
    assert unasked.arrived() == [(PIECES[1], "nothing")]
