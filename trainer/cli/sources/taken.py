"""Download, check and index files of a data set that were uploaded by other means than a launch, such as `aws
s3 sync`.

The data check describes each alone; later launches use its index entry and download nothing.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trainer.cli.sources.check_child import INDEXED, CheckChild
from trainer.data.table import SUFFIXES
from trainer.launch.inputs import Input, write_index
from trainer.runs.store import Objects

MOST_BYTES = 1 << 30  # fetched by one launch


def take(inputs: Sequence[Input], objects: Objects, *, writes: bool = True) -> tuple[list[Input], list[str]]:
    """Index the inputs that have no index entry; return all inputs, and notes.

    At most MOST_BYTES are fetched, small files first. `writes`: store the index entries in the bucket.
    """
    notes, fetched, left = [], list[Input](), MOST_BYTES
    for item in sorted((item for item in inputs if not item.summary), key=lambda item: item.bytes):
        if not item.key.lower().endswith(SUFFIXES):
            notes.append(f"left out: {item.key} (no candle file: it does not end in {', '.join(SUFFIXES)})")
        elif item.bytes > left:
            most = f"a launch checks {MOST_BYTES / 1e9:.1f} GB of new files"
            notes.append(f"left out: {item.key} ({most}; name it with --data once)")
        else:
            fetched.append(item)
            left -= item.bytes
    if not fetched:
        return list(inputs), notes
    described, told = _described(fetched, objects)
    if writes:
        for item in described.values():
            write_index(item, objects)
    return [described.get(item.key, item) for item in inputs], [*notes, *told]


def fetch(item: Input, objects: Objects, folder: Path) -> str | None:
    """Download an object of a data set into a folder and return its sha256; None if it was deleted after it
    was listed.
    """
    stored = objects.get(key=item.key, version_id=item.version_id)
    if stored is None:
        return None
    (folder / item.key.rpartition("/")[2]).write_bytes(stored.body)
    return hashlib.sha256(stored.body).hexdigest()


def _described(items: Sequence[Input], objects: Objects) -> tuple[dict[str, Input], list[str]]:
    """Return by key the inputs that could be read, with hash and summary, and a note on each of `items`."""
    inputs, notes = dict[str, Input](), []
    with tempfile.TemporaryDirectory(prefix="mayfly-taken-") as folder:
        by_name = {}
        for item in items:
            if (sha256 := fetch(item, objects, Path(folder))) is not None:
                by_name[item.key.rpartition("/")[2]] = replace(item, sha256=sha256)
        report = CheckChild(folder).report() if by_name else {"files": [], "errors": {}}
        for entry in report["files"]:
            item = replace(by_name[entry["file"]], summary={name: entry[name] for name in INDEXED})
            inputs[item.key] = item
            notes.append(
                f"taken: {item.key} ({sum(held['bars'] for held in entry['holds']):,} bars; no launch put it"
                " there)"
            )
        for name in by_name.keys() - {entry["file"] for entry in report["files"]} - report["errors"].keys():
            notes.append(f"left out: {by_name[name].key} (it is not a table of candles)")
        for name, error in report["errors"].items():
            why = f"{error['what']}: {error['why']}" if error["why"] else error["what"]
            notes.append(f"left out: {by_name[name].key} ({why.replace(folder + '/', '')})")
    return inputs, notes
