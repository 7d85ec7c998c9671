"""Which node gets which piece: once each, those of a lost node by others, and the end."""

from __future__ import annotations

import random

import pytest

from trainer.cluster.hand_out import MOST_LOSSES, NOBODY, SILENT_SECONDS, HandOut


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def queue_of(clock: Clock, *estimates: float, nodes: int = 2, sources: int = 0) -> HandOut:
    names = [f"s{n % sources}" if sources else f"s{n}" for n in range(len(estimates))]
    queue = HandOut([(f"m{n}", names[n], size) for n, size in enumerate(estimates)], clock=clock)
    for node in range(nodes):
        assert not queue.join(node).refused
    return queue


def take(queue: HandOut, node: int, held: tuple[str, ...] = ()) -> tuple[int, int]:
    reply = queue.take(node, held=held, staged=())
    assert not reply.refused
    return reply.piece, reply.origin


def test_longest_piece_goes_first(clock):
    queue = queue_of(clock, 1, 9, 5)
    assert [take(queue, 0), take(queue, 1), take(queue, 0), take(queue, 1)] == [
        (1, NOBODY),
        (2, NOBODY),
        (0, NOBODY),
        (NOBODY, NOBODY),
    ]


def test_a_node_keeps_its_source_and_leaves_that_of_another(clock):
    queue = queue_of(clock, 1, 1, 1, 1, sources=2)
    assert take(queue, 0) == (0, NOBODY)
    assert take(queue, 1) == (1, NOBODY)  # s1: node 0 holds s0
    assert take(queue, 1, held=("s1",)) == (3, NOBODY)
    assert take(queue, 0, held=("s0",)) == (2, NOBODY)


def test_every_node_learns_what_began_elsewhere(clock):
    queue = queue_of(clock, 3, 2, 1)
    assert queue.take(0, held=(), staged=()).changes == (0,)
    assert queue.take(1, held=(), staged=()).changes == (0, 1)
    assert queue.ping(0).changes == ()  # its member's, which tells the node nothing
    assert queue.hear(0).changes == (1,)
    assert queue.hear(0).changes == ()
    queue.leave(1)
    assert queue.hear(0).changes == (1,)  # it waits again


def test_a_node_that_leaves_gives_back_what_it_has(clock):
    queue = queue_of(clock, 2, 1)
    first, _ = take(queue, 1)
    second, _ = take(queue, 1)
    queue.done(1, first)
    queue.leave(1)
    assert queue.leave(1).refused == "", "one that is out already may leave"
    assert take(queue, 0) == (second, 1)
    assert take(queue, 0) == (NOBODY, NOBODY)
    assert queue.done(0, second).is_over


def test_a_silent_node_loses_what_it_finished_too(clock):
    queue = queue_of(clock, 2, 1)
    first, _ = take(queue, 1)
    second, _ = take(queue, 1)
    queue.done(1, first)
    clock.now = SILENT_SECONDS
    assert queue.hear(0).lost == ()
    clock.now += SILENT_SECONDS / 2
    reply = queue.hear(0)
    assert (reply.lost, reply.others, reply.is_over) == ((1,), 0, False)
    assert {take(queue, 0), take(queue, 0)} == {(first, 1), (second, 1)}
    assert queue.done(0, first).is_over is False
    assert queue.done(0, second).is_over


def test_a_lost_node_is_refused_when_it_speaks_again(clock):
    queue = queue_of(clock, 2, 1)
    piece, _ = take(queue, 1)
    clock.now = 2 * SILENT_SECONDS
    queue.hear(0)
    for reply in (queue.hear(1), queue.done(1, piece), queue.take(1, held=(), staged=()), queue.join(1)):
        assert "not heard for 30 s" in reply.refused
    assert take(queue, 0) == (piece, 1)


def test_a_piece_that_takes_nodes_with_it_fails(clock):
    queue = queue_of(clock, 1, nodes=1)
    for node in range(1, 1 + MOST_LOSSES):
        assert not queue.hear(0).is_over
        queue.join(node)
        assert take(queue, node)[0] == 0
        clock.now += 2 * SILENT_SECONDS
    reply = queue.hear(0)
    assert (reply.spoiled, reply.is_over) == ((0,), True)
    assert take(queue, 0) == (NOBODY, NOBODY)


def test_an_unknown_node_is_refused(clock):
    queue = queue_of(clock, 1)
    assert queue.take(5, held=(), staged=()).refused
    assert queue.join(1).refused == "node 1 is there already"


def test_given_back_pieces_go_to_others(clock):
    queue = queue_of(clock, 1)
    assert take(queue, 1) == (0, NOBODY)
    queue.give_back(1, [0, 0, 7])
    assert take(queue, 0) == (0, 1)
    assert queue.done(1, 0).is_over is False  # not its any more


def test_head_hears_of_a_straggler(clock):
    queue = queue_of(clock, 1)
    take(queue, 1)
    clock.now = 12.0
    assert queue.hear(0).held == ((1, 0, 12.0),)
    assert queue.hear(1).held == ()


@pytest.mark.parametrize("seed", range(20))
def test_each_piece_is_done_once_whatever_nodes_do(seed):
    """Nodes take, finish, give back, leave and fall silent by chance; node 0 stays."""
    chance, clock = random.Random(seed), Clock()
    queue = queue_of(clock, *(chance.random() for _ in range(60)), nodes=6, sources=7)
    hands: dict[int, list[int]] = {node: [] for node in range(6)}
    done: dict[int, list[int]] = {node: [] for node in range(6)}
    spoiled: list[int] = []
    for _ in range(5_000):
        clock.now += 1.0
        reply = queue.hear(0)
        spoiled += reply.spoiled
        for node in reply.lost:
            del hands[node], done[node]
        if reply.is_over:
            break
        node = chance.choice(sorted(hands))
        move = chance.random()
        if node and move < 0.002:
            queue.leave(node)
            hands[node] = []
            hands.pop(node)
        elif move < 0.6 and len(hands[node]) < 3:
            answer = queue.take(node, held=(), staged=())
            hands[node] += [answer.piece] if answer.piece != NOBODY else []
        elif hands[node] and not queue.done(node, piece := chance.choice(hands[node])).refused:
            hands[node].remove(piece)
            done[node].append(piece)
        for other in list(hands):
            if other and chance.random() < 0.5 and not queue.hear(other).refused:
                continue
    made = [piece for pieces in done.values() for piece in pieces]
    assert sorted([*made, *spoiled]) == list(range(60))
