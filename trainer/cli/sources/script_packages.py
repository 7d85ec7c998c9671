"""A script's packages, resolved at the desk for the machine's Python, with hashes: from its imports or its
requirements.txt.

uv resolves: unlike pip, it evaluates markers for the machine and not for the desk
(https://github.com/pypa/pip/issues/11664). The image's torch and what belongs to it are left out. Wheels
among the script's files replace the index, as on the machine.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from trainer.base import environment
from trainer.base.errors import ConnectionFailed, UsageError
from trainer.base.extras import needs
from trainer.cli.terminal import Console
from trainer.job.job import Job, with_settings
from trainer.launch.requirements import IMAGES_OWN, has_hashes, images_own, normalized, requirement_lines
from trainer.launch.script_imports import packages_of, versions_here

MADE = "# Packages of a script for"  # the beginning of files that this module writes
RESOLVE_SECONDS = 180.0
# Python of /opt/pytorch by the end of an image line's name: AWS's release notes of the PyTorch DLAMIs (looked
# up 2026-11-22). The machine compares it before it installs anything.
IMAGE_PYTHONS = {"ubuntu-26.04": "3.13"}
_ALONE = "Try again; or give requirements with hashes, or wheels in script.files: neither asks an index."
GLIBC = "manylinux_2_34"  # of Amazon Linux 2023, the oldest of the images


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
    """Packages that were resolved: the text of their requirements.txt, its place beside the job, and what it
    was made from.
    """

    text: str
    place: Path
    source: str  # "its imports", or the file's name
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
            self.place.write_text(self.text, encoding="utf-8")
        except OSError as error:  # they are in the bundle, too
            return f"note: {self.place} can't be written ({error.strerror})"
        return f"kept: {self.place}"


def with_packages(
    job: Job,
    files: Mapping[str, bytes],
    image_line: str,
    *,
    rehearsal: bool,
    console: Console,
) -> tuple[Job, dict[str, bytes], Packages | None]:
    """Return job and files with the packages that the script needs as its requirements; None if they have
    hashes already.

    In a `rehearsal`, and on the caller's own machine, they are for this Python, whose installed packages
    count; no image line. Raises UsageError for a package that the machine can't have, ConnectionFailed if the
    index does not answer.
    """
    script, files = job.script, dict(files)
    name = PurePosixPath(script.requirements).as_posix() if script.requirements else ""
    wheels = {path: content for path, content in files.items() if path.endswith(".whl")}
    if name and has_hashes(name, files[name]):
        if wheels or not rehearsal:  # a rehearsal asks no index
            _refuse_unfit(requirement_lines(name, files[name]), image_line, script.python, wheels, rehearsal)
        return job, files, None
    here = versions_here()
    # A rehearsal's image is this environment: what it has needn't be fetched, and a rehearsal needs no
    # network.
    brought = here if rehearsal else ()
    lines = (
        requirement_lines(name, files[name]) if name else packages_of(files, script.words, brought=brought)
    )
    if not lines:
        return job, files, None
    _refuse_other_torch(lines, here.get("torch", "") if rehearsal else image_line.partition("pytorch-")[2])
    target = target_of(image_line, given=script.python, rehearsal=rehearsal)
    console.update(f"resolving packages for {target} ...")
    text = resolve(
        lines,
        target,
        constraints=() if name else [f"{one}=={version}" for one, version in here.items()],
        image=brought,
        wheels=wheels,
    )
    if not _names(text):  # the image has all of them
        return with_settings(job, **{"script.requirements": ""}), files, None
    header = f"{MADE} {target}, from {name or 'its imports'}. To keep them: requirements = "
    place = Path(script.root or ".") / f"{job.name}.requirements.txt"
    text = f'{header}"{place.name}"\n{text}'
    _refuse_anothers(place)
    files[place.name] = text.encode()
    packages = Packages(
        text=text,
        place=place,
        source=name or "its imports",
        target=target,
        image=tuple(images_own(lines) if name else ()),
    )
    return with_settings(job, **{"script.requirements": place.name}), dict(sorted(files.items())), packages


def target_of(line: str, *, given: str, rehearsal: bool) -> Target:
    """Return the Python of a machine: what the job says, else that of the image line. Raises UsageError for
    an unknown one.
    """
    if rehearsal:
        return Target(python=f"{sys.version_info.major}.{sys.version_info.minor}")
    python = given or _known_python(line)
    if not python:
        do = 'Set script.python, such as "3.13": `/opt/pytorch/bin/python -V` on the image shows it.'
        raise UsageError(
            f"the Python of the image line {line} is not known", why="packages are resolved for it", do=do
        )
    return Target(python=python, platform=f"x86_64-{GLIBC}")


def _known_python(line: str) -> str:
    """Return the Python of an image line's images, '' for a line that is not known."""
    return next((python for end, python in IMAGE_PYTHONS.items() if line.endswith(end)), "")


def resolve(
    lines: Sequence[str],
    target: Target,
    *,
    constraints: Iterable[str] = (),
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
    words = [sys.executable, "-m", "uv", "pip", "compile", "--no-config", "--quiet", "--color", "never"]
    words += [
        "--generate-hashes",
        "--no-header",
        "--no-annotate",
        "--only-binary",
        ":all:",
        "--python",
        sys.executable,
    ]
    words += [
        "--python-version",
        target.python,
        *(["--python-platform", target.platform] if target.platform else []),
    ]
    words += [] if dependencies else ["--no-deps"]
    with TemporaryDirectory(prefix="mayfly-packages-") as made:
        folder = Path(made)
        (folder / "wanted.txt").write_text("\n".join(lines) + "\n")
        (folder / "constraints.txt").write_text("\n".join(constraints) + "\n")
        (folder / "image.txt").write_text("".join(f"{name}; sys_platform == 'never'\n" for name in left_out))
        words += ["--constraint", str(folder / "constraints.txt"), "--override", str(folder / "image.txt")]
        for path, content in (wheels or {}).items():
            (folder / PurePosixPath(path).name).write_bytes(content)
        if wheels:
            words += ["--no-index", "--find-links", made]
        environ = environment.for_resolver()
        try:
            done = subprocess.run(
                [*words, str(folder / "wanted.txt")],
                capture_output=True,
                text=True,
                check=False,
                timeout=RESOLVE_SECONDS,
                env=environ,
                cwd=made,
            )
        except subprocess.TimeoutExpired as error:
            why = f"no answer within {RESOLVE_SECONDS / 60:.0f} minutes"
            raise ConnectionFailed("the script's packages can't be resolved", why=why, do=_ALONE) from error
    if done.returncode:
        raise _failure(done.stderr, target, local=bool(wheels))
    return _without_images_own(done.stdout)


def _names(text: str) -> list[str]:
    return [line.removesuffix(" \\") for line in text.splitlines() if line and line[0] not in "# "]


def _refuse_unfit(
    lines: Sequence[str], line: str, given: str, wheels: Mapping[str, bytes], rehearsal: bool
) -> None:
    """Raise UsageError if a requirement with hashes has no wheel for the machine: it may be for another
    Python.

    What can't be asked is left to the machine: an index that does not answer, and an image whose Python is
    not known.
    """
    with suppress(ConnectionFailed):
        if given or rehearsal or _known_python(line):
            # A rehearsal's image is this environment: pip leaves alone what it has at the version that is
            # asked for.
            there = (
                {f"{name}=={version}": name for name, version in versions_here().items()} if rehearsal else {}
            )
            pins = (one.partition("--hash")[0].strip().partition("==") for one in lines)
            brought = [
                there[pin] for name, _, version in pins if (pin := f"{normalized(name)}=={version}") in there
            ]
            target = target_of(line, given=given, rehearsal=rehearsal)
            resolve(lines, target, image=brought, wheels=wheels, dependencies=False)


def _failure(said: str, target: Target, *, local: bool) -> ConnectionFailed | UsageError:
    """Return the error behind uv's words."""
    text = " ".join(
        re.sub(r"^\s*(error|cause|hint):", "", line).strip() for line in said.splitlines() if line.strip()
    )
    if "Failed to fetch" in text or "error sending request" in text or "Connectivity is disabled" in text:
        fetched = re.search(r"https?://[^\s`]+", text)
        why = f"{fetched[0] if fetched else 'the package index'} does not answer"
        return ConnectionFailed("the script's packages can't be resolved", why=why, do=_ALONE)
    cause = re.sub(r"^No solution found when resolving dependencies ", "", text)
    cause = re.sub(r",? we can conclude that your requirements are unsatisfiable\.", ".", cause)
    cause = cause.replace("the provided package locations", "script.files").replace(
        "you require", "the script requires"
    )
    do = "Add its wheel to script.files, or name the packages in script.requirements."
    if not local:
        do = "Name a version that has one in script.requirements, or add a wheel of your own to script.files."
    return UsageError(
        f"the script's packages can't be installed for {target}", why=cause.rstrip(".")[:400], do=do
    )


def _without_images_own(text: str) -> str:
    """Return requirements with their hashes, without those that the image brings."""
    kept, lines = True, []
    for line in text.splitlines():
        if line and not line.startswith((" ", "#")):
            kept = not IMAGES_OWN.fullmatch(normalized(line.partition("==")[0].partition("[")[0]))
        if kept:
            lines.append(line)
    return "".join(f"{line}\n" for line in lines)


def _refuse_other_torch(lines: Sequence[str], image: str) -> None:
    """Raise UsageError if a requirement pins another torch than the image's, whose version is the beginning
    of `image`.
    """
    there = re.match(r"\d+\.\d+", image)
    for wanted in lines:
        pinned = re.fullmatch(r"torch\s*==\s*(\d+\.\d+)\S*(\s*;.*)?", wanted)
        if pinned and there and pinned[1] != there[0]:
            why, do = (
                f"the image has torch {there[0]}, built for its driver",
                "Remove the line, or set another image_line.",
            )
            raise UsageError(f"the script's requirements name {wanted}", why=why, do=do)


def _refuse_anothers(place: Path) -> None:
    """Raise UsageError if this path has a file that was not written here."""
    if place.exists() and not (place.is_file() and place.read_bytes().startswith(MADE.encode())):
        do = f'Rename it, or use it: requirements = "{place.name}".'
        raise UsageError(f"{place} is in the way", why="the packages of the script are kept there", do=do)
