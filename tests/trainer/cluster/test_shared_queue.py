"""A queue through Ray: two nodes on loopback addresses of their own, and what a third one meets."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from typing import Any

import pytest

from tests.trainer.cluster.conftest import OfNode
from trainer.base.errors import TrainingFailed
from trainer.cluster import shared_queue
from trainer.cluster.hand_out import Reply
from trainer.cluster.shared_queue import SharedQueue
from trainer.job.pieces.piece import Piece

pytest.importorskip("ray", reason="the extra `cluster` is not installed")
PIECES = [
    Piece(name=f"m{n}", title=f"M{n}", kind="symbol", series=(), source=f"s{n}", estimate=10.0 - n)
    for n in range(5)
]
Join = Callable[..., SharedQueue]


@pytest.fixture
def join(of_node: OfNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[Join]:
    """Return a function that starts a node's member; all end with the test."""
    started: list[SharedQueue] = []

    def begin(node: int, **token: str) -> SharedQueue:
        file, variables = of_node(node, **token)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        started.append(SharedQueue(file, silent_seconds=6.0))
        return started[-1]

    yield begin
    for queue in started:
        queue.close()


class Answering:
    """A member that gives one answer to whatever it is asked."""

    answer: dict[str, Any]

    def __init__(self, *_: Any, **__: Any) -> None:
        reads, self._writes = os.pipe()
        self.stdout, self.stdin = os.fdopen(reads, "rb"), self

    def write(self, _: bytes) -> None:
        os.write(self._writes, json.dumps(self.answer).encode() + b"\n")

    def flush(self) -> None:
        pass

    def close(self) -> None:
        os.close(self._writes)

    def wait(self, _: float) -> int:
        return 0


def names(queue: SharedQueue) -> str:
    taken = queue.take()
    return taken[0].name if taken else ""


def test_two_nodes_share_a_queue(join):
    head, other = join(0), join(1)
    head.open(PIECES)
    other.open(PIECES)
    assert (names(head), names(other), names(head)) == ("m0", "m1", "m2")
    assert len(other) == 3  # by what it has heard
    head.done("m0")
    assert names(other) == "m3"
    other.done("m3")
    assert len(other) == 1 and not other.is_over
    other.close()  # its m1 goes back
    assert head.take() == (PIECES[1], 1)
    assert [names(head), names(head)] == ["m4", ""]
    for name in ("m1", "m2", "m4"):
        assert not head.is_over
        head.done(name)
    assert head.is_over and head.others == 0


@pytest.mark.parametrize(
    "wrong", [{"changes": [99]}, {"held": [[1, 9, 0.5]]}, {"others": -1}, {"piece": 9}, {"spoiled": "m0"}]
)
def test_an_answer_that_makes_no_sense_is_a_lost_queue(join, monkeypatch, wrong):
    with monkeypatch.context() as patch:
        patch.setattr(shared_queue.subprocess, "Popen", Answering)
        queue = join(0)
    Answering.answer = Reply().to_dict()
    queue.open(PIECES)
    Answering.answer |= wrong
    with pytest.raises(TrainingFailed, match="the queue is lost"):
        queue.take()


@pytest.mark.nightly
def test_a_wrong_token_is_refused(join):
    head, stranger = join(0), join(1, token=secrets.token_hex(32))
    head.open(PIECES)
    with pytest.raises(TrainingFailed, match="Ray ended on this node"):
        stranger.open(PIECES)
    assert head.others == 0


@pytest.mark.nightly
def test_a_lost_head_ends_the_others_and_a_silent_node_is_lost(join):
    head, other, third = (join(node) for node in range(3))
    head.open(PIECES)
    other.open(PIECES)
    with pytest.raises(TrainingFailed, match="node 2 makes other pieces of the job than node 0"):
        third.open(PIECES[:4])
    assert names(other) == "m0"
    os.killpg(other._member.pid, 19)  # it says nothing any more
    deadline = time.monotonic() + 60
    while not (lost := head.lost()) and time.monotonic() < deadline:
        time.sleep(0.2)
        head.look()
    assert lost == [1]
    assert head.take() == (PIECES[0], 1)
    os.killpg(other._member.pid, 18)
    assert wait([other.handle], timeout=60)
    with pytest.raises(TrainingFailed, match="not heard for 6 s"):
        other.look()


@pytest.mark.nightly
def test_a_node_ends_when_the_head_is_killed(join):
    head, other = join(0), join(1)
    head.open(PIECES)
    other.open(PIECES)
    os.killpg(head._member.pid, 9)
    began = time.monotonic()
    assert wait([other.handle], timeout=90)
    with pytest.raises(TrainingFailed, match=r"queue of node 0 \(127.*\) is lost|queue is lost"):
        other.look()
    assert time.monotonic() - began < 60
