"""The shared cache of inputs, a mounted folder that every node of the stack writes: nothing in it is trusted.

An entry is named by the hash of an input's key, version and sha256, and its bytes are hashed each time they
are copied. Anything else there (a link, a pipe, other bytes) is refused, and replaced by a rename once the
input was fetched from S3. Names have no folders and no link is followed, so nothing outside the folder is
read or written.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import secrets
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trainer.runs.keys import RESUMED
from trainer.runs.manifest import ManifestInput

log = logging.getLogger(__name__)
LAYOUT = "inputs-1"  # the folder below the mount; another layout gets another name
BLOCK_BYTES = 1 << 20
UNUSED_SECONDS = (
    90 * 86400.0
)  # age at which unused entries are removed by the next node that adds one: EFS bills for storage
HALF_WRITTEN_SECONDS = 86400.0  # likewise for partial files of a node that died
MOST_LISTED = 100_000  # entries that one prune looks at
ENTRY_ERRORS = (errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENXIO)  # a link, another user's file, a socket
Taken = Literal["taken", "missing", "refused"]


class CacheUnusable(Exception):
    """The file system failed; the node continues without it."""


@dataclass(frozen=True, kw_only=True)
class InputCache:
    """The cache, open for as long as the agent lives."""

    folder: int  # descriptor of the entries' folder
    clock: Callable[[], float] = time.time
    moved: Callable[[], None] = lambda: None  # called after each block: bytes are progress

    def take(self, entry: ManifestInput, target: Path) -> Taken:
        """Copy an input to `target` if its bytes match the manifest; return the outcome.

        Raises CacheUnusable, and OSError if `target` can't be written.
        """
        try:
            source = os.open(_name(entry), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self.folder)
        except FileNotFoundError:
            return "missing"
        except OSError as error:
            if error.errno in ENTRY_ERRORS:
                return "refused"
            raise _unusable("an input could not be read", error) from error
        try:
            try:
                status = os.fstat(source)
            except OSError as error:  # NFS asks its server
                raise _unusable("an input could not be read", error) from error
            if not stat.S_ISREG(status.st_mode) or status.st_size != entry.bytes:
                return "refused"
            if self._copied(source, target, most=status.st_size) != entry.sha256:
                return "refused"
            with suppress(OSError):  # another user's file
                os.utime(source)  # mark as used, against `prune`
        finally:
            os.close(source)
        return "taken"

    def _copied(self, source: int, target: Path, *, most: int) -> str:
        """Copy a file and return the sha256 of its bytes; '' if it is longer than `most` bytes."""
        digest, left = hashlib.sha256(), most
        with target.open("wb") as file:
            while block := _read(source):
                left -= len(block)
                if left < 0:
                    return ""
                digest.update(block)
                file.write(block)
                self.moved()
        return digest.hexdigest()

    def add(self, entry: ManifestInput, source: Path) -> None:
        """Add an input's bytes by a rename, which replaces anything of that name. Raises CacheUnusable."""
        new = f".new-{secrets.token_hex(16)}"
        try:
            target = os.open(
                new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=self.folder
            )
            try:
                with source.open("rb") as file:
                    while block := file.read(BLOCK_BYTES):
                        _write(target, block)
                        self.moved()
                os.fsync(target)  # NFS reports write errors here or at the close
            finally:
                os.close(target)
            os.rename(new, _name(entry), src_dir_fd=self.folder, dst_dir_fd=self.folder)
        except OSError as error:
            self._remove(new)
            raise _unusable("an input could not be added", error) from error

    def prune(self) -> None:
        """Remove entries that no node has used for 90 days; ignore failures."""
        now = self.clock()
        with (
            suppress(OSError),
            os.scandir(self.folder) as entries,
        ):  # its server may fail now: the inputs are here
            for number, entry in enumerate(entries):
                if number >= MOST_LISTED:
                    break
                try:
                    age = now - entry.stat(follow_symlinks=False).st_mtime
                except OSError:
                    continue
                if age > (HALF_WRITTEN_SECONDS if entry.name.startswith(".new-") else UNUSED_SECONDS):
                    self._remove(entry.name)

    def _remove(self, name: str) -> None:
        try:
            os.unlink(name, dir_fd=self.folder)
        except OSError as error:
            log.info("the cache keeps %s: %s", name, error)


def open_cache(mount: Path) -> InputCache:
    """Open the cache's folder below its mount point. Raises CacheUnusable."""
    try:
        root = os.open(mount, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with suppress(FileExistsError):
                os.mkdir(LAYOUT, 0o700, dir_fd=root)
            return InputCache(
                folder=os.open(LAYOUT, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=root)
            )
        finally:
            os.close(root)
    except OSError as error:
        raise _unusable("it could not be opened", error) from error


def cacheable(entry: ManifestInput) -> bool:
    """Return whether the manifest pins an input by key, version and hash, as an entry needs. Checkpoints are
    read once.
    """
    return bool(entry.version_id) and bool(entry.sha256) and not entry.key.startswith(RESUMED)


def _name(entry: ManifestInput) -> str:
    pinned = "\0".join((entry.key, entry.version_id, entry.sha256))
    return hashlib.sha256(pinned.encode()).hexdigest()


def _unusable(what: str, error: OSError) -> CacheUnusable:
    return CacheUnusable(f"{what}: {error.strerror}")


def _read(source: int) -> bytes:
    try:
        return os.read(source, BLOCK_BYTES)
    except OSError as error:
        raise _unusable("an input could not be read", error) from error


def _write(target: int, block: bytes) -> None:
    view = memoryview(block)
    while view:
        view = view[os.write(target, view) :]
