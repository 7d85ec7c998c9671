"""`launch --resume RUN`: what a new run may continue of one that has ended, decided before it is registered.

The decision is in the new run's record (`parent`, `parent_counts`); `control.carry` then writes the start
file of its first attempt. Two runs are compared by their manifests, which no machine can write.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from trainer.aws.objects import Objects
from trainer.base.errors import UsageError
from trainer.base.strict_json import Unsound
from trainer.control.carry import finished_of, has_checkpoints, last_begun
from trainer.control.observe import left_behind
from trainer.job.model_settings import model_settings
from trainer.runs.manifest import Manifest, ManifestInput, read_manifest
from trainer.runs.record import Counts, RunRecord
from trainer.runs.store import find_run, manifest_key, read_record

NOTHING_LEFT = "it ended done: nothing of it is left to do"
ANEW = "Launch without --resume to start over."
MOST_NAMED = 5  # differences in an error


def read_parent(objects: Objects, name: str, *, project: str, stack: str, place: str) -> RunRecord:
    """Return the record of the run that a user wants to continue. Raises UsageError for an unknown or open
    one, a script's that ended done, or one of another stack or place.
    """
    parent, _ = read_record(objects, find_run(objects, name))
    what = f"run {parent.run_id} can't be continued"
    if parent.state != "closed":
        do = f"Wait for its end, or end it: mayfly stop {parent.run_id}."
        raise UsageError(what, why=f"it is still open ({parent.state})", do=do)
    if parent.outcome == "done" and parent.work != "train":
        raise UsageError(what, why=NOTHING_LEFT, do=ANEW)
    if (parent.project, parent.stack, parent.place) != (project, stack, place):
        own = f"it is of stack {parent.stack} of {parent.project}, in the place {parent.place!r}"
        raise UsageError(what, why=own, do="Name its stack with --stack, or " + ANEW[0].lower() + ANEW[1:])
    return parent


def continued(objects: Objects, record: RunRecord, parent: RunRecord, manifest: Manifest) -> RunRecord:
    """Return the record of a new run as the continuation of a closed one. `manifest`: the new run's.

    Raises UsageError if nothing of the earlier run counts, or nothing is left of it.
    """
    what = f"run {parent.run_id} can't be continued"
    counts = what_counts(_manifest(objects, parent), manifest, what)
    if parent.outcome == "done" and counts == "all":
        raise UsageError(what, why=NOTHING_LEFT, do="Raise train.epochs to train on. " + ANEW)
    before = last_begun(objects, parent)
    left = left_behind(objects, before)
    finished = counts == "all" and finished_of(objects, before, left)
    if not finished and not has_checkpoints(objects, before, left.start):
        kept = "either none was sent, or they are older than the stack's retention.checkpoint_days"
        why = f"it finished nothing that counts, and S3 has no checkpoints of it: {kept}"
        raise UsageError(what, why=why, do=ANEW)
    return replace(record, parent=parent.run_id, parent_counts=counts, ancestors=parent.lineage[1:])


def what_counts(before: Manifest, now: Manifest, what: str) -> Counts:
    """Return what counts of a run for one with another manifest.

    Of a training either all counts or nothing: code, locked packages, data and the settings that determine
    the models must be the same. With more epochs its checkpoints count, and no finished model. A script may
    have been mended: then its checkpoints count, too, and nothing that it finished. Raises UsageError, with
    `what`, if nothing counts.
    """
    if before.command.name != now.command.name:
        why = f"it ran {before.command.title}, this job runs {now.command.title}"
        raise UsageError(what, why=why, do=ANEW)
    if now.command.tells == "numbers":
        if other := next(_other_trials(before, now), ""):
            raise UsageError(what, why=f"its trials would become others: {other}", do=ANEW)
        return "all" if before.command.sha256 == now.command.sha256 else "checkpoints"
    if differing := list(_differences(before, now)):
        more = f" and {len(differing) - MOST_NAMED} more" if len(differing) > MOST_NAMED else ""
        why = f"its models would become others: {', '.join(differing[:MOST_NAMED])}{more}"
        raise UsageError(what, why=why, do=ANEW)
    old, new = (int(one.job["train"]["epochs"]) for one in (before, now))
    if new < old:
        raise UsageError(what, why=f"it may have trained {old} epochs, this job asks for {new}", do=ANEW)
    return "checkpoints" if new > old else "all"


def _other_trials(before: Manifest, now: Manifest) -> Iterator[str]:
    """Yield what makes trials of a script's search others than those of the same number in another run; more
    trials may follow.
    """
    old, new = (one.job.get("search") for one in (before, now))
    if not (old and new):
        return
    # values that TPE proposes follow from those that were tried
    for key in ("method", "score", *(("over",) if new.get("method") == "tpe" else ())):
        if old.get(key) != new.get(key):
            yield f"search.{key} has changed"
    known = {piece.piece: piece.values for piece in before.pieces}
    for piece in now.pieces:
        if (was := known.get(piece.piece, piece.values)) != piece.values:
            yield f"{piece.piece} had {_values(was)}, now {_values(piece.values)}"


def _values(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items())[:80]


def _differences(before: Manifest, now: Manifest) -> Iterator[str]:
    """Yield what differs of all that determines the models of two trainings."""
    if before.code["sha256"] != now.code["sha256"]:
        yield "the code (Mayfly's, or a file of the job) has changed"
    if before.lock_sha256 != now.lock_sha256:
        yield "the locked packages have changed"
    old, new = model_settings(before.job), model_settings(now.job)
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            told = f"{key} was {str(old.get(key))[:40]!r}, now {str(new.get(key))[:40]!r}"
            yield told + _of_epochs(now.job) if key == "train.epochs" else told
    inputs, others = ({item.path: item for item in one.inputs} for one in (before, now))
    for path in sorted(inputs.keys() | others.keys()):
        if not _same(inputs.get(path), others.get(path)):
            yield f"the input {path} has changed"


def _of_epochs(job: Mapping[str, Any]) -> str:
    """Return why another number of epochs makes another model."""
    if job["train"]["schedule"] != "constant":
        return f", on which the rate of each step depends ({job['train']['schedule']})"
    return ", and its newest checkpoints are of a later stage (train.refit, train.ensemble)"


def _same(one: ManifestInput | None, other: ManifestInput | None) -> bool:
    """Return whether two inputs have one content: by hash, or as the same version where nobody hashed it."""
    if one is None or other is None:
        return False
    if one.sha256 and other.sha256:
        return one.sha256 == other.sha256
    return (one.key, one.version_id) == (other.key, other.version_id)


def _manifest(objects: Objects, parent: RunRecord) -> Manifest:
    stored = objects.get(key=manifest_key(parent.run_id))
    try:
        return read_manifest(stored.body if stored else b"")
    except Unsound as error:
        what = f"cannot read the manifest of run {parent.run_id}"
        raise UsageError(what, why=str(error), do=ANEW) from error
