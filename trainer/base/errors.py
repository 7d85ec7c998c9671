"""The errors a user can meet, and the exit code of each. One tree; `trainer.cli.main` prints them and exits.

TrainerError
├── UsageError              2    misuse, bad input at the desk
├── DataError               2    bad data (100 when the node finds it)
├── TrainingFailed          100  a model or the job failed
├── CapacityError           101  no capacity on any rung within the time given
├── QuotaError              102  the account may not start that many vCPUs
├── ConfigError             103  settings, or a stack that does not fit
│   ├── PermissionDenied    103  credentials or permission
│   └── ConnectionFailed    103  network
│       ├── EmbeddedAwsGone 103  the embedded AWS of a rehearsal has ended
│       └── NotVersioned    103  the bucket's versioning has not arrived everywhere yet, or is off
├── BudgetError             104  budget or deadline: refused before, or ended by it
├── Interrupted             105  its machine was lost, and no further attempt was possible
├── TerminationUnconfirmed  110  an instance could not be seen to end
└── Stopped                 130  Ctrl-C or `stop` ended the run
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import ClassVar

FULL = (errno.ENOSPC, errno.EDQUOT)  # a disk
_LIMITS = (errno.EMFILE, errno.ENFILE, errno.EFBIG, errno.EIO, errno.ENOMEM, errno.EAGAIN)


class TrainerError(Exception):
    """Say what failed (with the value), why (with the AWS code), and what to do (a command or a setting)."""

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, why: str = "", do: str = "") -> None:
        super().__init__(what)
        self.what, self.why, self.do = what, why, do

    def __str__(self) -> str:
        reason = f" ({self.why})" if self.why else ""
        remedy = f" {self.do}" if self.do else ""
        ending = "" if self.what.endswith((".", "?", "!")) and not reason else "."
        return f"{self.what.rstrip('.') if reason else self.what}{reason}{ending}{remedy}"

    def rename(self, names: Mapping[str, str]) -> None:
        """Put a user's names in place of paths of ours, such as those of temporary copies."""
        for path, name in names.items():
            self.what, self.why, self.do = (
                text.replace(path, name) for text in (self.what, self.why, self.do)
            )

    def as_dict(self) -> dict[str, object]:
        """Return the error as `--json` prints it: {"code", "what", "why", "do"}."""
        return {"code": self.exit_code, "what": self.what, "why": self.why, "do": self.do}


class UsageError(TrainerError):
    exit_code = 2


class DataError(TrainerError):
    exit_code = 2


class TrainingFailed(TrainerError):
    exit_code = 100


class CapacityError(TrainerError):
    exit_code = 101


class QuotaError(TrainerError):
    exit_code = 102


class ConfigError(TrainerError):
    exit_code = 103


class PermissionDenied(ConfigError):
    pass


class ConnectionFailed(ConfigError):
    pass


class EmbeddedAwsGone(ConnectionFailed):
    pass


class NotVersioned(ConnectionFailed):
    pass


class BudgetError(TrainerError):
    exit_code = 104


class Interrupted(TrainerError):
    exit_code = 105


class TerminationUnconfirmed(TrainerError):
    exit_code = 110


class Stopped(TrainerError):
    exit_code = 130


@contextmanager
def renaming(names: Mapping[str, str]) -> Iterator[None]:
    """Rename paths in the error that leaves this context, as `TrainerError.rename` does."""
    try:
        yield
    except TrainerError as error:
        error.rename(names)
        raise


def problem_of(error: BaseException) -> TrainerError | None:
    """Return the error to show: itself if it is ours, else that of a file that can't be read or written, of a
    full disk, of a socket whose path is too long, of memory, or of another limit of the system; None for any
    other.
    """
    if isinstance(error, TrainerError):
        return error
    if isinstance(error, MemoryError):
        do = "Free some, take a machine with more, or raise this shell's limit (ulimit -v)."
        return ConfigError("the system refused memory", why=str(error), do=do)
    if not isinstance(error, OSError):
        return None
    if error.errno in FULL:
        at = f" {error.filename}" if error.filename else ""
        return ConfigError(f"cannot write{at}", why=str(error.strerror), do="Free some space.")
    if str(error) == "AF_UNIX path too long":  # of multiprocessing's sockets, and ours
        why = "a socket's path has 107 bytes at most, on a Mac 103"
        do = "Set TMPDIR to a shorter one, such as /tmp."
        return ConfigError("the path of the temporary folder is too long", why=why, do=do)
    is_limit = error.errno in _LIMITS
    limits = "Check the disk, the memory and this shell's limits (ulimit -a)."
    if error.filename is not None:
        do = limits if is_limit else "Check the path and its permissions."
        return ConfigError(f"cannot use {error.filename}", why=str(error.strerror), do=do)
    if not is_limit:
        return None
    what = "the system refused a file, a connection or a process"
    return ConfigError(what, why=str(error.strerror), do=limits)


def nearest(
    word: str,
    known: Iterable[str],
    *,
    count: int = 3,
    closeness: float = 0.5,
    shown: Mapping[str, str] | None = None,
) -> str:
    """Return 'Did you mean a, b?' for the names of `known` closest to `word`, or '' when none is close.

    `shown`: names that are printed in another form.
    """
    spelled = {name.lower(): name for name in sorted(known)}
    names = [spelled[match] for match in get_close_matches(word.lower(), spelled, n=count, cutoff=closeness)]
    return f"Did you mean {', '.join((shown or {}).get(name, name) for name in names)}?" if names else ""
