"""Read files of a folder that is not trusted: no link is followed, and nothing but a plain file is read.
Remove such a folder.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from trainer.base.symbols import path_flaw

State = tuple[int, int, int, int]  # of a file: inode, size, mtime, and ctime, which no program can set
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
    while block := body.read(min(_BLOCK_BYTES, left)):
        digest.update(block)
        left -= len(block)
    body.seek(0)
    return digest.hexdigest(), size


def entries_inside(folder: Path, *, hidden: bool = False) -> Iterator[tuple[str, os.stat_result]]:
    """Yield path and state of each file below a folder, by name. Links, which are not followed, are among
    them, and folders with unfit names, which are not entered; their path ends with a slash. `hidden`: names
    may begin with a dot.
    """
    for here, folders, names, descriptor in os.fwalk(folder, follow_symlinks=False):
        base = Path(here).relative_to(folder)
        for name in (*sorted(folders), *sorted(names)):
            path = (base / name).as_posix()
            with suppress(FileNotFoundError):  # removed since it was listed
                about = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                if not stat.S_ISDIR(about.st_mode):
                    yield path, about
                elif path_flaw(path, hidden=hidden):
                    yield f"{path}/", about
        folders[:] = sorted(
            name for name in folders if not path_flaw((base / name).as_posix(), hidden=hidden)
        )


def state_of(about: os.stat_result) -> State:
    """Return what differs between two states of a file."""
    return about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


def remove_folder(folder: Path) -> None:
    """Remove a folder with all that is below it, as far as that is possible."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:  # a command can nest folders more deeply than Python's calls
        subprocess.run(["rm", "-rf", "--", folder], check=False, capture_output=True)
