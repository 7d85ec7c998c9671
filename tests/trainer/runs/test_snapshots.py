"""Snapshots: ours are read as written, and every crafted manifest is one error."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import pytest

from trainer.base.strict_json import Unsound
from trainer.runs import snapshots
from trainer.runs.keys import NodeKeys
from trainer.runs.snapshots import (
    PACK_BYTES,
    SMALL_BYTES,
    SnapshotObject,
    StoredContent,
    packs,
    read_snapshot,
    snapshot_numbers,
    snapshot_of,
    snapshot_to_json,
)

RUN, NOON = "20261121-080000-r-1", datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
PACK, LARGE, A, B = ("ab" * 32, "cd" * 32, "0a" * 32, "0b" * 32)
NAMED: dict[str, Any] = {"run_id": RUN, "attempt": 1, "number": 3}
OBJECTS = {
    PACK: SnapshotObject(sha256=PACK, size=10, version_id="v1", slot=1),
    LARGE: SnapshotObject(sha256=LARGE, size=99, version_id="v2", slot=12),
}
PARTS = {
    A: StoredContent(object=OBJECTS[PACK], offset=0),
    B: StoredContent(object=OBJECTS[PACK], offset=4),
    LARGE: StoredContent(object=OBJECTS[LARGE], offset=0),
    "ef" * 32: StoredContent(
        object=SnapshotObject(sha256="ef" * 32, size=1, version_id="v0", slot=2), offset=0
    ),
}
FILES = {"m/.metadata": (A, 4), "m/b": (B, 6), "m/same": (B, 6), "large": (LARGE, 99), "empty": (A, 0)}
SNAPSHOT = snapshot_of(FILES, PARTS, at=NOON, **NAMED)
DOCUMENT = json.loads(snapshot_to_json(SNAPSHOT))
OBJECT, (EMPTY, BIG, FIRST, SECOND, SAME) = DOCUMENT["objects"][0], DOCUMENT["files"]


def test_a_snapshot_is_read_as_it_was_written() -> None:
    assert read_snapshot(snapshot_to_json(SNAPSHOT), **NAMED) == SNAPSHOT
    assert [one.sha256 for one in SNAPSHOT.objects] == [PACK, LARGE], "and none that no file is in"


def test_its_keys_lie_under_its_nodes_own_id() -> None:
    keys = NodeKeys(role_id="AROA1", instance_id="i-1", run_id=RUN, attempt=2)
    assert keys.snapshot(7) == f"checkpoints/AROA1:i-1/{RUN}/2/0/000007.json"
    assert keys.snapshot_data(12) == f"{keys.checkpoints}data/000012"


def test_the_newest_manifest_is_first() -> None:
    names = ["000002.json", "000010.json", "data/x.json", "x.json", "1.json", "٠٠٠٠٠٣.json", "000004"]
    assert snapshot_numbers(names) == [10, 2]


def test_small_files_share_objects_and_large_ones_do_not() -> None:
    sizes = {f"{number}": 1000 for number in range(2_000)}
    assert packs(sizes) == [list(sizes)]
    assert packs({"a": 1, "large": SMALL_BYTES + 1, "b": 0}) == [["large"], ["a", "b"]]
    eighth = PACK_BYTES // 8
    assert [len(one) for one in packs({f"{number}": eighth for number in range(10)})] == [8, 2]
    assert packs({}) == []


@pytest.mark.parametrize(
    ("crafted", "says"),
    [
        ({"format": 1}, "format 1"),
        ({"run_id": "another"}, "not number 3 of attempt 1"),
        ({"attempt": 2}, "not number 3 of attempt 1"),
        ({"number": 4}, "not number 3 of attempt 1"),
        ({"at": "yesterday"}, "at is none of ours"),
        ({"objects": [{**OBJECT, "version_id": ""}]}, "no version"),
        ({"objects": [{**OBJECT, "size": 6 * 2**30}]}, "size is"),
        ({"objects": [{**OBJECT, "slot": 0}]}, "slot is"),
        ({"objects": [{**OBJECT, "slot": "../x"}]}, "slot is"),
        ({"objects": [OBJECT, OBJECT]}, "an object twice"),
        ({"objects": []}, "outside the objects"),
        ({"files": []}, "an object without a file"),
        ({"files": [{**SECOND, "offset": 5}]}, "outside the objects"),
        ({"files": [{**SECOND, "offset": -1}]}, "offset is"),
        ({"files": [{**FIRST, "object": A}]}, "outside the objects"),
        ({"files": [FIRST, SECOND, {**BIG, "path": "../x"}]}, "can't be used"),
        ({"files": [FIRST, SECOND, {**BIG, "path": "/x"}]}, "can't be used"),
        ({"files": [FIRST, SECOND, {**BIG, "path": "a/./x"}]}, "can't be used"),
        ({"files": [FIRST, FIRST, BIG]}, "a file twice"),
        ({"files": [FIRST, SECOND, {**BIG, "path": "m"}]}, "a file and a folder"),
        ({"files": [FIRST, {**SECOND, "offset": 3}, BIG]}, "share bytes"),
        ({"files": [FIRST, SECOND, {**SAME, "sha256": A}, BIG]}, "share bytes"),
    ],
)
def test_a_crafted_manifest_is_one_error(crafted: dict[str, object], says: str) -> None:
    with pytest.raises(Unsound, match=says):
        read_snapshot(json.dumps({**DOCUMENT, **crafted}).encode(), **NAMED)


def test_a_manifest_holds_a_bounded_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MOST_DATA_BYTES", 108)
    with pytest.raises(Unsound, match="more than 1 TiB"):
        read_snapshot(snapshot_to_json(SNAPSHOT), **NAMED)


def test_every_field_of_another_type_is_refused() -> None:
    for key in ("objects", "files", "at", "number"):
        with pytest.raises(Unsound):
            read_snapshot(json.dumps({**DOCUMENT, key: [7]}).encode(), **NAMED)
