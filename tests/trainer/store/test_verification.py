"""Production models verified by hand, and what differs between two."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest

from tests.models import card_of
from tests.trainer.conftest import weights
from tests.trainer.control.conftest import MemoryCloud
from tests.trainer.retrains.test_decision import SUNDAY
from trainer.base.errors import ConfigError, ConnectionFailed, UsageError
from trainer.runs.record_json import to_json
from trainer.store.decisions import (
    GateDecision,
    ModelVersion,
    create_decisions,
    decision_key,
    decisions_about,
    note_by_hand,
    read_decision,
    read_decisions,
    unnoted_roll_back,
    write_decision,
)
from trainer.store.differences import differences
from trainer.store.production import production_versions, roll_back
from trainer.store.verification import Verified
from trainer.store.verification import verify as verify_version

NAME = "weekly/lstm_BTC-USD_1m"
KEY = f"models/production/{NAME}.safetensors"


@pytest.fixture
def objects() -> Any:
    return MemoryCloud(SUNDAY).objects


def verify(objects: Any, name: str) -> Verified:
    return verify_version(objects, production_versions(objects, name)[0])


def put(objects: Any, body: bytes, sha256: str = "") -> str:
    sha256 = sha256 or hashlib.sha256(body).hexdigest()
    objects.write(KEY, body, sha256)
    return sha256


def decision(sha256: str, **changed: Any) -> GateDecision:
    made = {
        "piece": "BTC-USD",
        "name": NAME,
        "run_id": "run",
        "score_run_id": "score",
        "decided_at": SUNDAY,
        "gate": "test",
        "challenge": 1,
        "promote": True,
        "reason": "log loss gains",
        "challenger": ModelVersion(key="models/retrains/weekly/run/m", version_id="v1", sha256=sha256),
        "champion": None,
        "numbers": {"cells": 70},
    }
    return GateDecision(**(made | changed))  # type: ignore[arg-type]


def test_a_sound_model_is_verified_with_its_origin(objects: Any) -> None:
    sha256 = put(objects, weights())
    assert (verify(objects, NAME).flaws, verify(objects, NAME).origin) == ((), "by hand")
    write_decision(objects, decision(sha256))
    found = verify(objects, "lstm_BTC-USD_1m")
    assert (found.flaws, found.origin, found.sha256) == ((), "by the gate, run run", sha256)
    stayed = ModelVersion(key=KEY, version_id="v1", sha256=sha256)
    write_decision(objects, decision("f" * 64, promote=False, champion=stayed))
    assert verify(objects, NAME).origin == "stayed beside run run"
    with pytest.raises(UsageError, match="there is no production model"):
        verify(objects, "nothing")


def test_whatever_does_not_agree_is_told(objects: Any) -> None:
    put(objects, weights(), "f" * 64)
    assert "another hash than S3 has" in verify(objects, NAME).flaws[0]
    put(objects, weights("lstm_ETH-USD_1m"))
    assert verify(objects, NAME).flaws == ("its card is of lstm_ETH-USD_1m",)
    put(objects, b"no model")
    assert "no safetensors header" in verify(objects, NAME).flaws[0]
    put(objects, weights())
    write_decision(objects, decision("a" * 64))
    sha256 = hashlib.sha256(weights()).hexdigest()
    (flaw,) = verify(objects, NAME).flaws
    assert flaw == "the last decision about it, of 2026-11-22 03:00 UTC, left model aaaaaaaaaaaa"
    note_by_hand(objects, NAME, "promoted by hand", SUNDAY, sha256=sha256)
    assert (verify(objects, NAME).flaws, verify(objects, NAME).origin) == ((), "by hand")
    objects.put(key=decision_key(NAME), body=b"{}")
    assert "cannot read models/production/" in verify(objects, NAME).flaws[0]


def test_what_is_gone_or_too_large_is_not_verified(objects: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    put(objects, weights())
    (listed,) = production_versions(objects, NAME)
    monkeypatch.setattr("trainer.store.verification.MOST_PROMOTED_BYTES", len(weights()) - 1)
    assert verify_version(objects, listed).flaws == (
        f"it has {len(weights()):,} bytes, too many to read here",
    )
    objects.delete(key=KEY, version_id=listed.version_id)
    assert verify_version(objects, listed).flaws == ("it is gone",)


def test_a_rollback_without_its_note_is_found_with_any_etags(objects: Any) -> None:
    """In a bucket with a KMS key, as in this memory, equal bytes have different ETags."""
    put(objects, weights())
    second = put(objects, weights() + b" ")
    write_decision(objects, decision(second))
    assert unnoted_roll_back(objects, NAME) is None
    replaced, restored = roll_back(objects, NAME)
    assert unnoted_roll_back(objects, NAME) == (replaced, restored)
    first = hashlib.sha256(weights()).hexdigest()
    note_by_hand(objects, NAME, "rolled back", SUNDAY, sha256=first)
    assert unnoted_roll_back(objects, NAME) is None


def test_a_decision_that_can_not_be_reached_is_no_flaw(objects: Any, monkeypatch: Any) -> None:
    put(objects, weights())
    get = objects.get

    def busy(**asked: Any) -> Any:
        if asked["key"] == decision_key(NAME):
            raise ConnectionFailed("cannot read the decision", why="SlowDown", do="Try again.")
        return get(**asked)

    monkeypatch.setattr(objects, "get", busy)
    for look in (verify, lambda objects, name: decisions_about(objects, [name])):
        with pytest.raises(ConnectionFailed):
            look(objects, NAME)


@pytest.mark.parametrize(
    "changed", [{"format": 2}, {"name": "weekly/other"}, {"promote": "yes"}, {"challenge": -1}, {"more": 1}]
)
def test_a_decision_of_another_form_is_refused(objects: Any, changed: dict[str, Any]) -> None:
    body = json.loads(to_json(decision("a" * 64))) | changed
    objects.put(key=decision_key(NAME), body=json.dumps(body).encode())
    with pytest.raises(ConfigError, match="cannot read"):
        read_decision(objects, NAME)
    assert decisions_about(objects, [NAME]) == {}


def test_the_decisions_of_a_run_are_made_once(objects: Any) -> None:
    assert read_decisions(objects, "weekly", "run") is None
    first, second = decision("a" * 64), decision("b" * 64)
    assert create_decisions(objects, "weekly", "run", [first]) == (first,)
    assert create_decisions(objects, "weekly", "run", [second]) == (first,)
    objects.put(key="models/retrains/weekly/run/decisions.json", body=b"[]")
    with pytest.raises(ConfigError, match="cannot read models/retrains/weekly/run/decisions.json"):
        read_decisions(objects, "weekly", "run")


def test_differences_are_of_settings_data_and_scores() -> None:
    first = card_of("lstm", "direction", data={"bars": 10, "files": [{"file": "a", "sha256": "1"}]})
    about = {"metrics": {"log_loss": {"title": "log loss"}}}
    second = replace(
        first,
        seed=3,
        training={"batch": 64, "history": [1, 2]},
        data={"bars": 12, "files": [{"file": "b", "sha256": "2"}]},
        metrics={"about": about, "test": {"n": 9, "log_loss": 0.6}},
    )
    assert differences(first, first) == []
    found = [(one.about, one.key, one.first, one.second) for one in differences(first, second)]
    assert found == [
        ("settings", "seed", 0, 3),
        ("settings", "training", {}, None),
        ("settings", "training.batch", None, 64),
        ("data", "bars", 10, 12),
        ("data", "files", ["a"], ["b"]),
        ("scores", "n", None, 9),
        ("scores", "log_loss", None, 0.6),
    ]
