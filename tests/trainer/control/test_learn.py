"""Measurements of a node go into the bucket when its run closes: of runs that are done, of their own shape and
chip, and only what their time does not contradict. No failure of that reaches the run.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.jobs import MEASURED
from tests.records import created, rung
from trainer.base.errors import PermissionDenied
from trainer.control.drive import drive as drive_run
from trainer.control.learn import learn, learn_boot, learn_time
from trainer.job.job import job_from
from trainer.machines.measurements import OBJECT, from_bytes, shape_of, to_bytes
from trainer.runs import boot, calibration
from trainer.runs.boot import boots_from
from trainer.runs.store import Conflict

CHIP, OTHER = "a10g", "l4"  # of g5.12xlarge, the type of these runs, and of none


@pytest.fixture
def shape(make_record):
    """Two models on four GPUs: each is timed with one."""
    return shape_of(job_from(make_record().job).with_expert(pack=1))


def memory(cloud, profile=CHIP):
    stored = cloud.objects.get(key=OBJECT)
    return from_bytes(stored.body).get(profile) if stored else None


def remember(cloud, **entries):
    cloud.objects.write(OBJECT, to_bytes({CHIP: entries}))


def drive(cloud, record):
    return drive_run(cloud, record.run_id, poll_seconds=5.0, sleep=cloud.sleep)


def taught(cloud, record, measured, *, seconds=60.0, state="done"):
    """Close a run whose training took so long, and return what the bucket then has of its chip."""
    launched = record.with_new_launch(created())
    learn(cloud.objects, launched, {"state": state, "seconds": {"train": seconds}}, measured)
    return memory(cloud)


def test_a_closed_run_leaves_its_tuners_measurements(make_cloud, shape):
    cloud, record = make_cloud()
    remember(cloud, older=MEASURED)
    cloud.tuned = {CHIP: {shape: {**MEASURED, "pack": 4}}}
    assert drive(cloud, record)["state"] == "done"
    assert memory(cloud) == {"older": MEASURED, shape: {**MEASURED, "pack": 4}}


def test_whoever_closes_it_too_writes_nothing(make_cloud, shape):
    cloud, record = make_cloud()
    for _ in range(2):
        assert taught(cloud, record, {CHIP: {shape: MEASURED}}) == {shape: MEASURED}
    assert len(cloud.objects.stored[OBJECT]) == 1


@pytest.mark.parametrize("state", ["failed", "stopped", "expired", "interrupted", "unconfirmed"])
def test_a_run_that_is_not_done_teaches_nothing(make_cloud, shape, state):
    cloud, record = make_cloud()
    assert taught(cloud, record, {CHIP: {shape: MEASURED}}, state=state) is None


def test_a_run_teaches_its_own_chip_and_shape_alone(make_cloud, shape):
    cloud, record = make_cloud()
    others = {shape: MEASURED, f"{shape} inputs=9": MEASURED, "model=tcn width=8": MEASURED}
    assert taught(cloud, record, {CHIP: others, OTHER: others}) == {shape: MEASURED}
    assert memory(cloud, OTHER) is None
    scripts = replace(record, leaves="files")
    assert taught(cloud, scripts, {CHIP: {shape: {**MEASURED, "pack": 4}}}) == {shape: MEASURED}


# 9e5 windows a second with 8 models at a time; 2 models on 4 devices: 56,250 on each. In an hour 2e8.
AN_HOUR = {"ladder": (rung(visits=3600 * 56_250.0),)}


@pytest.mark.parametrize(
    ("seconds", "agrees"),
    [(3600, True), (800, True), (3 * 3600, True), (300, False), (4 * 3600, False)],
)
def test_a_rate_that_its_own_run_contradicts_is_not_kept(make_cloud, shape, seconds, agrees):
    cloud, record = make_cloud(**AN_HOUR)
    found = taught(cloud, record, {CHIP: {shape: MEASURED}}, seconds=seconds)
    assert found == ({shape: MEASURED} if agrees else None)


def test_a_run_without_pieces_contradicts_nothing(make_cloud, shape):
    cloud, record = make_cloud(**AN_HOUR, pieces=())
    assert taught(cloud, record, {CHIP: {shape: MEASURED}}, seconds=9e9) == {shape: MEASURED}


def test_a_rate_that_a_later_run_contradicts_is_dropped(make_cloud, shape):
    made_up = {**MEASURED, "windows_per_second": 9e6}
    cloud, record = make_cloud(**AN_HOUR)
    remember(cloud, older=MEASURED, **{shape: made_up})
    assert taught(cloud, record, {}, seconds=900)[shape] == made_up  # it may have stopped early
    assert taught(cloud, record, {}, seconds=3600, state="failed")[shape] == made_up
    assert taught(cloud, record, {}, seconds=3600) == {"older": MEASURED}  # the next run measures again
    assert taught(cloud, record, {CHIP: {shape: MEASURED}}, seconds=3600)[shape] == MEASURED


def test_a_lost_race_is_tried_again(make_cloud, shape, monkeypatch):
    cloud, record = make_cloud()
    write, lost = cloud.objects.put, []

    def put(*, key, body, **condition):
        if not lost:
            lost.append(key)
            remember(cloud, theirs=MEASURED)
            raise Conflict(key)
        return write(key=key, body=body, **condition)

    monkeypatch.setattr(cloud.objects, "put", put)
    assert taught(cloud, record, {CHIP: {shape: MEASURED}}) == {"theirs": MEASURED, shape: MEASURED}


@pytest.mark.parametrize(
    "trouble", [PermissionDenied("not allowed to write", why="AccessDenied"), Conflict("always lost")]
)
def test_trouble_with_the_memory_harms_neither_run_nor_receipt(make_cloud, shape, monkeypatch, trouble):
    cloud, record = make_cloud()
    cloud.tuned = {CHIP: {shape: MEASURED}}
    write = cloud.objects.put

    def put(*, key, body, **condition):
        if key.startswith("memory/"):
            raise trouble
        return write(key=key, body=body, **condition)

    monkeypatch.setattr(cloud.objects, "put", put)
    receipt = drive(cloud, record)
    assert (receipt["state"], receipt["exit_code"]) == ("done", 0) and cloud.alive() == []
    assert memory(cloud) is None


@pytest.mark.parametrize("entry", [{"strategy": "rm"}, {**MEASURED, "windows_per_second": 1e13}, 3, None])
def test_what_a_node_must_not_say_is_not_kept(make_cloud, entry, shape):
    cloud, record = make_cloud()
    cloud.tuned = {CHIP: {shape: entry}}
    assert drive(cloud, record)["state"] == "done"
    assert not cloud.objects.list(prefix="memory/")


def test_a_run_without_a_tuner_writes_no_memory(make_cloud):
    cloud, record = make_cloud()
    drive(cloud, record)
    assert not cloud.objects.list(prefix="memory/")


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


PREDICTED = {"ladder": (rung(visits=1e6, predicted=(150.0, 0.0, 60.0, 30.0)),)}


def timed(cloud):
    stored = cloud.objects.get(key=calibration.OBJECT)
    return calibration.runs_from(stored.body) if stored else ()


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


@pytest.mark.parametrize(
    "changed", [{"state": "failed"}, {"leaves": "files"}, {"attempts": 2}, {"predicted": ()}]
)
def test_a_run_whose_phases_say_nothing_is_not_timed(make_cloud, changed):
    ladder = (rung(visits=1e6, predicted=changed.get("predicted", PREDICTED["ladder"][0].predicted)),)
    cloud, record = make_cloud(ladder=ladder)
    launched = record.with_new_launch(created())
    if changed.get("attempts"):
        launched = replace(launched, attempts=(*launched.attempts, launched.attempts[0]))
    launched = replace(launched, leaves=changed.get("leaves", launched.leaves))
    seconds = dict.fromkeys(("boot", "stage", "train", "upload", "terminate"), 1.0)
    receipt = {"state": changed.get("state", "done"), "seconds": seconds, "closed_at": "", "created_at": ""}
    learn_time(cloud.objects, launched, receipt)
    assert timed(cloud) == ()
