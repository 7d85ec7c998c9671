"""The agent's log on a disk that is full for a while."""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import Any

import pytest

from trainer.node.node_log import NodeLog, read_file


class Disk:
    """A file on a disk with so much room."""

    def __init__(self, file: Any, room: int) -> None:
        self._file, self.room = file, room

    def write(self, block: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self._file.write(bytes(block[: self.room]))
        self.room -= written
        return written

    def close(self) -> None:
        self._file.close()


@pytest.fixture
def log(tmp_path: Path) -> NodeLog:
    return NodeLog(tmp_path / "node.log")


def say(log: NodeLog, *lines: str) -> None:
    for line in lines:
        log.handle(logging.LogRecord("node", logging.INFO, "", 0, line, None, None))


def test_lines_that_a_full_disk_refuses_are_read_all_the_same(log: NodeLog, tmp_path: Path) -> None:
    disk = log._file = Disk(log._file, room=7)  # type: ignore[assignment]
    say(log, "one", "two", "three")
    assert read_file(tmp_path / "node.log", 0, 100) == b"one\ntwo"
    whole = b"one\ntwo\nthree\n"
    for offset in range(len(whole) + 1):
        for most in range(1, len(whole) + 2):
            assert log.read(offset, most) == whole[offset : offset + most]
    disk.room = 100
    say(log, "four")
    assert read_file(tmp_path / "node.log", 0, 100) == whole + b"four\n" == log.read(0, 100)
    log.close()


def test_a_line_that_can_not_be_made_ends_nothing(log: NodeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    log.handle(logging.LogRecord("node", logging.INFO, "", 0, "%d", ("no number",), None))
    say(log, "and goes on")
    assert log.read(0, 100) == b"and goes on\n"
    log.close()
