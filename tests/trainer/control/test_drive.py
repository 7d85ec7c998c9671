"""Whole runs against a cloud in memory: every way a run ends, in order, with a receipt and nothing alive."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from tests.records import NOON
from trainer.base.errors import ConnectionFailed, EmbeddedAwsGone, PermissionDenied, UsageError
from trainer.base.instants import from_iso
from trainer.control.drive import drive as drive_run
from trainer.control.drive import start
from trainer.control.fleet import FleetAnswer
from trainer.control.observe import reports
from trainer.control.progress import RunProgress
from trainer.control.stop import StopSignal
from trainer.runs import capacity
from trainer.runs.capacity import full_from, to_bytes, with_full
from trainer.runs.observation import Remains
from trainer.runs.record_json import record_from_json
from trainer.runs.store import read_record, receipt_key, record_key
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


def test_a_machine_that_is_lost_after_hours_is_replaced(make_cloud):
    cloud, record = make_cloud(deadline=NOON + timedelta(hours=6))
    cloud.work, cloud.losses = timedelta(hours=1), {1: (timedelta(hours=2), "Server.SpotInstanceTermination")}
    cloud.node_works = False
    looks = 0

    def sleep(seconds: float) -> None:
        nonlocal looks
        looks += 1
        cloud.node_works = len(cloud.machines) > 1
        cloud.sleep(60.0)

    receipt = drive_run(cloud, record.run_id, poll_seconds=5.0, sleep=sleep)
    assert (receipt["state"], receipt["error"], len(receipt["attempts"])) == ("done", None, 2)
    assert cloud.alive() == [] and looks < 1000


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


def test_a_desk_that_wakes_without_a_network_waits_for_it(make_cloud):
    """It slept past the end of the run: its first looks fail, and say nothing of the machine."""
    cloud, record = make_cloud()
    real, slept, failures = cloud.instances, [], [8]

    def instances(*, run_id):
        if slept and failures[0]:
            failures[0] -= 1
            raise ConnectionFailed("cannot describe the instances", why="EndpointConnectionError")
        return real(run_id=run_id)

    def sleep(seconds):
        cloud.sleep(seconds)
        if not slept and cloud.alive() and cloud.clock > record.created_at + timedelta(minutes=2):
            slept.append(cloud.clock)
            cloud.clock += timedelta(hours=10)

    cloud.instances = instances
    receipt = drive_run(cloud, record.run_id, poll_seconds=5.0, sleep=sleep)
    assert slept and not failures[0] and (receipt["state"], receipt["exit_code"]) == ("done", 0)


def test_a_desk_without_a_network_gives_up_after_half_an_hour(make_cloud):
    cloud, record = make_cloud()
    real, looks = cloud.instances, []

    def instances(*, run_id):
        looks.append(cloud.clock)
        if len(looks) > 20:
            raise ConnectionFailed("cannot describe the instances", why="EndpointConnectionError")
        return real(run_id=run_id)

    cloud.instances, cloud.work = instances, timedelta(hours=3)
    receipt = drive_run(cloud, record.run_id, poll_seconds=5.0, sleep=cloud.sleep)
    assert receipt["state"] == "unconfirmed"
    assert timedelta(minutes=30) < cloud.clock - record.deadline < timedelta(minutes=31)


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


def test_a_laptop_that_slept_past_the_end_waits_for_its_network(make_cloud):
    """It wakes before its network does; the run ended hours ago, and is closed."""
    cloud, record = make_cloud()
    real, failures, slept = cloud.instances, iter(range(4)), []

    def instances(*, run_id):
        if slept and next(failures, None) is not None:
            raise ConnectionFailed("cannot describe the instances", why="EndpointConnectionError")
        return real(run_id=run_id)

    def sleep(progress):
        if progress.phase == "train" and not slept:
            slept.append(cloud.clock)
            cloud.clock += timedelta(hours=8)
            cloud.advance()

    cloud.instances = instances
    receipt = drive(cloud, record, on_event=sleep)
    assert receipt["state"] != "unconfirmed" and cloud.alive() == []


def test_a_receipt_that_s3_lacks_at_first_is_asked_for_again(make_cloud, monkeypatch):
    cloud, record = make_cloud()
    real, failures = cloud.objects.get, iter(range(3))

    def get(*, key, **more):
        is_closed = read_record_of(real).state == "closed" if key == receipt_key(record.run_id) else False
        if is_closed and next(failures, None) is not None:
            raise ConnectionFailed("cannot read the receipt", why="ReadTimeout")
        return real(key=key, **more)

    def read_record_of(get):
        return record_from_json(get(key=record_key(record.run_id)).body)

    monkeypatch.setattr(cloud.objects, "get", get)
    assert drive(cloud, record)["state"] == "done" and list(failures) == []


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
