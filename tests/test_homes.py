"""Homes of models and targets: what each file may import, that settings load nothing heavy, and that nobody
else knows a name.

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

from trainer.models import MODELS
from trainer.targets import TARGETS

ROOT = Path(__file__).resolve().parents[1]
TABLES = ("trainer/models/__init__.py", "trainer/targets/__init__.py")
FILES = {"models": {"__init__", "network", "stacked"}, "targets": {"__init__", "labels", "loss", "scores"}}
HEAVY = ("torch", "numpy", "pandas", "scipy", "pyarrow", "boto3", "botocore")
HOMES = sorted(path.parent for part in FILES for path in (ROOT / "trainer" / part).glob("*/__init__.py"))
METRICS = {metric.name for home in TARGETS.values() for metric in home.metrics}
MODEL = re.compile("|".join(MODELS), re.IGNORECASE)
# Texts that hold a member's name and mean something else.
NAMED_AFTER = ("crypto-lstm",)  # the example's job


def elsewhere() -> list[Path]:
    """Return the files of the trainer that are neither in a home nor a table."""
    files = sorted((ROOT / "trainer").rglob("*.py"))
    return [path for path in files if path.parent not in HOMES and str(path.relative_to(ROOT)) not in TABLES]


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


def member_named(word: str, is_text: bool) -> bool:
    """Return whether a word names a model, a target's home, or is the text of a target's or a
    metric's name.
    """
    for other in NAMED_AFTER:
        word = word.replace(other, "")
    home = re.match(r"trainer\.(models|targets)\.(\w+)", word)
    if home and any(place.name == home[2] for place in HOMES):
        return True
    return bool(MODEL.search(word)) or (is_text and (word in TARGETS or word in METRICS))


@pytest.mark.parametrize("path", elsewhere(), ids=lambda path: str(path.relative_to(ROOT)))
def test_nobody_but_its_home_and_the_table_knows_a_member_or_a_metric_by_name(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = sorted({f"{line}: {word}" for line, word, is_text in words(tree) if member_named(word, is_text)})
    assert not found, f"{path.relative_to(ROOT)}: ask the settings instead"


def test_the_rule_finds_what_it_is_for():
    source = (
        "from trainer.models.lstm import x\n"
        'if job.model.name == "tcn" or "qlike" in test or target == "direction":\n    TcnData()\n'
    )
    found = [word for _, word, is_text in words(ast.parse(source)) if member_named(word, is_text)]
    assert sorted(found) == ["TcnData", "direction", "qlike", "tcn", "trainer.models.lstm"]
    assert not member_named("direction", False) and not member_named("examples/crypto-lstm.toml", True)


@pytest.mark.parametrize("home", HOMES, ids=lambda home: f"{home.parent.name}.{home.name}")
def test_a_home_has_its_files_and_knows_no_other_home(home):
    part = home.parent.name
    assert {path.stem for path in home.glob("*.py")} <= FILES[part]
    for path in home.glob("*.py"):
        for _, name, _ in words(ast.parse(path.read_text(encoding="utf-8"))):
            other = re.match(r"trainer\.(models|targets)\.(\w+)", name)
            if other and any(place.name == other[2] for place in HOMES):
                assert (other[1], other[2]) == (part, home.name), f"{path.relative_to(ROOT)} imports {name}"


@pytest.mark.parametrize("home", HOMES, ids=lambda home: f"{home.parent.name}.{home.name}")
def test_settings_import_the_standard_library_and_settings_alone(home):
    tree = ast.parse((home / "__init__.py").read_text(encoding="utf-8"))
    names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    ours = {name for name in names if name and name.startswith("trainer")}
    assert ours <= {
        "trainer.base.settings",
        "trainer.base.errors",
        "trainer.base.strict_json",
        "trainer.base.own_file",
        "trainer.models.pretrained",
    }
    assert {name.split(".")[0] for name in names - ours if name} <= set(sys.stdlib_module_names)


def test_every_settings_file_and_the_job_load_with_heavy_libraries_blocked():
    modules = [f"trainer.{home.parent.name}.{home.name}" for home in HOMES]
    script = (
        f"import sys\nfor name in {HEAVY}: sys.modules[name] = None\nimport importlib\nfor name in {modules}:"
        " importlib.import_module(name)\nfrom trainer.job.job import job_from\nfrom trainer.machines.kernels import window_costs\nfrom trainer.models import"
        " MODELS\nfrom trainer.targets import TARGETS\nfor model in MODELS:\n    for target in TARGETS:\n   "
        "     job = job_from({'model': {'name': model}, 'target': {'name': target}})\n        assert job.model.bars_seen > 1 and"
        " job.target.outputs >= 1 and min(window_costs(job.cost)) > 0\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT, timeout=60)
