"""Settle runs that no command drives, by the same steps as the attached command.

A run whose launcher was killed, detached or lost its network goes on by itself; the control function, every five minutes, or
the next command that looks (status, receipts, stop, a launch) determines how it ended and writes its receipt. No command starts
anything here, control starts the runs that it drives, and nothing is waited for. The cost
follows the runs that are open: `runs.index` names them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from trainer.access import Access
from trainer.control.cloud import AwsCloud, Cloud
from trainer.control.drive import step
from trainer.control.progress import Step
from trainer.errors import TrainerError
from trainer.runs.index import read_index, rebuild_index, take_out
from trainer.runs.receipt import Receipt
from trainer.runs.record import Driver
from trainer.runs.store import RecordMissing
from trainer.runs.stored_receipt import read_receipt
from trainer.stack_outputs import StackOutputs

MOST_STEPS = 20  # a run is closed in five; more would be a loop without an end
UNBORN = timedelta(
    days=1
)  # an entry of the index without a record: its launcher was killed between the two, or will start nothing


@dataclass(frozen=True, kw_only=True)
class Settled:
    """One settled run: the last look at it, and its receipt where it is closed."""

    run_id: str
    look: Step
    receipt: Receipt | None


@dataclass(frozen=True, kw_only=True)
class Settling:
    """Every run that was open, as it is now, oldest first; errors of those that could not be looked at, by run."""

    settled: tuple[Settled, ...]
    ended: tuple[str, ...]  # ids of the last runs that had ended before, oldest first
    problems: dict[str, TrainerError]

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        """Return the receipts of the runs that were closed by now."""
        return tuple(item.receipt for item in self.settled if item.receipt is not None)


def settle_unwatched(access: Access, outputs: StackOutputs, *, every: bool = False) -> Settling:
    """Settle every open run, as far as it goes without waiting, and start none. One that is spoiled holds up no other.

    `every` lists all runs that ever were, and finds those that the index lacks: of an earlier version's launches.
    """
    return settle_all(AwsCloud(access, outputs), every=every)


def settle_all(cloud: Cloud, *, every: bool = False, starts: Driver | None = None) -> Settling:
    """Do what `settle_unwatched` does, with any Cloud; `starts`: start the runs of this driver as well."""
    index = rebuild_index(cloud.objects) if every else read_index(cloud.objects)
    settled: list[Settled] = []
    problems: dict[str, TrainerError] = {}
    unborn: list[str] = []
    for run_id in sorted(index.open):
        try:
            settled.append(settle_run(cloud, run_id, seen=True, starts=starts))
        except RecordMissing:  # a launch that ended before it began, or is between two writes
            unborn += [run_id] if cloud.now() > index.open[run_id] + UNBORN else []
        except TrainerError as error:
            problems[run_id] = error
    closed = [item.run_id for item in settled if item.look.record.state == "closed"]
    if closed or unborn:
        with suppress(TrainerError):  # the next look does it
            take_out(cloud.objects, closed=closed, unborn=unborn)
    return Settling(settled=tuple(settled), ended=index.ended, problems=problems)


def settle_run(cloud: Cloud, run_id: str, *, seen: bool = False, starts: Driver | None = None) -> Settled:
    """Take every step that one run is ready for and return its state. `seen`: its record was there before.

    Nothing is started but, for the control function (`starts="control"`), a run that it drives.
    """
    look = step(cloud, run_id, starts=starts, seen=seen)
    for _ in range(MOST_STEPS):
        if not look.moved:
            break
        look = step(cloud, run_id, starts=starts, seen=True)
    receipt = read_receipt(cloud.objects, run_id) if look.record.state == "closed" else None
    return Settled(run_id=run_id, look=look, receipt=receipt)
