"""The receipt that closes a run: models, seconds, dollars, and the observed end of every instance. Its
schema: docs/reference.md.

Its cost is a low and a high bound (`runs.spending`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from trainer.aws.place import place_named
from trainer.base.instants import iso
from trainer.base.strict_json import MOST_TEXT
from trainer.base.symbols import folders_of
from trainer.job.model_names import MODEL_SUFFIX, read_name
from trainer.runs.attempts import Attempt
from trainer.runs.boot import boot_steps
from trainer.runs.node_ends import node_ends
from trainer.runs.observation import ModelSeen, Observation
from trainer.runs.outcome import exit_code
from trainer.runs.record import InstanceSeen, Outcome, RunPiece, RunRecord
from trainer.runs.repeated import steps_twice
from trainer.runs.reports import LAST_LINES, MOST_KEPT, MOST_LINE
from trainer.runs.spending import billed_seconds, checkpoints_sent, price_of, spent, spot_saved
from trainer.targets.marks import judged, verdict

FORMAT = 5
PHASES = ("preflight", "capacity", "lost", "boot", "stage", "train", "upload", "terminate")

Receipt = dict[str, Any]


def make_receipt(
    record: RunRecord,
    observed: Observation,
    *,
    outcome: Outcome | None = None,
    error: Any = None,
    now: datetime | None = None,
) -> Receipt:
    """Return the receipt of a run as `--json` prints it; `outcome` and `error` replace the record's (an
    unconfirmed end). `now` ends the time and the bill of a run that is not closed.
    """
    state = outcome or record.outcome or "unconfirmed"
    reason = error if outcome else record.error
    until = record.closed_at or now
    low, high = spent(record, observed, until)
    saved = spot_saved(record, observed, until)
    result, heartbeat = observed.result, observed.heartbeat
    models = judged(models_of(record, observed))
    return {
        "format": FORMAT,
        "run_id": record.run_id,
        "state": state,
        "exit_code": exit_code(state, reason),
        "error": _error(reason),
        "parent": record.parent,
        "ancestors": list(record.ancestors),
        "work": record.work,
        "job": record.job,
        "created_at": iso(record.created_at),
        "deadline": iso(record.effective_deadline.at),
        "deadline_cause": record.effective_deadline.cause,
        "closed_at": iso(record.closed_at) if record.closed_at else None,
        "attempts": [_attempt(record, observed, attempt, until) for attempt in record.attempts],
        "instances": [_instance(record, seen) for seen in record.instances],
        "nodes": [end.to_dict() for end in node_ends(record, observed, until)],
        "left": None if observed.left is None else [vars(item) for item in observed.left],
        "models": models,
        "verdict": verdict(models),
        "failed": _failed(record, observed, models, state),
        "left_out": list(record.left_out),
        "files": _files(record, observed),
        "scripts": ranked(scripts_of(observed)) if record.leaves == "files" else [],
        "trials": ranked(scripts_of(observed)) if record.leaves == "models" else [],
        "retries": _retries(record, observed),
        "steps_twice": steps_twice(observed.start, heartbeat) if record.work == "train" else None,
        "seconds": seconds(record, observed, until),
        "boot": boot_steps(record, result),
        "dollars": {
            "estimated": round(record.estimated_usd, 6),
            "spent_low": round(low, 6),
            "spent_high": round(high, 6),
            "spot_saved_low": round(saved[0], 6),
            "spot_saved_high": round(saved[1], 6),
        },
        "data": _data(result.data if result else heartbeat.data if heartbeat else {}),
        "inputs": dict(result.inputs) if result else {},
        "checkpoints": checkpoints_sent(observed, most_usd=high),
        "devices": dict(result.devices) if result else {},
        "place": record.place,
        "host": record.host,
        "note": place_named(record.place).receipt_note,
        "log_tail": log_tail(observed.boot_log) if result is None else "",
        "python_packages": result.python_packages if result else "",
    }


def _retries(record: RunRecord, observed: Observation) -> int:
    """Return how often models were retried, on all machines."""
    lost = sum(attempt.reached.retries for attempt in record.lost if attempt.reached)
    last = None if record.attempt in record.lost else observed.result or observed.heartbeat
    return lost + (last.retries if last else 0)


def _files(record: RunRecord, observed: Observation) -> list[dict[str, Any]]:
    """Return the output files as S3 has them, or the candle files of a refresh as its node reported them."""
    reported = observed.result.files if observed.result and record.leaves == "candles" else ()
    return outputs_of(observed) if record.leaves == "files" else [dict(item) for item in reported]


def outputs_of(observed: Observation) -> list[dict[str, Any]]:
    """Return the files of all attempts by path: of two of one name that of the later attempt, which no longer
    has an earlier one's file where it has a folder. Of more than MOST_KEPT the later attempt's are left out.
    """
    own = {item["file"]: item for item in observed.outputs}
    above = folders_of(own)
    earlier = [item for item in observed.start.outputs if item["file"] not in own] if observed.start else []
    kept = [
        item for item in earlier if item["file"] not in above and not folders_of([item["file"]]) & own.keys()
    ]
    named = (*kept, *own.values())[:MOST_KEPT]
    return [dict(item) for item in sorted(named, key=lambda item: str(item["file"]))]


def scripts_of(observed: Observation) -> list[Mapping[str, Any]]:
    """Return how the pieces that an agent started ended, in all attempts; one that is done stays so. One of
    whose files any is missing is not done.
    """
    earlier = observed.start.scripts if observed.start else ()
    done = {item["piece"] for item in earlier}
    own = observed.result.scripts if observed.result else _once(observed.scripts)
    if observed.nodes and observed.result:  # of a node that was lost, beside others that reported
        reported = {item["piece"] for item in own if item["done"]}
        left = _once(item for item in observed.scripts if item["piece"] not in reported)
        own = (*(item for item in own if item["piece"] not in {one["piece"] for one in left}), *left)
    kept = [item if _has_its_files(item, observed) else {**item, "done": False} for item in own]
    return [*earlier, *(item for item in kept if item["piece"] not in done)]


def _once(scripts: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the ends that several nodes list, each piece once: one that is done, if it is on any of them."""
    ends = sorted(scripts, key=lambda item: bool(item["done"]))
    return list({item["piece"]: item for item in ends}.values())


def _has_its_files(script: Mapping[str, Any], observed: Observation) -> bool:
    """Return whether S3 holds every file that was listed below a piece's folder of MAYFLY_OUT."""
    folder = f"{script['piece']}/" if script.get("values") or "trial" in script else ""
    return not any(not path or path.startswith(folder) for path in observed.missing)


def ranked(scripts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the ends of a script's values, or of trials by study, those that are done first and by the
    metric that most of them have, the best of them first; the others in their order.
    """
    metrics = Counter(item["best"]["metric"] for item in scripts if item["done"] and item["best"])
    metric = metrics.most_common(1)[0][0] if metrics else ""
    of_study = ("series", "fold", "seed") if any("trial" in item for item in scripts) else ()

    def place(item: Mapping[str, Any]) -> tuple[Any, ...]:
        best, study = item["best"], [item.get(name) for name in of_study]
        is_part = not is_whole(item)  # a trial that did not train to its end
        if not item["done"] or not metric or best.get("metric") != metric:
            return *study, not item["done"], True, is_part, 0.0
        return *study, False, False, is_part, best["value"] if best["better"] == "min" else -best["value"]

    return [dict(item) for item in sorted(scripts, key=place)]


def is_whole(script: Mapping[str, Any]) -> bool:
    """Return whether a script's value, or a trial, came to its end."""
    return bool(script["done"]) and script.get("end", "done") == "done"


def winner(scripts: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the best of a script's values; None unless two or more are comparable."""
    first, *rest = ranked(scripts) or [{"best": {}}]
    metric = first["best"].get("metric")
    comparable = [item for item in rest if item["done"] and item["best"].get("metric") == metric]
    return first if metric and first["done"] and comparable else None


def log_tail(text: str) -> str:
    """Return the last lines of a log, as many as a receipt keeps."""
    lines = [line[:MOST_LINE] for line in text.splitlines()]
    return "\n".join(lines[-LAST_LINES:])


def models_of(record: RunRecord, observed: Observation) -> list[dict[str, Any]]:
    """Return the run's models: those that earlier attempts finished, and those that the last one's node
    reported or, without a report, has in S3. A finished model is never replaced.
    """
    pieces = {piece.model: piece for piece in record.pieces}
    earlier = [dict(model) for model in observed.start.models] if observed.start else []
    done = {_name_of(model["key"]) for model in earlier}
    if observed.result is None:
        left = [model for model in observed.models or () if _name_of(model.key) not in done]
        return earlier + [_model_in_bucket(pieces[_name_of(model.key)], model) for model in left]
    reported = [model for model in observed.result.models if _name_of(model["key"]) not in done]
    done |= {_name_of(model["key"]) for model in reported}
    # of a node that was lost, beside others that reported
    left = [model for model in observed.models or () if observed.nodes and _name_of(model.key) not in done]
    return (
        earlier
        + [{**model, **pieces[_name_of(model["key"])].identity} for model in reported]
        + [_model_in_bucket(pieces[_name_of(model.key)], model) for model in left]
    )


def seconds(record: RunRecord, observed: Observation, now: datetime | None = None) -> dict[str, float]:
    """Return the seconds of each phase and their total, to the millisecond; a phase that never began took
    none.

    A phase lasts until the next one that is known to have begun, so that the phases sum to the total. `now`
    ends the current phase of an open run.
    """
    ends = [seen.terminated_at for seen in record.instances if seen.terminated_at]
    is_over = record.state in ("ending", "closed") and len(ends) == len(record.instances)
    last = max(ends, default=None) if is_over else None  # an open run may have lost an earlier instance
    finished = last or record.closed_at or now or record.ending_at or record.created_at
    attempt = record.attempt
    between = (
        attempt is not None and attempt in record.lost
    )  # its phases are those of an attempt that is over
    reported = {} if between and not record.outcome else _reported_phases(observed)
    starts: dict[str, datetime | None] = {
        "preflight": record.preflight_at,
        "capacity": record.created_at,
        "lost": record.attempts[0].created_at if record.next_number > 1 else None,
        "boot": attempt.created_at if attempt and (not between or record.outcome) else None,
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


def _reported_phases(observed: Observation) -> Mapping[str, datetime]:
    """Return the start of each phase by the node's result, else by its last heartbeat."""
    if observed.result is not None and observed.result.phases:
        return observed.result.phases
    return observed.heartbeat.phases if observed.heartbeat else {}


def _attempt(
    record: RunRecord, observed: Observation, attempt: Attempt, until: datetime | None
) -> dict[str, Any]:
    """Return an attempt: its instances, why it ended, and what it took."""
    seen_then = tuple(seen for seen in record.instances if seen.attempt == attempt.number)
    mine = replace(record, attempts=(attempt,), instances=seen_then)
    low, high = spent(mine, observed, until)
    times = [billed_seconds(mine, seen, observed, until) for seen in mine.instances]
    return {
        "number": attempt.number,
        "instances": [seen.instance_id for seen in mine.instances],
        "created_at": iso(attempt.created_at) if attempt.created_at else None,
        "ended_at": iso(attempt.ended_at) if attempt.ended_at else None,
        "cause": attempt.cause,
        "error": _error(attempt.error),
        "seconds_low": round(sum(low for low, _ in times), 3),
        "seconds_high": round(sum(high for _, high in times), 3),
        "spent_low": round(low, 6),
        "spent_high": round(high, 6),
    }


def _error(error: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return an error with its texts cut to what readers of a receipt take: it may name a hundred pools."""
    return None if error is None else {key: _cut(value) for key, value in error.items()}


def _cut(value: Any) -> Any:
    long = isinstance(value, str) and len(value) > MOST_TEXT
    return f"{value[: MOST_TEXT - 4]} ..." if long else value


def _instance(record: RunRecord, seen: InstanceSeen) -> dict[str, Any]:
    return {
        "instance_id": seen.instance_id,
        "instance_type": seen.instance_type,
        "market": seen.market,
        "availability_zone": seen.availability_zone,
        "price_usd_per_hour": price_of(record, seen),
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
    made = {item["piece"] for item in models}
    earlier = observed.start.failed if observed.start else ()
    reported = observed.result.failed if observed.result else ()
    known = {item["piece"]: dict(item) for item in (*reported, *earlier)}
    failed = [item for piece, item in known.items() if piece not in made]
    scripts = [item for item in scripts_of(observed) if state == "done" or item["done"]]
    accounted = made | {item["piece"] for item in (*failed, *scripts)} | record.trials_over(made)
    missing = [piece.identity for piece in record.pieces if piece.piece not in accounted]
    return failed + [{**piece, "reason": f"not finished when the run ended ({state})"} for piece in missing]


def _data(data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "files": list(data.get("files") or ()),
        "bars": data.get("bars", 0),
        "holes": data.get("holes", 0),
        "synthetic": data.get("synthetic"),
    }
