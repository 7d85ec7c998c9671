from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pytest

from trainer.runs.record import Attempt, Launch, Rung, RunRecord
from trainer.runs.record_json import record_from_json, to_json

NOW = datetime(2026, 11, 20, 23, 59, 12, tzinfo=timezone.utc)
RUNG = Rung(
    instance_type="g5.12xlarge",
    availability_zone="us-east-1a",
    subnet_id="subnet-1",
    market="spot",
    price_usd_per_hour=2.0,
    on_demand_usd_per_hour=5.672,
    gpu_count=4,
    launch_template_id="lt-1",
    image_id="ami-1",
)


def test_a_record_survives_json_and_ignores_what_a_newer_writer_added():
    record = RunRecord(
        run_id="r",
        project="mayfly",
        stack="dev",
        owner="me",
        place="rehearsal",
        bucket="b",
        job={"epochs": 1},
        ladder=(RUNG,),
        bundle_key="code/x.whl",
        bundle_sha256="x",
        budget_usd=0.0,
        estimated_usd=1.0,
        preflight_at=NOW,
        created_at=NOW,
        deadline=NOW + timedelta(hours=1),
        attempts=(
            Attempt(
                number=1,
                launches=(Launch(rung=0, token="t", deadline=NOW, intended_at=NOW, instance_ids=("i-1",)),),
            ),
        ),
    )
    text = to_json(record)
    assert record_from_json(text) == record
    assert record_from_json(text.replace('"owner": "me",', '"owner": "me", "later": 1,')) == record
    with pytest.raises(ValueError, match="format 9, this version reads 1, 2, 3, 4, 5, 6"):
        record_from_json(text.replace('"format": 6,', '"format": 9,', 1))


def test_a_record_of_format_1_is_read_with_unknown_causes_and_keeps_its_format(make_record):
    launch = Launch(
        rung=0, token="t", deadline=NOW, intended_at=NOW, outcome="refused", error_code="Unsupported"
    )
    values = json.loads(to_json(make_record(attempts=(Attempt(number=1, launches=(launch,)),))))
    values["format"] = 1
    del values["deadline_cause"]
    for rung in values["ladder"]:
        del rung["vcpus"], rung["quota_code"], rung["default_seconds"], rung["estimate_seconds"]
    old = values["attempts"][0]
    old["ended_at"] = None
    for name in ("deadline_cause", "called_at", "calls"):
        del old["launches"][0][name]
    old["launches"][0] |= {"error_class": "type", "error": {"code": 103, "what": "x", "why": "", "do": ""}}
    record = record_from_json(json.dumps(values))
    assert (record.format, record.deadline_cause, record.attempts[0].launches[0]) == (1, "unknown", launch)
    assert json.loads(to_json(record))["format"] == 1
