"""Whole runs against a cloud in memory: every way a run ends, in order, with a receipt and nothing alive."""

from __future__ import annotations

import os
import signal
from datetime import datetime, timedelta, timezone

import pytest

from tests.pieces import named
from trainer.base.errors import ConnectionFailed, EmbeddedAwsGone, PermissionDenied, Stopped, UsageError
from trainer.base.instants import from_iso
from trainer.control.drive import drive as drive_run
from trainer.control.drive import start, step
from trainer.control.fleet import FleetAnswer
from trainer.control.observe import reports
from trainer.control.progress import RunProgress
from trainer.control.settle import settle_run
from trainer.control.stop import StopSignal, Wish
from trainer.runs import capacity
from trainer.runs.capacity import full_from, to_bytes, with_full
from trainer.runs.observation import Remains
from trainer.runs.store import read_record
from trainer.runs.timeline import timeline


def pressing(stop: StopSignal, phase: str, times: int = 1):
    """Return an `on_event` that presses Ctrl-C so often in a phase."""

    def press(progress: RunProgress) -> None:
        if progress.phase == phase and stop.presses < times:
            stop.press()

    return press


def drive(cloud, record, **options):
    return drive_run(cloud, record.run_id, poll_seconds=5.0, sleep=cloud.sleep, **options)


def test_a_run_ends_done_with_its_models_and_nothing_alive(make_cloud):
    cloud, record = make_cloud()
    receipt = drive(cloud, record)
    assert (receipt["state"], receipt["exit_code"], receipt["error"]) == ("done", 0, None)
    assert [model["piece"] for model in receipt["models"]] == ["BTC-USD", "ETH-USD"]
    assert [(item["state"], item["proof"]) for item in receipt["instances"]] == [
        ("terminated", "described terminated")
    ]
    assert cloud.alive() == []
    assert cloud.schedules == {}


def test_intent_and_deadline_are_stored_before_the_launch(make_cloud):
    cloud, record = make_cloud()
    drive(cloud, record)
    key, start = f"put runs/{record.run_id}/run.json", f"put runs/{record.run_id}/attempts/1/start.json"
    assert cloud.done()[:6] == [start, key, "arm_sweep", key, "create_fleet", key]
    others = [name for name in cloud.done() if name != key]
    assert others[:5] == [start, "arm_sweep", "create_fleet", "arm_kill", start]


def test_the_receipt_comes_after_the_end_and_before_the_close(make_cloud):
    cloud, record = make_cloud()
    drive(cloud, record)
    run = f"put runs/{record.run_id}"
    closing = [f"{run}/receipt.json", f"{run}/run.json", "put runs/index.json", f"{run}/report.html"]
    assert cloud.done()[-6:] == ["delete_schedule", "delete_schedule", *closing]


def test_no_capacity_anywhere_is_exit_101_and_names_the_pools(make_cloud):
    cloud, record = make_cloud()
    cloud.full = {"us-east-1a", "us-east-1b"}
    receipt = drive(cloud, record)
    assert (receipt["state"], receipt["exit_code"], receipt["instances"]) == ("failed", 101, [])
    assert (
        "us-east-1a" in receipt["error"]["why"] and "InsufficientInstanceCapacity" in receipt["error"]["why"]
    )
    assert cloud.schedules == {}


def test_a_run_in_line_shows_its_last_error_and_next_try(make_cloud):
    cloud, record = make_cloud(queue_seconds=600.0)
    cloud.full, told = {"us-east-1a", "us-east-1b"}, []

    def tell(progress):
        told.append(progress)
        if cloud.clock > record.created_at + timedelta(minutes=4):
            cloud.full.clear()

    receipt = drive(cloud, record, on_event=tell)
    assert receipt["state"] == "done"
    assert sum(progress.message.startswith("waiting for capacity since 12:00:") for progress in told) > 3
    waiting = [progress.waiting for progress in told if progress.waiting]
    assert waiting[0]["error_code"] == "InsufficientInstanceCapacity" and waiting[0]["tries"] == 1
    assert waiting[0]["pool"] == "g5.12xlarge on-demand in us-east-1b" and waiting[-1]["tries"] > 1
    assert all(from_iso(item["next_at"]) <= from_iso(item["until"]) for item in waiting)
    assert told[-1].waiting is None and receipt["seconds"]["capacity"] > 240


def test_a_run_in_line_ends_at_its_timeout(make_cloud):
    cloud, record = make_cloud(queue_seconds=600.0)
    cloud.full = {"us-east-1a", "us-east-1b"}
    receipt = drive(cloud, record)
    assert (receipt["exit_code"], receipt["instances"]) == (101, []) and cloud.schedules == {}
    assert "tries of the whole ladder within 10 min" in receipt["error"]["why"]
    assert receipt["seconds"]["capacity"] < 620


def test_a_full_pool_is_remembered_across_runs(make_cloud):
    cloud, record = make_cloud()
    cloud.full = {"us-east-1a"}
    drive(cloud, record)
    assert list(full_from(cloud.objects.body(capacity.OBJECT), record.created_at)) == [
        "g5.12xlarge on_demand us-east-1a"
    ]
    other, later = make_cloud()
    other.objects.write(capacity.OBJECT, to_bytes(with_full({}, record.ladder[0], other.clock)))
    start(other, later.run_id, poll_seconds=5.0, sleep=other.sleep)
    launches = read_record(other.objects, later.run_id)[0].attempts[0].launches
    assert [launch.rung for launch in launches] == [1]


def test_the_receipt_says_what_is_left_as_it_was_seen(make_cloud):
    cloud, record = make_cloud()
    assert drive(cloud, record)["left"] == []
    cloud, record = make_cloud()
    cloud.remains = (Remains(kind="volume", id="vol-1", state="available"),)
    receipt = drive(cloud, record)
    assert receipt["left"] == [{"kind": "volume", "id": "vol-1", "state": "available"}]


def test_a_receipt_is_written_if_nobody_may_look_for_remains(make_cloud):
    cloud, record = make_cloud()

    def refuse(**_):
        raise PermissionDenied("not allowed to look")

    cloud.left = refuse
    receipt = drive(cloud, record)
    assert (receipt["state"], receipt["left"]) == ("done", None)


def test_the_timeline_of_a_run_has_its_nodes_reports(make_cloud):
    cloud, record = make_cloud()
    drive(cloud, record)
    closed = read_record(cloud.objects, record.run_id)[0]
    told = [event.what for event in timeline(closed, reports(cloud, closed))]
    assert told[0] == "registered" and told[-1] == "closed"
    assert told.index("phase train") < told.index("reported done") < told.index("ends: done")


@pytest.mark.parametrize(
    ("code", "times", "exit_code", "zones"),
    [
        ("InsufficientInstanceCapacity", 1, 0, ["us-east-1b"]),
        ("InvalidFleetConfiguration", 1, 0, ["us-east-1b"]),
        ("Unsupported", 1, 0, ["us-east-1b"]),
        ("NeverHeardOf", 1, 0, ["us-east-1b"]),
        ("InternalError", 2, 0, ["us-east-1a"]),
        ("RequestLimitExceeded", 2, 0, ["us-east-1a"]),
        ("VcpuLimitExceeded", 9, 102, []),
        ("UnauthorizedOperation", 9, 103, []),
    ],
)
def test_an_error_in_an_answer_leads_on_or_to_the_end(make_cloud, code, times, exit_code, zones):
    cloud, record = make_cloud()
    cloud.errors = [code] * times
    receipt = drive(cloud, record)
    assert (receipt["state"], receipt["exit_code"]) == ("failed" if exit_code else "done", exit_code)
    assert [item["availability_zone"] for item in receipt["instances"]] == zones
    assert len(cloud.fleets) == len(zones) and len(cloud.refused) == (1 if exit_code else times)


def hidden_for(cloud, lag):
    """Let EC2 show instances by their tag only after a while."""
    shown = cloud.instances
    late = lambda one: cloud.clock >= one.launched_at + lag  # noqa: E731
    cloud.instances = lambda *, run_id: tuple(filter(late, shown(run_id=run_id)))


LOST = FleetAnswer(kind="unclear", code="ReadTimeoutError", message="timed out")
EXPIRED = FleetAnswer(kind="refused", of_the_call=True, code="ExpiredToken", message="sign in")


def test_a_refused_replay_says_nothing_of_the_first_call(
    make_cloud,
):
    cloud, record = make_cloud()
    cloud.node_beats = cloud.node_works = False
    cloud.answers = [LOST, EXPIRED]
    hidden_for(cloud, timedelta(minutes=4))
    receipt = drive(cloud, record)
    assert (receipt["state"], receipt["exit_code"]) == ("failed", 103)
    assert [item["state"] for item in receipt["instances"]] == ["terminated"]
    assert (len(cloud.fleets), cloud.alive(), cloud.schedules) == (1, [], {})


def test_a_run_stopped_after_a_lost_answer_is_not_replayed(make_cloud):
    cloud, record = make_cloud()
    cloud.node_beats = cloud.node_works = False
    cloud.answers = [LOST] * 9
    hidden_for(cloud, timedelta(hours=9))
    stop = StopSignal()
    receipt = drive(cloud, record, stop=stop, on_event=lambda progress: progress.last_error and stop.press())
    assert (receipt["state"], receipt["instances"]) == ("stopped", [])
    assert cloud.done().count("create_fleet") == 1
    assert timedelta(minutes=5) <= cloud.clock - record.created_at < timedelta(minutes=6)
    assert cloud.schedules == {f"mayfly-{record.run_id}-sweep": record.deadline}, "it ends what appears late"


def test_after_two_lost_answers_an_appearing_instance_is_adopted(make_cloud):
    cloud, record = make_cloud()
    cloud.answers = [LOST, LOST]
    hidden_for(cloud, timedelta(minutes=3))
    receipt = drive(cloud, record)
    assert (receipt["state"], len(receipt["instances"]), len(cloud.fleets)) == ("done", 1, 1)
    assert cloud.done().count("create_fleet") == 2


def test_a_token_that_is_never_answered_gives_way_to_another(make_cloud):
    cloud, record = make_cloud()
    cloud.lost_calls = 2
    receipt = drive(cloud, record)
    assert (receipt["state"], len(receipt["instances"])) == ("done", 1)
    assert timedelta(minutes=5) < cloud.clock - record.created_at < timedelta(minutes=12)
    assert len(cloud.fleets) == 1 and cloud.done().count("create_fleet") == 3
    assert list(cloud.schedules) == [f"mayfly-{record.run_id}-sweep"], "it ends what appears late"


def test_a_late_instance_of_a_given_up_token_is_ended(make_cloud):
    cloud, record = make_cloud()
    cloud.answers = [LOST, LOST]
    hidden_for(cloud, timedelta(minutes=7))
    cloud.node_works = True
    cloud.work = timedelta(minutes=20)
    receipt = drive(cloud, record)
    assert receipt["state"] == "done"
    first, second = sorted(receipt["instances"], key=lambda item: item["launched_at"])
    assert (first["state"], second["state"]) == ("terminated", "terminated")
    assert first["terminated_at"] < second["terminated_at"]
    assert all(
        model["key"].startswith(f"models/experiments/AROA1:{second['instance_id']}/")
        for model in receipt["models"]
    )


def test_an_error_inside_every_answer_ends_the_run(make_cloud):
    cloud, record = make_cloud(deadline=datetime(2026, 11, 20, 12, 22, tzinfo=timezone.utc))
    cloud.errors = ["Unavailable"] * 999
    receipt = drive(cloud, record)
    assert (receipt["state"], receipt["exit_code"], cloud.fleets) == ("failed", 103, {})
    assert "Unavailable" in receipt["error"]["why"]
    # half of its time
    assert timedelta(minutes=11) <= cloud.clock - record.created_at < timedelta(minutes=12)


def test_an_answer_that_cannot_be_stored_leaves_the_intent_open(make_cloud):
    """CreateFleet took effect, S3 refuses the record once for good, and EC2 shows the instance half a minute
    later.
    """
    cloud, record = make_cloud()
    real_put, real_instances = cloud.objects.put, cloud.instances

    def put(*, key, body, if_match="", create=False):
        if cloud.fleets and b'"created"' in body and not denied:
            denied.append(cloud.clock)
            raise PermissionDenied("cannot write the record", why="AccessDenied")
        return real_put(key=key, body=body, if_match=if_match, create=create)

    denied = []
    cloud.objects.put = put
    late = timedelta(seconds=30)
    cloud.instances = lambda *, run_id: (
        real_instances(run_id=run_id) if denied and cloud.clock > denied[0] + late else ()
    )
    receipt = drive(cloud, record)
    assert (receipt["state"], receipt["exit_code"]) == ("failed", 103)
    assert [item["state"] for item in receipt["instances"]] == ["terminated"]
    assert cloud.alive() == []


def lost_from_sight(cloud, name, looks):
    """Let S3 answer 404 for an object, the first times that it is read once the caller asks for that many."""
    shown, asked = cloud.objects.get, []

    def get(*, key, **more):
        if key.endswith(name) and len(asked) < looks:
            asked.append(key)
            return None
        return shown(key=key, **more)

    cloud.objects.get = get
    return asked


def test_a_known_record_that_is_not_found_is_looked_for_again(make_cloud):
    cloud, record = make_cloud()
    begun, errors = [], []

    def hide(progress: RunProgress) -> None:
        errors.append(progress.last_error)
        if progress.state == "running" and not begun:
            begun.append(lost_from_sight(cloud, "/run.json", 5))

    assert drive(cloud, record, on_event=hide)["state"] == "done"
    assert len(begun[0]) == 5
    assert "is not found now (S3 may lose sight of it" in next(filter(None, errors))


def test_a_registered_record_is_looked_for_again(make_cloud):
    cloud, record = make_cloud()
    lost_from_sight(cloud, "/run.json", 1)
    with pytest.raises(UsageError, match="no run"):
        drive(cloud, record)
    lost_from_sight(cloud, "/run.json", 3)
    stop = StopSignal()
    stop.press()
    assert drive(cloud, record, known=record, stop=stop)["state"] == "stopped"


def test_a_permission_missing_at_the_first_look_ends_the_command(make_cloud):
    cloud, record = make_cloud()

    def denied(*, run_id):
        raise PermissionDenied("cannot describe instances", why="UnauthorizedOperation")

    cloud.instances = denied
    with pytest.raises(PermissionDenied):
        drive(cloud, record, known=record)


def test_the_receipt_of_a_closed_run_is_looked_for_for_a_while(make_cloud):
    cloud, record = make_cloud()
    asked = lost_from_sight(cloud, "/receipt.json", 3)
    receipt = drive(cloud, record)
    assert (receipt["state"], len(asked)) == ("done", 3)
    lost_from_sight(cloud, "/receipt.json", 999)
    with pytest.raises(ConnectionFailed, match="does not return its receipt"):
        drive(cloud, record)


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


def test_a_run_past_its_deadline_is_terminated_and_expired(make_cloud):
    cloud, record = make_cloud()
    cloud.node_works = False
    receipt = drive(cloud, record)
    assert (receipt["state"], receipt["exit_code"]) == ("expired", 104)
    assert cloud.alive() == []
    assert cloud.clock < record.deadline + timedelta(minutes=2)


def test_the_budget_makes_the_deadline(make_cloud):
    cloud, record = make_cloud(budget_usd=1.0)
    cloud.node_works = False
    receipt = drive(cloud, record)
    assert receipt["state"] == "expired"
    assert "the budget" in receipt["error"]["why"] and receipt["deadline"] in receipt["error"]["what"]
    assert receipt["deadline_cause"] == "budget"
    # a dollar buys 12 minutes of 5 dollars an hour
    assert cloud.clock < record.created_at + timedelta(minutes=14)


def test_a_job_that_silences_two_machines_at_one_place_fails(make_cloud):
    cloud, record = make_cloud()
    cloud.node_works = False

    def hang(progress: RunProgress) -> None:
        cloud.node_beats = progress.phase != "train"

    receipt = drive(cloud, record, on_event=hang)
    assert (receipt["state"], receipt["exit_code"]) == ("failed", 100)
    assert "silent" in receipt["error"]["what"]
    assert "two machines died at one place" in receipt["error"]["why"]
    assert [item["cause"] for item in receipt["attempts"]] == ["lost", "bug"]
    assert cloud.clock < record.created_at + timedelta(minutes=15)


def test_a_spot_instance_taken_back_costs_one_attempt(make_cloud, make_record):
    ladder = tuple(
        type(rung)(**(vars(rung) | {"market": "spot", "price_usd_per_hour": 2.0}))
        for rung in make_record().ladder
    )
    cloud, record = make_cloud(ladder=ladder)

    def take_back(progress: RunProgress) -> None:
        if progress.elapsed_seconds > 120:
            cloud.end("i-0000", "Server.SpotInstanceTermination")

    receipt = drive(cloud, record, on_event=take_back)
    assert (receipt["state"], receipt["exit_code"]) == ("done", 0)
    first, second = receipt["attempts"]
    assert (first["cause"], first["error"]["code"], second["cause"]) == ("lost", 105, "")
    assert [item["availability_zone"] for item in receipt["instances"]] == ["us-east-1a", "us-east-1b"]
    assert first["spent_high"] + second["spent_high"] == pytest.approx(receipt["dollars"]["spent_high"])
    assert cloud.alive() == [] and cloud.schedules == {}


def test_an_unconfirmed_end_is_a_loud_warning_and_exit_110(make_cloud):
    cloud, record = make_cloud()
    cloud.node_works = False
    cloud.terminate = lambda *, instance_ids: None
    warnings = []
    receipt = drive(cloud, record, on_event=lambda progress: warnings.append(progress.warning))
    assert (receipt["state"], receipt["exit_code"]) == ("unconfirmed", 110)
    assert any("i-0000" in warning and "may still cost money" in warning for warning in warnings)
    assert f"runs/{record.run_id}/receipt.json" not in cloud.objects.stored


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


def test_progress_goes_through_the_phases_and_dollars_grow(make_cloud):
    cloud, record = make_cloud()
    told: list[RunProgress] = []
    drive(cloud, record, on_event=told.append)
    phases = list(dict.fromkeys(progress.phase for progress in told))
    assert phases == ["capacity", "boot", "train", "terminate"]
    spent = [progress.spent_usd for progress in told]
    assert spent == sorted(spent) and spent[-1] > 0
    assert any(progress.pieces.get("BTC-USD", {}).get("epoch") == 1 for progress in told)


def test_an_aws_error_is_told_and_tried_again(make_cloud):
    cloud, record = make_cloud()
    real, failures = cloud.instances, iter(range(40))

    def instances(*, run_id):
        if 5 < next(failures, 99) < 10:
            raise ConnectionFailed("cannot describe the instances", why="ReadTimeout")
        return real(run_id=run_id)

    cloud.instances = instances
    told: list[str] = []
    assert drive(cloud, record, on_event=lambda progress: told.append(progress.last_error))["state"] == "done"
    assert any("ReadTimeout" in error for error in told)


def test_a_run_that_cannot_be_looked_at_at_all_is_an_error(make_cloud):
    cloud, record = make_cloud()
    with pytest.raises(UsageError, match="no run"):
        drive_run(cloud, "20990101-000000-nothing-aaaa", poll_seconds=5.0, sleep=cloud.sleep)


def test_a_schedule_that_cannot_be_armed_means_no_launch(make_cloud):
    cloud, record = make_cloud()

    def refuse(*, name, run_id, at):
        raise PermissionDenied("cannot arm the schedule", why="AccessDenied")

    cloud.arm_sweep = refuse
    receipt = drive(cloud, record)
    assert (receipt["state"], receipt["exit_code"], cloud.fleets) == ("failed", 103, {})


def test_control_c_is_counted_and_the_old_handler_comes_back():
    before = signal.getsignal(signal.SIGINT)
    stop = StopSignal()
    with stop.installed():
        os.kill(os.getpid(), signal.SIGINT)
        assert (stop.presses, stop.wish) == (1, Wish.END)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wish is Wish.ABANDON
    assert signal.getsignal(signal.SIGINT) is before


def test_a_run_of_an_ended_embedded_aws_is_not_followed(make_cloud, monkeypatch):
    cloud, record = make_cloud()
    looks = []

    def instances(*, run_id):
        looks.append(run_id)
        raise EmbeddedAwsGone("the embedded AWS has ended")

    def on_event(progress):
        monkeypatch.setattr(cloud, "instances", instances)

    with pytest.raises(EmbeddedAwsGone):
        drive(cloud, record, on_event=on_event)
    assert len(looks) == 1
