from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import timedelta
from functools import cache
from pathlib import Path

import pytest

from tests.jobs import job_of, with_settings
from tests.planned import offers_of, plan_of
from tests.trainer.control.conftest import MemoryCloud, MemoryObjects
from trainer.aws.access import Access
from trainer.aws.objects import Conflict
from trainer.aws.place import REHEARSAL
from trainer.aws.stack_outputs import StackOutputs
from trainer.base.errors import DataError
from trainer.base.instants import from_iso
from trainer.launch.bundle import Bundle, build_bundle, upload_bundle
from trainer.launch.inputs import ChosenCandles, Input
from trainer.launch.prices import PricedTypes
from trainer.launch.start import record_of, write_task
from trainer.launch.tasks import training_task
from trainer.launch.work import Account, TrainingWork
from trainer.machines.instances import instance_type
from trainer.machines.planner import dollars, workload
from trainer.runs.index import INDEX_KEY
from trainer.runs.manifest import ManifestInput, read_manifest
from trainer.runs.record_json import record_from_json
from trainer.runs.store import bars_plan_key, manifest_key, record_key

NOW = from_iso("2026-11-20T12:00:00Z")
JOB = job_of(
    name="crypto",
    instance=("g6.xlarge",),
    symbols=("BTC-USD",),
    timeframe="1m",
    budget=2.0,
    max_duration="2h",
)
OFFERS = offers_of("g6.xlarge", zones={"g6.xlarge": ("us-east-1a",)})
OUTPUTS = StackOutputs(
    project="mayfly",
    stack="dev",
    owner="ada",
    region="us-east-1",
    bucket="bucket",
    subnets={"us-east-1a": "subnet-a"},
    instance_role_id="AROA1",
    max_lifetime_minutes=720,
)
LEFT_OUT = ("ETH-USD.csv: high is not above zero in a bar of ETH-USD",)
CANDLES = ChosenCandles(timeframe="1m", bars={"BTC-USD": 100_000}, synthetic=False, refused=LEFT_OUT)


@cache
def code() -> Bundle:
    """Return the bundle of this checkout, which takes half a core-second."""
    return build_bundle()


def memory() -> MemoryObjects:
    """Return an empty bucket."""
    return MemoryCloud(NOW).objects


def record_and_plan(job=JOB, *, bundle=None, **about):
    plan = plan_of(job, workload(job, {"BTC-USD": 100_000}), OFFERS, place=REHEARSAL)
    work = TrainingWork(job=job, code=bundle or code(), candles=CANDLES)
    account = Account(access=Access(place=REHEARSAL), outputs=OUTPUTS, objects=memory())
    return record_of(work, plan, account, preflight_at=NOW - timedelta(seconds=5), now=NOW, **about), plan


@pytest.mark.parametrize(
    ("driver", "asked", "minutes"),
    [("control", "", 60), ("control", "0", 0), ("control", "5h", 300), ("desk", "", 0), ("desk", "20m", 20)],
)
def test_a_scheduled_run_waits_an_hour_for_capacity(driver, asked, minutes):
    """Unless its job says otherwise: nobody is there on a Sunday to choose another machine."""
    record, _ = record_and_plan(with_settings(JOB, queue_timeout=asked), driver=driver)
    assert (record.driver, record.queue_seconds) == (driver, minutes * 60)


def registered(record, chosen, objects, *, job=JOB, offers=OFFERS, ssh_key=""):
    """Register a training on these candles, and return its manifest."""
    task = training_task(record, job, chosen, objects, offers)
    write_task(record, task, code(), objects, offers=offers, ssh_key=ssh_key)
    return read_manifest(objects.body(manifest_key(record.run_id)))


def test_a_new_record_has_deadline_budget_and_ladder():
    record, plan = record_and_plan()
    assert record.run_id.startswith("20261120-120000-crypto-")
    assert (record.state, record.attempts, record.instances) == ("starting", (), ())
    assert (record.deadline, record.deadline_cause) == (NOW + timedelta(hours=2), "max_duration")
    assert (record.budget_usd, record.ladder, record.job) == (2.0, plan.ladder, JOB.to_dict())
    here = plan.first.here  # a rehearsal's run takes this desk's seconds
    assert here is not None and record.estimated_usd == pytest.approx(
        dollars(here.phases.seconds_p50, plan.first.price_usd_per_hour)
    )
    assert record.left_out == LEFT_OUT


def test_plan_and_manifest_are_written_before_the_record():
    record, _ = record_and_plan()
    objects = memory()
    item = Input(key="raw/main/a.csv", version_id="v", sha256="5" * 64, bytes=1)
    chosen = ChosenCandles(
        timeframe="1m", bars={"BTC-USD": 1}, synthetic=False, inputs=(item,), bars_plan=b"{}"
    )
    manifest = registered(record, chosen, objects, ssh_key="ssh-ed25519 AAAA")
    keys = (bars_plan_key(record.run_id), manifest_key(record.run_id), INDEX_KEY, record_key(record.run_id))
    assert list(objects.stored) == list(keys)
    candles, plan = manifest.inputs
    assert candles == ManifestInput(path="data/a.csv", **item.pinned())
    sha256 = hashlib.sha256(b"{}").hexdigest()
    assert plan == ManifestInput(path="given/plan.json", key=keys[0], version_id="", sha256=sha256, bytes=2)
    assert manifest.ssh_key == "ssh-ed25519 AAAA"
    assert manifest.code == {"key": record.bundle_key, "sha256": record.bundle_sha256}
    assert record_from_json(objects.body(record_key(record.run_id))) == record


def test_a_manifest_of_a_killed_call_is_replaced_later():
    record, _ = record_and_plan()
    objects = memory()
    chosen = ChosenCandles(timeframe="1m", bars={"BTC-USD": 1}, synthetic=False)
    # at NOW, by a call that ended before it wrote the record
    objects.write(manifest_key(record.run_id), b"left")
    for minutes in (0, 10):
        with pytest.raises(Conflict):  # that call may still be at work
            later = replace(record, created_at=NOW + timedelta(minutes=minutes))
            registered(later, chosen, objects)
    later = replace(record, created_at=NOW + timedelta(minutes=16))
    assert registered(later, chosen, objects).run_id == record.run_id
    manifest, stored = objects.body(manifest_key(record.run_id)), objects.body(record_key(record.run_id))
    assert record_from_json(stored) == later
    with pytest.raises(Conflict):  # a registered run's manifest never changes
        registered(replace(record, created_at=NOW + timedelta(days=1)), chosen, objects)
    assert objects.body(manifest_key(record.run_id)) == manifest


def test_a_machine_has_the_prices_of_its_region():
    record, _ = record_and_plan()
    objects, machine = memory(), replace(instance_type("g6.xlarge"), price_usd_per_hour=1.23)
    offers = replace(OFFERS, priced=PricedTypes(machines=(machine,), basis="list prices of eu-west-1"))
    chosen = ChosenCandles(timeframe="1m", bars={"BTC-USD": 1}, synthetic=False)
    manifest = registered(record, chosen, objects, offers=offers)
    assert manifest.machines["g6.xlarge"].usd_per_hour == 1.23


def test_a_spot_machine_has_the_prices_of_its_zones():
    record, _ = record_and_plan()
    rungs = [
        replace(record.ladder[0], market="spot", availability_zone=zone, price_usd_per_hour=price)
        for zone, price in {"us-east-1a": 0.31, "us-east-1b": 0.35}.items()
    ]
    objects, chosen = memory(), ChosenCandles(timeframe="1m", bars={"BTC-USD": 1}, synthetic=False)
    record = replace(record, ladder=(*rungs, *record.ladder))
    machine = registered(record, chosen, objects).machines["g6.xlarge"]
    assert machine.spot_usd_per_hour == {"us-east-1a": 0.31, "us-east-1b": 0.35}
    assert machine.usd_per_hour == instance_type("g6.xlarge").price_usd_per_hour


def test_the_manifest_pins_an_encoder_that_was_sent():
    record, _ = record_and_plan()
    objects, sha256 = memory(), "0" * 64
    job = job_of(
        model="tcn", encoder="one.safetensors", encoder_sha256=sha256, symbols=("BTC-USD",), timeframe="1m"
    )
    chosen = ChosenCandles(timeframe="1m", bars={"BTC-USD": 1}, synthetic=False)
    with pytest.raises(
        DataError, match=f"the encoder one.safetensors is not in the bucket .there is no raw/.files/{sha256}"
    ):
        registered(record, chosen, objects, job=job)
    assert not objects.stored
    objects.write(f"raw/.files/{sha256}", b"weights")
    manifest = registered(record, chosen, objects, job=job)
    pinned = {"key": f"raw/.files/{sha256}", "version_id": "v1", "sha256": sha256, "bytes": 7}
    assert manifest.inputs == (ManifestInput(path=f"given/{sha256}", **pinned),)
    assert manifest.job["model"]["encoder"] == sha256, "beside the job"


def test_the_same_code_is_uploaded_once():
    objects, bundle = memory(), code()
    for _ in range(2):
        upload_bundle(bundle, objects)
    assert sum(Path(key).suffix == ".whl" for key in objects.stored) == 1
