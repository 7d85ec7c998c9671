"""SSH keys of runs: one pair for each, made at its launch. The public half goes into the manifest, the
private one stays here.

    <state folder>/keys/<run id>     the private half, OpenSSH's format, 0600

A key is deleted once its run has a receipt, and at the latest when no machine of its run can be alive.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from trainer.aws.objects import Objects
from trainer.base.environment import keys_folder
from trainer.base.errors import ConfigError, TrainerError
from trainer.runs.store import receipt_key

# A stack's cap is seven days at most, and each of five machines may wait in line for twelve hours.
LONGEST_LIFE_SECONDS = 10 * 24 * 3600.0
_RUN_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,99}")


def make_key(run_id: str) -> str:
    """Make a run's key pair and return the public half, one line. Raises ConfigError if the private one can't
    be kept.
    """
    from cryptography.hazmat.primitives import serialization as form  # late: of the extra `attach`
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    pair = Ed25519PrivateKey.generate()
    private = pair.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
    public = pair.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    path = _path(run_id)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(file, "wb") as target:
            target.write(private)
    except OSError as error:
        why, do = error.strerror or str(error), "Set MAYFLY_HOME to a folder of your own."
        raise ConfigError(f"the run's SSH key can't be kept in {path.parent}", why=why, do=do) from error
    return public.decode()


def find_key(run_id: str) -> Path:
    """Return the file of a run's private key. Raises ConfigError if this desk has none, or if others may read
    it.
    """
    path = _path(run_id)
    try:
        about = path.lstat()
    except OSError as error:
        what, why = f"this desk has no SSH key of {run_id}", f"there is no {path}"
        do = "Attach from the desk that launched the run; scheduled runs have no key."
        raise ConfigError(what, why=why, do=do) from error
    if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o077:
        why = "it must be your file, and unreadable for others"
        do = f"Check who changed it; then: chmod 600 {path}"
        raise ConfigError(f"the SSH key {path} is not used", why=why, do=do)
    return path


def forget_key(run_id: str) -> bool:
    """Delete a run's private key; return whether there was one."""
    try:
        _path(run_id).unlink()
    except FileNotFoundError:
        return False
    return True


def forget_ended(objects: Objects, *, ended: Iterable[str] = ()) -> list[str]:
    """Delete the keys of runs in `ended`, of runs with a receipt, and keys older than any run; return the
    runs' ids.

    One that can't be looked up or deleted now stays until the next command: the caller still has a receipt to
    show.
    """
    gone, old, forgotten = set(ended), time.time() - LONGEST_LIFE_SECONDS, list[str]()
    for run_id in _run_ids():
        with suppress(OSError, TrainerError):
            over = run_id in gone or _made_at(run_id) < old
            over = over or objects.head(key=receipt_key(run_id)) is not None
            if over and forget_key(run_id):
                forgotten.append(run_id)
    return forgotten


def _run_ids() -> list[str]:
    try:
        return sorted(path.name for path in keys_folder().iterdir() if _RUN_ID.fullmatch(path.name))
    except OSError:
        return []


def _made_at(run_id: str) -> float:
    try:
        return _path(run_id).lstat().st_mtime
    except OSError:
        return 0.0


def _path(run_id: str) -> Path:
    if not _RUN_ID.fullmatch(run_id):
        raise ConfigError(f"'{run_id}' is not a run id", do="mayfly status lists the runs.")
    return keys_folder() / run_id
