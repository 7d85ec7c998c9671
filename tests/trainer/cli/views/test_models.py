"""Tables of models: ids that a person copies stay whole on a terminal of 80 columns."""

from __future__ import annotations

from datetime import datetime, timezone

from trainer.aws.objects import Stored
from trainer.cli.views.drawing import drawn
from trainer.cli.views.models import production_table, verified_view
from trainer.store.verification import Verified

NAME, VERSION = "main/lstm-direction_BTC-USD_1m", "3sL4kqtJlcpXroDTDmJ+rmSpXd3dIbrHY"
MADE = datetime(2026, 11, 28, 6, tzinfo=timezone.utc)


def test_a_version_to_roll_back_to_stays_whole() -> None:
    key = f"models/production/{NAME}.safetensors"
    stored = Stored(key=key, etag="e", version_id=VERSION, size=250_123, modified_at=MADE)
    _, row = drawn(production_table([stored]), width=80).splitlines()
    assert row.split()[:2] == [NAME, VERSION]
    wide = drawn(production_table([stored]), width=120).splitlines()[1]
    assert wide.split() == [NAME, VERSION, "2026-11-28", "06:00", "250,123"]


def test_a_verified_model_keeps_its_name_and_version() -> None:
    found = Verified(name=NAME, version_id=VERSION, sha256="ab" * 32, decision=None, flaws=())
    _, row = drawn(verified_view([found]), width=80).splitlines()
    assert row.split() == ["✓", NAME, VERSION]
