"""Models elsewhere: each family with each target, and each kind of model, has our numbers in plain torch and in
onnxruntime, also in a process without Mayfly.
"""

from __future__ import annotations

import ast
import json
import re
import runpy
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.models import FEATURES, card_of, make_own_model
from tests.pages import ROOT
from trainer.base.errors import DataError, UsageError
from trainer.base.settings import WINDOWS
from trainer.models import MODELS, network_of
from trainer.store.card import CardPanel, read_card
from trainer.store.weights import HELD_OUT, load_tensors, save, weights_sha256
from trainer.targets import TARGETS
from trainer.targets.environment import EnvironmentTarget
from trainer.targets.environment_policy import greedy
from trainer.train.agents.policies import policy
from trainer.train.packs.tensors import tensors_of
from trainer.train.predict.averaged import averaged_tensors
from trainer.train.predict.loaded import LoadedModel, load
from trainer.train.predict.onnx_file import PARITY, seeded_inputs, write_onnx

EXAMPLE = ROOT / "examples" / "plain_torch.py"
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
    given = {{name: torch.tensor(value) for name, value in np.load(inputs).items()}}
    made.append(outputs(path, **given).tolist())
print(json.dumps(made))
"""


TWO = ("AAA", "BBB")
SEEN = 7  # numbers of an observation


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of model file."""

    family: str
    target: str
    symbols: tuple[str, ...] = TWO[:1]
    members: int = 1
    is_panel: bool = False
    is_refit: bool = False
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        words = [f"{self.members}x" * (self.members > 1), "panel" * self.is_panel, "refit" * self.is_refit]
        words += ["pooled" * (len(self.symbols) > 1 and not self.is_panel), *map(str, self.settings.values())]
        return "-".join([self.family, self.target, *filter(None, words)])


def kinds_of(family: str) -> list[Kind]:
    """Return the kinds of models of a family: with each target alone, and with one or more of each other kind."""
    windows = MODELS[family].reads == WINDOWS
    targets = [name for name, home in TARGETS.items() if windows or not home.acts]
    kinds = [Kind(family=family, target=name) for name in targets]
    kinds += [Kind(family=family, target="direction", symbols=TWO, is_panel=panel) for panel in (False, True)]
    kinds += [Kind(family=family, target="quantiles", symbols=TWO, is_panel=True, members=2, is_refit=True)]
    return kinds


def means_of(family: str) -> list[Kind]:
    """Return the kinds of means of two networks with each target, and agents that may hold any share."""
    kinds = [Kind(family=family, target=name, members=2) for name in TARGETS]
    continuous = {"actions": "continuous"}
    kinds += [Kind(family=family, target="position", members=n, settings=continuous) for n in (1, 2)]
    return kinds


def agents_of_environments() -> list[Kind]:
    """Return agents in an environment of the user's, with choices or numbers, one or the mean of two."""
    actions = ({"choices": 3, "numbers": 0}, {"choices": 0, "numbers": 2})
    return [
        Kind(family="mlp", target="environment", members=n, settings=one) for one in actions for n in (1, 2)
    ]


GROUPS = {
    **{family: kinds_of(family) for family in MODELS},
    "means": means_of("lstm"),
    "environments": agents_of_environments(),
}


def stored(folder: Path, kind: Kind) -> Path:
    """Write a model with random weights, and scalers that matter; return its path."""
    if kind.target == "environment":
        return agent_in_environment(folder, kind)
    features = ("present", *FEATURES) if kind.is_panel else FEATURES
    card = card_of(kind.family, kind.target, symbols=kind.symbols, features=features, settings=kind.settings)
    series = [
        replace(one, scaler=scaler_of(n, len(features)), number=n + 1 if kind.is_panel else 0)
        for n, one in enumerate(card.series)
    ]
    card = replace(card, series=series, members=kind.members)
    if kind.is_panel:
        common = {"scaler": scaler_of(2, len(features)), "fitted": series[0].fitted}
        panel = CardPanel(scaler_of="series", calendar="24x7", horizon=5, **common)
        card = replace(card, panel=panel, kind="panel")
    torch.manual_seed(3)
    tensors, twin = (averaged_tensors([network(card) for _ in range(kind.members)]) for _ in range(2))
    if kind.is_refit:
        parts = {"series": [vars(one) for one in series], "panel": card.panel and vars(card.panel)}
        card = replace(card, held_out={"sha256": weights_sha256(twin), "trained_until": "", **parts})
        tensors |= {HELD_OUT + name: tensor for name, tensor in twin.items()}
    path = folder / f"{kind.name}.safetensors"
    save(path, tensors, card)
    return path


def agent_in_environment(folder: Path, kind: Kind) -> Path:
    """Write an agent whose observation has SEEN numbers; return its path."""
    target = EnvironmentTarget.from_keys(
        {"file": "my_env.py", "class": "MyEnv", "sha256": "0" * 64, "window": 4}
    )
    measured = {"of": target.code, "seen": SEEN, **kind.settings}
    target = EnvironmentTarget.from_keys({**target.to_keys(), "measured": measured})
    names = target.names_of_features(FEATURES)
    card = card_of(kind.family, "direction", symbols=TWO[:1], features=names)
    series = [replace(card.of(), scaler={"mean": [0.0] * SEEN, "std": [1.0] * SEEN, "limit": 3.4e38})]
    settings = MODELS[kind.family](hidden=4, layers=2, lookback=1)
    architecture = settings.architecture(features=SEEN, outputs=target.outputs)
    told = {"target": "environment", "target_settings": target.card_keys(), "lookback": 1}
    card = replace(card, series=series, architecture=architecture, members=kind.members, **told)
    torch.manual_seed(3)
    path = folder / f"{kind.name}.safetensors"
    save(path, averaged_tensors([network(card) for _ in range(kind.members)]), card)
    return path


def scaler_of(number: int, inputs: int) -> dict[str, Any]:
    return {"mean": [0.1 * (number + 1)] * inputs, "std": [0.5 + number] * inputs, "limit": 2.0}


def network(card: Any) -> dict[str, torch.Tensor]:
    made: dict[str, torch.Tensor] = tensors_of(network_of(card.family).build(card.architecture))
    return made


def of_another_process(script: str, pairs: list[tuple[Path, Path]]) -> list[np.ndarray]:
    """Return what a script prints in a process without Mayfly, of each file and its inputs."""
    words = [str(word) for pair in pairs for word in pair]
    command = [sys.executable, "-c", WITHOUT.format(root=str(ROOT)) + script, *words]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=pairs[0][0].parent)
    assert ran.returncode == 0, ran.stderr
    return [np.array(one) for one in json.loads(ran.stdout)]


def inputs_beside(path: Path, model: LoadedModel) -> tuple[Path, torch.Tensor]:
    """Write seeded inputs beside a model; return them and the module's outputs."""
    inputs = seeded_inputs(model, 5, further=2)
    np.savez(path.with_suffix(".npz"), **{name: tensor.numpy() for name, tensor in inputs.items()})
    with torch.no_grad():
        return path.with_suffix(".npz"), model.module(**inputs)


def check_same(made: Any, wanted: torch.Tensor, share: float, name: str = "") -> None:
    largest = float(wanted.abs().max())
    assert largest > 0.01
    torch.testing.assert_close(
        torch.as_tensor(made, dtype=torch.float32),
        wanted,
        rtol=0,
        atol=share * largest,
        msg=lambda text: f"{name}: {text}",
    )


def of_members(model: LoadedModel, made: Any) -> torch.Tensor:
    """Return the outputs of plain torch as a model has them: of several networks, combined by its target."""
    outputs = torch.as_tensor(made, dtype=torch.float32)
    return outputs if model.card.members == 1 else model.checked.target.combined(outputs)


@pytest.mark.parametrize("group", GROUPS)
def test_plain_torch_gives_our_numbers(group: str, tmp_path: Path) -> None:
    assert not re.search(r"^\s*(from|import) trainer", EXAMPLE.read_text(), re.MULTILINE)
    plain = runpy.run_path(str(EXAMPLE))["outputs"]
    for kind in GROUPS[group]:
        path = stored(tmp_path, kind)
        model = load(path)
        inputs = seeded_inputs(model, 5, further=2)
        with torch.no_grad():
            wanted = model.module(**inputs)
        inputs["x"] = inputs["x"].double()  # as numpy has it
        check_same(of_members(model, plain(path, **inputs)), wanted, 1e-6, kind.name)


@pytest.mark.nightly
@pytest.mark.parametrize("group", GROUPS)
def test_a_process_without_mayfly_gives_our_numbers(group: str, tmp_path: Path) -> None:
    paths = [stored(tmp_path, kind) for kind in GROUPS[group]]
    models = [load(path) for path in paths]
    beside = [inputs_beside(path, model) for path, model in zip(paths, models, strict=True)]
    for path, model in zip(paths, models, strict=True):
        parity = write_onnx(model, path.with_suffix(".onnx"))
        assert parity.share < PARITY and parity.largest_output > 0.01, path
    pairs = [(path, inputs) for path, (inputs, _) in zip(paths, beside, strict=True)]
    plain = of_another_process(PLAIN.format(example=str(EXAMPLE)), pairs)
    graphs = of_another_process(RUNTIME, [(path.with_suffix(".onnx"), inputs) for path, inputs in pairs])
    for model, in_torch, in_onnx, (_, wanted) in zip(models, plain, graphs, beside, strict=True):
        check_same(of_members(model, in_torch), wanted, 1e-6, model.checked.name)
        check_same(in_onnx, wanted, PARITY, model.checked.name)


def test_the_ten_lines_of_the_docs_give_our_numbers(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "models.md").read_text()
    section = page.split("## Take a model elsewhere")[1].split("\n## ")[0]
    (lines,) = (
        block for block in re.findall(r"```python\n(.*?)```", section, re.DOTALL) if "nn.LSTM" in block
    )
    path = stored(tmp_path, Kind(family="lstm", target="direction"))
    model = load(path)
    x = seeded_inputs(model, 5)["x"]
    names: dict[str, Any] = {"x": x}
    exec(lines.replace('"MODEL.safetensors"', repr(str(path))), names)
    with torch.no_grad():
        wanted = model.module(x)
    statements = [node for node in ast.walk(ast.parse(lines)) if isinstance(node, ast.stmt)]
    assert len(statements) <= 14 and "trainer" not in lines
    torch.testing.assert_close(names["outputs"], wanted, rtol=0, atol=1e-6)


def test_an_environments_agent_is_loaded_for_its_observations(tmp_path: Path) -> None:
    space = SimpleNamespace(start=0, low=np.full(2, -1.0), high=np.ones(2), dtype=np.dtype(np.float64))
    for kind in agents_of_environments():
        path = stored(tmp_path, kind)
        model = load(path)
        x = seeded_inputs(model, 2)["x"] * 50  # nothing is clamped, and nothing scaled
        with torch.no_grad():
            outputs = model.module(x)
            assert model.told["x"].startswith(f"(batch, 1, {SEEN}) float32: observations")
            act = policy(path, SimpleNamespace(action_space=space))
            for seen, action in zip(x.numpy(), greedy(model.checked.target, outputs), strict=True):
                wanted = int(action) if kind.settings["choices"] else action.double().numpy()
                np.testing.assert_allclose(act(seen[0]), wanted, rtol=1e-5)
        with pytest.raises(DataError, match="candles alone do not say what it sees"):
            model.prepare("candles/")


def test_a_card_without_observations_is_no_agents(tmp_path: Path) -> None:
    path = stored(tmp_path, agents_of_environments()[0])
    card = read_card(path)
    scaler = {"mean": [0.0] * 3, "std": [1.0] * 3, "limit": 10.0}
    save(
        path,
        load_tensors(path),
        replace(card, features=["a", "b", "c"], series=[replace(card.of(), scaler=scaler)]),
    )
    with pytest.raises(DataError, match="its features are not the numbers of an observation"):
        load(path)


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
    check_same(got, wanted, PARITY)
    net = runpy.run_path(str(file))["Net"](len(model.card.features), 1)  # as the page says
    net.load_state_dict(load_file(path), strict=False)
    scaler = model.card.of().scaler
    x = torch.from_numpy(np.load(inputs)["x"])
    scaled = (x - torch.tensor(scaler["mean"])) / torch.tensor(scaler["std"])
    with torch.no_grad():
        check_same(net.eval()(scaled.clamp(-scaler["limit"], scaler["limit"])), wanted, 1e-6)
    make_own_model(path, file, BRANCHES)
    with pytest.raises(UsageError, match="own can't be written as ONNX") as caught:
        write_onnx(load(path, own_files=[file]), tmp_path / "branches.onnx")
    assert "\n" not in str(caught.value) and not (tmp_path / "branches.onnx").exists()
