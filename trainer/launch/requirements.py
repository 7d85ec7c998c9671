"""A script's requirements.txt, checked at the desk: each package at one version with hashes, and none that the image brings."""

from __future__ import annotations

import re

from trainer.errors import UsageError

MOST_REQUIREMENTS = 500
IMAGES_OWN = re.compile(r"torch|torchvision|torchaudio|triton|nvidia-[a-z0-9-]+")  # what the script's packages can't replace
_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[A-Za-z0-9,._ -]*\])?\s*==\s*[A-Za-z0-9.+!_-]+\s*(;[^\\]*?)?")
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def check_requirements(name: str, content: bytes) -> None:
    """Raise UsageError unless every line is `package==version --hash=sha256:...`, as `pip-compile --generate-hashes` writes."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8", do="Save it as UTF-8.") from error
    lines = [line.partition(" #")[0].strip() for line in text.replace("\\\n", " ").splitlines()]
    wanted = [line for line in lines if line and not line.startswith("#")]
    for line in wanted:
        requirement, *hashes = re.split(r"\s+(?=--)", line)
        match = _REQUIREMENT.fullmatch(requirement)
        if match is None:
            why = "a line is package==version with its hashes, and nothing else"
            raise UsageError(f"{name} has {line[:80]!r}", why=why, do=f"Make it with pip-compile --generate-hashes {name}.")
        if not hashes or not all(_HASH.fullmatch(one) for one in hashes):
            why = "without its sha256 anything may be installed"
            raise UsageError(
                f"{name} has {match[1]} without a hash", why=why, do=f"Make it with pip-compile --generate-hashes {name}."
            )
        if IMAGES_OWN.fullmatch(re.sub(r"[-_.]+", "-", match[1]).lower()):
            why = "the image brings it, built for its driver"
            raise UsageError(f"{name} names {match[1]}", why=why, do="Take it out: pip-compile --unsafe-package does.")
    if len(wanted) > MOST_REQUIREMENTS:
        raise UsageError(f"{name} names {len(wanted):,} packages", why=f"{MOST_REQUIREMENTS} are the most", do="Name fewer.")
