"""A run in S3: its keys, and its record by compare-and-swap.

Owns the names under `runs/`. Does not own the contents of a record (`record`) nor the decisions about it
(`reconcile`).
"""

from __future__ import annotations

import re

from trainer.aws.objects import LAGS, Objects
from trainer.base.errors import ConfigError, ConnectionFailed, UsageError, nearest
from trainer.base.strict_json import Unsound
from trainer.runs.keys import RESUMED
from trainer.runs.record import RUN_ID, RunRecord
from trainer.runs.record_json import record_from_json, to_json

PART_BYTES = 1 << 20  # of a log or metrics part, at most
REPORT = "report.html"  # beside a receipt
LAST = "last"  # a user's name for the newest run
MOST_CANDIDATES = 5  # runs that an ambiguous name's error lists


class RecordMissing(ConnectionFailed):
    """S3 does not find a record that is known to exist, or that is about to."""


class UnreadableRecord(ConfigError):
    """A run record that this version can't read: another format, or damaged."""


def record_key(run_id: str) -> str:
    return f"runs/{run_id}/run.json"


def manifest_key(run_id: str) -> str:
    return f"runs/{run_id}/manifest.json"


def bars_plan_key(run_id: str) -> str:
    return f"runs/{run_id}/plan.json"


def receipt_key(run_id: str) -> str:
    return f"runs/{run_id}/receipt.json"


def report_key(run_id: str) -> str:
    return f"runs/{run_id}/{REPORT}"


def stop_key(run_id: str, attempt: int) -> str:
    return f"runs/{run_id}/attempts/{attempt}/stop.json"


def start_key(run_id: str, attempt: int) -> str:
    """Return the key of an attempt's start file, which its caller writes and no node can (`start_file`)."""
    return f"runs/{run_id}/attempts/{attempt}/start.json"


def carried_key(run_id: str, attempt: int, sha256: str) -> str:
    """Return the key of an attempt's own copy of an object of an earlier attempt's checkpoints.

    Under a prefix of its own, since a lifecycle rule knows prefixes only.
    """
    return f"{RESUMED}{run_id}/{attempt}/{sha256}"


def create_record(objects: Objects, record: RunRecord) -> None:
    """Write a new run's record. Raises Conflict if the run exists."""
    objects.put(key=record_key(record.run_id), body=to_json(record), create=True)


def swap_record(objects: Objects, record: RunRecord, etag: str) -> str:
    """Replace the record that was read with `etag`, and return the new ETag. Raises Conflict if another was
    first.
    """
    return objects.put(key=record_key(record.run_id), body=to_json(record), if_match=etag)


def read_record(objects: Objects, run_id: str, *, seen: bool = False) -> tuple[RunRecord, str]:
    """Return a run's record and its ETag. Raises UsageError, with the nearest ids, for no such run;
    UnreadableRecord.

    Records are never deleted: if one that was `seen` is not found, S3 lags, and RecordMissing is raised.
    """
    stored = objects.get(key=record_key(run_id)) if _is_id(run_id) else None
    if stored is None and seen:
        raise RecordMissing(
            f"the record of run {run_id} is not found now", why=LAGS, do="Look again in a few minutes."
        )
    if stored is None:
        runs = run_ids(objects)
        hint = nearest(run_id, runs) or (f"The latest run is {runs[-1]}." if runs else "There is no run yet.")
        raise UsageError(f"no run '{run_id}'", do=hint)
    try:
        record = record_from_json(stored.body)
        if record.run_id != run_id:
            raise Unsound(f"it is that of run {record.run_id[:80]!r}")
    except ValueError as error:
        do = "Use the Mayfly that launched it."
        raise UnreadableRecord(f"cannot read the record of run {run_id}", why=str(error), do=do) from error
    return record, stored.etag


def find_run(objects: Objects, name: str) -> str:
    """Return the id of the run that a user means: by its id, by a part that no other id has, or by `last`.

    Returns a name that no run has as it is: `read_record` refuses it. Raises UsageError for a part of
    several ids, and for `last` without any run.
    """
    if name != LAST and _is_id(name) and objects.head(key=record_key(name)) is not None:
        return name
    runs = run_ids(objects)
    if name == LAST:
        for run_id in reversed(runs):  # one without a record is a launch that was killed as it began
            if objects.head(key=record_key(run_id)) is not None:
                return run_id
        raise UsageError("there is no run yet", do="Start one with mayfly launch.")
    named = [run_id for run_id in runs if name and name in run_id]
    if len(named) > 1:
        more = f" and {len(named) - MOST_CANDIDATES} older" if len(named) > MOST_CANDIDATES else ""
        why = f"{', '.join(named[: -MOST_CANDIDATES - 1 : -1])}{more}"
        raise UsageError(f"'{name}' is a part of {len(named)} runs' ids", why=why, do="Give more of the id.")
    return named[0] if named else name


def _is_id(name: str) -> bool:
    """Return whether a user's text may be a run's id: a key is made of no other."""
    return re.fullmatch(RUN_ID, name) is not None and name.strip(".") != ""


def run_ids(objects: Objects) -> tuple[str, ...]:
    """Return the ids of every run, oldest first (ids begin with their time)."""
    return tuple(sorted(objects.folders(prefix="runs/")))
