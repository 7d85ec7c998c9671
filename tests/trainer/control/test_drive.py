"""Whole runs against a cloud in memory: every way a run ends, in order, with a receipt and nothing alive."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from tests.records import NOON
from trainer.base.errors import PermissionDenied
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


def test_progress_goes_through_the_phases_and_dollars_grow(make_cloud):
    cloud, record = make_cloud()
    told: list[RunProgress] = []
    drive(cloud, record, on_event=told.append)
    phases = list(dict.fromkeys(progress.phase for progress in told))
    assert phases == ["capacity", "boot", "train", "terminate"]
    spent = [progress.spent_usd for progress in told]
    assert spent == sorted(spent) and spent[-1] > 0
    assert any(progress.pieces.get("BTC-USD", {}).get("epoch") == 1 for progress in told)


def test_a_schedule_that_cannot_be_armed_means_no_launch(make_cloud):
    cloud, record = make_cloud()

    def refuse(*, name, run_id, at):
        raise PermissionDenied("cannot arm the schedule", why="AccessDenied")

    cloud.arm_sweep = refuse
    receipt = drive(cloud, record)
    assert (receipt["state"], receipt["exit_code"], cloud.fleets) == ("failed", 103, {})
