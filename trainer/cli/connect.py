"""Access for a verb: to the embedded AWS with `--rehearse`, else to the account that AWS's own variables
name; and the local folder, candles/<set>/ and models/<run>/, which works with any stack.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from trainer.aws.access import Access, own_access
from trainer.aws.objects import Objects
from trainer.aws.place import HERE
from trainer.base import environment
from trainer.base.errors import ConfigError, ConnectionFailed, EmbeddedAwsGone, UsageError
from trainer.cli.output import warn
from trainer.job.job import Job
from trainer.runs.store import find_run

LOCAL_FOLDERS = ("candles", "models", "raw", "runs")  # of a folder that commands read, one at least
T = TypeVar("T")
MOST_LOOKS = 360  # half an hour at least, every five seconds


@contextmanager
def connected(
    *, rehearse: bool, program: bool = True, create: bool = True, local: str | None = None
) -> Iterator[Access]:
    """Yield access while a command runs. `program=False`: for commands that only read the bucket; creates
    nothing. `create=False`: needs an existing stack. `local`: a folder instead of a bucket, '' for the
    one that MAYFLY_LOCAL names.
    """
    if local is not None:
        yield _folder_access(local, rehearse=rehearse, reads=not program)
        return
    if not rehearse:
        yield own_access()
        return
    if sys.platform != "linux":
        why, do = f"this is {sys.platform}", "Run it in a Linux container, or under WSL."
        raise ConfigError("--rehearse needs Linux or a container", why=why, do=do)
    from trainer.rehearsal.client import rehearsal  # late: moto and the program are for rehearsals alone

    with rehearsal(program=program, create=program and create) as access:
        yield access


def is_rehearsal(*, rehearse: bool, local: str | None) -> bool:
    """Return whether a command rehearses: by its flag or, unless it names a folder, by MAYFLY_REHEARSE."""
    return rehearse or (local is None and environment.rehearses())


def same_place(arguments: argparse.Namespace) -> str:
    """Return the flags by which a further command looks at the same AWS and stack, or the same folder."""
    if (local := getattr(arguments, "local", None)) is not None:
        return f" --local {shlex.quote(local)}" if local else " --local"
    rehearse = " --rehearse" if arguments.rehearse else ""
    return rehearse + (f" --stack {arguments.stack}" if arguments.stack != "dev" else "")


def named_run(objects: Objects, name: str) -> str:
    """Return the id of the run that a command names, as `find_run` does; print one that was not typed."""
    run_id = find_run(objects, name)
    if run_id != name:
        warn(f"run {run_id}")
    return run_id


def look_again(look: Callable[[], T], wait: Callable[[], None]) -> T:
    """Return a further look of a command that watches a run; while AWS can't be reached, say so once, wait
    and look again, MOST_LOOKS times. A laptop that wakes may be without its network for a while.
    """
    for number in range(MOST_LOOKS):
        try:
            return look()
        except EmbeddedAwsGone:  # it never comes back
            raise
        except ConnectionFailed as error:
            if not number:
                warn(f"warning: {error}")
            wait()
    return look()


def local_root(local: str) -> Path:
    """Return the folder of `--local` or of a backup: the one named here, else the one of MAYFLY_LOCAL.

    Raises UsageError if neither names one, and for a path that is not UTF-8: the record of a run holds it.
    """
    folder = Path(local) if local else environment.local_folder()
    if folder is None:
        do = "Name one in the command, or for all commands: export MAYFLY_LOCAL=FOLDER."
        raise UsageError("no local folder is named", why="MAYFLY_LOCAL is not set", do=do)
    try:
        str(folder.resolve()).encode()
    except UnicodeEncodeError as error:
        why, do = "its path is not UTF-8", "Rename it, or name another."
        raise UsageError(f"{folder} can't be used", why=why, do=do) from error
    return folder


def local_candles(job: Job, root: Path | None = None) -> Path | None:
    """Return the folder of a job's data set; None if the job names its candles or there is no such folder.

    `root` is used instead of the local folder.
    """
    root = root or environment.local_folder()
    if root is None or job.data.path:
        return None
    folder = root / "candles" / job.data.set
    return folder if folder.is_dir() else None


def folder_of_run(run_id: str) -> Path:
    """Return the folder for a run's models: in the local folder, or below the current one without it."""
    root = environment.local_folder()
    return root / "models" / run_id if root else Path(run_id)


def _folder_access(local: str, *, rehearse: bool, reads: bool) -> Access:
    """Return access to a folder. `reads`: it needs one with something of Mayfly's in it, so that a mistyped
    name is no empty bucket.
    """
    if rehearse:
        why, do = "a folder needs no AWS", "Leave one out."
        raise UsageError("--local and --rehearse don't go together", why=why, do=do)
    folder = local_root(local)
    if not folder.is_dir():
        do = "mayfly agent --here --local FOLDER makes one."
        why = "it is a file" if folder.exists() else "it does not exist"
        raise UsageError(f"{folder} is not a folder", why=why, do=do)
    if reads and not any((folder / name).is_dir() for name in LOCAL_FOLDERS):
        why = f"it has none of {', '.join(f'{name}/' for name in LOCAL_FOLDERS)}"
        raise UsageError(f"{folder} holds nothing of Mayfly's", why=why, do="Name another folder.")
    return Access(folder=folder.resolve(), place=HERE)
