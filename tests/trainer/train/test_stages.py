"""Stages of a piece: a refit, whose held-out twin is what is scored, the mean of several networks, and more
epochs of a training that had ended.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.jobs import job_of
from tests.pieces import piece_of
from tests.trainer.train.conftest import Training, planned
from tests.trainer.train.rosters import WorkerKilled
from trainer.base.errors import DataError
from trainer.base.strict_json import Unsound
from trainer.job.job import Job
from trainer.store.card import read_card
from trainer.store.weights import load_tensors, save
from trainer.train.inputs.source import read_source
from trainer.train.loop import train
from trainer.train.machine_file import MachineFacts
from trainer.train.notice import Notice
from trainer.train.observing.events import line_of
from trainer.train.observing.meter import Repeats
from trainer.train.packs.pack import ModelState
from trainer.train.packs.strategy import form_pack
from trainer.train.predict.load_model import Networks, check_model
from trainer.train.run import Run
from trainer.train.score import Windows, outputs_on
from trainer.train.stages import DOCUMENT, FittedNetwork, Stages, stages_of
from trainer.train.workers.assignment import WorkerSettings
from trainer.train.workers.station import Station
from trainer.train.workers.worker import _WorkerRoster

SMALL: dict[str, Any] = {
    "features": "log_return_1,bar_range",
    "hidden": 4,
    "lookback": 20,
    "batch": 64,
    "epochs": 2,
    "horizon": 1,
    "patience": 1,
}


class Ended(Exception):
    """The end of the piece."""


class Worker(_WorkerRoster):
    """A worker's roster of one piece, which keeps its events; with `dies` it is killed at the first checkpoint of
    the refit.
    """

    def __init__(
        self, job: Job, folder: Path, out: Path, *, dies: bool = False, symbols: Sequence[str] = ()
    ) -> None:
        self.events: list[dict[str, Any]] = []
        self.dies, data = dies, planned(job, folder)
        settings = WorkerSettings(
            job=job.with_data(timeframe="1m"),
            data=data,
            out=out,
            checkpoints=out / "checkpoints",
            notice=None,
            machine_file=None,
            machine=MachineFacts(),
            choice={},
        )
        self.ours, theirs = Pipe()
        super().__init__(Station(number=0, device="cpu"), settings, theirs, Notice(None))
        self.piece = piece_of(job, *symbols)
        self.ours.send(self.piece)

    def report(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        if event["event"] in ("model_done", "model_failed"):
            raise Ended

    def checkpoint(self, run: Run, state: ModelState, *, snapshot_seconds: float) -> None:
        super().checkpoint(run, state, snapshot_seconds=snapshot_seconds)
        if self.dies and run.validation is None:
            self._files.flush()
            raise WorkerKilled


def trained(
    job: Job,
    folder: Path,
    out: Path,
    *,
    dies: bool = False,
    symbols: Sequence[str] = (),
    interval: float = 1e9,
    clock: Callable[[], float] = time.monotonic,
) -> Worker:
    """Train a job's only piece in this process, as a worker does, and return the worker."""
    out.mkdir(exist_ok=True)
    worker = Worker(job, folder, out, dies=dies, symbols=symbols)
    with pytest.raises(WorkerKilled if dies else Ended):
        form = partial(form_pack, job=job)
        train(worker, form, job, worker.report, interval=lambda: interval, clock=clock)
    return worker


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, write_candles: Any) -> Path:
    folder = tmp_path_factory.mktemp("candles")
    write_candles(folder, "SIG-USD", bars=420, signal=1.0)
    return folder


@pytest.fixture(scope="module")
def plain(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a model that was trained once."""
    return file_of(trained(job_of(**SMALL), folder, tmp_path_factory.mktemp("plain")))


@pytest.fixture(scope="module")
def refit(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Worker:
    """Return the worker that trained the same model, and then again on all bars."""
    return trained(job_of(**SMALL, refit=True), folder, tmp_path_factory.mktemp("refit"))


def file_of(worker: Worker) -> Path:
    return worker._settings.out / str(worker.events[-1]["file"])


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_refit_carries_its_held_out_twin_and_the_twins_scores(refit: Worker, plain: Path) -> None:
    file = file_of(refit)
    card, first = read_card(file), read_card(plain)
    assert same(load_tensors(file, held_out=True), load_tensors(plain))
    assert not same(load_tensors(file), load_tensors(plain))
    assert (card.losses, card.trades) == (first.losses, first.trades)
    about = {**first.metrics["about"], "refit_until": card.trained_until}
    assert card.metrics == {**first.metrics, "about": about}
    assert "of its held-out twin; trained again until 2024-01-01T07:00:00Z" in line_of(refit.events[-1])
    assert card.held_out["trained_until"] == first.trained_until < card.trained_until
    assert card.trained_until == "2024-01-01T07:00:00Z", "the end of the last bar"
    assert card.twin.series == first.series and card.twin.trained_until == first.trained_until
    whole = card.series[0].splits
    assert whole["train"]["windows"] > sum(
        first.series[0].splits[span]["windows"] for span in ("train", "validation", "test")
    ), "the embargo's bars train, too"
    assert (whole["validation"]["windows"], whole["test"]["windows"]) == (0, 0)
    assert card.series[0].fitted == first.series[0].fitted, "calibrated as its twin was"


def test_a_refit_trains_the_epochs_that_validation_chose(refit: Worker) -> None:
    card = read_card(file_of(refit))
    epochs = [event for event in refit.events if event["event"] == "epoch"]
    first = [event for event in epochs if "validation_loss" in event]
    assert len(card.training["refit"][0]["history"]) == card.training["best_epoch"]
    assert len(epochs) == len(first) + card.training["best_epoch"]
    assert [event["epoch"] for event in epochs] == list(range(1, len(epochs) + 1))
    assert [event["event"] for event in refit.events].count("scoring") == 1, "test is scored once"


def test_a_machine_lost_in_the_refit_keeps_the_first_fit(refit: Worker, folder: Path, tmp_path: Path) -> None:
    job = job_of(**SMALL, refit=True)
    killed = trained(job, folder, tmp_path, dies=True)
    assert not list(tmp_path.glob("*.safetensors"))
    again = trained(job, folder, tmp_path)
    events = [event["event"] for event in again.events]
    assert "resumed" in events and "scoring" not in events and "begun_anew" not in events
    resumed = again.events[events.index("resumed")]
    steps = math.ceil(read_card(file_of(again)).series[0].splits["train"]["windows"] / job.train.batch)
    lost = {
        "event": "progress",
        "model": resumed["model"],
        "epoch": resumed["epoch"],
        "steps": steps,
        "step": 3,
    }
    repeats = Repeats()
    assert resumed["visited"] == job.train.batch and repeats.read(lost)
    assert repeats.read(resumed)["lost_steps"] == 2, "epochs of a refit have more steps than those before"
    assert not any("validation_loss" in event for event in again.events)
    assert len(killed.events) + len(again.events) >= len(refit.events)
    (one, other), (card, whole) = (
        [make(file) for file in (file_of(again), file_of(refit))] for make in (load_tensors, read_card)
    )
    assert same(one, other)
    assert replace(card, created_at="") == replace(whole, created_at="")


def test_a_refit_that_resumes_where_it_was_lost_repeats_no_step(folder: Path, tmp_path: Path) -> None:
    job, every_step = job_of(**SMALL, refit=True), count().__next__
    killed = trained(job, folder, tmp_path, dies=True, clock=every_step)
    again, repeats = trained(job, folder, tmp_path), Repeats()
    told = [repeats.read(event) for event in (*killed.events, *again.events)]
    assert [event["lost_steps"] for event in told if event["event"] == "resumed"] == [0]


def test_a_scorer_takes_the_twin_and_refuses_seen_bars(
    refit: Worker, plain: Path, folder: Path, tmp_path: Path
) -> None:
    job = job_of(**SMALL)
    data = read_source(piece_of(job), job, planned(job, folder)).folds[1].series[0]
    test = [Windows(data=data, bars=data.bars("test"))]
    twin = check_model(file_of(refit), to_score=True)
    scored, expected = (outputs_on(test, model)["SIG-USD"] for model in (twin, check_model(plain)))
    assert np.array_equal(scored.outputs_NO, expected.outputs_NO)
    with pytest.raises(DataError, match="trained on bars that it would be scored on"):
        outputs_on(test, check_model(file_of(refit)))
    early = [Windows(data=data, bars=data.bars("validation")[-3:])]
    with pytest.raises(DataError, match="3 labels of SIG-USD begin before"):
        outputs_on(early, twin)
    card = read_card(file_of(refit))
    weights = load_tensors(file_of(refit))
    swapped = {**weights, **{f"held-out/{name}": 2 * one for name, one in weights.items()}}
    save(tmp_path / "swapped.safetensors", swapped, card)
    with pytest.raises(DataError, match="other weights than it says"):
        Networks().of(check_model(tmp_path / "swapped.safetensors", to_score=True))


def test_the_epochs_of_all_stages_are_foreseen() -> None:
    """Of a refit as many as the first fit's best took; progress and its end are told by them."""
    job, run, told = job_of(epochs=10), SimpleNamespace(), list[tuple[int, int, int]]()
    known: Any = {"weights": {}, "final_learning_rate": 0.1, "lowered": 0, "steps": 7, "scored_before": 0}
    known |= {"history": [], "first_steps": [], "mates": ()}
    epochs = ((5, 3), (6, 4), (3, 3))  # run, and the best
    fits = tuple(FittedNetwork(epochs_run=all_of, best_epoch=best, **known) for all_of, best in epochs)
    for number in range(4):
        stages: Any = Stages(members=2, refit=True, fits=fits[:number])
        stages.prepare(run, job)
        told.append((run.fit, run.epochs_before, run.epochs_after))
    assert told == [(1, 0, 30), (2, 5, 20), (3, 11, 4), (4, 14, 0)] and run.last_epoch == 4


def test_a_damaged_document_of_earlier_stages_is_refused() -> None:
    piece = piece_of(job_of(**SMALL, refit=True))
    weights = {"fit-0.head.weight": torch.zeros(1)}
    for text in ("{", '{"fits": [], "card": ""}', '{"fits": [{}], "card": ""}', "[]"):
        body = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        with pytest.raises(Unsound):
            stages_of(piece, {**weights, DOCUMENT: body})
    with pytest.raises(Unsound):
        stages_of(piece, weights)


def test_the_mean_of_several_networks_is_one_model(folder: Path, tmp_path: Path, plain: Path) -> None:
    worker = trained(job_of(**SMALL, seeds=2, ensemble=True), folder, tmp_path)
    card, file = read_card(file_of(worker)), file_of(worker)
    tensors = load_tensors(file)
    assert card.members == 2 and len(card.training["others"]) == 1
    assert same(
        {name.removeprefix("members.0."): one for name, one in tensors.items() if ".0." in name[:11]},
        load_tensors(plain),
    ), "its first member is the model of its first seed"
    network = Networks().of(check_model(file))
    x = torch.randn(20, 3, len(card.features), generator=torch.Generator().manual_seed(0))
    each = torch.stack([torch.sigmoid(member(x)) for member in network.members])
    assert torch.allclose(torch.sigmoid(network(x)), each.mean(0), atol=1e-6)


def test_more_epochs_go_on_from_the_checkpoint_and_are_counted(
    folder: Path, tmp_path: Path, plain: Path
) -> None:
    short = trained(job_of(**{**SMALL, "epochs": 1}), folder, tmp_path, interval=1e-9)
    more = trained(job_of(**SMALL), folder, tmp_path)
    events = [event["event"] for event in more.events]
    assert "resumed" in events and "begun_anew" not in events
    assert same(load_tensors(file_of(more)), load_tensors(plain)), "as if it had not ended before"
    cards = [read_card(plain), read_card(file_of(more))]
    assert [card.test_scored for card in cards] == [1, 2] and cards[1].losses == cards[0].losses
    assert short.events[-1]["event"] == "model_done"
    again = trained(job_of(**SMALL), folder, tmp_path)
    assert again.events[-1].get("kept") is True


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["pooled", "panel"])
def test_a_model_of_several_series_is_refitted(kind: str, tmp_path: Path, write_candles: Any) -> None:
    data, symbols = tmp_path / "data", ("AAA", "BBB", "CCC")
    data.mkdir()
    for seed, symbol in enumerate(symbols):
        write_candles(data, symbol, bars=800 + 50 * seed, seed=seed)
    files = []
    for keys in ({}, {"refit": True}):
        job = job_of(name="all", **{**SMALL, kind: True}, **keys)
        files.append(file_of(trained(job, data, tmp_path / f"out{len(files)}", symbols=symbols)))
    plain, card = (read_card(file) for file in files)
    assert same(load_tensors(files[1], held_out=True), load_tensors(files[0]))
    assert card.losses == plain.losses and card.twin.series == plain.series and card.twin.panel == plain.panel
    assert [one.splits["test"]["windows"] for one in card.series] == [0, 0, 0]
    assert card.series[0].scaler != plain.series[0].scaler
    assert [one.metrics for one in card.series] == [one.metrics for one in plain.series]


@pytest.mark.nightly
def test_ranks_refit_a_model_of_several_networks(tmp_path: Path, write_candles: Any) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_candles(data, "SIG-USD", bars=900, signal=1.0)
    keys = ("refit=true", "ensemble=true", "seeds=2", "distributed=always", "epochs=2")
    told = [word for key in keys for word in ("--set", f"train.{key}")]
    training = Training([sys.executable], data, tmp_path, "--workers", "2", *told)
    assert training.end() == 0
    (done,) = training.events("model_done")
    card = read_card(training.out / done["file"])
    assert card.members == 2 and card.held_out and len(card.training["refit"]) == 2
    network = Networks().of(check_model(training.out / done["file"], to_score=True))
    assert len(list(network.members)) == 2
