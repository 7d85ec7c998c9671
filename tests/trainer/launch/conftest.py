"""A run record with one stored intent, as every launch test starts from."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from trainer.config import Job
from trainer.runs.record import Attempt, Launch, Rung, RunRecord

NOW = datetime(2026, 11, 20, 12, 0, 0, tzinfo=timezone.utc)


@pytest.fixture
def rung() -> Rung:
    return Rung(
        instance_type="g6.12xlarge",
        availability_zone="us-east-1b",
        subnet_id="subnet-b",
        market="on_demand",
        price_usd_per_hour=4.6,
        on_demand_usd_per_hour=4.6,
        gpu_count=4,
        launch_template_id="lt-1",
        image_id="ami-1",
    )


@pytest.fixture
def launch() -> Launch:
    deadline = NOW + timedelta(hours=1, microseconds=999_999)
    return Launch(rung=0, token="token-1", deadline=deadline, intended_at=NOW)


@pytest.fixture
def record(rung: Rung, launch: Launch) -> RunRecord:
    return RunRecord(
        run_id="20261120-120000-crypto-lstm-k3v9",
        project="mayfly",
        stack="dev",
        owner="ada",
        rehearsal=False,
        bucket="bucket",
        job=Job().to_dict(),
        ladder=(rung,),
        bundle_key="code/abc.whl",
        bundle_sha256="abc",
        budget_usd=0.0,
        estimated_usd=1.0,
        estimated_seconds=600.0,
        preflight_at=NOW,
        created_at=NOW,
        deadline=NOW + timedelta(hours=2),
        attempts=(Attempt(number=1), Attempt(number=2, launches=(launch,))),
    )
