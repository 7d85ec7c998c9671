"""Entries of a retrain's scheduled times: scheduled/<name>/<time>.json, created once and changed by
compare-and-swap.

Control writes an entry, and continues from it at its next call; `mayfly retrains history` shows it. The run
has its own record.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any, Literal

from trainer.aws.objects import Conflict, Objects
from trainer.base.errors import ConfigError, TrainerError
from trainer.base.instants import iso
from trainer.base.strict_json import Fields, Unsound
from trainer.runs.index import TELLING
from trainer.runs.record import new_run_id
from trainer.runs.record_json import read_value, to_json
from trainer.runs.reports import read_error

FORMAT = 3
MOST_BYTES = 256 * 1024
PREFIX = "scheduled/"
MOST_CALLS_AGAIN = 5  # later calls of one time that are noted and announced
PREPARE_SUFFIX, SCORE_SUFFIX = "prep", "gate"
SUFFIX_LENGTH = 6  # with a name of 24 characters, the schedules of its run have names of 62; 64 is the most
EntryState = Literal[
    "due", "waiting", "preparing", "training", "scoring", "done", "failed", "skipped", "refused"
]
OPEN_STATES: tuple[EntryState, ...] = ("due", "waiting", "preparing", "training", "scoring")
_SCHEDULED = re.compile(rf"(\d{{8}}-\d{{6}})-(.+)-[a-z0-9]{{{SUFFIX_LENGTH}}}", re.ASCII)
_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"


@dataclass(frozen=True, kw_only=True)
class ScheduledRun:
    """One scheduled time of a retrain."""

    format: int = FORMAT
    retrain: str
    scheduled_at: datetime
    began_at: datetime  # when control first heard of it
    called_by: str = ""  # the Lambda request id of the call that began it
    called_again: tuple[str, ...] = ()  # those of later calls that named this time
    updated_at: datetime
    state: EntryState = "due"
    prepare_run_id: str = ""  # of the run that refreshes and checks its data, if there is one
    prepare_usd: float = 0.0  # that run's cost, by its receipt
    refreshed: str = ""  # the result of the refresh, as text
    run_id: str = ""  # once its run is on record
    most_usd: float = 0.0  # what its runs may cost at most
    spent_usd: float = 0.0  # by their receipts, the high bounds
    score_run_id: str = ""  # of the run that scores models, if there is one
    gate: str = ""  # the result of the gate, as text
    promoted: tuple[str, ...] = ()  # pieces whose models went to production
    notes: tuple[str, ...] = ()  # differences from the publication: another image
    error: dict[str, Any] | None = None  # {"code", "what", "why", "do"}: why it is not done
    ended_at: datetime | None = None
    telling_at: datetime | None = None  # when a call of control claimed the announcement of its end
    told_at: datetime | None = None  # when its end was announced

    @property
    def runs(self) -> tuple[str, str, str]:
        """Return the ids of its run, its prepare run and its score run, as far as there are any."""
        return self.run_id, self.prepare_run_id, self.score_run_id

    @property
    def is_untold(self) -> bool:
        """Return whether it has ended without an announcement."""
        return not self.is_open and self.told_at is None

    @property
    def shown_notes(self) -> tuple[str, ...]:
        """Return its notes, first that on later calls of its time."""
        count = len(self.called_again)
        again = (f"{count} more call{'s' * (count > 1)} named this time",) if count else ()
        return (*again, *self.notes)

    def may_be_told(self, now: datetime) -> bool:
        """Return whether a call may announce its end now: no other has claimed it, or that call has died."""
        return self.is_untold and (self.telling_at is None or now > self.telling_at + TELLING)

    def is_called_again(self, request_id: str) -> bool:
        """Return whether this is another call of its time, to be announced. Lambda repeats a call under its
        id.
        """
        known = ("", self.called_by, *self.called_again)
        return request_id not in known and len(self.called_again) < MOST_CALLS_AGAIN

    @property
    def is_open(self) -> bool:
        """Return whether control has to process it again."""
        return self.state in OPEN_STATES

    def ended(
        self, state: EntryState, error: TrainerError | dict[str, Any] | None, now: datetime
    ) -> ScheduledRun:
        """Return the entry in a final state."""
        why = error.as_dict() if isinstance(error, TrainerError) else error
        return replace(self, state=state, error=why, ended_at=now)


def run_id_of(retrain: str, scheduled_at: datetime) -> str:
    """Return the id of a scheduled run: the same for one schedule and time, however often it is delivered."""
    moment = scheduled_at.astimezone(timezone.utc)
    digest = hashlib.sha256(f"{retrain}/{moment:%Y-%m-%dT%H:%M:%SZ}".encode()).digest()
    return new_run_id(
        retrain, moment, "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest[:SUFFIX_LENGTH])
    )


def retrain_of(run_id: str) -> str:
    """Return the name of the retrain in the id of one of its scheduled runs."""
    return "-".join(run_id.split("-")[2:-1])


def prepare_run_id_of(retrain: str, scheduled_at: datetime) -> str:
    """Return the id of the prepare run of a scheduled time: that of its run, but for the suffix."""
    return _beside(retrain, scheduled_at, PREPARE_SUFFIX)


def score_run_id_of(retrain: str, scheduled_at: datetime) -> str:
    """Return the id of the score run of a scheduled time: that of its run, but for the suffix."""
    return _beside(retrain, scheduled_at, SCORE_SUFFIX)


def _beside(retrain: str, scheduled_at: datetime, suffix: str) -> str:
    run_id = run_id_of(retrain, scheduled_at)
    return f"{run_id[:-SUFFIX_LENGTH]}{suffix}{run_id[-(SUFFIX_LENGTH - len(suffix)) :]}"


def runs_of(retrain: str, scheduled_at: datetime) -> tuple[str, str, str]:
    """Return the ids of a scheduled time's run, its prepare run and its score run."""
    return (
        run_id_of(retrain, scheduled_at),
        prepare_run_id_of(retrain, scheduled_at),
        score_run_id_of(retrain, scheduled_at),
    )


def is_scheduled(run_id: str) -> bool:
    """Return whether a run is one of a scheduled time's: its id follows from that and the retrain. Nobody
    else chooses an id of that form.
    """
    read = _SCHEDULED.fullmatch(run_id)
    if read is None:
        return False
    try:
        at = datetime.strptime(read[1], "%Y%m%d-%H%M%S").replace(tzinfo=timezone.utc)
    except ValueError:
        return False
    return run_id in runs_of(read[2], at)


def entry_key(retrain: str, scheduled_at: datetime) -> str:
    """Return the key of a scheduled time's entry; keys of one retrain sort by time."""
    return f"{PREFIX}{retrain}/{scheduled_at.astimezone(timezone.utc):%Y%m%d-%H%M%S}.json"


def begin_entry(
    objects: Objects, retrain: str, scheduled_at: datetime, now: datetime, *, request_id: str = ""
) -> ScheduledRun:
    """Create a scheduled time's entry, or return the existing one if the time was called before."""
    entry = ScheduledRun(
        retrain=retrain, scheduled_at=scheduled_at, began_at=now, updated_at=now, called_by=request_id
    )
    try:
        objects.put(key=entry_key(retrain, scheduled_at), body=to_json(entry), create=True)
    except Conflict:
        there, _ = read_entry(objects, entry_key(retrain, scheduled_at))
        return there
    return entry


class UnreadableEntry(ConfigError):
    """An entry that is missing, damaged, or another version's."""


def read_entry(objects: Objects, key: str) -> tuple[ScheduledRun, str]:
    """Return an entry and its ETag. Raises UnreadableEntry."""
    stored = objects.get(key=key)
    try:
        if stored is None:
            raise Unsound("it is not there")
        entry = read_value(stored.body, ScheduledRun, name=key, most_bytes=MOST_BYTES)
        if (
            entry_key(entry.retrain, entry.scheduled_at) != key
        ):  # the next write's key is derived from these fields
            raise Unsound(f"it is that of {entry.retrain[:80]!r} at {iso(entry.scheduled_at)}")
        for named, own in zip(entry.runs, runs_of(entry.retrain, entry.scheduled_at), strict=True):
            if named not in ("", own):
                raise Unsound(f"one of its runs is {named[:80]!r}, which is not this time's")
        return replace(entry, error=read_error(Fields({"error": entry.error}, key))), stored.etag
    except Unsound as error:
        raise UnreadableEntry(
            f"cannot read {key}", why=str(error), do="Use the Mayfly that the stack was made with."
        ) from error


def change_entry(objects: Objects, entry: ScheduledRun, etag: str, now: datetime) -> ScheduledRun:
    """Write a changed entry. Raises Conflict if another caller was faster."""
    changed = replace(entry, updated_at=now)
    objects.put(key=entry_key(entry.retrain, entry.scheduled_at), body=to_json(changed), if_match=etag)
    return changed


def entry_keys(objects: Objects, retrain: str) -> list[str]:
    """Return the keys of a retrain's entries, oldest first."""
    return sorted(item.key for item in objects.list(prefix=f"{PREFIX}{retrain}/"))
