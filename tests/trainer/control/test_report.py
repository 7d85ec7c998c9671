"""The report of a run that ends: stored after its record is closed, made of what S3 has, in no run's way."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.manifests import manifest
from tests.records import at
from tests.trainer.conftest import weights
from tests.trainer.runs.test_training_events import EPOCH, PROGRESS
from trainer.base.errors import ConnectionFailed, PermissionDenied
from trainer.base.html import document, embedded_json
from trainer.control import report as module
from trainer.control.drive import drive as drive_run
from trainer.control.report import report_of
from trainer.retrains.entries import retrain_of, run_id_of
from trainer.runs.record import RunRecord
from trainer.runs.record_json import to_json
from trainer.runs.store import manifest_key, read_record, report_key
from trainer.runs.stored_receipt import read_receipt
from trainer.store.decisions import GateDecision, ModelVersion, create_decisions
from trainer.store.scores import ASKED_FILE, Asked, AskedModel, AskedPiece


def told(page: bytes) -> Any:
    return json.loads(embedded_json(page))


@pytest.fixture
def closed(make_cloud):
    """A closed run whose node left events; its record and receipt."""
    cloud, record = make_cloud()
    lines = b"\n".join(json.dumps(one).encode() for one in (EPOCH, {**EPOCH, "epoch": 2}, PROGRESS, 5))
    cloud.objects.write(f"attempts/AROA1:i-0000/{record.run_id}/1/0/metrics/000001.jsonl", lines)
    drive_run(cloud, record.run_id, poll_seconds=5.0, sleep=cloud.sleep)
    record, _ = read_record(cloud.objects, record.run_id)
    receipt = read_receipt(cloud.objects, record.run_id)
    assert receipt is not None
    return cloud, record, receipt


def test_a_run_leaves_its_report_with_curves_phases_and_models(closed):
    cloud, record, receipt = closed
    data = told(cloud.objects.body(report_key(record.run_id)))
    assert data["run"]["run_id"] == record.run_id and data["missing"] == {}
    assert [row["piece"] for row in data["models"]["rows"]] == [one["piece"] for one in receipt["models"]]
    (curve,) = data["curves"]["pieces"]
    assert (curve["piece"], curve["x"]) == ("BTC-USD", [1, 2])
    phases = [name for name, *_ in data["lanes"][0]["segments"]]
    assert phases[:3] == ["preflight", "boot", "stage"]  # this cloud has capacity at once
    assert any("closed" in event[3] for event in data["events"]["rows"])


@pytest.mark.parametrize(
    "fault", [ConnectionFailed("no answer"), PermissionDenied("no"), RuntimeError("ours")]
)
def test_a_report_that_fails_is_in_no_runs_way(make_cloud, monkeypatch, fault, capsys):
    def fail(*_: Any) -> bytes:
        raise fault

    monkeypatch.setattr(module, "make_report", fail)
    cloud, record = make_cloud()
    receipt = drive_run(cloud, record.run_id, poll_seconds=5.0, sleep=cloud.sleep)
    assert receipt is not None and receipt["state"] == "done"
    assert read_record(cloud.objects, record.run_id)[0].state == "closed"
    assert cloud.objects.get(key=report_key(record.run_id)) is None
    assert ("RuntimeError" in capsys.readouterr().err) == isinstance(fault, RuntimeError)


def test_events_that_are_too_large_are_left_out_with_the_reason(closed, monkeypatch):
    cloud, record, receipt = closed
    monkeypatch.setattr(module, "MOST_EVENT_BYTES", 10)
    data = told(module.make_report(cloud, record, receipt)[0])
    assert data["curves"] is None and "mayfly pull has the curves" in data["missing"]["curves"]
    assert data["models"]["rows"]


def test_a_part_that_s3_refuses_is_left_out(closed, monkeypatch):
    cloud, record, receipt = closed
    get = cloud.objects.get

    def refuse(*, key: str, **rest: Any) -> Any:
        if key.endswith((".safetensors", "manifest.json", "/result.json")):
            raise ConnectionFailed("S3 does not answer")
        return get(key=key, **rest)

    monkeypatch.setattr(cloud.objects, "get", refuse)
    data = told(module.make_report(cloud, record, receipt)[0])
    assert set(data["missing"]) == {"manifest", "cards", "reports"}
    assert data["curves"]["pieces"] and data["models"]["rows"]


def test_a_report_without_what_s3_failed_to_show_is_not_stored(make_cloud, monkeypatch):
    cloud, record = make_cloud()
    get, fails = cloud.objects.get, True

    def refuse(*, key: str, **rest: Any) -> Any:
        if fails and key.endswith("manifest.json"):
            raise ConnectionFailed("S3 does not answer")
        return get(key=key, **rest)

    monkeypatch.setattr(cloud.objects, "get", refuse)
    receipt = drive_run(cloud, record.run_id, poll_seconds=5.0, sleep=cloud.sleep)
    assert receipt is not None
    record, _ = read_record(cloud.objects, record.run_id)
    assert set(told(report_of(cloud, record, receipt))["missing"]) == {"manifest"}
    assert get(key=report_key(record.run_id)) is None
    fails = False
    assert told(report_of(cloud, record, receipt))["missing"] == {}
    assert get(key=report_key(record.run_id)) is not None


def test_a_stored_report_is_drawn_anew(closed):
    cloud, record, receipt = closed
    stored = cloud.objects.body(report_key(record.run_id))
    data = {**told(stored), "verdict": "</script><script>alert(1)"}
    evil = document("t", style="", body="<script>alert(1)</script>", scripts=["alert(1)"], data=data)
    cloud.objects.write(report_key(record.run_id), evil.encode())
    shown = report_of(cloud, record, receipt)
    assert told(shown) == data and b"alert(1)</script>" not in shown and b"<script>alert" not in shown


@pytest.mark.parametrize("stored", [None, b"<script>alert(1)</script>"])
def test_a_report_that_is_missing_or_forged_is_made_now(closed, stored):
    cloud, record, receipt = closed
    first = cloud.objects.body(report_key(record.run_id))
    del cloud.objects.stored[report_key(record.run_id)]
    if stored is not None:
        cloud.objects.write(report_key(record.run_id), stored)
    assert report_of(cloud, record, receipt) == first
    assert cloud.objects.body(report_key(record.run_id)) == (stored or first)


def test_a_production_model_is_that_of_the_runs_group(closed, monkeypatch):
    cloud, record, receipt = closed
    file = receipt["models"][0]["key"].rpartition("/")[2]
    for group in ("aaa", "main", "zzz"):
        cloud.objects.write(f"models/production/{group}/{file}", b"model", "ab" * 32)
    monkeypatch.setattr(
        module,
        "card_of",
        lambda objects, *, key: SimpleNamespace(metrics={"of": key}) if objects.get(key=key) else None,
    )
    (shown,) = module._production(cloud.objects, record, receipt).values()
    assert shown.name.startswith("main/") and shown.metrics["of"].endswith(file)


def test_the_groups_model_is_found_behind_many_others(closed, monkeypatch):
    cloud, record, receipt = closed
    name = receipt["models"][0]["key"].rpartition("/")[2].removesuffix(".safetensors")
    monkeypatch.setattr(module, "MOST_CHAMPIONS", 3)
    for number in range(5):
        cloud.objects.write(f"models/production/aaa/lstm_S{number}_1m.safetensors", b"model")
    cloud.objects.write(f"models/production/main/{name}.safetensors", weights(name))
    (shown,) = module._production(cloud.objects, record, receipt).values()
    assert shown.name == f"main/{name}"


def decision(record: RunRecord, piece: str, *, run_id: str = "", score_run_id: str = "s") -> GateDecision:
    version = ModelVersion(key="k", version_id="v", sha256="ab" * 32)
    return GateDecision(
        piece=piece, name="crypto/a", run_id=run_id or record.run_id, score_run_id=score_run_id,
        decided_at=record.created_at, gate="test", challenge=1, promote=True, reason="better by far",
        challenger=version, champion=version, numbers={"champion": {"gain": 0.25, "low": 0.125, "high": "much"}},
    )  # fmt: skip


def test_a_command_adds_the_gates_decisions_to_the_page(closed):
    cloud, record, receipt = closed
    run_id, piece = record.run_id, receipt["models"][0]["piece"]
    made = decision(record, piece)
    assert "gate" not in told(report_of(cloud, record, receipt))
    create_decisions(cloud.objects, retrain_of(run_id), run_id, [made])
    assert "gate" not in told(report_of(cloud, record, receipt))  # a run of a desk has none
    data = told(report_of(cloud, replace(record, driver="control", handed_over_at=None), receipt))
    (row,) = data["gate"]
    assert (row["piece"], row["promote"], row["reason"]) == (piece, True, "better by far")
    assert row["gain"] == [0.25, 0.125, None]
    assert "gate" not in told(cloud.objects.body(report_key(run_id)))


def test_a_scheduled_run_names_its_retrain():
    assert retrain_of(run_id_of("two-words", at(0))) == "two-words"


def test_a_score_runs_page_has_its_scores_and_decisions(closed):
    cloud, record, receipt = closed
    record = replace(record, driver="control", handed_over_at=None, work="score")
    receipt = {**receipt, "work": "score", "models": []}
    trained, retrain = "20261129-010000-weekly-aaaaaa", retrain_of(record.run_id)

    def model(side: Any, key: str) -> AskedModel:
        return AskedModel(side=side, path=f"models/{side}", key=key, version_id="v", sha256="ab" * 32)

    ours, theirs = model("challenger", f"models/{trained}/a"), model("champion", "models/production/c/a")
    asked = Asked(
        pieces=(AskedPiece(piece="A", models=(ours, theirs)), AskedPiece(piece="B", since=9, models=(ours,))),
        until=10,
    )
    made = manifest(run_id=record.run_id, documents={ASKED_FILE: asked.to_json()})
    cloud.objects.write(manifest_key(record.run_id), to_json(made))
    del cloud.objects.stored[report_key(record.run_id)]
    data = told(report_of(cloud, record, receipt))
    labels = dict(data["asked"])
    assert labels["scored"] == f"2 models of {trained}, 1 against production, on newer bars alone"
    assert labels["work"] == "score" and not {"training", "machine", "budget"} & set(labels)
    assert "gate" not in data
    of_this, of_another = (
        decision(record, piece, run_id=trained, score_run_id=score_run)
        for piece, score_run in (("A", record.run_id), ("B", "another"))
    )
    create_decisions(cloud.objects, retrain, trained, [of_this, of_another])
    assert [one["piece"] for one in told(report_of(cloud, record, receipt))["gate"]] == ["A"]
