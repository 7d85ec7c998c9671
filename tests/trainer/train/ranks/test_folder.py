"""The folder of a torchrun, and what a killed process left of others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.forks import ROOT
from trainer.train.ranks.folder import PREFIX, RanksFolder, remove_stale

OWNER = (
    "import time; from trainer.train.ranks.folder import *; print(RanksFolder().path, flush=True);"
    " time.sleep(1000)"
)


def age(folder: Path) -> None:
    """Make a folder an hour old."""
    os.utime(folder, (0, folder.stat().st_mtime - 3600))


def test_a_folder_goes_once_its_owner_is_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    elsewhere, young = tmp_path / "others", tmp_path / f"{PREFIX}young"
    for folder in (elsewhere, young):
        folder.mkdir()
    (tmp_path / f"{PREFIX}link").symlink_to(elsewhere)
    age(elsewhere)
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        left = Path(owner.stdout.readline().strip())
        (left / "log").mkdir()
        age(left)
        remove_stale(tmp_path)
        assert left.exists(), "its owner lives"
        owner.send_signal(signal.SIGKILL)
    own = RanksFolder()
    assert not left.exists() and own.path.exists() and elsewhere.exists() and young.exists()
    own.remove()
    assert not own.path.exists()
