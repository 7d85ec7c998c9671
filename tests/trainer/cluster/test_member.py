"""The member between a pipe and the queue, without Ray: messages, pings, the end of either side."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import threading
from typing import Any

import pytest

from trainer.base.errors import TrainingFailed
from trainer.cluster import member
from trainer.cluster.actor import QueueActor
from trainer.cluster.hand_out import SILENT_SECONDS

DIGEST = "0" * 64
HIGH = 1100  # a descriptor that `select` refuses, as in a process of many connections
OPEN = {"ask": "open", "digest": DIGEST, "pieces": [["m0", "s0", 2.0], ["m1", "s1", 1.0]]}


def ask(actor: QueueActor, node: int, **message: Any) -> dict[str, Any]:
    return dict(json.loads(actor.ask(json.dumps({**message, "node": node}).encode())))


class Served:
    """A member in a thread of this process."""

    def __init__(self, answer: Any) -> None:
        self.asked: list[dict[str, Any]] = []
        self.raised: list[Exception] = []
        source, self.ours = os.pipe()
        if resource.getrlimit(resource.RLIMIT_NOFILE)[0] > HIGH:
            low, source = source, fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, HIGH)
            os.close(low)
        self._answer, (self.theirs, out) = answer, os.pipe()
        self._files = os.fdopen(self.theirs, "rb"), os.fdopen(out, "wb", buffering=0)
        self.thread = threading.Thread(target=self._serve, args=(source,))
        self.thread.start()

    def _serve(self, source: int) -> None:
        try:
            member.serve(self._ask, self._files[1], ping_seconds=0.01, source=source)
        except TrainingFailed as error:
            self.raised.append(error)
        os.close(source)

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(message)
        return dict(self._answer(message))

    def say(self, **message: Any) -> dict[str, Any]:
        os.write(self.ours, json.dumps(message).encode() + b"\n")
        return dict(json.loads(self._files[0].readline()))

    def close(self) -> list[str]:
        os.close(self.ours)
        self.thread.join()
        for file in self._files:
            file.close()
        return [message["ask"] for message in self.asked]


def test_a_member_passes_messages_pings_and_leaves():
    pinged = threading.Event()

    def answer(message: dict[str, Any]) -> dict[str, Any]:
        if message["ask"] == "ping":
            pinged.set()
        return {"piece": 7}

    served = Served(answer)
    assert served.say(ask="take", held=[]) == {"piece": 7}
    assert pinged.wait(60)
    asked = served.close()
    assert asked[0] == "take" and asked[-1] == "leave" and set(asked[1:-1]) == {"ping"}


def test_a_member_that_is_refused_ends():
    served = Served(lambda message: {"refused": "node 1 was not heard for 30 s"})
    os.write(served.ours, b'{"ask": "hear"}\n')
    served.thread.join()
    assert served.raised[0].why == "node 1 was not heard for 30 s"
    assert served.close() == ["hear"]


def test_nodes_wait_for_the_head_and_need_its_pieces():
    actor = QueueActor(SILENT_SECONDS)
    join = {"ask": "join", "digest": DIGEST}
    assert ask(actor, 1, **join) == {"wait": True}
    assert ask(actor, 1, **OPEN) == {"wait": True}  # only node 0 opens
    assert ask(actor, 0, **OPEN)["refused"] == ""
    assert ask(actor, 1, **join)["refused"] == ""
    other = {"ask": "join", "digest": "1" * 64}
    assert ask(actor, 2, **other)["refused"] == "node 2 makes other pieces of the job than node 0"
    assert ask(actor, 1, ask="take", held=["s1"], staged=[])["piece"] == 0
    assert ask(actor, 1, ask="back", pieces=[0])["refused"] == ""
    assert ask(actor, 0, ask="take", held=[], staged=[])["origin"] == 1
    assert ask(actor, 0, ask="done", piece=0)["is_over"] is False
    assert ask(actor, 1, ask="ping")["changes"] == []
    assert ask(actor, 1, ask="leave")["refused"] == ""


@pytest.mark.parametrize(
    "message",
    [
        {"ask": "take", "held": "s0", "staged": []},
        {"ask": "take"},
        {"ask": "done", "piece": -1},
        {"ask": "back", "pieces": [True]},
        {"ask": "run", "code": "x"},
        {"ask": "done", "piece": 0, "node": 64},
    ],
)
def test_a_malformed_message_is_refused(message):
    actor = QueueActor(SILENT_SECONDS)
    ask(actor, 0, **OPEN)
    said = {"node": 0, **message}
    assert "malformed" in json.loads(actor.ask(json.dumps(said).encode()))["refused"]
    assert "malformed" in json.loads(actor.ask(b"\x80\x04K\x01."))["refused"]  # a pickle
