"""The average of a run's models: scored on their own test bars, and only on the candles of the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.jobs import job_of, with_settings
from tests.trainer.train.conftest import Trained, planned
from trainer.base.errors import DataError, UsageError
from trainer.base.files import HELD
from trainer.cli.verbs import models as verb
from trainer.store.card import LATER_BARS, Card, read_card
from trainer.store.comparison import Side
from trainer.store.weights import load_tensors, save
from trainer.train.ensemble import ensemble_cards, unseen_cards
from trainer.train.evaluate.evaluation import evaluate
from trainer.train.inputs.source import read_source
from trainer.train.inputs.survey import survey
from trainer.train.predict.load_model import check_model
from trainer.train.predict.symbols import outputs_at

LATE = "2030-01-01T00:00:00Z"


@pytest.fixture(scope="module")
def forecasts_of(planted: Trained) -> Callable[[Path], Any]:
    """Return a function that forecasts a model's test bars, and scores a forecast of them."""
    data = read_source(planted.piece, planted.job, planned(planted.job, planted.data)).folds[1].series[0]

    class Scorer:
        def forecast(self, path: Path) -> np.ndarray:
            bars = data.bars("test")
            return outputs_at(check_model(path), data.candles, bars).at(bars, data.target)

        def losses(self, forecast: np.ndarray) -> dict[str, Any]:
            return dict(evaluate(forecast, data.target, data.scored("test")).losses)

        def losses_of_last(self, path: Path, number: int) -> dict[str, Any]:
            """Return the losses on the last bars of the test span alone."""
            rows = replace(data.scored("test"), scored=data.bars("test")[-number:])
            return dict(evaluate(self.forecast(path)[-number:], data.target, rows).losses)

    return Scorer()


@pytest.fixture(scope="module")
def second(planted: Trained, forecasts_of: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model of another seed: the planted one with noise on its weights, and its own losses."""
    path = tmp_path_factory.mktemp("second") / "second.safetensors"
    random = np.random.default_rng(0)
    tensors = {
        name: one + 0.2 * one.new_tensor(random.normal(size=tuple(one.shape)))
        for name, one in load_tensors(planted.file).items()
    }
    card = replace(read_card(planted.file), seed=1)
    save(path, tensors, card)
    save(path, tensors, replace(card, losses=forecasts_of.losses(forecasts_of.forecast(path))))
    return path


def mean_loss(card: Card) -> float:
    return sum(card.losses["sums"]["log_loss"]["model"]) / sum(card.losses["bars"])


def test_the_average_has_the_losses_of_the_mean_probability(planted, second, forecasts_of):
    (found,) = ensemble_cards(planted.job, planted.data, [planted.file, second])
    mean = (forecasts_of.forecast(planted.file) + forecasts_of.forecast(second)) / 2
    assert found.losses == forecasts_of.losses(mean)
    each = [mean_loss(read_card(path)) for path in (planted.file, second)]
    assert mean_loss(found) < np.mean(each), "log loss is convex"
    assert found.trades == {} and found.reliability.keys() == {"up"}
    assert found.metrics["test"]["log_loss"] == pytest.approx(mean_loss(found))


def test_a_run_has_its_average_as_one_more_side(planted, second, tmp_path, monkeypatch, capsys):
    cards = tuple(read_card(path) for path in (planted.file, second))
    run = Side(name="run-1", cards=cards, dollars=2.0, seconds=60.0)
    record = SimpleNamespace(job=planted.job.to_dict())
    for name, told in {
        "side_of": lambda objects, name: run,
        "named_models": lambda objects, name: (name * ("/" not in name), ["one", "two"]),
        "read_record": lambda objects, run_id: (record, "etag"),
        "fetch_models": lambda objects, models, into: [planted.file, second],
        "compare_sides": lambda sides: ("log loss", []),
    }.items():
        monkeypatch.setattr(verb, name, told)
    asked = SimpleNamespace(models=["run-1"], data=str(planted.data), json=True)
    assert verb._compare(asked, None) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in told["sides"]] == ["run-1", "average of run-1"]
    assert [one["side"] for one in told["traded"]] == ["run-1", "run-1"] and 1 <= told["trials"] <= 2
    monkeypatch.setattr(verb, "side_of", lambda objects, name: replace(run, name="main/model"))
    with pytest.raises(UsageError, match="it is one model"):
        verb._compare(asked, None)


@pytest.fixture
def later(second: Path, tmp_path: Path) -> Path:
    """Return a model whose run took the first half of the planted model's test span for its validation."""
    path, card = tmp_path / "later.safetensors", read_card(second)
    begins = card.losses["begins"]
    last = datetime.fromtimestamp(begins[len(begins) // 2], timezone.utc)
    (series,) = card.series
    splits = {**series.splits, "validation": {"last": f"{last:%Y-%m-%dT%H:%M:%SZ}"}}
    save(path, load_tensors(second), replace(card, series=[replace(series, splits=splits)], losses={}))
    return path


def test_models_of_other_spans_are_rescored_on_unseen_bars(planted, second, later, forecasts_of):
    found = unseen_cards(planted.job, planted.data, [[planted.file], [later]])
    for path, (card,) in zip((planted.file, second), found, strict=True):
        assert card.losses == forecasts_of.losses_of_last(path, sum(card.losses["bars"]))
        assert sum(card.losses["bars"]) == pytest.approx(sum(read_card(path).losses["bars"]) / 2, rel=0.5)
    with pytest.raises(UsageError, match="no symbol in common"):
        unseen_cards(planted.job, planted.data, [[planted.file], []])


def test_runs_that_share_too_few_cells_are_scored_again(planted, later, monkeypatch, capsys):
    files = {"run-1": planted.file, "run-2": later}
    losses = read_card(planted.file).losses
    a_year_later = {**losses, "begins": [begin + 365 * 86_400 for begin in losses["begins"]]}
    cards = {"run-1": read_card(planted.file), "run-2": replace(read_card(later), losses=a_year_later)}
    for name, told in {
        "side_of": lambda objects, name: Side(name=name, cards=(cards[name],)),
        "named_models": lambda objects, name: (name, (SimpleNamespace(run_id=name, created_at=name),)),
        "read_record": lambda objects, run_id: (SimpleNamespace(job=planted.job.to_dict()), "etag"),
        "fetch_models": lambda objects, models, into: [files[one.run_id] for one in models],
    }.items():
        monkeypatch.setattr(verb, name, told)
    monkeypatch.setattr("trainer.store.comparison.FEWEST_CELLS", 1)  # these are two days of minutes
    asked = SimpleNamespace(models=["run-1", "run-2"], data=None, json=True)
    with pytest.raises(UsageError, match=r"they scored 0 cells .* score them again: --data PATH"):
        verb._compare(asked, None)
    asked.data = str(planted.data)
    assert verb._compare(asked, None) == 0
    told = capsys.readouterr()
    (row,) = json.loads(told.out)["rows"]
    assert (row["side"], row["symbol"]) == ("run-2", "SIG-USD") and row["score"] > row["reference"]
    assert "scored again on the bars of" in told.err


def test_copies_of_a_killed_comparison_are_removed_later(planted, second, monkeypatch):
    """A folder that is not held stays for good where its maker is killed, with gigabytes of candles."""
    used = list[str]()

    def refuse(*_: object, scratch: Path) -> None:
        used.append(scratch.name)
        raise DataError("enough")

    monkeypatch.setattr("trainer.train.ensemble.plan_and_open", refuse)
    one = SimpleNamespace(run_id="run-1", created_at="now")
    for name, told in {
        "named_models": lambda objects, name: ("run-1", (one,)),
        "read_record": lambda objects, run_id: (SimpleNamespace(job=planted.job.to_dict()), "etag"),
        "fetch_models": lambda objects, models, into: used.extend(into.parts) or [planted.file, second],
    }.items():
        monkeypatch.setattr(verb, name, told)
    side = Side(name="run-1", cards=())
    for compare in (
        lambda: verb._ensemble(None, side, planted.data),
        lambda: verb._scored_again(None, [side, side], planted.data),
    ):
        with pytest.raises(DataError, match="enough"):
            compare()
    made = {name for name in used if name.startswith("mayfly-")}
    assert len(made) == 4 and all(name.endswith(HELD) for name in made)


def of_a_k_fold(path: Path, to: Path, **splits: Any) -> Path:
    """Copy a model as one that k folds trained until 2030, with these spans in its card."""
    card = read_card(path)
    (series,) = card.series
    series = replace(series, splits={**series.splits, **splits})
    data = {**card.data, LATER_BARS: True}
    save(to, load_tensors(path), replace(card, series=[series], data=data, trained_until=LATE))
    return to


def test_models_of_a_k_fold_are_averaged_on_their_own_test(planted, second, tmp_path):
    (honest,) = ensemble_cards(planted.job, planted.data, [planted.file, second])
    models = [
        of_a_k_fold(path, tmp_path / path.name, validation={"last": LATE}) for path in (planted.file, second)
    ]
    (found,) = ensemble_cards(planted.job, planted.data, models)
    assert found.losses == honest.losses


@pytest.mark.parametrize("test", [{"first": "2023-01-01T00:00:00Z", "last": "2023-02-01T00:00:00Z"}, {}])
def test_a_model_of_a_k_fold_has_seen_the_bars_after_its_test(planted, second, tmp_path, test):
    model = of_a_k_fold(second, tmp_path / "k_fold.safetensors", test=test)
    with pytest.raises(DataError, match="can't be scored") as caught:
        unseen_cards(planted.job, planted.data, [[planted.file], [model]])
    assert "no bar of its test span is new enough" in caught.value.why


def test_other_candles_are_refused(planted, second, tmp_path, write_candles):
    write_candles(tmp_path, "SIG-USD", bars=12000, signal=1.0, seed=5)
    with pytest.raises(DataError, match="not the candles") as caught:
        ensemble_cards(planted.job, tmp_path, [planted.file, second])
    assert "other losses on" in caught.value.why


def test_other_candles_of_as_large_losses_are_refused(tmp_path, write_candles, train_piece):
    """A log loss is near log 2 on any candles: what it is on each day tells them apart."""
    folders = data, other, out = [tmp_path / name for name in ("data", "other", "models")]
    for seed, folder in enumerate(folders):
        folder.mkdir()
        write_candles(folder, "AAA", bars=4000, seed=seed)
    keys: dict[str, Any] = {"hidden": 4, "lookback": 20, "epochs": 1, "batch": 64, "horizon": 1, "seeds": 2}
    job = job_of(features=["log_return_1"], symbols=["AAA"], **keys)
    plan = planned(job, data).plan
    as_planned = plan.decided(job)
    pieces = survey(as_planned, plan).pieces
    models = [out / train_piece(piece, as_planned, data, out)["file"] for piece in pieces]
    assert len(ensemble_cards(job, data, models)) == 1
    with pytest.raises(DataError, match="not the candles"):
        ensemble_cards(job, other, models)


def test_one_model_of_each_symbol_has_no_average(planted):
    with pytest.raises(UsageError, match="nothing to average"):
        ensemble_cards(planted.job, planted.data, [planted.file])


def test_models_that_read_an_index_are_averaged_and_compared(tmp_path, write_candles, train_piece):
    data, out = tmp_path / "data", tmp_path / "models"
    for folder in (data, out):
        folder.mkdir()
    for seed, symbol in enumerate(("AAA", "BBB")):
        write_candles(data, symbol, bars=700, seed=seed)
    keys: dict[str, Any] = {"hidden": 4, "lookback": 20, "epochs": 1, "batch": 64, "horizon": 1, "seeds": 2}
    job = job_of(features=["log_return_1"], columns=["log_return_1 of index"], symbols=["AAA"], **keys)
    plan = planned(job, data).plan
    as_planned = plan.decided(job)
    pieces = survey(as_planned, plan).pieces
    models = [out / train_piece(piece, as_planned, data, out)["file"] for piece in pieces]
    (average,) = ensemble_cards(job, data, models)
    assert read_card(models[0]).told_columns == ["index=AAA/BBB"]
    ((one,), (other,)) = unseen_cards(job, data, [models[:1], models[1:]])
    assert one.losses["bars"] == other.losses["bars"] == average.losses["bars"]


def test_pooled_models_are_compared_in_any_order_of_symbols(tmp_path, write_candles, train_piece):
    data, out = tmp_path / "data", tmp_path / "models"
    for folder in (data, out):
        folder.mkdir()
    for seed, symbol in enumerate(("AAA", "BBB")):
        write_candles(data, symbol, bars=700, seed=seed)
    keys: dict[str, Any] = {"hidden": 4, "lookback": 20, "epochs": 1, "batch": 64, "horizon": 1}
    job = job_of(name="all", pooled=True, features=["log_return_1"], symbols=["AAA", "BBB"], **keys)
    plan = planned(job, data).plan
    (piece,) = survey(plan.decided(job), plan).pieces
    model = out / train_piece(piece, plan.decided(job), data, out)["file"]
    turned = with_settings(job, symbols=["BBB", "AAA"])
    for asked in (job, turned):
        ((card,), _) = unseen_cards(asked, data, [[model], [model]])
        assert card.losses["bars"] == read_card(model).losses["bars"]
    assert ensemble_cards(turned, data, [model, model])


def test_models_of_another_target_are_refused(planted, second, tmp_path):
    other = tmp_path / "other.safetensors"
    card = read_card(second)
    save(other, load_tensors(second), replace(card, target_settings={"horizon": 2}))
    with pytest.raises(DataError, match="can't be averaged"):
        ensemble_cards(planted.job, planted.data, [planted.file, other])
