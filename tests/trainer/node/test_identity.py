"""A node learns from its instance who it is, and in which market it runs."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from http.client import RemoteDisconnected
from typing import Any

import pytest

from tests.trainer.node.conftest import serve_metadata
from tests.trainer.rehearsal.test_metadata import VIEW
from trainer.node.identity import Metadata, read_identity

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


def test_a_metadata_service_that_fails_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {f"tags/instance/{name}": value for name, value in TAGS.items()}
    texts |= {"instance-life-cycle": "on-demand", "instance-id": "i-1", "instance-type": "g5.xlarge"}
    failures: list[Any] = [TimeoutError("timed out"), RemoteDisconnected("without a word")]
    pauses: list[float] = []

    def ask(metadata: Metadata, path: str) -> str:
        if path == "tags/instance/run_id" and failures:
            raise failures.pop()
        return texts[path]

    monkeypatch.setattr(Metadata, "ask", ask)
    assert read_identity("http://metadata", pause=pauses.append).run_id == "r"
    assert len(pauses) == 2 and pauses == sorted(pauses)


def test_a_metadata_service_that_stays_silent_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(metadata: Metadata, path: str) -> str:
        raise TimeoutError("timed out")

    monkeypatch.setattr(Metadata, "ask", ask)
    pauses: list[float] = []
    with pytest.raises(TimeoutError):
        read_identity("http://metadata", pause=pauses.append)
    assert 5 < sum(pauses) < 15
