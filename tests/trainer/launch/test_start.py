from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.jobs import job_of
from tests.planned import offers_of, plan_of
from trainer.aws.access import Access
from trainer.aws.place import REHEARSAL
from trainer.aws.stack_outputs import StackOutputs
from trainer.base.errors import DataError
from trainer.launch.bundle import build_bundle, upload_bundle
from trainer.launch.inputs import ChosenCandles, Input
from trainer.launch.prices import PricedTypes
from trainer.launch.start import record_of, write_task
from trainer.launch.tasks import training_task
from trainer.launch.work import Account, TrainingWork
from trainer.machines.instances import instance_type
from trainer.machines.planner import workload
from trainer.runs.index import INDEX_KEY
from trainer.runs.manifest import ManifestInput, read_manifest
from trainer.runs.record import from_iso
from trainer.runs.record_json import record_from_json
from trainer.runs.store import Conflict, Stored, bars_plan_key, manifest_key, record_key

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
CANDLES = ChosenCandles(timeframe="1m", bars={"BTC-USD": 100_000}, synthetic=False)


class Memory:
    """The bucket as a list of writes."""

    def __init__(self) -> None:
        self.written: dict[str, bytes] = {}

    def get(self, *, key: str, version_id: str = "", first_bytes: int = 0) -> Stored | None:
        body = self.written.get(key)
        return None if body is None else Stored(key=key, etag="etag", modified_at=NOW, body=body)

    def head(self, *, key: str, version_id: str = "") -> Stored | None:
        body = self.written.get(key)
        return (
            None
            if body is None
            else Stored(key=key, etag="etag", modified_at=NOW, version_id="v1", size=len(body))
        )

    def put(self, *, key: str, body: bytes, if_match: str = "", create: bool = False) -> str:
        if create and key in self.written:
            raise Conflict(key)
        self.written[key] = body
        return "etag"

    def list(self, *, prefix: str, most: int = 0) -> tuple[Stored, ...]:
        return tuple(
            Stored(key=key, etag="etag", modified_at=NOW) for key in self.written if key.startswith(prefix)
        )


def record_and_plan():
    plan = plan_of(JOB, workload(JOB, {"BTC-USD": 100_000}), OFFERS, place=REHEARSAL)
    work = TrainingWork(job=JOB, code=build_bundle(), candles=CANDLES)
    account = Account(access=Access(place=REHEARSAL), outputs=OUTPUTS, objects=Memory())
    return record_of(work, plan, account, preflight_at=NOW - timedelta(seconds=5), now=NOW), plan


def registered(record, chosen, memory, *, job=JOB, offers=OFFERS, ssh_key=""):
    """Register a training on these candles, and return its manifest."""
    task = training_task(record, job, chosen, memory, offers)
    write_task(record, task, build_bundle(), memory, offers=offers, ssh_key=ssh_key)
    return read_manifest(memory.written[manifest_key(record.run_id)])


def test_a_new_record_is_an_intent_with_deadline_budget_and_ladder():
    record, plan = record_and_plan()
    assert record.run_id.startswith("20261120-120000-crypto-")
    assert (record.state, record.attempts, record.instances) == ("starting", (), ())
    assert (record.deadline, record.deadline_cause) == (NOW + timedelta(hours=2), "max_duration")
    assert (record.budget_usd, record.ladder, record.job) == (2.0, plan.ladder, JOB.to_dict())
    assert record.estimated_usd == plan.first.dollars_p50


def test_plan_and_manifest_are_there_before_the_record_that_names_them():
    record, _ = record_and_plan()
    memory = Memory()
    item = Input(key="raw/main/a.csv", version_id="v", sha256="5" * 64, bytes=1)
    chosen = ChosenCandles(
        timeframe="1m", bars={"BTC-USD": 1}, synthetic=False, inputs=(item,), bars_plan=b"{}"
    )
    manifest = registered(record, chosen, memory, ssh_key="ssh-ed25519 AAAA")
    keys = (bars_plan_key(record.run_id), manifest_key(record.run_id), INDEX_KEY, record_key(record.run_id))
    assert list(memory.written) == list(keys)
    candles, plan = manifest.inputs
    assert candles == ManifestInput(path="data/a.csv", **item.pinned())
    sha256 = hashlib.sha256(b"{}").hexdigest()
    assert plan == ManifestInput(path="given/plan.json", key=keys[0], version_id="", sha256=sha256, bytes=2)
    assert manifest.ssh_key == "ssh-ed25519 AAAA"
    assert manifest.code == {"key": record.bundle_key, "sha256": record.bundle_sha256}
    assert record_from_json(memory.written[record_key(record.run_id)]) == record


def test_a_manifest_of_a_killed_call_is_replaced_after_that_call_must_have_ended():
    record, _ = record_and_plan()
    memory = Memory()
    chosen = ChosenCandles(timeframe="1m", bars={"BTC-USD": 1}, synthetic=False)
    memory.written[manifest_key(record.run_id)] = (
        b"left"  # at NOW, by a call that ended before it wrote the record
    )
    for minutes in (0, 10):
        with pytest.raises(Conflict):  # that call may still be at work
            later = replace(record, created_at=NOW + timedelta(minutes=minutes))
            registered(later, chosen, memory)
    later = replace(record, created_at=NOW + timedelta(minutes=16))
    assert registered(later, chosen, memory).run_id == record.run_id
    manifest, stored = memory.written[manifest_key(record.run_id)], memory.written[record_key(record.run_id)]
    assert record_from_json(stored) == later
    with pytest.raises(Conflict):  # a registered run's manifest never changes
        registered(replace(record, created_at=NOW + timedelta(days=1)), chosen, memory)
    assert memory.written[manifest_key(record.run_id)] == manifest


def test_a_machine_counts_its_dollars_by_the_prices_of_its_region():
    record, _ = record_and_plan()
    memory, machine = Memory(), replace(instance_type("g6.xlarge"), price_usd_per_hour=1.23)
    offers = replace(OFFERS, priced=PricedTypes(machines=(machine,), basis="list prices of eu-west-1"))
    chosen = ChosenCandles(timeframe="1m", bars={"BTC-USD": 1}, synthetic=False)
    manifest = registered(record, chosen, memory, offers=offers)
    assert manifest.machines["g6.xlarge"].usd_per_hour == 1.23


def test_a_machine_counts_the_dollars_of_a_spot_instance_by_its_zone():
    record, _ = record_and_plan()
    rungs = [
        replace(record.ladder[0], market="spot", availability_zone=zone, price_usd_per_hour=price)
        for zone, price in {"us-east-1a": 0.31, "us-east-1b": 0.35}.items()
    ]
    memory, chosen = Memory(), ChosenCandles(timeframe="1m", bars={"BTC-USD": 1}, synthetic=False)
    record = replace(record, ladder=(*rungs, *record.ladder))
    machine = registered(record, chosen, memory).machines["g6.xlarge"]
    assert machine.spot_usd_per_hour == {"us-east-1a": 0.31, "us-east-1b": 0.35}
    assert machine.usd_per_hour == instance_type("g6.xlarge").price_usd_per_hour


def test_the_manifest_pins_the_encoder_that_a_desk_has_sent_and_a_run_without_it_is_not_registered():
    record, _ = record_and_plan()
    memory, sha256 = Memory(), "0" * 64
    job = job_of(
        model="tcn", encoder="one.safetensors", encoder_sha256=sha256, symbols=("BTC-USD",), timeframe="1m"
    )
    chosen = ChosenCandles(timeframe="1m", bars={"BTC-USD": 1}, synthetic=False)
    with pytest.raises(
        DataError, match=f"the encoder one.safetensors is not in the bucket .there is no raw/.files/{sha256}"
    ):
        registered(record, chosen, memory, job=job)
    assert not memory.written
    memory.written[f"raw/.files/{sha256}"] = b"weights"
    manifest = registered(record, chosen, memory, job=job)
    pinned = {"key": f"raw/.files/{sha256}", "version_id": "v1", "sha256": sha256, "bytes": 7}
    assert manifest.inputs == (ManifestInput(path=f"given/{sha256}", **pinned),)
    assert manifest.job["model"]["encoder"] == sha256, "beside the job"


def test_the_same_code_is_uploaded_once():
    memory, bundle = Memory(), build_bundle()
    for _ in range(2):
        upload_bundle(bundle, memory)
    assert sum(Path(key).suffix == ".whl" for key in memory.written) == 1
