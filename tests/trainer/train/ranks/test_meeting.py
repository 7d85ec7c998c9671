"""The meeting of trainers: who is let in, what is heard, and who is lost."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from trainer.base.cluster import Cluster
from trainer.base.errors import TrainingFailed, UsageError
from trainer.base.strict_json import read_object
from trainer.train.ranks.meeting import Meeting, interface_of, token_of
from trainer.train.ranks.supervisor import RankSupervisor

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="macOS has one loopback address")
TOKEN = b"0123456789abcdef" * 4
ADDRESSES = ("127.0.2.2", "127.0.2.3")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def free_port() -> int:
    with socket.create_server((ADDRESSES[0], 0)) as listener:
        return int(listener.getsockname()[1])


class Pair:
    """A leader, who waits on a thread of its own, and a follower."""

    def __init__(self, follower_token: bytes = TOKEN, **leader: Any) -> None:
        self.port, self.found = free_port(), dict[str, Any]()
        self._waiting = threading.Thread(target=self._lead, kwargs=leader)
        self._waiting.start()
        try:
            self.found["follower"] = Meeting(
                self._cluster(1), token=follower_token, port=self.port, join=20.0
            )
        except TrainingFailed as error:
            self.found["refused"] = error

    def _lead(self, **options: Any) -> None:
        try:
            self.found["leader"] = Meeting(
                self._cluster(0), token=TOKEN, port=self.port, **{"join": 20.0, **options}
            )
        except TrainingFailed as error:
            self.found["alone"] = error

    def _cluster(self, node: int) -> Cluster:
        return Cluster(node=node, addresses=ADDRESSES)

    def met(self) -> tuple[Meeting, Meeting]:
        self._waiting.join()
        return self.found["leader"], self.found["follower"]

    def close(self) -> None:
        self._waiting.join()
        for end in ("leader", "follower"):
            if end in self.found:
                self.found[end].close()


@pytest.fixture
def pairs() -> Iterator[list[Pair]]:
    made = list[Pair]()
    yield made
    for pair in made:
        pair.close()


def heard(meeting: Meeting) -> list[tuple[int, Any]]:
    while True:
        if found := [(node, said.values) for node, said in meeting.heard(wait=1.0)]:
            return found


def test_each_hears_the_other(pairs):
    pairs.append(Pair())
    leader, follower = pairs[0].met()
    leader.tell({"say": "start", "session": 1})
    assert heard(follower) == [(0, {"say": "start", "session": 1})]
    follower.tell({"say": "trouble", "session": 1})
    assert heard(leader) == [(1, {"say": "trouble", "session": 1})]


def test_who_does_not_know_the_token_is_not_let_in(pairs):
    clock = Clock()
    pairs.append(Pair(b"f" * 64, clock=clock))
    assert "was not let in by node 0" in str(pairs[0].found["refused"])
    with socket.create_connection((ADDRESSES[0], pairs[0].port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        answers = stranger.makefile("rb").read()
    assert answers.count(b"\n") == 1 and set(json.loads(answers)) == {"nonce"}
    clock.now = 901.0  # the leader waits for the node that belongs to it until then


def test_a_node_that_does_not_come_is_named(pairs):
    clock = Clock()
    pairs.append(Pair(b"f" * 64, clock=clock, join=900.0))
    clock.now = 901.0
    pairs[0].close()
    assert "nodes that did not come: 1" in str(pairs[0].found["alone"])


def test_a_leader_that_cannot_listen_says_where():
    cluster = Cluster(node=0, addresses=ADDRESSES)
    with socket.create_server((ADDRESSES[0], 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(TrainingFailed, match=rf"cannot listen at 127.0.2.2:{port} \(Address already"):
            Meeting(cluster, token=TOKEN, port=port)


def test_an_ended_connection_is_a_lost_machine(pairs):
    pairs.append(Pair())
    leader, follower = pairs[0].met()
    follower.close()
    with pytest.raises(TrainingFailed, match="node 1: its connection ended"):
        heard(leader)


def test_a_silent_machine_is_lost(pairs, monkeypatch):
    monkeypatch.setattr("trainer.train.ranks.meeting.BEAT_SECONDS", 1e6)
    clock = Clock()
    pairs.append(Pair(clock=clock))
    leader, _ = pairs[0].met()
    clock.now = 44.0
    assert leader.heard() == []
    clock.now = 46.0
    with pytest.raises(TrainingFailed, match="node 1: it was silent for 45 s"):
        leader.heard()


def test_the_leader_beats_while_it_waits_for_others(monkeypatch):
    monkeypatch.setattr("trainer.train.ranks.meeting.BEAT_SECONDS", 0.01)
    clock, port, addresses = Clock(), free_port(), (*ADDRESSES, "127.0.2.4")
    ends = dict[int, Meeting]()

    def come(node: int) -> None:
        cluster = Cluster(node=node, addresses=addresses)
        ends[node] = Meeting(cluster, token=TOKEN, port=port, clock=clock)

    leading = threading.Thread(target=come, args=(0,))
    leading.start()
    come(1)
    try:
        clock.now = 120.0  # node 2 boots two minutes later
        assert ends[1].heard(wait=10.0) == []
    finally:
        come(2)
        leading.join()
        for end in ends.values():
            end.close()


def test_the_end_of_a_training_is_no_loss(pairs):
    pairs.append(Pair())
    leader, follower = pairs[0].met()
    leader.tell({"say": "bye"})
    leader.close()
    assert heard(follower) == [(0, {"say": "bye"})]


def test_a_cluster_without_a_token_is_refused(tmp_path):
    (tmp_path / "short").write_text("abc")
    for path in (None, tmp_path / "short", tmp_path / "missing"):
        with pytest.raises(UsageError, match="token"):
            token_of(path)


def test_the_interface_of_an_address():
    assert interface_of("127.0.0.9") == "lo"
    assert interface_of("192.0.2.1") == ""


class Heard:
    """A meeting in which node 0 has said these messages."""

    cluster = Cluster(node=1, addresses=ADDRESSES)

    def __init__(self, *messages: dict[str, Any]) -> None:
        self._messages = [
            (0, read_object(json.dumps(said).encode(), most_bytes=999, name="it")) for said in messages
        ]

    def heard(self, *, wait: float = 0.0) -> list[tuple[int, Any]]:
        said, self._messages = self._messages, []
        return said


def test_what_node_0_said_during_a_start_is_acted_on_once():
    said = Heard({"say": "stop", "session": 1}, {"say": "start", "session": 2, "piece": "a"})
    follower = RankSupervisor(kind="cpu", ranks=1, settings=None, emit=print, meeting=said)  # type: ignore[arg-type]
    follower._session = 1
    assert all(follower._is_told_to_stop() for _ in range(3))
    assert [each.whole("session") for each in follower._said()] == [2]
    assert follower._said() == []


@pytest.mark.parametrize(
    "said",
    [
        {"say": 7},
        {"say": "start", "session": 1, "micro_batch": 1},
        {"say": "start", "piece": "a", "session": "x", "micro_batch": 1},
        {"say": "start", "piece": "a", "session": 1, "micro_batch": -1},
    ],
)
def test_a_malformed_message_ends_the_training_with_one_line(said: dict[str, Any]):
    follower = RankSupervisor(kind="cpu", ranks=1, settings=None, emit=print, meeting=Heard(said))  # type: ignore[arg-type]
    with pytest.raises(TrainingFailed, match="node 0 can't be understood"):
        follower._follow([SimpleNamespace(name="a")], ())  # type: ignore[list-item]
