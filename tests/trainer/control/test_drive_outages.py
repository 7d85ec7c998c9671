"""A driven run whose looks fail: S3 that lags, a network that is away, an account that refuses."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.trainer.control.test_drive import drive
from trainer.base.errors import ConnectionFailed, EmbeddedAwsGone, PermissionDenied, UsageError
from trainer.control.drive import drive as drive_run
from trainer.control.progress import RunProgress
from trainer.control.stop import StopSignal
from trainer.runs.launching import latest_start
from trainer.runs.record_json import record_from_json
from trainer.runs.store import receipt_key, record_key


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


@pytest.mark.parametrize("p90_seconds", [0.0, 3000.0])
def test_a_start_whose_schedule_never_arms_says_so(make_cloud, make_record, p90_seconds):
    """It ended at its deadline with 'Raise --max-duration', or bought a machine for its last minutes."""
    ladder = [replace(rung, p90_seconds=p90_seconds) for rung in make_record().ladder]
    cloud, record = make_cloud(ladder=tuple(ladder))
    latest = latest_start(record, record.ladder[0])

    def fails(**_):
        raise ConnectionFailed("cannot arm the schedule", why="ThrottlingException")

    cloud.arm_sweep = fails
    receipt = drive(cloud, record)
    assert (receipt["state"], receipt["exit_code"], receipt["instances"]) == ("failed", 103, [])
    assert (receipt["error"]["what"], receipt["error"]["why"]) == (
        "cannot arm the schedule",
        "ThrottlingException",
    )
    assert latest <= cloud.clock < latest + timedelta(minutes=2)
