"""Whole runs against a cloud in memory that are stopped by Ctrl-C, or left to control."""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import pytest

from tests.pieces import named
from tests.trainer.control.test_drive import drive, pressing
from trainer.base.errors import ConnectionFailed, Stopped
from trainer.control.drive import start, step
from trainer.control.settle import settle_run
from trainer.control.stop import StopSignal, Wish
from trainer.runs.store import read_record


def test_the_first_press_uploads_what_is_finished(make_cloud):
    cloud, record = make_cloud()
    cloud.work = timedelta(minutes=20)
    stop = StopSignal()

    receipt = drive(cloud, record, stop=stop, on_event=pressing(stop, "train"))
    assert (receipt["state"], receipt["exit_code"]) == ("stopped", 130)
    assert [model["piece"] for model in receipt["models"]] == ["BTC-USD"]
    assert receipt["failed"] == [{**named("ETH-USD"), "reason": "not finished when the run ended (stopped)"}]
    assert cloud.alive() == []


@pytest.mark.parametrize(
    ("place", "command"), [("account", "mayfly status {}"), ("rehearsal", "mayfly status {} --rehearse")]
)
def test_a_press_while_it_ends_gives_up_waiting(make_cloud, place, command):
    cloud, record = make_cloud(place=place)
    cloud.node_stops = False
    stop = StopSignal()

    with pytest.raises(Stopped, match="2026-11-20T13:00:00Z") as left:
        drive(cloud, record, stop=stop, on_event=pressing(stop, "train", times=2))
    assert command.format(record.run_id) + " shows" in str(left.value)
    assert cloud.alive() == ["i-0000"]
    assert set(cloud.schedules) == {f"mayfly-{record.run_id}-sweep", f"mayfly-{record.run_id}-kill-1"}


class ScriptedQuestion:
    """A user at a terminal: what he answers at each poll, None for nothing yet."""

    def __init__(self, *answers: Wish | None) -> None:
        self._answers, self.log = list(answers), []

    def open(self) -> None:
        self.log.append("open")

    def answer(self) -> Wish | None:
        return self._answers.pop(0) if self._answers else None

    def close(self) -> None:
        self.log.append("close")


def test_the_first_press_asks_while_the_run_goes_on(make_cloud):
    cloud, record = make_cloud()
    cloud.work = timedelta(minutes=20)
    question = ScriptedQuestion(*[None] * 20, Wish.GO_ON)
    stop = StopSignal(question)
    receipt = drive(cloud, record, stop=stop, on_event=pressing(stop, "train"))
    assert receipt["state"] == "done" and question.log == ["open", "close"]


def test_leaving_requests_no_stop(make_cloud):
    cloud, record = make_cloud()
    cloud.work = timedelta(minutes=20)
    stop = StopSignal(ScriptedQuestion(None, Wish.LEAVE))
    assert drive(cloud, record, stop=stop, on_event=pressing(stop, "train")) is None
    left, _ = read_record(cloud.objects, record.run_id)
    assert (left.state, left.stop_requested_at, left.driver) == ("running", None, "control")
    assert drive(cloud, left)["state"] == "done"


def test_a_run_is_left_once_both_schedules_are_armed(make_cloud):
    cloud, record = make_cloud()
    stop = StopSignal(ScriptedQuestion(Wish.LEAVE))
    stop.press()
    assert drive(cloud, record, stop=stop) is None
    assert cloud.alive() == ["i-0000"] and len(cloud.schedules) == 2


def test_the_second_press_ends_the_run_whatever_the_answer(make_cloud):
    cloud, record = make_cloud()
    cloud.work = timedelta(minutes=20)
    question = ScriptedQuestion()
    stop = StopSignal(question)
    receipt = drive(cloud, record, stop=stop, on_event=pressing(stop, "train", times=2))
    assert receipt["state"] == "stopped" and question.log == ["open", "close"]


def test_a_question_that_is_open_when_the_run_ends_is_taken_back(make_cloud):
    cloud, record = make_cloud()
    question = ScriptedQuestion()
    with StopSignal(question).installed() as stop:
        assert drive(cloud, record, stop=stop, on_event=pressing(stop, "train"))["state"] == "done"
        assert question.log == ["open"]
    assert question.log == ["open", "close"]


def test_after_an_answer_the_next_press_asks_again():
    question = ScriptedQuestion(Wish.GO_ON, Wish.END)
    stop = StopSignal(question)
    for _ in range(2):
        stop.press()
        stop.attend()
    assert stop.wish is Wish.END and question.log == ["open", "close"] * 2


def test_a_press_before_there_is_an_instance_starts_none(make_cloud):
    cloud, record = make_cloud()
    stop = StopSignal()
    stop.press()
    receipt = drive(cloud, record, stop=stop)
    assert (receipt["state"], receipt["instances"]) == ("stopped", [])
    assert cloud.fleets == {}


def test_a_node_that_ignores_the_stop_is_ended_after_the_grace(make_cloud):
    cloud, record = make_cloud()
    cloud.node_works = cloud.node_stops = False
    stop = StopSignal()

    receipt = drive(cloud, record, stop=stop, on_event=pressing(stop, "train"))
    assert receipt["state"] == "stopped"
    assert cloud.alive() == []


def test_a_detached_launch_leaves_once_both_schedules_are_armed(make_cloud):
    cloud, record = make_cloud()
    left = start(cloud, record.run_id, poll_seconds=5.0, sleep=cloud.sleep)
    assert (left.state, left.attempts[0].launches[0].instance_ids) == ("running", ("i-0000",))
    assert set(cloud.schedules) == {f"mayfly-{record.run_id}-sweep", f"mayfly-{record.run_id}-kill-1"}
    assert cloud.alive() == ["i-0000"]


def test_control_goes_on_at_once_with_a_run_that_was_left(make_cloud):
    cloud, record = make_cloud()
    left = start(cloud, record.run_id, poll_seconds=5.0, sleep=cloud.sleep)
    assert (left.driver, left.handed_over_at) == ("control", cloud.clock)
    cloud.end("i-0000", "Server.SpotInstanceTermination")
    cloud.sleep(120)  # until it is gone
    assert not step_moves_on(cloud, record), "a desk that comes back settles, and starts nothing"
    assert settle_run(cloud, record.run_id, starts="control").look.record.state == "running"
    assert list(cloud.machines) == ["i-0000", "i-0001"]


def step_moves_on(cloud, record) -> bool:
    """Look as a desk that drives until nothing moves; return whether it made a machine."""
    while step(cloud, record.run_id).moved:
        pass
    return len(cloud.machines) > 1


def test_a_run_that_cannot_be_handed_over_is_left_all_the_same(make_cloud, monkeypatch):
    cloud, record = make_cloud()

    def refused(*arguments, **named):
        raise ConnectionFailed("no answer", why="ConnectTimeout")

    monkeypatch.setattr("trainer.control.drive.leave_to_control", refused)
    left = start(cloud, record.run_id, poll_seconds=5.0, sleep=cloud.sleep)
    assert (left.state, left.driver) == ("running", "desk")


@pytest.mark.parametrize("detached", [True, False])
def test_a_run_in_line_is_left_to_control_at_once(make_cloud, detached):
    cloud, record = make_cloud(queue_seconds=600.0)
    cloud.full = {"us-east-1a", "us-east-1b"}
    if detached:
        left = start(cloud, record.run_id, poll_seconds=5.0, sleep=cloud.sleep)
    else:
        stop = StopSignal(ScriptedQuestion(Wish.LEAVE))
        stop.press()
        assert drive(cloud, record, stop=stop) is None
        left = read_record(cloud.objects, record.run_id)[0]
    assert (left.state, left.driver, left.attempt.waits) == ("starting", "control", True)
    assert cloud.clock < record.created_at + timedelta(minutes=1)
    cloud.full.clear()
    assert not step_moves_on(cloud, record) and not cloud.machines, "its desk has left"
    cloud.clock = left.attempt.queue.next_at
    assert settle_run(cloud, record.run_id, starts="control").look.record.state == "running"
    assert drive(cloud, record)["state"] == "done" and len(cloud.fleets) == 1


def test_a_detached_launch_without_capacity_has_its_receipt(make_cloud):
    cloud, record = make_cloud()
    cloud.full = {"us-east-1a", "us-east-1b"}
    left = start(cloud, record.run_id, poll_seconds=5.0, sleep=cloud.sleep)
    assert (left.state, left.outcome) == ("closed", "failed")


def test_control_c_is_counted_and_the_old_handler_comes_back():
    before = signal.getsignal(signal.SIGINT)
    stop = StopSignal()
    with stop.installed():
        os.kill(os.getpid(), signal.SIGINT)
        assert (stop.presses, stop.wish) == (1, Wish.END)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wish is Wish.ABANDON
    assert signal.getsignal(signal.SIGINT) is before
