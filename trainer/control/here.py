"""Follow the agent of a run on the caller's own machine, and close the run when the agent has ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from trainer.base.errors import EmbeddedAwsGone, TrainerError
from trainer.control.cloud import Cloud
from trainer.control.drive import receipt_of_closed, say_nothing, sleep_attending, step
from trainer.control.progress import RunProgress, Step, abandoned, progress_of
from trainer.control.settle import settle_run
from trainer.control.stop import StopSignal, Wish, request_stop
from trainer.runs.here import gone
from trainer.runs.observation import Observation
from trainer.runs.receipt import Receipt
from trainer.runs.record import RunRecord
from trainer.runs.store import Conflict, RecordMissing, read_record, swap_record


class Agent(Protocol):
    """The agent's process."""

    def poll(self) -> int | None: ...

    def terminate(self) -> None: ...


def follow_here(
    cloud: Cloud,
    record: RunRecord,
    agent: Agent,
    *,
    poll_seconds: float,
    stop: StopSignal,
    on_event: Callable[[RunProgress], None] = say_nothing,
    sleep: Callable[[float], None] = time.sleep,
) -> Receipt | None:
    """Follow a run and return its receipt; None if the user leaves it running. Raises Stopped if they don't
    wait for its end.

    The agent is asked to stop by SIGTERM as well as through the bucket, which may be out of reach.
    """
    last = Step(record=record, observed=Observation(), actions=(), moved=False)
    signalled = requested = False
    while True:
        stop.attend()
        # before the look: the output of an ended agent is complete
        ended, error = (agent.poll() is not None, None)
        if stop.wish in (Wish.END, Wish.ABANDON) and not signalled:
            agent.terminate()
            signalled = True
        try:
            if signalled and not requested:
                request_stop(cloud, record.run_id, seen=True)
                requested = True
            last = step(cloud, record.run_id, seen=True)
            if ended and not last.moved and last.record.state == "running" and last.observed.result is None:
                mark_gone(cloud, record.run_id)
        except EmbeddedAwsGone:
            raise
        except TrainerError as failure:
            error = failure
            last = Step(record=last.record, observed=last.observed, actions=(), moved=False, error=failure)
            if ended:
                raise
        on_event(progress_of(last, cloud.now(), error))
        if last.record.state == "closed":
            return receipt_of_closed(cloud, record.run_id, lambda: sleep(poll_seconds))
        if stop.wish is Wish.LEAVE:
            return None
        if stop.wish is Wish.ABANDON:
            raise abandoned(last, cloud.now(), requested=requested)
        if not last.moved:
            sleep_attending(poll_seconds, stop, sleep)


def close_last(cloud: Cloud, run_id: str) -> str:
    """Close the last run of a work folder, whose agent is known to be gone, by its result if it left one.

    Return a line about it; '' if it had been closed before.
    """
    try:
        if read_record(cloud.objects, run_id, seen=True)[0].state == "closed":
            return ""
    except RecordMissing:  # the folder names its run before the record is written
        return f"{run_id} has no record: its start was cut short, or its results were removed"
    settled = settle_run(cloud, run_id, seen=True)
    if settled.receipt is None:
        mark_gone(cloud, run_id)
        settled = settle_run(cloud, run_id, seen=True)
    return (
        f"closed {run_id}, which was left open: {settled.receipt['state']}"
        if settled.receipt
        else f"{run_id} is still open"
    )


def mark_gone(cloud: Cloud, run_id: str) -> None:
    """Record that a run's agent ended without a result, unless the run has ended meanwhile."""
    record, etag = read_record(cloud.objects, run_id, seen=True)
    if record.state == "running":
        try:
            swap_record(cloud.objects, gone(record, cloud.now()), etag)
        except Conflict:
            return
