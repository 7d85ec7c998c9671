"""SSH to a running node: only to the machine whose host keys are pinned, only with the key of its run; ~/.ssh
is not used.

Commands and shells run as a user that the node made (node.ssh), whose key allows a terminal and ports only.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import paramiko

from trainer.attach.host_keys import HostKey
from trainer.base.errors import ConnectionFailed, PermissionDenied

logging.getLogger("paramiko").setLevel(logging.CRITICAL)  # our own errors report it
USER, PORT = "mayfly", 22
CONNECT_SECONDS, ANSWER_SECONDS = 15.0, 30.0
KEEPALIVE_SECONDS = 30  # a firewall on the way forgets silent connections
_ALGORITHMS = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}  # of signatures; others have their kind's name


@contextmanager
def connection(
    host: str, *, pinned: Sequence[HostKey], key_file: Path, user: str = USER, port: int = PORT
) -> Iterator[paramiko.Transport]:
    """Yield a connection whose server has proven one of the pinned keys and accepted the run's key.

    Raises ConnectionFailed if no server or another one answers, and PermissionDenied if it refuses the key.
    """
    transport = paramiko.Transport(_dial(host, port))
    try:
        _check_machine(transport, host, pinned)
        _sign_in(transport, user, paramiko.Ed25519Key.from_private_key_file(str(key_file)))
        transport.set_keepalive(KEEPALIVE_SECONDS)
        yield transport
    finally:
        transport.close()


def _dial(host: str, port: int) -> socket.socket:
    try:
        return socket.create_connection((host, port), timeout=CONNECT_SECONDS)
    except OSError as error:
        check = "Check that the stack's setting attach is this desk's address."
        do = f"{check} If so, the machine may still be booting."
        raise ConnectionFailed(f"{host} does not answer at port {port}", why=str(error), do=do) from error


def _check_machine(transport: paramiko.Transport, host: str, pinned: Sequence[HostKey]) -> None:
    """Exchange keys and check that the server's is pinned, before any name or signature is sent. Raises
    ConnectionFailed.
    """
    wanted = [name for key in pinned for name in _ALGORITHMS.get(key.kind, (key.kind,))]
    options = transport.get_security_options()
    options.key_types = [name for name in options.key_types if name in wanted]
    between = "Somebody may be between you and the machine: end the run with mayfly stop, and find out."
    do = f"Nothing was sent to it. {between}"
    try:
        transport.start_client(timeout=ANSWER_SECONDS)
        shown = transport.get_remote_server_key()
    except paramiko.ssh_exception.IncompatiblePeer as error:
        why = f"it has no host key of the kinds that the node published: {error}"
        raise ConnectionFailed(f"the machine at {host} is not the run's", why=why, do=do) from error
    except (paramiko.SSHException, EOFError, OSError) as error:
        why = str(error) or type(error).__name__
        raise ConnectionFailed(f"{host} does not speak SSH", why=why, do="Try again.") from error
    if HostKey(kind=shown.get_name(), blob=shown.asbytes()) not in pinned:
        why = f"its host key {fingerprint(shown.asbytes())} is none of those that the node published"
        raise ConnectionFailed(f"the machine at {host} is not the run's", why=why, do=do)


def _sign_in(transport: paramiko.Transport, user: str, key: paramiko.PKey) -> None:
    try:
        transport.auth_publickey(user, key)
    except paramiko.AuthenticationException as error:
        do = "mayfly logs RUN shows whether the node installed it."
        raise PermissionDenied("the machine refuses the run's key", why=str(error), do=do) from error


def fingerprint(blob: bytes) -> str:
    """Return a key's fingerprint as ssh-keygen -l prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
