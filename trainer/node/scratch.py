"""Temporary folder of a script, directly below the system's: a socket's path has at most 107 bytes.

DataLoader workers open such sockets. The work folder has a link to it, so that the next run can remove what a
killed agent left.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from trainer.base import environment

PREFIX = "mayfly-script-"
LINK = "tmp"


def make_scratch(work: Path) -> Path:
    """Make a temporary folder, linked from the work folder, and return its path."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=environment.temporary_folder()))
    (work / LINK).symlink_to(folder)
    return folder


def remove_scratch(work: Path) -> None:
    """Remove the link, and its folder if that is this user's, directly in the temporary folder and named by
    us.
    """
    link = work / LINK
    with suppress(OSError):
        folder = link.readlink()
        about = folder.lstat()
        ours = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and folder.name.startswith(PREFIX)
        if ours and folder.parent == environment.temporary_folder():
            shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        link.unlink()
