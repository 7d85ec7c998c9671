"""A launch after preflight, before anything is written: the part that all kinds of work share."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from trainer.aws.access import Access
from trainer.aws.stack_outputs import StackOutputs
from trainer.cli.terminal import Console
from trainer.job.job import Job
from trainer.launch.bundle import Bundle
from trainer.launch.plan import LaunchPlan
from trainer.launch.preflight import Offers
from trainer.runs.receipt import Receipt
from trainer.runs.record import RunRecord
from trainer.runs.store import Objects

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, kw_only=True)
class Ready:
    """Result of preflight: everything that a run needs."""

    outputs: StackOutputs
    objects: Objects
    offers: Offers
    bundle: Bundle
    job: Job
    plan: LaunchPlan

    @property
    def data(self) -> dict[str, Any]:
        """Return the data section of a plan."""
        raise NotImplementedError

    def view(self) -> RenderableType:
        """Return the plan for people."""
        raise NotImplementedError

    def record(self, *, preflight_at: datetime, now: datetime) -> RunRecord:
        """Return the record of a run that starts now."""
        raise NotImplementedError

    def upload(self, access: Access, console: Console) -> Any:
        """Upload the desk's data, and return the inputs that `register` pins."""
        raise NotImplementedError

    def register(self, record: RunRecord, uploaded: Any, ssh_key: str) -> None:
        """Write the run's objects, then its record. `attach`: the access that people have to the machine."""
        raise NotImplementedError

    def looks(self, receipt: Receipt) -> list[str]:
        """Return the commands that a receipt ends with."""
        raise NotImplementedError
