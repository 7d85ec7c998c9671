"""The lease: a node's promise to report again by an instant, after which a silent node counts as dead or
hung. It also says when its work last made progress, and how long that may stand still.

The object under `live/` holds the lease alone; the models' progress is in another one (`runs.reports`).
Standard library and `trainer.base.strict_json` only: the sweeper's zip carries both files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from trainer.base.strict_json import Fields, Unsound, read_object

# A node renews every 3 s. An S3 that fails it for two minutes, and the wait before its next try, end no run.
LEASE = timedelta(seconds=150)
SLACK = timedelta(seconds=30)  # for clocks that differ and for a heartbeat on its way
# from launch to the first heartbeat, if the launch does not say; usually its type's
BOOT_ALLOWANCE = timedelta(minutes=15)
LONGEST_BOOT = timedelta(hours=2)  # that a launch may allow
MOST_LEASE_BYTES = 4096  # one of ours has about 200
CLOCKS_APART = timedelta(minutes=5)  # a lease that is farther in the future is malformed
LONGEST_BOUND = timedelta(hours=2)  # without progress, that a lease may allow (trainer.base.silence)
TWICE = 2  # bounds, after which the sweeper ends a node that is alive but does nothing: the node acts first


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The last renewal of one node, and the instant until which it may be silent."""

    instance_id: str
    at: datetime
    lease_until: datetime
    progress_at: datetime | None = None  # of its last sign of progress; None: it says nothing of it
    progress_bound: timedelta | None = None  # how long it may be without one

    @property
    def is_stalled(self) -> bool:
        """Return whether the node renewed it for twice its bound without any progress, by its own clock."""
        if self.progress_at is None or self.progress_bound is None:
            return False
        return self.at - self.progress_at > TWICE * self.progress_bound


def boot_allowance(tag: str) -> timedelta:
    """Return the boot allowance in an instance's tag, which has seconds; the default for any other text."""
    seconds = int(tag) if re.fullmatch("[1-9][0-9]{0,5}", tag, re.ASCII) else 0
    return timedelta(seconds=seconds) if 0 < seconds <= LONGEST_BOOT.total_seconds() else BOOT_ALLOWANCE


def read_lease(body: bytes, now: datetime) -> Lease:
    """Read a lease. Raises Unsound for a malformed one: too large, from the future, longer than LEASE, with
    progress after its own instant or a bound above LONGEST_BOUND.
    """
    fields = read_object(body, most_bytes=MOST_LEASE_BYTES, name="the lease")
    lease = Lease(
        instance_id=fields.text("instance_id", "", pattern="i-[0-9a-z]+"),
        at=fields.instant("at"),
        lease_until=fields.instant("lease_until"),
        **_progress(fields),
    )
    if lease.at > now + CLOCKS_APART:
        raise Unsound(f"the lease is dated {lease.at:%Y-%m-%dT%H:%M:%SZ}, which is in the future")
    if not lease.at <= lease.lease_until <= lease.at + LEASE:
        raise Unsound(f"the lease lasts until {lease.lease_until:%Y-%m-%dT%H:%M:%SZ}, longer than is allowed")
    if lease.progress_at is not None and lease.progress_at > lease.at:
        raise Unsound(f"the lease has progress at {lease.progress_at:%Y-%m-%dT%H:%M:%SZ}, after itself")
    return lease


def _progress(fields: Fields) -> dict[str, Any]:
    """Return both fields of progress, or none. Raises Unsound for one without the other."""
    if fields.values.get("progress_at") is None and fields.values.get("progress_bound") is None:
        return {}
    seconds = fields.whole("progress_bound", least=1, most=int(LONGEST_BOUND.total_seconds()))
    return {"progress_at": fields.instant("progress_at"), "progress_bound": timedelta(seconds=seconds)}


def silent(
    *,
    launched_at: datetime,
    lease_until: datetime | None,
    now: datetime,
    boot_allowance: timedelta = BOOT_ALLOWANCE,
) -> bool:
    """Return whether a node missed its lease, or sent none within the boot allowance."""
    if lease_until is None:
        return now > launched_at + boot_allowance
    return now > lease_until + SLACK
