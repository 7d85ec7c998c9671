from __future__ import annotations

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
    with pytest.raises(ValueError, match="format 6, this version reads 7"):
        record_from_json(text.replace('"format": 7,', '"format": 6,', 1))
