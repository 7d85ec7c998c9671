"""Packages that a script needs: those that its user lists, and the imports that none of them provides.

The list is script.requirements, else the first found of: a `# /// script` block (PEP 723) in a file that the
command names, requirements.txt, pyproject.toml. It is checked here and resolved by uv
(trainer/cli/sources/script_packages.py). Imports are found without running the files. Standard library only.
"""

from __future__ import annotations

import json
import re
import sys
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path, PurePosixPath

from trainer.base.errors import UsageError
from trainer.base.settings import read_toml
from trainer.job.script import ScriptSettings
from trainer.launch.script_files import Import, imports_in, read_file

MOST_REQUIREMENTS = 500
# Packages that a script can't replace, since they are built for the image's driver. nvidia-ml-py is not part
# of CUDA.
IMAGES_OWN = r"torch|torchvision|torchaudio|triton|nvidia-(?!ml-py(?![a-z0-9-]))[a-z0-9-]+"
_REQUIREMENTS, _PROJECT = "requirements.txt", "pyproject.toml"
_BLOCK = re.compile(r"^# /// script$\s((?:^#(?:| .*)$\s)+)^# ///$", re.MULTILINE)  # PEP 723
_NAME = r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[A-Za-z0-9,._ -]*\])?"
PIN = re.compile(_NAME + r"\s*==\s*([A-Za-z0-9.+!_-]+)\s*(;[^\\]*?)?")
_RANGE = r"(?:===?|~=|!=|<=?|>=?)\s*[A-Za-z0-9.+!_*-]+"
_REQUIREMENT = re.compile(_NAME + rf"\s*(\(?{_RANGE}(?:\s*,\s*{_RANGE})*\)?)?\s*(;[^\\]*)?")
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
_WHEEL = re.compile(r"([A-Za-z0-9._]+)-([A-Za-z0-9._!+]+)-.+\.whl")


@dataclass(frozen=True, kw_only=True)
class PackageList:
    """The file that lists a script's packages, and its lines; without content there is no such file."""

    name: str = _REQUIREMENTS
    content: bytes = b""
    lines: tuple[str, ...] = ()

    @property
    def is_toml(self) -> bool:
        """Return whether it is a pyproject.toml or a script with a PEP 723 block."""
        return self.name.endswith((".py", _PROJECT))

    @property
    def hashed(self) -> bool:
        """Return whether its lines have hashes; then all have."""
        return not self.is_toml and any("--hash=" in line for line in self.lines)

    @property
    def packages(self) -> set[str]:
        """Return the names of the packages that it lists, without the image's own."""
        return {name_of(line) for line in self.lines if not is_images_own(line)}


def normalized(name: str) -> str:
    """Return a package's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def name_of(requirement: str) -> str:
    """Return the normalized name of a requirement's package."""
    match = re.match(_NAME, requirement)
    return normalized(match[1]) if match else ""


def is_images_own(requirement: str) -> bool:
    """Return whether a requirement names a package of the image."""
    return re.fullmatch(IMAGES_OWN, name_of(requirement)) is not None


def listed_packages(script: ScriptSettings, files: Mapping[str, bytes]) -> PackageList:
    """Return the packages in the file that a script names, else in the first that is found.

    Raises UsageError for a list that can't be read.
    """
    if script.requirements:
        name = PurePosixPath(script.requirements).as_posix()
        return read_list(name, files[name])
    for name in (PurePosixPath(word).as_posix() for word in script.words):
        if name.endswith(".py") and name in files and _BLOCK.search(_text(name, files[name])):
            return read_list(name, files[name])
    for name in (_REQUIREMENTS, _PROJECT):
        place = (Path(script.root or ".") / name).resolve()
        if place.is_file() and (name != _PROJECT or b"[project]" in read_file(place)):
            return read_list(name, read_file(place))
    return PackageList()


def read_list(name: str, content: bytes) -> PackageList:
    """Read a requirements.txt, a pyproject.toml or the PEP 723 block of a script.

    Raises UsageError for a line that is not a package or, if any has a hash, is not `package==version
    --hash=...`.
    """
    text = _text(name, content)
    if name.endswith((".py", _PROJECT)):
        lines = _dependencies(name, text)
    else:
        joined = text.replace("\\\n", " ").splitlines()
        lines = [line for one in joined if (line := one.partition(" #")[0].strip()) and line[0] != "#"]
    if len(lines) > MOST_REQUIREMENTS:
        why = f"{MOST_REQUIREMENTS} are the most"
        raise UsageError(f"{name} names {len(lines):,} packages", why=why, do="Name fewer.")
    listed = PackageList(name=name, content=content, lines=tuple(lines))
    for line in lines:
        if listed.hashed:
            _check_hashed(name, line)
        elif _REQUIREMENT.fullmatch(line) is None:
            why = "a line is a package with versions, such as lightning>=2.5, and nothing else"
            do = "For a package that is on no index, add its wheel to script.files."
            raise UsageError(f"{name} has {line[:80]!r}", why=why, do=do)
    return listed


def _text(name: str, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8", do="Save it as UTF-8.") from error


def _dependencies(name: str, text: str) -> list[str]:
    """Return the dependencies of a pyproject.toml or of a script's PEP 723 block."""
    if name.endswith(".py"):
        block = _BLOCK.search(text)
        text = re.sub("^# ?", "", block[1] if block else "", flags=re.MULTILINE)
    try:
        table = read_toml(text)
        found = (table if name.endswith(".py") else table["project"]).get("dependencies", [])
        return [str.strip(line) for line in found]
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        do = 'Correct it; it needs dependencies = ["lightning>=2.5"], in [project] of pyproject.toml.'
        raise UsageError(f"{name} lists no packages", why=str(error), do=do) from error


def _check_hashed(name: str, line: str) -> None:
    requirement, *hashes = re.split(r"\s+(?=--)", line)
    match = PIN.fullmatch(requirement)
    do = "Make it with pip-compile --generate-hashes, or leave out all hashes: then they are made here."
    if match is None:
        raise UsageError(f"{name} has {line[:80]!r}", why="a line with hashes is package==version", do=do)
    if not hashes or not all(_HASH.fullmatch(one) for one in hashes):
        why = "others have one, and without its sha256 anything may be installed"
        raise UsageError(f"{name} has {match[1]} without a hash", why=why, do=do)
    if is_images_own(line):
        why, do = "the image brings it, built for its driver", "Remove it: pip-compile --unsafe-package does."
        raise UsageError(f"{name} names {match[1]}", why=why, do=do)


def refuse_missing(
    script: ScriptSettings,
    files: Mapping[str, bytes],
    listed: PackageList,
    *,
    resolved: Iterable[str],
    brought: Collection[str],
) -> None:
    """Raise UsageError for imports that neither the image nor a listed package provides, with what to add.

    `resolved` are the requirements that will be installed, `brought` the packages of this environment if it
    is the image.
    """
    installed = {name_of(one) for one in resolved}
    missing = missing_imports(
        files, script.words, listed=listed.packages, installed=installed, brought=brought
    )
    if missing:
        modules: dict[str, list[str]] = {}
        for item in missing:
            modules.setdefault(item.file, []).append(item.top)
        what = " and ".join(f"{file} imports {', '.join(tops)}" for file, tops in modules.items())
        for item in (item for item, line in missing.items() if not line):
            _refuse_plain_folder(what, Path(script.root or "."), item)
        lines = [line or item.top for item, line in missing.items()]
        place = str(Path(script.root or ".") / listed.name)
        if listed.is_toml:
            place, lines = f"the dependencies in {place}", [f'"{line}"' for line in lines]
        why = f"{listed.name} lists no such package" if listed.content else "no file lists its packages"
        other = "" if all(missing.values()) else " (or its package, if that has another name)"
        raise UsageError(what, why=why, do=f"Add to {place}: {', '.join(lines)}{other}.")


def _refuse_plain_folder(what: str, root: Path, item: Import) -> None:
    """Raise UsageError if an import is that of a folder of the script's, which was not sent as no package."""
    for place in (root / PurePosixPath(item.file).parent / item.top, root / item.top):
        if place.is_dir() and next(place.glob("*.py"), None):
            why = f"{place} has no __init__.py, so that it is not sent"
            raise UsageError(what, why=why, do="Put an empty one there, or list all files in script.files.")


def missing_imports(
    files: Mapping[str, bytes],
    words: Sequence[str],
    *,
    listed: Collection[str],
    installed: Collection[str],
    brought: Collection[str],
) -> dict[Import, str]:
    """Return the first import of each module that none of these packages provides, with the requirement that
    would; '' if this desk does not know one.

    The modules of a package are known if it is installed here, or from its name. A listed package that is
    neither installed here nor imported by its name may provide any module: then nothing counts as missing.
    Raises UsageError for a package that was installed here from a folder or a repository.
    """
    has = {*listed, *installed, *brought}
    found = imports_of(files, words)
    imports = [item for item in found if not _provides(has, item.top)]
    if not imports:
        return {}  # without a look at every package of this environment, which takes a second
    wheels = [match for path in files if (match := _WHEEL.fullmatch(PurePosixPath(path).name))]
    pins = {normalized(wheel[1]): f"{wheel[1]}=={wheel[2]}" for wheel in wheels}
    modules = metadata.packages_distributions()
    known = {normalized(name) for names in modules.values() for name in names}
    if {*listed} - known - {normalized(item.top) for item in found}:
        return {}
    missing: dict[Import, str] = {}
    for item in imports:
        owners = {normalized(name): name for name in modules.get(item.top, ())}
        if any(_provides(has, name) for name in owners):
            continue
        if brought and not owners and _is_installed(item.top):
            continue
        if item.top not in {before.top for before in missing}:
            pin = _pin(next(iter(owners.values())), item) if len(owners) == 1 else ""
            missing[item] = pins.get(normalized(item.top), pin)
    return missing


def _provides(packages: Collection[str], name: str) -> bool:
    """Return whether a package of that name is among these, or is the image's own."""
    return normalized(name) in packages or is_images_own(normalized(name))


def versions_here() -> dict[str, str]:
    """Return the version of each package of this environment that an index can have, by normalized name."""
    about = (
        one.metadata for one in metadata.distributions() if not _is_local(one)
    )  # each access parses it anew
    here = {normalized(one["Name"]): _public(one["Version"]) for one in about if one["Name"]}
    return dict(sorted(here.items()))


def imports_of(files: Mapping[str, bytes], words: Sequence[str]) -> list[Import]:
    """Return the imports that a run needs, without those of the standard library and of the files themselves.

    Starts from the Python files that the command's words name, as a file or as a module (from all if they
    name none), follows imports among the files, and adds the module of the program that the command runs.
    """
    own: dict[str, list[str]] = {}  # files by module name and by folder
    for place in (PurePosixPath(path) for path in files if path.endswith(".py")):
        for name in (place.stem, *place.parts[:-1]):
            own.setdefault(name, []).append(str(place))
    modules = {*own}
    module = next((word for before, word in pairwise(words) if before == "-m"), "").partition(".")[0]
    named = [word for word in words if word in files and word.endswith(".py")] + own.get(module, [])
    left = deque(named or [path for path in files if path.endswith(".py")])
    seen, imports = set[str](), list(_programs(words))
    while left:
        path = left.popleft()
        if path not in seen:
            seen.add(path)
            found = imports_in(files[path], path)
            imports += found
            # Each name once: a package of 400 files is imported by each of them, several times.
            left += [file for name in dict.fromkeys(item.top for item in found) for file in own.pop(name, ())]
    known = modules | sys.stdlib_module_names
    return [item for item in imports if item.top not in known and not item.optional]


def _programs(words: Sequence[str]) -> Iterator[Import]:
    """Yield the module that a command runs, as a program of this environment or by `-m`: `accelerate launch`,
    `python -m lightning`.
    """
    module = words[2] if len(words) > 2 and words[1] == "-m" else ""
    for entry in metadata.entry_points(group="console_scripts", name=words[0]) if words else ():
        module = entry.value
    if module:
        yield Import(top=re.split("[.:]", module)[0], file="script.command", optional=False)


def _pin(name: str, item: Import) -> str:
    package = metadata.distribution(name)
    if _is_local(package):
        why = "it was installed here from a folder, a file or a repository, which the machine does not have"
        do = "Add its wheel, or its files, to script.files."
        raise UsageError(f"{item.file} imports {item.top} of {name}", why=why, do=do)
    return f"{name}=={_public(package.version)}"


def _is_installed(module: str) -> bool:
    """Return whether this environment has a module that no package's files name."""
    spec = find_spec(module)
    place = Path(spec.origin or "") if spec else Path()
    return any(place.is_relative_to(prefix) for prefix in (sys.prefix, sys.base_prefix))


def _is_local(package: metadata.Distribution) -> bool:
    """Return whether a package was installed from elsewhere than an index (PEP 610)."""
    text = package.read_text("direct_url.json")
    if not text:
        return False
    with suppress(ValueError, TypeError, KeyError):
        about = json.loads(text)
        return "archive_info" not in about or not str(about["url"]).startswith("https://")
    return True


def _public(version: str) -> str:
    """Return a version without its local part: 2.13.0+cpu is on no index."""
    return version.partition("+")[0]
