"""The run record: every decision about a run. The only object that several callers may write.

Frozen values, and the three ways in which they change. `record_json` reads and writes them, `store` keeps a
record by compare-and-swap, `reconcile` decides on it. Instants are UTC.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any, Literal

from trainer.aws.place import place_named
from trainer.job.model_names import TRIAL
from trainer.runs.attempts import Attempt, Launch, Rung
from trainer.runs.deadline import Cause, Deadline
from trainer.runs.keys import NodeKeys, own_keys

FORMAT = 12
Driver = Literal["desk", "control"]
State = Literal["starting", "running", "recovering", "ending", "closed"]
Outcome = Literal["done", "failed", "expired", "interrupted", "unconfirmed", "stopped"]
Counts = Literal["", "all", "checkpoints"]
Leaves = Literal["models", "candles", "files"]
RUN_ID = r"[\w.-]{1,200}"
WORK = "[a-z][a-z0-9-]{0,23}"  # names of commands, such as train, prepare and script
_SUFFIX_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"


def new_run_id(job_name: str, now: datetime, suffix: str | None = None) -> str:
    """Return `<yyyymmdd-hhmmss>-<job>-<suffix>`; the suffix is four random characters unless a schedule gives
    one.
    """
    suffix = suffix or "".join(secrets.choice(_SUFFIX_ALPHABET) for _ in range(4))
    return f"{now.astimezone(timezone.utc):%Y%m%d-%H%M%S}-{job_name}-{suffix}"


@dataclass(frozen=True, kw_only=True)
class InstanceSeen:
    """One instance of the run, as observed so far."""

    instance_id: str
    attempt: int
    instance_type: str
    market: str
    availability_zone: str
    state: str  # EC2's word, or "gone"
    launched_at: datetime
    running_seen_at: datetime | None = None
    terminated_at: datetime | None = None  # first seen as terminated or shutting-down
    proof: str = ""  # "described terminated" or "not found, deadline an hour past"
    reason: str = ""  # EC2's state reason once it ended, such as Server.SpotInstanceTermination
    signed_at: datetime | None = None  # last report of its node, kept when its attempt ended


@dataclass(frozen=True, kw_only=True)
class RunPiece:
    """A piece that a run was launched for, so that whoever closes the run need not know its kind."""

    model: str  # the name of its model
    piece: str  # its label
    kind: str
    series: tuple[str, ...]
    fold: int = 1
    seed: int = 0

    @property
    def is_trial(self) -> bool:
        """Return whether it ends with a score, and leaves no model."""
        return self.kind == TRIAL

    @property
    def study(self) -> tuple[tuple[str, ...], int, int]:
        """Return what a model and its trials have in common."""
        return self.series, self.fold, self.seed

    @property
    def identity(self) -> dict[str, Any]:
        """Return its fields in a receipt."""
        numbers = {"fold": self.fold, "seed": self.seed}
        return {"piece": self.piece, "kind": self.kind, "series": list(self.series), **numbers}


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run, from the intent to its receipt."""

    format: int = FORMAT
    run_id: str
    project: str
    stack: str
    owner: str
    place: str  # by name: `aws.place.PLACES`
    bucket: str
    job: dict[str, Any]
    ladder: tuple[Rung, ...]
    bundle_key: str
    bundle_sha256: str
    budget_usd: float  # 0: none
    estimated_usd: float
    preflight_at: datetime  # when the command began
    created_at: datetime  # when the record was written
    deadline: datetime  # of the run; each launch has its own, which is never later
    deadline_cause: Cause
    pieces: tuple[RunPiece, ...] = ()  # that it makes; (): it makes none
    num_nodes: int = 1  # instances of an attempt; each launch makes all of them or none
    one_model: bool = (
        False  # over all of its nodes, so that losing any ends the attempt; else they share pieces
    )
    # Who starts it: the command at the desk or the control function. Anyone may settle it.
    driver: Driver = "desk"
    handed_over_at: datetime | None = None  # when its desk left it to control, or control took it over
    work: str = "train"  # the name of its nodes' command (`runs.manifest`)
    leaves: Leaves = "models"  # what that may leave, and readers of its result take
    instance_role_id: str = ""  # unique id of the role of its instances
    user_id: str = (
        ""  # `aws:userid` of the user who runs it on their own machine; '' for a run on an instance
    )
    host: str = ""  # the host name of that machine
    instance_profile: str = ""  # ARN of their profile, if it is not that of the launch template
    state: State = "starting"
    outcome: Outcome | None = None
    error: dict[str, Any] | None = None  # {"code", "what", "why", "do"} of a run that did not end `done`
    attempts: tuple[Attempt, ...] = ()
    instances: tuple[InstanceSeen, ...] = ()
    stop_requested_at: datetime | None = None
    ending_at: datetime | None = None
    closed_at: datetime | None = None
    left_out: tuple[str, ...] = ()  # why symbols of its data have no piece
    queue_seconds: float = 0.0  # how long an attempt waits for capacity at most; 0: it does not
    parent: str = ""  # the closed run that it continues; '': none
    parent_counts: Counts = ""  # of what that left: finished work and checkpoints, or these alone
    ancestors: tuple[str, ...] = ()  # the runs that its parent continued, the last one first

    @property
    def attempt(self) -> Attempt | None:
        """Return the last attempt, whose keys readers use, or None before the first."""
        return self.attempts[-1] if self.attempts else None

    @property
    def placement_group(self) -> str:
        """Return the name of the placement group of nodes that train one model, '' for other runs. IAM
        knows it by its beginning, date and time of the run's id included.
        """
        return f"{self.project}-{self.stack}-{self.run_id}" if self.one_model else ""

    @property
    def lists_ends(self) -> bool:
        """Return whether its nodes list how pieces ended: values of a script, or trials."""
        return self.leaves == "files" or any(piece.is_trial for piece in self.pieces)

    def trials_over(self, made: Collection[str]) -> set[str]:
        """Return the trials whose model is one of those that are made. What they ended with may have gone
        with a machine, and nobody needs it any more.
        """
        studies = {piece.study for piece in self.pieces if not piece.is_trial and piece.piece in made}
        return {piece.piece for piece in self.pieces if piece.is_trial and piece.study in studies}

    @property
    def has_instances(self) -> bool:
        """Return whether instances do the work: what launches them, and whose end has to be seen."""
        return place_named(self.place).has_instances

    @property
    def next_number(self) -> int:
        """Return the number of the attempt that is launched, or that would be next while none is."""
        attempt = self.attempt
        if attempt is None:
            return 1
        return attempt.number + (attempt.ended_at is not None)

    @property
    def lineage(self) -> tuple[str, ...]:
        """Return the run and those that it continues: what it has finished lies under their keys."""
        return (self.run_id, *filter(None, (self.parent,)), *self.ancestors)

    @property
    def lost(self) -> tuple[Attempt, ...]:
        """Return the attempts that lost their machine."""
        return tuple(attempt for attempt in self.attempts if attempt.ended_at is not None)

    @property
    def outlives_its_desk(self) -> bool:
        """Return whether control goes on with it if its desk is gone: it lost a machine, or it waited in line
        for capacity.
        """
        return bool(self.lost) or (self.attempt is not None and self.attempt.queue is not None)

    @property
    def is_scheduled(self) -> bool:
        """Return whether control registered it, for a retrain."""
        return self.driver == "control" and self.handed_over_at is None

    @property
    def last_sign(self) -> datetime:
        """Return the last instant at which its driver is known to have worked, or until which it waits."""
        attempt, launch = self.attempt, self.last_launch
        signs = [self.created_at, launch.last_call_at if launch else None]
        signs += [attempt.queue.next_at if attempt and attempt.queue else None]
        signs += [item.ended_at for item in self.lost]
        signs += [seen.terminated_at for seen in self.instances]
        return max(sign for sign in signs if sign)

    def as_of(self, number: int) -> RunRecord:
        """Return the record as of an attempt, whose keys and instances readers then ask for."""
        return replace(self, attempts=tuple(item for item in self.attempts if item.number <= number))

    @property
    def all_nodes(self) -> tuple[NodeKeys, ...]:
        """Return the keys of every attempt's instances, the first attempt's first."""
        return tuple(keys for nodes in self.nodes_by_attempt for keys in nodes)

    @property
    def nodes_by_attempt(self) -> tuple[tuple[NodeKeys, ...], ...]:
        """Return the keys of each attempt's instances."""
        return tuple(self.as_of(item.number).nodes for item in self.attempts) or (self.nodes,)

    @property
    def nodes(self) -> tuple[NodeKeys, ...]:
        """Return the keys of the last attempt's instances (`working_ids`): readers ask for these and no
        other.
        """
        attempt = self.attempt
        if not self.has_instances:
            return (own_keys(self.user_id, self.run_id),)
        if attempt is None or not self.instance_role_id:
            return ()
        return tuple(
            NodeKeys(
                role_id=self.instance_role_id,
                instance_id=instance_id,
                run_id=self.run_id,
                attempt=attempt.number,
            )
            for instance_id in self.working_ids
        )

    @property
    def working_ids(self) -> tuple[str, ...]:
        """Return the ids of the last launch's instances, whose word counts. One that no launch names came too
        late: it is in no start file, and ends. So is one of a fleet that is not whole.
        """
        launch = self.last_launch
        return launch.instance_ids if launch and not launch.is_partial else ()

    @property
    def last_launch(self) -> Launch | None:
        """Return the last launch of the last attempt, or None before the first."""
        return self.attempt.launches[-1] if self.attempt and self.attempt.launches else None

    @property
    def effective_deadline(self) -> Deadline:
        """Return the deadline in force: the last launch's, or the run's before the first launch and after a
        refused one.
        """
        launch = self.last_launch
        if launch is None or launch.outcome == "refused":
            return Deadline(at=self.deadline.replace(microsecond=0), cause=self.deadline_cause)
        return Deadline(at=launch.deadline, cause=launch.deadline_cause)

    def with_new_launch(self, launch: Launch) -> RunRecord:
        """Return the record with one more launch of the last attempt, which begins with its first."""
        attempt = self.attempt or Attempt(number=1)
        return replace(
            self, attempts=(*self.attempts[:-1], replace(attempt, launches=(*attempt.launches, launch)))
        )

    def with_launch(self, launch: Launch, now: datetime) -> RunRecord:
        """Return the record with the last attempt's launch of the same token replaced; a created one makes
        the run run.
        """
        assert self.attempt is not None
        launches = tuple(launch if known.token == launch.token else known for known in self.attempt.launches)
        attempt = replace(self.attempt, launches=launches)
        state = self.state
        if launch.outcome == "created":
            attempt = replace(attempt, created_at=attempt.created_at or now)
            state = "running" if self.state == "starting" else self.state
        return replace(self, state=state, attempts=(*self.attempts[:-1], attempt))

    def recovering(self, ended: Attempt, instances: tuple[InstanceSeen, ...]) -> RunRecord:
        """Return the record of a run whose last attempt has ended, and that waits to see its instances go."""
        return replace(self, state="recovering", attempts=(*self.attempts[:-1], ended), instances=instances)

    def with_next_attempt(self) -> RunRecord:
        """Return the record of a recovering run that launches once more."""
        return replace(self, state="starting", attempts=(*self.attempts, Attempt(number=self.next_number)))

    def handed_over(self, now: datetime) -> RunRecord:
        """Return the record of a run that control goes on with instead of its desk."""
        return replace(self, driver="control", handed_over_at=now)

    def ended(self, outcome: Outcome, error: Mapping[str, Any] | None, now: datetime) -> RunRecord:
        """Return the record of a run whose end is decided, while the end of its instances is not yet
        observed.
        """
        why = self._with_lost(error) if error else None
        return replace(self, state="ending", outcome=outcome, error=why, ending_at=self.ending_at or now)

    def _with_lost(self, error: Mapping[str, Any]) -> dict[str, Any]:
        """Return the error of a run's end, which names the attempts that lost their machines before."""
        lost = [(item.number, (item.error or {}).get("what", "")) for item in self.lost]
        named = [
            f"attempt {number} lost its machine: {what}" for number, what in lost if what != error.get("what")
        ]
        return (
            {**error, "why": "; ".join(filter(None, (error.get("why", ""), *named)))}
            if named
            else dict(error)
        )


def client_token(run_id: str, attempt: int, rung: int, launches_before: int) -> str:
    """Return the ClientToken of a launch: at most 64 ASCII characters, the same for the same intent."""
    return hashlib.sha256(f"{run_id}/{attempt}/{rung}/{launches_before}".encode()).hexdigest()[:40]
