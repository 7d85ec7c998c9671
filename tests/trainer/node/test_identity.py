"""A node learns from its instance who it is, and in which market it runs."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from tests.trainer.node.conftest import serve_metadata
from tests.trainer.rehearsal.test_metadata import VIEW
from trainer.node.identity import read_identity

DEADLINE = datetime(2026, 11, 23, 12, tzinfo=timezone.utc)
TAGS = {"run_id": "r", "attempt": "2", "node": "0", "deadline": "2026-11-23T12:00:00Z", "role_id": "AROA1"}
TAGS |= {"boot_seconds": "900"}


@pytest.mark.parametrize(("market", "zone"), [("on-demand", ""), ("spot", "us-east-1b")])
def test_identity_has_run_type_and_the_zone_of_the_spot_price(market: str, zone: str) -> None:
    view = replace(VIEW, life_cycle=market, tags=TAGS)
    server = serve_metadata(view)
    try:
        identity = read_identity(f"http://127.0.0.1:{server.server_address[1]}/imds/i-1")
    finally:
        server.shutdown()
        server.server_close()
    assert (identity.run_id, identity.attempt, identity.deadline) == ("r", 2, DEADLINE)
    assert identity.role_id == "AROA1" and identity.boot_ends(DEADLINE) == DEADLINE + timedelta(minutes=15)
    assert (identity.instance_type, identity.spot_zone) == ("p3.8xlarge", zone)
