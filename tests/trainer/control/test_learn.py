"""What a run took goes into the bucket when it closes, if it is done. No failure of that reaches the run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.records import created, rung
from trainer.aws.objects import Conflict
from trainer.base.errors import PermissionDenied
from trainer.control.drive import drive as drive_run
from trainer.control.learn import learn_boot, learn_time
from trainer.job.reading import job_from
from trainer.machines.shapes import shape_of
from trainer.runs import boot, calibration
from trainer.runs.boot import boots_from


@pytest.fixture
def shape(make_record):
    """Two models on four GPUs: each has one."""
    return shape_of(job_from(make_record().job).with_expert(pack=1))


def drive(cloud, record):
    return drive_run(cloud, record.run_id, poll_seconds=5.0, sleep=cloud.sleep)


PREDICTED = {"ladder": (rung(visits=1e6, predicted=(150.0, 0.0, 60.0, 30.0)),)}


def timed(cloud):
    stored = cloud.objects.get(key=calibration.OBJECT)
    return calibration.runs_from(stored.body) if stored else ()


@pytest.mark.parametrize(
    "trouble", [PermissionDenied("not allowed to write", why="AccessDenied"), Conflict("always lost")]
)
def test_trouble_with_the_memory_harms_neither_run_nor_receipt(make_cloud, monkeypatch, trouble):
    cloud, record = make_cloud(**PREDICTED)
    write = cloud.objects.put

    def put(*, key, body, **condition):
        if key.startswith("memory/"):
            raise trouble
        return write(key=key, body=body, **condition)

    monkeypatch.setattr(cloud.objects, "put", put)
    receipt = drive(cloud, record)
    assert (receipt["state"], receipt["exit_code"]) == ("done", 0) and cloud.alive() == []
    assert timed(cloud) == ()


def test_a_lost_race_is_tried_again(make_cloud, monkeypatch):
    cloud, record = make_cloud(**PREDICTED)
    write, lost = cloud.objects.put, []

    def put(*, key, body, **condition):
        if key == calibration.OBJECT and not lost:
            lost.append(key)
            raise Conflict(key)
        return write(key=key, body=body, **condition)

    monkeypatch.setattr(cloud.objects, "put", put)
    drive(cloud, record)
    assert lost and len(timed(cloud)) == 1


def test_a_closed_run_leaves_what_its_boot_took_once(make_cloud):
    cloud, _ = make_cloud()
    receipt = {
        "state": "done",
        "instances": [{"instance_type": "g6.xlarge"}],
        "boot": {"environment": 31.0, "baked": False},
    }
    learn_boot(cloud.objects, receipt)
    learn_boot(cloud.objects, {**receipt, "boot": {**receipt["boot"], "environment": 33.0}})
    stored = boots_from(cloud.objects.get(key=boot.OBJECT).body)
    assert (stored["g6.xlarge"]["plain"]["environment"], stored["g6.xlarge"]["plain"]["runs"]) == (32.0, 2.0)
    for nothing in ({**receipt, "boot": {}}, {**receipt, "instances": []}, {**receipt, "state": "failed"}):
        learn_boot(cloud.objects, nothing)
    assert boots_from(cloud.objects.get(key=boot.OBJECT).body) == stored


def test_a_closed_run_leaves_what_it_took_beside_its_plan(make_cloud, shape):
    cloud, record = make_cloud(**PREDICTED)
    receipt = drive(cloud, record)
    (run,) = timed(cloud)
    assert (run.run_id, run.visits, run.predicted) == (record.run_id, 1e6, (150.0, 0.0, 60.0, 30.0))
    assert run.case == calibration.case_of(record.place, record.ladder[0].instance_type, shape)
    took = receipt["seconds"]
    assert run.actual == (took["boot"], took["stage"], took["train"], took["upload"] + took["terminate"])
    learn_time(cloud.objects, record.with_new_launch(created()), receipt)  # whoever closes it, too
    assert timed(cloud) == (run,)


def test_a_run_on_a_machine_without_a_gpu_is_timed(make_cloud):
    """As agents are trained on one."""
    ladder = (rung("c7i.4xlarge", visits=1e6, predicted=(150.0, 0.0, 60.0, 30.0)),)
    cloud, record = make_cloud(ladder=ladder)
    seconds = dict.fromkeys(("boot", "stage", "train", "upload", "terminate"), 1.0)
    receipt = {"state": "done", "seconds": seconds, "closed_at": "2026-11-20T12:00:00Z"}
    learn_time(cloud.objects, record.with_new_launch(created()), receipt)
    (run,) = timed(cloud)
    assert run.case.split()[:2] == [record.place, "c7i.4xlarge"]


@pytest.mark.parametrize(
    "changed",
    [
        {"state": "failed"},
        {"leaves": "files"},
        {"attempts": 2},
        {"predicted": ()},
        {"parent": "20261119-120000-crypto-aaaa"},  # which had trained a part of it
    ],
)
def test_a_run_whose_phases_say_nothing_is_not_timed(make_cloud, changed):
    ladder = (rung(visits=1e6, predicted=changed.get("predicted", PREDICTED["ladder"][0].predicted)),)
    cloud, record = make_cloud(ladder=ladder)
    launched = record.with_new_launch(created())
    if changed.get("attempts"):
        launched = replace(launched, attempts=(*launched.attempts, launched.attempts[0]))
    launched = replace(
        launched, leaves=changed.get("leaves", launched.leaves), parent=changed.get("parent", "")
    )
    seconds = dict.fromkeys(("boot", "stage", "train", "upload", "terminate"), 1.0)
    receipt = {"state": changed.get("state", "done"), "seconds": seconds, "closed_at": ""}
    learn_time(cloud.objects, launched, receipt)
    assert cloud.objects.get(key=calibration.OBJECT) is None


def test_a_run_of_a_type_that_is_gone_closes_all_the_same(make_cloud):
    """As one that a later Mayfly, with other types, closes."""
    ladder = (rung("p2.xlarge", visits=1e6, predicted=(150.0, 0.0, 60.0, 30.0)),)
    cloud, record = make_cloud(ladder=ladder)
    receipt = {"state": "done", "seconds": {}, "closed_at": "2026-11-20T12:00:00Z"}
    learn_time(cloud.objects, record.with_new_launch(created()), receipt)
    assert timed(cloud) == ()
