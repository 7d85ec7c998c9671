"""The agent's log: a file on the node's disk, and in memory what a full disk does not take."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path


class NodeLog(logging.Handler):
    """Appends each line to a file at once. Lines that the disk refuses wait in memory, in order, and are read
    as if they were in the file: what a run says last is why it ended.

    They are bounded where they come from: see `command_process.MOST_LOG_BYTES`.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path, self._file, self._waiting = path, path.open("ab", buffering=0), bytearray()

    def emit(self, record: logging.LogRecord) -> None:
        """Append a line, after those that wait."""
        try:
            self._waiting += self.format(record).encode(errors="replace") + b"\n"
        except Exception:  # as every handler of the library: a wrong line ends nothing
            self.handleError(record)
        with suppress(OSError):
            while self._waiting:
                del self._waiting[: self._file.write(self._waiting)]

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()

    def read(self, offset: int, most: int) -> bytes:
        """Return at most so many bytes of the log, from an offset on."""
        self.acquire()
        try:
            block = read_file(self._path, offset, most)
            if len(block) < most:
                beyond = offset + len(block) - self._path.stat().st_size
                block += self._waiting[beyond : beyond + most - len(block)]
            return block
        finally:
            self.release()


def read_file(path: Path, offset: int, most: int) -> bytes:
    """Return at most so many bytes of a file, from an offset on; none of one that does not exist yet."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(offset)
        return file.read(most)
    return b""
