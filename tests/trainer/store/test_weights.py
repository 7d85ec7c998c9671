"""A model file carries its card, is whole or absent, and says clearly when it is neither."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from trainer.base.errors import DataError
from trainer.store.card import Card, CardSeries, card_from_json, read_card
from trainer.store.weights import load, save, weights_sha256

CARD = Card(
    model="lstm_BTC-USD_1m",
    family="lstm",
    piece="BTC-USD",
    kind="symbol",
    series=[
        CardSeries(
            symbol="BTC-USD",
            calendar="24x7",
            horizon=5,
            scaler={"mean": [0.1, 1 / 3], "std": [1.0, 2.0], "limit": 10.0},
            splits={"train": {"bars": 10}},
            data={"bars": 20},
        )
    ],
    timeframe="1m",
    architecture={"features": 2, "hidden": 4, "layers": 2, "dropout": 0.1},
    features=["a", "b"],
    features_version="1.0",
    lookback=60,
    metrics={"test": {"auc": 0.5123456789012345, "n": 3}},
    training={"epochs": 1},
    data={"bars": 20, "synthetic": False},
    code_sha256="0" * 64,
    seed=0,
    created_at="2026-11-21T00:00:00+00:00",
    mayfly="0.1.0",
    target="direction",
    target_settings={"horizon": 5},
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save(tmp_path / "m.safetensors", {"w": torch.arange(6.0).view(2, 3)}, CARD)
    return tmp_path / "m.safetensors"


def test_a_model_comes_back_with_its_card_to_the_last_digit(model):
    tensors, card = load(model)
    assert torch.equal(tensors["w"], torch.arange(6.0).view(2, 3))
    assert card == CARD


def test_the_hash_of_weights_is_of_names_types_shapes_and_bytes():
    zeros = torch.zeros(2, 3)
    others = [{"v": zeros}, {"w": zeros.T}, {"w": zeros.int()}, {"w": zeros + 1}, {"w": zeros, "v": zeros}]
    hashes = {weights_sha256(tensors) for tensors in ({"w": zeros}, *others)}
    assert len(hashes) == 6 and weights_sha256({"w": torch.zeros(3, 2).T}) in hashes


def test_save_writes_model_and_card_and_returns_the_hash(tmp_path):
    sha256 = save(tmp_path / "m.safetensors", {"w": torch.zeros(2)}, CARD)
    assert sha256 == hashlib.sha256((tmp_path / "m.safetensors").read_bytes()).hexdigest()
    assert card_from_json((tmp_path / "m.json").read_text()) == CARD
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.json", "m.safetensors"]


def test_a_card_is_read_from_the_first_bytes_of_a_file(model):
    content = model.read_bytes()
    length = int.from_bytes(content[:8], "little")
    assert read_card(content[: 8 + length]) == CARD


READ = """
import sys
from pathlib import Path
from trainer.store.card import read_card
print(read_card(Path(sys.argv[1])).model, sorted({"torch", "safetensors", "numpy", "boto3"} & set(sys.modules)))
"""


def test_reading_a_card_loads_neither_torch_nor_safetensors(model):
    command = [sys.executable, "-c", READ, str(model)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "lstm_BTC-USD_1m []"


@pytest.mark.parametrize("kept", [0, 5, 40, -1])
def test_a_truncated_file_is_refused_in_one_line(model, kept):
    model.write_bytes(model.read_bytes()[:kept])
    for read in (load, read_card):
        with pytest.raises(DataError, match="is not a whole model file"):
            read(model)


def test_a_file_that_is_no_model_is_refused(tmp_path):
    other = tmp_path / "x.safetensors"
    other.write_bytes(b"PAR1" * 100)
    with pytest.raises(DataError, match="is not a whole model file"):
        load(other)


def test_a_foreign_model_is_refused_for_its_missing_card(tmp_path):
    from safetensors.torch import save_file

    save_file({"w": torch.zeros(1)}, tmp_path / "theirs.safetensors")
    with pytest.raises(DataError, match="has no card"):
        load(tmp_path / "theirs.safetensors")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"cannot read model .*nix\.safetensors"):
        read_card(tmp_path / "nix.safetensors")


def test_a_card_of_another_format_is_refused():
    with pytest.raises(DataError, match="has format 2"):
        card_from_json(replace(CARD, format=2).to_json())


def test_an_incomplete_card_says_what_is_missing():
    values = json.loads(CARD.to_json())
    del values["series"][0]["scaler"]
    with pytest.raises(DataError, match="no scaler"):
        card_from_json(json.dumps(values))
    with pytest.raises(DataError, match="series is not a list"):
        card_from_json(json.dumps(values | {"series": {"symbol": "A"}}))


def test_a_card_of_several_series_gives_the_one_that_is_named():
    other = replace(CARD.series[0], symbol="ETH-USD")
    card = replace(CARD, series=[*CARD.series, other])
    assert card.of("ETH-USD") == other and CARD.of() == CARD.of("BTC-USD")
