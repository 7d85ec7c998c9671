"""The world as it was observed, once, for one run: what `reconcile` decides on beside the record. Values only, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from trainer.runs.lease import Heartbeat
from trainer.runs.record import from_iso

ALIVE = ("pending", "running")  # what bills; `shutting-down` bills nothing
ENDED = ("shutting-down", "terminated")
NODE_STATES = ("done", "failed", "stopped", "expired")


@dataclass(frozen=True, kw_only=True)
class Instance:
    """One instance that carries the run's tag."""

    instance_id: str
    attempt: int
    instance_type: str
    market: str
    availability_zone: str
    state: str
    launched_at: datetime
    ended_at: datetime | None = None  # where AWS says when a termination was asked for
    reason: str = ""  # EC2's state reason code, such as Client.InstanceInitiatedShutdown


@dataclass(frozen=True, kw_only=True)
class NodeResult:
    """What a node wrote last: the end of its work as it saw it."""

    state: str
    exit_code: int = 0
    error: Mapping[str, Any] | None = None
    models: tuple[Mapping[str, Any], ...] = ()
    failed: tuple[Mapping[str, Any], ...] = ()
    retries: int = 0
    phases: Mapping[str, datetime] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    devices: Mapping[str, Any] = field(default_factory=dict)
    python_packages: str = ""
    tuned: Mapping[str, Any] = field(default_factory=dict)  # what its tuner found, as the node says it: unchecked


@dataclass(frozen=True, kw_only=True)
class ModelSeen:
    """A model object that lies in S3, as S3 describes it; metrics are from its card where no node result names them."""

    key: str
    version_id: str
    sha256: str
    metrics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class World:
    """Everything observed of a run. Instances are looked at first, so that a result read later is an ended node's last word."""

    instances: tuple[Instance, ...] = ()
    schedules: Mapping[str, datetime] = field(default_factory=dict)  # armed one-time schedules of the run: name -> instant
    heartbeat: Heartbeat | None = None
    result: NodeResult | None = None
    stop_written: bool = False
    models: tuple[ModelSeen, ...] | None = None  # None: not looked at (only an ending run needs them)
    may_start: bool = True  # whether this caller may create instances: settling what nobody watches may not

    @property
    def alive(self) -> tuple[Instance, ...]:
        """Return the instances that are there: everything but those that are ending or ended."""
        return tuple(instance for instance in self.instances if instance.state not in ENDED)


def read_result(values: Mapping[str, Any]) -> NodeResult:
    """Build a node's result from its JSON. Raises KeyError, TypeError or ValueError for one that a node of ours never wrote."""
    state = str(values["state"])
    if state not in NODE_STATES:
        raise ValueError(f"a node's state is '{state}'")
    tuned = values.get("tuned")
    models = tuple(dict(model) for model in values.get("models") or ())
    for model in models:
        for name in ("symbol", "family", "key", "version_id", "sha256"):
            model[name]
    return NodeResult(
        state=state,
        exit_code=int(values.get("exit_code") or 0),
        error=values.get("error"),
        models=models,
        failed=tuple(dict(item) for item in values.get("failed") or ()),
        retries=int(values.get("retries") or 0),
        phases={str(name): from_iso(began) for name, began in (values.get("phases") or {}).items() if began},
        data=dict(values.get("data") or {}),
        devices=dict(values.get("devices") or {}),
        python_packages=str(values.get("python_packages") or ""),
        tuned=tuned if isinstance(tuned, dict) else {},
    )
