"""The lease: a node's heartbeat, its key in S3, and when a silent node counts as dead or hung.

Standard library only, and nothing else of ours: the sweeper's zip carries this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

LEASE = timedelta(seconds=90)  # a node renews every 3 s; thirty misses in a row are no accident
SLACK = timedelta(seconds=30)  # for clocks that differ and for a heartbeat on its way
BOOT_ALLOWANCE = timedelta(minutes=15)  # from launch to the first heartbeat: a cold GPU image boots for minutes


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """The last word of one node: where it is, how far its models are, and until when it may be silent."""

    instance_id: str
    at: datetime
    lease_until: datetime
    phase: str
    phases: Mapping[str, datetime] = field(default_factory=dict)  # when each phase began
    progress: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by symbol
    models_total: int = 0
    models_done: int = 0
    rate: float | None = None  # of all workers together, in `unit` a second
    unit: str = "windows"  # or chunks
    message: str = ""


def heartbeat_prefix(run_id: str) -> str:
    """Return the prefix of every heartbeat of a run."""
    return f"live/{run_id}/"


def heartbeat_key(run_id: str, attempt: int, node: int = 0) -> str:
    """Return the key of one node's heartbeat, `live/<run>/<attempt>/<node>.json`."""
    return f"{heartbeat_prefix(run_id)}{attempt}/{node}.json"


def read_heartbeat(values: Mapping[str, Any]) -> Heartbeat:
    """Build a heartbeat from its JSON. Raises KeyError, TypeError or ValueError for one that a node of ours never wrote."""
    at = _instant(values["at"])
    return Heartbeat(
        instance_id=str(values.get("instance_id", "")),
        at=at,
        lease_until=_instant(values.get("lease_until") or (at + LEASE).isoformat()),
        phase=str(values.get("phase", "")),
        phases={str(name): _instant(began) for name, began in (values.get("phases") or {}).items() if began},
        progress=dict(values.get("progress") or {}),
        models_total=int(values.get("models_total") or 0),
        models_done=int(values.get("models_done") or 0),
        rate=values.get("rate"),
        unit="chunks" if values.get("unit") == "chunks" else "windows",
        message=str(values.get("message") or ""),
    )


def silent(*, launched_at: datetime, lease_until: datetime | None, now: datetime) -> bool:
    """Return whether a node missed its lease, or sent no heartbeat within the boot allowance."""
    if lease_until is None:
        return now > launched_at + BOOT_ALLOWANCE
    return now > lease_until + SLACK


def _instant(text: str) -> datetime:
    instant = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if instant.tzinfo is None:
        raise ValueError(f"'{text}' has no time zone")
    return instant.astimezone(timezone.utc)
