"""A user's own files of profiles, in a folder of the test's."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def user_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where the user's profiles stand: nothing is there yet."""
    path = tmp_path / "mine" / "profiles.toml"
    path.parent.mkdir()
    monkeypatch.setenv("MAYFLY_PROFILES", str(path))
    return path
