"""Unpacked code of functions, by the hash of its zip: shared by accounts and servers, since libraries compile
slowly.
"""

from __future__ import annotations

import io
import os
import shutil
import time
import uuid
import zipfile
from contextlib import suppress
from pathlib import Path

from trainer.rehearsal.applied_program import open_folder

UNUSED_SECONDS = 24 * 3600.0


def unpack(code: bytes, *, folder: Path) -> Path:
    """Unpack a zip into a folder, named after its hash, unless that exists; return the folder."""
    open_folder(folder.parent)
    if not keep(folder):
        partial = folder.with_name(f"{folder.name}.{uuid.uuid4().hex[:8]}")
        with zipfile.ZipFile(io.BytesIO(code)) as archive:
            try:
                archive.extractall(partial)
            except OSError:
                shutil.rmtree(partial, ignore_errors=True)
                raise
        try:
            partial.rename(folder)
        except OSError:  # another process unpacked the same zip meanwhile
            shutil.rmtree(partial, ignore_errors=True)
            if not folder.exists():
                raise
        _forget_unused(folder.parent)
    return folder


def keep(folder: Path) -> bool:
    """Mark a folder as in use; return whether it exists."""
    try:
        os.utime(folder)
    except FileNotFoundError:
        return False
    return True


def _forget_unused(parent: Path) -> None:
    """Remove the code that no server has used for a day."""
    for folder in parent.iterdir():
        with suppress(FileNotFoundError):  # another server was faster
            if folder.stat().st_mtime < time.time() - UNUSED_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
