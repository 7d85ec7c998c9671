"""Models that read features of other symbols' bars: their cards, and who may use them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.jobs import job_of
from tests.models import card_of, make_model
from tests.predictions import accuracy, predict_file
from trainer.base.errors import DataError
from trainer.data.feature_names import FEATURES, label_of
from trainer.data.read.writing import write_candles
from trainer.data.side_names import features_beside
from trainer.data.synthetic import synthetic_candles
from trainer.job.job import Job
from trainer.store.card import Card, read_card
from trainer.targets.direction import Direction
from trainer.train.__main__ import main
from trainer.train.inputs.encoder import check_inputs
from trainer.train.inputs.rows import SymbolData
from trainer.train.predict.load_model import check_model
from trainer.train.predict.symbols import Predictions, predict_models
from trainer.train.score import unlike

COLUMNS = ("log_parkinson_60 of ETH-USD", "log_return_1 of index")
TOLD = {"told_columns": ["index=BTC-USD/ETH-USD"]}


def test_a_card_has_the_versions_of_other_symbols_features(tmp_path: Path) -> None:
    assert features_beside(("funding", *COLUMNS)) == ("log_parkinson_60", "log_return_1")
    path, names = tmp_path / "m.safetensors", ("log_return_1", *features_beside(COLUMNS))
    version, known = label_of(("log_return_1",), names), {"columns": list(COLUMNS), "data": TOLD}
    inputs = ("log_return_1", *COLUMNS)
    make_model(path, features=inputs, features_version=version, **known)
    model = check_model(path)
    assert model.features == ("log_return_1",) and model.card.told_columns == TOLD["told_columns"]
    make_model(path, features=inputs, features_version="1.0", **known)
    with pytest.raises(DataError, match="was trained on features of version 1.0"):
        check_model(path)


def test_a_model_of_another_index_is_not_scored_beside_this_one() -> None:
    card = card_of(
        "lstm", "direction", features=(*FEATURES, *COLUMNS), columns=list(COLUMNS), data=TOLD, timeframe="1m"
    )
    candles = SimpleNamespace(timeframe="1m", columns=dict.fromkeys(COLUMNS))
    data = cast(
        SymbolData, SimpleNamespace(target=Direction.from_keys(card.target_settings), candles=candles)
    )

    def why(index: tuple[str, ...], card: Card = card) -> str:
        return unlike(card, data, index=index)

    assert why(("BTC-USD", "ETH-USD")) == ""
    assert why(("BTC-USD",)) == "its index is of BTC-USD, ETH-USD, the job's of BTC-USD"
    plain = card_of("lstm", "direction", timeframe="1m")
    assert why(("BTC-USD",), plain) == "", "it reads none"


def test_a_model_to_start_from_has_the_jobs_index(tmp_path: Path) -> None:
    path, inputs = tmp_path / "m.safetensors", (*FEATURES, *COLUMNS)
    version = label_of(("all",), (*FEATURES, *features_beside(COLUMNS)))
    make_model(
        path,
        features=inputs,
        columns=list(COLUMNS),
        data=TOLD,
        features_version=version,
        timeframe="1m",
        trained_until="2024-01-01T00:00:00Z",
    )

    def job(index: str) -> Job:
        columns = (*COLUMNS, f"index={index}")
        return job_of(**{"train.init": str(path)}, timeframe="1m", features=("all",), columns=columns)

    check_inputs(job("BTC-USD/ETH-USD"))
    with pytest.raises(DataError, match=r"another index .its index is of other symbols than .*BTC-USD"):
        check_inputs(job("BTC-USD"))


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["symbol", "pooled", "panel"])
def test_models_of_every_kind_predict_with_the_others_bars(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A symbol alone, whose test scores its predictions repeat; several; a panel. Without the other's bars
    each is refused.
    """
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    for number, symbol in enumerate(("BTC-USD", "ETH-USD", "SOL-USD")):
        candles = synthetic_candles(symbol, bars=2500, timeframe="1h", seed=number)
        write_candles(data / f"{symbol}_1h.parquet", [candles], synthetic=True)
    symbols = "SOL-USD" if kind == "symbol" else "ETH-USD,SOL-USD"
    keys = [f"data.symbols={symbols}", f"data.columns={','.join(COLUMNS)},rsi_14@4h of BTC-USD"]
    keys += ["model.name=lstm", "model.hidden=8", "model.lookback=12", "train.epochs=1", "target.horizon=1"]
    keys += [f"data.{kind}=true"] if kind != "symbol" else []
    words = ["--data", str(data), "--out", str(out), "--device", "cpu", "--workers", "1"]
    assert main([*words, *(word for key in keys for word in ("--set", key))]) == 0
    (path,) = out.glob("*.safetensors")
    card = read_card(path)
    assert card.columns == [*COLUMNS, "rsi_14@4h of BTC-USD"]
    assert card.told_columns == ["index=BTC-USD/ETH-USD/SOL-USD"]
    assert {file["file"] for file in card.data["files"]} == {
        f"{name}-USD_1h.parquet" for name in ("BTC", "ETH", "SOL")
    }
    wanted = [] if kind == "symbol" else ["ETH-USD", "SOL-USD"]
    made = [one for one in predict_models([path], data, symbols=wanted) if isinstance(one, Predictions)]
    assert [one.symbol for one in made] == (wanted or ["SOL-USD"])
    if kind == "symbol":
        chances = {one.bar: one.values["probability"] for one in predict_file(path, data)}
        found: Any = accuracy(chances, data / "SOL-USD_1h.parquet", card)
        assert found == (card.metrics["test"]["n"], card.metrics["test"]["accuracy"])
    (data / "BTC-USD_1h.parquet").unlink()
    with pytest.raises(DataError, match="no bars of BTC-USD"):
        list(predict_models([path], data, symbols=wanted))
    capsys.readouterr()
