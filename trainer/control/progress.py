"""Progress of a run after each look: phase, time, dollars, deadline, and a warning if its end can't be
confirmed. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from trainer.aws.place import Place, place_named
from trainer.base.errors import Stopped, TerminationUnconfirmed, TrainerError
from trainer.base.instants import iso
from trainer.runs.actions import Action
from trainer.runs.deadline import Deadline
from trainer.runs.launching import pool_name
from trainer.runs.node_ends import NodeEnd, node_ends
from trainer.runs.observation import Observation
from trainer.runs.receipt import Receipt, make_receipt, seconds
from trainer.runs.record import InstanceSeen, RunRecord
from trainer.runs.recovery import lost_machine
from trainer.runs.reports import Heartbeat
from trainer.runs.samples import NodeSample
from trainer.runs.spending import spent

# From here on an end without proof is a warning; GPU machines do take minutes to shut down.
LOUD_AFTER = timedelta(minutes=2)
# From here on a node that reports every three seconds is taken to be silent; its clock may differ a little.
QUIET_AFTER = timedelta(seconds=15)
PATIENCE = timedelta(minutes=30)  # then the command exits with code 110; the safety layers go on
_NODE_PHASES = {"boot": "boot", "stage": "stage", "train": "train", "upload": "upload", "end": "terminate"}


@dataclass(frozen=True, kw_only=True)
class Step:
    """One pass over a run: the record and observation it decided on, its actions, and whether it changed
    anything.
    """

    record: RunRecord
    observed: Observation
    actions: tuple[Action, ...]
    moved: bool
    error: TrainerError | None = None  # of an action that failed, or of the look itself
    failing_since: datetime | None = None  # since when every pass had an error; None: this one has none


@dataclass
class Patience:
    """The time for which a command has waited past a run's end, without the time that its machine slept. A
    laptop that wakes up has no network at first, so that its first looks fail.
    """

    _looked_at: datetime | None = None
    _waited: timedelta = timedelta(0)

    def is_over(self, look: Step, now: datetime) -> bool:
        """Take in a look; return whether the run is half an hour past its end without any progress."""
        end = look.record.ending_at or look.record.effective_deadline.at
        before, self._looked_at = self._looked_at or now, now
        if now > end:
            self._waited += min(max(now - max(before, end), timedelta(0)), LOUD_AFTER)
        return look.record.has_instances and not look.moved and self._waited > PATIENCE


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """The state of a run at one instant. `phase` is one of the receipt's phases, `spent_usd` the high
    bound.
    """

    run_id: str
    state: str
    outcome: str | None
    phase: str
    place: Place
    elapsed_seconds: float
    spent_usd: float
    deadline: Deadline
    instances: tuple[InstanceSeen, ...] = ()
    # by piece, as the node's heartbeat has it
    pieces: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sample: NodeSample | None = None  # the node's last look at its hardware
    models_total: int = 0
    models_done: int = 0
    work: str = "train"  # as in the record; a script's pieces are its values
    better: str = "min"  # end of the scores of its trials
    rate: float | None = None  # in `unit` a second
    unit: str = "windows"
    parent: str = ""  # the run that it continues
    attempt: int = 1  # that works, or is launched
    durable: Mapping[str, Any] = field(default_factory=dict)  # its newest checkpoints in S3; {}: none
    lost: tuple[str, ...] = ()  # a line for each attempt before it, which lost its machine
    nodes: tuple[NodeEnd, ...] = ()  # of several: each one's state
    message: str = ""  # the node's own, the reason for waiting, or how long the node has been silent
    is_silent: bool = False  # the node has not reported for a while: its progress is that of then
    last_error: str = ""  # the last AWS error, while it lasts
    seconds: Mapping[str, float] = field(default_factory=dict)  # of each of the receipt's phases so far
    # in the line for capacity: since, next_at, until, walks, and the last refusal's code and message
    waiting: Mapping[str, Any] | None = None
    warning: str = ""  # an instance's end can't be confirmed: print it prominently


def _may_pass(look: Step, now: datetime) -> bool:
    """Return whether errors have not lasted for two minutes yet: a laptop that slept wakes before its network
    does.
    """
    return look.failing_since is not None and now <= look.failing_since + LOUD_AFTER


def unconfirmed_receipt(look: Step, now: datetime) -> Receipt:
    """Return the receipt of a run whose instances' end could not be confirmed: they are billed until now. It
    is shown, never stored.
    """
    error = _unconfirmed(look).as_dict()
    return make_receipt(look.record, look.observed, outcome="unconfirmed", error=error, now=now)


def abandoned(look: Step, now: datetime, *, requested: bool) -> TrainerError:
    """Return the error of a command that stops waiting for a run's end. `requested`: the stop request is
    stored.
    """
    record = look.record
    if record.state == "ending" and now > (record.ending_at or now) + LOUD_AFTER:
        return _unconfirmed(look)
    stop = "its end is requested" if requested else "its end could not be requested"
    return Stopped(
        f"not waiting for {record.run_id}: {stop}, and all of it ends by {iso(record.effective_deadline.at)}",
        do=f"{_status_command(record)} shows its progress.",
    )


def progress_of(look: Step, now: datetime, error: TrainerError | None = None) -> RunProgress:
    """Return the progress of a run after a look at it."""
    record, observed, heartbeat = look.record, look.observed, look.observed.heartbeat
    waiting = next((action.why for action in look.actions if hasattr(action, "why")), "")
    late = record.state == "ending" and record.ending_at is not None and now > record.ending_at + LOUD_AFTER
    silence = _silence(look, now)
    return RunProgress(
        run_id=record.run_id,
        state=record.state,
        outcome=record.outcome,
        phase=phase_of(record, observed),
        place=place_named(record.place),
        elapsed_seconds=((record.closed_at or now) - record.preflight_at).total_seconds(),
        spent_usd=spent(record, observed, now)[1],
        seconds=seconds(record, observed, now),
        deadline=record.effective_deadline,
        instances=record.instances,
        work=record.work,
        better=_better(record.job),
        parent=record.parent,
        attempt=record.next_number,
        lost=tuple(map(lost_machine, record.lost)),
        nodes=node_ends(record, observed, now) if record.state == "running" else (),
        **_reported(observed.heartbeat),
        message=silence or (heartbeat.message if heartbeat else "") or waiting,
        is_silent=bool(silence),
        last_error=str(error) if error else "",
        waiting=_waiting(record),
        warning=str(_unconfirmed(look)) if late and not _may_pass(look, now) else "",
    )


def _better(job: Mapping[str, Any]) -> str:
    """Return the better end of the scores of a job's trials: least losses, or what a script's search says."""
    table = job.get("search")
    score = table.get("score") if isinstance(table, Mapping) else ""
    return "max" if str(score).endswith(":max") else "min"


def _waiting(record: RunRecord) -> dict[str, Any] | None:
    """Return what a run in the line for capacity waits for; None for any other."""
    attempt, launch = record.attempt, record.last_launch
    if record.state != "starting" or attempt is None or attempt.queue is None or launch is None:
        return None
    queue = attempt.queue
    return {
        **{name: iso(getattr(queue, name)) for name in ("since", "next_at", "until")},
        "tries": queue.walks - attempt.waits,
        "pool": pool_name(record.ladder[launch.rung]),
        "error_code": launch.error_code,
        "error_message": launch.error_message,
    }


def _reported(beat: Heartbeat | None) -> dict[str, Any]:
    """Return what a node reports of its work; {} before its first report."""
    same = ("sample", "models_total", "models_done", "rate", "unit", "durable")
    return {"pieces": beat.progress, **{name: getattr(beat, name) for name in same}} if beat else {}


def _silence(look: Step, now: datetime) -> str:
    """Return for how long a node at work has given no sign of life; '' if it reports."""
    beat = look.observed.heartbeat
    if look.record.state != "running" or beat is None or look.observed.result is not None:
        return ""
    return f"no sign for {(now - beat.at).total_seconds():.0f} s" if now >= beat.at + QUIET_AFTER else ""


def phase_of(record: RunRecord, observed: Observation) -> str:
    """Return the current phase of a run, one of the receipt's."""
    if record.state == "recovering" or (record.state == "starting" and record.lost):
        return "lost"
    if record.state == "starting":
        return "capacity"
    if record.state in ("ending", "closed"):
        return "terminate"
    return _NODE_PHASES.get(observed.heartbeat.phase, "boot") if observed.heartbeat else "boot"


def _unconfirmed(look: Step) -> TerminationUnconfirmed:
    names = (
        ", ".join(seen.instance_id for seen in look.record.instances if not seen.proof)
        or "the run's instances"
    )
    since = iso((look.record.ending_at or look.record.effective_deadline.at).replace(microsecond=0))
    return TerminationUnconfirmed(
        f"cannot confirm that {names} ended (requested at {since}); it may still cost money",
        why=str(look.error) if look.error else "AWS does not show it as terminated",
        do=f"Look at the EC2 console, or run {_status_command(look.record)}.",
    )


def _status_command(record: RunRecord) -> str:
    return f"mayfly status {record.run_id}{place_named(record.place).flag}"
