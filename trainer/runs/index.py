"""The index of runs, runs/index.json: the open runs and the last ended ones. Commands read the records of
these runs only.

A run enters it before its record is written and leaves it after its record is closed, by compare-and-swap, so
that an open run is always in it, whichever process is killed. A surplus entry (of a run that is closed, or
that never began) costs one look, which removes it. An index that is missing or damaged is rebuilt from one
listing of runs/.

A run that leaves the open ones is `untold`, whoever closed it, until a command has shown its end or control
has sent a message about it. Control claims a message before it sends it, and notes it after, so that one that
was sent is repeated only if its sender died in between. A rebuilt index knows no untold runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from trainer.aws.objects import Conflict, Objects, Stored, put_over
from trainer.base.errors import ConnectionFailed, PermissionDenied, TrainerError
from trainer.base.instants import iso
from trainer.base.strict_json import Fields, Unsound, read_object
from trainer.runs.record import RunRecord
from trainer.runs.store import create_record

INDEX_KEY = "runs/index.json"
FORMAT = 1
LAST_ENDED = 20  # ended runs that the index names
MOST_INDEX_BYTES, MOST_OPEN = 4 * 1024 * 1024, 20_000
TELLING = timedelta(minutes=10)  # time after which a call that claimed a message counts as dead
TRIES = 20  # against other commands that change it at the same time
_RUN_ID = r"[\w.-]+"  # the index refuses any other id
_RECORD = re.compile(rf"runs/({_RUN_ID})/run\.json")


@dataclass(frozen=True, kw_only=True)
class RunIndex:
    """Open runs with the instant of their entry, the ids of the last runs that ended, in that order, and
    those whose end nobody was told.
    """

    open: Mapping[str, datetime] = field(default_factory=dict)
    ended: tuple[str, ...] = ()
    untold: Mapping[str, datetime | None] = field(default_factory=dict)  # -> when its message was claimed

    def with_open(self, run_id: str, since: datetime) -> RunIndex:
        """Return the index with one more open run."""
        return replace(self, open={**self.open, run_id: since})

    def without(self, closed: Iterable[str], unborn: Iterable[str] = ()) -> RunIndex:
        """Return the index with closed runs moved to the last ended ones, untold, and without entries of runs
        that never began.
        """
        gone = set(closed)
        ended, out = (*self.ended, *sorted(gone.difference(self.ended)))[-LAST_ENDED:], gone | set(unborn)
        rest = {run_id: since for run_id, since in self.open.items() if run_id not in out}
        left = dict.fromkeys(sorted(gone & self.open.keys()))
        return RunIndex(open=rest, ended=ended, untold={**left, **self.untold})

    def claimable(self, run_ids: Iterable[str], now: datetime) -> tuple[str, ...]:
        """Return the untold runs among these whose message a call may send now: no other has claimed it, or
        that call has died.
        """
        untold = [(run_id, self.untold[run_id]) for run_id in run_ids if run_id in self.untold]
        return tuple(run_id for run_id, at in untold if at is None or now > at + TELLING)


def begin_run(objects: Objects, record: RunRecord) -> None:
    """Enter a new run into the index, then write its record. Raises Conflict if the run exists.

    Look again: a desk that slept for days between the two writes lost its entry meanwhile (`settle.UNBORN`).
    """

    def entered(index: RunIndex) -> RunIndex:
        return index.with_open(record.run_id, record.created_at)

    _change(objects, entered)
    create_record(objects, record)
    _change(objects, entered)


def enter_missing(objects: Objects) -> None:
    """Enter every run that a listing shows as open, whatever the index lost: a call for each 1,000
    objects.
    """
    listed = _listed(objects).open
    _change(objects, lambda index: replace(index, open={**listed, **index.open}))


def take_out(objects: Objects, *, closed: Iterable[str], unborn: Iterable[str] = ()) -> None:
    """Remove runs from the index: those whose record is closed, and those without a record."""
    gone, never = tuple(closed), tuple(unborn)
    _change(objects, lambda index: index.without(gone, never))


def claim_messages(objects: Objects, run_ids: Iterable[str], now: datetime) -> tuple[str, ...]:
    """Claim the messages about untold runs; return the runs whose message is the caller's to send."""
    wanted = tuple(run_ids)
    mine: tuple[str, ...] = ()

    def claim(index: RunIndex) -> RunIndex:
        nonlocal mine
        mine = index.claimable(wanted, now)
        return replace(index, untold={**index.untold, **dict.fromkeys(mine, now)})

    _change(objects, claim)
    return mine


def note_told(objects: Objects, run_ids: Iterable[str]) -> None:
    """Note that a message about the end of these runs was sent, or that it needs none."""
    told = frozenset(run_ids)

    def without(index: RunIndex) -> RunIndex:
        rest = {run_id: at for run_id, at in index.untold.items() if run_id not in told}
        return replace(index, untold=rest)

    _change(objects, without)


def note_shown(objects: Objects, receipt: Mapping[str, Any]) -> None:
    """Note that a command which was attached to a run has shown its end. If that fails, control sends a
    message as well; it does where the command could not see the end.
    """
    if receipt["state"] != "unconfirmed":
        with suppress(TrainerError):
            note_told(objects, [str(receipt["run_id"])])


def read_index(objects: Objects) -> RunIndex:
    """Return the index. Rebuild one that is missing or damaged, which costs a call for each 1,000 objects.
    One without runs is not stored.
    """
    index = _sound(objects.get(key=INDEX_KEY))
    if index is not None:
        return index
    try:
        return _change(objects, lambda index: index)
    except PermissionDenied:  # read-only credentials
        return _listed(objects)


def _change(objects: Objects, change: Callable[[RunIndex], RunIndex]) -> RunIndex:
    """Change the index by compare-and-swap, and return it.

    Raises ConnectionFailed if it loses every race against other writers.
    """
    for _ in range(TRIES):
        stored = objects.get(key=INDEX_KEY)
        before = _sound(stored)
        after = change(_listed(objects) if before is None else before)
        # Before the first run nothing is written: a reader may look into a folder that is none of ours.
        if after == (RunIndex() if stored is None else before):
            return after
        try:
            put_over(objects, INDEX_KEY, _to_json(after), stored)
            return after
        except Conflict:
            continue
    why = f"others changed {INDEX_KEY} each time, or S3 lags"
    raise ConnectionFailed("cannot change the index of runs", why=why, do="Try again in a minute.")


def _listed(objects: Objects) -> RunIndex:
    """Return the index that a listing shows: a run is closed where its record was written after its
    receipt.
    """
    written = {item.key: item.modified_at for item in objects.list(prefix="runs/")}
    records = {named[1]: at for key, at in written.items() if (named := _RECORD.fullmatch(key))}
    receipts = {run_id: written.get(f"runs/{run_id}/receipt.json") for run_id in records}
    closed = {run_id for run_id, at in receipts.items() if at is not None and records[run_id] >= at}
    is_open = {run_id: at for run_id, at in records.items() if run_id not in closed}
    ended = sorted(closed, key=lambda run_id: (records[run_id], run_id))
    return RunIndex(open=is_open, ended=tuple(ended[-LAST_ENDED:]))


def _sound(stored: Stored | None) -> RunIndex | None:
    """Return a stored index, None for a missing or malformed one."""
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
        untold=dict(map(_read_untold, fields.rows("untold", most=MOST_OPEN))),
    )


def _read_untold(row: Fields) -> tuple[str, datetime | None]:
    claimed = row.values.get("claimed_at") is not None
    return row.text("run_id", pattern=_RUN_ID), row.instant("claimed_at") if claimed else None


def _to_json(index: RunIndex) -> bytes:
    document = {
        "format": FORMAT,
        "open": [{"run_id": run_id, "since": iso(since)} for run_id, since in sorted(index.open.items())],
        "ended": [{"run_id": run_id} for run_id in index.ended],
        "untold": [
            {"run_id": run_id, "claimed_at": iso(at) if at else None} for run_id, at in index.untold.items()
        ],
    }
    return json.dumps(document, indent=1).encode()
