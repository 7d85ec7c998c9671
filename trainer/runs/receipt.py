"""The receipt that closes a run: models, seconds, dollars, and the observed end of every instance. Its
schema: docs/reference.md.

The cost is a low and a high bound: AWS shows neither the instant at which `running` began nor the one at
which an OS power-off ended it. Low runs from the first sign of life to the last, high from the launch to the
first look that found the instance ended; both are at least the 60 seconds that a start costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from trainer.aws.place import place_named
from trainer.job.model_names import MODEL_SUFFIX, read_name
from trainer.runs.boot import boot_steps
from trainer.runs.observation import ModelSeen, Observation
from trainer.runs.outcome import exit_code
from trainer.runs.record import InstanceSeen, Outcome, RunPiece, RunRecord, iso
from trainer.runs.reports import LAST_LINES, MOST_LINE

FORMAT = 4
PHASES = ("preflight", "capacity", "boot", "stage", "train", "upload", "terminate")
SHORTEST_BILL_SECONDS = 60.0  # per second, 60 s minimum each start (EC2 user guide, looked up 2026-11-20)

Receipt = dict[str, Any]


def make_receipt(
    record: RunRecord, observed: Observation, *, outcome: Outcome | None = None, error: Any = None
) -> Receipt:
    """Return the receipt of a run as `--json` prints it; `outcome` and `error` replace the record's (an
    unconfirmed end).
    """
    state = outcome or record.outcome or "unconfirmed"
    reason = error if outcome else record.error
    low, high = spent(record, observed, record.closed_at)
    result, heartbeat = observed.result, observed.heartbeat
    models = models_of(record, observed)
    return {
        "format": FORMAT,
        "run_id": record.run_id,
        "state": state,
        "exit_code": exit_code(state, reason),
        "error": reason,
        "work": record.work,
        "job": record.job,
        "created_at": iso(record.created_at),
        "deadline": iso(record.effective_deadline.at),
        "deadline_cause": record.effective_deadline.cause,
        "closed_at": iso(record.closed_at) if record.closed_at else None,
        "instances": [_instance(record, seen) for seen in record.instances],
        "models": models,
        "failed": _failed(record, observed, models, state),
        "files": _files(record, observed),
        "scripts": ranked(result.scripts) if result and record.leaves == "files" else [],
        "retries": result.retries if result else 0,
        "seconds": seconds(record, observed),
        "boot": boot_steps(record, result),
        "dollars": {
            "estimated": round(record.estimated_usd, 6),
            "spent_low": round(low, 6),
            "spent_high": round(high, 6),
        },
        "data": _data(result.data if result else heartbeat.data if heartbeat else {}),
        "inputs": dict(result.inputs) if result else {},
        "devices": dict(result.devices) if result else {},
        "place": record.place,
        "host": record.host,
        "note": place_named(record.place).receipt_note,
        "log_tail": log_tail(observed.boot_log) if result is None else "",
        "python_packages": result.python_packages if result else "",
    }


def _files(record: RunRecord, observed: Observation) -> list[dict[str, Any]]:
    """Return the output files as S3 has them, or the candle files of a refresh as its node reported them."""
    reported = observed.result.files if observed.result and record.leaves == "candles" else ()
    return [dict(item) for item in (observed.outputs if record.leaves == "files" else reported)]


def ranked(scripts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the ends of a script's values, those that are done first and by the metric that most of them
    have, the best of them first; the others in their order.
    """
    metrics = Counter(
        item["best"]["metric"] for item in scripts if item["done"] and item["best"].get("better")
    )
    metric = metrics.most_common(1)[0][0] if metrics else ""

    def place(item: Mapping[str, Any]) -> tuple[bool, bool, float]:
        best = item["best"]
        if not item["done"] or not metric or best.get("metric") != metric:
            return not item["done"], True, 0.0
        return False, False, best["value"] if best["better"] == "min" else -best["value"]

    return [dict(item) for item in sorted(scripts, key=place)]


def winner(scripts: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the best of a script's values; None unless two or more are comparable."""
    first, *rest = ranked(scripts) or [{"best": {}}]
    metric = first["best"].get("metric") if first["best"].get("better") else ""
    comparable = [item for item in rest if item["done"] and item["best"].get("metric") == metric]
    return first if metric and first["done"] and comparable else None


def log_tail(text: str) -> str:
    """Return the last lines of a log, as many as a receipt keeps."""
    lines = [line[:MOST_LINE] for line in text.splitlines()]
    return "\n".join(lines[-LAST_LINES:])


def models_of(record: RunRecord, observed: Observation) -> list[dict[str, Any]]:
    """Return the run's models: those that the node reported or, without a report, those in S3."""
    pieces = {piece.model: piece for piece in record.pieces}
    if observed.result is None:
        return [_model_in_bucket(pieces[_name_of(model.key)], model) for model in observed.models or ()]
    return [{**model, **pieces[_name_of(model["key"])].identity} for model in observed.result.models]


def seconds(record: RunRecord, observed: Observation, now: datetime | None = None) -> dict[str, float]:
    """Return the seconds of each phase and their total, to the millisecond; a phase that never began took
    none.

    A phase lasts until the next one that is known to have begun, so that the phases sum to the total. `now`
    ends the current phase of an open run.
    """
    ends = [seen.terminated_at for seen in record.instances if seen.terminated_at]
    finished = max(ends, default=None) or record.closed_at or now or record.ending_at or record.created_at
    reported = _reported_phases(observed)
    attempt = record.attempt
    starts: dict[str, datetime | None] = {
        "preflight": record.preflight_at,
        "capacity": record.created_at,
        "boot": attempt.created_at if attempt else None,
        "stage": reported.get("stage"),
        "train": reported.get("train"),
        "upload": reported.get("upload"),
        "terminate": reported.get("end") or (record.ending_at if attempt and attempt.created_at else None),
    }
    milliseconds = dict.fromkeys(PHASES, 0)
    current, since = "preflight", record.preflight_at
    for phase in PHASES[1:]:
        began = starts[phase]
        if began is not None:
            began = min(max(began, since), max(finished, since))  # by the node's clock
            milliseconds[current] += round((began - since).total_seconds() * 1000)
            current, since = phase, began
    milliseconds[current] += round((max(finished, since) - since).total_seconds() * 1000)
    return {phase: value / 1000 for phase, value in milliseconds.items()} | {
        "total": sum(milliseconds.values()) / 1000
    }


def spent(record: RunRecord, observed: Observation, now: datetime | None) -> tuple[float, float]:
    """Return the low and the high bound, in dollars, of what the run's instances cost until `now`."""
    low = high = 0.0
    for seen in record.instances:
        price = _price(record, seen)
        least, most = _billed_seconds(seen, observed, now)
        low, high = low + least / 3600 * price, high + most / 3600 * price
    return low, high


def _billed_seconds(seen: InstanceSeen, observed: Observation, now: datetime | None) -> tuple[float, float]:
    ended = seen.terminated_at or now or seen.launched_at
    most = max((ended - seen.launched_at).total_seconds(), SHORTEST_BILL_SECONDS)
    signs = [instant for instant in _signs_of_life(seen, observed) if seen.launched_at <= instant <= ended]
    if not signs:
        return 0.0, most  # never seen running: perhaps it never billed
    if seen.terminated_at is None and seen.running_seen_at is not None:
        signs.append(ended)  # it runs at this moment
    least = max((max(signs) - min(signs)).total_seconds(), SHORTEST_BILL_SECONDS)
    return least, max(least, most)


def _signs_of_life(seen: InstanceSeen, observed: Observation) -> list[datetime]:
    signs = [seen.running_seen_at] if seen.running_seen_at else []
    heartbeat = observed.heartbeat
    if heartbeat is not None and heartbeat.instance_id in ("", seen.instance_id):
        signs += [heartbeat.at, *heartbeat.phases.values()]
    if observed.result is not None:
        signs += observed.result.phases.values()
    return signs


def _price(record: RunRecord, seen: InstanceSeen) -> float:
    for rung in record.ladder:
        same_pool = (rung.instance_type, rung.market) == (seen.instance_type, seen.market)
        if same_pool and rung.availability_zone == seen.availability_zone:
            return rung.price_usd_per_hour
    return max((rung.on_demand_usd_per_hour for rung in record.ladder), default=0.0)


def _reported_phases(observed: Observation) -> Mapping[str, datetime]:
    """Return the start of each phase by the node's result, else by its last heartbeat."""
    if observed.result is not None and observed.result.phases:
        return observed.result.phases
    return observed.heartbeat.phases if observed.heartbeat else {}


def _instance(record: RunRecord, seen: InstanceSeen) -> dict[str, Any]:
    return {
        "instance_id": seen.instance_id,
        "instance_type": seen.instance_type,
        "market": seen.market,
        "availability_zone": seen.availability_zone,
        "price_usd_per_hour": _price(record, seen),
        "state": seen.state,
        "proof": seen.proof,
        "launched_at": iso(seen.launched_at),
        "terminated_at": iso(seen.terminated_at) if seen.terminated_at else None,
    }


def _name_of(key: str) -> str:
    """Return the name of the model of a key."""
    return key.rsplit("/", 1)[-1].removesuffix(MODEL_SUFFIX)


def _model_in_bucket(piece: RunPiece, model: ModelSeen) -> dict[str, Any]:
    name = read_name(piece.model)
    return {
        **piece.identity,
        "family": name.family,
        "target": name.target,
        "key": model.key,
        "version_id": model.version_id,
        "sha256": model.sha256,
        "metrics": dict(model.metrics),
    }


def _failed(
    record: RunRecord, observed: Observation, models: Sequence[Mapping[str, Any]], state: str
) -> list[dict[str, Any]]:
    """Return the failures that the node reported, and every other model of the job that is missing."""
    result = observed.result
    failed = [dict(item) for item in result.failed] if result else []
    scripts = [item for item in result.scripts if state == "done" or item["done"]] if result else []
    accounted = {item["piece"] for item in (*models, *failed, *scripts)}
    missing = [piece.identity for piece in record.pieces if piece.piece not in accounted]
    return failed + [{**piece, "reason": f"not finished when the run ended ({state})"} for piece in missing]


def _data(data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "files": list(data.get("files") or ()),
        "bars": data.get("bars", 0),
        "holes": data.get("holes", 0),
        "synthetic": data.get("synthetic"),
    }
