"""The agent of a run on its caller's machine is followed, asked to stop and told of where it died; control
leaves it alone.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.records import NOON
from tests.trainer.control.conftest import MemoryCloud
from trainer.base.errors import ConfigError, ConnectionFailed, PermissionDenied
from trainer.base.instants import iso
from trainer.control.drive import drive
from trainer.control.settle import close_last, settle_all
from trainer.control.stop import StopSignal, Wish
from trainer.runs.attempts import Attempt
from trainer.runs.index import read_index
from trainer.runs.keys import own_keys
from trainer.runs.record import RunRecord
from trainer.runs.store import read_record, receipt_key

USER = "AIDAEXAMPLE"


class Agent:
    """An agent's process that ends when it is told to, or after so many looks."""

    def __init__(self, cloud: MemoryCloud, run_id: str, *, looks: int = 10**6, state: str = "done") -> None:
        self.cloud, self.keys, self.looks, self.state, self.asked = (
            cloud,
            own_keys(USER, run_id),
            looks,
            state,
            0,
        )

    def poll(self) -> int | None:
        self.looks -= 1
        if self.looks > 0:
            return None
        if self.state and self.looks == 0:
            result = {"state": self.state, "phases": {"end": iso(self.cloud.clock)}}
            self.cloud.objects.write(self.keys.result, json.dumps(result).encode())
        return 0

    def terminate(self) -> None:
        self.asked, self.looks, self.state = self.asked + 1, 1, "stopped"


@pytest.fixture
def run(make_cloud: Any) -> tuple[MemoryCloud, RunRecord]:
    about = {
        "place": "here",
        "user_id": USER,
        "host": "desk",
        "ladder": (),
        "state": "running",
        "work": "script",
    }
    return make_cloud(attempts=(Attempt(number=1, created_at=NOON),), **about)


def follow(cloud: MemoryCloud, record: RunRecord, agent: Agent, stop: StopSignal | None = None) -> Any:
    return drive(
        cloud,
        record.run_id,
        known=record,
        poll_seconds=1.0,
        stop=stop or StopSignal(),
        agent=agent,
        sleep=lambda seconds: None,
    )


def test_it_is_followed_to_its_receipt_and_leaves_the_index(run):
    cloud, record = run
    receipt = follow(cloud, record, Agent(cloud, record.run_id, looks=3))
    assert (receipt["state"], receipt["host"], receipt["instances"]) == ("done", "desk", [])
    assert read_index(cloud.objects).ended == (record.run_id,) and not read_index(cloud.objects).open


def test_nothing_of_aws_can_be_left_of_it(run, monkeypatch):
    """Nobody is asked: with --local there is no EventBridge."""
    cloud, record = run

    def refused(*, name):
        raise ConfigError("with --local there is no scheduler to ask")

    monkeypatch.setattr(cloud, "scheduled", refused)
    assert follow(cloud, record, Agent(cloud, record.run_id, looks=3))["left"] == []


def test_a_receipt_that_s3_does_not_return_yet_is_waited_for(run, monkeypatch):
    cloud, record = run
    answers = [None, None]
    get = cloud.objects.get

    def late(*, key, **rest):
        return answers.pop() if key == receipt_key(record.run_id) and answers else get(key=key, **rest)

    monkeypatch.setattr(cloud.objects, "get", late)
    assert follow(cloud, record, Agent(cloud, record.run_id, looks=3))["state"] == "done" and not answers


def test_a_refused_first_look_leaves_no_agent_behind(run, monkeypatch):
    cloud, record = run
    refusals, get = [PermissionDenied("cannot read")], cloud.objects.get

    def refuse(*, key, **rest):
        if refusals:
            raise refusals.pop()
        return get(key=key, **rest)

    monkeypatch.setattr(cloud.objects, "get", refuse)
    assert follow(cloud, record, Agent(cloud, record.run_id, looks=3))["state"] == "done" and not refusals


def test_ctrl_c_between_two_looks_is_heard_at_once(run):
    cloud, record = run
    stop, slept = StopSignal(), []

    def sleep(seconds):
        slept.append(seconds)
        stop.wish = Wish.LEAVE

    agent = Agent(cloud, record.run_id)
    assert drive(cloud, record.run_id, poll_seconds=60.0, stop=stop, agent=agent, sleep=sleep) is None
    assert sum(slept) < 1


def test_ctrl_c_asks_the_agent_once_and_leaving_asks_nothing(run):
    cloud, record = run
    agent = Agent(cloud, record.run_id)
    assert follow(cloud, record, agent, StopSignal(wish=Wish.LEAVE)) is None and agent.asked == 0
    assert follow(cloud, record, agent, StopSignal(wish=Wish.END))["state"] == "stopped" and agent.asked == 1


def test_an_agent_that_died_without_a_word_is_told_of(run):
    cloud, record = run
    receipt = follow(cloud, record, Agent(cloud, record.run_id, looks=2, state=""))
    assert (receipt["state"], receipt["error"]["what"]) == ("interrupted", "the agent ended without a result")


def test_control_neither_starts_nor_settles_it(run):
    cloud, record = run
    cloud.clock = record.deadline.replace(year=record.deadline.year + 1)
    settling = settle_all(cloud, starts="control")
    assert not settling.problems and not settling.receipts
    assert read_record(cloud.objects, record.run_id)[0] == record
    closed = close_last(cloud, record.run_id)  # a command does: it is long past its deadline
    assert closed == f"closed {record.run_id}, which was left open: interrupted"


def test_a_last_run_whose_agent_is_gone_closes_at_once(run):
    cloud, record = run
    assert cloud.clock < record.deadline
    closed = close_last(cloud, record.run_id)
    assert closed == f"closed {record.run_id}, which was left open: interrupted"


def test_a_last_run_that_is_closed_or_unborn_is_no_obstacle(run):
    cloud, record = run
    follow(cloud, record, Agent(cloud, record.run_id, looks=3, state="failed"))
    assert close_last(cloud, record.run_id) == ""
    assert "no-such-run has no record: its start was cut short" in close_last(cloud, "no-such-run")


def test_a_stop_gives_up_while_s3_fails(run, monkeypatch):
    """Nothing is billed and nothing but S3 tells of it: its own agent ends it."""
    cloud, record = run

    def fail(**request):
        raise ConnectionFailed("cannot read s3://bucket", why="ConnectTimeout")

    monkeypatch.setattr(cloud.objects, "get", fail)
    stop = StopSignal(wish=Wish.END)
    with pytest.raises(
        ConnectionFailed, match="cannot see whether .* has ended.*ConnectTimeout.*mayfly stop"
    ):
        drive(cloud, record.run_id, known=record, poll_seconds=5.0, stop=stop, sleep=cloud.sleep)
    assert (cloud.clock - NOON).total_seconds() < 130
