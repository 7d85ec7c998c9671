"""The token that the nodes of one attempt share, by which Ray knows them: each has a copy that no other node
can read (docs/adr/0032-a-token-for-each-node.md).

Any node may read `runs/*/attempts/*/start.json`, so it is not there. Whoever drives the run writes it, before
the start file names the nodes, and deletes it with its versions once they are gone.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from trainer.aws.objects import Conflict, Objects
from trainer.base.errors import ConfigError, ConnectionFailed, TrainerError
from trainer.runs.keys import NodeKeys

log = logging.getLogger("trainer.control")
TOKEN = "[0-9a-f]{64}"
AT_ONCE = 8
MOST_VERSIONS = 5  # of a copy that are deleted: one is written


def give_token(objects: Objects, nodes: Sequence[NodeKeys]) -> None:
    """Write an attempt's token for each of its nodes. Of two callers at once the first one's counts: the
    head's copy is written once, and the others are copies of it.
    """
    head, *others = nodes
    with suppress(Conflict):
        objects.put(key=head.token, body=secrets.token_hex(32).encode(), create=True)
    stored = objects.get(key=head.token)
    if stored is None:
        do = "Look again in a few minutes; the machines end at their boot allowance without it."
        raise ConnectionFailed(f"{head.token} is not found now", why="S3 does not return it yet", do=do)
    if not re.fullmatch(TOKEN, stored.body.decode(errors="replace")):
        raise ConfigError(
            f"{head.token} is not a token", do="Find out who wrote it: only a run's caller does."
        )
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(partial(_copy, objects, stored.body), others))


def delete_tokens(objects: Objects, nodes: Sequence[NodeKeys]) -> None:
    """Delete the tokens of nodes, every version. Raises ConnectionFailed if S3 does not answer; where it
    refuses, the bucket's lifecycle ends them within two days.
    """
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(partial(_delete, objects), nodes))


def _copy(objects: Objects, token: bytes, keys: NodeKeys) -> None:
    with suppress(Conflict):
        objects.put(key=keys.token, body=token, create=True)


def _delete(objects: Objects, keys: NodeKeys) -> None:
    try:
        for _ in range(MOST_VERSIONS):
            if (stored := objects.head(key=keys.token)) is None:
                return
            objects.delete(key=keys.token, version_id=stored.version_id)
    except ConnectionFailed:
        raise
    except TrainerError as error:
        log.warning("%s stays until the bucket's lifecycle ends it: %s", keys.token, error)
