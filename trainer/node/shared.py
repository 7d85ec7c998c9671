"""State shared by the agent's threads: folders, status, and the stop request."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from trainer.aws.place import Place
from trainer.base.cluster import Cluster
from trainer.base.errors import TrainerError
from trainer.base.instants import utc_now
from trainer.node import report
from trainer.node.origins import Origins
from trainer.node.redaction import Redaction
from trainer.node.uplink import Uplink

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
    taken_at: datetime | None = None  # when AWS takes this spot machine, once it has given notice
    at_work: Collection[str] = ("",)  # folders in CHECKPOINTS of what runs: each value's own, or all of it
    clock: Callable[[], float] = time.monotonic  # of its commands' progress
    failure: TrainerError | None = None  # why the node ended its work itself
    cluster: Cluster | None = None  # the attempt's nodes, if there are several
    token: str = field(default="", repr=False)  # that they share

    def stop(self, reason: str) -> None:
        """Ask the node to end its work; the first reason counts.

        Signal handlers call it, one in the middle of another, so it takes no lock, as an Event would.
        """
        self.stop_reason = self.stop_reason or reason

    def fail(self, error: TrainerError) -> None:
        """Have the node end its work with an error, unless it was asked to end before."""
        if not self.stop_reason:
            self.failure = error
            self.stop(error.what)

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

    def may_begin(self) -> bool:
        """Return whether further work may begin: nobody asked for an end, and the machine stays."""
        return not (self.is_stopping() or self.taken_at)

    @property
    def end_reason(self) -> str:
        """Return why the work ends before it is done: `spot` if the machine is taken, unless it was asked to
        end before; '' if nothing ends it.
        """
        by_shutdown = self.stop_reason.startswith("SIG")  # as AWS sends one to a machine that it takes
        return report.SPOT if self.taken_at and (by_shutdown or not self.stop_reason) else self.stop_reason

    @property
    def notice_file(self) -> Path:
        """Return the file of a notice to the command; it exists once there is one (`spot_notice`)."""
        return self.work / COMMAND / "notice"

    @property
    def cluster_file(self) -> Path:
        """Return the file that tells the command of the other nodes; it exists if there are any."""
        return self.work / "cluster.json"

    @property
    def token_file(self) -> Path:
        """Return the file of the token that the nodes share, which only the agent's user can read."""
        return self.work / "cluster-token"

    @property
    def patience_seconds(self) -> float:
        """Return how long to retry remaining uploads."""
        return LAST_UPLOADS_SECONDS if self.may_begin() else STOPPED_UPLOADS_SECONDS

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
