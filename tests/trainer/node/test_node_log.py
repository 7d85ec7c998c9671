"""The agent's log as the uploads read it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.disks import FullDisk
from trainer.node.node_log import NodeLog


def test_a_log_is_whole_on_a_full_disk_and_after_a_wrong_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = NodeLog(tmp_path / "node.log")
    log._file._file = FullDisk(log._file._file, room=3)  # type: ignore[assignment]
    monkeypatch.setattr(logging, "raiseExceptions", False)
    for line, values in (("%d", ("no number",)), ("the last words", None)):
        log.handle(logging.LogRecord("node", logging.INFO, "", 0, line, values, None))
    log.close()
    assert (tmp_path / "node.log").read_bytes() == b"the"
    assert log.read(0, 100) == b"the last words\n"
