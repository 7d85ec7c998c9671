"""State shared by the agent's threads: folders, status, and the stop request."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from trainer.aws.place import Place
from trainer.base.errors import TrainerError
from trainer.node import report
from trainer.node.origins import Origins
from trainer.node.redaction import Redaction
from trainer.node.uplink import Uplink
from trainer.runs.record import utc_now

log = logging.getLogger(__name__)
COMMAND = "command"  # the folder of a command, below the work folder
LAST_UPLOADS_SECONDS = 900.0  # S3 may be down for a while, and the models were paid for
STOPPED_UPLOADS_SECONDS = 30.0  # a shutdown waits for about 90 s


@dataclass(kw_only=True)
class Node:
    """One node at work."""

    work: Path
    place: Place
    uplink: Uplink
    status: report.Status
    origins: Origins = field(default_factory=Origins)
    redaction: Redaction = field(default_factory=lambda: Redaction({}))  # of the command's secrets
    idle_seconds: float = 0.0  # of nearly idle GPUs, after which the run ends; 0: it does not
    stop_reason: str = ""
    clock: Callable[[], float] = time.monotonic  # of its commands' progress
    stop_error: TrainerError | None = None  # of a stop that is the node's own decision

    def stop(self, reason: str) -> None:
        """Ask the node to end its work; the first reason counts.

        Signal handlers call it, one in the middle of another, so it takes no lock, as an Event would.
        """
        self.stop_reason = self.stop_reason or reason

    def give_up(self, reason: str, error: TrainerError) -> None:
        """End the work by the node's own decision, with this error as the run's; the first reason counts."""
        if not self.stop_reason:
            self.stop_error = error
            self.stop(reason)

    def moved(self) -> None:
        """Note a sign of progress, for the lease."""
        self.status.progress_at = utc_now()

    def is_stopping(self) -> bool:
        """Return whether the node was asked to end its work, or is a machine that does not end at its
        deadline.
        """
        if not self.place.has_instances and utc_now() >= self.status.identity.deadline:
            self.stop("deadline")  # by the clock, since a laptop may sleep
        return bool(self.stop_reason)

    @property
    def patience_seconds(self) -> float:
        """Return how long to retry remaining uploads."""
        return STOPPED_UPLOADS_SECONDS if self.is_stopping() else LAST_UPLOADS_SECONDS

    def enter(self, phase: report.Phase) -> None:
        """Begin a phase."""
        log.info("phase %s", phase)
        self.status.enter(phase, utc_now())
        if phase in (
            "upload",
            "end",
        ):  # which wait for S3 themselves, one after another, and end by their clocks
            self.status.progress_bound = 3 * LAST_UPLOADS_SECONDS
        self.moved()
