"""Take over the output of a prepare run: new files of its data set, and index entries. Nothing that its node
wrote is trusted.

The node runs a script of the user's. Names are one part of a path (`runs.reports`), sizes and hashes are S3's
own, an index entry is read strictly and within bounds, and existing keys of the set are never overwritten.
Idempotent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn, TypeVar

from trainer.aws.objects import Conflict, Objects, Stored, given
from trainer.base.errors import DataError
from trainer.base.strict_json import Unsound
from trainer.data.columns import told_parts
from trainer.launch.inputs import MOST_INDEX_BYTES, RAW, describes, hash_key, index_key, read_summary
from trainer.launch.tasks import UNCHECKED_FILE
from trainer.runs.keys import NodeKeys
from trainer.runs.manifest import DATA, ManifestInput, read_manifest
from trainer.runs.record import RunRecord
from trainer.runs.reports import MOST_ADDED_BYTES, MOST_ADDED_FILES
from trainer.runs.store import manifest_key

# of files that came by other means, without S3's own checksum: control reads these
MOST_HASHED_BYTES = 2 * 2**30
DESCRIBED = ("timeframe", "synthetic", "further", "holds")  # fields of an index entry about a file's content
AT_ONCE = 8
T = TypeVar("T")
_DO = (
    "Read the log of the prepare run. If the job has a refresh script, correct it and publish the retrain"
    " again."
)


def take_over(objects: Objects, record: RunRecord, receipt: Mapping[str, Any]) -> str:
    """Add the files of a prepare run's receipt to its set, with their index entries; return a sentence about
    them.

    Raises DataError for a file that differs from the node's report, or that the set already has with other
    bytes. All files are checked before the first is added, so that a set gets all of them or none.
    """
    files = [dict(item) for item in receipt["files"]]
    added = [item for item in files if item["added"]]
    if (
        max(len(added), len(files) - len(added)) > MOST_ADDED_FILES
        or sum(item["bytes"] for item in added) > MOST_ADDED_BYTES
    ):
        why = f"{MOST_ADDED_FILES:,} files of each kind and {MOST_ADDED_BYTES / 2**30:.0f} GiB are the most"
        raise DataError(
            f"the prepare run reports {len(files):,} files, {_gib(added)} of them new", why=why, do=_DO
        )
    if not files:
        return "no new files"
    keys, raw = _keys(objects, record), f"{RAW}{record.job['data']['set']}/"
    summaries = _summaries(objects, keys, files)
    found = _each(partial(_added, objects, keys, raw), added)
    found |= _there_before(objects, record, raw, [item for item in files if not item["added"]])
    told = told_parts(record.job["data"].get("columns", ()))  # as the job has them, whatever the node says
    summaries = {name: {**summary, "told": list(told)} for name, summary in summaries.items()}
    _each(lambda item: _take(objects, found[item["file"]], summaries[item["file"]], raw, item), files)
    bars = sum(int(held["bars"]) for item in added for held in summaries[item["file"]]["holds"])
    indexed = len(files) - len(added)
    words = [f"{len(added)} new file{'s' * (len(added) != 1)}, {bars:,} bars"] if added else []
    return ", ".join([*words, *([f"{indexed} checked"] if indexed else [])])


def _each(act: Callable[[dict[str, Any]], T], files: list[dict[str, Any]]) -> dict[str, T]:
    """Call a function for every file, several at a time; return the results by name. Raises the first
    error.
    """
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip((item["file"] for item in files), pool.map(act, files), strict=True))


def _take(
    objects: Objects, stored: Stored, summary: Mapping[str, Any], raw: str, item: Mapping[str, Any]
) -> None:
    """Add a verified file, or the hash of an existing one, with its index entry."""
    name, sha256 = item["file"], item["sha256"]
    _create(objects, index_key(sha256, summary["told"]), json.dumps(summary, indent=1).encode())
    if item["added"]:
        _copy(objects, stored, f"{raw}{name}", item)
    elif stored.sha256 != sha256:  # a file with a stored hash is found by it
        _create(objects, hash_key(f"{raw}{name}", stored.version_id), json.dumps({"sha256": sha256}).encode())


def _keys(objects: Objects, record: RunRecord) -> NodeKeys:
    """Return the keys of the run's node that reported."""
    for keys in record.nodes:
        if objects.head(key=keys.result) is not None:
            return keys
    raise DataError(
        f"the result of prepare run {record.run_id} is gone", do="The next prepare run writes its own."
    )


def _summaries(objects: Objects, keys: NodeKeys, files: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the node's index entries by file. Raises DataError for a malformed one."""
    summaries, left = {}, MOST_INDEX_BYTES  # of all together: control has a gigabyte of memory
    for item in files:
        stored = given(partial(objects.get, key=f"{keys.index}{item['sha256']}.json", first_bytes=left + 1))
        left -= len(stored.body) if stored else 0
        summary = read_summary(stored.body) if stored and left >= 0 else {}
        if not describes(summary, item["file"]):
            why = (
                "no data check wrote it"
                if left >= 0
                else f"entries take more than {MOST_INDEX_BYTES / 2**20:.0f} MiB"
            )
            raise DataError(f"the index entry of {item['file']} can't be used", why=why, do=_DO)
        # not as the node wrote them: they name the file
        own = {key: item[key] for key in ("file", "bytes", "sha256")}
        summaries[item["file"]] = {key: summary[key] for key in DESCRIBED} | own
    return summaries


def _added(objects: Objects, keys: NodeKeys, raw: str, item: Mapping[str, Any]) -> Stored:
    """Return an added file as stored in S3. Raises DataError unless its size and S3's own checksum are those
    reported.

    Likewise if the set already has the name with other bytes.
    """
    stored = _as_reported(given(lambda: objects.head(key=f"{keys.files}{item['file']}")), item)
    if stored.checksum != item["sha256"]:
        _refuse(
            item,
            f"its sha256 is {stored.checksum[:12] or 'unknown to S3'}, {item['sha256'][:12]} was reported",
        )
    if (there := objects.head(key=f"{raw}{item['file']}")) is not None:
        _refuse_other_bytes(there, item)
    return stored


def _there_before(
    objects: Objects, record: RunRecord, raw: str, items: list[dict[str, Any]]
) -> dict[str, Stored]:
    """Return the files that the set had before, in the versions that the manifest pins. Raises DataError for
    another hash.
    """
    if not items:
        return {}
    pinned = _unchecked(objects, record)
    found, left = {}, MOST_HASHED_BYTES
    for item in items:
        key = f"{raw}{item['file']}"
        if (entry := pinned.get(key)) is None:
            _refuse(item, "the prepare run had no such file to check")
        there = _as_reported(objects.head(key=key, version_id=entry.version_id), item)
        if not there.checksum:
            left -= there.size
            if left < 0:
                why = (
                    f"it has no sha256 in S3, and control hashes {MOST_HASHED_BYTES / 2**30:.0f} GiB at most"
                )
                do = "Upload it again with aws s3 cp --checksum-algorithm SHA256, or with mayfly data push."
                raise DataError(f"{item['file']} was not hashed", why=why, do=do)
        actual = there.checksum or objects.digest(key=key, version_id=entry.version_id)
        if actual != item["sha256"]:
            _refuse(item, f"its sha256 is {actual[:12]}, {item['sha256'][:12]} was reported")
        found[item["file"]] = there
    return found


def _unchecked(objects: Objects, record: RunRecord) -> dict[str, ManifestInput]:
    """Return the files that a prepare run had to check, by key. Raises DataError for a manifest that can't be
    read.
    """
    stored = objects.get(key=manifest_key(record.run_id))
    try:
        manifest = read_manifest(stored.body if stored else b"")
    except Unsound as error:
        what = f"cannot read the manifest of the prepare run {record.run_id}"
        raise DataError(what, why=str(error), do="The next prepare run writes its own.") from error
    names = {f"{DATA}/{name}" for name in manifest.documents.get(UNCHECKED_FILE, ())}
    return {item.key: item for item in manifest.inputs if item.path in names}


def _copy(objects: Objects, source: Stored, key: str, item: Mapping[str, Any]) -> None:
    """Copy a file to its key of the set, and check the copy. Raises DataError if the key has other bytes."""
    with suppress(Conflict):  # copied by an earlier call, or another file of that name
        objects.copy(
            source=source.key, version_id=source.version_id, key=key, create=True, sha256=item["sha256"]
        )
    _refuse_other_bytes(objects.head(key=key), item)


def _refuse_other_bytes(there: Stored | None, item: Mapping[str, Any]) -> None:
    if there is None or (there.checksum or there.sha256, there.size) != (item["sha256"], item["bytes"]):
        do = "Have the refresh script give each new file a name of its own, such as one with a date."
        raise DataError(
            f"{item['file']} was not added", why="the set has a file of that name, with other bytes", do=do
        )


def _create(objects: Objects, key: str, body: bytes) -> None:
    with suppress(Conflict):  # an existing index entry of these bytes stays
        objects.put(key=key, body=body, create=True)


def _as_reported(stored: Stored | None, item: Mapping[str, Any]) -> Stored:
    """Return an object if it has the reported size."""
    if stored is None or not stored.version_id:
        _refuse(item, "it is not in the bucket")
    if stored.size != item["bytes"]:
        _refuse(item, f"it has {stored.size:,} bytes, {item['bytes']:,} were reported")
    return stored


def _refuse(item: Mapping[str, Any], why: str) -> NoReturn:
    raise DataError(f"{item['file']} is not what the prepare run reported", why=why, do=_DO)


def _gib(items: list[dict[str, Any]]) -> str:
    return f"{sum(item['bytes'] for item in items) / 2**30:.1f} GiB"
