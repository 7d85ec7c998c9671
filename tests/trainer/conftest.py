"""Run records by hand: what the tests of runs, control and the verbs start from."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from trainer.runs.record import Rung, RunRecord

START = datetime(2026, 11, 20, 12, 0, 0, tzinfo=timezone.utc)


def rung(instance_type: str = "g5.12xlarge", zone: str = "us-east-1a", market: str = "on_demand") -> Rung:
    return Rung(
        instance_type=instance_type,
        availability_zone=zone,
        subnet_id=f"subnet-{zone}",
        market=market,
        price_usd_per_hour=2.0 if market == "spot" else 5.0,
        on_demand_usd_per_hour=5.0,
        gpu_count=4,
        launch_template_id="lt-1",
        image_id="ami-1",
    )


@pytest.fixture
def make_record() -> Callable[..., RunRecord]:
    """Build a starting run of two symbols on two zones, created at noon with an hour to live; any field may be given."""

    def build(**fields: Any) -> RunRecord:
        values: dict[str, Any] = {
            "run_id": "20261120-120000-crypto-k3v9",
            "project": "mayfly",
            "stack": "dev",
            "owner": "someone",
            "rehearsal": False,
            "bucket": "mayfly-bucket",
            "job": {"name": "crypto", "symbols": ["BTC-USD", "ETH-USD"], "timeframe": "1m"},
            "ladder": (rung(zone="us-east-1a"), rung(zone="us-east-1b")),
            "bundle_key": "code/abc.whl",
            "bundle_sha256": "abc",
            "budget_usd": 0.0,
            "estimated_usd": 0.5,
            "estimated_seconds": 360.0,
            "preflight_at": START - timedelta(seconds=5),
            "created_at": START,
            "deadline": START + timedelta(hours=1),
        }
        return RunRecord(**(values | fields))

    return build
