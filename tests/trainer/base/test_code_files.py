"""The files that a node gets, and those that decide whether a checkpoint counts, by their rules."""

from __future__ import annotations

import ast
import re
import shutil
from functools import cache
from pathlib import Path

import pytest

import trainer
from trainer.base.code_files import DATA, NODE, code_files, home_modules, sha256_of, training_files

PACKAGE = Path(trainer.__file__).parent
HOMES = ("trainer.models.lstm", "trainer.targets.direction")
SETS = ("node", "training")
# They load the home that a job names; all homes are in the bundle, and those of the job in what makes its
# models.
TABLES = ("trainer/models/__init__.py", "trainer/targets/__init__.py")
# It passes the imports of a user's own file on, which counts by its hash.
PASSES_ON = "trainer/train/own/probe.py"
# Parts of which neither a node nor a training runs anything. `control` starts nodes; `data/sync` speaks to S3
# at the desk.
AT_THE_DESK = ("cli", "control", "cost", "launch", "rehearsal", "registry")
# Files that a module names and does not read: who sets a variable, and the user's file of the same name; the
# bundle is made at the desk, and no function makes one.
NAMED_ONLY = {
    "trainer/base/environment.py": {"bootstrap.sh", "gpu_profiles.toml"},
    "trainer/launch/bundle.py": {"requirements.lock"},
    "trainer/train/own/probe.py": {"requirements.lock"},  # in a message
}
FUNCTIONS = [f"trainer.control.functions.{name}" for name in ("control", "sweep", "notify")]  # each a zip


@cache
def files_of(name: str, package: Path | None = None) -> dict[str, bytes]:
    if name == "training":
        return training_files(HOMES, package=package)
    return code_files((*NODE, *home_modules(package=package)), package=package)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of this package that a test may change."""
    shutil.copytree(PACKAGE.parent / "ami", tmp_path / "ami")
    return shutil.copytree(PACKAGE, tmp_path / "trainer", ignore=shutil.ignore_patterns("__pycache__"))


@cache  # most modules are in several sets
def said(source: bytes) -> tuple[frozenset[str], frozenset[str]]:
    """Return a module's string literals, without docstrings, and its names, attributes and imports from
    modules.
    """
    docstrings: set[int] = set()
    strings: list[ast.Constant] = []
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr):
            docstrings.add(id(node.value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            strings.append(node)
        elif isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.name for alias in node.names}
    return frozenset(str(node.value) for node in strings if id(node) not in docstrings), frozenset(names)


def texts(source: bytes) -> frozenset[str]:
    return said(source)[0]


def module_file(dotted: str) -> str:
    """Return the file that `-m`, an import or a preload of a dotted name runs; '' where its first part is all
    that is known.
    """
    place = PACKAGE.joinpath(*dotted.split(".")[1:])
    for path in (place / "__main__.py", place / "__init__.py", place.with_suffix(".py")):
        if path.is_file():
            return f"trainer/{path.relative_to(PACKAGE).as_posix()}"
    return ""


@pytest.mark.parametrize("name", SETS)
def test_node_and_training_have_no_desk_code(name):
    assert not [file for file in files_of(name) if file.split("/")[1] in AT_THE_DESK]


def test_each_set_has_its_entry_points_and_what_they_reach():
    agent = ("node/agent.py", "node/uplink.py", "runs/store.py", "node/requirements.lock", "train/smoke.py")
    training = ("train/__main__.py", "train/workers/worker.py", "models/lstm/stacked.py", "__init__.py")
    node, trains = files_of("node"), files_of("training")
    assert {f"trainer/{file}" for file in (*agent, *training, "train/own/probe.py")} <= node.keys()
    assert {f"trainer/{file}" for file in (*training, "machines/gpu_profiles.toml")} <= trains.keys()
    assert trains.items() <= node.items()
    assert not [file for file in trains if file.startswith(("trainer/node/", "trainer/runs/"))]


@pytest.mark.parametrize("name", SETS)
def test_what_is_started_or_loaded_by_name_is_in_the_set(name):
    """Subprocesses, preloads and loggers name modules in strings, which no import shows."""
    for file, source in files_of(name).items():
        if not file.endswith(".py") or file == "trainer/base/code_files.py":  # it names all entry points
            continue
        named = set(re.findall(r"\btrainer(?:\.[A-Za-z_]\w*)+", "\n".join(texts(source))))
        outside = {dotted for dotted in named if module_file(dotted)}
        outside = {dotted for dotted in outside if module_file(dotted) not in files_of(name)}
        do = "import it, or make it an entry point in trainer/base/code_files.py"
        assert not outside, f"{file} names {sorted(outside)}: {do}"


@pytest.mark.parametrize("name", SETS)
def test_no_reached_module_imports_dynamically(name):
    for file, source in files_of(name).items():
        if not file.endswith(".py") or file in (*TABLES, PASSES_ON):
            continue
        _, words = said(source)
        loaders = {"import_module", "__import__", "runpy", "run_module", "run_path"}
        dynamic = words & {*loaders, "spec_from_file_location"}
        assert not dynamic, f"{file} uses {sorted(dynamic)}: what it loads is in no set"


def test_every_data_file_that_a_reached_module_names_is_declared():
    by_name: dict[str, list[str]] = {}
    for path in PACKAGE.rglob("*"):
        if path.is_file() and path.suffix not in (".py", ".pyc") and "rehearsal" not in path.parts:
            by_name.setdefault(path.name, []).append(f"trainer/{path.relative_to(PACKAGE).as_posix()}")
    for file, source in (files_of("node") | code_files(FUNCTIONS)).items():
        if not file.endswith(".py") or file == "trainer/base/code_files.py":  # the declaration itself
            continue
        used = {Path(text).name for text in texts(source)} & by_name.keys() - NAMED_ONLY.get(file, set())
        missing = sorted(text for text in used if not set(by_name[text]) & set(DATA.get(file, ())))
        assert not missing, f"{file} names {missing}: declare it in DATA of trainer/base/code_files.py"


def test_every_declared_data_file_and_its_reader_exist():
    for file in (*DATA, *(data for files in DATA.values() for data in files)):
        do = "take it out of DATA in trainer/base/code_files.py"
        assert (PACKAGE.parent / file).is_file(), f"{file} is gone: {do}"


@pytest.mark.parametrize(
    ("file", "changed"),
    [
        ("cli/verbs/launch.py", set()),
        ("rehearsal/world.py", set()),
        ("launch/plan.py", set()),
        ("node/agent.py", {"node"}),
        ("node/requirements.lock", {"node"}),
        ("train/smoke.py", {"node", "training"}),
        ("train/loop.py", {"node", "training"}),
        ("train/workers/worker.py", {"node", "training"}),
        ("store/card.py", {"node", "training"}),
        ("data/__init__.py", {"node", "training"}),
        ("models/lstm/network.py", {"node", "training"}),
        ("targets/direction.py", {"node", "training"}),
        ("targets/direction_scores.py", {"node", "training"}),
        ("targets/target.py", {"node", "training"}),
        ("models/tcn/network.py", {"node"}),
        ("models/tcn/__init__.py", {"node"}),
        ("targets/volatility.py", {"node"}),
        ("models/lstm/__init__.py", {"node", "training"}),
        ("models/__init__.py", {"node", "training"}),
        ("machines/gpu_profiles.toml", {"node", "training"}),
    ],
)
def test_a_comment_changes_only_the_sets_of_its_file(copied, file, changed):
    with (copied / file).open("a") as opened:
        opened.write("# a comment\n")
    after = {name: sha256_of(files_of(name, copied)) for name in SETS}
    assert {name for name in SETS if after[name] != sha256_of(files_of(name))} == changed


def test_a_moved_name_or_content_changes_the_hash():
    assert sha256_of({"a": b"1", "b": b"2"}) == sha256_of({"b": b"2", "a": b"1"})
    others = [{"a": b"1", "b": b"2"}, {"a": b"2", "b": b"1"}, {"a": b"1b2"}, {"c": b"1"}]
    assert len({sha256_of(files) for files in others}) == 4


def test_imports_count_where_they_run(tmp_path):
    source = """
from __future__ import annotations
import json, trainer.plain
from trainer import module
from trainer.package import inner, a_name
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from trainer.typed import Typed
else:
    import trainer.otherwise
def run() -> None:
    with open("x"):
        try:
            from trainer.late import later
        except ValueError:
            import trainer.handled
"""
    modules = ["plain", "module", "package/inner", "package/other", "typed"]
    modules += ["otherwise", "late", "handled", "unused"]
    for name in ("__init__", "package/__init__", *modules):
        (tmp_path / name).with_suffix(".py").parent.mkdir(exist_ok=True)
        (tmp_path / name).with_suffix(".py").write_text("")
    (tmp_path / "start.py").write_text(source)
    files = code_files(["trainer.start"], package=tmp_path)
    reached = {file.removeprefix("trainer/").removesuffix(".py") for file in files}
    packages = {"__init__", "package/__init__"}
    assert reached == {"start", "plain", "module", "package/inner", "otherwise", "late", "handled"} | packages


def test_an_entry_point_that_is_not_there_is_refused(tmp_path):
    (tmp_path / "__init__.py").write_text("")
    for entry_point in ("trainer.gone", "trainer.__init__.name", "elsewhere.module"):
        with pytest.raises(ValueError, match="is not a module"):
            code_files([entry_point], package=tmp_path)
