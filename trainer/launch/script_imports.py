"""Find the packages that a script's files import, at the versions of the desk's environment, without running
them.

Reads the static imports of the files that the command names and of those that they import. Leaves out the
standard library, the script's own modules, imports for type checkers, and packages of the machine's image. An
import under an `if`, or whose ImportError is caught, may be missing here. Standard library only.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path, PurePosixPath

from trainer.base.errors import UsageError
from trainer.launch.requirements import IMAGES_OWN, normalized

_CAUGHT = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


@dataclass(frozen=True, kw_only=True)
class Import:
    """One import: the dotted names that it may mean, the longest first, and the file that has it."""

    names: tuple[str, ...]
    file: str
    optional: bool
    relative: bool = False

    @property
    def top(self) -> str:
        return self.names[0].partition(".")[0]


def packages_of(
    files: Mapping[str, bytes], words: Sequence[str], *, brought: Collection[str] = ()
) -> list[str]:
    """Return `name==version` of each package that the files import or the command names, by name.

    `words` are the command's. `brought`: names of packages that the machine has, which are left out. A module
    that this environment lacks may come from a wheel among the files. Raises UsageError for a module that is
    found nowhere, and for a package that was installed here from a folder or a repository.
    """
    modules, wheels = metadata.packages_distributions(), _modules_of_wheels(files)
    brought = {normalized(name) for name in brought}
    found: dict[str, str] = {}
    for item in [*imports_of(files, words), *_programs(words, modules)]:
        if item.top in wheels:
            found[normalized(wheels[item.top])] = wheels[item.top]
        elif item.top in modules:
            for name in _owners(item, sorted(set(modules[item.top]))):
                if normalized(name) not in brought and not IMAGES_OWN.fullmatch(normalized(name)):
                    found[normalized(name)] = f"{name}=={_version(name, item)}"
        elif (
            not item.optional
            and not IMAGES_OWN.fullmatch(normalized(item.top))
            and not (brought and _is_installed(item.top))
        ):
            why = "neither the script's files nor this environment has it"
            do = "Install it here, add it to script.files, or name all packages in script.requirements."
            raise UsageError(f"{item.file} imports {item.top}", why=why, do=do)
    return [found[name] for name in sorted(found)]


def versions_here() -> dict[str, str]:
    """Return the version of each package of this environment that an index can have, by normalized name."""
    here = {normalized(one.name): one for one in metadata.distributions() if one.name and not _is_local(one)}
    return {name: _public(one.version) for name, one in sorted(here.items())}


def imports_of(files: Mapping[str, bytes], words: Sequence[str] = ()) -> list[Import]:
    """Return the imports that are neither of the standard library nor of the files themselves.

    Starts from the Python files that the command's words name, as a file or as a module (from all if they
    name none), and follows imports among the files.
    """
    own: dict[str, list[str]] = {}  # files by module name and by folder
    for place in (PurePosixPath(path) for path in files if path.endswith(".py")):
        for name in (place.stem, *place.parts[:-1]):
            own.setdefault(name, []).append(str(place))
    module = next((word for before, word in pairwise(words) if before == "-m"), "").partition(".")[0]
    named = [word for word in words if word in files and word.endswith(".py")] + own.get(module, [])
    left, seen, imports = (
        named or [path for path in files if path.endswith(".py")],
        set[str](),
        list[Import](),
    )
    while left:
        path = left.pop(0)
        if path in seen:
            continue
        seen.add(path)
        with suppress(SyntaxError, ValueError, RecursionError):  # the node says what is wrong with it
            for item in _walk(ast.parse(files[path]), path, optional=False):
                imports.append(item)
                left.extend(own.get(item.top, ()))
    known = own.keys() | sys.stdlib_module_names
    return [item for item in imports if item.top not in known and not item.relative]


def _walk(node: ast.AST, file: str, *, optional: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(names=(alias.name,), file=file, optional=optional)
    elif isinstance(node, ast.ImportFrom) and (node.level or not node.module):
        for alias in node.names:  # a module beside it, or a name of one
            yield Import(
                names=((node.module or alias.name).partition(".")[0],),
                file=file,
                optional=True,
                relative=True,
            )
    elif isinstance(node, ast.ImportFrom) and node.module:
        deeper = tuple(f"{node.module}.{alias.name}" for alias in node.names if alias.name != "*")
        yield Import(names=(*deeper, node.module), file=file, optional=optional)
    elif isinstance(node, ast.Try):
        caught = optional or any(_catches(handler.type) for handler in node.handlers)
        for part in ast.iter_child_nodes(node):
            yield from _walk(part, file, optional=caught)
    elif isinstance(node, ast.If):
        test = ast.unparse(node.test)
        for part in [*([] if "TYPE_CHECKING" in test else node.body), *node.orelse]:
            yield from _walk(part, file, optional=optional or "__name__" not in test)
    else:
        for part in ast.iter_child_nodes(node):
            yield from _walk(part, file, optional=optional)


def _is_installed(module: str) -> bool:
    """Return whether this environment has a module that no package's files name."""
    spec = find_spec(module)
    place = Path(spec.origin or "") if spec else Path()
    return any(place.is_relative_to(prefix) for prefix in (sys.prefix, sys.base_prefix))


def _catches(kind: ast.expr | None) -> bool:
    if kind is None:
        return True
    names = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(isinstance(name, ast.Name) and name.id in _CAUGHT for name in names)


def _programs(words: Sequence[str], modules: Collection[str]) -> Iterator[Import]:
    """Yield the installed package whose program or module a command runs: `accelerate launch`, `python -m
    lightning`.
    """
    if not words:
        return
    module = words[2] if len(words) > 2 and words[1] == "-m" else ""
    for entry in metadata.entry_points(group="console_scripts", name=words[0]):
        module = entry.value.partition(":")[0]
    if module and module.partition(".")[0] in modules:
        yield Import(names=(module,), file="script.command", optional=True)


def _owners(item: Import, names: Sequence[str]) -> Sequence[str]:
    """Return the packages that have the imported module of a shared namespace, such as google; all if none is
    seen to.
    """
    if len(names) < 2:
        return names
    for dotted in item.names:
        place = dotted.replace(".", "/")
        having = [
            name for name in names if any(_has(str(file), place) for file in metadata.files(name) or ())
        ]
        if having:
            return having
    return names


def _has(file: str, place: str) -> bool:
    return file.startswith((f"{place}/", f"{place}.py"))


def _version(name: str, item: Import) -> str:
    package = metadata.distribution(name)
    if _is_local(package):
        why = "it was installed here from a folder, a file or a repository, which the machine does not have"
        do = "Add its wheel, or its files, to script.files."
        raise UsageError(f"{item.file} imports {item.top} of {name}", why=why, do=do)
    return _public(package.version)


def _is_local(package: metadata.Distribution) -> bool:
    """Return whether a package was installed from elsewhere than an index (PEP 610)."""
    text = package.read_text("direct_url.json")
    if not text:
        return False
    with suppress(ValueError):
        about = json.loads(text)
        return not (
            isinstance(about, dict)
            and "archive_info" in about
            and str(about.get("url", "")).startswith("https://")
        )
    return True


def _public(version: str) -> str:
    """Return a version without its local part: 2.13.0+cpu is on no index."""
    return version.partition("+")[0]


def _modules_of_wheels(files: Mapping[str, bytes]) -> dict[str, str]:
    """Return the package of each top-level module of the wheels among the files, as `name==version`."""
    modules: dict[str, str] = {}
    for path, content in files.items():
        match = re.fullmatch(r"([A-Za-z0-9._]+)-([A-Za-z0-9._!+]+)-.+\.whl", PurePosixPath(path).name)
        if match is None:
            continue
        try:
            names = zipfile.ZipFile(io.BytesIO(content)).namelist()
        except zipfile.BadZipFile as error:
            raise UsageError(f"{path} is not a wheel", why=str(error), do="Download it again.") from error
        for name in names:
            top = name.partition("/")[0]
            if not top.endswith((".dist-info", ".data")):
                modules[top.partition(".")[0]] = f"{match[1]}=={match[2]}"
    return modules
