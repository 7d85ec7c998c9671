"""Golden texts: what a user reads, word by word, in files beside this one. `scripts/golden` writes them anew;
read the diff.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import trainer
from tests.trainer.conftest import make_record

__all__ = ["make_record"]  # a fixture of theirs
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# What differs between machines, days and versions. The first that matches wins.
NORMAL = (
    (re.compile(r"\d{8}-\d{6}-([a-z0-9-]+?)-[a-z0-9]{4}\b"), r"RUN-\1"),
    (re.compile(r"\b(i|lt|ami|subnet)-[0-9a-f]{8,17}\b"), r"\1-ID"),
    (re.compile(re.escape(str(ROOT))), "CHECKOUT"),
    (re.compile(re.escape(str(Path(sys.executable).parent))), "BIN"),
    (re.compile(r"(?<=mayfly )" + re.escape(trainer.__version__) + r"\b"), "VERSION"),
    (re.compile(r"(-\w) ([A-Z_]+), (--[\w-]+) \2"), r"\1, \3 \2"),  # as Python 3.13 writes it
    (re.compile(r"[ \t]+$", re.MULTILINE), ""),
)


@pytest.fixture
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str, str], None]:
    """Return a function that compares a text with its file, or writes the file where the command asks
    for it.
    """

    def compare(name: str, text: str) -> None:
        text = text.replace(str(tmp_path), "FOLDER")
        for pattern, word in NORMAL:
            text = pattern.sub(word, text)
        text = text.rstrip("\n") + "\n"
        file = HERE / f"{name}.txt"
        if request.config.getoption("--renew-golden"):
            file.write_text(text, encoding="utf-8")
        assert file.exists(), f"{file.name} is new: run scripts/golden and read it"
        assert text == file.read_text(encoding="utf-8"), (
            f"{file.name} has changed: run scripts/golden and read the diff"
        )

    return compare


@pytest.fixture(autouse=True)
def one_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let every text be as wide and as plain as on any other machine, and of a user with no settings."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("shutil.which", lambda name, *_, **__: None)
    monkeypatch.chdir(tmp_path)
