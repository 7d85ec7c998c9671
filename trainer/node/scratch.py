"""A script's folder for temporary files, right below the system's own, since sockets lie there whose path holds 107 bytes.

A DataLoader's workers need one. The work folder has a link to it, by which the next run removes what a killed agent left.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from trainer import environment

PREFIX = "mayfly-script-"
LINK = "tmp"


def make_scratch(work: Path) -> Path:
    """Make the folder of a run in this work folder, and return it."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=environment.temporary_folder()))
    (work / LINK).symlink_to(folder)
    return folder


def remove_scratch(work: Path) -> None:
    """Remove it with its link, if it is this user's own, right in the temporary folder, and has our name."""
    link = work / LINK
    with suppress(OSError):
        folder = link.readlink()
        about = folder.lstat()
        ours = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and folder.name.startswith(PREFIX)
        if ours and folder.parent == environment.temporary_folder():
            shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        link.unlink()
