"""Ray for a script of several nodes (`script.ray`): every node starts it with the script's own Python and
user, the first one runs the script, and the others serve until Ray ends there.

The script has RAY_ADDRESS and the token's file, and is otherwise a script: its requirements name ray, in the
version that serves it.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from trainer.base.environment import for_script
from trainer.base.errors import Stopped, TrainingFailed
from trainer.cluster.ray_node import HEALTH, QUIET, head_port, start_words
from trainer.node.command_process import CommandProcess
from trainer.node.own_user import OwnUser
from trainer.node.shared import Node

log = logging.getLogger("trainer.node")
RAY_TOKEN = "RAY_AUTH_TOKEN_PATH"  # Ray reads the nodes' token from the file that it names
START_SECONDS = 600.0  # within which the head's Ray answers
POLL_SECONDS = 0.5
LOOK_SECONDS = 5.0  # between two looks at the head's Ray
MOST_MISSED = 3  # looks in a row without an answer: it has ended


def ray_variables(node: Node, token: Path) -> dict[str, str]:
    """Return the variables by which a script finds Ray."""
    assert node.cluster is not None
    address = f"{node.cluster.head}:{head_port(node.cluster)}"
    return {**HEALTH, **QUIET, "RAY_ADDRESS": address, RAY_TOKEN: str(token)}


def token_for(node: Node, own_user: OwnUser | None, folder: Path) -> Path:
    """Write the nodes' token for the script's user alone, and return the file."""
    file = folder / "ray-token"
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as new:
        new.write(node.token)
    if own_user is not None:
        os.chown(file, own_user.uid, own_user.gid)
    return file


@contextmanager
def ray_of_script(
    node: Node, variables: Mapping[str, str], *, programs: str, files: Path, own_user: OwnUser | None
) -> Iterator[CommandProcess]:
    """Run Ray on this node while the context lasts, once that of the first one answers. Raises Stopped and
    TrainingFailed.
    """
    cluster = node.cluster
    assert cluster is not None
    folder = Path(tempfile.mkdtemp(prefix="mf-", dir="/tmp"))  # sockets need a short path
    if own_user is not None:
        own_user.give(folder)
    gpus = node.status.devices.found if node.status.devices and node.status.devices.kind == "cuda" else 0
    python = str(Path(programs) / "python")
    words = start_words(cluster, folder=folder, cpus=os.cpu_count() or 1, gpus=gpus, python=python)
    if not cluster.is_head:
        _await_head(node, None)
    mark = f"MAYFLY_RAY={folder}"
    environment = for_script({**variables, "MAYFLY_RAY": str(folder)}, path=programs)
    process = CommandProcess(
        words,
        folder=files,
        environment=environment,
        own_user=own_user,
        grace_seconds=node.place.stop_seconds,
        redaction=node.redaction,
        name="ray",
        share=0.1,
        mark=mark,
    )
    try:
        with process:
            _await_head(node, process)
            yield process
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def serve(node: Node, process: CommandProcess) -> None:
    """Serve until Ray ends here, or on the first node, since the script has ended there. Raises Stopped."""
    log.info("this node serves the script of node 0")
    missed, looked_at = 0, node.clock()
    while process.poll() is None and missed < MOST_MISSED and not node.is_stopping():
        node.moved()
        time.sleep(POLL_SECONDS)
        if node.clock() - looked_at >= LOOK_SECONDS:
            looked_at, missed = node.clock(), 0 if answers(node) else missed + 1
    if node.is_stopping():
        raise Stopped("stopped while it served the script of node 0")


def answers(node: Node) -> bool:
    """Return whether the first node's Ray takes connections."""
    assert node.cluster is not None
    place = (node.cluster.head, head_port(node.cluster))
    with suppress(OSError), socket.create_connection(place, timeout=LOOK_SECONDS):
        return True
    return False


def _await_head(node: Node, process: CommandProcess | None) -> None:
    """Wait until the first node's Ray answers."""
    assert node.cluster is not None
    ends = node.clock() + START_SECONDS
    while node.clock() < ends:
        if answers(node):
            return
        if node.is_stopping():
            raise Stopped("stopped before Ray answered")
        if process is not None and (code := process.poll()) is not None:
            why = process.output.last_lines[-1] if process.output.last_lines else f"exit code {code}"
            raise TrainingFailed("Ray did not start", why=why, do="Name ray==2.60.0 in script.requirements.")
        node.moved()
        time.sleep(POLL_SECONDS)
    why = f"nothing answered at {node.cluster.head} for {START_SECONDS:.0f} s"
    raise TrainingFailed("Ray of node 0 can't be reached", why=why, do="Read `mayfly logs`.")
