"""Scores of a champion and a challenger: on the bars of control's data, whatever their cards say."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tests.jobs import job_of
from tests.models import make_model
from tests.trainer.train.conftest import Trained, planned
from trainer.store.card import read_card
from trainer.store.scores import Asked, AskedModel, AskedPiece, ScoredPiece, read_scores
from trainer.store.weights import HELD_OUT, load_tensors, save, weights_sha256
from trainer.train import score
from trainer.train.inputs.survey import survey
from trainer.train.predict.symbols import outputs_at
from trainer.train.score import main

UNTIL = 4_000_000_000
PROPER = ("log_loss", "brier")


class ScoreRun:
    """A score run's folders, with the planted model as its challenger."""

    def __init__(self, planted: Trained, folder: Path) -> None:
        self.planted, self.given, self.out = planted, folder / "given", folder / "out"
        self.folder, self.models = folder, [self._model("challenger", planted.file)]
        for one in (self.given, self.out):
            one.mkdir(exist_ok=True)

    def _model(self, side: Any, file: Path) -> AskedModel:
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
        target = self.given / "models" / f"{sha256}.safetensors"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
        path = f"models/{target.name}"
        return AskedModel(side=side, path=path, key=f"models/{side}", version_id="v1", sha256=sha256)

    def champion(self, **card: Any) -> None:
        """Put a model of other features and lookback in production, with untrained weights."""
        path = self.folder / "champion.safetensors"
        keys = {"model": self.planted.piece.name, "target_settings": {"horizon": 1}, **card}
        keys = {"trained_until": "2020-01-01T00:00:00Z", **keys}
        make_model(path, **keys)
        self.models = [self.models[0], self._model("champion", path)]

    def challenger(self, **card: Any) -> None:
        """Let the challenger's card say something else."""
        path = self.folder / "challenger.safetensors"
        save(path, load_tensors(self.planted.file), replace(read_card(self.planted.file), **card))
        self.models[0] = self._model("challenger", path)

    def main(self, since: int = 0) -> tuple[int, Asked]:
        """Run the command; return its exit code and what was asked."""
        piece = AskedPiece(piece=self.planted.piece.title, since=since, models=tuple(self.models))
        asked = Asked(pieces=(piece,), until=UNTIL)
        (self.given / "job.json").write_text(json.dumps(self.planted.job.to_dict()))
        (self.given / "asked.json").write_text(json.dumps(asked.to_json()))
        folders = {"data": self.planted.data, "out": self.out, "events": self.folder, "given": self.given}
        words = [word for name, path in folders.items() for word in (f"--{name}", str(path))]
        return main(words), asked

    def scored(self, since: int = 0) -> ScoredPiece:
        code, asked = self.main(since)
        assert code == 0
        assert [path.name for path in self.out.iterdir()] == ["scores.json"]
        proper = self.planted.job.target.proper
        read = read_scores((self.out / "scores.json").read_bytes(), asked, proper=proper)
        return read[self.planted.piece.title]


@pytest.fixture
def run(planted: Trained, tmp_path: Path) -> ScoreRun:
    return ScoreRun(planted, tmp_path)


def test_a_file_that_cant_be_used_is_an_event(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("data", "out", "events", "given")}
    words = [word for name, path in folders.items() for word in (f"--{name}", str(path))]
    assert main(words) == 100
    (event,) = [json.loads(line) for line in (tmp_path / "events" / "events.jsonl").read_text().splitlines()]
    assert (event["event"], event["what"]) == ("error", f"cannot use {tmp_path}/given/asked.json")


def test_a_challenger_alone_has_the_losses_of_its_own_training(run: ScoreRun) -> None:
    scored, told = run.scored(), read_card(run.planted.file).losses
    assert scored.challenger is not None and scored.champion is None
    assert list(scored.challenger.begins) == told["begins"]
    assert list(scored.challenger.bars) == told["bars"]
    assert scored.challenger.sums == told["sums"]


@pytest.mark.nightly
def test_an_agent_has_the_growth_of_its_own_training(tmp_path, write_candles, train) -> None:
    (tmp_path / "data").mkdir()
    write_candles(tmp_path / "data", "SIG-USD", bars=4_000, signal=1.0)
    keys = {"lookback": 8, "batch": 64, "epochs": 1, "test_fraction": 0.3}
    agent = train(tmp_path / "data", tmp_path / "trained", model="mlp", target="position", **keys)
    scored, told = ScoreRun(agent, tmp_path).scored(), read_card(agent.file).losses
    assert scored.challenger is not None and scored.challenger.sums == told["sums"]
    assert set(told["sums"]["growth"]) == {"model", "hold", "flat", "average"}


def test_a_card_that_claims_other_scores_changes_none(run: ScoreRun) -> None:
    honest = run.scored()
    wonderful = {name: {"model": [0.0] * 2, "base_rate": [9.0] * 2} for name in PROPER}
    run.challenger(metrics={}, losses={"begins": [0, 86_400], "bars": [9, 9], "sums": wonderful})
    assert run.scored() == honest


@pytest.mark.parametrize("embargo", [None, "12", -3])
def test_an_embargo_that_is_none_leaves_all_windows(run: ScoreRun, embargo: object) -> None:
    honest, (series,) = run.scored(), read_card(run.planted.file).series
    run.challenger(series=[replace(series, splits={**series.splits, "embargo": embargo})])
    assert run.scored() == honest


def test_a_champion_is_scored_on_the_challengers_windows(run: ScoreRun) -> None:
    alone = run.scored().challenger
    run.champion()
    both = run.scored()
    assert both.challenger == alone and both.champion is not None
    assert both.champion.bars == both.challenger.bars and both.champion != both.challenger
    first, last = both.challenger.begins[0], both.challenger.begins[-1]
    later = run.scored(since=first + 600).challenger
    assert later is not None and later.begins[0] == first + 600
    assert (sum(later.bars), later.begins[1:]) == (sum(both.challenger.bars) - 10, both.challenger.begins[1:])
    assert "can't be scored" in run.scored(since=last + 86_400).reason


def test_a_model_that_cannot_be_compared_is_refused(run: ScoreRun) -> None:
    for card, why in (
        ({"target_settings": {"horizon": 7}}, "forecasts something else"),
        ({"model": "lstm-direction_OTHER_1m"}, "it is lstm-direction_OTHER_1m"),
        ({"symbols": ("OTHER",)}, "no model of SIG-USD"),
    ):
        run.champion(**{"model": run.planted.piece.name, **card})
        assert why in run.scored().reason
    run.champion()
    (run.given / run.models[1].path).write_bytes(b"swapped")
    assert "is not the file that was asked for" in run.scored().reason


def test_candles_that_cannot_be_read_are_an_event(run: ScoreRun, tmp_path: Path) -> None:
    run.planted = replace(run.planted, data=tmp_path / "gone")
    assert run.main()[0] == 100 and not list(run.out.iterdir())
    (event,) = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines())
    assert (event["event"], event["code"]) == ("error", 100) and "gone" in str(event)


def test_a_refits_held_out_twin_is_scored(run: ScoreRun) -> None:
    honest, weights = run.scored(), load_tensors(run.planted.file)
    card = read_card(run.planted.file)
    known = asdict(card)
    twin = {name: known[name] for name in ("trained_until", "series", "panel")}
    card = replace(card, trained_until="2030-01-01T00:00:00Z", series=[replace(card.series[0], splits={})])
    path = run.folder / "refit.safetensors"
    both = {**{name: 9 * one for name, one in weights.items()}}
    both |= {f"{HELD_OUT}{name}": one for name, one in weights.items()}
    save(path, both, replace(card, held_out={"sha256": weights_sha256(weights), **twin}))
    run.models[0] = run._model("challenger", path)
    assert run.scored() == honest
    save(path, both, card)  # with no twin, it has seen every bar
    run.models[0] = run._model("challenger", path)
    assert "was trained on bars that it would be scored on" in run.scored().reason


def test_a_challenger_does_not_choose_its_windows(run: ScoreRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score, "outputs_at", lambda *asked: outputs_at(asked[0], asked[1], asked[2][7:]))
    assert "7 of its test span's bars have no forecast" in run.scored().reason


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["pooled", "panel"])
def test_a_model_of_several_series_has_its_own_losses(
    kind: str, tmp_path: Path, train_piece: Any, write_candles: Any
) -> None:
    for seed, symbol in enumerate(("AAA", "BBB", "CCC")):
        (tmp_path / "data").mkdir(exist_ok=True)
        write_candles(tmp_path / "data", symbol, bars=800 + 50 * seed, seed=seed)
    keys = {"hidden": 4, "lookback": 20, "epochs": 1, "batch": 64, "horizon": 1, kind: True}
    job = job_of(name="all", **keys)
    data = planned(job, tmp_path / "data")
    (piece,) = survey(job.with_data(timeframe="1m"), data.plan).pieces
    out = tmp_path / "models"
    out.mkdir()
    done = train_piece(piece, job, tmp_path / "data", out)
    trained = Trained(piece=piece, job=job, data=tmp_path / "data", out=out, done=done, events=[])
    run = ScoreRun(trained, tmp_path)
    scored, told = run.scored(), read_card(trained.file).losses
    assert scored.challenger is not None, scored.reason
    assert list(scored.challenger.begins) == told["begins"]
    assert scored.challenger.sums == told["sums"]
    since = told["begins"][0] + 3600
    later = run.scored(since=since).challenger
    assert later is not None and later.begins[0] == since and sum(later.bars) < sum(told["bars"])


@pytest.mark.parametrize("target", ["barrier", "quantiles"])
def test_a_panel_with_a_series_that_has_ended_is_scored(
    target: str, tmp_path: Path, train_piece: Any, write_candles: Any
) -> None:
    data, out = tmp_path / "data", tmp_path / "models"
    for folder in (data, out):
        folder.mkdir()
    for seed, bars in enumerate((700, 700, 200)):
        write_candles(data, "ABC"[seed] * 3, bars=bars, seed=seed)
    keys: dict[str, Any] = {"hidden": 4, "lookback": 20, "epochs": 1, "batch": 64, "horizon": 2}
    job = job_of(name="all", panel=True, target=target, features=["log_return_1"], **keys)
    made = planned(job, data)
    (piece,) = survey(job.with_data(timeframe="1m"), made.plan).pieces
    done = train_piece(piece, job, data, out)
    trained = Trained(piece=piece, job=job, data=data, out=out, done=done, events=[])
    scored, told = ScoreRun(trained, tmp_path).scored(), read_card(trained.file).losses
    assert scored.challenger is not None, scored.reason
    assert scored.challenger.sums == told["sums"]
