"""The run record: the one object that several may write, and everything that is decided about a run stands in it.

Plain frozen values and their JSON; `store` keeps them by compare-and-swap, `reconcile` decides on them. Instants are UTC.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import secrets
import types
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

FORMAT = 1
State = Literal["starting", "running", "ending", "closed"]
Outcome = Literal["done", "failed", "expired", "interrupted", "unconfirmed", "stopped"]
LaunchOutcome = Literal["intended", "created", "refused"]
_SUFFIX_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"


def utc_now() -> datetime:
    """Return the present instant, in UTC, to the microsecond. The one clock of the desk."""
    return datetime.now(timezone.utc)


def iso(instant: datetime) -> str:
    """Write an instant as tags and JSON carry it: `2026-11-20T23:59:12.345678Z`, without a fraction where it has none."""
    return instant.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")


def from_iso(text: str) -> datetime:
    """Read what `iso` wrote. Raises ValueError for anything without a zone."""
    instant = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if instant.tzinfo is None:
        raise ValueError(f"'{text}' has no time zone")
    return instant.astimezone(timezone.utc)


def new_run_id(job_name: str, now: datetime, suffix: str | None = None) -> str:
    """Return `<yyyymmdd-hhmmss>-<job>-<suffix>`; the suffix is four random characters unless a schedule gives one."""
    suffix = suffix or "".join(secrets.choice(_SUFFIX_ALPHABET) for _ in range(4))
    return f"{now.astimezone(timezone.utc):%Y%m%d-%H%M%S}-{job_name}-{suffix}"


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One step of the capacity ladder: type x zone x market, and what a request for it needs."""

    instance_type: str
    availability_zone: str
    subnet_id: str
    market: str  # "on_demand" or "spot"
    price_usd_per_hour: float  # what this rung is expected to cost
    on_demand_usd_per_hour: float  # the worst it can cost; deadlines are made from this one
    gpu_count: int
    launch_template_id: str
    image_id: str


@dataclass(frozen=True, kw_only=True)
class Launch:
    """An intent to create one set of instances, stored before the call, and what became of it."""

    rung: int  # index into the record's ladder
    token: str  # ClientToken = hash(run, attempt, rung, pass)
    deadline: datetime  # the attempt's: tag, OS timer and one-time schedule carry it
    intended_at: datetime
    outcome: LaunchOutcome = "intended"
    instance_ids: tuple[str, ...] = ()
    error_code: str = ""
    error_message: str = ""
    error_class: str = ""  # what kind of refusal: capacity, quota, permission, config ...
    error: dict[str, Any] | None = None  # {"code", "what", "why", "do"} of the refusal, should it end the run
    kill_armed_at: datetime | None = None  # the second schedule, which names the ids and needs no code of ours


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One set of instances within a run; a spot interruption ends an attempt, not the run."""

    number: int  # from 1
    launches: tuple[Launch, ...] = ()
    created_at: datetime | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class InstanceSeen:
    """What was observed of one instance, by tag, over the run."""

    instance_id: str
    attempt: int
    instance_type: str
    market: str
    availability_zone: str
    state: str  # EC2's word, or "gone"
    launched_at: datetime
    running_seen_at: datetime | None = None
    terminated_at: datetime | None = None  # first seen as terminated or shutting-down
    proof: str = ""  # "described terminated" or "not found, deadline an hour past"
    reason: str = ""  # EC2's state reason once it ended, such as Server.SpotInstanceTermination


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run, from the intent to its receipt."""

    format: int = FORMAT
    run_id: str
    project: str
    stack: str
    owner: str
    rehearsal: bool
    bucket: str
    job: dict[str, Any]
    ladder: tuple[Rung, ...]
    bundle_key: str
    bundle_sha256: str
    budget_usd: float  # 0: none
    estimated_usd: float
    estimated_seconds: float
    preflight_at: datetime  # when the command began
    created_at: datetime  # when the record was written
    deadline: datetime  # of the run
    state: State = "starting"
    outcome: Outcome | None = None
    error: dict[str, Any] | None = None  # {"code", "what", "why", "do"} of what ended the run, if it was not done
    attempts: tuple[Attempt, ...] = ()
    instances: tuple[InstanceSeen, ...] = ()
    stop_requested_at: datetime | None = None
    ending_at: datetime | None = None
    closed_at: datetime | None = None

    @property
    def attempt(self) -> Attempt | None:
        """Return the attempt that readers take keys of: the last one, or None before the first."""
        return self.attempts[-1] if self.attempts else None


def client_token(run_id: str, attempt: int, rung: int, launches_before: int) -> str:
    """Return the ClientToken of a launch: at most 64 ASCII characters, the same for the same intent."""
    return hashlib.sha256(f"{run_id}/{attempt}/{rung}/{launches_before}".encode()).hexdigest()[:40]


def to_json(value: Any) -> str:
    """Write a record (or any value of this module) as JSON, keys in the order of the fields."""
    return json.dumps(_plain(value), indent=1)


def record_from_json(text: str) -> RunRecord:
    """Read a run record. Raises ValueError for another format, KeyError for a missing field."""
    values = json.loads(text)
    if values.get("format") != FORMAT:
        raise ValueError(f"run record has format {values.get('format')}, this version reads {FORMAT}")
    record = _typed(values, RunRecord)
    assert isinstance(record, RunRecord)
    return record


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return iso(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: _plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _typed(value: Any, hint: Any) -> Any:
    """Build a value of the hinted type from JSON; unknown keys are ignored, so that an older reader survives a newer writer."""
    origin = get_origin(hint)
    if origin in (types.UnionType, Union):
        return None if value is None else _typed(value, next(arg for arg in get_args(hint) if arg is not type(None)))
    if hint is datetime:
        return from_iso(value)
    if origin is tuple:
        return tuple(_typed(item, get_args(hint)[0]) for item in value)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        hints = get_type_hints(hint)
        return hint(**{key: _typed(item, hints[key]) for key, item in value.items() if key in hints})
    return value
