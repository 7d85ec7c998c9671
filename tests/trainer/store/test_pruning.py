"""Models to delete by a rule: never one that production, a run or another model's card still needs."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from tests.models import make_model
from tests.trainer.control.conftest import MemoryCloud, MemoryObjects
from trainer.store import pruning
from trainer.store.pruning import LEAST_AGE, WAITING, PruneRule, plan_pruning, prune

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=timezone.utc)
RULE = PruneRule(older_than=timedelta(days=30), keep_runs=1)


class Bucket:
    """Runs with a model each, and production, in memory."""

    def __init__(self, receipt: dict[str, Any], tmp_path: Any) -> None:
        self.objects: MemoryObjects = MemoryCloud(NOW).objects
        self._receipt, self._tmp, self._count = receipt, tmp_path, 0

    def model(self, **card: Any) -> bytes:
        """Return the bytes of a model whose card names these values."""
        self._count += 1
        path = self._tmp / f"{self._count}.safetensors"
        make_model(path, "lstm", **{"seed": self._count, **card})
        return path.read_bytes()

    def write(self, key: str, body: bytes, *, days_ago: float, deleted: bool = False) -> None:
        self.objects.write(key, body, sha256=hashlib.sha256(body).hexdigest())
        items = self.objects.stored[key]
        items[-1] = replace(items[-1], modified_at=NOW - timedelta(days=days_ago), deleted=deleted)

    def open(self, name: str, **says: Any) -> None:
        """Add an open run without models, whose record says these values."""
        self.write(f"runs/20261122-110000-crypto-{name}/run.json", json.dumps(says).encode(), days_ago=0)

    def run(self, name: str, body: bytes, *, days_ago: float, state: str = "done", **says: Any) -> str:
        """Add a run with one model, whose receipt says these values; return the model's key."""
        at = NOW - timedelta(days=days_ago)
        run_id = f"{at:%Y%m%d-%H%M%S}-crypto-{name}"
        key = f"models/experiments/AROA1:i-1/{run_id}/1/lstm_BTC-USD_1m.safetensors"
        self.write(key, body, days_ago=days_ago)
        self.write(key.replace(".safetensors", ".json"), b"{}", days_ago=days_ago)
        version = self.objects.stored[key][-1].version_id
        made = {"key": key, "version_id": version, "sha256": hashlib.sha256(body).hexdigest()}
        receipt = {**self._receipt, "run_id": run_id, "state": state}
        receipt["models"] = [{**self._receipt["models"][0], **made}]
        receipt |= says
        self.write(f"runs/{run_id}/receipt.json", json.dumps(receipt).encode(), days_ago=days_ago)
        return key

    def left(self, rule: PruneRule = RULE) -> list[str]:
        """Prune, and return the models that are left."""
        prune(self.objects, plan_pruning(self.objects, rule, NOW), rule, NOW)
        return [key for key in sorted(self.objects.stored) if key.endswith(".safetensors")]


@pytest.fixture
def bucket(account: Any, tmp_path: Any) -> Bucket:
    (key,) = [item.key for item in account.list(prefix="runs/") if item.key.endswith("receipt.json")]
    return Bucket(json.loads(account.get(key=key).body), tmp_path)


def test_old_models_go_with_their_cards_and_receipts_stay(bucket: Bucket) -> None:
    old = bucket.run("old", bucket.model(), days_ago=90)
    young, newest = (bucket.run(name, bucket.model(), days_ago=days) for name, days in (("b", 20), ("c", 1)))
    pruning = plan_pruning(bucket.objects, RULE, NOW)
    assert [model.key for model in pruning.chosen] == [old]
    assert pruning.kept == {"of the newest runs": 1, "newer than the rule's age": 1}
    assert pruning.bytes == bucket.objects.stored[old][-1].size
    assert bucket.left() == sorted([young, newest])
    assert old.replace(".safetensors", ".json") not in bucket.objects.stored
    assert sum(key.endswith("receipt.json") for key in bucket.objects.stored) == 3
    assert bucket.left() == sorted([young, newest])  # again


def test_production_and_what_it_may_be_rolled_back_to_stay(bucket: Bucket) -> None:
    first, second = bucket.model(), bucket.model()
    keys = [bucket.run(name, body, days_ago=90) for name, body in (("a", first), ("b", second))]
    bucket.run("z", bucket.model(), days_ago=1)
    for body in (first, second):
        bucket.write("models/production/weekly/lstm_BTC-USD_1m.safetensors", body, days_ago=80)
    assert set(keys) < set(bucket.left())


def test_a_retrains_permanent_copy_is_deleted_by_the_same_rule(bucket: Bucket) -> None:
    body = bucket.model()
    key = bucket.run("old", body, days_ago=90)
    copy = f"models/retrains/weekly/{key.split('/')[3]}/lstm_BTC-USD_1m.safetensors"
    bucket.write(copy, body, days_ago=90)
    decisions = f"{copy.rpartition('/')[0]}/decisions.json"
    bucket.write(decisions, b"{}", days_ago=90)
    stray = "models/retrains/weekly/20260101-000000-of-nothing-abcd/lstm_BTC-USD_1m.safetensors"
    bucket.write(stray, bucket.model(), days_ago=90)  # no receipt says that its run has ended
    kept = bucket.run("z", bucket.model(), days_ago=1)
    assert bucket.left() == sorted([stray, kept]) and decisions in bucket.objects.stored


def test_models_that_wait_for_their_decision_stay(bucket: Bucket) -> None:
    copies = []
    for name, days in (("a", 90), ("b", 80), ("c", 70), ("d", 60)):
        body = bucket.model()
        run_id = bucket.run(name, body, days_ago=days).split("/")[3]
        copies.append(f"models/retrains/weekly/{run_id}/lstm_BTC-USD_1m.safetensors")
        bucket.write(copies[-1], body, days_ago=days)
    bucket.write(copies[1].replace("lstm_BTC-USD_1m.safetensors", "decisions.json"), b"{}", days_ago=1)
    newest = bucket.run("z", bucket.model(), days_ago=1)
    rule = replace(RULE, shadows=("weekly",))
    assert plan_pruning(bucket.objects, rule, NOW).kept[WAITING] == 2
    assert bucket.left(rule) == sorted([*copies[2:], newest])
    bucket.write(copies[3].replace("lstm_BTC-USD_1m.safetensors", "decisions.json"), b"{}", days_ago=1)
    assert bucket.left(rule) == [newest]


def test_what_a_kept_models_card_names_stays_and_what_that_names(bucket: Bucket) -> None:
    encoder = bucket.model()
    twin = bucket.model(parent={"sha256": hashlib.sha256(encoder).hexdigest()})
    refit = bucket.model(training={"init_sha256": hashlib.sha256(twin).hexdigest()})
    other = bucket.run("d", bucket.model(), days_ago=90)
    keys = [bucket.run(name, body, days_ago=90) for name, body in (("a", encoder), ("b", twin))]
    keys.append(bucket.run("z", refit, days_ago=1))
    assert bucket.left() == sorted(keys)
    assert other not in bucket.objects.stored


def test_models_of_an_open_run_and_very_young_ones_stay(bucket: Bucket) -> None:
    key = bucket.run("open", bucket.model(), days_ago=90, state="running")
    young = bucket.run("young", bucket.model(), days_ago=1.5)
    rule = PruneRule(older_than=timedelta(0), keep_runs=0)
    assert bucket.left(rule) == sorted([key, young])
    assert timedelta(days=1.5) < LEAST_AGE


def test_a_receipt_that_cant_be_read_keeps_its_models(bucket: Bucket) -> None:
    key = bucket.run("bad", bucket.model(), days_ago=90)
    bucket.write(f"runs/{key.split('/')[3]}/receipt.json", b"{", days_ago=90)
    bucket.run("z", bucket.model(), days_ago=1)
    pruning = plan_pruning(bucket.objects, RULE, NOW)
    assert key in bucket.left() and list(pruning.problems) == [key.split("/")[3]]


def test_what_an_open_run_begins_with_and_continues_stays(bucket: Bucket) -> None:
    encoder = bucket.model()
    keys = [bucket.run(name, body, days_ago=90) for name, body in (("a", encoder), ("b", bucket.model()))]
    gone = bucket.run("c", bucket.model(), days_ago=90)
    newest = bucket.run("z", bucket.model(), days_ago=1)
    parent = keys[1].split("/")[3]
    bucket.open("open", parent=parent, job={"model": {"encoder_sha256": hashlib.sha256(encoder).hexdigest()}})
    assert bucket.left() == sorted([*keys, newest]) and gone not in bucket.objects.stored


def test_what_the_receipt_of_a_newest_run_names_stays(bucket: Bucket) -> None:
    start = bucket.model()
    key = bucket.run("a", start, days_ago=90)
    bucket.run("b", bucket.model(), days_ago=90)
    job = {"train": {"init_sha256": hashlib.sha256(start).hexdigest()}}
    newest = bucket.run("z", bucket.model(), days_ago=60, job=job)
    assert bucket.left() == sorted([key, newest])


def test_a_model_that_several_runs_list_is_kept_if_one_needs_it(bucket: Bucket) -> None:
    body = bucket.model()
    key = bucket.run("a", body, days_ago=90)
    parent = key.split("/")[3]
    models = json.loads(bucket.objects.body(f"runs/{parent}/receipt.json"))["models"]
    bucket.run("b", bucket.model(), days_ago=80)
    bucket.run("z", bucket.model(), days_ago=60, models=models, parent=parent)  # which continues it
    assert [one.key for one in plan_pruning(bucket.objects, RULE, NOW).chosen if one.key == key] == []
    none = PruneRule(older_than=timedelta(days=30), keep_runs=0)
    assert [one.key for one in plan_pruning(bucket.objects, none, NOW).chosen].count(key) == 1


def test_runs_without_models_are_not_among_the_newest(bucket: Bucket) -> None:
    key = bucket.run("a", bucket.model(), days_ago=90)
    failed = bucket.run("z", bucket.model(), days_ago=1, state="failed", models=[])
    bucket.objects.stored.pop(failed)
    assert bucket.left() == [key]


def test_a_deleted_production_model_may_be_restored(bucket: Bucket) -> None:
    start = bucket.model()
    body = bucket.model(parent={"sha256": hashlib.sha256(start).hexdigest()})
    keys = [bucket.run(name, one, days_ago=90) for name, one in (("a", start), ("b", body))]
    newest = bucket.run("z", bucket.model(), days_ago=1)
    production = "models/production/weekly/lstm_BTC-USD_1m.safetensors"
    bucket.write(production, body, days_ago=80)
    bucket.write(production, b"", days_ago=70, deleted=True)
    assert bucket.left() == sorted([*keys, newest, production])


def test_all_versions_of_a_model_go_so_that_none_comes_back(bucket: Bucket) -> None:
    key = bucket.run("a", bucket.model(), days_ago=90)
    bucket.objects.stored[key].insert(0, replace(bucket.objects.stored[key][0], version_id="earlier"))
    bucket.write(key.replace(".safetensors", ".json"), b"{}", days_ago=89)
    newest = bucket.run("z", bucket.model(), days_ago=1)
    (chosen,) = plan_pruning(bucket.objects, RULE, NOW).chosen
    assert chosen.bytes == sum(one.size for one in bucket.objects.stored[key])
    assert bucket.left() == [newest] and key.replace(".safetensors", ".json") not in bucket.objects.stored


def test_a_version_that_no_receipt_names_is_not_taken_for_it(bucket: Bucket) -> None:
    key = bucket.run("a", bucket.model(), days_ago=90)
    bucket.objects.stored[key] = [replace(bucket.objects.stored[key][0], version_id="another")]
    newest = bucket.run("z", bucket.model(), days_ago=1)
    assert bucket.left() == sorted([key, newest])
    bucket.write(key, b"", days_ago=1, deleted=True)
    assert plan_pruning(bucket.objects, RULE, NOW).kept == {"of the newest runs": 1}  # it is not there


def test_a_run_opened_during_a_deletion_keeps_its_models(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "DELETED_AT_ONCE", 1)
    bodies = [bucket.model() for _ in range(3)]
    keys = [bucket.run(name, body, days_ago=90) for name, body in zip("abc", bodies, strict=True)]
    newest = bucket.run("z", bucket.model(), days_ago=1)
    gone: list[str] = []

    def deleted(model: Any) -> None:
        gone.append(model.key)
        if len(gone) == 1:
            bucket.open("open", job={"train": {"init_sha256": hashlib.sha256(bodies[1]).hexdigest()}})

    prune(bucket.objects, plan_pruning(bucket.objects, RULE, NOW), RULE, NOW, deleted=deleted)
    assert gone == [keys[0], keys[2]]
    assert {keys[1], newest} <= set(bucket.objects.stored)


def test_runs_and_production_are_not_listed_for_each_model(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed, history = list[str](), bucket.objects.history
    for number in range(20):
        bucket.run(f"old{number:02d}", bucket.model(), days_ago=90)

    def listing(*, prefix: str) -> Any:
        listed.append(prefix)
        return history(prefix=prefix)

    monkeypatch.setattr(bucket.objects, "history", listing)
    assert len(bucket.left()) == 1
    assert listed.count("models/production/") == 2  # for the plan, and before the first model goes
