"""Files that a script's launch uploads: the script's own, in the bundle, and its data folder, by hash.

The script's files are those that the job names, else those that its command names and the modules beside them
that they import. `uploads` sends the data.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainer.base.errors import DataError, UsageError
from trainer.base.files import open_plain, read_plain
from trainer.base.symbols import path_flaw
from trainer.job.job import Job
from trainer.job.script import MOST_DATA_FILES, MOST_FILE_BYTES, MOST_FILES, ScriptSettings
from trainer.job.script_values import variables_of
from trainer.launch.uploads import DeskFile, refuse_large

_LEFT_OUT = ("__pycache__",)  # folders, besides names that begin with a dot
_PARALLEL = 8
_CAUGHT = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


@dataclass(frozen=True, kw_only=True)
class Import:
    """One import: its top-level module, and the file that has it.

    It is optional if it is relative, under an `if`, or if its ImportError is caught.
    """

    top: str
    file: str
    optional: bool


def script_files(script: ScriptSettings) -> dict[str, bytes]:
    """Return the content of a script's files by their relative paths. Raises UsageError for what can't be
    sent.
    """
    root = Path(script.root or ".")
    if script.requirements and (root / script.requirements).is_dir():
        raise UsageError(
            f"{root / script.requirements} is a folder",
            why="script.requirements names it",
            do="Name the file in it.",
        )
    named = script.files or tuple(_named_by_command(script, root))
    paths = [*named, *([script.requirements] if script.requirements else [])]
    files: dict[str, bytes] = {}
    size = 0
    for place in (file for path in paths for file in _files_under(root, path)):
        content = read_file(place)
        files[place.relative_to(root).as_posix()] = content
        size += len(content)
        if len(files) > MOST_FILES or size > MOST_FILE_BYTES:
            why = f"{MOST_FILES:,} files and {MOST_FILE_BYTES / 2**20:.0f} MiB are the most"
            raise UsageError(
                "the script's files are too large",
                why=why,
                do="Name fewer in script.files; data goes into --data.",
            )
        if not script.files and place.suffix == ".py":
            paths.extend(module for module in _imported(content, place.parent, root) if module not in paths)
    if not files:
        do = "Name a file in script.command, such as python train.py, or in script.files."
        raise UsageError(
            "the script has no file", why=f"no word of {script.command!r} is a file in {root}", do=do
        )
    return dict(sorted(files.items()))


def script_sha256(job: Job, files: Mapping[str, str], data: Iterable[DeskFile]) -> str:
    """Return the hash of what a job's script's duration depends on: command, variables, files and data, each
    by path and sha256.

    Of a script over values, the variables' names and the GPUs of a value count: another value changes no
    value's duration.
    """
    script, read = job.script, sorted((file.path, file.sha256) for file in data)
    over = [list(variables_of(dict.fromkeys(job.columns, ""))), script.gpus] if job.columns else []
    known = (
        script.words,
        sorted(script.variables.items()),
        script.requirements,
        sorted(files.items()),
        read,
        *over,
    )
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()


def names_checkpoints(script: ScriptSettings, files: Mapping[str, bytes]) -> bool:
    """Return whether a script's command or one of its files names the folder of its checkpoints."""
    name = "MAYFLY_CHECKPOINTS"
    return name in script.command or any(name.encode() in content for content in files.values())


def hashes_of(files: Mapping[str, bytes]) -> dict[str, str]:
    """Return the sha256 of each file, by path."""
    return {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}


def data_files(folder: str) -> list[DeskFile]:
    """Return every file under a folder with its hash, by path; names that begin with a dot are left out.

    Raises DataError for a folder that is missing or empty, for a link, a name that no node takes, and too
    many files.
    """
    root = Path(folder)
    if not root.is_dir():
        do = "Name a folder, or an s3:// prefix, with --data."
        raise DataError(
            f"{folder} is not a folder", why="it is a file" if root.exists() else "it does not exist", do=do
        )
    places = sorted(_walk(root))
    if not places:
        raise DataError(f"{folder} holds no file", do="Name another folder with --data, or leave it out.")
    if len(places) > MOST_DATA_FILES:
        why = f"a run takes {MOST_DATA_FILES:,}"
        raise DataError(f"{folder} has {len(places):,} files", why=why, do="Pack them, as tar or parquet.")
    with ThreadPoolExecutor(_PARALLEL) as pool:
        return list(pool.map(lambda place: _hashed(place, root), places))


def _hashed(place: Path, root: Path) -> DeskFile:
    size = place.stat().st_size
    refuse_large(place, size)
    try:
        with open_plain(place) as body:
            sha256 = hashlib.file_digest(body, "sha256").hexdigest()
    except OSError as error:
        raise DataError(
            f"cannot read {place}", why=str(error.strerror), do="Check the file and its permissions."
        ) from error
    return DeskFile(place=place, path=place.relative_to(root).as_posix(), sha256=sha256, bytes=size)


def _named_by_command(script: ScriptSettings, root: Path) -> Iterator[str]:
    """Yield the words of a command that are files under the root. Raises UsageError for a script that is not
    there.
    """
    for number, word in enumerate(script.words):
        if not word.startswith(("-", "/", "$")) and (root / word).is_file():
            yield word
        elif number and word.endswith(".py") and not word.startswith("$"):
            why = f"script.command names it, and {root} does not have it"
            raise UsageError(
                f"{word} does not exist", why=why, do="Check the path; it is relative to the job file."
            )


def _files_under(root: Path, path: str) -> Iterator[Path]:
    """Yield the file of that relative path, or all of that folder. Raises UsageError for what is not below
    the root.
    """
    place = root / path
    if Path(path).is_absolute() or ".." in Path(path).parts:
        do = "Put it into the job file's folder, and name it relative to that."
        raise UsageError(
            f"{path} can't be sent", why="a script's files lie in the folder of its job file", do=do
        )
    if place.is_symlink():
        raise UsageError(f"{place} is a symbolic link", do="Name the file itself.")
    if place.is_dir():
        yield from _walk(place, root)
    else:
        yield place


def _walk(folder: Path, root: Path | None = None) -> Iterator[Path]:
    """Yield the files below a folder, by name. Raises DataError for a link, and for a name that no node
    takes.
    """
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _LEFT_OUT)
        for name in (*folders, *sorted(names)):
            place = Path(here) / name
            if name.startswith("."):
                continue
            if place.is_symlink():
                raise DataError(
                    f"{place} is a symbolic link", why="it may lead anywhere", do="Put the file itself there."
                )
            if why := path_flaw(place.relative_to(root or folder).as_posix()):
                raise DataError(f"{place} can't be sent", why=why, do="Rename it.")
        yield from (Path(here) / name for name in sorted(names) if not name.startswith("."))


def read_file(place: Path) -> bytes:
    """Return a file's content. Raises UsageError for a link, a large file and one that can't be read."""
    try:
        if not stat.S_ISREG(place.lstat().st_mode):
            raise UsageError(f"{place} is not a file", do="Name files and folders in script.files.")
        if place.stat().st_size > MOST_FILE_BYTES:
            size = place.stat().st_size / 2**20
            raise UsageError(
                f"{place} has {size:.0f} MiB",
                why=f"{MOST_FILE_BYTES / 2**20:.0f} is the most",
                do="Put it into --data.",
            )
        return read_plain(place, most_bytes=MOST_FILE_BYTES)
    except FileNotFoundError as error:
        raise UsageError(
            f"{place} does not exist", do="Check the path; it is relative to the job file."
        ) from error
    except OSError as error:
        raise UsageError(
            f"cannot read {place}", why=str(error.strerror), do="Check its permissions."
        ) from error


def _imported(content: bytes, here: Path, root: Path) -> Iterator[str]:
    """Yield the paths, from the root, of the modules and packages beside a Python file that it imports."""
    for name in sorted({item.top for item in imports_in(content)}):
        for place in (here / f"{name}.py", here / name, root / f"{name}.py", root / name):
            if place.is_file() or (place / "__init__.py").is_file():
                yield place.relative_to(root).as_posix()
                break


def imports_in(content: bytes, file: str = "") -> list[Import]:
    """Return the static imports of a Python file; none if it can't be parsed: the node says what is wrong."""
    with suppress(SyntaxError, ValueError, RecursionError):
        return list(_imports(ast.parse(content), file, optional=False))
    return []


def _imports(node: ast.AST, file: str, *, optional: bool) -> Iterator[Import]:
    names: list[str] = []
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):  # a relative one: a module beside it, or a name of one
        names = [node.module] if node.module else [alias.name for alias in node.names]
        optional = optional or node.level > 0
    elif isinstance(node, ast.Try):
        optional = optional or any(_catches(handler.type) for handler in node.handlers)
    elif isinstance(node, ast.If):
        optional = optional or "__name__" not in ast.unparse(node.test)
    for name in names:
        yield Import(top=name.partition(".")[0], file=file, optional=optional)
    for part in (part for part in ast.iter_child_nodes(node) if not isinstance(part, ast.expr)):
        yield from _imports(part, file, optional=optional)


def _catches(kind: ast.expr | None) -> bool:
    if kind is None:
        return True
    names = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(isinstance(name, ast.Name) and name.id in _CAUGHT for name in names)
