"""A file is replaced as a whole, or stays as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.base.files import whole_file


def test_a_failure_leaves_the_old_content_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), whole_file(path) as partial:
        partial.write_text("ne")
        raise KeyboardInterrupt
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_folders_are_made_and_a_link_is_replaced(tmp_path: Path) -> None:
    other, path = tmp_path / "other", tmp_path / "folder" / "a.json"
    other.write_text("other")
    path.parent.mkdir()
    path.symlink_to(other)
    with whole_file(path) as partial:
        partial.write_text("new")
    assert path.read_text() == "new" and other.read_text() == "other" and not path.is_symlink()
    with whole_file(tmp_path / "made" / "b") as partial:
        partial.write_text("b")
    assert (tmp_path / "made" / "b").read_text() == "b"
