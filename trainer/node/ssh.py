"""SSH on a node whose stack has attach = ssh: create a user for the run's key, and publish the host keys.

The user has no password, is in no group but its own and may not become root. A failure here is logged and
does not end the run. sshd is the image's own; the security group decides who reaches it.
"""

from __future__ import annotations

import logging
import os
import pwd
import re
import shutil
import subprocess
from pathlib import Path

from trainer.base.errors import ConnectionFailed
from trainer.node.shared import Node

log = logging.getLogger("trainer.node")
USER = "mayfly"
SECONDS = 30.0
PUBLIC_KEY = re.compile(r"ssh-ed25519 [A-Za-z0-9+/]{68}")
# A terminal and the node's own ports, and no agent, X11 or other hosts (sshd(8), AUTHORIZED_KEYS FILE
# FORMAT).
OPTIONS = 'restrict,pty,port-forwarding,permitopen="127.0.0.1:*",permitopen="localhost:*"'


def open_ssh(node: Node, key: str, *, etc: Path = Path("/etc")) -> None:
    """Authorize the run's key, if it has one, and publish the host keys; log a failure."""
    if not key or node.place.no_attach:
        return
    if not PUBLIC_KEY.fullmatch(key):
        log.warning("nobody can attach: the manifest's SSH key is not an ed25519 key")
        return
    try:
        authorize(make_user(), key)
        keys, published = host_keys(etc / "ssh"), node.status.identity.keys.host_keys
        node.uplink.send(published, keys, patience_seconds=SECONDS)
    except (OSError, subprocess.SubprocessError, KeyError, ConnectionFailed) as error:
        log.warning("nobody can attach: %s", error)
    else:
        log.info("the run's SSH key may sign in as %s", USER)


def make_user() -> Path:
    """Make the user, unless it exists, and return its home. Raises OSError or CalledProcessError.

    `*` matches no password, and sshd, unlike for `!`, treats the account as unlocked.
    """
    try:
        known = pwd.getpwnam(USER)
    except KeyError:
        options = ("--create-home", "--user-group", "--shell=/bin/bash", "--password=*")
        subprocess.run(("useradd", *options, USER), check=True, capture_output=True, timeout=SECONDS)
        known = pwd.getpwnam(USER)
    return Path(known.pw_dir)


def authorize(home: Path, key: str) -> None:
    """Make `key` the only public key that can sign in as the owner of `home`."""
    owner = home.stat()
    folder = home / ".ssh"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / "authorized_keys"
    new = folder / "authorized_keys.new"
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(file, "w", encoding="ascii") as target:
        target.write(f"{OPTIONS} {key}\n")
    for one in (folder, new):
        shutil.chown(one, owner.st_uid, owner.st_gid)
    new.replace(path)


def host_keys(folder: Path) -> bytes:
    """Return the machine's public host keys, a line each. Raises OSError if it has none."""
    keys = sorted(folder.glob("ssh_host_*_key.pub"))
    if not keys:
        raise OSError(f"{folder} has no host keys")
    return b"".join(key.read_bytes().rstrip(b"\n") + b"\n" for key in keys)
