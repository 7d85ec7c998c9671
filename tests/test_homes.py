"""Homes of models and targets: imports of each file, settings that load nothing heavy, names that nobody else
knows.

A member's name, its import, or a metric's name outside its home and the table of names is the beginning of
the next "if tcn".
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainer import models, targets
from trainer.models import MODELS
from trainer.targets import TARGETS

ROOT = Path(__file__).resolve().parents[1]
TABLES = ("trainer/models/__init__.py", "trainer/targets/__init__.py")
HEAVY = ("torch", "numpy", "pandas", "scipy", "pyarrow", "boto3", "botocore")


def files_of(home: type) -> list[Path]:
    """Return the files of a home: a folder's, or `direction.py` with `direction_scores.py`."""
    place = ROOT / home.__module__.replace(".", "/")
    return [
        *place.glob("*.py"),
        *place.parent.glob(f"{place.name}.py"),
        *place.parent.glob(f"{place.name}_*.py"),
    ]


HOMES = {
    home.__module__: files_of(home) for home in (*MODELS.values(), models.OWN, *TARGETS.values(), targets.OWN)
}
EVERY = pytest.mark.parametrize("home", HOMES)
METRICS = {metric.name for home in TARGETS.values() for metric in home.metrics}
MODEL = re.compile("|".join(MODELS), re.IGNORECASE)
NAMED = re.compile("|".join((*MODELS, *TARGETS, *METRICS, *HOMES)), re.IGNORECASE)
# Texts that hold a member's name and mean something else.
NAMED_AFTER = ("crypto-lstm",)  # the example's job
OTHER_TEXTS = {"trainer/train/checkpoint.py": {"position"}}  # that of a run, among its reads


def elsewhere() -> list[Path]:
    """Return the files of the trainer that are neither in a home nor a table."""
    known = {path for files in HOMES.values() for path in files} | {ROOT / table for table in TABLES}
    return [path for path in sorted((ROOT / "trainer").rglob("*.py")) if path not in known]


def words(tree: ast.AST) -> Iterator[tuple[int, str, bool]]:
    """Yield each identifier and each text but docstrings: its line, itself, and whether it is a text."""
    docstrings: set[int] = set()
    for node in ast.walk(tree):  # a statement comes before what is in it
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Expr):
            docstrings.add(id(node.value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield line, node.value, True
        elif isinstance(node, ast.Name):
            yield line, node.id, False
        elif isinstance(node, ast.Attribute):
            yield line, node.attr, False
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.alias)):
            yield line, node.name, False
        elif isinstance(node, ast.ImportFrom):
            yield line, node.module or "", False


def home_of(word: str) -> str | None:
    """Return the home that a dotted name of a module begins with."""
    module = ".".join(word.split(".")[:3])
    return module if module in HOMES else None


def member_named(word: str, is_text: bool) -> bool:
    """Return whether a word names a model, a target's home, or is the text of a target's or a
    metric's name.
    """
    for other in NAMED_AFTER:
        word = word.replace(other, "")
    if home_of(word):
        return True
    return bool(MODEL.search(word)) or (is_text and (word in TARGETS or word in METRICS))


@pytest.mark.parametrize("path", elsewhere(), ids=lambda path: str(path.relative_to(ROOT)))
def test_names_of_models_targets_and_metrics_stay_in_their_homes(path):
    text = path.read_text(encoding="utf-8")
    if not NAMED.search(text):
        return  # nor can a part of it be a name
    found = sorted(
        {f"{line}: {word}" for line, word, is_text in words(ast.parse(text)) if member_named(word, is_text)}
    )
    others = OTHER_TEXTS.get(str(path.relative_to(ROOT)), set())
    found = [one for one in found if one.partition(": ")[2] not in others]
    assert not found, f"{path.relative_to(ROOT)}: ask the settings instead"


def test_a_name_outside_its_home_is_found():
    source = (
        "from trainer.models.lstm import x\n"
        'if job.model.name == "tcn" or "qlike" in test or target == "direction":\n    TcnData()\n'
    )
    found = [word for _, word, is_text in words(ast.parse(source)) if member_named(word, is_text)]
    assert sorted(found) == ["TcnData", "direction", "qlike", "tcn", "trainer.models.lstm"]
    assert not member_named("direction", False) and not member_named("examples/crypto-lstm.toml", True)


@EVERY
def test_a_home_knows_no_other_home(home):
    for path in HOMES[home]:
        for _, name, _ in words(ast.parse(path.read_text(encoding="utf-8"))):
            assert home_of(name) in (None, home), f"{path.relative_to(ROOT)} imports {name}"


@EVERY
def test_settings_load_the_standard_library_and_ours_alone(home):
    (path,) = [path for path in HOMES[home] if path.stem in ("__init__", home.rpartition(".")[2])]
    body = ast.parse(path.read_text(encoding="utf-8")).body  # imports in functions load later
    names = {node.module or "" for node in body if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in body if isinstance(node, ast.Import) for alias in node.names}
    ours = {name for name in names if name.startswith("trainer")}
    assert ours <= {
        "trainer.base.settings",
        "trainer.base.errors",
        "trainer.base.strict_json",
        "trainer.base.own_file",
        "trainer.models.pretrained",
        "trainer.targets.target",
    }
    assert {name.split(".")[0] for name in names - ours} <= set(sys.stdlib_module_names)


def test_settings_and_the_job_load_without_heavy_libraries():
    script = (
        f"import sys\nfor name in {HEAVY}: sys.modules[name] = None\nimport importlib\nfor name in {list(HOMES)}:"
        " importlib.import_module(name)\nfrom trainer.job.reading import job_from\nfrom trainer.machines.kernels import window_costs\nfrom trainer.models import"
        " MODELS\nfrom trainer.targets import TARGETS\nfor model in MODELS:\n    for target in TARGETS:\n   "
        "     if TARGETS[target].acts and MODELS[model].reads == 'chunks': continue\n"
        "        job = job_from({'model': {'name': model}, 'target': {'name': target}})\n        assert job.model.bars_seen > 1 and"
        " job.target.outputs >= 1 and min(window_costs(job.cost)) > 0\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT, timeout=500)
