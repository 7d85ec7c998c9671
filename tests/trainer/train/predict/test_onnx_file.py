"""A model as ONNX: nothing but a graph with our numbers gets a file; the command. Its numbers: test_round_trips.py."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.models import card_of
from trainer.base.errors import UsageError
from trainer.cli.main import main
from trainer.models import network_of
from trainer.store.card import read_card
from trainer.store.weights import save
from trainer.train.packs.tensors import tensors_of
from trainer.train.predict import onnx_file
from trainer.train.predict.loaded import LoadedModel, load
from trainer.train.predict.onnx_file import PARITY, OnnxParity, write_onnx


def stored(folder: Path, *, name: str = "model") -> Path:
    """Write a model with random weights, and a scaler that matters; return its path."""
    card = card_of("lstm", "direction", symbols=("AAA",))
    many = len(card.features)
    scaler = {"mean": [0.1] * many, "std": [0.5] * many, "limit": 2.0}
    card = replace(card, series=[replace(card.series[0], scaler=scaler)])
    torch.manual_seed(3)
    save(folder / f"{name}.safetensors", tensors_of(network_of("lstm").build(card.architecture)), card)
    return folder / f"{name}.safetensors"


class Summed(nn.Module):
    """A network whose graph is made by hand: the exporter's own modules take seconds to load."""

    def forward(self, x_TBF: torch.Tensor) -> torch.Tensor:
        return x_TBF.sum((0, 2))[:, None]


def made_by_hand(model: LoadedModel, factor: float) -> bytes:
    """Return the ONNX graph of a `Summed` model, off by a factor."""
    from onnx import TensorProto, helper, numpy_helper

    bars, features = model.card.lookback, len(model.card.features)
    scaler = {"mean": model.module.mean, "std": model.module.std}
    mean, std = (numpy_helper.from_array(tensor.numpy()[0], name) for name, tensor in scaler.items())
    low, high, scale = (
        numpy_helper.from_array(np.array(value, np.float32), name)
        for name, value in (("low", -2), ("high", 2), ("scale", factor))
    )
    nodes = [
        helper.make_node("Sub", ["x", "mean"], ["a"]),
        helper.make_node("Div", ["a", "std"], ["b"]),
        helper.make_node("Clip", ["b", "low", "high"], ["c"]),
        helper.make_node("Flatten", ["c"], ["d"], axis=1),
        helper.make_node("ReduceSum", ["d", "axis"], ["e"]),
        helper.make_node("Mul", ["e", "scale"], ["outputs"]),
    ]
    axis = numpy_helper.from_array(np.array([1]), "axis")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", bars, features])
    outputs = helper.make_tensor_value_info("outputs", TensorProto.FLOAT, ["batch", 1])
    graph = helper.make_graph(nodes, "summed", [x], [outputs], [mean, std, low, high, scale, axis])
    graph_model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    content: bytes = graph_model.SerializeToString()
    return content


def test_a_graph_with_other_numbers_gets_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = stored(tmp_path)
    model = load(path)
    model.module.network = Summed()
    monkeypatch.setattr(onnx_file, "_exported", lambda given: made_by_hand(given, 1.0))
    assert write_onnx(model, tmp_path / "same.onnx").share < PARITY
    monkeypatch.setattr(onnx_file, "_exported", lambda given: made_by_hand(given, 1.0001))
    with pytest.raises(UsageError, match="its graph differs by 1.0e-04 of the largest output"):
        write_onnx(model, tmp_path / "other.onnx")
    assert [one.name for one in tmp_path.glob("*.onnx*")] == ["same.onnx"]


def test_what_can_not_be_exported_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(stored(tmp_path))
    monkeypatch.setattr(onnx_file, "MOST_BYTES", 100)
    with pytest.raises(UsageError, match="can't be written as ONNX .it has"):
        write_onnx(model, tmp_path / "m.onnx")
    monkeypatch.setattr(onnx_file, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=re.escape("pip install 'mayfly[onnx]'")):
        write_onnx(model, tmp_path / "m.onnx")
    assert not list(tmp_path.glob("*.onnx*"))


def refuse(*args: Any, **named: Any) -> None:
    raise RuntimeError("Failed to export\nmore") from ValueError("\nit branches on its data\nand more")


def test_torchs_own_error_becomes_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.onnx, "export", refuse)
    with pytest.raises(UsageError, match=r"\(it branches on its data\)") as caught:
        write_onnx(load(stored(tmp_path)), tmp_path / "m.onnx")
    assert "trainer.load" in str(caught.value)


def test_the_command_writes_to_the_folder_or_where_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def write(model: LoadedModel, path: Path) -> OnnxParity:
        path.write_bytes(b"graph")
        return OnnxParity(difference=2e-7, largest_output=2.0, inputs=67)

    path = stored(tmp_path)
    monkeypatch.setattr(onnx_file, "write_onnx", write)
    monkeypatch.chdir(tmp_path)
    assert main(["models", "export", str(path)]) == 0
    printed = capsys.readouterr()
    assert printed.out == "model.onnx\n" and (tmp_path / "model.onnx").read_bytes() == b"graph"
    assert "x (batch, 20, 37) float32: the card's features" in printed.err
    assert "1e-07 of the largest output" in printed.err
    (tmp_path / "there").mkdir()
    assert main(["models", "export", str(path), "--out", "there/m.onnx", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"path": "there/m.onnx", "inputs": ["x"], "difference": 1e-7, "compared": 67}
    assert main(["models", "export", str(path), "--card", "--out", "there"]) == 0
    assert read_card(path).model in (tmp_path / "there" / "model.md").read_text()
    before = path.read_bytes()
    assert main(["models", "export", str(path), "--card", "--out", str(path)]) == UsageError.exit_code
    assert "would replace" in capsys.readouterr().err and path.read_bytes() == before
    stored(tmp_path, name="other")
    assert main(["models", "export", str(tmp_path)]) == UsageError.exit_code
    assert "holds 2 models" in capsys.readouterr().err
