"""Follows one run from wherever it is to its receipt: look, decide, act, sleep, and tell the caller what is going on.

Owns the loop at the desk: its pace, the progress it reports, Ctrl-C, and how long it keeps trying. What is done to the run is
decided by `runs.reconcile` and carried out by `control.act`; the command that renders progress is `cli.launch`.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import FrameType
from typing import Any

from trainer.access import Access
from trainer.control.act import Step, read_receipt, request_stop, step
from trainer.control.cloud import AwsCloud, Cloud
from trainer.errors import Stopped, TerminationUnconfirmed, TrainerError, UsageError
from trainer.runs.observed import last_deadline
from trainer.runs.receipt import Receipt, make_receipt, spent
from trainer.runs.record import InstanceSeen, RunRecord, iso
from trainer.runs.world import World
from trainer.stack_outputs import StackOutputs

POLL_SECONDS = 5.0
REHEARSAL_POLL_SECONDS = 0.5
LOUD_AFTER = timedelta(minutes=2)  # without proof that the instance ends; GPU machines do take minutes to shut down
PATIENCE = timedelta(minutes=30)  # then the command leaves, with an exit code of its own; the layers go on
_NODE_PHASES = {"boot": "boot", "stage": "stage", "train": "train", "upload": "upload", "end": "terminate"}


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """What there is to say about a run right now. `phase` is one of the receipt's phases, `spent_usd` the high bound."""

    run_id: str
    state: str
    outcome: str | None
    phase: str
    elapsed_seconds: float
    spent_usd: float
    deadline: datetime
    instances: tuple[InstanceSeen, ...] = ()
    symbols: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by symbol, as the node's heartbeat has it
    models_total: int = 0
    models_done: int = 0
    rate: float | None = None  # in `unit` a second
    unit: str = "windows"
    message: str = ""  # the node's own words, or what the run waits for
    last_error: str = ""  # the last AWS error, while it lasts
    warning: str = ""  # to be said loudly: an instance can't be seen to end


def say_nothing(progress: RunProgress) -> None:
    """Ignore progress."""


class StopSignal:
    """Ctrl-C, counted: the first press asks for the run's end, the second leaves it to its deadline."""

    def __init__(self) -> None:
        self.presses = 0

    def press(self) -> None:
        """Count one press."""
        self.presses += 1

    @contextmanager
    def installed(self) -> Iterator[StopSignal]:
        """Count SIGINT and SIGTERM while the block runs; in another thread than the main one, do nothing."""

        def pressed(number: int, frame: FrameType | None) -> None:
            self.press()

        before = {}
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                before[number] = signal.signal(number, pressed)
        except ValueError:  # signals belong to the main thread
            before.clear()
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def drive(
    access: Access,
    outputs: StackOutputs,
    run_id: str,
    *,
    on_event: Callable[[RunProgress], None] = say_nothing,
    stop: StopSignal | None = None,
) -> Receipt:
    """Drive a run to its end and return its receipt.

    Raises Stopped when a second press detached from it, UsageError when there is no such run. Where no end could be observed
    the receipt says `unconfirmed`, exit code 110, and is not stored: whoever settles the run later goes on.
    """
    return drive_to_receipt(AwsCloud(access, outputs), run_id, poll_seconds=pace(access), on_event=on_event, stop=stop)


def start(
    access: Access,
    outputs: StackOutputs,
    run_id: str,
    *,
    on_event: Callable[[RunProgress], None] = say_nothing,
    stop: StopSignal | None = None,
) -> RunRecord:
    """Drive a run until its instance exists and both schedules are armed (or it ended), and leave it to itself."""
    return drive_to_instance(AwsCloud(access, outputs), run_id, poll_seconds=pace(access), on_event=on_event, stop=stop)


def pace(access: Access) -> float:
    """Return the seconds between two looks."""
    return REHEARSAL_POLL_SECONDS if access.rehearsal else POLL_SECONDS


def drive_to_receipt(
    cloud: Cloud,
    run_id: str,
    *,
    poll_seconds: float,
    on_event: Callable[[RunProgress], None] = say_nothing,
    stop: StopSignal | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Receipt:
    """Do what `drive` does, with any Cloud and any way to sleep."""
    for look in follow(cloud, run_id, poll_seconds=poll_seconds, on_event=on_event, stop=stop or StopSignal(), sleep=sleep):
        if look.record.state == "closed":
            receipt = read_receipt(cloud.objects, run_id)
            if receipt is not None:
                return receipt
        elif overdue(look, cloud.now()):
            return unconfirmed_receipt(look, cloud.now())
    raise AssertionError("a run is followed until it is closed")


def drive_to_instance(
    cloud: Cloud,
    run_id: str,
    *,
    poll_seconds: float,
    on_event: Callable[[RunProgress], None] = say_nothing,
    stop: StopSignal | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> RunRecord:
    """Do what `start` does, with any Cloud and any way to sleep."""
    for look in follow(cloud, run_id, poll_seconds=poll_seconds, on_event=on_event, stop=stop or StopSignal(), sleep=sleep):
        launch = look.record.attempt.launches[-1] if look.record.attempt and look.record.attempt.launches else None
        if look.record.state == "closed" or (launch and launch.kill_armed_at and look.record.stop_requested_at is None):
            return look.record
    raise AssertionError("a run is followed until it is closed")


def follow(
    cloud: Cloud,
    run_id: str,
    *,
    poll_seconds: float,
    on_event: Callable[[RunProgress], None],
    stop: StopSignal,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Step]:
    """Yield every look at a run until it is closed and nothing of it is alive; errors are told and tried again."""
    last: Step | None = None
    asked_to_stop = False
    while True:
        error: TrainerError | None = None
        try:
            if stop.presses and not asked_to_stop:
                request_stop(cloud, run_id)
                asked_to_stop = True
            last = step(cloud, run_id)
            error = last.error
        except UsageError:
            raise
        except TrainerError as failure:
            if last is None:
                raise
            error = failure
            last = Step(record=last.record, world=last.world, actions=(), moved=False, error=failure)
        on_event(progress_of(last, cloud.now(), error))
        yield last
        if last.record.state == "closed" and not last.world.alive:
            return
        if stop.presses > 1:
            raise detached(last, cloud.now())
        if not last.moved:
            _sleep(poll_seconds, stop, sleep)


def overdue(look: Step, now: datetime) -> bool:
    """Tell whether a run's end should have been seen long ago, half an hour after it was due, and nothing moves any more."""
    return not look.moved and now > (look.record.ending_at or last_deadline(look.record)) + PATIENCE


def unconfirmed_receipt(look: Step, now: datetime) -> Receipt:
    """Return the receipt of a run whose instances could not be seen to end. It is shown, never stored."""
    return make_receipt(look.record, look.world, outcome="unconfirmed", error=_unconfirmed(look, now).as_dict())


def detached(look: Step, now: datetime) -> TrainerError:
    """Return what a command says that leaves a run to its deadline."""
    record = look.record
    if record.state == "ending" and now > (record.ending_at or now) + LOUD_AFTER:
        return _unconfirmed(look, now)
    return Stopped(
        f"detached from {record.run_id}; its deadline stands: everything of it ends by {iso(last_deadline(record))}",
        do=f"{_status_command(record)} tells how it goes.",
    )


def progress_of(look: Step, now: datetime, error: TrainerError | None = None) -> RunProgress:
    """Return what there is to say about a look at a run."""
    record, world, heartbeat = look.record, look.world, look.world.heartbeat
    waiting = next((action.why for action in look.actions if hasattr(action, "why")), "")
    late = record.state == "ending" and record.ending_at is not None and now > record.ending_at + LOUD_AFTER
    return RunProgress(
        run_id=record.run_id,
        state=record.state,
        outcome=record.outcome,
        phase=phase_of(record, world),
        elapsed_seconds=((record.closed_at or now) - record.preflight_at).total_seconds(),
        spent_usd=spent(record, world, now)[1],
        deadline=last_deadline(record),
        instances=record.instances,
        symbols=heartbeat.progress if heartbeat else {},
        models_total=heartbeat.models_total if heartbeat else 0,
        models_done=heartbeat.models_done if heartbeat else 0,
        rate=heartbeat.rate if heartbeat else None,
        unit=heartbeat.unit if heartbeat else "windows",
        message=(heartbeat.message if heartbeat else "") or waiting,
        last_error=str(error) if error else "",
        warning=str(_unconfirmed(look, now)) if late else "",
    )


def phase_of(record: RunRecord, world: World) -> str:
    """Return which of the receipt's phases a run is in."""
    if record.state == "starting":
        return "capacity"
    if record.state in ("ending", "closed"):
        return "terminate"
    return _NODE_PHASES.get(world.heartbeat.phase, "boot") if world.heartbeat else "boot"


def _unconfirmed(look: Step, now: datetime) -> TerminationUnconfirmed:
    names = ", ".join(seen.instance_id for seen in look.record.instances if not seen.proof) or "the run's instances"
    since = iso((look.record.ending_at or last_deadline(look.record)).replace(microsecond=0))
    return TerminationUnconfirmed(
        f"cannot confirm that {names} ended (asked since {since}); it may still cost money",
        why=str(look.error) if look.error else "AWS does not say terminated",
        do=f"Look at the EC2 console, or run {_status_command(look.record)}.",
    )


def _status_command(record: RunRecord) -> str:
    return f"mayfly status {record.run_id}{' --rehearse' if record.rehearsal else ''}"


def _sleep(seconds: float, stop: StopSignal, sleep: Callable[[float], None]) -> None:
    """Sleep in slices, so that a press counts within a fifth of a second."""
    presses, left = stop.presses, seconds
    while left > 0 and stop.presses == presses:
        sleep(min(0.2, left))
        left -= 0.2
