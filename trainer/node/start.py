"""The start of an attempt: wait until its start file (`runs.start_file`) names this machine, write down the
other nodes and the token that they share, and lay out the checkpoints that it begins with.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from trainer.aws.access import aws_error
from trainer.base.cluster import write_cluster
from trainer.base.errors import DataError, Stopped, TrainingFailed
from trainer.base.instants import utc_now
from trainer.base.strict_json import Unsound
from trainer.base.text import counted
from trainer.node.shared import Node
from trainer.node.stage import BLOCK_BYTES, fetch_inputs, read_patiently
from trainer.node.uplink import AWS_ERRORS
from trainer.runs.manifest import DATA, ManifestInput
from trainer.runs.snapshots import SnapshotFile
from trainer.runs.start_file import StartFile, read_start
from trainer.runs.store import start_key

log = logging.getLogger("trainer.node")
LOOK_SECONDS = 2.0  # between two looks for the own id
AGAIN = "Launch again, with one version of Mayfly."
TOKEN = b"[0-9a-f]{64}"


def read_start_file(node: Node) -> StartFile:
    """Return the start file of the node's attempt; an empty one where no caller starts attempts. Raises a
    TrainerError if S3 does not return it or it is malformed.
    """
    identity = node.status.identity
    if not node.place.has_instances:
        return StartFile(run_id=identity.run_id, attempt=identity.attempt)
    key = start_key(identity.run_id, identity.attempt)
    try:
        body = read_patiently(lambda: node.uplink.read(key), key, stopped=node.is_stopping)
        return read_start(body, run_id=identity.run_id, attempt=identity.attempt)
    except AWS_ERRORS as error:
        raise aws_error(error, "the start file can't be read") from error
    except Unsound as error:
        raise TrainingFailed("the start file can't be read", why=str(error), do=AGAIN) from error


def await_own_id(
    node: Node, start: StartFile, *, nodes: int = 1, pause: Callable[[float], None] = time.sleep
) -> StartFile:
    """Return the start file once it names this machine, and the addresses of as many `nodes` if they are
    several. Raises TrainingFailed if it does not by the end of the boot's time: no caller counts on this
    machine.
    """
    if not node.place.has_instances:
        return start
    identity = node.status.identity
    ends, is_late = identity.boot_ends(node.status.phases["boot"]), False
    while identity.instance_id not in start.instances or len(start.addresses) != (nodes if nodes > 1 else 0):
        if is_late:
            what = f"attempt {identity.attempt} of {identity.run_id} does not count on this machine"
            named = ", ".join(start.instances) or "none"
            why = f"its start file names {named}, not {identity.instance_id}"
            if identity.instance_id in start.instances:
                why = f"its start file names the addresses of {len(start.addresses)} of {nodes} nodes"
            raise TrainingFailed(what, why=why, do="Nothing: its caller has another, or gave it up.")
        if node.is_stopping():
            raise Stopped("stopped before its attempt began")
        if not (is_late := utc_now() >= ends):
            pause(LOOK_SECONDS)
        start = read_start_file(node)  # also when it is late: inputs may have been staged since the last time
    return start


def write_down_nodes(node: Node, start: StartFile) -> None:
    """Write the file of the attempt's nodes and the token that they share into the work folder; nothing
    for one node. Raises a TrainerError if S3 does not return the token.
    """
    cluster = start.cluster_of(node.status.identity.instance_id)
    if cluster is None:
        return
    node.cluster = cluster
    node.token = read_token(node)
    with os.fdopen(os.open(node.token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(node.token)
    write_cluster(node.cluster_file, cluster)
    log.info("node %d of %s", cluster.node, ", ".join(cluster.addresses))


def read_token(node: Node) -> str:
    """Return the token of the node's attempt. Raises a TrainerError if S3 does not return it or it is
    malformed.
    """
    key = node.status.identity.keys.token
    try:
        body = read_patiently(lambda: node.uplink.read(key), key, stopped=node.is_stopping)
    except AWS_ERRORS as error:
        raise aws_error(error, "the nodes' token can't be read") from error
    if not re.fullmatch(TOKEN, body):
        raise TrainingFailed("the nodes' token can't be read", why="it is malformed", do=AGAIN)
    return body.decode()


def lay_out_checkpoints(node: Node, start: StartFile, folder: Path) -> None:
    """Put the files that an attempt begins with into CHECKPOINTS, which is new. Raises a TrainerError."""
    if not start.files:
        return
    fetched = node.work / "resumed"
    objects = [
        ManifestInput(
            path=f"{DATA}/{one.sha256}",
            key=one.key,
            version_id=one.version_id,
            sha256=one.sha256,
            bytes=one.size,
        )
        for one in start.objects
    ]
    fetch_inputs(node, objects, fetched)
    try:
        left = Counter(file.object for file in start.files)
        for file in start.files:
            _write(fetched / file.object, file, folder / file.path)
            left[file.object] -= 1
            if not left[file.object]:
                (fetched / file.object).unlink()
    finally:
        shutil.rmtree(fetched, ignore_errors=True)
    log.info("%s of earlier checkpoints laid out", counted(len(start.files), "file"))


def _write(source: Path, file: SnapshotFile, target: Path) -> None:
    """Write a file from its object. Raises DataError for other bytes than its hash says."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest, left = hashlib.sha256(), file.size
    with source.open("rb") as content, target.open("xb") as made:
        content.seek(file.offset)
        while block := content.read(min(BLOCK_BYTES, left)):
            digest.update(block)
            made.write(block)
            left -= len(block)
    if digest.hexdigest() != file.sha256:
        why = f"its sha256 is {digest.hexdigest()}, the start file says {file.sha256}"
        raise DataError(f"the checkpoint {file.path} can't be used", why=why, do="Launch again.")
