"""Models that last: kept once, promoted by compare-and-swap and only where they can be verified,
rolled back.
"""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from tests.trainer.conftest import weights
from tests.trainer.control.conftest import MemoryCloud
from tests.trainer.retrains.test_decision import SUNDAY
from trainer.aws.objects import Conflict, Objects
from trainer.base.errors import ConfigError, UsageError
from trainer.store import production
from trainer.store.production import (
    PRODUCTION,
    keep,
    production_names,
    production_versions,
    replace_champion,
    roll_back,
)

SOURCE = "models/experiments/AROA1:i-1/run/1/lstm_BTC-USD_1m.safetensors"
STABLE = f"{PRODUCTION}weekly/lstm_BTC-USD_1m.safetensors"


@pytest.fixture
def objects() -> Objects:
    return MemoryCloud(SUNDAY).objects


def stored(objects: Any, body: bytes, *, key: str = SOURCE) -> dict[str, Any]:
    """Write a model as a node does, and return its entry in a receipt."""
    sha256 = hashlib.sha256(body).hexdigest()
    objects.write(key, body, sha256)
    version_id = objects.stored[key][-1].version_id
    return {"key": key, "version_id": version_id, "sha256": sha256, "piece": "BTC-USD"}


def promote(objects: Objects, model: dict[str, Any], group: str = "weekly") -> bool:
    return production.promote(objects, model, group=group)


def test_a_model_is_kept_once_where_it_does_not_expire(objects: Objects) -> None:
    model = stored(objects, weights())
    for _ in range(2):
        key = keep(objects, model, retrain="weekly", run_id="run")
    assert key == "models/retrains/weekly/run/lstm_BTC-USD_1m.safetensors"
    assert [one.body for one in objects.versions(key=key)] == [weights()]


def test_a_verified_model_is_promoted_once_and_rolled_back(objects: Objects) -> None:
    first, second = stored(objects, weights()), stored(objects, weights() + b" ")
    assert promote(objects, first) and not promote(objects, first)
    assert promote(objects, second)
    newest, oldest = production_versions(objects, "lstm_BTC-USD_1m")
    assert (newest.body, oldest.body) == (weights() + b" ", weights())
    replaced, put = roll_back(objects, "lstm_BTC-USD_1m")
    assert (replaced.version_id, put.version_id) == (newest.version_id, oldest.version_id)
    assert production_versions(objects, "lstm_BTC-USD_1m")[0].body == weights()


def test_two_retrains_of_one_symbol_keep_a_model_each(objects: Objects) -> None:
    first, second = stored(objects, weights()), stored(objects, weights() + b" ")
    assert promote(objects, first, "daily") and promote(objects, second, "weekly")
    assert production_names(objects) == ("daily/lstm_BTC-USD_1m", "weekly/lstm_BTC-USD_1m")
    for group, body in (("daily", weights()), ("weekly", weights() + b" ")):
        assert [one.body for one in production_versions(objects, f"{group}/lstm_BTC-USD_1m")] == [body]
    with pytest.raises(UsageError, match="Name one, such as daily/lstm_BTC-USD_1m"):
        production_versions(objects, "lstm_BTC-USD_1m")


@pytest.mark.parametrize("name", ["../x", "weekly/../x", "", "/", "weekly/", "lstm_BTC-USD_1m.safetensors"])
def test_no_other_text_names_a_production_model(objects: Objects, name: str) -> None:
    promote(objects, stored(objects, weights()))
    for key in (
        "lstm_BTC-USD_1m.safetensors",
        "weekly/readme.txt",
        "weekly/old/x.safetensors",
        "Big/x.safetensors",
    ):
        objects.put(key=f"{PRODUCTION}{key}", body=b"of nobody")
    assert production_names(objects) == ("weekly/lstm_BTC-USD_1m",)
    with pytest.raises(UsageError, match="there is no production model"):
        production_versions(objects, name)


def test_a_champion_replaced_meanwhile_is_not_overwritten(objects: Any, monkeypatch: Any) -> None:
    model, other = stored(objects, weights()), stored(objects, weights() + b" ")
    copy, raced = objects.copy, []

    def copy_after_somebody_else(**named: Any) -> None:
        if not raced:
            raced.append(1)
            copy(source=other["key"], version_id=other["version_id"], key=STABLE)
        copy(**named)

    monkeypatch.setattr(objects, "copy", copy_after_somebody_else)
    assert promote(objects, model)
    assert [one.body for one in objects.versions(key=STABLE)] == [weights(), weights() + b" "]


def test_the_gate_replaces_only_the_champion_that_it_compared(objects: Any, monkeypatch: Any) -> None:
    model, other = stored(objects, weights()), stored(objects, weights() + b" ")
    first = replace_champion(objects, other, group="weekly", version_id="")
    assert first is not None and first.sha256 == other["sha256"]
    assert replace_champion(objects, model, group="weekly", version_id="") is None
    copy = objects.copy

    def overtaken(**named: Any) -> None:
        objects.write(STABLE, b"by hand", "ab" * 32)
        copy(**named)

    with monkeypatch.context() as race:
        race.setattr(objects, "copy", overtaken)
        assert replace_champion(objects, model, group="weekly", version_id=first.version_id) is None
    assert objects.body(STABLE) == b"by hand"
    by_hand = objects.head(key=STABLE)
    for _ in range(2):  # again: it is there
        there = replace_champion(objects, model, group="weekly", version_id=by_hand.version_id)
        assert there is not None and objects.body(STABLE) == weights()


@pytest.mark.parametrize("group", ["", "Weekly", "../x", "a/b", "a" * 41])
def test_a_group_that_no_reader_finds_is_refused(objects: Objects, group: str) -> None:
    with pytest.raises(UsageError, match="is not a group of production models"):
        promote(objects, stored(objects, weights()), group)
    assert not objects.list(prefix=PRODUCTION)


def test_a_promotion_whose_answer_is_lost_is_one(objects: Any, monkeypatch: Any) -> None:
    model, copy = stored(objects, weights()), objects.copy

    def refused(**named: Any) -> None:
        copy(**named)
        raise Conflict(named["key"])  # botocore repeated the call

    monkeypatch.setattr(objects, "copy", refused)
    assert promote(objects, model) and not promote(objects, model)
    assert [one.body for one in objects.versions(key=STABLE)] == [weights()]


def test_a_rollback_restores_the_version_that_is_named(objects: Objects) -> None:
    bodies = [weights() + b" " * number for number in range(3)]
    assert all(promote(objects, stored(objects, body)) for body in bodies)
    *_, first = production_versions(objects, "lstm_BTC-USD_1m")
    with pytest.raises(UsageError, match="no older version v9"):
        roll_back(objects, "lstm_BTC-USD_1m", version_id="v9")
    roll_back(objects, "lstm_BTC-USD_1m", version_id=first.version_id)
    assert production_versions(objects, "lstm_BTC-USD_1m")[0].body == bodies[0]
    roll_back(objects, "lstm_BTC-USD_1m")
    assert production_versions(objects, "lstm_BTC-USD_1m")[0].body == bodies[2], "the newest of other bytes"


def test_a_rollback_passes_over_versions_with_the_same_bytes(objects: Objects) -> None:
    """By hash: in a bucket with a KMS key S3 gives them different ETags, as this memory does."""
    bodies = [weights() + b" " * number for number in range(2)]
    assert all(promote(objects, stored(objects, body)) for body in bodies)
    *_, first = production_versions(objects, "lstm_BTC-USD_1m")
    for _ in range(2):
        roll_back(objects, "lstm_BTC-USD_1m", version_id=first.version_id)
    roll_back(objects, "lstm_BTC-USD_1m")
    assert production_versions(objects, "lstm_BTC-USD_1m")[0].body == bodies[1]


def test_a_rollback_survives_a_lost_answer_not_another_writer(objects: Any, monkeypatch: Any) -> None:
    first, second = stored(objects, weights()), stored(objects, weights() + b" ")
    third = stored(objects, weights() + b"  ")
    assert promote(objects, first) and promote(objects, second)
    copy = objects.copy

    def refused(**named: Any) -> None:
        copy(**named)
        raise Conflict(named["key"])  # botocore repeated the call

    def overtaken(**named: Any) -> None:
        copy(source=third["key"], version_id=third["version_id"], key=STABLE)
        raise Conflict(named["key"])

    monkeypatch.setattr(objects, "copy", overtaken)
    with pytest.raises(UsageError, match="replaced at the same moment"):
        roll_back(objects, "lstm_BTC-USD_1m")
    monkeypatch.setattr(objects, "copy", refused)
    replaced, put = roll_back(objects, "lstm_BTC-USD_1m")
    assert (replaced.body, put.body) == (weights() + b"  ", weights() + b" ")
    assert production_versions(objects, "lstm_BTC-USD_1m")[0].body == weights() + b" "


@pytest.mark.parametrize(
    ("body", "key", "why"),
    [
        (b"torn", SOURCE, "it is not|header|safetensors|bytes"),
        (weights(), SOURCE.replace("BTC-USD", "ETH-USD"), "its card is of lstm_BTC-USD_1m"),
        (weights(trained_after_test=True), SOURCE, "k folds trained it on bars after its test span"),
        (weights(trained_after_test=1), SOURCE, "trained_after_test"),
        (weights(told_columns=[7]), SOURCE, "told_columns"),
    ],
)
def test_a_model_that_cant_be_verified_stays_an_experiment(
    objects: Objects, body: bytes, key: str, why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        promote(objects, stored(objects, body, key=key))
    with pytest.raises(ConfigError, match="another sha256"):
        promote(objects, {**stored(objects, weights()), "sha256": "0" * 64})
    with pytest.raises(ConfigError, match="it is not there"):
        promote(objects, {**stored(objects, weights()), "version_id": "v0"})
    assert not objects.list(prefix=PRODUCTION)


def test_what_is_not_there_is_no_champion_to_roll_back(objects: Objects) -> None:
    with pytest.raises(UsageError, match="no production model"):
        roll_back(objects, "nothing")
    promote(objects, stored(objects, weights()))
    with pytest.raises(UsageError, match="no older version"):
        roll_back(objects, "lstm_BTC-USD_1m")
    with pytest.raises(UsageError, match="no older version v9"):
        roll_back(objects, "lstm_BTC-USD_1m", version_id="v9")
