"""Settle runs that no command drives, by the same steps as the attached command.

A run whose launcher was killed, detached or lost its network continues; the control function, every five
minutes, or the next command that looks (status, receipts, stop, a launch) determines how it ended and writes
its receipt. Commands start no run here; control starts the runs that it drives. Nothing waits. The cost
follows the number of open runs, which `runs.index` names; several are settled at once.
"""

from __future__ import annotations

import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from trainer.aws.access import Access
from trainer.aws.stack_outputs import StackOutputs
from trainer.base.errors import TrainerError
from trainer.control.cloud import AwsCloud, Cloud
from trainer.control.drive import step
from trainer.control.progress import Step
from trainer.runs.index import read_index, take_out
from trainer.runs.receipt import Receipt
from trainer.runs.record import Driver
from trainer.runs.store import RecordMissing, read_record
from trainer.runs.stored_receipt import read_receipt

RUNS_AT_ONCE = 8  # a look takes six requests
MOST_STEPS = 20  # a run is closed in five; more would be an endless loop
# Age at which an index entry without a record is dropped: its launcher was killed between the two writes.
UNBORN = timedelta(days=1)


@dataclass(frozen=True, kw_only=True)
class Settled:
    """One settled run: the last look at it, and its receipt if it is closed."""

    run_id: str
    look: Step
    receipt: Receipt | None


@dataclass(frozen=True, kw_only=True)
class Settling:
    """Every run that was open, in its current state, oldest first; errors of those that could not be
    observed, by run.
    """

    settled: tuple[Settled, ...]
    ended: tuple[str, ...]  # ids of the last runs that had ended before, in that order
    problems: dict[str, TrainerError]

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        """Return the receipts of the runs that were closed by now."""
        return tuple(item.receipt for item in self.settled if item.receipt is not None)


def settle_unwatched(access: Access, outputs: StackOutputs) -> Settling:
    """Settle every open run as far as possible without waiting, and start none. A malformed one does not hold
    up the others.
    """
    return settle_all(AwsCloud(access, outputs))


def settle_all(cloud: Cloud, *, starts: Driver | None = None) -> Settling:
    """Do what `settle_unwatched` does, on any Cloud. `starts`: also start the runs of this driver."""
    index = read_index(cloud.objects)

    def looked(run_id: str) -> Settled | TrainerError:
        try:
            return settle_run(cloud, run_id, seen=True, starts=starts)
        except TrainerError as error:
            return error
        except Exception as error:  # a fault of ours about one run: the others are settled all the same
            traceback.print_exc()
            what = f"cannot settle {run_id}: {type(error).__name__}: {error}"
            return TrainerError(what, do="This is a fault of Mayfly's: report it.")

    opened = sorted(index.open)
    with ThreadPoolExecutor(RUNS_AT_ONCE) as pool:
        looks = dict(zip(opened, pool.map(looked, opened), strict=True))
    settled = [look for look in looks.values() if isinstance(look, Settled)]
    failed = {run_id: look for run_id, look in looks.items() if isinstance(look, TrainerError)}
    # Without a record: a launch that was killed, or is between its two writes.
    problems = {run_id: error for run_id, error in failed.items() if not isinstance(error, RecordMissing)}
    unborn = [
        run_id for run_id in failed.keys() - problems.keys() if cloud.now() > index.open[run_id] + UNBORN
    ]
    closed = [item.run_id for item in settled if item.look.record.state == "closed"]
    if closed or unborn:
        with suppress(TrainerError):  # the next look does it
            take_out(cloud.objects, closed=closed, unborn=unborn)
    return Settling(settled=tuple(settled), ended=index.ended, problems=problems)


def settle_run(
    cloud: Cloud,
    run_id: str,
    *,
    seen: bool = False,
    starts: Driver | None = None,
    agent_gone: bool = False,
) -> Settled:
    """Take every step that one run is ready for and return its state. `seen`: its record is known to exist.

    Starts nothing, unless `starts` names the run's driver. `agent_gone`: as for `step`.
    """
    look = step(cloud, run_id, starts=starts, seen=seen, agent_gone=agent_gone)
    for _ in range(MOST_STEPS):
        if not look.moved:
            break
        look = step(cloud, run_id, starts=starts, seen=True, agent_gone=agent_gone)
    receipt = read_receipt(cloud.objects, run_id) if look.record.state == "closed" else None
    return Settled(run_id=run_id, look=look, receipt=receipt)


def close_last(cloud: Cloud, run_id: str) -> str:
    """Close the last run of a work folder, whose agent is known to be gone, by its result if it left one.

    Return a line about it; '' if it had been closed before.
    """
    try:
        if read_record(cloud.objects, run_id, seen=True)[0].state == "closed":
            return ""
    except RecordMissing:  # the folder names its run before the record is written
        return f"{run_id} has no record: its start was cut short, or its results were removed"
    settled = settle_run(cloud, run_id, seen=True, agent_gone=True)
    return (
        f"closed {run_id}, which was left open: {settled.receipt['state']}"
        if settled.receipt
        else f"{run_id} is still open"
    )
