"""Read plain files only, within bounds; write a file so that its path has either all of the new content or
what it had before; make temporary folders that go with their maker, whatever ends it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path

from trainer.base.errors import FULL, UsageError

# of a file that takes no more bytes: its disk is full or broken, or it would be larger than it may be
REFUSED = (*FULL, errno.EFBIG, errno.EIO)
HELD = ".held"  # end of the names of folders that are removed once nobody holds them


def open_plain(path: Path) -> BufferedReader:
    """Open a plain file to read its bytes, following links. Raises OSError for anything else: a pipe may keep
    its reader waiting, and a device may never end.
    """
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    mode = os.fstat(file).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(file, "rb")
    os.close(file)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    raise OSError(errno.EINVAL, "it is not a plain file", str(path))


def read_plain(path: Path, *, most_bytes: int) -> bytes:
    """Return the content of a plain file. Raises OSError for anything else, and for a file of more bytes."""
    with open_plain(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        most = f"{most_bytes >> 20:,} MiB" if most_bytes >= 1 << 20 else f"{most_bytes:,} bytes"
        raise OSError(errno.EFBIG, f"it has more than {most}", str(path))
    return content


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a new path beside `path` to write to. On success rename it to `path`, on failure remove it; make
    missing folders. An OSError of the new file names `path`.

    A link at `path` is replaced, not followed. Threads and processes may write the same path at once: the
    last one wins.
    Nothing is flushed to the disk: after a power failure the file may be empty, so readers check a hash or
    start over.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}.partial")
    partial.unlink(missing_ok=True)  # of a process that was killed, or a link
    try:
        yield partial
        partial.replace(path)
    except OSError as error:
        if _is_of(partial, error):
            raise OSError(error.errno, os.strerror(error.errno or 0), str(path)) from error
        raise
    finally:
        partial.unlink(missing_ok=True)


def _is_of(file: Path, error: OSError) -> bool:
    """Return whether an error is of this file: Python names no file that refuses bytes, and Arrow names files
    in texts alone.
    """
    if error.filename is None:
        return error.errno in REFUSED or str(file) in str(error)
    return str(file) in map(str, (error.filename, error.filename2))


def append_whole(path: Path, block: bytes) -> None:
    """Append a block to a file. Raises OSError where the disk has no room for all of it; then nothing of it
    is left.
    """
    with path.open("ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            while block:
                block = block[file.write(block) :]
        except OSError as error:
            with suppress(OSError):
                file.truncate(size)
            raise OSError(error.errno, error.strerror, str(path)) from error


class LineFile:
    """A file that lines are appended to, each at once. Lines that a full disk refuses wait in memory, and are
    written, in order, before the next one. Their number is the writers' to bound.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._file = path, path.open("ab", buffering=0)
        self._waiting, self._lock = bytearray(), threading.RLock()  # a signal handler may log, too

    def append(self, line: bytes) -> None:
        """Append a line with its end, after those that wait."""
        with self._lock, suppress(OSError):
            self._waiting += line
            while self._waiting:
                del self._waiting[: self._file.write(self._waiting)]

    def read(self, offset: int, most: int) -> bytes:
        """Return at most so many bytes from an offset on, as if those that wait were in the file."""
        with self._lock:
            block = read_block(self._path, offset, most)
            if len(block) < most:
                beyond = offset + len(block) - self._path.stat().st_size
                block += self._waiting[beyond : beyond + most - len(block)]
            return block

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_block(path: Path, offset: int, most: int) -> bytes:
    """Return at most so many bytes of a file, from an offset on; none of one that does not exist yet."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(offset)
        return file.read(most)
    return b""


def take_lock(descriptor: int) -> bool:
    """Lock an open file or folder until it is closed; return False if another process has locked it. The
    kernel unlocks it with the process; where a file system has no locks, nothing is locked.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


@contextmanager
def held_alone(folder: Path) -> Iterator[None]:
    """Lock a folder while a command writes to it; make it if it is missing, and remove it again if nothing
    was written. Raises UsageError if another process has locked it.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not take_lock(descriptor):
            do = "Wait for its end, or give another --out."
            raise UsageError(f"another command writes to {folder}", do=do)
        yield
    finally:
        os.close(descriptor)
        with suppress(OSError):  # one of them has something
            for path in missing:
                path.rmdir()


class HeldFolder:
    """A temporary folder, removed as `tempfile.TemporaryDirectory` does. Where its maker was killed, the next
    folder's maker removes it.

    Its maker holds a lock on it, which the kernel drops with the process.
    """

    def __init__(self, kind: str, *, within: Path | None = None) -> None:
        """Make it in the temporary folder, or in `within`; there, folders of killed makers go first."""
        for left in (within or Path(tempfile.gettempdir())).glob(f"mayfly-*{HELD}"):
            if (lock := _hold(left)) is not None:
                shutil.rmtree(left, ignore_errors=True)
                os.close(lock)
        for _ in range(3):  # another's sweep can take a folder before it is held
            self.name = tempfile.mkdtemp(prefix=f"mayfly-{kind}-", suffix=HELD, dir=within)
            self._lock = _hold(Path(self.name))
            if self._lock is not None:
                break
        self._remove = weakref.finalize(self, shutil.rmtree, self.name, ignore_errors=True)

    def cleanup(self) -> None:
        """Remove the folder and what it holds."""
        self._remove()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *error: object) -> None:
        self.cleanup()


def _hold(folder: Path) -> int | None:
    """Return the lock on a folder of this user's; None if another process holds it, or for anything else."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        about = os.fstat(lock)
        if about.st_uid == os.geteuid() and os.path.samestat(about, folder.lstat()):
            return lock
    except OSError:
        pass
    os.close(lock)
    return None
