"""Volatility forecasts: metrics by hand, the simple forecasts, a planted signal that is found, and a model
file that agrees.

The planted candles: the size of a bar's move follows the volume of bars 20 to 40 back, its sign is chance.
"""

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
import torch
from torch import nn

from tests.jobs import job_of, with_settings
from tests.predictions import predict_file
from trainer.cli.main import main as mayfly
from trainer.data.read.candles import Candles, time_text
from trainer.data.read.reading import read_candles
from trainer.data.read.writing import write_candles
from trainer.job.job import Job
from trainer.store.card import read_card
from trainer.targets.direction import Direction
from trainer.targets.direction_scores import logistic
from trainer.targets.volatility import Volatility
from trainer.train.__main__ import main
from trainer.train.evaluate.evaluation import evaluate
from trainer.train.evaluate.scores import outputs_by_span, score_series
from trainer.train.inputs.rows import SymbolData, prepare
from trainer.train.inputs.series import alone
from trainer.train.loop import Run, train
from trainer.train.packs.pack import ModelState
from trainer.train.packs.strategy import form_pack
from trainer.train.piece import run_of

pytestmark = pytest.mark.slow

HOURS = 2
SESSION = 24 // HOURS
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
START = 1_704_067_200_000_000_000  # 2024-01-01T00:00:00Z


def planted(*, bars: int, seed: int) -> tuple[Candles, np.ndarray]:
    """Return candles of two hours, and how large each bar's move was expected to be."""
    random = np.random.default_rng(seed)
    loudness = random.standard_normal(bars)
    total = np.concatenate([[0.0], np.cumsum(loudness)])
    bar = np.arange(bars)
    past = (total[np.maximum(bar - 19, 0)] - total[np.maximum(bar - 40, 0)]) / np.sqrt(21)
    size = 0.002 * np.exp(0.5 * past)
    moves = size * np.exp(0.1 * random.standard_normal(bars)) * random.choice([-1.0, 1.0], bars)
    close = 100 * np.exp(np.cumsum(moves))
    first = np.concatenate([[100.0], close[:-1]])
    candles = Candles(
        symbol="VOL-USD",
        timeframe=f"{HOURS}h",
        timestamp=START + HOURS * 3_600_000_000_000 * np.arange(bars, dtype=np.int64),
        open=first,
        high=np.maximum(first, close) * (1 + 1e-5),
        low=np.minimum(first, close) * (1 - 1e-5),
        close=close,
        volume=np.exp(loudness),
    )
    return candles, size


def returns_and_volume(candles: Candles) -> torch.Tensor:
    columns = [np.concatenate([[0.0], np.diff(np.log(candles.close))]), np.log(candles.volume)]
    return torch.from_numpy(np.stack(columns, axis=1)).float()


class OneRun:
    """A roster of one run."""

    def __init__(self, run: Run) -> None:
        self._coming = [run]
        self.model: nn.Module | None = None

    def arrivals(self, free: int, *, wait: bool) -> list[Run]:
        coming, self._coming = self._coming, []
        return coming

    def checkpoint(self, run: Run, state: ModelState, *, snapshot_seconds: float) -> None:
        raise AssertionError("no test here trains for so long")

    def finished(self, run: Run, model: nn.Module) -> None:
        self.model = model


def trained(data: SymbolData, job: Job) -> tuple[nn.Module, Run]:
    run = run_of(alone(data), job, model="tcn_VOL-USD_2h", seed=job.train.seed)
    roster = OneRun(run)
    train(roster, lambda members: form_pack(members, job), job, lambda event: None)
    assert roster.model is not None
    return roster.model, run


def test_a_volatility_that_follows_the_volume_of_bars_20_to_40_back_is_found(capsys):
    candles, size = planted(bars=6000, seed=0)
    data = prepare(candles, JOB, features=returns_and_volume(candles), warmup=1)
    bars, labels = data.bars("test"), data.labels("test")[:, 0]
    told = np.array([0.5 * np.log(np.sum(size[bar + 1 : bar + 1 + SESSION] ** 2)) for bar in bars])
    attainable = float(np.corrcoef(told, labels)[0, 1])
    model, _ = trained(data, JOB)
    outputs = {span: made[0] for span, made in outputs_by_span(model, alone(data), JOB).items()}
    scores = score_series(outputs, data).scores["test"]
    with capsys.disabled():
        beside = ", ".join(
            f"{name} {found['correlation'] or 0:.3f}" for name, found in scores["baselines"].items()
        )
        print(f"\n  correlation {scores['correlation']:.3f} of {attainable:.3f} attainable, beside {beside}")
    assert attainable >= 0.95
    assert scores["correlation"] > 0.9
    low, high = scores["better"]["har"]["correlation"]
    assert (
        low > 0.2
        and scores["intervals"]["correlation"][0]
        <= scores["correlation"]
        <= scores["intervals"]["correlation"][1]
    )
    assert high < 1


def test_the_last_bar_alone_tells_next_to_nothing_of_the_planted_volatility():
    candles, _ = planted(bars=6000, seed=0)
    data = prepare(candles, JOB, features=returns_and_volume(candles), warmup=1)
    rows = ((data.rows_TF - data.mean_F) / data.std_F).double()
    fit, scored = (data.bars(span) for span in ("train", "test"))
    above = [data.labels(span)[:, 0] > np.median(data.labels("train")) for span in ("train", "test")]
    chances = logistic(rows[fit].numpy(), above[0], rows[scored].numpy())
    auc = Direction().scores(chances, above[1].astype(float))["auc"]
    assert auc is not None and auc < 0.6


def test_the_same_seed_gives_the_same_losses_and_another_seed_others():
    candles, _ = planted(bars=3000, seed=0)
    job = with_settings(JOB, epochs=2, dropout=0.2)
    data = prepare(candles, job, features=returns_and_volume(candles), warmup=1)
    histories = [trained(data, with_settings(job, seed=seed))[1].history for seed in (0, 0, 1)]
    assert histories[0] == histories[1] != histories[2]


def test_the_model_that_is_kept_is_that_of_the_best_epoch():
    candles, _ = planted(bars=3000, seed=0)
    job = with_settings(JOB, epochs=6, patience=6, learning_rate=5e-2)
    data = prepare(candles, job, features=returns_and_volume(candles), warmup=1)
    model, run = trained(data, job)
    losses = [epoch["validation_loss"] for epoch in run.history]
    assert run.best_epoch == 1 + losses.index(min(losses))
    assert run.validate(model) == min(losses)


def test_simple_forecasts_see_nothing_after_their_bar_and_learn_from_training_alone():
    candles, _ = planted(bars=4000, seed=0)
    data = prepare(candles, JOB, features=returns_and_volume(candles), warmup=1)
    cut = data.bars("test")[100]
    close = candles.close.copy()
    close[cut + 1 :] *= np.exp(np.random.default_rng(1).normal(0, 0.1, len(close) - cut - 1))
    other = replace(data, candles=replace(candles, close=close))
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
    candles = replace(planted(bars=700 * SESSION, seed=0)[0], close=100 * np.exp(np.cumsum(moves)))
    data = prepare(candles, JOB, features=returns_and_volume(candles), warmup=1)
    rows = data.scored("test")
    told = evaluate(data.target.baselines(rows)["har"], data.target, rows, replicates=200)
    assert told["baselines"]["har"]["mse"] == told["mse"] < 0.9 * told["baselines"]["trailing"]["mse"]
    assert told["better"]["trailing"]["qlike"][0] > 0
    assert told["better"]["har"] == {"correlation": [0.0, 0.0], "qlike": [0.0, 0.0]}


@pytest.fixture(scope="module")
def model_file(
    tmp_path_factory: pytest.TempPathFactory, python: list[str]
) -> tuple[Path, Path, dict[str, Any]]:
    """Train through the command line, on a file with a hole; return the model, the candles and the last
    event.
    """
    folder = tmp_path_factory.mktemp("tcn")
    candles, _ = planted(bars=4000, seed=0)
    kept = np.delete(np.arange(4000), 3500)
    names = ("timestamp", "open", "high", "low", "close", "volume")
    candles = replace(candles, **{name: getattr(candles, name)[kept] for name in names})
    data = folder / "VOL-USD_2h_2024-2024.parquet"
    write_candles(data, [candles], synthetic=True)
    settings = [
        "model.blocks=3",
        "model.width=8",
        "model.chunk=128",
        "train.batch=4",
        "target.horizon_sessions=1",
    ]
    arguments = [
        "--data",
        str(data),
        "--out",
        str(folder / "out"),
        "--events",
        str(folder),
        "--epochs",
        "2",
        "--model",
        "tcn",
    ]
    arguments += ["--device", "cpu", "--workers", "1"] + [
        part for setting in settings for part in ("--set", setting)
    ]
    subprocess.run([*python, "-m", "trainer.train", *arguments], check=True, stdout=subprocess.DEVNULL)
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return (
        folder / "out" / "tcn-volatility_VOL-USD_2h.safetensors",
        data,
        next(e for e in events if e["event"] == "model_done"),
    )


def test_the_card_tells_what_was_made(model_file):
    file, _, done = model_file
    card = read_card(file)
    assert card.architecture == {
        "features": len(card.features),
        "width": 8,
        "dilations": [1, 2, 4],
        "dropout": 0.1,
        "outputs": 1,
    }
    assert (card.family, card.lookback, card.of().horizon, card.target_settings["horizon_sessions"]) == (
        "tcn",
        29,
        SESSION,
        1,
    )
    assert card.data["synthetic"] and card.data["holes"] == 1
    assert card.metrics == done["metrics"]
    assert card.metrics["test"]["baselines"].keys() == {"mean", "trailing", "har"}


def test_predict_reproduces_the_metrics_of_the_card(model_file):
    file, data, done = model_file
    card = read_card(file)
    told = {found.bar: found.values["volatility"] for found in predict_file(file, data)}
    labels, bars = _scored(data, card.of().splits["test"])
    forecast = np.log([told[bar] for bar in bars])
    again = Volatility().scores(forecast, labels)
    for name in ("n", "correlation", "qlike", "mse"):
        assert again[name] == pytest.approx(done["metrics"]["test"][name], rel=1e-9)


def _scored(data: Path, span: dict[str, Any]) -> tuple[np.ndarray, list[str]]:
    candles = read_candles(data)["VOL-USD"]
    prepared = prepare(candles, with_settings(JOB, blocks=3, width=8))
    bars = prepared.bars("test")
    assert len(bars) == span["windows"]
    return prepared.labels("test")[:, 0], [time_text(candles.timestamp[bar]) for bar in bars]


def test_a_forecast_needs_no_bar_before_what_it_sees_and_none_after(model_file, tmp_path):
    file, data, _ = model_file
    candles = read_candles(data)["VOL-USD"]
    whole = {found.bar: found.values["volatility"] for found in predict_file(file, data)}
    part = tmp_path / "VOL-USD_2h.parquet"
    write_candles(part, [candles.rows(1000, 2500)], synthetic=True)
    found = predict_file(file, part)
    assert found
    np.testing.assert_allclose(
        [item.values["volatility"] for item in found], [whole[item.bar] for item in found], rtol=1e-4
    )
    assert [item.values["volatility"] for item in predict_file(file, data, last=5)] == list(whole.values())[
        -5:
    ]


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
    candles, _ = planted(bars=1500, seed=0)
    data = tmp_path / "VOL-USD_2h.parquet"
    write_candles(data, [candles], synthetic=True)
    small = [
        "model.name=tcn",
        "model.blocks=3",
        "model.width=4",
        "model.chunk=64",
        "target.horizon_sessions=1",
        *settings,
    ]
    arguments = ["--data", str(data), "--out", str(tmp_path / "out")]
    assert main(arguments + [part for setting in small for part in ("--set", setting)]) == 2
    assert words in capsys.readouterr().err
