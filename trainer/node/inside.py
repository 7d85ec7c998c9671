"""Read files of a folder that is not trusted: no link is followed, and nothing but a plain file is read."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import IO

_BLOCK_BYTES = 1 << 20


def open_inside(folder: Path, path: str) -> IO[bytes]:
    """Open a plain file by its relative path. Raises OSError, also for a link on the way and for a pipe."""
    *parents, name = path.split("/")
    here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for parent in parents:
            below = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
            os.close(here)
            here = below
        opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=here)
    finally:
        os.close(here)
    body = os.fdopen(opened, "rb")
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        body.close()
        raise OSError(f"{path} is not a plain file")
    return body


def sha256_of(body: IO[bytes]) -> tuple[str, int]:
    """Return the hash of an open file's present bytes and their number, and rewind it."""
    size = os.fstat(body.fileno()).st_size
    digest, left = hashlib.sha256(), size
    while left and (block := body.read(min(_BLOCK_BYTES, left))):
        digest.update(block)
        left -= len(block)
    body.seek(0)
    return digest.hexdigest(), size
