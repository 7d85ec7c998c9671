"""`trainer.load`: the network with its scaler gives the forecasts of `mayfly predict`, for every kind of model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

import trainer
from tests.models import FEATURES, card_of, make_model, make_own_model
from trainer.base.errors import DataError, UsageError
from trainer.data.feature_names import label_of
from trainer.data.read.reading import CandleFolder
from trainer.models import network_of
from trainer.store.card import Card, CardPanel
from trainer.store.weights import HELD_OUT, save, weights_sha256
from trainer.train.packs.tensors import tensors_of
from trainer.train.predict.averaged import averaged_tensors
from trainer.train.predict.load_model import check_model
from trainer.train.predict.panels import outputs_of_panel
from trainer.train.predict.symbols import Predictions, predict_models

SYMBOLS = ("AAA", "BBB", "CCC")
NET = """from torch import nn
class Net(nn.Module):
    def __init__(self, features, outputs):
        super().__init__()
        self.head = nn.Linear(features, outputs)
    def forward(self, x):
        return self.head(x[:, -1])
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, write_candles: Any) -> Path:
    folder: Path = tmp_path_factory.mktemp("candles")
    for seed, symbol in enumerate(SYMBOLS):
        write_candles(folder, symbol, bars=600 + 20 * seed, seed=seed)
    return folder


def scaled(card: Card) -> Card:
    """Return a card whose series have scalers of their own, none of them trivial."""
    series = [
        replace(one, scaler={"mean": [0.1 * (n + 1)] * len(card.features), "std": [0.5 + n] * len(card.features), "limit": 4.0})
        for n, one in enumerate(card.series)
    ]  # fmt: skip
    return replace(card, series=series)


def as_predicted(path: Path, data: Path, last: int | None = None, **named: Any) -> dict[str, Predictions]:
    made = list(predict_models([path], data, last=last, **named))
    assert made and all(isinstance(one, Predictions) for one in made), made
    return {one.symbol: one for one in made if isinstance(one, Predictions)}


def check_agrees(path: Path, data: Path, *, last: int | None = 7, model_file: Path | None = None) -> None:
    """Compare the loaded module's forecasts with those of `mayfly predict`."""
    files = [model_file] if model_file else []
    model = trainer.load(path, model_file=files)
    wanted = as_predicted(path, data, last, own_files=files)
    prepared = model.prepare(data, last=last)
    assert prepared.keys() == wanted.keys()
    for symbol, bars in prepared.items():
        assert tuple(bars.inputs) == model.input_names
        with torch.no_grad():
            forecast = bars.forecast(model.module(**bars.inputs))
        assert bars.bar.tolist() == wanted[symbol].bar.tolist()
        assert bars.available_at.tolist() == wanted[symbol].available_at.tolist()
        assert forecast.keys() == wanted[symbol].columns.keys()
        for name, values in forecast.items():
            np.testing.assert_allclose(values, wanted[symbol].columns[name], rtol=2e-5, atol=1e-6)
    assert len({value for one in wanted.values() for each in one.columns.values() for value in each}) > 2


@pytest.mark.parametrize(
    ("family", "target"), [("lstm", "direction"), ("transformer", "direction"), ("tcn", "volatility")]
)
def test_a_family_forecasts_what_predict_does(family: str, target: str, tmp_path: Path, data: Path) -> None:
    card = scaled(card_of(family, target, symbols=SYMBOLS))
    torch.manual_seed(1)
    save(tmp_path / "m.safetensors", tensors_of(network_of(family).build(card.architecture)), card)
    check_agrees(tmp_path / "m.safetensors", data)
    check_agrees(tmp_path / "m.safetensors", data, last=None)


def test_several_networks_forecast_their_mean(tmp_path: Path, data: Path) -> None:
    card = replace(scaled(card_of("lstm", "direction", symbols=SYMBOLS)), members=2)
    torch.manual_seed(1)
    members = [tensors_of(network_of("lstm").build(card.architecture)) for _ in range(2)]
    save(tmp_path / "m.safetensors", averaged_tensors(members), card)
    check_agrees(tmp_path / "m.safetensors", data)


def test_a_refit_is_loaded_as_predict_uses_it(tmp_path: Path, data: Path) -> None:
    card = card_of("lstm", "direction", symbols=("AAA",))
    torch.manual_seed(1)
    refit, twin = (tensors_of(network_of("lstm").build(card.architecture)) for _ in range(2))
    series = [vars(one) for one in card.series]
    held_out = {"sha256": weights_sha256(twin), "trained_until": "", "series": series, "panel": None}
    both = {**refit, **{HELD_OUT + name: tensor for name, tensor in twin.items()}}
    save(tmp_path / "m.safetensors", both, replace(card, held_out=held_out))
    loaded = trainer.load(tmp_path / "m.safetensors").module.state_dict()
    assert all(torch.equal(loaded[f"network.{name}"], tensor) for name, tensor in refit.items())
    check_agrees(tmp_path / "m.safetensors", data)


def save_panel(path: Path, scaler_of: str, **keys: Any) -> None:
    """Write a model of a panel of the first two symbols."""
    features = ("present", *FEATURES, *keys.get("columns", ()))
    card = card_of("transformer", "direction", symbols=SYMBOLS[:2], features=features, **keys)
    card = scaled(card) if scaler_of == "series" else card
    series = [
        replace(one, scaler={**one.scaler, "mean": [0.0, *one.scaler["mean"][1:]]}, number=n + 1)
        for n, one in enumerate(card.series)
    ]
    common = {"mean": [0.0] * len(features), "std": [1.0] * len(features), "limit": series[0].scaler["limit"]}
    panel = CardPanel(scaler_of=scaler_of, scaler=common, fitted={}, calendar="24x7", horizon=5)
    torch.manual_seed(1)
    tensors = tensors_of(network_of("transformer").build(card.architecture))
    save(path, tensors, replace(card, panel=panel, series=series, kind="panel"))


@pytest.mark.parametrize("scaler_of", ["pooled", "series", "rank"])
def test_a_panel_forecasts_any_symbol(scaler_of: str, tmp_path: Path, data: Path) -> None:
    save_panel(tmp_path / "m.safetensors", scaler_of)
    assert set(as_predicted(tmp_path / "m.safetensors", data, 1)) == set(SYMBOLS)
    check_agrees(tmp_path / "m.safetensors", data)


def test_a_symbol_beside_a_panel_is_none_of_its_series(tmp_path: Path, data: Path) -> None:
    path, columns = tmp_path / "m.safetensors", ["log_return_5 of CCC"]
    version = label_of((), (*FEATURES, "log_return_5"), "")
    save_panel(path, "rank", columns=columns, features_version=version)
    folder = CandleFolder(data, tmp_path, symbols=SYMBOLS[:2], timeframe="1m", columns=columns)
    panel = {symbol: folder.read(symbol) for symbol in folder.symbols}
    model = check_model(path)
    scored = outputs_of_panel(model, {symbol: (one, np.arange(len(one))) for symbol, one in panel.items()})
    predicted = as_predicted(path, data)
    assert predicted.keys() == scored.keys()
    for symbol, one in scored.items():
        assert predicted[symbol].columns["probability"].tolist() == one.at(one.bars, model.target).tolist()
    check_agrees(path, data)
    *others, (named,) = [[one] for one in predict_models([path], data, symbols=SYMBOLS, last=1)]
    assert len(others) == 2 and "m does not forecast CCC (it reads" in str(getattr(named, "error", ""))


def test_a_model_of_ones_own_takes_its_file(tmp_path: Path, data: Path) -> None:
    file = tmp_path / "my_net.py"
    make_own_model(tmp_path / "m.safetensors", file, NET)
    check_agrees(tmp_path / "m.safetensors", data, model_file=file)
    with pytest.raises(UsageError, match="--model-file my_net.py"):
        trainer.load(tmp_path / "m.safetensors")


def test_an_agent_says_what_to_hold(tmp_path: Path, data: Path) -> None:
    make_model(tmp_path / "m.safetensors", "lstm", "position", seed=1, symbols=SYMBOLS[:1])
    check_agrees(tmp_path / "m.safetensors", data)
    model = trainer.load(tmp_path / "m.safetensors")
    bars = model.prepare(data, last=3)["AAA"]
    outputs = model.module(**bars.inputs)
    (wanted,) = as_predicted(tmp_path / "m.safetensors", data, 1, held=0.5).values()
    assert {name: values.tolist() for name, values in bars.forecast(outputs, held=0.5).items()} == {
        name: values.tolist() for name, values in wanted.columns.items()
    }


def test_a_table_is_read_as_its_file_is(tmp_path: Path, data: Path) -> None:
    make_model(tmp_path / "m.safetensors", symbols=("AAA",))
    model = trainer.load(tmp_path / "m.safetensors")
    (file,) = data.glob("AAA*")
    table = pandas.read_parquet(file)
    of_file = model.prepare(file, last=5)["AAA"]
    times = pandas.DatetimeIndex(table["timestamp"])
    for given in (
        table,
        table.set_index("timestamp"),
        table.assign(symbol="AAA"),
        table.set_index("timestamp", drop=False),
        table.set_index(times.rename(None)),
    ):
        of_table = model.prepare(given, last=5)["AAA"]
        assert torch.equal(of_table.inputs["x"], of_file.inputs["x"])
        assert of_table.bar.tolist() == of_file.bar.tolist()


def test_a_table_that_can_not_be_read_is_one_error(tmp_path: Path, data: Path) -> None:
    make_model(tmp_path / "m.safetensors", symbols=("AAA",))
    model = trainer.load(tmp_path / "m.safetensors")
    table = pandas.read_parquet(next(data.glob("AAA*")))
    for given, why in (
        (pandas.concat([table, table[["close"]]], axis=1), "the table can't be read .Duplicate column"),
        (table.assign(note=[1, "a"] * (len(table) // 2)), "the table can't be read .*note"),
        (table.drop(columns="close"), "the table has no column for close"),
        (pandas.concat([table, table.tail(5)]), "the table has unsorted bars of AAA"),
        (table.assign(symbol="ZZZ"), r"unknown symbol .AAA. .the table holds"),
    ):
        with pytest.raises(DataError, match=f"^{why}"):
            model.prepare(given)


def test_what_can_not_be_prepared_is_one_error(tmp_path: Path, data: Path) -> None:
    make_model(tmp_path / "m.safetensors", symbols=("AAA", "ZZZ"))
    model = trainer.load(tmp_path / "m.safetensors")
    with pytest.warns(UserWarning, match=f"^{data} holds no bars of ZZZ$"):
        assert list(model.prepare(data, last=1)) == ["AAA"]
    with pytest.raises(UsageError, match="no model of BBB"):
        model.prepare(data, symbols=["BBB"])
    with pytest.raises(DataError, match="ZZZ"):
        model.prepare(data, symbols=["ZZZ"])
    with pytest.raises(UsageError, match="last is 0"):
        model.prepare(data, last=0)
    few = pandas.read_parquet(next(data.glob("AAA*"))).head(30).assign(symbol="AAA")
    with pytest.raises(DataError, match="enough bars before it"):
        model.prepare(few)
    bars = model.prepare(data, symbols=["AAA"], last=3)["AAA"]
    for made in (torch.zeros(2, 1), torch.zeros(3), torch.zeros(3, 2), torch.zeros(1, 3, 1), torch.zeros(())):
        with pytest.raises(UsageError, match=r"the outputs are \(.*\), and those of AAA's bars \(3, 1\)"):
            bars.forecast(made)


def test_scalers_of_several_limits_are_refused(tmp_path: Path) -> None:
    card = card_of("lstm", "direction", symbols=("AAA", "BBB"))
    first, second = card.series
    card = replace(card, series=[first, replace(second, scaler={**second.scaler, "limit": 3.0})])
    save(tmp_path / "m.safetensors", tensors_of(network_of("lstm").build(card.architecture)), card)
    with pytest.raises(DataError, match="different limits"):
        trainer.load(tmp_path / "m.safetensors")
