"""Heartbeat and result of a node. Pure: values in, JSON values out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from trainer.base.errors import BudgetError, Interrupted, Stopped, TrainerError, TrainingFailed, UsageError
from trainer.base.instants import iso
from trainer.base.silence import FIRST_SECONDS
from trainer.base.strict_json import MOST_NAME, MOST_NUMBER, MOST_TEXT
from trainer.node.devices import Devices
from trainer.node.identity import NodeIdentity
from trainer.node.progress import Progress
from trainer.runs.lease import LEASE, LONGEST_BOUND
from trainer.runs.reports import MOST_PROGRESS_BYTES, MOST_SHOWN, NODE_STEPS
from trainer.runs.samples import NodeSample

FORMAT = 1
Phase = Literal["boot", "stage", "train", "upload", "end"]
State = Literal["done", "failed", "stopped", "expired", "interrupted"]
SPOT = "spot"  # a reason to stop: AWS takes the machine back
COUNTED = ("bars", "holes", "synthetic")  # of what was read, for a receipt without a result


@dataclass(kw_only=True)
class Status:
    """Current state of the node: written by the agent's main thread, read by the heartbeat's thread."""

    identity: NodeIdentity
    phase: Phase = "boot"
    phases: dict[str, datetime] = field(default_factory=dict)  # when each began
    progress: Progress = field(default_factory=Progress)
    models: list[dict[str, Any]] = field(default_factory=list)  # uploaded
    failed: list[dict[str, Any]] = field(default_factory=list)  # trained, but the upload failed
    failed_before: list[dict[str, Any]] = field(default_factory=list)  # on an earlier machine: not begun here
    files: list[dict[str, Any]] = field(default_factory=list)  # candle files that a refresh added or checked
    scripts: list[dict[str, Any]] = field(default_factory=list)  # ends of the pieces that the agent started
    python_packages: str = ""  # where its command's packages came from; empty: the agent's
    boot: dict[str, Any] = field(default_factory=dict)  # seconds of its steps
    inputs: dict[str, Any] = field(default_factory=dict)  # where they came from, as `origins.Origins` has it
    devices: Devices | None = None
    sample: NodeSample | None = None  # of its hardware, a few seconds old
    checkpoints: dict[str, Any] = field(default_factory=dict)  # sent to S3, counted
    durable: Callable[[], dict[str, Any] | None] = lambda: None  # newest checkpoints in S3
    message: str = ""
    idle: str = ""  # what is known of GPUs that stand nearly idle
    progress_at: datetime | None = None  # of the last sign of progress
    progress_bound: float = FIRST_SECONDS  # seconds allowed without one, by what is at work now

    def enter(self, phase: Phase, at: datetime) -> None:
        """Begin a phase."""
        self.phases = {**self.phases, phase: at}  # a new one: the other thread may be reading the old one
        self.phase = phase


def boot(booted_at: datetime, stages: Sequence[datetime], now: datetime, *, baked: bool) -> dict[str, Any]:
    """Return the seconds of each boot step (code fetched, environment installed, agent started); {} if they
    are unknown.
    """
    if len(stages) != 2:
        return {}
    steps = zip(NODE_STEPS, (booted_at, *stages), (*stages, now), strict=False)
    seconds = {step: max((end - begin).total_seconds(), 0.0) for step, begin, end in steps}
    return {**seconds, "baked": baked}


def lease(status: Status, now: datetime) -> dict[str, Any]:
    """Return the lease object under live/, which the sweeper reads."""
    moved = {}
    if status.progress_at is not None:  # another thread may have moved it after `now`
        at = iso(min(status.progress_at, now))
        bound = min(math.ceil(status.progress_bound), int(LONGEST_BOUND.total_seconds()))
        moved = {"progress_at": at, "progress_bound": bound}
    return {**_header(status.identity), **moved, "at": iso(now), "lease_until": iso(now + LEASE)}


def progress(status: Status) -> bytes:
    """Return progress.json: the node's phase and its models' progress, within the limits of
    `runs.reports`.
    """
    progressed = status.progress
    told = "looking for the fastest settings" if progressed.tuning else progressed.message
    told = status.idle or told
    failed_before = {str(entry["piece"]): {"state": "failed"} for entry in status.failed_before}
    shown = {piece: failed_before.get(piece, entry) for piece, entry in progressed.pieces.items()}
    value = {
        **_header(status.identity),
        "phase": status.phase,
        "phases": _instants(status.phases),
        "models_total": len(progressed.models),
        "models_done": len(status.models) + len(set(progressed.pieces_done) - failed_before.keys()),
        "retries": progressed.retries,
        "rate": progressed.rate,
        "unit": progressed.unit,
        "message": cut(told or status.message),
        "sample": _plain(status.sample.to_dict()) if status.sample else None,
        "durable": status.durable(),
        "data": {
            name: progressed.data[name] for name in COUNTED if isinstance(progressed.data.get(name), int)
        },
    }
    for most in (MOST_SHOWN, MOST_SHOWN // 8, 0):
        body = json.dumps(_plain({**value, "progress": _most_active(shown, most)})).encode()
        if len(body) <= MOST_PROGRESS_BYTES:
            break
    return body


def cut(text: str) -> str:
    """Cut a text to the reader's limit."""
    return text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 4] + " ..."


def ending(
    *, status: Status, stop_reason: str, error: TrainerError | None, now: datetime
) -> tuple[State, int, dict[str, Any] | None]:
    """Decide how the node's work ended: (state, exit code, error).

    Complete work is done, even after a stop request; otherwise a stop request outranks other errors.
    """
    if error is None:
        return "done", 0, None
    if stop_reason and now >= status.identity.deadline:
        what = f"the deadline {iso(status.identity.deadline)} was reached"
        expired = BudgetError(what, do="Raise --max-duration or --budget.")
        return "expired", expired.exit_code, expired.as_dict()
    if stop_reason == SPOT:
        do = "Its checkpoints are in S3: launch again."
        taken = Interrupted("AWS takes its spot machine back", why="a notice of two minutes", do=do)
        return "interrupted", taken.exit_code, taken.as_dict()
    if stop_reason:
        return "stopped", Stopped.exit_code, Stopped(f"the node was stopped ({stop_reason})").as_dict()
    # Bad data has code 2 at a desk, and 100 on a machine.
    code = TrainingFailed.exit_code if error.exit_code == UsageError.exit_code else error.exit_code
    return "failed", code, {**error.as_dict(), "code": code}


def result(
    status: Status, *, ended: tuple[State, int, dict[str, Any] | None], unfinished: str, python_packages: str
) -> dict[str, Any]:
    """Return the content of result.json; `unfinished` is the reason for models that were neither done nor
    failed.
    """
    (state, exit_code, error), told = ended, {one["piece"] for one in status.scripts}
    others = [one for one in status.progress.trials if one["piece"] not in told]
    return {
        **_header(status.identity),
        "state": state,
        "exit_code": exit_code,
        "error": _cut_texts(error) if error else None,
        "reason": SPOT if state == "interrupted" else "",
        "models": _plain(status.models),
        "failed": [_cut_texts(entry) for entry in failed_models(status, unfinished)],
        "retries": status.progress.retries,
        "phases": _instants(status.phases),
        "boot": status.boot,
        "data": dict(status.progress.data),
        "inputs": _cut_texts(status.inputs),
        "devices": status.devices.to_dict() if status.devices else {},
        "python_packages": (status.python_packages or python_packages)[:MOST_NAME],
        "files": status.files,
        "scripts": _plain([*status.scripts, *others]),
        "checkpoints": status.checkpoints,
    }


def failed_models(status: Status, unfinished: str) -> list[dict[str, Any]]:
    """Return every planned model that is not in S3, with the reason."""
    reported = (*status.progress.failed, *status.failed, *status.failed_before)
    accounted = {entry["piece"] for entry in (*reported, *status.models)} | {*status.progress.pieces_done}
    accounted |= status.progress.elsewhere
    left = [model for model in status.progress.models.values() if model["piece"] not in accounted]
    return [*map(dict, reported), *({**model, "reason": unfinished} for model in left)]


def _most_active(models: Mapping[str, Mapping[str, Any]], most: int) -> dict[str, Mapping[str, Any]]:
    """Return the progress of at most `most` models: those at work first, then failed ones."""
    if len(models) <= most:
        return dict(models)
    order = ("training", "scoring", "failed", "done", "waiting", "")
    return dict(sorted(models.items(), key=lambda item: order.index(item[1].get("state", "")))[:most])


def _plain(value: Any) -> Any:
    """Replace numbers that JSON can't hold by None, such as the loss of a diverged model."""
    if isinstance(value, float):
        return value if math.isfinite(value) and abs(value) <= MOST_NUMBER else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _cut_texts(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: cut(item) if isinstance(item, str) else item for key, item in values.items()}


def _instants(phases: Mapping[str, datetime]) -> dict[str, str]:
    return {name: iso(at) for name, at in phases.items()}


def _header(identity: NodeIdentity) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "run_id": identity.run_id,
        "attempt": identity.attempt,
        "node": identity.node,
        "instance_id": identity.instance_id,
    }
