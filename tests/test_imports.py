"""The import rules. Rooms and rules stand here once, as data; docs/architecture.md is checked
against them.
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# The rooms of trainer/, each with what it may import of ours besides itself and `base`. A name stands for a room;
# `data.table` for that module alone.
MAY_IMPORT: dict[str, set[str]] = {
    "base": set(),
    "aws": set(),
    "data": set(),
    "models": set(),
    "targets": {"data"},
    "job": {
        *("data.table", "data.splits", "data.feature_names", "data.own_features"),
        *("models", "targets"),
    },
    "machines": {"aws.place", "job"},
    "cluster": {"job"},
    "bars": {"job", "data", "models.pretrained", "targets"},
    "runs": {"aws", "job.model_names", "targets.described", "targets.marks", "targets.trading"},
    "store": {
        *("aws", "job.model_names", "runs"),
        *("targets.described", "targets.inference", "targets.losses", "targets.marks"),
    },
    "retrains": {
        *("aws.objects", "aws.place", "job", "runs", "targets.described"),
        *("targets.gate", "targets.inference", "targets.marks"),
    },
    "launch": {
        *(
            "aws",
            "data.columns",
            "data.side_names",
            "data.table",
            "data.timeframes",
            "job",
            "machines",
            "runs",
        ),
    },
    "control": {
        *(
            "aws",
            "data.columns",
            "data.timeframes",
            "job",
            "launch",
            "machines",
            "retrains",
            "runs",
            "store",
            "targets.gate",
        ),
    },
    "train": {
        "bars",
        "cluster",
        "data",
        "job",
        "machines",
        "models",
        "store.card",
        "store.scores",
        "store.weights",
        "targets",
    },
    "node": {"aws", "cluster", "job", "runs"},
    "attach": {"aws.objects", "runs"},
    "rehearsal": {"aws", "retrains.recurrence", "runs"},
    "cli": {"*"},
    "infra": {"aws.stack_outputs", "base.code_files", "base.environment", "retrains.schedule"},
}
MOST_ROOMS, MOST_FLOORS = 20, 10
WITHOUT_BASE = {"base", "infra"}  # the others may import all of it
# Files whose place in the order differs from their room's, each with its reason.
EXCEPTIONS: dict[str, set[str]] = {
    "trainer/__init__.py": {"cli", "train"},  # trainer.predict is `mayfly predict`, trainer.load its networks
    "trainer/launch/__main__.py": {"cli"},  # python -m trainer.launch is `mayfly launch`
    "trainer/control/functions/sweep.py": {  # a broken launcher can't stop the sweeper
        *("base.strict_json", "runs.keys", "runs.lease"),
    },
}
# Standard library and boto3 only: the Lambdas are these rooms, as they stand.
CONTROL_PLANE = {"base", "aws", "job", "machines", "runs", "launch", "control", "retrains", "store"}
NEEDS_TORCH = {"trainer/store/weights.py"}
CONTROL_PLANE_LIBRARIES = {"boto3", "botocore"}
# Late, for files in parts, which a Lambda, whose runtime has none, never sends.
COMMON_RUNTIME = {"trainer/aws/checksums.py": {"awscrt"}}
CLOUD = {"boto3", "botocore", "paramiko"}
FORBIDDEN_LIBRARIES: dict[str, set[str]] = {
    "infra": {"torch", "ray", "boto3", "botocore", "paramiko"},
    "models": CLOUD,
    "targets": CLOUD,
    "train": CLOUD,
    "bars": CLOUD,
    "data": CLOUD,
    "cluster": {"torch", *CLOUD},
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
    "trainer/base/files.py": {"fcntl"},
    "trainer/train/ranks/meeting.py": {"fcntl"},
    "trainer/train/observing/meter.py": {"resource"},
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


def room_of(dotted: str) -> str | None:
    """Return the room of a dotted name of ours: 'runs' for trainer.runs.record, 'infra' for infra.network."""
    head, _, rest = dotted.partition(".")
    if head == "infra":
        return "infra"
    return rest.split(".")[0] if head == "trainer" and rest and rest != "__version__" else None


def room_of_file(path: str) -> str:
    pieces = path.removesuffix(".py").split("/")
    return "infra" if pieces[0] == "infra" else pieces[1]


def allowed_in(path: str) -> set[str]:
    """Return the names that a file may import: its exception, or its room's rule with the room itself and
    base.
    """
    room = room_of_file(path)
    if path in EXCEPTIONS:
        return EXCEPTIONS[path]
    return MAY_IMPORT[room] | {room} | (set() if room in WITHOUT_BASE else {"base"})


def below(name: str, item: str) -> bool:
    return name == f"trainer.{item}" or name.startswith(f"trainer.{item}.")


def test_rooms_are_few_and_each_has_its_rule():
    rooms = {room_of_file(path) for path in sources()} - {"__init__"}
    assert rooms == MAY_IMPORT.keys()
    assert len(rooms - {"infra"}) <= MOST_ROOMS
    loose = [path for path in sources() if path.startswith("trainer/") and path.count("/") == 1]
    assert loose == ["trainer/__init__.py"], "a module belongs in a room"


def floor(room: str, above: tuple[str, ...] = ()) -> int:
    """Return a room's floor, from 1: one above the highest room that it may import."""
    assert room not in above, f"circle: {' -> '.join([*above[above.index(room) :], room])}"
    lower = {str(room_of(f"trainer.{item}")) for item in MAY_IMPORT[room] - {"*"}}
    lower |= set() if room in WITHOUT_BASE else {"base"}
    if "*" in MAY_IMPORT[room]:
        lower = MAY_IMPORT.keys() - {room, "infra"}
    return 1 + max((floor(one, (*above, room)) for one in lower), default=0)


def test_rooms_stand_on_few_floors_without_a_circle():
    assert max(map(floor, MAY_IMPORT)) <= MOST_FLOORS


def is_allowed(path: str, name: str) -> bool:
    """Return whether a file may import a dotted name."""
    allowed = allowed_in(path)
    if room_of(name) is None or "*" in allowed or room_of(name) == room_of_file(path) == "infra":
        return True
    return any(below(name, item) for item in allowed)


def test_a_file_imports_only_what_its_room_may():
    wrong = [(path, name) for path in sources() for name in imported(sources()[path])]
    wrong = [f"  {path} imports {name}" for path, name in wrong if not is_allowed(path, name)]
    assert not wrong, "\n".join(wrong)


def test_every_arrow_that_the_table_grants_is_taken():
    taken: dict[str, set[str]] = {}
    for path, tree in sources().items():
        taken.setdefault(path if path in EXCEPTIONS else room_of_file(path), set()).update(imported(tree))
    idle = [
        f"  {place}: {item}"
        for place, may in (MAY_IMPORT | EXCEPTIONS).items()
        for item in sorted(may - {"*"})
        if not any(below(name, item) for name in taken[place])
    ]
    assert not idle, "remove from MAY_IMPORT or EXCEPTIONS:\n" + "\n".join(idle)


def test_a_file_imports_no_library_that_its_room_must_not():
    for path, tree in sources().items():
        room, libraries = room_of_file(path), {name.split(".")[0] for name in imported(tree)}
        assert not libraries & FORBIDDEN_LIBRARIES.get(room, set()), path
        # The embedded AWS of tests/aws knows the product's, and not the reverse.
        assert "tests" not in libraries, path
        if room in CONTROL_PLANE and path not in NEEDS_TORCH:
            known = CONTROL_PLANE_LIBRARIES | COMMON_RUNTIME.get(path, set()) | {"trainer"}
            assert libraries <= set(sys.stdlib_module_names) | known, path
        if not path.startswith(MAY_BE_LINUX_ONLY):
            only = LINUX_ONLY - ON_A_MAC_TOO.get(path, set())
            assert not libraries & only, f"{path}: the desk may be a Mac"


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


def test_the_environment_is_read_in_one_module():
    reads = {path for path, tree in sources().items() if reads_the_environment(tree)}
    idle, more = sorted(READS_THE_ENVIRONMENT - reads), sorted(reads - READS_THE_ENVIRONMENT)
    assert not idle, f"{idle} read no variable any more"
    assert not more, f"{more} read the environment: add a function to trainer/base/environment.py"


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
