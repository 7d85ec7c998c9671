"""Drive one run from its present state to its receipt: observe, decide, act, report, sleep.

Owns the loop at the desk. `runs.reconcile` decides, with one exception: a run whose deadline can't be armed
is not launched. `control.act` has the side effects.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Protocol

from trainer.aws.objects import Conflict
from trainer.base.errors import ConnectionFailed, EmbeddedAwsGone, TrainerError, UsageError
from trainer.control.act import act, give_up_start
from trainer.control.cloud import Cloud
from trainer.control.observe import observe
from trainer.control.progress import (
    LOUD_AFTER,
    Patience,
    RunProgress,
    Step,
    abandoned,
    progress_of,
    unconfirmed_receipt,
)
from trainer.control.stop import StopSignal, Wish, leave_to_control, request_stop
from trainer.runs.actions import Store
from trainer.runs.observation import Observation
from trainer.runs.receipt import Receipt
from trainer.runs.reconcile import reconcile
from trainer.runs.record import Driver, RunRecord
from trainer.runs.store import read_record, swap_record
from trainer.runs.stored_receipt import read_receipt

RECEIPT_TRIES = 60  # polls of a closed run's receipt


class Agent(Protocol):
    """The process of the agent, where it is this command's own."""

    def poll(self) -> int | None: ...

    def terminate(self) -> None: ...


def say_nothing(progress: RunProgress) -> None:
    """Ignore progress."""


def drive(
    cloud: Cloud,
    run_id: str,
    *,
    poll_seconds: float,
    known: RunRecord | None = None,
    on_event: Callable[[RunProgress], None] = say_nothing,
    stop: StopSignal | None = None,
    agent: Agent | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Receipt | None:
    """Drive a run to its end and return its receipt; None if the user left it running, which requests no
    stop.

    `known` is the record as this caller wrote or read it a moment ago. `agent` is that of a run on this
    machine; it is stopped by SIGTERM as well as through the bucket, which may be out of reach. Raises Stopped
    if the user stops waiting for the end, UsageError if there is no such run, and EmbeddedAwsGone if its
    rehearsal has ended. If the run's end could not be observed, the receipt has the state `unconfirmed`, exit
    code 110, and is not stored: the next command that settles the run continues.
    """
    signal, pause, patience = stop or StopSignal(), poll_seconds, Patience()
    steps = follow(
        cloud,
        run_id,
        known=known,
        poll_seconds=pause,
        on_event=on_event,
        stop=signal,
        agent=agent,
        sleep=sleep,
    )
    for look in steps:
        if look.record.state == "closed":
            return receipt_of_closed(cloud, run_id, lambda: sleep(pause))
        if patience.is_over(look, cloud.now()):
            return unconfirmed_receipt(look, cloud.now())
        if signal.wish is Wish.LEAVE and goes_on_alone(look.record):
            leave(cloud, look.record)
            return None
    raise AssertionError("a run is followed until it is closed")


def start(
    cloud: Cloud,
    run_id: str,
    *,
    poll_seconds: float,
    known: RunRecord | None = None,
    on_event: Callable[[RunProgress], None] = say_nothing,
    stop: StopSignal | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> RunRecord:
    """Drive a run until its instance exists and both schedules are armed, or until it waits in line for
    capacity (or it ended); then leave it to control. Return the record.
    """
    signal, pause = stop or StopSignal(), poll_seconds
    for look in follow(
        cloud, run_id, known=known, poll_seconds=pause, on_event=on_event, stop=signal, sleep=sleep
    ):
        if look.record.state == "closed":
            return look.record
        if goes_on_alone(look.record) and look.record.stop_requested_at is None:
            return leave(cloud, look.record)
    raise AssertionError("a run is followed until it is closed")


def leave(cloud: Cloud, record: RunRecord) -> RunRecord:
    """Let control go on with a run that its desk leaves: at its next event, instead of two minutes after the
    desk's last sign, as where this can't be stored. Return the record.
    """
    with suppress(TrainerError):
        return leave_to_control(cloud, record.run_id)
    return record


def goes_on_alone(record: RunRecord) -> bool:
    """Return whether a run no longer needs its command: its instance exists and both schedules are armed, it
    waits in line for capacity, or no instance does it.
    """
    if not record.has_instances or (record.attempt is not None and record.attempt.waits):
        return True
    return record.last_launch is not None and record.last_launch.kill_armed_at is not None


def follow(
    cloud: Cloud,
    run_id: str,
    *,
    poll_seconds: float,
    on_event: Callable[[RunProgress], None],
    stop: StopSignal,
    known: RunRecord | None = None,
    agent: Agent | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Step]:
    """Yield every step of a run until it is closed and none of its instances is alive; report errors and go
    on.

    Raises the error of the first look; if the caller knows the record already, a lost connection and a
    missing record are retried. While an agent is at work, every error is. A run on another machine of its
    caller's is given up after two minutes of errors: it bills nothing, and has no end that EC2 shows.
    """
    last = Step(record=known, observed=Observation(), actions=(), moved=False) if known else None
    signalled = asked_to_stop = looked = False
    failing_since: datetime | None = None
    while True:
        error: TrainerError | None = None
        stop.attend()
        # Before the look: the output of an ended agent is complete.
        agent_gone = agent is not None and agent.poll() is not None
        stopping = stop.wish in (Wish.END, Wish.ABANDON)
        if agent is not None and stopping and not signalled:
            agent.terminate()
            signalled = True
        try:
            if stopping and not asked_to_stop:
                request_stop(cloud, run_id, seen=last is not None)
                asked_to_stop = True
            last = step(cloud, run_id, seen=last is not None, agent_gone=agent_gone)
            looked, error = True, last.error
        except (UsageError, EmbeddedAwsGone):
            raise  # an embedded AWS that has ended never comes back to its address
        except TrainerError as failure:
            retried = looked or agent is not None or isinstance(failure, ConnectionFailed)
            if last is None or agent_gone or not retried:
                raise
            lasting = failing_since is not None and cloud.now() > failing_since + LOUD_AFTER
            if agent is None and not last.record.has_instances and lasting:
                raise _unseen(last.record, failure) from failure
            error = failure
            last = Step(record=last.record, observed=last.observed, actions=(), moved=False, error=failure)
        failing_since = (failing_since or cloud.now()) if error else None
        last = replace(last, failing_since=failing_since)
        on_event(progress_of(last, cloud.now(), error))
        yield last
        if last.record.state == "closed" and not last.observed.alive:
            return
        if stop.wish is Wish.ABANDON:
            raise abandoned(last, cloud.now(), requested=asked_to_stop)
        if not last.moved:
            sleep_attending(poll_seconds, stop, sleep)


def _unseen(record: RunRecord, failure: TrainerError) -> ConnectionFailed:
    what = f"cannot see whether {record.run_id} on {record.host} has ended"
    do = f"Repeat mayfly stop {record.run_id}, or press Ctrl-C where it runs."
    return ConnectionFailed(what, why=str(failure), do=do)


def step(
    cloud: Cloud,
    run_id: str,
    *,
    starts: Driver | None = "desk",
    seen: bool = False,
    agent_gone: bool = False,
) -> Step:
    """Observe, decide and act once. Raises TrainerError if the run can't be observed; an action's failure is
    in the Step.

    `starts`: create instances for this driver's runs only; None: for no run. `seen`: the run's record is
    known to exist. `agent_gone`: the agent, on the caller's own machine, has ended.
    """
    record, etag = read_record(cloud.objects, run_id, seen=seen)
    observed = replace(
        observe(cloud, record, may_start=record.driver == starts),
        agent_gone=agent_gone,
        may_take_over=starts == "control",
    )
    # Only commands close a run on the caller's own machine: control neither launches nor settles it.
    actions = (
        () if not record.has_instances and starts == "control" else reconcile(record, observed, cloud.now())
    )
    current, moved = record, False
    try:
        for action in actions:
            if isinstance(action, Store):
                etag, current, moved = swap_record(cloud.objects, action.record, etag), action.record, True
            else:
                moved = act(action, cloud, current, etag, observed) or moved
    except Conflict:
        return Step(record=record, observed=observed, actions=actions, moved=True)
    except TrainerError as error:
        moved = give_up_start(cloud, current, etag, error)
        return Step(record=record, observed=observed, actions=actions, moved=moved, error=error)
    return Step(record=record, observed=observed, actions=actions, moved=moved)


def receipt_of_closed(cloud: Cloud, run_id: str, wait: Callable[[], None]) -> Receipt:
    """Return the receipt of a closed run. It was written before the run closed; while S3 lags or fails, wait
    and ask again.
    """
    for _ in range(RECEIPT_TRIES):
        try:
            if (receipt := read_receipt(cloud.objects, run_id)) is not None:
                return receipt
        except EmbeddedAwsGone:
            raise
        except ConnectionFailed:  # the look before saw the run closed: its receipt is there
            pass
        wait()
    do = f"mayfly receipts {run_id} shows it in a few minutes."
    raise ConnectionFailed(f"run {run_id} is closed, but S3 does not return its receipt yet", do=do)


def sleep_attending(seconds: float, stop: StopSignal, sleep: Callable[[float], None]) -> None:
    """Sleep in slices of a fifth of a second, and end early if the user presses Ctrl-C."""
    wish, left = stop.wish, seconds
    while left > 0 and stop.wish is wish:
        stop.attend()
        sleep(min(0.2, left))
        left -= 0.2
