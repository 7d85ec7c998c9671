"""A model that starts from another one whole (`train.init`), week after week: what must match, what it takes
over, and the bars that both may see.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.jobs import job_of
from tests.models import SETTINGS, make_model
from tests.pieces import piece_of
from trainer.base.errors import DataError, UsageError
from trainer.job.job import Job
from trainer.job.start_model import start_model_of
from trainer.store.card import read_card
from trainer.store.weights import load_tensors
from trainer.train.inputs.encoder import check_inputs, parent_of, pinned, portable
from trainer.train.inputs.source import plan_and_open, read_source
from trainer.train.packs.pack import new_model
from trainer.train.piece import open_piece

FEATURES = ("log_return_1", "bar_range")
COMMON = {"features": ",".join(FEATURES), "timeframe": "1m", "epochs": 1}
WEEK = {"validation_days": 1, "test_days": 1}
UNTIL = "2024-01-03T00:00:00Z"


@pytest.fixture(scope="module")
def bars(tmp_path_factory: pytest.TempPathFactory, write_candles: Any) -> Path:
    """Return a folder of four days of bars."""
    folder = tmp_path_factory.mktemp("weeks")
    write_candles(folder, "SIG-USD", bars=4 * 1440, signal=1.0)
    return folder


def start(folder: Path, family: str = "lstm", **card: Any) -> Path:
    """Write the model of an earlier week, which has seen the bars until UNTIL."""
    path = folder / "earlier.safetensors"
    make_model(path, family, "direction", features=FEATURES, **{"trained_until": UNTIL, **card}, seed=3)
    return path


def job_from(path: Path, family: str = "lstm", **keys: Any) -> Job:
    known = {**COMMON, **SETTINGS[family], "model": family, "target": "direction", "horizon": 5, **WEEK}
    return job_of(**{**known, "init": str(path), **keys})


@pytest.mark.parametrize("family", ["lstm", "tcn", "transformer"])
def test_a_model_of_any_kind_starts_from_one_whole(family: str, tmp_path: Path, bars: Path) -> None:
    path = start(tmp_path, family)
    job = pinned(job_from(path, family))
    check_inputs(job)
    piece = piece_of(job)
    run = open_piece(piece, job, read_source(piece, job, plan_and_open(job, bars, scratch=bars))).run
    network, tensors = new_model(run.member, job), load_tensors(path)
    for name, weight in network.named_parameters():
        if name != "context.tables.series":  # matched by symbol
            assert torch.equal(weight, tensors[name]) and weight.requires_grad, name
    scaler = read_card(path).series[0].scaler
    assert run.member.mean_F.tolist() == scaler["mean"] and run.member.std_F.tolist() == scaler["std"]
    parent = parent_of(job)
    assert (parent["training"], parent["until"]) == ("init", UNTIL)
    moved = start_model_of(portable(job))
    assert moved is not None and moved.path == "earlier.safetensors" and moved.sha256 == parent["sha256"]


def test_last_weeks_model_has_not_seen_the_last_days(tmp_path: Path, bars: Path) -> None:
    path = start(tmp_path)
    job = pinned(job_from(path))
    (spans,) = (fold.spans for fold in plan_and_open(job, bars, scratch=bars).plan.symbols["SIG-USD"].folds)
    assert (spans.validation.start, spans.test.start, spans.test.stop) == (2 * 1440, 3 * 1440, 4 * 1440)
    assert (spans.train.stop, spans.validation.stop) == (2 * 1440 - 5, 3 * 1440 - 5)
    shares = pinned(job_from(path, validation_days=0, test_days=0, validation_fraction=0.4))
    with pytest.raises(DataError, match="has seen bars and labels until 2024-01-03") as caught:
        plan_and_open(shares, bars, scratch=bars)
    assert "data.validation_days" in str(caught.value)


def test_days_without_bars_to_train_on_are_refused(bars: Path) -> None:
    with pytest.raises(DataError, match="nothing is left to train on before 2023-12-31"):
        plan_and_open(job_of(**COMMON, validation_days=2, test_days=3), bars, scratch=bars)
    with pytest.raises(UsageError, match="data.validation_days"):
        job_of(test_days=3)
    folds = plan_and_open(job_of(**COMMON, **WEEK, folds=2), bars, scratch=bars).plan.symbols["SIG-USD"].folds
    assert [fold.spans.test.start for fold in folds] == [2 * 1440, 3 * 1440]


def test_a_model_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = start(tmp_path)
    for keys, why in (
        ({"hidden": 9}, "hidden is"),
        ({"lookback": 7}, "this job's 7"),
        ({"horizon": 4}, "it forecasts direction with"),
        ({"target": "quantiles"}, "outputs is 1 there and 3 here"),
        ({"init_sha256": "0" * 64}, "the job pins 000000000000"),
    ):
        with pytest.raises(UsageError, match=why):
            pinned(job_from(path, **keys))
    with pytest.raises(UsageError, match="the mean of 2 networks"):
        pinned(job_from(start(tmp_path, members=2)))
    with pytest.raises(DataError, match="trained on other features"):
        check_inputs(pinned(job_from(start(tmp_path), features="log_return_1")))
    with pytest.raises(UsageError, match="train.init_until"):
        job_of(init_until="yesterday")
    encoder = job_from(path, "tcn", encoder=str(path))
    with pytest.raises(UsageError, match="model.encoder and train.init"):
        start_model_of(encoder)
