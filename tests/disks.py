"""Disks that are full: a small file system in the place of a folder, where the machine lets a test mount one,
and a file that takes so many bytes.
"""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def small_disk(folder: Path, *, megabytes: int = 20) -> Iterator[None]:
    """Mount an empty file system over a folder; skip the test where that is refused."""
    words = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "small", str(folder)]
    try:
        subprocess.run(words, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a file system of {megabytes} MB can't be mounted here: {error}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Write a file until its disk is full, and return it."""
    big = folder / "big"
    with big.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(1 << 12))
    return big


def refused(*_: object, **__: object) -> bytes:
    """Take the place of whatever writes to a full disk."""
    raise OSError(errno.ENOSPC, "No space left on device")


class FullDisk:
    """A file on a disk with so much room, for the tests to write through."""

    def __init__(self, file: Any, room: int) -> None:
        self._file, self.room = file, room

    def write(self, block: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written: int = self._file.write(bytes(block[: self.room]))
        self.room -= written
        return written

    def close(self) -> None:
        self._file.close()
