"""The agent's log: what a run says last is why it ended, so that no line may be lost to a full disk."""

from __future__ import annotations

import logging
from pathlib import Path

from trainer.base.files import LineFile


class NodeLog(logging.Handler):
    """Appends each line to a file. Lines that the disk refuses are read all the same (`LineFile`); they are
    bounded where they come from: see `command_process.MOST_LOG_BYTES`.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = LineFile(path)
        self.read = self._file.read

    def emit(self, record: logging.LogRecord) -> None:
        """Append a line."""
        try:
            self._file.append(self.format(record).encode(errors="replace") + b"\n")
        except Exception:  # as every handler of the library: a wrong line ends nothing
            self.handleError(record)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()
