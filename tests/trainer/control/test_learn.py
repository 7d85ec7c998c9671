"""Findings of a node's tuner go into the bucket's memory when its run closes, and no trouble with that
reaches the run.
"""

from __future__ import annotations

import pytest

from tests.jobs import MEASURED
from trainer.base.errors import PermissionDenied
from trainer.control.drive import drive as drive_run
from trainer.control.learn import learn, learn_boot
from trainer.machines.measurements import OBJECT, from_bytes
from trainer.runs import boot
from trainer.runs.boot import boots_from
from trainer.runs.store import Conflict

SHAPE = "model=lstm hidden=64"


def memory(cloud, profile: str = "l4"):
    stored = cloud.objects.get(key=OBJECT)
    return from_bytes(stored.body).get(profile) if stored else None


def drive(cloud, record):
    return drive_run(cloud, record.run_id, poll_seconds=5.0, sleep=cloud.sleep)


def test_a_closed_run_leaves_its_tuners_measurements(make_cloud):
    cloud, record = make_cloud()
    learn(cloud.objects, {"l4": {"older": MEASURED}})
    cloud.tuned = {"l4": {SHAPE: {**MEASURED, "pack": 4}}}
    assert drive(cloud, record)["state"] == "done"
    assert memory(cloud) == {"older": MEASURED, SHAPE: {**MEASURED, "pack": 4}}
    writes = [name for name in cloud.done() if "memory/" in name]
    learn(cloud.objects, cloud.tuned)  # whoever closes it too writes nothing
    assert [name for name in cloud.done() if "memory/" in name] == writes


def test_a_lost_race_is_tried_again(make_cloud, monkeypatch):
    cloud, _ = make_cloud()
    write, lost = cloud.objects.put, []

    def put(*, key, body, **condition):
        if not lost:
            lost.append(key)
            learn(cloud.objects, {"l4": {"theirs": MEASURED}})
            raise Conflict(key)
        return write(key=key, body=body, **condition)

    monkeypatch.setattr(cloud.objects, "put", put)
    learn(cloud.objects, {"l4": {SHAPE: MEASURED}})
    assert memory(cloud) == {"theirs": MEASURED, SHAPE: MEASURED}


@pytest.mark.parametrize(
    "trouble", [PermissionDenied("not allowed to write", why="AccessDenied"), Conflict("always lost")]
)
def test_trouble_with_the_memory_harms_neither_run_nor_receipt(make_cloud, monkeypatch, trouble):
    cloud, record = make_cloud()
    cloud.tuned = {"l4": {SHAPE: MEASURED}}
    write = cloud.objects.put

    def put(*, key, body, **condition):
        if key.startswith("memory/"):
            raise trouble
        return write(key=key, body=body, **condition)

    monkeypatch.setattr(cloud.objects, "put", put)
    receipt = drive(cloud, record)
    assert (receipt["state"], receipt["exit_code"]) == ("done", 0) and cloud.alive() == []
    assert memory(cloud) is None


@pytest.mark.parametrize(
    "said", [{"../run": {SHAPE: MEASURED}}, {"l4": {SHAPE: {"strategy": "rm"}}}, {"l4": 3}, {"": {}}]
)
def test_what_a_node_must_not_say_is_not_kept(make_cloud, said):
    cloud, record = make_cloud()
    cloud.tuned = said
    assert drive(cloud, record)["state"] == "done"
    assert not cloud.objects.list(prefix="memory/")


def test_a_run_without_a_tuner_writes_no_memory(make_cloud):
    cloud, record = make_cloud()
    drive(cloud, record)
    assert not cloud.objects.list(prefix="memory/")


def test_a_closed_run_leaves_what_its_boot_took_once(make_cloud):
    cloud, _ = make_cloud()
    receipt = {"instances": [{"instance_type": "g6.xlarge"}], "boot": {"environment": 31.0, "baked": False}}
    learn_boot(cloud.objects, receipt)
    learn_boot(cloud.objects, {**receipt, "boot": {**receipt["boot"], "environment": 33.0}})
    stored = boots_from(cloud.objects.get(key=boot.OBJECT).body)
    assert (stored["g6.xlarge"]["plain"]["environment"], stored["g6.xlarge"]["plain"]["runs"]) == (32.0, 2.0)
    for nothing in ({**receipt, "boot": {}}, {**receipt, "instances": []}):
        learn_boot(cloud.objects, nothing)
    assert boots_from(cloud.objects.get(key=boot.OBJECT).body) == stored
