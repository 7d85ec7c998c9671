"""Host keys of a node, which it published through its own role: S3 lets only that instance write them
(runs.keys).
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from trainer.aws.objects import Objects, given
from trainer.base.errors import ConfigError, ConnectionFailed
from trainer.runs.keys import NodeKeys

MOST_BYTES = 16 * 1024
MOST_KEYS = 16
KINDS = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa")


@dataclass(frozen=True, kw_only=True)
class HostKey:
    """A public key: its kind, such as `ssh-ed25519`, and its bytes as SSH sends them."""

    kind: str
    blob: bytes


def read_host_keys(objects: Objects, keys: NodeKeys) -> tuple[HostKey, ...]:
    """Return a node's published keys. Raises ConnectionFailed if there are none yet, ConfigError for
    malformed ones.
    """
    stored = given(lambda: objects.get(key=keys.host_keys, first_bytes=MOST_BYTES + 1))
    if stored is None:
        why = "its agent does so when it starts; until then the machine can't be verified"
        do = f"Try again in a minute; mayfly logs {keys.run_id} shows its boot."
        raise ConnectionFailed(f"{keys.instance_id} has not published its host keys yet", why=why, do=do)
    pinned = parse_host_keys(stored.body)
    if not pinned:
        what = f"the host keys of {keys.instance_id} can't be read"
        raise ConfigError(what, why=f"{keys.host_keys} is malformed", do="Nothing was sent to the machine.")
    return pinned


def parse_host_keys(body: bytes) -> tuple[HostKey, ...]:
    """Return the keys in lines of `kind base64 comment`; () if any line is malformed, or if there are too
    many.
    """
    if len(body) > MOST_BYTES:
        return ()
    found = []
    for line in body.decode("ascii", errors="replace").splitlines():
        kind, _, rest = line.strip().partition(" ")
        try:
            blob = base64.b64decode(rest.split(" ")[0], validate=True)
        except (binascii.Error, ValueError):
            return ()
        if blob[:4] != len(kind).to_bytes(4, "big") or blob[4 : 4 + len(kind)] != kind.encode():
            return ()
        if kind in KINDS:  # other kinds are valid, but not used
            found.append(HostKey(kind=kind, blob=blob))
    return tuple(found) if len(found) <= MOST_KEYS else ()
