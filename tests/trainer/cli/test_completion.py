"""The script of `mayfly --print-completion`, used by a bash."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.cli.main import main

ASK = """
source mayfly.bash
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
"$(complete -p mayfly | sed 's/.*-F \\([^ ]*\\) .*/\\1/')" 2> /dev/null  # compopt: no Tab was pressed
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the script and something to complete."""
    pytest.importorskip("shtab")
    if not shutil.which("bash"):
        pytest.skip("needs bash")
    folder = tmp_path_factory.mktemp("completion")
    command = [sys.executable, "-m", "trainer.cli.main", "--print-completion", "bash"]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    (folder / "mayfly.bash").write_text(made.stdout)
    (folder / "candles").mkdir()
    (folder / "job.toml").touch()
    return folder


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("mayfly la", {"launch"}),
        ("mayfly data p", {"push", "pull"}),
        ("mayfly models pro", {"production", "promote"}),
        ("mayfly launch --on", {"--on-demand"}),
        ("mayfly train --check", {"--checkpoints"}),
        ("mayfly launch --dry-run --job j", {"job.toml"}),
        ("mayfly data check c", {"candles"}),
        ("mayfly train --data c", {"candles"}),
        ("mayfly launch --model t", {"tcn", "transformer"}),
        ("mayfly plan --instance g4dn.x", {"g4dn.xlarge"}),
        ("mayfly status l", {"last"}),
        ("mayfly --print-completion z", {"zsh"}),
    ],
)
def test_a_tab_offers(typed: str, offered: set[str], folder: Path) -> None:
    command = ["bash", "--norc", "-c", ASK, "bash", *typed.split()]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == offered


def test_completion_without_its_library_says_what_to_install(monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    monkeypatch.delitem(sys.modules, "trainer.cli.completion", raising=False)
    assert main(["--print-completion", "bash"]) == 103
    assert capsys.readouterr().err.endswith(
        "needs shtab, which is not installed. pip install 'mayfly[completion]'\n"
    )
