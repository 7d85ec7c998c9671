"""A model's card is checked before anything is built: no memory for what its tensors are not, no numbers from
half a card.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models import make_model
from tests.predictions import predict_file
from trainer.base.errors import DataError
from trainer.models import network_of
from trainer.store.weights import load, save
from trainer.train.predict.load_model import network_from


def devices_of_builds(family: str, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return a set that gets the device of every network that is built from now on."""
    home, devices = network_of(family), set[str]()

    def build(*given: Any, _build: Any = home.build, **named: Any) -> Any:
        devices.add(torch.get_default_device().type)
        return _build(*given, **named)

    monkeypatch.setattr(home, "build", build)
    return devices


@pytest.fixture(scope="module")
def candles(tmp_path_factory: pytest.TempPathFactory, write_candles: Any) -> Path:
    folder = tmp_path_factory.mktemp("candles")
    file: Path = write_candles(folder, "SIG-USD", bars=400, seed=1)
    return file


@pytest.mark.parametrize(("family", "target"), [("lstm", "direction"), ("tcn", "volatility")])
def test_a_model_as_it_was_written_predicts(family: str, target: str, tmp_path: Path, candles: Path) -> None:
    make_model(tmp_path / "m.safetensors", family, target)
    assert len(predict_file(tmp_path / "m.safetensors", candles, last=3)) == 3


@pytest.mark.parametrize(
    ("family", "changes", "why"),
    [
        ("lstm", {"architecture": {"hidden": 60_000}}, "at most 16,384"),
        ("lstm", {"architecture": {"hidden": 16_000}}, "weight lstms.0.weight_ih_l0 is"),
        ("lstm", {"architecture": {"layers": 10**9}}, "at most 64"),
        ("lstm", {"architecture": {"layers": 3}}, "is missing"),
        ("lstm", {"architecture": {"layers": 1}}, "has no tensor lstms.1"),
        ("lstm", {"architecture": {"hidden": "4"}}, "a whole number"),
        ("lstm", {"architecture": {"hidden": {"deep": [4]}}}, "a whole number"),
        ("lstm", {"architecture": {"dropout": None}}, "a number"),
        ("lstm", {"architecture": {"recompute": True}}, "the architecture has"),
        ("lstm", {"architecture": {"reads": "chunks"}}, "the architecture has"),
        ("lstm", {"architecture": {"features": 3}}, "the architecture has"),
        ("lstm", {"architecture": {"outputs": 10**12}}, "outputs"),
        ("lstm", {"architecture": {"outputs": 3}}, "direction has 1"),
        ("lstm", {"architecture": {"outputs": True}}, "outputs"),
        ("lstm", {"lookback": 10**8}, "at most 100,000"),
        ("lstm", {"lookback": 0}, "1 or more"),
        ("lstm", {"calendar": "sometimes"}, "calendar"),
        ("lstm", {"target_settings": {"horizon": [5]}}, "a whole number"),
        ("lstm", {"target_settings": {"horizon": 10**9}}, "at most 100,000"),
        ("lstm", {"target_settings": {}}, "its target_settings are not those of direction"),
        ("lstm", {"target_settings": {"horizon": 5, "steps": 1}}, "its target_settings are not those"),
        ("tcn", {"architecture": {"dilations": 5}}, "a list of whole numbers"),
        ("tcn", {"architecture": {"dilations": [1, 3]}}, "the architecture has"),
        ("tcn", {"architecture": {"dilations": [1] * 10_000}}, "at most 64"),
        ("tcn", {"lookback": 8}, "for bars seen"),
        ("tcn", {"fitted": {"label_mean": 1.0}}, "no label_std, which volatility needs"),
    ],
)
def test_a_card_that_does_not_fit_its_tensors_is_one_error(
    family: str,
    changes: dict[str, Any],
    why: str,
    tmp_path: Path,
    candles: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "m.safetensors"
    card = make_model(path, family, "direction" if family == "lstm" else "volatility")
    if isinstance(changes.get("architecture"), dict):
        changes = {"architecture": {**card.architecture, **changes["architecture"]}}
    of_series = {key: changes[key] for key in changes.keys() & {"calendar", "fitted", "scaler"}}
    rest = {key: value for key, value in changes.items() if key not in of_series}
    save(path, load(path)[0], replace(card, **rest, series=[replace(card.series[0], **of_series)]))
    built_on = devices_of_builds(family, monkeypatch)
    with pytest.raises(DataError, match="has a card that can't be used") as caught:
        predict_file(path, candles)
    assert why in caught.value.why and "\n" not in str(caught.value)
    assert built_on <= {"meta"}


VALUES = """
import torch
from torch import nn

class Values(nn.Module):  # needs a value, which the meta device has not
    def __init__(self, features, outputs, hidden=4, noise=1):
        super().__init__()
        self.scale = float(torch.linspace(1, 2, 3).sum())
        self.head = nn.Linear(features, outputs)
        self.register_buffer("mask", torch.zeros(hidden, hidden), persistent=False)
        self.register_buffer("noise", torch.randn(noise, generator=torch.Generator()).repeat(noise), persistent=False)
"""


@pytest.mark.slow  # torch loads sympy for its first dispatched operation: 1.2 s
@pytest.mark.parametrize("settings", [{"hidden": 60_000}, {"noise": 10**10}, {"noise": 100_000}], ids=str)
def test_a_users_class_is_built_within_its_memory_limit(settings: dict[str, int], tmp_path: Path) -> None:
    net = tmp_path / "net.py"
    net.write_text(VALUES)
    own = {
        "class": "Values",
        "sha256": hashlib.sha256(VALUES.encode()).hexdigest(),
        "reads": "windows",
        "lookback": 20,
    }
    card = make_model(tmp_path / "m.safetensors")
    tensors = {"head.weight": torch.ones(1, 3), "head.bias": torch.zeros(1)}

    def built(**given: int) -> Any:
        architecture = {**own, "features": 3, "outputs": 1, "settings": given}
        return network_from(
            replace(card, family="own", architecture=architecture), tensors, net, file=str(net)
        )

    assert torch.equal(built().net.head.weight, torch.ones(1, 3))
    with pytest.raises(DataError, match="building its network takes more than 1,073,742,080 bytes"):
        built(**settings)


def test_weights_of_another_type_or_name_are_one_error(tmp_path: Path, candles: Path) -> None:
    path = tmp_path / "m.safetensors"
    card = make_model(path)
    tensors, _ = load(path)
    for others in ({"head.bias": torch.zeros(1, dtype=torch.int8)}, {"nowhere.weight": torch.zeros(1)}):
        save(path, {**tensors, **others}, card)
        with pytest.raises(DataError, match="has a card that can't be used"):
            predict_file(path, candles)
