"""Volatility forecasts of a TCN: a planted signal is found, baselines, the card, predict and the command."""

from __future__ import annotations

import csv
import io
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from benchmarks.learning import best_of
from benchmarks.planted import planted_volatility
from tests.jobs import job_of, sets, with_settings
from tests.predictions import predict_file
from trainer.cli.main import main as mayfly
from trainer.data.read.candles import time_text
from trainer.data.read.reading import read_candles
from trainer.data.read.shapes import FIELDS
from trainer.data.read.writing import write_candles
from trainer.job.job import Job
from trainer.store.card import read_card
from trainer.targets.direction import Direction
from trainer.targets.logistic import logistic
from trainer.targets.volatility import Volatility
from trainer.train.__main__ import main
from trainer.train.evaluate.evaluation import evaluate
from trainer.train.evaluate.scores import outputs_by_span, readings, score_series
from trainer.train.inputs.rows import SymbolData, prepare
from trainer.train.inputs.series import alone
from trainer.train.piece import run_of
from trainer.train.predict.readers import on_host, outputs_of
from trainer.train.run import Run

pytestmark = pytest.mark.slow

SESSION = 12  # bars of two hours
JOB = job_of(
    model="tcn",
    blocks=4,
    width=16,
    dropout=0.0,
    chunk=128,
    batch=4,
    horizon_sessions=1,
    epochs=20,
    patience=20,
    learning_rate=1e-2,
    checkpoint_seconds=0,
)


def prepared(job: Job, *, bars: int) -> SymbolData:
    """Return candles whose moves are as large as the volume of the bars 20 to 40 before them says."""
    candles, features = planted_volatility(0, bars=bars)
    return prepare(candles, job, features=features, warmup=1)


def trained(data: SymbolData, job: Job) -> tuple[nn.Module, Run]:
    run = run_of(alone(data), job, model="tcn_VOL-USD_2h", seed=job.train.seed)
    return best_of(run, job), run


@pytest.mark.nightly
def test_a_planted_volatility_is_found_by_a_tcn(capsys):
    data = prepared(JOB, bars=6000)
    model, _ = trained(data, JOB)
    outputs = {span: made[0] for span, made in outputs_by_span(model, alone(data), JOB).items()}
    scores = score_series(outputs, data).scores["test"]
    low, high = scores["intervals"]["correlation"]
    assert low <= scores["correlation"] <= high and scores["correlation"] > 0.9
    assert all(gain["low"] > 0 for gain in scores["better"]["har"].values())


def test_the_last_bar_does_not_reveal_the_planted_volatility():
    data = prepared(JOB, bars=6000)
    rows = ((data.rows_TF - data.mean_F) / data.std_F).double()
    fit, scored = (data.bars(span) for span in ("train", "test"))
    above = [data.labels(span)[:, 0] > np.median(data.labels("train")) for span in ("train", "test")]
    chances = logistic(rows[fit].numpy(), above[0], rows[scored].numpy())[:, 1]
    auc = Direction().scores(chances, above[1].astype(float))["auc"]
    assert auc is not None and auc < 0.6


def test_a_tcns_losses_follow_from_the_seed():
    job = with_settings(JOB, epochs=2, dropout=0.2)
    data = prepared(job, bars=3000)
    histories = [trained(data, with_settings(job, seed=seed))[1].history for seed in (0, 0, 1)]
    assert histories[0] == histories[1] != histories[2]


def test_the_model_that_is_kept_is_that_of_the_best_epoch():
    job = with_settings(JOB, epochs=6, patience=6, learning_rate=5e-2)
    data = prepared(job, bars=3000)
    model, run = trained(data, job)
    losses = [epoch["validation_loss"] for epoch in run.history]
    assert run.best_epoch == 1 + losses.index(min(losses))
    reached = run.validation.judged(on_host(run.validation.outputs(model)))
    assert reached.loss == min(losses)
    best = run.history[run.best_epoch - 1]
    assert reached.scores == {name: best[name] for name in ("train_score", "validation_score")}
    rows = data.labels("validation")
    outputs = outputs_of(model, readings(alone(data), job, "validation"))
    by_hand = np.corrcoef(data.target.forecast(outputs, data.fitted)[:, 0], rows[:, 0])[0, 1]
    assert reached.score == "correlation" and reached.validation_score == pytest.approx(by_hand)
    assert -1 <= reached.train_score <= 1


def test_baselines_see_nothing_after_their_bar():
    data = prepared(JOB, bars=4000)
    cut = data.bars("test")[100]
    close = data.candles.close.copy()
    close[cut + 1 :] *= np.exp(np.random.default_rng(1).normal(0, 0.1, len(close) - cut - 1))
    other = replace(data, candles=replace(data.candles, close=close))
    before, after = (data.target.baselines(item.scored("test")) for item in (data, other))
    for name in ("trailing", "har"):
        np.testing.assert_array_equal(after[name][:101], before[name][:101])
        assert not np.allclose(after[name][101:], before[name][101:], rtol=1e-3)


def test_har_learns_how_much_of_the_last_session_goes_on():
    """Volatility that reverts by half each session: HAR must beat the forecast that it stays as it is."""
    random = np.random.default_rng(0)
    level = np.zeros(700)
    for session in range(1, 700):
        level[session] = 0.5 * level[session - 1] + random.normal(0, 0.5)
    moves = 0.002 * np.exp(np.repeat(level, SESSION)) * random.choice([-1.0, 1.0], 700 * SESSION)
    candles, features = planted_volatility(0, bars=700 * SESSION)
    candles = replace(candles, close=100 * np.exp(np.cumsum(moves)))
    data = prepare(candles, JOB, features=features, warmup=1)
    rows = data.scored("test")
    told = evaluate(data.target.baselines(rows)["har"], data.target, rows).scores
    assert told["baselines"]["har"]["mse"] == told["mse"] < 0.9 * told["baselines"]["trailing"]["mse"]
    assert told["better"]["trailing"]["qlike"]["low"] > 0
    assert all(gain["gain"] == gain["error"] == 0 for gain in told["better"]["har"].values())


@pytest.fixture(scope="module")
def model_file(
    tmp_path_factory: pytest.TempPathFactory, python: list[str]
) -> tuple[Path, Path, dict[str, Any]]:
    """Train through the command line, on a file with a hole; return the model, the candles and the last
    event.
    """
    folder = tmp_path_factory.mktemp("tcn")
    candles, _ = planted_volatility(0, bars=4000)
    kept = np.delete(np.arange(4000), 3500)
    columns = {name: getattr(candles, name)[kept] for name in ("timestamp", *FIELDS)}
    candles = replace(candles, symbol="VOL-USD", **columns)
    data = folder / "VOL-USD_2h_2024-2024.parquet"
    write_candles(data, [candles], synthetic=True)
    arguments = ["--data", str(data), "--out", str(folder / "out"), "--events", str(folder)]
    arguments += ["--epochs", "2", "--model", "tcn", "--device", "cpu", "--workers", "1"]
    arguments += sets("model.blocks=3", "model.width=8", "model.chunk=128", "train.batch=4")
    arguments += sets("target.horizon_sessions=1")
    subprocess.run([*python, "-m", "trainer.train", *arguments], check=True, stdout=subprocess.DEVNULL)
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    (done,) = [event for event in events if event["event"] == "model_done"]
    return folder / "out" / done["file"], data, done


def test_the_card_describes_the_tcn(model_file):
    file, _, done = model_file
    card = read_card(file)
    sizes = {"features": len(card.features), "width": 8, "dilations": [1, 2, 4], "dropout": 0.1, "outputs": 1}
    assert card.architecture == sizes and (card.family, card.lookback) == ("tcn", 29)
    assert (card.of().horizon, card.target_settings["horizon_sessions"]) == (SESSION, 1)
    assert card.data["synthetic"] and card.data["holes"] == 1
    assert card.metrics == done["metrics"]
    assert card.metrics["test"]["baselines"].keys() == {"mean", "trailing", "har"}


def test_predict_reproduces_the_metrics_of_the_card(model_file):
    file, data, done = model_file
    card = read_card(file)
    told = {found.bar: found.values["volatility"] for found in predict_file(file, data)}
    labels, bars = _scored(data, card.of().splits["test"])
    variance = np.log([told[bar] for bar in bars])
    smearing = card.of().fitted["smearing"]
    forecast = np.stack([variance - 0.5 * np.log(smearing), variance], axis=1)
    again = Volatility().scores(forecast, labels)
    assert smearing != 1
    for name in ("n", "correlation", "qlike", "mse"):
        assert again[name] == pytest.approx(done["metrics"]["test"][name], rel=1e-9)


def _scored(data: Path, span: dict[str, Any]) -> tuple[np.ndarray, list[str]]:
    candles = read_candles(data)["VOL-USD"]
    prepared = prepare(candles, with_settings(JOB, blocks=3, width=8))
    bars = prepared.bars("test")
    assert len(bars) == span["windows"]
    return prepared.labels("test")[:, 0], [time_text(candles.timestamp[bar]) for bar in bars]


def test_a_forecast_depends_only_on_the_bars_it_sees(model_file, tmp_path):
    file, data, _ = model_file
    candles = read_candles(data)["VOL-USD"]
    whole = {found.bar: found.values["volatility"] for found in predict_file(file, data)}
    part = tmp_path / "VOL-USD_2h.parquet"
    write_candles(part, [candles.rows(1000, 2500)], synthetic=True)
    found = predict_file(file, part)
    assert found
    told = [item.values["volatility"] for item in found]
    np.testing.assert_allclose(told, [whole[item.bar] for item in found], rtol=1e-4)
    last = [item.values["volatility"] for item in predict_file(file, data, last=5)]
    assert last == list(whole.values())[-5:]


def test_the_command_writes_a_column_named_volatility(model_file, capsys):
    file, data, _ = model_file
    assert mayfly(["predict", str(file), "--data", str(data), "--last", "3"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [set(row) for row in rows] == [{"model", "symbol", "bar", "available_at", "volatility"}] * 3
    assert all(0 < float(row["volatility"]) < 1 for row in rows)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("train.batch=500",), "batch 500 is larger than the"),
        (("model.blocks=12", "model.dilation_cap=512"), "lower model.blocks or model.dilation_cap"),
        (("target.horizon_sessions=0",), "horizon_sessions = 1"),
        (("model.width=0",), "1 or more"),
    ],
)
def test_what_cannot_be_trained_ends_at_the_desk_with_one_line(settings, words, tmp_path, capsys):
    data = tmp_path / "VOL-USD_2h.parquet"
    write_candles(data, [planted_volatility(0, bars=1500)[0]], synthetic=True)
    small = ("model.name=tcn", "model.blocks=3", "model.width=4", "model.chunk=64")
    settings = sets(*small, "target.horizon_sessions=1", *settings)
    assert main(["--data", str(data), "--out", str(tmp_path / "out"), *settings]) == 2
    assert words in capsys.readouterr().err
