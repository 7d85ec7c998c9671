"""A file is replaced as a whole, or stays as it was; a temporary folder goes with its maker."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.disks import FullDisk
from trainer.base.files import (
    HELD,
    HeldFolder,
    LineFile,
    append_whole,
    open_plain,
    read_block,
    read_plain,
    whole_file,
)


def test_a_failure_leaves_the_old_content_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), whole_file(path) as partial:
        partial.write_text("ne")
        raise KeyboardInterrupt
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def _write_much(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        file.write(b"123456")
        file.write(b"7")


def _copy(path: Path) -> None:
    (source := path.with_name("source")).write_bytes(b"12345")
    with source.open("ab") as file:
        file.truncate(1 << 20)
    shutil.copyfile(source, path)


def _write_table(path: Path) -> None:
    pq.write_table(pa.table({"one": range(1000)}), path)


@pytest.mark.parametrize("write", [_write_much, _copy, _write_table])
def test_a_file_that_takes_no_more_bytes_is_named(write: Callable[[Path], None], tmp_path: Path) -> None:
    path, before = tmp_path / "a.parquet", resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (6, before[1]))
        with pytest.raises(OSError, match="File too large") as raised, whole_file(path) as partial:
            write(partial)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert raised.value.filename == str(path) and raised.value.filename2 is None
    assert raised.value.strerror == "File too large"


def test_a_folder_that_takes_no_file_is_told_by_the_files_name(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "a.parquet"
    with pytest.raises(FileNotFoundError) as raised, whole_file(path) as partial:
        path.parent.rmdir()
        _write_table(partial)
    assert raised.value.filename == str(path)


def test_an_error_of_another_file_stays_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="other") as raised, whole_file(tmp_path / "a"):
        (tmp_path / "other").read_bytes()
    assert raised.value.filename == str(tmp_path / "other")


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


MAKER = """
import os, signal
from trainer.base.files import HeldFolder
folder = HeldFolder("test")
open(folder.name + "/file", "w").close()
print(folder.name, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def killed_maker(temporary: Path) -> Path:
    """Return the temporary folder of a process that was killed."""
    made = subprocess.run(
        [sys.executable, "-c", MAKER],
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
    )
    assert (Path(made.stdout.strip()) / "file").exists(), made.stderr
    return Path(made.stdout.strip())


def test_a_folder_of_a_killed_maker_is_removed_by_the_next(temporary: Path) -> None:
    ours, left = HeldFolder("test"), killed_maker(temporary)
    with HeldFolder("other") as name:
        assert not left.exists() and Path(ours.name).is_dir() and Path(name).is_dir()
    ours.cleanup()
    assert list(temporary.iterdir()) == []


def test_a_folder_within_another_is_removed_by_the_next_there(temporary: Path) -> None:
    left, place = killed_maker(temporary), temporary / "place"
    place.mkdir()
    moved = left.rename(place / left.name)
    with HeldFolder("test", within=place) as name:
        assert Path(name).parent == place and not moved.exists()


def test_links_and_folders_of_others_stay(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").touch()
    link = temporary / f"mayfly-test-link{HELD}"
    link.symlink_to(elsewhere)
    unmarked, file = temporary / "mayfly-test-a", temporary / f"mayfly-file{HELD}"
    unmarked.mkdir()
    file.touch()
    left, user = killed_maker(temporary), os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    HeldFolder("test").cleanup()
    assert left.is_dir()  # of another user
    monkeypatch.setattr(os, "geteuid", lambda: user)
    HeldFolder("test").cleanup()
    assert set(temporary.iterdir()) == {elsewhere, link, unmarked, file} and (elsewhere / "file").exists()


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_only_a_plain_file_is_read_and_nothing_is_waited_for(kind: str, tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    path = {"pipe": pipe, "device": Path("/dev/zero"), "folder": tmp_path}[kind]
    with pytest.raises(OSError) as caught:
        open_plain(path)
    assert caught.value.strerror == ("it is a folder" if kind == "folder" else "it is not a plain file")
    assert caught.value.filename == str(path)


def test_a_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    (path := tmp_path / "file").write_bytes(b"12345")
    (link := tmp_path / "link").symlink_to(path)
    assert read_plain(path, most_bytes=5) == read_plain(link, most_bytes=9) == b"12345"
    with pytest.raises(OSError, match="it has more than 4 bytes"):
        read_plain(path, most_bytes=4)


def test_lines_that_a_full_disk_refuses_are_read_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    lines = LineFile(path)
    disk = lines._file = FullDisk(lines._file, room=7)  # type: ignore[assignment]
    for line in (b"one\n", b"two\n", b"three\n"):
        lines.append(line)
    assert path.read_bytes() == b"one\ntwo" == read_block(path, 0, 100)
    whole = b"one\ntwo\nthree\n"
    for offset in range(len(whole) + 1):
        for most in range(1, len(whole) + 2):
            assert lines.read(offset, most) == whole[offset : offset + most]
    disk.room = 100
    lines.append(b"four\n")
    assert path.read_bytes() == whole + b"four\n" == lines.read(0, 100)
    lines.close()
    assert read_block(tmp_path / "none", 0, 100) == b""


def test_a_block_is_appended_whole_or_not_at_all(tmp_path: Path) -> None:
    path, before = tmp_path / "lines", resource.getrlimit(resource.RLIMIT_FSIZE)
    append_whole(path, b"one\n")
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (6, before[1]))
        with pytest.raises(OSError, match="File too large") as raised:
            append_whole(path, b"two\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == b"one\n" and raised.value.filename == str(path)
    append_whole(path, b"three\n")
    assert path.read_bytes() == b"one\nthree\n"
