"""Output files of a command in S3: listed by its node, each checked with S3."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from trainer.base.errors import ConnectionFailed
from trainer.base.strict_json import Unsound, read_object
from trainer.runs.keys import NodeKeys
from trainer.runs.record import RunRecord
from trainer.runs.reports import MOST_OUTPUTS_BYTES, read_outputs
from trainer.runs.store import Objects, given

AT_ONCE = 10  # as many connections as boto3 keeps open
SECONDS = 120.0  # for asking S3 about the files of one run


def outputs_seen(objects: Objects, record: RunRecord) -> tuple[dict[str, Any], ...]:
    """Return the output files that its nodes list and that S3 holds as listed, by path.

    Raises ConnectionFailed if S3 takes too long; the next look starts over.
    """
    if record.leaves != "files":
        return ()
    listed = {item["file"]: item for keys in record.nodes for item in _listed(objects, keys)}
    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        there = list(pool.map(lambda item: _is_there(objects, item), listed.values(), timeout=SECONDS))
    except TimeoutError as error:
        what = f"S3 did not describe the {len(listed)} files of {record.run_id} within {SECONDS:.0f} s"
        raise ConnectionFailed(what, do="Try again later.") from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return tuple(item for item, is_there in zip(listed.values(), there, strict=True) if is_there)


def _listed(objects: Objects, keys: NodeKeys) -> tuple[dict[str, Any], ...]:
    """Return the files that a node lists; empty for a malformed list."""
    stored = given(lambda: objects.get(key=keys.output_index, first_bytes=MOST_OUTPUTS_BYTES + 1))
    if stored is None:
        return ()
    try:
        return read_outputs(
            read_object(stored.body, most_bytes=MOST_OUTPUTS_BYTES, name="the list"), prefix=keys.outputs
        )
    except Unsound:
        return ()


def _is_there(objects: Objects, item: Mapping[str, Any]) -> bool:
    stored = given(lambda: objects.head(key=item["key"], version_id=item["version_id"]))
    return stored is not None and (stored.checksum, stored.size) == (item["sha256"], item["bytes"])
