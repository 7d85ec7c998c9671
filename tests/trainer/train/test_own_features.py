"""A user's own features: named in a job, tried, computed, in cards, and given to predictions."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.jobs import job_of
from tests.models import make_model
from tests.predictions import accuracy, predict_file
from trainer.bars.document import settings_of
from trainer.bars.job_plan import folder_of, plan_data
from trainer.bars.symbol_plan import plan_folds
from trainer.base.errors import DataError, UsageError
from trainer.data.feature_names import FEATURES, is_version_of, label_of
from trainer.data.features import compute_each, compute_inputs
from trainer.data.read.writing import write_candles
from trainer.data.table import DataSettings
from trainer.job.job import Job
from trainer.job.reading import job_from, job_from_json, load_job
from trainer.store.card import read_card
from trainer.train.own.check import contents, copied, portable
from trainer.train.own.probe_features import measure_features
from trainer.train.predict.load_model import check_model

FILE = Path(__file__).with_name("own_features.py")
SHA256 = hashlib.sha256(FILE.read_bytes()).hexdigest()


def job_with(*names: str, tried: bool = True, **keys: object) -> Job:
    """Return a job with features of the file, tried as the desk tries them."""
    features = ("log_return_1", "bar_range", *(f"{FILE}:{name}" for name in names))
    job = job_of(**{"data.features": features, **keys})
    assert job.data.own is not None
    job = job.with_own_files({"data": replace(job.data.own, sha256=SHA256)})
    return job.with_own_files({"data": measure_features(job, lambda stage: None)}) if tried else job


def test_own_features_come_after_ours_and_survive_json() -> None:
    job = job_with("slope", "spread")
    assert job.data.computed == ("log_return_1", "bar_range", "slope", "spread") and job.data.warmup == 10
    again = job_from_json(json.dumps(job.to_dict()))
    assert again == job and again.data.warmup == 10
    assert again.with_data(timeframe="1m").data.own == job.data.own
    assert job.with_data(features=("auto",)).data.own is None and "own" not in Job().to_dict()["data"]


def test_a_plans_summary_counts_their_lookback(tmp_path: Path, make_candles) -> None:
    job = job_with("slope")
    write_candles(tmp_path / "AAA_1m.parquet", [make_candles(1000)])
    plan = plan_data(job, folder_of(job, tmp_path, scratch=tmp_path))
    assert plan.summary(job)["warmup"] == 10


def test_a_refusal_names_the_file_that_looks_back_farthest(make_candles) -> None:
    with pytest.raises(DataError, match="10 that own_features.py looks back"):
        plan_folds(make_candles(20), job_with("slope"))


def test_own_features_travel_under_their_hash(tmp_path: Path) -> None:
    job = job_with("slope")
    assert contents(job) == {SHA256: FILE.read_bytes()}
    sent, here = portable(job), copied(job, tmp_path)
    assert sent.data.own is not None and sent.data.own.file == "own_features.py" and sent.data.warmup == 10
    assert here.data.own is not None and here.data.own.file == str(tmp_path / f"{SHA256}.py")
    assert here.data.features == sent.data.features == ("log_return_1", "bar_range", "own_features.py:slope")
    assert settings_of(here) == settings_of(sent) == settings_of(job)  # a plan of one is that of the other


def test_a_job_file_names_features_beside_it(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('[data]\nfeatures = ["auto", "mine.py:slope"]\n')
    own = job_from(load_job(tmp_path / "job.toml")).data.own
    assert own is not None and (own.file, own.names) == (str(tmp_path / "mine.py"), ("slope",))


@pytest.mark.parametrize(
    ("features", "said"),
    [
        (("a.py:x", "b.py:y"), "names a.py, b.py .one file is sent"),
        (("a.py",), "'a.py' names no function"),
        (("a.py:x y",), "a.py:x y"),
        (("a.py:rsi_14",), "your feature has the name rsi_14"),
        (("a.py:x", "a.py:x"), "names that differ"),
        (("none", "a.py:x"), "none alone"),
    ],
)
def test_features_that_make_no_sense_are_refused(features: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        DataSettings(features=features)
    with pytest.raises(UsageError, match="none of them a feature's"):
        DataSettings(features=("a.py:x",), columns=("x",))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ahead", "ahead of own_features.py looks ahead"),
        ("whole", "whole of own_features.py looks ahead"),
        ("far", "far of own_features.py reads further back than its lookback"),
        ("noise", "noise is not deterministic"),
        ("short", r"short of own_features.py has shape \(1999,\)"),
        ("holey", "holey of AAA is not finite"),
        ("broken", "broken of own_features.py fails .AttributeError"),
        ("floored", "floored of own_features.py fails .*read-only"),
        ("silent", "silent does not say how far it looks back"),
        ("slop", "has no function slop.*slope"),
    ],
)
def test_a_feature_is_tried_before_it_trains(name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        job_with(name)


def test_values_are_the_functions_own_in_any_piece(make_candles, monkeypatch) -> None:
    job, candles = job_with("slope", "spread"), make_candles(900)
    keys = {"features": job.data.computed, "own": job.data.own}
    rows = compute_inputs(candles, **keys)
    expected = (np.log(candles.close)[10:] - np.log(candles.close)[:-10]) / 10
    np.testing.assert_allclose(rows[10:, 2].numpy(), expected, rtol=1e-5, atol=1e-9)
    assert torch.equal(rows[:, :2], compute_inputs(candles, features=job.data.computed[:2]))
    monkeypatch.setattr("trainer.data.features._LONG_PIECE", 333)
    assert torch.equal(compute_inputs(candles, **keys)[10:], rows[10:])
    one, other = compute_each([candles.rows(0, 500), candles.rows(500)], **keys)
    assert torch.equal(one[10:], rows[10:500]) and torch.equal(other[10:], rows[510:])
    bad = replace(job.data.own, class_name="holey")
    with pytest.raises(DataError, match="holey of AAA is not finite at"):
        compute_inputs(candles, features=("holey",), own=bad)


def test_a_model_needs_the_file_of_its_features(tmp_path: Path) -> None:
    job = job_with("slope", "spread")
    assert job.data.own is not None
    label = label_of(job.data.features, job.data.computed, SHA256)
    assert label.startswith("sha256:") and is_version_of(label, job.data.computed, SHA256)
    assert not is_version_of(label, job.data.computed, "0" * 64)
    path = tmp_path / "m.safetensors"
    own_files = {"data": job.data.own.card_entry()}
    make_model(path, features=job.data.computed, features_version=label, own_files=own_files)
    with pytest.raises(
        UsageError, match="needs its Python file .it was made by slope, spread of own_features.py"
    ):
        check_model(path)
    with pytest.raises(UsageError, match="is another file"):
        check_model(path, [Path(__file__)])
    model = check_model(path, [Path(__file__), FILE])
    assert model.own_features is not None and model.own_features.lookback == 10
    make_model(path, features=job.data.computed, features_version="1.0", own_files=own_files)
    with pytest.raises(DataError, match="was trained on features of version 1.0"):
        check_model(path, [FILE])
    make_model(path, features=FEATURES)
    with pytest.raises(UsageError, match="was not made from a Python file"):
        check_model(path, [FILE])


@pytest.mark.nightly
def test_a_model_of_own_features_predicts_its_cards_scores(tmp_path, write_candles, train) -> None:
    write_candles(tmp_path, "SIG-USD", bars=2500, signal=1.0)
    data = job_with("slope").to_dict()["data"]
    keys = {"data.own": data["own"], "data.features": [*data["features"], "log_return_1@5m"]}
    settings = {"hidden": 8, "batch": 64, "epochs": 2, "learning_rate": 1e-2, "horizon": 1}
    trained = train(tmp_path, tmp_path / "out", **keys, **settings)
    card = read_card(trained.file)
    assert card.features == ["log_return_1", "bar_range", "log_return_1@5m", "slope"]
    assert card.own_files["data"]["text"] == FILE.read_text()
    said = predict_file(trained.file, tmp_path, model_file=FILE)
    chances = {one.bar: one.values["probability"] for one in said}
    last = predict_file(trained.file, tmp_path, last=7, model_file=FILE)
    assert [one.values["probability"] for one in last] == pytest.approx(list(chances.values())[-7:], rel=1e-5)
    found = accuracy(chances, trained.data / "SIG-USD_1m_2024-2024.parquet", card)
    assert found == (card.metrics["test"]["n"], card.metrics["test"]["accuracy"])
    with pytest.raises(UsageError, match="needs its Python file"):
        predict_file(trained.file, tmp_path)
