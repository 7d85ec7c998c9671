"""The folder of an embedded AWS: private, trusted only if this user owns it, with a note of the server's
address.

    <root>/server.json     address, process and secret of the server that runs, for its user alone (0600)
    <root>/server.lock     held by that server
    <root>/server.log      its output
    <root>/format.json     version of the folder's format
    <root>/stack.json      settings of its stack that its user declared
    <root>/s3 settings instances lambda sandbox

A folder may have come with a repository, so its content is not trusted: a note may point to loopback only,
and counts only if the server there knows its secret. Standard library only.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from trainer.base.errors import ConfigError
from trainer.base.files import whole_file

NOTE, LOCK, LOG, VERSION = "server.json", "server.lock", "server.log", "format.json"
STACK = "stack.json"
FORMAT = 3
REFUSED = "refused: "  # in a server's last line, before the JSON of the error for which it does not start
LEAST_FREE_BYTES = 1 << 20
_URL = re.compile(r"http://127\.0\.0\.1:\d{1,5}")
_SECRET = re.compile(r"[0-9a-f]{64}")
_MOST_NOTE_BYTES = 4096
# Folders that the server writes to; files of nodes and functions lie deeper and may be links.
_OWN_FOLDERS = ("*", "s3/*", "s3/*/*", "settings/*", "instances/*", "lambda/*", "sandbox/*")


@dataclass(frozen=True, kw_only=True)
class Note:
    """Note of a running server: its address, its process, and its secret (32 bytes)."""

    url: str
    pid: int
    started: str  # in the kernel's ticks: another process may have the id by now
    secret: bytes


def open_home(root: Path) -> Path:
    """Make the folder if needed and return it resolved. Raises ConfigError if others could have
    written it.
    """
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        what, do = f"the embedded AWS has no folder {root}", "Set MAYFLY_HOME to a folder of your own."
        raise ConfigError(what, why=error.strerror or "", do=do) from error
    root = root.resolve()
    check_home(root)
    if root.stat().st_mode & 0o077:
        root.chmod(0o700)
    return root


def check_home(root: Path) -> None:
    """Raise ConfigError unless this user owns the folder, nobody else may write there, and it has no symbolic
    links.
    """
    about = root.stat()
    why = ""
    if not stat.S_ISDIR(about.st_mode):
        why = "it is not a folder"
    elif about.st_uid != os.geteuid():
        why = f"it belongs to the user {about.st_uid}"
    elif about.st_mode & 0o022:
        why = "other users may write there"
    elif link := next(_links(root), None):
        why = f"{link.relative_to(root)} is a symbolic link"
    if why:
        do = "Set MAYFLY_HOME to a folder of your own, or remove this one."
        raise ConfigError(f"the embedded AWS does not use the folder {root}", why=why, do=do)


def check_version(root: Path) -> None:
    """Mark a new folder with this version. Raises ConfigError for a folder of another one."""
    path = root / VERSION
    if not path.exists():
        with whole_file(path) as new:  # on a full disk it is missing, not empty
            new.write_text(json.dumps({"format": FORMAT}), encoding="utf-8")
        return
    with reading(path):
        known = json.loads(path.read_text(encoding="utf-8"))["format"]
    if known != FORMAT:
        what = "the state of the embedded AWS is of another version of Mayfly"
        why = f"{path} says {known!r}, and this version reads {FORMAT}"
        raise ConfigError(what, why=why, do=_MOVE.format(root=root))


def write_stack_settings(root: Path, settings: Mapping[str, str]) -> None:
    """Write the settings of the rehearsal's stack, as Pulumi's configuration has them."""
    with whole_file(root / STACK) as new:
        new.write_text(json.dumps(dict(settings)), encoding="utf-8")


def read_stack_settings(root: Path) -> dict[str, str]:
    """Return the settings of the rehearsal's stack that differ from the program's; {} if none were declared.

    Raises ConfigError for a file that can't be read.
    """
    path = root / STACK
    if not path.exists():
        return {}
    with reading(path):
        return {str(key): str(value) for key, value in json.loads(path.read_text(encoding="utf-8")).items()}


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn the exceptions of a damaged file of the folder into one ConfigError that names it."""
    try:
        yield
    except OSError as error:
        raise _damaged(path, error.strerror or repr(error)) from error
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from error


def disk_full(root: Path) -> ConfigError:
    """Return the error of a full disk."""
    do = "Free some space, or set MAYFLY_HOME to a folder on another disk."
    return ConfigError("the embedded AWS can't write", why=f"no space left on the disk of {root}", do=do)


def open_private(path: Path, flags: int) -> IO[bytes]:
    """Open a file of the folder for its user alone; a link in its place is an OSError."""
    descriptor = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    return os.fdopen(descriptor, "ab" if flags & os.O_APPEND else "wb")


def write_note(root: Path, note: Note) -> None:
    """Write the note for commands; the file appears whole or not at all."""
    note_fields = {"url": note.url, "pid": note.pid, "started": note.started, "secret": note.secret.hex()}
    with whole_file(root / NOTE) as new, open_private(new, os.O_WRONLY | os.O_EXCL) as file:
        file.write(json.dumps(note_fields).encode())


def read_note(root: Path) -> Note | None:
    """Return the note, or None without a valid one of this user's."""
    try:
        descriptor = os.open(root / NOTE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o077:
            return None
        text = file.read(_MOST_NOTE_BYTES)
    try:
        match json.loads(text):
            case {"url": str(url), "pid": int(pid), "started": str(started), "secret": str(secret)}:
                if _URL.fullmatch(url) and _SECRET.fullmatch(secret):
                    return Note(url=url, pid=pid, started=started, secret=bytes.fromhex(secret))
    except ValueError:  # no JSON
        pass
    return None


_MOVE = "Move {root} away, with the models and receipts in it, and rehearse again."


def _damaged(path: Path, why: str) -> ConfigError:
    root = next((folder for folder in path.parents if (folder / VERSION).exists()), path.parent)
    why = f"{path}: {' '.join(why.split())[:200]}"
    return ConfigError("the embedded AWS can't read its state", why=why, do=_MOVE.format(root=root))


def _links(root: Path) -> Iterator[Path]:
    """Yield symbolic links through which the server would write."""
    return (path for pattern in _OWN_FOLDERS for path in root.glob(pattern) if path.is_symlink())
