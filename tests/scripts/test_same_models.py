"""scripts/same-models: the same code makes the same models, a planted change does not, and its refusals."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "scripts/same-models"
OWN_VENV = pytest.mark.skipif(
    Path(sys.prefix) != ROOT / ".venv", reason="the checkout has no virtual environment of its own"
)


def same_models(
    checkout: Path, *words: str, interpreter: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    command = [interpreter, checkout / SCRIPT, *words]
    return subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)


@OWN_VENV
@pytest.mark.parametrize("python", ["of the machine", "of the checkout"])
def test_it_uses_the_checkouts_environment_and_needs_a_commit(python: str) -> None:
    """It once started itself for ever: by a name without a folder, Python finds another environment."""
    interpreter = {"of the machine": getattr(sys, "_base_executable", ""), "of the checkout": sys.executable}[
        python
    ]
    done = same_models(ROOT, "no-such-commit", interpreter=interpreter)
    said = "error: no-such-commit is not a commit of this repository. Name one that git log shows.\n"
    assert (done.returncode, done.stderr, done.stdout) == (1, said, "")


@OWN_VENV
def test_an_unknown_case_is_refused_with_the_known_ones() -> None:
    done = same_models(ROOT, "HEAD", "gru")
    assert done.returncode == 1
    assert done.stderr.startswith("error: there is no case gru. Name some of lstm, lstm-fused-averaged, tcn")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with this code as its first commit, and a moving average that rises differently on top."""
    folder = tmp_path / "checkout"
    shutil.copytree(ROOT / "trainer", folder / "trainer", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "scripts").mkdir()
    shutil.copy(ROOT / SCRIPT, folder / SCRIPT)
    (folder / ".venv").symlink_to(ROOT / ".venv")

    def git(*words: str) -> None:
        own = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        subprocess.run(["git", "-C", folder, *own, *words], check=True, capture_output=True)

    git("init")
    git("add", "trainer", "scripts")
    git("commit", "-m", "before")
    file = folder / "trainer/train/packs/pack.py"
    text, planted = re.subn(
        r"^AVERAGE_RISE = .*$", "AVERAGE_RISE = 2.5", file.read_text(), flags=re.MULTILINE
    )
    assert planted == 1
    file.write_text(text)
    return folder


@OWN_VENV
@pytest.mark.slow
@pytest.mark.nightly
def test_models_are_bit_identical_until_a_change_is_planted(checkout: Path) -> None:
    done = same_models(checkout, "HEAD", "lstm", "tcn", "lstm-fused-averaged", "--bars", "600")
    assert (done.returncode, done.stderr) == (1, "")
    lines = [line.split() for line in done.stdout.splitlines() if "models" not in line]
    assert [(case, model.partition("-")[0], result) for case, model, result, *_ in lines] == [
        *[("lstm", "lstm", "identical")] * 2,
        *[("tcn", "tcn", "identical")] * 2,
        *[("lstm-fused-averaged", "lstm", "DIFFERENT")] * 2,
    ]
    assert done.stdout.count("two codes") == 3
    assert not list(checkout.parent.glob("same-models-*"))
