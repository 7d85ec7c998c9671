"""Decisions of the gate: whether a retrain's model replaced the one in production, with all numbers.

    models/retrains/<retrain>/<run>/decisions.json       those about all models of a run, created once
    models/production/<group>/<model>.decision.json      the last one about a production model; its versions
                                                         are the history

Control writes them; `mayfly models production` and `verify` read them. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from trainer.aws.objects import Conflict, Objects, Stored
from trainer.base.errors import ConfigError
from trainer.base.strict_json import Unsound
from trainer.job.model_names import MODEL_SUFFIX
from trainer.runs.record_json import read_value, to_json
from trainer.store.production import (
    PRODUCTION,
    RETRAINS,
    production_name,
    production_versions,
    same_bytes,
    sha256_of,
)

FORMAT = 1
MOST_BYTES = 64 * 1024  # of a decision
MOST_DECISIONS_BYTES = 128 * 2**20
SUFFIX = ".decision.json"
READ_AT_ONCE = 8
BY_HAND = "hand"  # instead of windows: a person decided


@dataclass(frozen=True, kw_only=True)
class ModelVersion:
    """A model object by version and hash."""

    key: str
    version_id: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class GateDecision:
    """The decision about one model of a retrain's run."""

    format: int = FORMAT
    piece: str
    name: str  # of the production model, GROUP/NAME
    run_id: str  # that made the challenger
    score_run_id: str  # that scored both
    decided_at: datetime
    gate: str  # the windows, a value of the schedule's `gate`, or BY_HAND
    challenge: int  # number of the decision among those about this champion, from 1 on; 0: none was made
    promote: bool
    reason: str
    challenger: ModelVersion
    champion: ModelVersion | None
    numbers: dict[str, Any]  # `targets.gate.Decision`

    @property
    def winner(self) -> str:
        """Return the sha256 of the model that is in production by this decision; '' for none."""
        return self.challenger.sha256 if self.promote else self.champion.sha256 if self.champion else ""


@dataclass(frozen=True, kw_only=True)
class RunDecisions:
    """The decisions about all models of a run."""

    format: int = FORMAT
    decisions: tuple[GateDecision, ...]


def decision_key(name: str) -> str:
    """Return the key of the last decision about the production model of a GROUP/NAME."""
    return f"{PRODUCTION}{name}{SUFFIX}"


def decisions_key(retrain: str, run_id: str) -> str:
    """Return the key of the decisions about a retrain's run."""
    return f"{RETRAINS}{retrain}/{run_id}/decisions.json"


class UnreadableDecision(ConfigError):
    """The decision about a production model is there, and damaged."""


def read_decision(objects: Objects, name: str) -> GateDecision | None:
    """Return the last decision about a production model, None without one. Raises UnreadableDecision."""
    stored = objects.get(key=decision_key(name), first_bytes=MOST_BYTES + 1)
    if stored is None:
        return None
    try:
        decision = read_value(stored.body, GateDecision, name="the decision", most_bytes=MOST_BYTES)
        if decision.name != name:
            raise Unsound(f"it is about {decision.name[:80]!r}")
    except Unsound as error:
        what, do = f"cannot read {decision_key(name)}", "Restore an earlier version of it, or delete it."
        raise UnreadableDecision(what, why=str(error), do=do) from error
    return decision


def decisions_about(objects: Objects, names: Iterable[str]) -> dict[str, GateDecision]:
    """Return the last decision about each production model of a GROUP/NAME that has a sound one."""

    def read(name: str) -> GateDecision | None:
        try:
            return read_decision(objects, name)
        except UnreadableDecision:
            return None

    every = list(dict.fromkeys(names))
    with ThreadPoolExecutor(READ_AT_ONCE) as pool:
        found = zip(every, pool.map(read, every), strict=True)
        return {name: decision for name, decision in found if decision is not None}


def write_decision(objects: Objects, decision: GateDecision) -> None:
    """Write a decision beside its production model."""
    objects.put(key=decision_key(decision.name), body=to_json(decision))


def note_by_hand(
    objects: Objects, name: str, reason: str, now: datetime, *, sha256: str, run_id: str = ""
) -> None:
    """Write that a person put this model in production as GROUP/NAME, so that the gate counts anew and
    `verify` agrees. If another is there by now, the note is left to whoever put that.
    """
    there = _in_production(objects, name)
    if there is None or there.sha256 != sha256:
        return
    made = GateDecision(
        piece="",
        name=name,
        run_id=run_id,
        score_run_id="",
        decided_at=now,
        gate=BY_HAND,
        challenge=0,
        promote=True,
        reason=reason,
        challenger=there,
        champion=None,
        numbers={},
    )
    write_decision(objects, made)


def is_unnoted(objects: Objects, name: str) -> bool:
    """Return whether the last decision about a production model left another one, or none was made: a command
    put the model there, and was cut off before it noted that.
    """
    try:
        decision = read_decision(objects, name)
    except UnreadableDecision:
        return False
    there = _in_production(objects, name)
    return there is not None and (decision is None or decision.winner != there.sha256)


def unnoted_roll_back(objects: Objects, name: str) -> tuple[Stored, Stored] | None:
    """Return what an earlier rollback replaced and restored, if it was cut off before it was noted: another
    one would restore what that has replaced. Raises UsageError as `production_versions` does.
    """
    current, *older = production_versions(objects, name)
    if not is_unnoted(objects, production_name(current.key)):
        return None
    same = next((one for one in older if same_bytes(objects, one, current)), None)
    return None if same is None or same is older[0] else (older[0], same)


def _in_production(objects: Objects, name: str) -> ModelVersion | None:
    """Return the production model of a GROUP/NAME; None if there is none."""
    there = objects.head(key=f"{PRODUCTION}{name}{MODEL_SUFFIX}")
    if there is None:
        return None
    return ModelVersion(key=there.key, version_id=there.version_id, sha256=sha256_of(objects, there))


def create_decisions(
    objects: Objects, retrain: str, run_id: str, made: Sequence[GateDecision]
) -> tuple[GateDecision, ...]:
    """Write the decisions about a run, once, and return those that are there."""
    with suppress(Conflict):  # another call of control
        key = decisions_key(retrain, run_id)
        objects.put(key=key, body=to_json(RunDecisions(decisions=tuple(made))), create=True)
    return read_decisions(objects, retrain, run_id) or tuple(made)


def read_decisions(objects: Objects, retrain: str, run_id: str) -> tuple[GateDecision, ...] | None:
    """Return the decisions about a run, None if there are none yet. Raises ConfigError for what can't be
    read.
    """
    stored = objects.get(key=decisions_key(retrain, run_id))
    if stored is None:
        return None
    try:
        name = "the list of decisions"
        return read_value(stored.body, RunDecisions, name=name, most_bytes=MOST_DECISIONS_BYTES).decisions
    except Unsound as error:
        what = f"cannot read {decisions_key(retrain, run_id)}"
        raise ConfigError(what, why=str(error), do="Promote a model by hand, if one is wanted.") from error
