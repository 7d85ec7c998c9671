"""Who may import whom. The packages and the rules stand here once, as data; docs/architecture.md is checked
against them.
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# What each part may import of ours. A name stands for the module or the whole package; `data.settings` for
# that module alone.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "extras": {"errors"},
    "arguments": {"errors"},
    "environment": set(),
    "stack_outputs": set(),
    "reading": set(),
    "symbols": set(),
    "printable": set(),
    "whole_file": set(),
    "schedule_expressions": set(),
    "aws_errors": {"errors"},
    "folder_bucket": {"symbols"},
    "access": {"environment", "errors", "aws_errors", "folder_bucket"},
    "stack": {"errors", "aws_errors", "access", "stack_outputs"},
    "settings": {"errors"},
    "own_file": {"errors", "reading", "settings"},
    "pretrained": {"settings"},
    "models": {"errors", "reading", "settings", "own_file", "pretrained"},
    "targets": {"errors", "settings", "own_file", "data"},
    "machine": {"errors", "settings"},
    "script": {"errors", "settings", "script_values"},
    "script_values": {"errors", "settings"},
    "job_tables": {
        *(
            "errors",
            "settings",
            "own_file",
            "models",
            "targets",
            "data.settings",
            "train.settings",
            "machine",
            "script",
        ),
    },
    "job": {
        *(
            "errors",
            "settings",
            "own_file",
            "models",
            "targets",
            "data.settings",
            "train.settings",
            "machine",
            "script",
        ),
        *("reading", "job_tables"),
    },
    "code_files": set(),
    "gpu_profiles": {"errors", "environment", "whole_file", "settings", "job", "train.settings"},
    "artifacts": {"errors", "reading", "symbols", "whole_file"},
    "pieces": {"errors", "settings", "job", "script", "artifacts", "data.splits", "data.feature_names"},
    "runs": {"errors", "environment", "reading", "symbols", "aws_errors", "access", "artifacts"},
    "cost": {"errors", "settings", "job", "gpu_profiles", "pieces"},
    "registry": {"errors", "whole_file", "artifacts", "runs"},
    "transfer": {"access", "aws_errors", "whole_file"},
    "backup": {"errors", "access", "aws_errors", "reading", "symbols", "transfer", "runs"},
    "retrains": {"errors", "reading", "symbols", "schedule_expressions", "job", "artifacts", "runs"},
    "launch": {
        *(
            "errors",
            "aws_errors",
            "reading",
            "symbols",
            "job",
            "script",
            "own_file",
            "code_files",
            "access",
            "stack_outputs",
            "transfer",
            "gpu_profiles",
        ),
        *("runs", "cost", "pieces", "pretrained", "data.settings", "data.timeframes"),
    },
    "control": {
        *(
            "errors",
            "environment",
            "reading",
            "aws_errors",
            "access",
            "stack",
            "stack_outputs",
            "gpu_profiles",
            "artifacts",
        ),
        "job",
        *("launch", "retrains", "runs", "registry", "schedule_expressions"),
    },
    "data": {"errors", "settings", "symbols", "whole_file"},
    "plan": {
        "errors",
        "reading",
        "symbols",
        "settings",
        "own_file",
        "pretrained",
        "job",
        "targets",
        "data",
        "pieces",
    },
    "train": {
        *(
            "errors",
            "extras",
            "arguments",
            "environment",
            "printable",
            "whole_file",
            "reading",
            "settings",
            "own_file",
            "pretrained",
            "job",
            "job_tables",
            "code_files",
            "gpu_profiles",
            "artifacts",
        ),
        *("models", "targets", "data", "plan", "pieces"),
    },
    "node": {
        "errors",
        "reading",
        "environment",
        "symbols",
        "whole_file",
        "aws_errors",
        "access",
        "own_file",
        "pieces",
        "script",
        "script_values",
        "runs",
    },
    "rehearsal": {"errors", "extras", "environment", "whole_file", "access", "runs", "schedule_expressions"},
    "attach": {"errors", "environment", "runs"},
    "importing": {"errors", "extras", "job", "machine", "script", "settings", "cost"},
    "cli": {"*"},
    "infra": {"stack_outputs", "code_files", "retrains.schedule"},
}
# Files whose place in the order differs from their package's, each with its reason.
EXCEPTIONS: dict[str, set[str]] = {
    "trainer/__init__.py": {"cli"},  # trainer.predict is `mayfly predict`
    "trainer/launch/upload_candles.py": {
        "errors",
        "access",
        "transfer",
    },  # the one file of data that speaks to S3
    "trainer/launch/__main__.py": {"cli"},  # python -m trainer.launch is `mayfly launch`
    "trainer/control/functions/sweep.py": {
        "reading",
        "runs.keys",
        "runs.lease",
    },  # a broken launcher can't stop the sweeper
}
CONTROL_PLANE = (
    *(
        "job",
        "job_tables",
        "machine",
        "script",
        "script_values",
        "settings",
        "own_file",
        "pretrained",
        "errors",
        "environment",
        "reading",
        "symbols",
        "whole_file",
        "code_files",
        "aws_errors",
        "access",
        "folder_bucket",
        "transfer",
        "stack",
        "stack_outputs",
        "gpu_profiles",
        "schedule_expressions",
    ),
    *("launch", "control", "runs", "cost", "registry", "retrains", "pieces"),
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
# Who reads the environment: one module, and the sweeper, which would import the module for four names.
READS_THE_ENVIRONMENT = {
    "trainer/base/environment.py",
    "trainer/control/functions/sweep.py",
    "trainer/rehearsal/fork_server.py",  # plain scripts, which import nothing of ours
    "trainer/rehearsal/fork_client.py",
}
ENVIRONMENT = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv", "expandvars"}
LINUX_ONLY = {"fcntl", "resource", "pwd", "grp", "termios", "posix", "spwd"}
ON_A_MAC_TOO = {
    "trainer/aws/folder_bucket.py": {"fcntl"},
    "trainer/train/observing/meter.py": {"resource"},
    "trainer/train/ranks/folder.py": {"fcntl"},
    "trainer/attach/shell.py": {"termios"},
}
MAY_BE_LINUX_ONLY = ("trainer/rehearsal/", "trainer/node/")


@cache
def sources() -> dict[str, ast.Module]:
    files = [path for folder in ("trainer", "infra") for path in sorted((ROOT / folder).rglob("*.py"))]
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in files}


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Return the imports and classes of a file, and the attributes of ENVIRONMENT's names, in one walk for
    all tests.
    """
    kinds = (ast.Import, ast.ImportFrom, ast.ClassDef)
    return tuple(
        node
        for node in ast.walk(tree)
        if isinstance(node, kinds) or (isinstance(node, ast.Attribute) and node.attr in ENVIRONMENT)
    )


@cache
def imported(tree: ast.AST) -> frozenset[str]:
    """Return the dotted names a file imports anywhere in it; `from a.b import c` counts as a.b.c."""
    names: set[str] = set()
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, (
                "relative import: Pulumi runs infra as a script, and one way everywhere is easier"
            )
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def part_of(dotted: str) -> str | None:
    """Return our part that a dotted name belongs to: 'runs' for trainer.runs.record, 'infra' for
    infra.network.
    """
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
        assert any(name.startswith(f"trainer.{item}.") for item in allowed if "." in item), (
            f"{path} imports {name}"
        )


def arrows_of(path: str) -> set[str]:
    """Return the other parts that a file imports, and the dotted names by which EXCEPTIONS may grant less
    than a part.
    """
    names = {name for name in imported(sources()[path]) if part_of(name)}
    parts = {str(part_of(name)) for name in names} - {part_of_file(path)}
    dotted = {item for items in (MAY_IMPORT | EXCEPTIONS).values() for item in items if "." in item}
    return parts | {item for item in dotted if any(name.startswith(f"trainer.{item}.") for name in names)}


def test_every_arrow_that_the_table_grants_is_taken():
    taken: dict[str, set[str]] = {}
    for path in sources():
        taken.setdefault(path if path in EXCEPTIONS else part_of_file(path), set()).update(arrows_of(path))
    idle = {place: may - taken.get(place, set()) - {"*"} for place, may in (MAY_IMPORT | EXCEPTIONS).items()}
    lines = [f"  {place}: {', '.join(sorted(arrows))}" for place, arrows in idle.items() if arrows]
    assert not lines, "remove from MAY_IMPORT or EXCEPTIONS:\n" + "\n".join(lines)


@pytest.mark.parametrize("path", sorted(sources()))
def test_a_file_imports_no_library_that_its_part_must_not(path):
    part, libraries = part_of_file(path), {name.split(".")[0] for name in imported(sources()[path])}
    if path != "trainer/launch/upload_candles.py":
        assert not libraries & FORBIDDEN_LIBRARIES.get(part, set())
    if part in CONTROL_PLANE or path in ("trainer/store/card.py", "trainer/store/card_reading.py"):
        assert libraries <= set(sys.stdlib_module_names) | CONTROL_PLANE_LIBRARIES | {"trainer"}
    if not path.startswith(MAY_BE_LINUX_ONLY):
        assert not libraries & (LINUX_ONLY - ON_A_MAC_TOO.get(path, set())), "the desk may be a Mac"


def reads_the_environment(tree: ast.AST) -> bool:
    """Return whether a file may read or set a variable: it names os.environ or the like, or imports os under
    another name.
    """
    attributes = [node for node in nodes(tree) if isinstance(node, ast.Attribute)]
    renamed = [
        alias for node in nodes(tree) if isinstance(node, ast.Import) for alias in node.names if alias.asname
    ]
    return (
        any(ast.unparse(node.value) in ("os", "os.path") for node in attributes)
        or bool(
            imported(tree)
            & {f"{module}.{name}" for module in ("os", "os.path", "posix") for name in ENVIRONMENT}
        )
        or any(alias.name in ("os", "os.path") for alias in renamed)
    )


@pytest.mark.parametrize("path", sorted(sources()))
def test_the_environment_is_read_in_one_module(path):
    may = path in READS_THE_ENVIRONMENT
    told = (
        "reads no variable any more"
        if may
        else "reads the environment: add a function to trainer/base/environment.py"
    )
    assert reads_the_environment(sources()[path]) == may, f"{path} {told}"


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.environ['A']",
        "import os\ndef f(environment=os.environ): ...",
        "import os\nos.getenv('A')",
        "from os import environ",
        "from os import getenv as read",
        "import os as system\nsystem.environ",
        "import os\nos.path.expandvars('$A')",
    ],
)
def test_a_file_that_reads_the_environment_is_found(source):
    assert reads_the_environment(ast.parse(source))


def test_no_cycles():
    modules = {
        path.removesuffix(".py").replace("/", ".").removesuffix(".__init__"): tree
        for path, tree in sources().items()
    }
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


def test_no_two_classes_share_a_name():
    """One word for one thing: who reads `World` should not have to ask which."""
    places: dict[str, list[str]] = {}
    for path, tree in sources().items():
        for node in nodes(tree):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(path)
    lines = [f"  {name}: {', '.join(paths)}" for name, paths in sorted(places.items()) if len(paths) > 1]
    assert not lines, "rename one of each to say what it is:\n" + "\n".join(lines)


def test_no_infra_file_is_named_after_a_standard_module():
    names = {Path(path).stem for path in sources() if path.startswith("infra/")} - {"__init__", "__main__"}
    assert not names & set(sys.stdlib_module_names), "infra/ comes first on Pulumi's import path"
