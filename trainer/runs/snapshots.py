"""Snapshots: states of a command's CHECKPOINTS in S3, each a manifest over versions of objects.

    checkpoints/<own id>/<run>/<attempt>/<node>/data/000001     one large file, or small ones end to end
    checkpoints/<own id>/<run>/<attempt>/<node>/000001.json     the manifest, created once, after its data

An object lies in a numbered slot. Once no file of the newest snapshot is in it, another object takes the
slot, and the bucket's lifecycle ends the old version a day later: no node may delete.

A node writes them (`node.snapshots`); whoever starts the next attempt reads them, as a stranger's: a manifest
has no key in it, so it reaches no object outside its own node's prefix. Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import pairwise

from trainer.base.instants import iso
from trainer.base.strict_json import MOST_TEXT, Fields, Unsound, read_object
from trainer.base.symbols import folders_of, path_flaw
from trainer.runs.reports import MOST_FILE_SIZE, MOST_FILES

FORMAT = 2
MOST_SECONDS = 120.0  # between two snapshots that cost less than MOST_COST: what a lost machine may cost
LOOKS = 4  # at CHECKPOINTS between two checkpoints of a trainer's model, the last of which finds the newest
TRAINING_SECONDS = MOST_SECONDS * LOOKS / (LOOKS + 1)  # between these two, at most
MOST_COST = 0.01  # of the machine's price
# us-east-1, S3 standard, looked up 2026-11-24.
PUT_USD, GB_MONTH_USD, DAYS_PER_MONTH = 0.005 / 1000, 0.023, 30.4
# An old version goes one day after it was overwritten, rounded up to the next midnight UTC (S3 user guide,
# "Lifecycle rules: based on an object's age", as MinIO's 4c773f70 quotes it, looked up 2026-11-26).
SUPERSEDED_DAYS = 2
MOST_SNAPSHOT_BYTES = 16 * 2**20  # of a manifest; a file takes 300 bytes and its path
MOST_NUMBER = 999_999  # 8 months at one every 20 seconds
MOST_DATA_BYTES = 2**40  # of all objects of a snapshot
SMALL_BYTES = 8 * 2**20  # smaller files share an object
PACK_BYTES = 64 * 2**20  # of it: held in memory, and storage costs sixty times what its request does


@dataclass(frozen=True, kw_only=True)
class StoredObject:
    """An object with content of files, in the version that its writer made."""

    sha256: str
    size: int
    version_id: str


@dataclass(frozen=True, kw_only=True)
class SnapshotObject(StoredObject):
    """An object of a node's snapshots, in the slot of its prefix whose key a version of it has."""

    slot: int


@dataclass(frozen=True, kw_only=True)
class SnapshotFile:
    """A file of CHECKPOINTS, as a part of an object: `size` bytes from `offset` on."""

    path: str  # relative to CHECKPOINTS
    size: int
    sha256: str  # of the file
    object: str  # sha256 of the object that holds it
    offset: int


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """One state of a command's CHECKPOINTS."""

    run_id: str
    attempt: int
    number: int  # of its attempt's node: 1, 2, ...
    at: datetime  # since when the state had been so
    objects: tuple[SnapshotObject, ...]
    files: tuple[SnapshotFile, ...]


@dataclass(frozen=True, kw_only=True)
class StoredContent:
    """A place in S3 with a file's content."""

    object: SnapshotObject
    offset: int


def snapshot_usd(*, puts: int, size: int) -> float:
    """Return the dollars of requests, and of storage until what was sent is superseded and gone."""
    return puts * PUT_USD + size / 1e9 * GB_MONTH_USD * SUPERSEDED_DAYS / DAYS_PER_MONTH


def hourly_usd(*, puts: int, size: int, seconds: float) -> float:
    """Return the dollars an hour of snapshots of `size` new bytes each, `seconds` apart."""
    return snapshot_usd(puts=puts, size=size) * 3600 / seconds


def affordable_seconds(usd: float, *, usd_per_hour: float) -> float:
    """Return the seconds between two snapshots of `usd` each that cost MOST_COST of a machine's price; 0 for
    a machine without a price.
    """
    return 3600 * usd / (MOST_COST * usd_per_hour) if usd_per_hour else 0.0


def affordable_bytes(usd_per_hour: float, *, puts: int, seconds: float) -> int:
    """Return the new bytes of a snapshot every `seconds` that cost MOST_COST of a machine's price."""
    left = MOST_COST * usd_per_hour * seconds / 3600 - puts * PUT_USD
    return max(0, int(left / snapshot_usd(puts=0, size=10**9) * 1e9))


def packs(sizes: Mapping[str, int]) -> list[list[str]]:
    """Return the objects to make of contents, by their sha256: each large one alone, small ones together."""
    made, pack, total = [], list[str](), 0
    for sha256, size in sizes.items():
        if size > SMALL_BYTES:
            made.append([sha256])
            continue
        if pack and total + size > PACK_BYTES:
            made.append(pack)
            pack, total = [], 0
        pack.append(sha256)
        total += size
    return [*made, pack] if pack else made


def snapshot_of(
    files: Mapping[str, tuple[str, int]],
    parts: Mapping[str, StoredContent],
    *,
    run_id: str,
    attempt: int,
    number: int,
    at: datetime,
) -> Snapshot:
    """Return the snapshot of files, (sha256, size) by path, whose contents lie at `parts`, by sha256."""
    known = {parts[sha256].object.sha256: parts[sha256].object for sha256, _ in files.values()}
    return Snapshot(
        run_id=run_id,
        attempt=attempt,
        number=number,
        at=at,
        objects=tuple(known[sha256] for sha256 in sorted(known)),
        files=tuple(
            SnapshotFile(
                path=path,
                size=size,
                sha256=sha256,
                object=parts[sha256].object.sha256,
                offset=parts[sha256].offset,
            )
            for path, (sha256, size) in sorted(files.items())
        ),
    )


def snapshot_to_json(snapshot: Snapshot) -> bytes:
    """Write a snapshot's manifest."""
    return json.dumps({"format": FORMAT, **asdict(snapshot), "at": iso(snapshot.at)}).encode()


def read_snapshot(body: bytes, *, run_id: str, attempt: int, number: int) -> Snapshot:
    """Read the manifest of one snapshot of an attempt. Raises Unsound for a malformed one, or another's."""
    fields = read_object(body, most_bytes=MOST_SNAPSHOT_BYTES, name="the snapshot")
    if fields.values.get("format") != FORMAT:
        raise Unsound(f"the snapshot has format {str(fields.values.get('format'))[:40]}, not {FORMAT}")
    named = (fields.text("run_id"), fields.whole("attempt"), fields.whole("number"))
    if named != (run_id, attempt, number):
        raise Unsound(f"the snapshot is not number {number} of attempt {attempt} of run {run_id}")
    snapshot = Snapshot(
        run_id=run_id,
        attempt=attempt,
        number=number,
        at=fields.instant("at"),
        objects=tuple(map(_object, fields.rows("objects", most=MOST_FILES))),
        files=tuple(map(read_file, fields.rows("files", most=MOST_FILES))),
    )
    _check(snapshot)
    return snapshot


def _object(fields: Fields) -> SnapshotObject:
    if not (version_id := fields.text("version_id", most=1024)):
        raise Unsound(f"{fields.name} has no version")
    size, slot = (
        fields.whole("size", most=MOST_FILE_SIZE),
        fields.value("slot").whole(least=1, most=MOST_NUMBER),
    )
    sha256 = fields.value("sha256").sha256()
    return SnapshotObject(sha256=sha256, size=size, version_id=version_id, slot=slot)


def read_file(fields: Fields) -> SnapshotFile:
    """Read a file of a manifest or of a start file. Raises Unsound."""
    path = fields.text("path", most=MOST_TEXT)
    if why := path_flaw(path, hidden=True):
        raise Unsound(f"{fields.name}.path can't be used: {why}")
    return SnapshotFile(
        path=path,
        size=fields.whole("size", most=MOST_FILE_SIZE),
        sha256=fields.value("sha256").sha256(),
        object=fields.value("object").sha256(),
        offset=fields.whole("offset", most=MOST_FILE_SIZE),
    )


def _check(snapshot: Snapshot) -> None:
    """Raise Unsound unless files and objects fit, every object is needed, and no contents share bytes."""
    wrong = {
        **flaws_of(snapshot.objects, snapshot.files),
        "an object without a file": bool(
            {one.sha256 for one in snapshot.objects} - {file.object for file in snapshot.files}
        ),
        "more than 1 TiB": sum(one.size for one in snapshot.objects) > MOST_DATA_BYTES,
        "files that share bytes": _share_bytes(snapshot.files),
    }
    for what, is_so in wrong.items():
        if is_so:
            raise Unsound(f"the snapshot has {what}")


def flaws_of(objects: Sequence[StoredObject], files: Sequence[SnapshotFile]) -> dict[str, bool]:
    """Return what can be wrong with files in objects, and whether it is: each lies within an object of the
    list, and no name occurs twice.
    """
    sizes, paths = {one.sha256: one.size for one in objects}, [file.path for file in files]
    return {
        "an object twice": len(sizes) < len(objects),
        "a file twice": len(set(paths)) < len(paths),
        "a path that is both a file and a folder": bool(folders_of(paths) & set(paths)),
        "a file outside the objects": any(
            file.offset + file.size > sizes.get(file.object, -1) for file in files
        ),
    }


def _share_bytes(files: Sequence[SnapshotFile]) -> bool:
    """Return whether two contents overlap; several files may have one content."""
    places: dict[tuple[str, int, int], str] = {}
    for file in files:
        if file.size and places.setdefault((file.object, file.offset, file.size), file.sha256) != file.sha256:
            return True
    ordered = sorted(places)
    return any(_overlap(one, other) for one, other in pairwise(ordered))


def _overlap(one: tuple[str, int, int], other: tuple[str, int, int]) -> bool:
    return one[0] == other[0] and one[1] + one[2] > other[1]


def snapshot_numbers(keys: Iterable[str]) -> list[int]:
    """Return the numbers of the manifests among the names below a node's prefix, the newest first."""
    names = (key.removesuffix(".json") for key in keys if key.endswith(".json"))
    return sorted(
        (int(name) for name in names if len(name) == 6 and name.isdecimal() and name.isascii()), reverse=True
    )
