"""Resolve a script's packages at the desk, for the machine's Python, with hashes.

uv resolves the list that the user wrote (trainer/launch/script_needs.py): unlike pip, it evaluates markers
for the machine and not for the desk (https://github.com/pypa/pip/issues/11664). The image's torch and what
belongs to it are left out. Wheels among the script's files replace the index, as on the machine.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from trainer.aws.place import Place
from trainer.base import environment
from trainer.base.errors import ConnectionFailed, UsageError
from trainer.base.extras import needs
from trainer.base.files import HeldFolder, open_plain
from trainer.cli.terminal import Console
from trainer.job.job import Job
from trainer.launch.script_needs import (
    IMAGES_OWN,
    PIN,
    PackageList,
    is_images_own,
    listed_packages,
    normalized,
    refuse_missing,
    versions_here,
)

MADE = "# Packages of a script for"  # the beginning of files that this module writes
RESOLVE_SECONDS = 180.0
# Python of /opt/pytorch by the end of an image line's name: AWS's release notes of the PyTorch DLAMIs (looked
# up 2026-11-22). The machine compares it before it installs anything.
IMAGE_PYTHONS = {"ubuntu-26.04": "3.13"}
_HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
GLIBC = "manylinux_2_34"  # of Amazon Linux 2023, the oldest of the images
_COMPILE = (
    "pip compile --no-config --only-binary :all: --generate-hashes --no-header --no-annotate"
    " --emit-index-annotation --quiet --color never"
)
_ALONE = "Try again; or give requirements with hashes, or wheels in script.files: neither asks an index."


@dataclass(frozen=True, kw_only=True)
class Target:
    """The Python that packages are for, and uv's name of its platform; '' for this machine's own."""

    python: str
    platform: str = ""

    def __str__(self) -> str:
        return f"Python {self.python}" + (
            f" on {self.platform.partition('-')[0]} Linux" if self.platform else " of this machine"
        )


@dataclass(frozen=True, kw_only=True)
class Packages:
    """Packages that were resolved: the text of their requirements.txt, its path beside the job, and what it
    was made from.
    """

    text: str
    path: Path
    source: str  # the file's name
    target: Target
    image: tuple[str, ...] = ()  # requirements that are left to the image

    @property
    def names(self) -> list[str]:
        """Return `name==version` of each."""
        return _names(self.text)

    def to_dict(self) -> dict[str, Any]:
        return {
            "packages": self.names,
            "from": self.source,
            "python": self.target.python,
            "of_the_image": list(self.image),
        }

    def keep(self) -> str:
        """Write them beside the job; return a line for the user."""
        try:
            self.path.write_text(self.text, encoding="utf-8")
        except OSError as error:  # they are in the bundle, too
            return f"note: {self.path} can't be written ({error.strerror})"
        return f"kept: {self.path}"


def with_packages(
    job: Job,
    files: Mapping[str, bytes],
    image_line: str,
    *,
    place: Place,
    console: Console,
) -> tuple[Job, dict[str, bytes], Packages | None]:
    """Return job and files with the listed packages as requirements, and what was resolved for that.

    Where the place runs commands with this Python, they are for it, and its installed packages count. Raises
    UsageError for a package that the machine can't have and for an import that nothing provides,
    ConnectionFailed if the index does not answer.
    """
    listed = listed_packages(job.script, files)
    wheels = {path: content for path, content in files.items() if path.endswith(".whl")}
    if place.desk_python:
        _refuse_newer(job.script.python)
    brought = versions_here() if place.desk_python else {}  # what is here needn't be fetched
    if listed.hashed:
        if wheels or not place.desk_python:  # no index is asked for what is here
            _refuse_unfit(job, listed, image_line, wheels, brought)
        refuse_missing(job.script, files, listed, resolved=(), brought=brought)
        return *_with(job, files, listed), None
    text, target = "", Target(python="")
    if listed.lines:
        _refuse_other_torch(listed.lines, brought.get("torch") or image_line.partition("pytorch-")[2])
        target = target_of(image_line, given=job.script.python, here=place.desk_python)
        console.update(f"resolving packages for {target} ...")
        text = resolve(listed, target, image=brought, wheels=wheels)
    refuse_missing(job.script, files, listed, resolved=_names(text), brought=brought)
    if not _names(text):  # the image has all of them
        return replace(job, script=replace(job.script, requirements="")), dict(files), None
    kept_as = Path(job.script.root or ".") / f"{job.name}.requirements.txt"
    _refuse_anothers(kept_as)
    text = f'{MADE} {target}, from {listed.name}. To keep them: requirements = "{kept_as.name}"\n{text}'
    image = tuple(line for line in listed.lines if is_images_own(line))
    packages = Packages(text=text, path=kept_as, source=listed.name, target=target, image=image)
    return *_with(job, files, PackageList(name=kept_as.name, content=text.encode())), packages


def _with(job: Job, files: Mapping[str, bytes], listed: PackageList) -> tuple[Job, dict[str, bytes]]:
    sent = dict(sorted({**files, listed.name: listed.content}.items()))
    return replace(job, script=replace(job.script, requirements=listed.name)), sent


def _names(text: str) -> list[str]:
    return [line.removesuffix(" \\") for line in text.splitlines() if line and line[0] not in "# "]


def target_of(line: str, *, given: str, here: bool) -> Target:
    """Return the Python of a machine: what the job says, else that of the image line. Raises UsageError for
    an unknown one.
    """
    if here:
        return Target(python=_HERE)
    known = (python for end, python in IMAGE_PYTHONS.items() if line.endswith(end))
    python = given or next(known, "")
    if not python:
        do = 'Set script.python, such as "3.13": `/opt/pytorch/bin/python -V` on the image shows it.'
        raise UsageError(
            f"the Python of the image line {line} is not known", why="packages are resolved for it", do=do
        )
    return Target(python=python, platform=f"x86_64-{GLIBC}")


def _refuse_newer(python: str) -> None:
    """Raise UsageError for a Python that neither this machine nor any image has. Where commands run with this
    machine's own, nothing else would ask for it.
    """
    newest = max([*IMAGE_PYTHONS.values(), _HERE], key=_minor)
    if python and _minor(python) > _minor(newest):
        why = f"this machine has Python {_HERE}, and no image is known to have a newer one than {newest}"
        do = "Leave script.python out, or set it to a machine's Python."
        raise UsageError(f"script.python is {python}", why=why, do=do)


def _minor(python: str) -> int:
    return int(python.partition(".")[2])


def resolve(
    listed: PackageList,
    target: Target,
    *,
    image: Iterable[str] = (),
    wheels: Mapping[str, bytes] | None = None,
    dependencies: bool = True,
) -> str:
    """Return the requirements.txt, with hashes, of these packages and all that they need. Nothing is
    downloaded but metadata.

    `image` are names that count as there. Raises UsageError and ConnectionFailed.
    """
    needs("uv")
    left_out = sorted({"torch", "torchvision", "torchaudio", "triton", *image})
    words = [sys.executable, "-m", "uv", *_COMPILE.split(), "--python", sys.executable]
    words += ["--python-version", target.python]
    words += ["--python-platform", target.platform] if target.platform else []
    words += [] if dependencies else ["--no-deps"]
    with HeldFolder("packages") as made:
        source, image_file = Path(made, PurePosixPath(listed.name).name), Path(made, ".image")
        image_file.write_text("".join(f"{name}; sys_platform == 'never'\n" for name in left_out))
        source.write_bytes(listed.content)
        for path, content in (wheels or {}).items():
            Path(made, PurePosixPath(path).name).write_bytes(content)
        words += ["--no-index", "--no-sources", "--find-links", made] if wheels else []
        try:
            done = subprocess.run(
                [*words, "--override", str(image_file), str(source)],
                capture_output=True,
                text=True,
                check=False,
                timeout=RESOLVE_SECONDS,
                env=environment.for_resolver(),
                cwd=made,
            )
        except subprocess.TimeoutExpired as error:
            why = f"no answer within {RESOLVE_SECONDS / 60:.0f} minutes"
            raise ConnectionFailed("the script's packages can't be resolved", why=why, do=_ALONE) from error
    if done.returncode:
        raise _failure(done.stderr.replace(f"{made}/", ""), target, local=bool(wheels))
    if not wheels:
        _refuse_elsewhere(listed, done.stdout)
    return re.sub(rf"^(?:{IMAGES_OWN})==.*\n(?: .*\n)*| +# from .*\n", "", done.stdout, flags=re.MULTILINE)


def _failure(said: str, target: Target, *, local: bool) -> ConnectionFailed | UsageError:
    """Return the error behind uv's words."""
    text = " ".join(
        re.sub(r"^\s*(error|cause|hint):", "", line).strip() for line in said.splitlines() if line.strip()
    )
    if "Failed to fetch" in text or "error sending request" in text or "Connectivity is disabled" in text:
        fetched = re.search(r"https?://[^\s`]+", text)
        why = f"{fetched[0] if fetched else 'the package index'} does not answer"
        return ConnectionFailed("the script's packages can't be resolved", why=why, do=_ALONE)
    do = (
        "Add its wheel to script.files."
        if local
        else "List a version that has one, or add a wheel of your own."
    )
    return UsageError(
        f"the script's packages can't be installed for {target}", why=text.rstrip(".")[:400], do=do
    )


def _refuse_unfit(
    job: Job, listed: PackageList, line: str, wheels: Mapping[str, bytes], brought: Mapping[str, str]
) -> None:
    """Raise UsageError if a requirement with hashes has no wheel for the machine: it may be for another
    Python.

    What can't be asked is left to the machine: an index that does not answer, and an image whose Python is
    not known. pip leaves alone what a rehearsal's environment has at the version that is asked for.
    """
    try:
        target = target_of(line, given=job.script.python, here=bool(brought))
    except UsageError:
        return
    pins = [pin for line in listed.lines if (pin := PIN.match(line))]
    there = [pin[1] for pin in pins if brought.get(normalized(pin[1])) == pin[2]]
    with suppress(ConnectionFailed):
        resolve(listed, target, image=there, wheels=wheels, dependencies=False)


def _refuse_other_torch(lines: Iterable[str], image: str) -> None:
    """Raise UsageError if a requirement pins another torch than the image's, whose version is the beginning
    of `image`.
    """
    there = re.match(r"\d+\.\d+", image)
    for line in lines:
        pinned = re.fullmatch(r"torch\s*==\s*(\d+\.\d+)\S*(\s*;.*)?", line)
        if pinned and there and pinned[1] != there[0]:
            why = f"the image has torch {there[0]}, built for its driver"
            do = "Remove the line, or set another image_line."
            raise UsageError(f"the script's requirements name {line}", why=why, do=do)


def _refuse_elsewhere(listed: PackageList, text: str) -> None:
    """Raise UsageError for packages that uv took from other places than the public index, and for an index
    that `--no-config` hides from it: on the public one anybody may have their names.
    """
    hidden = text and b"[[tool.uv.index]]" in listed.content and b"explicit" not in listed.content
    if hidden or re.search(r"^(?![a-z0-9-]+==)\S|# from (?!https://pypi\.org/simple$)", text, re.MULTILINE):
        why, do = "the machine asks the public index alone", "Add their wheels to script.files."
        raise UsageError(f"{listed.name} takes packages from an index or a place of its own", why=why, do=do)


def _refuse_anothers(place: Path) -> None:
    """Raise UsageError if this path has a file that was not written here."""
    if place.is_file():
        with open_plain(place) as file:
            if file.read(len(MADE)) == MADE.encode():
                return
    if place.exists():
        do = f'Rename it, or use it: requirements = "{place.name}".'
        raise UsageError(f"{place} is in the way", why="the packages of the script are kept there", do=do)
