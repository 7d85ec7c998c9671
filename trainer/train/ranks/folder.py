"""The folder of one torchrun: its socket and torchelastic's files, in the temporary folder.

A killed process leaves its folder behind, and the next one removes it: a folder is locked while its owner
lives.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

PREFIX = "mayfly-ranks-"
SETTLED_SECONDS = 60.0  # a folder younger than this may not be locked yet


class RanksFolder:
    """A new folder that only this user can enter; `remove` it at the end."""

    def __init__(self) -> None:
        remove_stale(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock = os.open(self.path, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Remove the folder and its files."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_stale(temporary: Path) -> None:
    """Remove this user's folders whose owner is dead."""
    for folder in temporary.glob(f"{PREFIX}*"):
        with suppress(OSError):  # another process is removing it, or its owner lives
            status = folder.lstat()
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < SETTLED_SECONDS:
                continue
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
