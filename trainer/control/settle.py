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
from trainer.runs.store import UnreadableRecord, read_receipt, read_record, run_ids
from trainer.stack_outputs import StackOutputs

MOST_STEPS = 20  # a run is closed in five; more would be a loop without an end


@dataclass(frozen=True, kw_only=True)
class Settled:
    """One settled run: the last look at it, and its receipt where it is closed."""

    run_id: str
    look: Step
    receipt: Receipt | None


def settle_unwatched(access: Access, outputs: StackOutputs) -> list[Receipt]:
    """Settle every run that is not closed, as far as it goes without waiting, and return the receipts of those now closed."""
    cloud = AwsCloud(access, outputs)
    receipts = []
    for run_id in open_runs(cloud):
        try:
            settled = settle_run(cloud, run_id)
        except TrainerError:
            continue  # one run that can't be looked at must not hold up the others; `status RUN` shows the error
        if settled.receipt is not None:
            receipts.append(settled.receipt)
    return receipts


def open_runs(cloud: Cloud) -> tuple[str, ...]:
    """Return the ids of the runs that have a record and are not closed, oldest first."""
    found = []
    for run_id in run_ids(cloud.objects):
        try:
            record, _ = read_record(cloud.objects, run_id)
        except (UsageError, UnreadableRecord):
            continue  # a folder without a record, or one of another version: not ours to settle
        if record.state != "closed":
            found.append(run_id)
    return tuple(found)


def settle_run(cloud: Cloud, run_id: str) -> Settled:
    """Take every step that one run is ready for, start nothing, and return its state."""
    look = step(cloud, run_id, may_start=False)
    for _ in range(MOST_STEPS):
        if not look.moved:
            break
        look = step(cloud, run_id, may_start=False)
    receipt = read_receipt(cloud.objects, run_id) if look.record.state == "closed" else None
    return Settled(run_id=run_id, look=look, receipt=receipt)
