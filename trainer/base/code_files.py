"""Files of this package that an entry point runs: the modules that it imports, theirs, and the data that they
read.

`launch` packs a node's files into the bundle. `train` hashes its own: a checkpoint or a finished model counts
until one of them changes. Imports are read from the source, so both sets are the same at a desk and in an
unpacked bundle. Only imports that run count: one inside a function does, one under `if TYPE_CHECKING` does
not. Standard library only.
"""

from __future__ import annotations

import ast
import hashlib
import os
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path

# Modules that a training starts by `-m` if several devices train one model.
RANKS = ("trainer.train.ranks.torchrun", "trainer.train.ranks.rank")
MEMBER = ("trainer.cluster.member",)  # if several machines share the pieces
# Entry points of a node: the agent, and by `-m` refresh, fetch, training, scoring, smoke test, trial, data
# check and the member of a shared queue. Workers import from these.
NODE = (
    *("trainer.node.agent", "trainer.node.refresh", "trainer.bars.check", "trainer.data.fetch.update"),
    *("trainer.train.__main__", "trainer.train.smoke", "trainer.train.own.probe", "trainer.train.score"),
    *MEMBER,
    *RANKS,
)
# Entry points that determine a model, besides the homes of its model and target; other homes void no
# checkpoint.
TRAINING = ("trainer.train.__main__", "trainer.train.own.probe", *RANKS, *MEMBER)
HOMES = ("models", "targets")  # packages whose homes are loaded by the names that a job gives
_TABLES = tuple(f"trainer/{name}/__init__.py" for name in HOMES)  # they import the settings of every home
# Files that a reached module reads. A test finds one that is missing here.
DATA: Mapping[str, tuple[str, ...]] = {
    "trainer/base/html.py": ("trainer/base/page.css",),
    "trainer/runs/report/page.py": tuple(
        f"trainer/runs/report/{name}"
        for name in (
            *("uplot.js", "uplot.css", "uplot.LICENSE"),
            *("charts.js", "elements.js", "page.js", "page.css"),
        )
    ),
    "trainer/machines/chips.py": ("trainer/machines/gpu_profiles.toml",),
    "trainer/machines/compatibility.py": ("trainer/machines/compatibility.toml",),
    "trainer/machines/cpu_types.py": ("trainer/machines/cpu_types.csv",),
    "trainer/machines/instances.py": ("trainer/machines/instances.csv", "trainer/machines/boot.csv"),
    # bootstrap.sh runs both scripts, one with a lock, before it starts the agent; volumes.sh the EFS client
    "trainer/node/agent.py": (
        *("trainer/node/requirements.lock", "trainer/node/prepare.lock"),
        *("trainer/node/volumes.sh", "trainer/node/efs_client.py", "ami/install.sh"),
    ),
    "trainer/node/script_packages.py": ("trainer/node/cluster.lock", "trainer/node/search.lock"),
}


def code_files(
    entry_points: Iterable[str], *, homes: Collection[str] | None = None, package: Path | None = None
) -> dict[str, bytes]:
    """Return the files that these modules reach, by name ("trainer/base/errors.py"), in the order of names.

    With `homes`, such as "trainer.models.lstm", the tables of homes lead to these alone. `package` is the
    folder of another copy of this package. Raises ValueError for a missing entry point.
    """
    folder = package or Path(__file__).parents[1]
    modules = _modules_of(folder)
    taken: dict[str, bytes] = {}
    to_read: list[str] = []
    for entry_point in entry_points:
        files = _files_of(entry_point, modules)
        if not files or Path(files[-1]).stem != entry_point.rpartition(".")[2]:
            raise ValueError(f"{entry_point} is not a module of {folder}")
        to_read += files
    while to_read:
        file = to_read.pop()
        name = f"trainer/{file}"
        if name in taken:
            continue
        taken[name] = (folder / file).read_bytes()
        if file == "__init__.py":
            continue  # `trainer.predict` is for desks
        for dotted in _imports(taken[name]):
            if homes is not None and name in _TABLES and _home_of(dotted, modules) not in (None, *homes):
                continue
            to_read += _files_of(dotted, modules)
        for data in DATA.get(name, ()):
            taken[data] = path_of(data, folder).read_bytes()
    return dict(sorted(taken.items()))


def _modules_of(folder: Path) -> frozenset[str]:
    """Return the Python files of a package, such as "control/drive.py": one walk, since a look for each
    import is slower.
    """
    found = []
    for place, folders, files in os.walk(folder, followlinks=True):  # who packs them refuses links
        folders[:] = [one for one in folders if one != "__pycache__"]
        below = "" if place == str(folder) else f"{Path(place).relative_to(folder).as_posix()}/"
        found += [f"{below}{file}" for file in files if file.endswith(".py")]
    return frozenset(found)


def path_of(name: str, folder: Path) -> Path:
    """Return where a file of the set lies: in the package `folder`, or beside it, which in an installed wheel
    is `_infra`.
    """
    if name.startswith("trainer/"):
        return folder / name.removeprefix("trainer/")
    beside = folder.parent / name
    return beside if beside.is_file() else folder / "_infra" / name


def sha256_of(files: Mapping[str, bytes]) -> str:
    """Return the hash of names and contents, in the order of names."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(name.encode() + b"\0" + hashlib.sha256(files[name]).digest())
    return digest.hexdigest()


def home_modules(homes: Iterable[str] | None = None, *, package: Path | None = None) -> tuple[str, ...]:
    """Return the modules of these homes, such as "trainer.models.lstm", or of all homes. One from outside has
    none here.
    """
    folder = package or Path(__file__).parents[1]
    if homes is None:
        places = [path.parent for name in HOMES for path in (folder / name).glob("*/__init__.py")]
    else:
        places = [folder.joinpath(*home.split(".")[1:]) for home in homes if home.startswith("trainer.")]
    files = sorted(path for place in places for path in place.glob("*.py") if path.stem != "__init__")
    return tuple(".".join(("trainer", *path.relative_to(folder).with_suffix("").parts)) for path in files)


def training_files(homes: Collection[str], *, package: Path | None = None) -> dict[str, bytes]:
    """Return the files that training with these homes reaches, and no other home's, not even its settings."""
    return code_files((*TRAINING, *home_modules(homes, package=package)), homes=homes, package=package)


@cache
def training_sha256(homes: tuple[str, ...]) -> str:
    """Return the hash of the files that training with these homes reaches; a tenth of a second, once a
    process.
    """
    return sha256_of(training_files(homes))


def _home_of(dotted: str, modules: Collection[str]) -> str | None:
    """Return the home that an import in a table of homes leads to."""
    parts = dotted.split(".")[:3]
    place = "/".join(parts[1:])
    is_home = len(parts) == 3 and (f"{place}/__init__.py" in modules or f"{place}.py" in modules)
    return ".".join(parts) if is_home else None


def _files_of(dotted: str, modules: Collection[str]) -> list[str]:
    """Return what an import of a dotted name runs: the `__init__` of each package on the way, then the
    module.
    """
    pieces = dotted.split(".")
    if pieces[0] != "trainer":
        return []
    place, files = "", ["__init__.py"]
    for piece in pieces[1:]:
        place += piece
        if f"{place}/__init__.py" in modules:
            files.append(f"{place}/__init__.py")
            place += "/"
            continue
        if f"{place}.py" in modules:
            files.append(f"{place}.py")
        break  # what follows are names in the module
    return files


@cache  # a launch asks for three sets, which have most files in common
def _imports(source: bytes) -> tuple[str, ...]:
    """Return the dotted names that a module may import when it runs; `from a import b` is a.b."""
    names: list[str] = []
    statements: list[ast.AST] = [*ast.parse(source).body]
    while statements:
        statement = statements.pop()
        if isinstance(statement, ast.Import):
            names += (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            names += (f"{statement.module}.{alias.name}" for alias in statement.names)
        elif isinstance(statement, ast.If) and _is_type_checking(statement.test):
            statements += statement.orelse
        else:
            for block in ("body", "orelse", "finalbody", "handlers", "cases"):
                statements += getattr(statement, block, ())
    return tuple(names)


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )
