"""Check a script's requirements.txt at the desk: packages with or without hashes, and none that the image
provides.

With hashes each line is one version, as the node installs it. Without, versions and hashes are made at the
desk.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainer.base.errors import UsageError

MOST_REQUIREMENTS = 500
# Packages that a script can't replace, since they are built for the image's driver. nvidia-ml-py is not part
# of CUDA.
IMAGES_OWN = re.compile(r"torch|torchvision|torchaudio|triton|nvidia-(?!ml-py$)[a-z0-9-]+")
_NAME = r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[A-Za-z0-9,._ -]*\])?"
_REQUIREMENT = re.compile(_NAME + r"\s*==\s*[A-Za-z0-9.+!_-]+\s*(;[^\\]*?)?")
_RANGE = r"(?:===?|~=|!=|<=?|>=?)\s*[A-Za-z0-9.+!_*-]+"
_UNHASHED = re.compile(_NAME + rf"\s*(\(?{_RANGE}(?:\s*,\s*{_RANGE})*\)?)?\s*(;[^\\]*)?")
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
_ANY_HASH = re.compile(r"\s--hash=")


def normalized(name: str) -> str:
    """Return a package's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def has_hashes(name: str, content: bytes) -> bool:
    """Return whether any line of a requirements.txt has a hash; `check_requirements` then requires one in
    each.
    """
    return any(_ANY_HASH.search(line) for line in requirement_lines(name, content))


def requirement_lines(name: str, content: bytes) -> list[str]:
    """Return the lines of a requirements.txt without comments, continued lines joined. Raises UsageError."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8", do="Save it as UTF-8.") from error
    lines = [
        line.partition(" #")[0].strip()
        for line in text.replace("\\\r\n", " ").replace("\\\n", " ").splitlines()
    ]
    wanted = [line for line in lines if line and not line.startswith("#")]
    if len(wanted) > MOST_REQUIREMENTS:
        raise UsageError(
            f"{name} names {len(wanted):,} packages",
            why=f"{MOST_REQUIREMENTS} are the most",
            do="Name fewer.",
        )
    return wanted


def check_requirements(name: str, content: bytes) -> None:
    """Raise UsageError for a line that is not a package or, if any has a hash, is not `package==version
    --hash=...`.
    """
    if has_hashes(name, content):
        _check_hashed(name, requirement_lines(name, content))
    else:
        _check_unhashed(name, requirement_lines(name, content))


def images_own(lines: list[str]) -> Iterator[str]:
    """Yield those lines that name a package of the image."""
    for line in lines:
        match = _UNHASHED.fullmatch(line)
        if match and IMAGES_OWN.fullmatch(normalized(match[1])):
            yield line


def _check_hashed(name: str, lines: list[str]) -> None:
    for line in lines:
        requirement, *hashes = re.split(r"\s+(?=--)", line)
        match = _REQUIREMENT.fullmatch(requirement)
        do = "Make it with pip-compile --generate-hashes, or leave out all hashes: then they are made here."
        if match is None:
            raise UsageError(f"{name} has {line[:80]!r}", why="a line with hashes is package==version", do=do)
        if not hashes or not all(_HASH.fullmatch(one) for one in hashes):
            why = "others have one, and without its sha256 anything may be installed"
            raise UsageError(f"{name} has {match[1]} without a hash", why=why, do=do)
        if IMAGES_OWN.fullmatch(normalized(match[1])):
            why = "the image brings it, built for its driver"
            raise UsageError(
                f"{name} names {match[1]}", why=why, do="Remove it: pip-compile --unsafe-package does."
            )


def _check_unhashed(name: str, lines: list[str]) -> None:
    for line in lines:
        if _UNHASHED.fullmatch(line) is None:
            why = "a line is a package with versions, such as lightning>=2.5, and nothing else"
            do = "For a package that is on no index, add its wheel to script.files."
            raise UsageError(f"{name} has {line[:80]!r}", why=why, do=do)
