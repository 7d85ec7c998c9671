"""A training plans its data, or follows a given plan, and asks it for finished models."""

from __future__ import annotations

import json

import pytest
from safetensors.numpy import load_file

from tests.jobs import job_of
from tests.pieces import piece_of
from trainer.bars.document import read_plan
from trainer.base.arrivals import Arrivals
from trainer.base.errors import DataError
from trainer.store.card import read_card
from trainer.train.inputs import source as sources
from trainer.train.inputs.source import plan_and_open
from trainer.train.piece import kept


def test_a_training_follows_a_given_plan_and_leaves_no_arrays(tmp_path, write_candles, start):
    data = tmp_path / "data"
    data.mkdir()
    write_candles(data, "AAA-USD", bars=1000)
    first = start(data, "--epochs", "1", name="first")
    assert first.end() == 0
    plan = read_plan((first.out / "plan.json").read_bytes())
    assert first.events("started")[0]["data"] == json.loads(json.dumps(plan.summary(job_of())))
    again = start(data, "--epochs", "1", "--plan", str(first.out / "plan.json"), name="again")
    assert (
        again.end() == 0 and (again.out / "plan.json").read_bytes() == (first.out / "plan.json").read_bytes()
    )
    model = "lstm-direction_AAA-USD_1m.safetensors"
    assert read_card(again.out / model).metrics == read_card(first.out / model).metrics
    assert not (again.out / ".candles").exists()


@pytest.mark.nightly
def test_the_first_model_is_trained_before_the_last_file_comes(tmp_path, write_candles, start):
    data, coming = tmp_path / "data", tmp_path / "coming"
    for folder in (data, coming):
        folder.mkdir()
    write_candles(data, "AAA-USD", bars=1200)
    write_candles(data, "BBB-USD", bars=1000)
    words = ("--epochs", "1", "--workers", "1", "--timeframe", "1m")
    whole = start(data, *words, name="whole")
    assert whole.end() == 0
    (first,), (last,) = (list(data.glob(f"{symbol}*")) for symbol in ("AAA", "BBB"))
    document = tmp_path / "arriving.json"
    (coming / first.name).hardlink_to(first)
    Arrivals().write(document)
    plan = ("--plan", str(whole.out / "plan.json"), "--arriving", str(document))
    training = start(coming, *words, *plan, name="coming")
    assert training.await_event("model_done")["model"] == "lstm-direction_AAA-USD_1m"
    (coming / last.name).hardlink_to(last)
    assert training.end() == 0
    for model in whole.out.glob("*.safetensors"):
        ours, theirs = load_file(training.out / model.name), load_file(model)
        assert ours.keys() == theirs.keys() and all((ours[name] == theirs[name]).all() for name in ours)
        assert read_card(training.out / model.name).metrics == read_card(model).metrics


def test_a_finished_model_is_kept_without_reading_a_bar(planted, monkeypatch):
    data = plan_and_open(planted.job, planted.data, scratch=planted.data)
    monkeypatch.setattr(sources, "read_parts", lambda *_, **__: pytest.fail("bars are read"))
    done = kept(planted.piece, planted.job, data, out=planted.out)
    assert done is not None and done["sha256"] == planted.done["sha256"]


def test_a_symbol_refused_by_planning_is_refused_again(tmp_path, write_candles):
    write_candles(tmp_path, "AAA-USD", bars=1000)
    write_candles(tmp_path, "BBB-USD", bars=100)
    job = job_of(batch=64, lookback=20)
    data = plan_and_open(job, tmp_path, scratch=tmp_path)
    with pytest.raises(DataError, match="BBB-USD has 100 bars .one label needs"):
        kept(piece_of(job, "BBB-USD"), job, data, out=tmp_path)
