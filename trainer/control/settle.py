"""Settle runs that no command drives, by the same steps as the attached command.

A run whose launcher was killed, detached or lost its network goes on by itself; the next command that looks (status, receipts,
stop, a launch) determines how it ended and writes its receipt. Nothing is started here, and nothing is waited for.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.access import Access
from trainer.control.cloud import AwsCloud, Cloud
from trainer.control.drive import step
from trainer.control.progress import Step
from trainer.errors import TrainerError, UsageError
from trainer.runs.receipt import Receipt
from trainer.runs.store import read_record, run_ids
from trainer.runs.stored_receipt import read_receipt
from trainer.stack_outputs import StackOutputs

MOST_STEPS = 20  # a run is closed in five; more would be a loop without an end


@dataclass(frozen=True, kw_only=True)
class Settled:
    """One settled run: the last look at it, and its receipt where it is closed."""

    run_id: str
    look: Step
    receipt: Receipt | None


@dataclass(frozen=True, kw_only=True)
class Settling:
    """Receipts of the runs that were closed, and the errors of those that could not be looked at, by run."""

    receipts: list[Receipt]
    problems: dict[str, TrainerError]


def settle_unwatched(access: Access, outputs: StackOutputs) -> Settling:
    """Settle every run that is not closed, as far as it goes without waiting. One that is spoiled holds up no other."""
    return settle_all(AwsCloud(access, outputs))


def settle_all(cloud: Cloud) -> Settling:
    """Do what `settle_unwatched` does, with any Cloud."""
    receipts: list[Receipt] = []
    problems: dict[str, TrainerError] = {}
    for run_id in run_ids(cloud.objects):
        try:
            record, _ = read_record(cloud.objects, run_id)
            settled = settle_run(cloud, run_id) if record.state != "closed" else None
        except UsageError:
            continue  # a folder without a record: a launch that ended before it began
        except TrainerError as error:
            problems[run_id] = error
            continue
        if settled is not None and settled.receipt is not None:
            receipts.append(settled.receipt)
    return Settling(receipts=receipts, problems=problems)


def settle_run(cloud: Cloud, run_id: str) -> Settled:
    """Take every step that one run is ready for, start nothing, and return its state."""
    look = step(cloud, run_id, may_start=False)
    for _ in range(MOST_STEPS):
        if not look.moved:
            break
        look = step(cloud, run_id, may_start=False, seen=True)
    receipt = read_receipt(cloud.objects, run_id) if look.record.state == "closed" else None
    return Settled(run_id=run_id, look=look, receipt=receipt)
