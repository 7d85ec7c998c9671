"""Models in a bucket: listed by what their runs' receipts name, fetched with their hash checked."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import replace
from datetime import datetime, timezone
from itertools import product

import pytest

from tests.records import created, piece
from trainer.base.errors import ConfigError, ConnectionFailed, UsageError
from trainer.runs.attempts import Attempt
from trainer.runs.store import create_record, run_ids
from trainer.store import listing
from trainer.store.listing import (
    fetch_models,
    find_model,
    list_models,
    models_of_run,
    save_model,
    side_of,
)

CLOSED_RUN = "20261120-120000-crypto-k3v9"
KEY = f"models/experiments/AROA1:i-1/{CLOSED_RUN}/1/lstm_BTC-USD_1m.safetensors"
NOON = datetime(2026, 11, 22, 12, 0, tzinfo=timezone.utc)
LAUNCH = created(instance_ids=("i-2",))


def test_a_model_is_listed_with_its_run_version_hash_and_scores(account):
    (model,) = list_models(account).models
    assert (model.name, model.run_id) == ("lstm_BTC-USD_1m", CLOSED_RUN)
    assert (model.key, model.stage) == (KEY, "experiment")
    assert (model.family, model.series, model.metrics["test"]["auc"]) == ("lstm", ("BTC-USD",), 0.53)
    assert model.version_id == account.head(key=KEY).version_id


def test_a_model_is_found_by_name_key_and_run(account):
    for name in ("lstm_BTC-USD_1m", KEY, f"{CLOSED_RUN}/lstm_BTC-USD_1m"):
        assert find_model(account, name).key == KEY
    with pytest.raises(UsageError, match="Did you mean lstm_BTC-USD_1m"):
        find_model(account, "lstm_BTCUSD_1m")


def test_a_model_of_a_named_run_is_found_without_the_others(account, monkeypatch):
    """A bucket of years has thousands of runs."""
    closed_again(account, "20261121-120000-crypto-next")
    read, asked = listing.models_of_run, []

    def models_of(objects, run_id):
        asked.append(run_id)
        return read(objects, run_id)

    monkeypatch.setattr(listing, "models_of_run", models_of)
    for name in (KEY, f"{CLOSED_RUN}/lstm_BTC-USD_1m"):
        assert find_model(account, name).key == KEY
    assert set(asked) == {CLOSED_RUN}


def test_receipts_of_many_runs_are_read_at_once(account, monkeypatch):
    for number in range(3):
        closed_again(account, f"20261121-12000{number}-crypto-next")
    read, together = listing.models_of_run, threading.Barrier(len(run_ids(account)), timeout=20)

    def models_of(objects, run_id):
        together.wait()
        return read(objects, run_id)

    monkeypatch.setattr(listing, "models_of_run", models_of)
    runs = [model.run_id for model in list_models(account).models]
    assert len(runs) == 4 and runs == sorted(runs, reverse=True)


def closed_again(account, run_id, state="done"):
    """Write the receipt of a run that made the same model, a day later."""
    receipt = json.loads(account.get(key=f"runs/{CLOSED_RUN}/receipt.json").body)
    made = {**receipt["models"][0], "key": KEY.replace(CLOSED_RUN, run_id)}
    times = {"created_at": "2026-11-21T12:00:00Z", "closed_at": "2026-11-21T12:09:00Z"}
    later = {**receipt, **times, "run_id": run_id, "state": state, "models": [made]}
    account.put(key=f"runs/{run_id}/receipt.json", body=json.dumps(later).encode())
    account.put(key=made["key"], body=account.get(key=KEY).body)


def test_a_model_that_is_gone_is_not_listed(account):
    account.delete(key=KEY, version_id=account.head(key=KEY).version_id)
    assert list_models(account).models == ()
    assert [model.key for model in models_of_run(account, CLOSED_RUN)] == [KEY]
    with pytest.raises(UsageError, match="has no models any more .lstm_BTC-USD_1m expired, or were deleted"):
        side_of(account, CLOSED_RUN)


def test_a_comparison_says_which_models_of_a_run_are_gone(account):
    receipt = json.loads(account.get(key=f"runs/{CLOSED_RUN}/receipt.json").body)
    (made,) = receipt["models"]
    receipt["models"] += [{**made, "key": KEY.replace("BTC", "ETH"), "version_id": "gone"}]
    account.put(key=f"runs/{CLOSED_RUN}/receipt.json", body=json.dumps(receipt).encode())
    side = side_of(account, CLOSED_RUN)
    assert (len(side.cards), side.gone) == (1, ("lstm_ETH-USD_1m",))


@pytest.fixture
def open_run(account, make_record):
    """Return a function that creates a run without a receipt, and its attempts' models; it returns the id."""

    def create(name, *models, attempts=(1,), **fields):
        attempt = Attempt(number=attempts[-1], launches=(LAUNCH,))
        record = make_record(run_id=f"20261122-120000-crypto-{name}", attempts=(attempt,), **fields)
        create_record(account, record)
        for number, model in product(attempts, models):
            key = f"models/experiments/AROA1:i-2/{record.run_id}/{number}/{model}.safetensors"
            account.put(key=key, body=b"weights")
        return record.run_id

    return create


def test_a_name_means_the_model_of_the_newest_finished_run(account, open_run):
    newest = open_run("open", "lstm_BTC-USD_1m", "lstm_ETH-USD_1m")
    assert find_model(account, "lstm_BTC-USD_1m").run_id == CLOSED_RUN
    # Another model of it failed, and this one is whole
    closed_again(account, "20261121-120000-crypto-next", state="failed")
    assert find_model(account, "lstm_BTC-USD_1m").run_id == "20261121-120000-crypto-next"
    line = f"no finished run has model 'lstm_ETH-USD_1m' .run {newest} has not ended"
    with pytest.raises(UsageError, match=line):
        find_model(account, "lstm_ETH-USD_1m")
    assert find_model(account, f"{newest}/lstm_ETH-USD_1m").run_id == newest


def test_a_run_that_cant_be_reached_hides_no_newer_model(account, monkeypatch):
    newest, read = "20261121-120000-crypto-next", listing.models_of_run
    closed_again(account, newest)

    def models_of(objects, run_id):
        if run_id == newest:
            raise ConnectionFailed("cannot read its receipt", why="SlowDown", do="Try again.")
        return read(objects, run_id)

    monkeypatch.setattr(listing, "models_of_run", models_of)
    for name in ("lstm_BTC-USD_1m", f"{newest}/lstm_BTC-USD_1m", "next/lstm_BTC-USD_1m"):
        with pytest.raises(ConnectionFailed, match="cannot read its receipt"):
            find_model(account, name)
    assert find_model(account, f"{CLOSED_RUN}/lstm_BTC-USD_1m").key == KEY
    account.put(key="models/production/main/lstm_BTC-USD_1m.safetensors", body=account.get(key=KEY).body)
    assert find_model(account, "lstm_BTC-USD_1m").stage == "production"


def test_experiments_expire_and_production_never(account):
    assert str(find_model(account, KEY).expires(180)) == "2027-05-19"
    assert find_model(account, KEY).expires(0) is None  # the outputs of an earlier stack do not say
    account.put(key="models/production/weekly/lstm_BTC-USD_1m.safetensors", body=b"champion")
    assert find_model(account, "lstm_BTC-USD_1m").expires(180) is None


def test_models_are_fetched_together_each_under_its_name(account, tmp_path):
    closed_again(account, "20261121-120000-crypto-next")
    models = list(list_models(account).models)
    account.put(key=models[0].key, body=account.get(key=KEY).body)
    paths = fetch_models(account, [replace(models[0], version_id=""), models[1]], tmp_path)
    assert [path.name for path in paths] == ["lstm_BTC-USD_1m.safetensors"] * 2 and len(set(paths)) == 2


def test_production_comes_before_experiments_of_the_same_name(account):
    account.put(key="models/production/weekly/lstm_BTC-USD_1m.safetensors", body=b"champion")
    assert find_model(account, "lstm_BTC-USD_1m").stage == "production"


def test_a_production_name_of_two_groups_is_refused(account):
    for group in ("daily", "weekly"):
        account.put(key=f"models/production/{group}/lstm_BTC-USD_1m.safetensors", body=group.encode())
    with pytest.raises(UsageError, match="daily/lstm_BTC-USD_1m, weekly/lstm_BTC-USD_1m are in production"):
        find_model(account, "lstm_BTC-USD_1m")
    found = find_model(account, "weekly/lstm_BTC-USD_1m")
    assert (found.group, found.key.split("/")[2]) == ("weekly", "weekly")


def test_a_model_is_saved_whole_with_its_card(account, tmp_path):
    path = save_model(account, find_model(account, KEY), tmp_path / "new")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == find_model(account, KEY).sha256
    assert json.loads(path.with_suffix(".json").read_text())["family"] == "lstm"
    files = ["lstm_BTC-USD_1m.json", "lstm_BTC-USD_1m.safetensors"]
    assert sorted(item.name for item in path.parent.iterdir()) == files


def test_the_receipts_version_is_fetched_after_a_late_write(account, tmp_path):
    account.put(key=KEY, body=b"a later writer of a dead attempt")
    path = save_model(account, find_model(account, KEY), tmp_path)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == find_model(account, KEY).sha256


def test_a_model_with_another_hash_leaves_no_file(account, tmp_path):
    model = replace(find_model(account, KEY), sha256="0" * 64)
    with pytest.raises(ConfigError, match="damaged"):
        save_model(account, model, tmp_path)
    with pytest.raises(ConfigError, match="gone"):
        save_model(account, replace(model, version_id="no-such-version"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_a_receipt_shows_its_records_attempt(account, open_run):
    run_id = open_run("open", "lstm_ETH-USD_1m", attempts=(1, 2))
    (model,) = models_of_run(account, run_id)
    assert "/2/" in model.key
    assert [item.run_id for item in list_models(account).models] == [run_id, CLOSED_RUN]


def test_folds_and_seeds_are_models_of_their_own(account, open_run):
    names = {fold: f"lstm_ETH-USD_1m_f{fold}_s5" for fold in (1, 2)}
    pieces = [piece("ETH-USD", model=names[fold], piece=f"ETH-USD {fold}", fold=fold) for fold in names]
    found = models_of_run(account, open_run("folds", *names.values(), pieces=tuple(pieces)))
    made = [(model.name, model.series, model.fold, model.seed) for model in found]
    assert made == [(name, ("ETH-USD",), fold, 5) for fold, name in names.items()]


def test_keys_without_a_record_are_nobodys_models(account):
    key = "models/experiments/AROA1:i-3/20261101-000000-ghost-aaaa/1/lstm_X_1m.safetensors"
    account.put(key=key, body=b"weights")
    assert [model.run_id for model in list_models(account).models] == [CLOSED_RUN]


def test_a_production_model_is_found_without_any_run(account, monkeypatch):
    """`predict` and `models pull` name production models, in a bucket of years."""
    keys = [f"models/production/weekly/lstm_{symbol}_1m.safetensors" for symbol in "ABC"]
    for key in keys:
        account.put(key=key, body=b"champion")
    read = []
    monkeypatch.setattr(listing, "models_of_run", lambda _, run_id: read.append(run_id) or ())
    monkeypatch.setattr(listing, "card_of", lambda _, *, key, version_id: read.append(key))
    for name in ("lstm_B_1m", "weekly/lstm_B_1m", keys[1]):
        read.clear()
        assert find_model(account, name).key == keys[1] and read == [keys[1]]
