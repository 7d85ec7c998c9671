"""Many models predicted at once: the digits of each alone, one line for what can't be predicted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from tests.models import LOOKBACK, make_model
from tests.predictions import predict_file
from trainer.base.errors import DataError, UsageError
from trainer.data.feature_names import usual_features, version_of
from trainer.data.read.reading import read_candles
from trainer.data.read.writing import write_candles as write_file
from trainer.train.predict import symbols as predict_module
from trainer.train.predict.symbols import SMALL_BATCHES, NotPredicted, Predictions, predict_models

SYMBOLS = ("AAA", "BBB", "CCC", "DDD")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, write_candles: Any) -> Path:
    folder: Path = tmp_path_factory.mktemp("candles")
    for seed, symbol in enumerate(SYMBOLS):
        write_candles(folder, symbol, bars=700 + 10 * seed, seed=seed)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("models")
    paths = [folder / f"lstm_{symbol}.safetensors" for symbol in SYMBOLS]
    for seed, (path, symbol) in enumerate(zip(paths, SYMBOLS, strict=True)):
        make_model(path, symbols=(symbol,), seed=seed)
    return paths


@pytest.mark.parametrize("last", [1, *SMALL_BATCHES, 40, None])
def test_many_models_at_once_give_the_digits_of_each_alone(
    models: list[Path], data: Path, last: int | None
) -> None:
    together = list(predict_models(models, data, last=last))
    assert [(item.model, item.symbol) for item in together] == [
        (path.stem, symbol) for path, symbol in zip(models, SYMBOLS, strict=True)
    ]
    for path, item in zip(models, together, strict=True):
        assert isinstance(item, Predictions)
        alone = predict_file(path, data)[-last if last else 0 :]
        assert item.columns["probability"].tolist() == [row.values["probability"] for row in alone]
        assert len(item.bar) == len(alone) == (last or len(alone))


def test_chunks_at_once_give_the_digits_of_each_alone(tmp_path: Path, data: Path) -> None:
    for seed, symbol in enumerate(SYMBOLS[:2]):
        make_model(tmp_path / f"tcn_{symbol}.safetensors", "tcn", "volatility", symbols=(symbol,), seed=seed)
    paths = sorted(tmp_path.iterdir())[1::2]  # beside each lies its card
    assert [path.suffix for path in paths] == [".safetensors"] * 2
    for path, item in zip(paths, predict_models(paths, data, last=3), strict=True):
        assert isinstance(item, Predictions)
        assert item.columns["volatility"].tolist() == [
            row.values["volatility"] for row in predict_file(path, data)[-3:]
        ]


def test_small_batches_in_which_few_windows_differ_are_not_used(
    models: list[Path], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, alone = predict_module.reader_of, list(predict_models(models, data, last=2))
    assert all(isinstance(item, Predictions) for item in alone)
    chances = [item.columns["probability"] for item in alone if isinstance(item, Predictions)]
    assert max(map(max, chances[1:])) > max(chances[0])

    class Rounded:
        def __init__(self, reader: Any) -> None:
            self._reader = reader

        def outputs(self, network: Any, bars: np.ndarray) -> np.ndarray:
            outputs: np.ndarray = self._reader.outputs(network, bars)
            above = 1 / (1 + np.exp(-outputs)) > max(chances[0]) + 1e-9  # none of the first model's
            return np.where(above, outputs + 1e-6, outputs)

    def reader(
        reads: str, inputs: Any, *, batch: int = predict_module.EVALUATION_BATCH, **options: Any
    ) -> Any:
        made = whole(reads, inputs, batch=batch, **options)
        return Rounded(made) if batch in SMALL_BATCHES else made

    monkeypatch.setattr(predict_module, "reader_of", reader)
    for item, other in zip(predict_models(models, data, last=2), alone, strict=True):
        assert isinstance(item, Predictions) and isinstance(other, Predictions)
        assert item.columns["probability"].tolist() == other.columns["probability"].tolist()


def test_a_failed_prediction_is_named_and_the_others_go_on(
    models: list[Path], data: Path, tmp_path: Path, write_candles: Any
) -> None:
    for symbol in ("AAA", "BBB"):
        (tmp_path / f"{symbol}_1m.parquet").write_bytes(next(data.glob(f"{symbol}_*")).read_bytes())
    write_candles(tmp_path, "DDD", bars=100)
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"short")
    made = list(predict_models([*models, broken], tmp_path, last=1))
    assert [item.symbol for item in made if isinstance(item, Predictions)] == ["AAA", "BBB"]
    failed = {item.model: (item.absent, str(item.error)) for item in made if isinstance(item, NotPredicted)}
    assert failed.keys() == {"broken", "lstm_CCC", "lstm_DDD"}
    assert failed["lstm_CCC"] == (
        True,
        f"{tmp_path} holds no bars of CCC. Add its candles, or leave it out with --symbols.",
    )
    assert "there are 100" in failed["lstm_DDD"][1] and not failed["lstm_DDD"][0]
    assert "safetensors header" in failed["broken"][1]


def test_features_that_fail_on_one_symbol_take_no_other_away(tmp_path: Path, write_candles: Any) -> None:
    (tmp_path / "data").mkdir()
    names, paths = ("log_return_1", "log_return_1@5m"), []
    for symbol in ("AAA", "BBB", "CCC"):
        write_candles(tmp_path / "data", symbol, bars=400)
        paths.append(tmp_path / f"{symbol}.safetensors")
        make_model(paths[-1], symbols=(symbol,), features=names, features_version=version_of(names))
    file = next((tmp_path / "data").glob("BBB*"))
    table = pandas.read_parquet(file)
    between = table.iloc[[390]].assign(timestamp=table.timestamp[390] + pandas.Timedelta(seconds=30))
    pandas.concat([table, between]).sort_values("timestamp").to_parquet(file)
    made = list(predict_models(paths, tmp_path / "data", last=2))
    assert [one.symbol for one in made if isinstance(one, Predictions)] == ["AAA", "CCC"]
    (failed,) = (one for one in made if isinstance(one, NotPredicted))
    assert failed.symbol == "BBB" and "BBB has bars closer than 1m" in failed.error.what
    alone = predict_models(paths[2:], tmp_path / "data", last=2)
    assert [one.columns["probability"].tolist() for one in alone if isinstance(one, Predictions)] == [
        made[2].columns["probability"].tolist()  # type: ignore[union-attr]
    ]


def test_symbols_are_chosen_and_an_unknown_one_is_refused(models: list[Path], data: Path) -> None:
    assert [item.symbol for item in predict_models(models, data, symbols=("CCC", "AAA"), last=1)] == [
        "AAA",
        "CCC",
    ]
    with pytest.raises(
        UsageError, match=r"no model of BBBB .*were trained on AAA, BBB, CCC, DDD\). Did you mean BBB"
    ):
        list(predict_models(models, data, symbols=("BBBB",)))


def test_candles_of_another_timeframe_are_refused(tmp_path: Path, data: Path) -> None:
    make_model(tmp_path / "seconds.safetensors", symbols=("AAA",), timeframe="90s")
    with pytest.raises(
        DataError, match=r"seconds was trained on bars of 90s \(.* no candles of timeframe 90s.*it holds 1m"
    ):
        list(predict_models([tmp_path / "seconds.safetensors"], data))


def test_longer_bars_are_made_as_they_are_for_training(tmp_path: Path, data: Path) -> None:
    make_model(tmp_path / "twos.safetensors", symbols=("AAA",), timeframe="2m")
    (made,) = predict_models([tmp_path / "twos.safetensors"], data)
    candles = read_candles(data, symbols=["AAA"], timeframe="2m")["AAA"]
    write_file(tmp_path / "AAA_2m.parquet", [candles])
    (read,) = predict_models([tmp_path / "twos.safetensors"], tmp_path / "AAA_2m.parquet")
    assert isinstance(made, Predictions) and isinstance(read, Predictions) and len(made.bar) > 20
    assert made.bar.tolist() == read.bar.tolist()
    assert (made.columns["probability"] == read.columns["probability"]).all()


def test_a_model_of_few_features_needs_only_their_warmup(tmp_path: Path, data: Path) -> None:
    make_model(tmp_path / "short.safetensors", symbols=("AAA",), features=usual_features("1d"))
    make_model(tmp_path / "whole.safetensors", symbols=("AAA",))
    short, whole = predict_models([tmp_path / "short.safetensors", tmp_path / "whole.safetensors"], data)
    assert isinstance(short, Predictions) and isinstance(whole, Predictions)
    assert (len(short.bar), len(whole.bar)) == (700 - 60 - LOOKBACK + 1, 700 - 256 - LOOKBACK + 1)
    (last,) = predict_models([tmp_path / "short.safetensors"], data, last=1)
    assert isinstance(last, Predictions)
    assert last.columns["probability"][0] == short.columns["probability"][-1]


def test_a_bar_without_the_unit_of_its_forecast_has_no_row(tmp_path: Path, make_candles: Any) -> None:
    close = make_candles(600).close.copy()
    close[-20:] = close[-20]  # the last ten bars have not moved for ten bars
    write_file(tmp_path / "AAA_1m.parquet", [make_candles(600, close=close)])
    write_file(tmp_path / "BBB_1m.parquet", [make_candles(600, symbol="BBB", close=[100.0] * 600)])
    settings = {"horizon": 5, "volatility_bars": 10, "clip": 10.0}
    for symbol in ("AAA", "BBB"):
        make_model(
            tmp_path / f"{symbol}.safetensors", target="return", symbols=(symbol,), target_settings=settings
        )
    never, every = predict_models([tmp_path / "AAA.safetensors", tmp_path / "BBB.safetensors"], tmp_path)
    assert isinstance(every, Predictions) and np.isfinite(every.columns["log_return"]).all()
    assert every.bar[-1] == make_candles(600).timestamp[-11]
    (last,) = predict_models([tmp_path / "AAA.safetensors"], tmp_path, last=1)
    assert isinstance(last, Predictions)
    assert last.columns["log_return"].tolist() == every.columns["log_return"][-1:].tolist()
    assert isinstance(never, NotPredicted)
    assert never.error.what == "no bar of BBB has a unit for the forecast of return"
    assert "never moves" in never.error.why


def test_models_of_several_targets_are_refused(tmp_path: Path, models: list[Path], data: Path) -> None:
    make_model(tmp_path / "other.safetensors", "tcn", "volatility", symbols=("AAA",))
    with pytest.raises(UsageError, match="these models forecast direction, volatility"):
        list(predict_models([models[0], tmp_path / "other.safetensors"], data))


def test_a_k_fold_model_is_said_to_know_bars_after_its_test(tmp_path: Path, data: Path) -> None:
    path, notes = tmp_path / "lstm_AAA.safetensors", list[str]()
    until = {"trained_until": "2024-01-03T02:00:00Z", "fold": 2, "folds": 5}
    make_model(path, symbols=("AAA",), data={"trained_after_test": True}, **until)
    assert all(
        isinstance(item, Predictions) for item in predict_models([path], data, last=1, note=notes.append)
    )
    assert notes[0] == (
        "lstm_AAA was trained on bars after its test span (fold 2 of 5, k-fold): forecasts before"
        " 2024-01-03T02:00:00Z are of bars that it knows"
    )


def test_a_model_reads_the_columns_that_its_job_told(tmp_path: Path, data: Path) -> None:
    import pandas

    frame = pandas.read_parquet(next(data.glob("AAA*")))
    renamed = tmp_path / "told" / "AAA_1m.parquet"
    renamed.parent.mkdir()
    frame.rename(columns={"close": "last_price"}).to_parquet(renamed)
    path = tmp_path / "lstm_AAA.safetensors"
    make_model(path, symbols=("AAA",), data={"told_columns": ["close=last_price"]})
    (told,) = predict_models([path], renamed.parent, last=3)
    make_model(path, symbols=("AAA",))
    (plain,) = predict_models([path], data, last=3)
    assert isinstance(told, Predictions) and isinstance(plain, Predictions)
    assert told.columns["probability"].tolist() == plain.columns["probability"].tolist()
