"""The index of runs, runs/index.json: which runs are open and which ended last. Commands look at these and at no others.

A run enters it before its record is written and leaves it after its record is closed, by compare-and-swap, so that an open run
is always in it, whoever is killed when. An entry too many (of a run that is closed, or that never began) costs one look, and
whoever looks takes it out. An index that is missing (the stack was used by an earlier version) or damaged is made from one
listing of runs/.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from trainer.errors import ConnectionFailed, PermissionDenied
from trainer.reading import Fields, Unsound, read_object
from trainer.runs.record import RunRecord, iso
from trainer.runs.store import Conflict, Objects, Stored, create_record

INDEX_KEY = "runs/index.json"
FORMAT = 1
LAST_ENDED = 20  # ended runs that the index names
MOST_INDEX_BYTES, MOST_OPEN = 4 * 1024 * 1024, 20_000
TRIES = 20  # against other commands that change it at the same moment
_RUN_ID = r"[\w.-]+"
_RECORD = re.compile(rf"runs/({_RUN_ID})/run\.json")  # of others the index could not be read back


@dataclass(frozen=True, kw_only=True)
class RunIndex:
    """Open runs with the instant of their entry, and the ids of the last runs that ended, oldest first."""

    open: Mapping[str, datetime] = field(default_factory=dict)
    ended: tuple[str, ...] = ()

    def with_open(self, run_id: str, since: datetime) -> RunIndex:
        """Return the index with one more open run."""
        return RunIndex(open={**self.open, run_id: since}, ended=self.ended)

    def without(self, closed: Iterable[str], unborn: Iterable[str] = ()) -> RunIndex:
        """Return the index without runs that closed, which ended last, and without entries of runs that never began."""
        gone = set(closed)
        ended, out = sorted({*self.ended, *gone})[-LAST_ENDED:], gone | set(unborn)
        rest = {run_id: since for run_id, since in self.open.items() if run_id not in out}
        return RunIndex(open=rest, ended=tuple(ended))

    def joined(self, listed: RunIndex) -> RunIndex:
        """Return the index with what a listing shows; where they differ a run counts as open, until it is looked at."""
        both = {**listed.open, **self.open}
        ended = sorted({*self.ended, *listed.ended} - set(both))[-LAST_ENDED:]
        return RunIndex(open=both, ended=tuple(ended))


def begin_run(objects: Objects, record: RunRecord) -> None:
    """Enter a new run into the index, then write its record. Raises Conflict where the run exists."""
    _change(objects, lambda index: index.with_open(record.run_id, record.created_at))
    create_record(objects, record)


def take_out(objects: Objects, *, closed: Iterable[str], unborn: Iterable[str] = ()) -> RunIndex:
    """Take runs out of the index: those whose record is closed, and those that never got one."""
    gone, never = tuple(closed), tuple(unborn)
    return _change(objects, lambda index: index.without(gone, never))


def read_index(objects: Objects) -> RunIndex:
    """Return the index; one that is missing or damaged is made anew."""
    index = _sound(objects.get(key=INDEX_KEY))
    return index if index is not None else rebuild_index(objects)


def rebuild_index(objects: Objects) -> RunIndex:
    """Join the index with one listing of runs/, which costs a call for each 1,000 objects, and store it."""
    try:
        return _change(objects, lambda index: index, whole=True)
    except PermissionDenied:  # who may only look
        return _listed(objects)


def _change(objects: Objects, change: Callable[[RunIndex], RunIndex], *, whole: bool = False) -> RunIndex:
    """Change the index by compare-and-swap, `whole` after a listing, and return it.

    Raises ConnectionFailed where others are faster each time.
    """
    for _ in range(TRIES):
        stored = objects.get(key=INDEX_KEY)
        before = _sound(stored)
        known = before or RunIndex()
        after = change(known.joined(_listed(objects)) if whole or before is None else known)
        if after == before:
            return after
        try:
            if stored is None:
                objects.put(key=INDEX_KEY, body=_to_json(after), create=True)
            else:
                objects.put(key=INDEX_KEY, body=_to_json(after), if_match=stored.etag)
            return after
        except Conflict:
            continue
    why = f"others changed {INDEX_KEY} each time, or S3 lags"
    raise ConnectionFailed("cannot change the index of runs", why=why, do="Try again in a minute.")


def _listed(objects: Objects) -> RunIndex:
    """Return the index that a listing shows: a run is closed where its record was written after its receipt."""
    written = {item.key: item.modified_at for item in objects.list(prefix="runs/")}
    records = {named[1]: at for key, at in written.items() if (named := _RECORD.fullmatch(key))}
    receipts = {run_id: written.get(f"runs/{run_id}/receipt.json") for run_id in records}
    closed = [run_id for run_id, at in receipts.items() if at is not None and records[run_id] >= at]
    return RunIndex(open=records).without(closed)


def _sound(stored: Stored | None) -> RunIndex | None:
    """Return a stored index, or None for one that is missing or that this version did not write."""
    if stored is None:
        return None
    try:
        return _read(read_object(stored.body, most_bytes=MOST_INDEX_BYTES, name="the index of runs"))
    except Unsound:
        return None


def _read(fields: Fields) -> RunIndex:
    if fields.whole("format") != FORMAT:
        raise Unsound("the index of runs has another format")
    rows = {kind: list(fields.rows(kind, most=MOST_OPEN)) for kind in ("open", "ended")}
    return RunIndex(
        open={row.text("run_id", pattern=_RUN_ID): row.instant("since") for row in rows["open"]},
        ended=tuple(row.text("run_id", pattern=_RUN_ID) for row in rows["ended"]),
    )


def _to_json(index: RunIndex) -> bytes:
    document = {
        "format": FORMAT,
        "open": [{"run_id": run_id, "since": iso(since)} for run_id, since in sorted(index.open.items())],
        "ended": [{"run_id": run_id} for run_id in index.ended],
    }
    return json.dumps(document, indent=1).encode()
