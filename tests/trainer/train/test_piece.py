"""One model from candles to file: it learns a planted signal, nothing from noise, and the same every time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.jobs import job_of, with_settings
from tests.pieces import piece_of
from tests.predictions import predict_file
from trainer.base.errors import TrainingFailed
from trainer.data.read.reading import read_candles
from trainer.store.card import read_card
from trainer.store.weights import load
from trainer.targets.direction import Direction
from trainer.train.checkpoint_files import CheckpointManifest
from trainer.train.cpu import on_one_thread
from trainer.train.inputs.source import (
    Source,
    SourceCache,
    code_sha256,
    made_of,
    plan_and_open,
    read_source,
)
from trainer.train.packs.pack import new_model
from trainer.train.piece import check_given, ended, open_piece, outputs_of_trained
from trainer.train.predict.readers import on_host, outputs_of


def test_a_signal_planted_in_the_candles_is_found(planted):
    assert planted.done["metrics"]["test"]["auc"] > 0.9
    assert planted.done["metrics"]["test"]["accuracy"] > planted.done["metrics"]["test"]["base_rate"] + 0.2


@pytest.mark.nightly
@pytest.mark.slow
def test_a_random_walk_is_seen_as_chance(tmp_path, write_candles, train):
    write_candles(tmp_path, "SIG-USD", bars=14000, seed=3)
    trained = train(tmp_path, tmp_path / "out", hidden=8, batch=256, epochs=2)
    assert trained.done["metrics"]["test"]["n"] > 2000
    assert trained.done["metrics"]["test"]["auc"] == pytest.approx(0.5, abs=0.04)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_model(tmp_path, write_candles, train):
    write_candles(tmp_path, "SIG-USD", bars=1200, signal=1.0)
    settings = {"hidden": 8, "batch": 64, "epochs": 2}
    first = train(tmp_path, tmp_path / "1", **settings)
    again = train(tmp_path, tmp_path / "2", **settings)
    other = train(tmp_path, tmp_path / "3", seed=1, **settings)
    made = (first, again, other)
    losses = [[event for event in one.events if event["event"] == "epoch"] for one in made]
    assert losses[0] == losses[1] != losses[2]
    weights = [load(found.file)[0] for found in (first, again)]
    assert all(np.array_equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_the_last_folds_model_equals_that_of_a_job_without_folds(tmp_path, write_candles, train_piece):
    write_candles(tmp_path, "SIG-USD", bars=2000, signal=1.0)
    small = job_of(hidden=4, batch=64, epochs=1, lookback=20)
    made = []
    for name, job, fold in (
        ("lstm-direction_SIG-USD_1m", with_settings(small, seed=5), 1),
        ("lstm-direction_SIG-USD_1m_f2_s5", with_settings(small, folds=2, seeds=2, seed=4), 2),
    ):
        done = train_piece(piece_of(job, fold=fold, seed=5), job, tmp_path, tmp_path / "out")
        assert done["model"] == name
        made.append(load(tmp_path / "out" / done["file"]))
    (alone, card), (last_fold, numbered) = made
    assert all(np.array_equal(alone[name], last_fold[name]) for name in alone)
    assert card.metrics == numbered.metrics and card.of().splits == numbered.of().splits
    assert (card.fold, card.folds, card.seed) == (1, 1, 5)
    assert (numbered.fold, numbered.folds, numbered.seed) == (2, 2, 5)


def test_a_model_is_scored_on_one_thread(tmp_path, write_candles):
    write_candles(tmp_path, "SIG-USD", bars=900)
    job = job_of(batch=64, lookback=20, hidden=4)
    piece = piece_of(job)
    opened = open_piece(piece, job, read_source(piece, job, plan_and_open(job, tmp_path, scratch=tmp_path)))
    seen: list[int] = []

    def evaluate(network: torch.nn.Module, parts: Any) -> np.ndarray:
        seen.append(torch.get_num_threads())
        return outputs_of(network, parts)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        outputs_of_trained(opened, new_model(opened.run.member, job), job, evaluate)
        assert (set(seen), torch.get_num_threads()) == ({1}, 2)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("model", ["lstm", "tcn"])
def test_validation_is_not_computed_again_for_the_card(model, tmp_path, write_candles):
    write_candles(tmp_path, "SIG-USD", bars=900)
    sizes = {"lstm": {"lookback": 20, "hidden": 4}, "tcn": {"width": 4, "blocks": 2, "chunk": 32}}[model]
    job = job_of(model=model, target="direction", batch=2, **sizes)
    piece = piece_of(job)
    data = plan_and_open(job, tmp_path, scratch=tmp_path)
    opened = open_piece(piece, job, read_source(piece, job, data))
    network, seen = new_model(opened.run.member, job), list[int]()

    def evaluate(network: torch.nn.Module, parts: Any) -> np.ndarray:
        seen.append(sum(len(rows) for rows, _ in parts))
        return outputs_of(network, parts)

    anew = outputs_of_trained(opened, network, job, evaluate)
    with on_one_thread():
        validation = opened.run.validation
        validated = validation.judged(on_host(validation.outputs(network)))
        opened.run.best_outputs = validated.outputs_NO
    assert opened.run.best_outputs is not None
    kept = outputs_of_trained(ended(opened, job), network, job, evaluate)
    assert all(
        np.array_equal(one, other) for span in anew for one, other in zip(anew[span], kept[span], strict=True)
    )
    validation, test = (len(anew[span][0]) for span in ("validation", "test"))
    assert seen == [validation, test, test]


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({}, ""),
        ({"torch": "2.99"}, f"torch 2.99 wrote it, this is {torch.__version__}"),  # of another image
        ({"precision": "bf16"}, "it was written in bf16, this machine trains in fp32"),
        ({"code": "f" * 64}, "other code of training wrote it"),
        ({"settings": "0" * 64}, "it has other settings of the job"),
        ({"data": "0" * 64}, "it has other bars"),
    ],
)
@pytest.mark.parametrize("shards", [1, 3])  # of one process, or of three ranks: any number goes on from both
def test_given_checkpoints_are_checked_before_anything_trains(checked, tmp_path, other, why, shards):
    piece, job, data, made = checked
    place = tmp_path / piece.name / "000000000009"
    place.mkdir(parents=True)
    files = {f"shard-{number}-of-{shards}.safetensors": "5" * 64 for number in range(shards)}
    empty = {"choice": {}, "state": {}, "run": {}, "tensors": {}}
    CheckpointManifest(model=piece.name, made=replace(made, **other), shards=files, **empty).write(place)

    def check() -> None:
        check_given([piece], job, data, folder=tmp_path, precision="fp32")

    if not why:
        return check()
    with pytest.raises(TrainingFailed, match="the checkpoints of SIG-USD can't be continued here") as told:
        check()
    assert told.value.why.startswith(why) and ";" not in told.value.why, "it differs in one thing"
    return None


@pytest.fixture(scope="module")
def checked(tmp_path_factory, write_candles):
    """A piece, its job and data, and what a checkpoint has to share with this machine."""
    folder = tmp_path_factory.mktemp("checked")
    write_candles(folder, "SIG-USD", bars=900)
    job = job_of(batch=64, lookback=20, hidden=4)
    piece, data = piece_of(job), plan_and_open(job, folder, scratch=folder)
    return piece, job, data, made_of(piece, job, data, precision="fp32")


def test_a_worker_reads_a_symbol_once_for_its_models(tmp_path, write_candles):
    write_candles(tmp_path, "SIG-USD", bars=2000)
    write_candles(tmp_path, "LOW-USD", bars=2000)
    job = job_of(folds=2, seeds=2, batch=64, lookback=20)
    data = plan_and_open(job, tmp_path, scratch=tmp_path)
    read: list[str] = []
    sources = SourceCache()
    in_use: list[Source] = []

    def get(symbol: str) -> Source:
        def reading() -> Source:
            read.append(symbol)
            return read_source(piece_of(job, symbol), job, data)

        return sources.get(symbol, in_use, reading)

    first = get("SIG-USD")
    assert get("SIG-USD") is first and first.folds[1].rows_TF is first.folds[2].rows_TF
    in_use.append(first)
    get("LOW-USD")
    assert get("SIG-USD") is first  # a model of it still trains
    in_use.clear()
    get("LOW-USD")
    # What nothing uses any more is not kept beside the last one.
    assert read == ["SIG-USD", "LOW-USD", "LOW-USD"]


def test_predict_reproduces_the_cards_test_metrics_exactly(planted):
    card = read_card(planted.file)
    candles = read_candles(planted.data)["SIG-USD"]
    close = dict(zip(_texts(candles.timestamp), candles.close, strict=True))
    bars = list(close)
    last = bars.index(card.of().splits["test"]["last"]) - card.of().horizon
    test_bars = set(bars[bars.index(card.of().splits["test"]["first"]) : last + 1])
    chances, labels = [], []
    for found in predict_file(planted.file, planted.data):
        later = bars.index(found.bar) + card.of().horizon
        if found.bar in test_bars and close[bars[later]] != close[found.bar]:
            chances.append(found.values["probability"])
            labels.append(float(close[bars[later]] > close[found.bar]))
    found = Direction().scores(np.array(chances), np.array(labels))
    assert found == {name: card.metrics["test"][name] for name in found}
    assert card.metrics == planted.done["metrics"]
    assert card.code_sha256 == code_sha256(planted.job)


def test_predictions_do_not_change_when_later_bars_do(planted, tmp_path, write_candles):
    whole = predict_file(planted.file, planted.data)
    (file,) = planted.data.glob("*.parquet")
    cut = tmp_path / file.name
    _copy_rows(file, cut, slice(0, 5000))
    before = predict_file(planted.file, cut)
    assert before == whole[: len(before)]
    assert before[-1].bar == whole[len(before) - 1].bar == "2024-01-04T11:19:00Z"


def test_predictions_do_not_depend_on_the_files_beginning(planted, tmp_path):
    (file,) = planted.data.glob("*.parquet")
    tail = tmp_path / file.name
    _copy_rows(file, tail, slice(-1000, None))
    assert predict_file(planted.file, tail)[-50:] == predict_file(planted.file, planted.data, last=50)


def test_a_prediction_says_when_it_could_have_been_made(planted):
    (found,) = predict_file(planted.file, planted.data, last=1)
    assert (found.bar, found.available_at) == ("2024-01-09T07:59:00Z", "2024-01-09T08:00:00Z")
    assert 0 < found.values["probability"] < 1


def test_the_card_says_what_the_model_was_trained_on(planted):
    card = read_card(planted.file)
    assert (card.model, card.piece) == ("lstm-direction_SIG-USD_1m", "SIG-USD")
    assert (card.kind, card.timeframe) == ("symbol", "1m")
    assert (card.symbols, card.of().horizon) == (("SIG-USD",), 1)
    assert card.data["bars"] == 12000 and card.data["holes"] == 0 and not card.data["synthetic"]
    assert len(card.of().scaler["mean"]) == len(card.features) >= 30
    assert card.training["best_epoch"] <= card.training["epochs_run"] <= 4
    assert planted.file.with_suffix(".json").exists()


def test_test_scores_have_baselines_and_intervals(planted):
    metrics_of = read_card(planted.file).metrics
    test = metrics_of["test"]
    assert test["intervals"]["auc"] is None and test["cells"] == 2  # too few days for an interval
    assert set(test["baselines"]) == {"base_rate", "persistence", "reversal", "logistic"}
    assert test["auc"] > test["baselines"]["logistic"]["auc"]
    assert "baselines" not in metrics_of["validation"]


def test_a_learning_rate_that_breaks_the_loss_fails_the_model(tmp_path, write_candles, train):
    write_candles(tmp_path, "SIG-USD", bars=3000)
    growing = {"learning_rate": 100.0, "weight_decay": 1.0}  # weights grow a hundredfold a step
    with pytest.raises(TrainingFailed, match="lstm-direction_SIG-USD_1m did not train .*not finite"):
        train(tmp_path, tmp_path / "out", hidden=4, batch=32, epochs=1, **growing)
    assert not list((tmp_path / "out").glob("*"))


def test_a_score_that_is_undefined_in_an_epoch_costs_no_model(tmp_path, write_candles, train):
    path = write_candles(tmp_path, "SIG-USD", bars=1200)
    table = pq.read_table(path)
    halted, last = slice(640, 845), float(table["close"][639].as_py())  # the end of training: no close moves
    for name in ("open", "high", "low", "close"):
        prices = table[name].to_numpy().copy()
        prices[halted] = last
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(prices))
    pq.write_table(table, path)
    # Labels are known in the halt: their unit is the volatility of more bars.
    made = train(
        tmp_path,
        tmp_path / "out",
        target="return",
        features="log_return_1,bar_range",
        hidden=4,
        lookback=20,
        volatility_bars=400,
        epochs=1,
    )
    (epoch,) = read_card(made.file).training["history"]
    assert epoch["train_score"] is None and -1 <= epoch["validation_score"] <= 1


def _texts(timestamps: np.ndarray) -> list[str]:
    return [f"{time}Z" for time in timestamps.astype("datetime64[ns]").astype("datetime64[s]")]


def _copy_rows(source: Path, target: Path, rows: slice) -> None:
    table = pq.read_table(source)
    first, last, _ = rows.indices(table.num_rows)
    pq.write_table(table.slice(first, last - first), target)
