"""scripts/same-models up to its first training, which takes longer than a test may."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(
    Path(sys.prefix) != ROOT / ".venv", reason="the checkout has no virtual environment of its own"
)
@pytest.mark.parametrize("python", ["of the machine", "of the checkout"])
def test_it_uses_the_checkouts_environment_and_needs_a_commit(
    python: str,
) -> None:
    """It once started itself for ever: by a name without a folder, Python finds another environment."""
    interpreter = {"of the machine": getattr(sys, "_base_executable", ""), "of the checkout": sys.executable}[
        python
    ]
    done = subprocess.run(
        [interpreter, ROOT / "scripts/same-models", "no-such-commit"],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=300,
    )
    said = "error: no-such-commit is not a commit of this repository. Name one that git log shows.\n"
    assert (done.returncode, done.stderr, done.stdout) == (1, said, "")
