"""Who may import whom. The packages and the rules stand here once, as data; docs/architecture.md is checked against them."""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# What each part may import of ours. A name stands for the module or the whole package.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "stack_outputs": set(),
    "access": {"errors"},
    "settings": {"errors"},
    "models": {"errors", "settings"},
    "targets": {"errors", "settings", "data"},
    "config": {"errors", "settings", "models", "targets"},
    "gpu_profiles": {"errors", "settings", "config", "models"},
    "artifacts": {"errors", "config"},
    "runs": {"errors", "config", "access", "stack_outputs", "artifacts"},
    "cost": {"errors", "config", "access", "gpu_profiles", "artifacts", "runs"},
    "registry": {"errors", "config", "access", "stack_outputs", "artifacts", "runs"},
    "launch": {"errors", "config", "access", "stack_outputs", "gpu_profiles", "artifacts", "runs", "cost", "registry"},
    "control": {
        "errors",
        "config",
        "access",
        "stack_outputs",
        "gpu_profiles",
        "artifacts",
        "runs",
        "cost",
        "registry",
        "launch",
    },
    "data": {"errors"},
    "plan": {"errors", "settings", "config", "models", "targets", "data"},
    "train": {"errors", "settings", "config", "gpu_profiles", "artifacts", "models", "targets", "data", "plan"},
    "node": {"errors", "config", "access", "artifacts", "runs"},
    "rehearsal": {"errors", "config", "access", "stack_outputs", "gpu_profiles", "runs", "control", "launch", "cost", "infra"},
    "cli": {"*"},
    "infra": {"stack_outputs", "gpu_profiles"},
}
# Files whose place in the order differs from their package's, each with its reason.
EXCEPTIONS: dict[str, set[str]] = {
    "trainer/data/sync.py": {"errors", "config", "access"},  # the one file of data that speaks to S3
    "trainer/launch/__main__.py": {"cli"},  # python -m trainer.launch is `mayfly launch`
    "trainer/control/sweep.py": {"errors", "runs.lease"},  # a broken launcher can't stop the sweeper
}
CONTROL_PLANE = (
    "config",
    "settings",
    "errors",
    "access",
    "stack_outputs",
    "gpu_profiles",
    "launch",
    "control",
    "runs",
    "cost",
    "registry",
)
CONTROL_PLANE_LIBRARIES = {"boto3", "botocore"}
CLOUD = {"boto3", "botocore", "paramiko"}
FORBIDDEN_LIBRARIES: dict[str, set[str]] = {
    "infra": {"torch", "ray", "boto3", "botocore", "paramiko"},
    "models": CLOUD,
    "train": CLOUD,
    "rl": CLOUD,
    "artifacts": CLOUD,
    "data": CLOUD,
    "node": {"torch", "pandas"},
}
LINUX_ONLY = {"fcntl", "resource", "pwd", "grp", "termios", "posix", "spwd"}
MAY_BE_LINUX_ONLY = ("trainer/rehearsal/", "trainer/node/")


@cache
def sources() -> dict[str, ast.Module]:
    files = [path for folder in ("trainer", "infra") for path in sorted((ROOT / folder).rglob("*.py"))]
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in files}


def imported(tree: ast.AST) -> set[str]:
    """Return the dotted names a file imports anywhere in it; `from a.b import c` counts as a.b.c."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import: Pulumi runs infra as a script, and one way everywhere is easier"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def part_of(dotted: str) -> str | None:
    """Return our part that a dotted name belongs to: 'runs' for trainer.runs.record, 'infra' for infra.network."""
    head, _, rest = dotted.partition(".")
    if head == "infra":
        return "infra"
    return rest.split(".")[0] if head == "trainer" and rest else None


def part_of_file(path: str) -> str:
    pieces = path.removesuffix(".py").split("/")
    return "infra" if pieces[0] == "infra" else pieces[1]


def test_every_part_is_in_the_table():
    parts = {part_of_file(path) for path in sources()} - {"__init__"}
    assert parts <= MAY_IMPORT.keys(), "a new part needs its rule in MAY_IMPORT"


@pytest.mark.parametrize("path", sorted(sources()))
def test_a_file_imports_only_what_its_part_may(path):
    part = part_of_file(path)
    allowed = EXCEPTIONS.get(path, MAY_IMPORT.get(part, set()) | {part})
    for name in imported(sources()[path]):
        theirs = part_of(name)
        if theirs is None or "*" in allowed or theirs in allowed or theirs == "__version__":
            continue
        assert any(name.startswith(f"trainer.{item}.") for item in allowed if "." in item), f"{path} imports {name}"


@pytest.mark.parametrize("path", sorted(sources()))
def test_a_file_imports_no_library_that_its_part_must_not(path):
    part, libraries = part_of_file(path), {name.split(".")[0] for name in imported(sources()[path])}
    if path != "trainer/data/sync.py":
        assert not libraries & FORBIDDEN_LIBRARIES.get(part, set())
    if part in CONTROL_PLANE or path == "trainer/artifacts/card.py":
        assert libraries <= set(sys.stdlib_module_names) | CONTROL_PLANE_LIBRARIES | {"trainer"}
    if not path.startswith(MAY_BE_LINUX_ONLY):
        assert not libraries & LINUX_ONLY, "the desk may be a Mac"


def test_no_cycles():
    modules = {path.removesuffix(".py").replace("/", ".").removesuffix(".__init__"): tree for path, tree in sources().items()}
    edges: dict[str, set[str]] = {}
    for module, tree in modules.items():
        edges[module] = set()
        for name in imported(tree):
            target = name if name in modules else name.rpartition(".")[0]
            if target in modules and target not in ("trainer", module):
                edges[module].add(target)
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> None:
        assert module not in path, "cycle: " + " -> ".join([*path[path.index(module) :], module])
        if module in done:
            return
        for target in sorted(edges[module]):
            visit(target, [*path, module])
        done.add(module)

    for module in sorted(edges):
        visit(module, [])


def test_no_infra_file_is_named_after_a_standard_module():
    names = {Path(path).stem for path in sources() if path.startswith("infra/")} - {"__init__", "__main__"}
    assert not names & set(sys.stdlib_module_names), "infra/ comes first on Pulumi's import path"


def test_the_architecture_page_shows_every_part():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"^\| `([a-z_]+)` \|", page, re.MULTILINE))
    assert shown == MAY_IMPORT.keys()
    for part, may in MAY_IMPORT.items():
        row = re.search(rf"^\| `{part}` \|.*\|([^|]*)\|$", page, re.MULTILINE)
        assert row, part
        written = set(re.findall(r"`([a-z_*]+)`", row.group(1)))
        assert written == may, f"docs/architecture.md says {part} may import {sorted(written)}, the rule is {sorted(may)}"
