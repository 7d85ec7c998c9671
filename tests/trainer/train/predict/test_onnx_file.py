"""Models elsewhere: in plain torch and in onnxruntime, each in a process without Mayfly, the numbers are ours."""

from __future__ import annotations

import ast
import json
import re
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.models import LOOKBACK, card_of, make_own_model
from tests.pages import ROOT
from trainer.base.errors import UsageError
from trainer.cli.main import main
from trainer.models import MODELS, network_of
from trainer.store.card import Card, read_card
from trainer.store.weights import save
from trainer.train.packs.tensors import tensors_of
from trainer.train.predict import onnx_file
from trainer.train.predict.averaged import averaged_tensors
from trainer.train.predict.loaded import LoadedModel, load
from trainer.train.predict.onnx_file import PARITY, OnnxParity, seeded_inputs, write_onnx

EXAMPLE = ROOT / "examples" / "plain_torch.py"
FAMILIES = {"lstm": "direction", "transformer": "direction", "tcn": "volatility", "mlp": "direction"}
# A process that has no Mayfly: neither on its path nor installed.
WITHOUT = "import sys; sys.path[:] = [p for p in sys.path if p not in ('', {root!r})]; sys.modules['trainer'] = None\n"
RUNTIME = """import json, sys
import numpy as np, onnxruntime
made = []
for path, inputs in zip(sys.argv[1::2], sys.argv[2::2]):
    session = onnxruntime.InferenceSession(path)
    assert json.loads(session.get_modelmeta().custom_metadata_map["mayfly_card"])["features"]
    made.append(session.run(["outputs"], dict(np.load(inputs)))[0].tolist())
print(json.dumps(made))
"""
PLAIN = """import json, sys, runpy
import numpy as np, torch
outputs, made = runpy.run_path({example!r})["outputs"], []
for path, inputs in zip(sys.argv[1::2], sys.argv[2::2]):
    given = {{name: torch.tensor(value) for name, value in np.load(inputs).items() if name != "series"}}
    made.append(outputs(path, **given).tolist())
print(json.dumps(made))
"""


def stored(folder: Path, family: str, *, members: int = 1, symbols: tuple[str, ...] = ("AAA",)) -> Path:
    """Write a model with random weights, and scalers that matter; return its path."""
    card = card_of(family, FAMILIES[family], symbols=symbols) if family != "mlp" else mlp_card()
    many = len(card.features)
    scalers = [
        {"mean": [0.1 * (n + 1)] * many, "std": [0.5 + n] * many, "limit": 2.0}
        for n, _ in enumerate(card.series)
    ]
    series = [replace(one, scaler=scaler) for one, scaler in zip(card.series, scalers, strict=True)]
    card = replace(card, series=series, members=members)
    torch.manual_seed(3)
    networks = [tensors_of(network_of(family).build(card.architecture)) for _ in range(members)]
    path = folder / f"{family}-{members}-{len(symbols)}.safetensors"
    save(path, averaged_tensors(networks), card)
    return path


def mlp_card() -> Card:
    card = card_of("lstm", "direction", symbols=("AAA",))
    settings = MODELS["mlp"](hidden=4, layers=2, lookback=LOOKBACK)  # type: ignore[call-arg]
    return replace(
        card, family="mlp", architecture=settings.architecture(features=len(card.features), outputs=1)
    )


def of_another_process(script: str, pairs: list[tuple[Path, Path]]) -> list[np.ndarray]:
    """Return what a script prints in a process without Mayfly, of each file and its inputs."""
    words = [str(word) for pair in pairs for word in pair]
    command = [sys.executable, "-c", WITHOUT.format(root=str(ROOT)) + script, *words]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=pairs[0][0].parent)
    assert ran.returncode == 0, ran.stderr
    return [np.array(one) for one in json.loads(ran.stdout)]


def inputs_beside(path: Path, model: LoadedModel, **named: Any) -> tuple[Path, np.ndarray]:
    """Write seeded inputs beside a model; return them and the module's outputs."""
    inputs = seeded_inputs(model, 5, further=2, **named)
    np.savez(path.with_suffix(".npz"), **{name: tensor.numpy() for name, tensor in inputs.items()})
    with torch.no_grad():
        return path.with_suffix(".npz"), model.module(**inputs).numpy()


def test_plain_torch_gives_our_numbers(tmp_path: Path) -> None:
    assert not re.search(r"^\s*(from|import) trainer", EXAMPLE.read_text(), re.MULTILINE)
    plain = runpy.run_path(str(EXAMPLE))["outputs"]
    for family in FAMILIES:
        path = stored(tmp_path, family)
        model = load(path)
        inputs = seeded_inputs(model, 5, further=2)
        with torch.no_grad():
            wanted = model.module(**inputs)
        torch.testing.assert_close(
            plain(path, **inputs), wanted, rtol=0, atol=1e-6 * float(wanted.abs().max())
        )
    members = plain(stored(tmp_path, "lstm", members=2), seeded_inputs(model, 2)["x"][:, -LOOKBACK:])
    assert members.shape == (2, 2, 1) and not torch.equal(members[0], members[1])


@pytest.mark.nightly
def test_plain_torch_without_mayfly_gives_our_numbers(tmp_path: Path) -> None:
    paths = [stored(tmp_path, family) for family in FAMILIES]
    beside = [inputs_beside(path, load(path)) for path in paths]
    pairs = [(path, inputs) for path, (inputs, _) in zip(paths, beside, strict=True)]
    made = of_another_process(PLAIN.format(example=str(EXAMPLE)), pairs)
    for got, (_, wanted) in zip(made, beside, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-6 * np.abs(wanted).max())


def test_the_ten_lines_of_the_docs_give_our_numbers(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "models.md").read_text()
    section = page.split("## Take a model elsewhere")[1].split("\n## ")[0]
    (lines,) = (
        block for block in re.findall(r"```python\n(.*?)```", section, re.DOTALL) if "nn.LSTM" in block
    )
    path = stored(tmp_path, "lstm")
    model = load(path)
    x = seeded_inputs(model, 5)["x"]
    names: dict[str, Any] = {"x": x}
    exec(lines.replace('"MODEL.safetensors"', repr(str(path))), names)
    with torch.no_grad():
        wanted = model.module(x)
    statements = [node for node in ast.walk(ast.parse(lines)) if isinstance(node, ast.stmt)]
    assert len(statements) <= 14 and "trainer" not in lines
    torch.testing.assert_close(names["outputs"], wanted, rtol=0, atol=1e-6)


@pytest.mark.nightly
def test_onnx_without_mayfly_gives_our_numbers(tmp_path: Path) -> None:
    paths = [stored(tmp_path, family) for family in FAMILIES]
    paths += [stored(tmp_path, "lstm", members=2), stored(tmp_path, "transformer", symbols=("AAA", "BBB"))]
    models = [load(path) for path in paths]
    beside = [inputs_beside(path, model) for path, model in zip(paths, models, strict=True)]
    for path, model in zip(paths, models, strict=True):
        parity = write_onnx(model, path.with_suffix(".onnx"))
        assert parity.share < PARITY and parity.largest_output > 0.01
    pairs = [(path.with_suffix(".onnx"), inputs) for path, (inputs, _) in zip(paths, beside, strict=True)]
    for got, (_, wanted) in zip(of_another_process(RUNTIME, pairs), beside, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=PARITY * np.abs(wanted).max())


OWN = """from torch import nn
class Net(nn.Module):
    def __init__(self, features, outputs):
        super().__init__()
        self.gru = nn.GRU(features, 4, batch_first=True)
        self.head = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, outputs))
    def forward(self, x):
        return self.head(self.gru(x)[0][:, -1])
"""
BRANCHES = OWN.replace("return self", "return x[:, -1, :1] if x.sum() > 0 else self")


@pytest.mark.nightly
def test_a_class_of_ones_own_is_exported_if_torch_can(tmp_path: Path) -> None:
    path, file = tmp_path / "own.safetensors", tmp_path / "my_net.py"
    make_own_model(path, file, OWN)
    model = load(path, own_files=[file])
    write_onnx(model, path.with_suffix(".onnx"))
    inputs, wanted = inputs_beside(path, model)
    (got,) = of_another_process(RUNTIME, [(path.with_suffix(".onnx"), inputs)])
    np.testing.assert_allclose(got, wanted, rtol=0, atol=PARITY * np.abs(wanted).max())
    make_own_model(path, file, BRANCHES)
    with pytest.raises(UsageError, match="own can't be written as ONNX") as caught:
        write_onnx(load(path, own_files=[file]), tmp_path / "branches.onnx")
    assert "\n" not in str(caught.value) and not (tmp_path / "branches.onnx").exists()


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
    path = stored(tmp_path, "lstm")
    model = load(path)
    model.module.network = Summed()
    monkeypatch.setattr(onnx_file, "_exported", lambda given: made_by_hand(given, 1.0))
    assert write_onnx(model, tmp_path / "same.onnx").share < PARITY
    monkeypatch.setattr(onnx_file, "_exported", lambda given: made_by_hand(given, 1.0001))
    with pytest.raises(UsageError, match="its graph differs by 1.0e-04 of the largest output"):
        write_onnx(model, tmp_path / "other.onnx")
    assert [one.name for one in tmp_path.glob("*.onnx*")] == ["same.onnx"]


def test_what_can_not_be_exported_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(stored(tmp_path, "lstm"))
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
        write_onnx(load(stored(tmp_path, "lstm")), tmp_path / "m.onnx")
    assert "trainer.load" in str(caught.value)


def test_the_command_writes_to_the_folder_or_where_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def write(model: LoadedModel, path: Path) -> OnnxParity:
        path.write_bytes(b"graph")
        return OnnxParity(difference=2e-7, largest_output=2.0, inputs=67)

    path = stored(tmp_path, "lstm")
    monkeypatch.setattr(onnx_file, "write_onnx", write)
    monkeypatch.chdir(tmp_path)
    assert main(["models", "export", str(path)]) == 0
    printed = capsys.readouterr()
    assert printed.out == "lstm-1-1.onnx\n" and (tmp_path / "lstm-1-1.onnx").read_bytes() == b"graph"
    assert "inputs: x" in printed.err and "1e-07 of the largest output" in printed.err
    (tmp_path / "there").mkdir()
    assert main(["models", "export", str(path), "--out", "there/m.onnx", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"path": "there/m.onnx", "inputs": ["x"], "difference": 1e-7, "compared": 67}
    assert main(["models", "export", str(path), "--card", "--out", "there"]) == 0
    assert read_card(path).model in (tmp_path / "there" / "lstm-1-1.md").read_text()
    stored(tmp_path, "lstm", members=2)
    assert main(["models", "export", str(tmp_path)]) == UsageError.exit_code
    assert "holds 2 models" in capsys.readouterr().err
