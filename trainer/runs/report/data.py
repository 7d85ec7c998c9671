"""Build the data of a run's report, one JSON value: bounded, without a time or a name of its own. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer.base.instants import iso
from trainer.base.text import counted
from trainer.job.model_names import TRIAL
from trainer.runs.calibration import PHASES
from trainer.runs.deadline import CAUSES
from trainer.runs.manifest import Manifest
from trainer.runs.receipt import Receipt, is_whole, ranked
from trainer.runs.record import RunRecord
from trainer.runs.report.curves import RunCurves
from trainer.runs.report.lanes import events, lanes
from trainer.runs.report.models import InProduction, ReadCard, model_rows
from trainer.runs.timeline import Reports

FORMAT = 1
MOST_TEXT = 600  # characters of a text
MOST_SETTINGS, MOST_INPUTS, MOST_FAILED, MOST_VALUES, MOST_FILES = 400, 60, 500, 1_000, 200
MOST_ATTEMPTS = 60
_OF_THE_RUN = (
    "run_id",
    "state",
    "exit_code",
    "work",
    "parent",
    "place",
    "host",
    "note",
    "created_at",
    "closed_at",
)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Parts of a run that a report reads besides its record and receipt. `missing`: why one is not here."""

    manifest: Manifest | None = None
    reports: Reports = field(default_factory=dict)
    curves: RunCurves | None = None
    cards: Mapping[str, ReadCard] = field(default_factory=dict)  # by the models' keys
    production: Mapping[str, InProduction] = field(default_factory=dict)
    scored: str = ""  # what a score run scores: its job is that of the training before it
    missing: Mapping[str, str] = field(default_factory=dict)


def report_data(receipt: Receipt, record: RunRecord, seen: Seen) -> dict[str, Any]:
    """Return the data of a run's page."""
    models = model_rows(receipt["models"], seen.cards, seen.production)
    values = ranked(receipt["scripts"] or receipt.get("trials", ()))
    order = [str(one["piece"]) for one in (*models["rows"], *values)]
    data = {
        "format": FORMAT,
        "run": {name: receipt[name] for name in _OF_THE_RUN},
        "error": receipt["error"],
        "verdict": receipt["verdict"],
        "asked": [[label, value] for label, value in _asked(receipt, seen.scored) if value],
        "settings": list(settings_of(receipt["job"]))[:MOST_SETTINGS],
        "seconds": receipt["seconds"],
        "predicted": _predicted(record),
        "dollars": receipt["dollars"],
        "read": {name: receipt["data"].get(name) for name in ("bars", "holes", "synthetic")},
        "attempts": receipt["attempts"][-MOST_ATTEMPTS:],
        "instances": receipt["instances"][-MOST_ATTEMPTS:],
        "left": receipt["left"],
        "steps_twice": receipt["steps_twice"],
        **lanes(record, seen.reports),
        "events": events(record, seen.reports),
        "models": models,
        "failed": _some([[one["piece"], one["reason"]] for one in receipt["failed"]], MOST_FAILED),
        "left_out": _some(receipt["left_out"], MOST_FAILED),
        "values": {
            **_some([_value(one) for one in values], MOST_VALUES),
            "done": sum(map(is_whole, values)),
        },
        "files": _some([[one["file"], one["bytes"]] for one in receipt["files"]], MOST_FILES),
        "curves": seen.curves.to_dict(order) if seen.curves else None,
        "lineage": [[label, value] for label, value in lineage(receipt, seen.manifest) if value],
        "missing": dict(seen.missing),
    }
    return _short(data)


def _asked(receipt: Receipt, scored: str) -> Iterator[tuple[str, str]]:
    """Yield what the job asked for, in the order in which people ask."""
    job = receipt["job"]
    table = {name: value for name, value in job.items() if isinstance(value, Mapping)}

    def of(name: str, key: str) -> Any:
        return table.get(name, {}).get(key)

    yield "job", str(job.get("name") or "")
    yield "work", receipt["work"] if receipt["work"] != "train" else ""
    yield "script", str(of("script", "command") or "")
    yield "folder", str(of("data", "folder") or "")
    model, target = of("model", "name"), of("target", "name")
    yield "model", f"{model} for {target}" if target else str(model or "")
    yield "symbols", _listed(of("data", "symbols"))
    yield "bars", _joined([of("data", "timeframe"), f"set {of('data', 'set')}" if of("data", "set") else ""])
    yield "scored", scored
    if not scored:
        yield from _training_asked(receipt, of)
    cause = CAUSES.get(receipt["deadline_cause"], receipt["deadline_cause"])
    yield "deadline", f"{receipt['deadline']}, set by {cause}"


def _training_asked(receipt: Receipt, of: Callable[[str, str], Any]) -> Iterator[tuple[str, str]]:
    """Yield how long it may train, and on what."""
    epochs, seeds = of("train", "epochs"), of("train", "seeds")
    at_most = f"{counted(epochs, 'epoch')} at most" if isinstance(epochs, int) and epochs else ""
    yield "training", _joined([at_most, f"{seeds} seeds" if seeds and seeds != 1 else ""])
    market = _listed(of("machine", "market")).replace("_", "-")
    yield "machine", "" if receipt["host"] else _joined([_listed(of("machine", "instance")), market])
    budget = of("machine", "budget")
    yield "budget", f"${budget:,.2f}" if isinstance(budget, (int, float)) and budget else ""


def settings_of(job: Mapping[str, Any], above: str = "") -> Iterator[list[str]]:
    """Yield each key of a job with its value as text."""
    for key, value in job.items():
        if key == "env":  # a report is shown to others
            continue
        if isinstance(value, Mapping):
            yield from settings_of(value, f"{above}{key}.")
        else:
            yield [f"{above}{key}", _listed(value) if isinstance(value, list) else str(value)]


def _predicted(record: RunRecord) -> dict[str, float]:
    """Return the seconds that the plan predicted for the type of the last launch, by phase."""
    launch = record.last_launch
    if launch is None or launch.rung >= len(record.ladder):
        return {}
    rung = record.ladder[launch.rung]
    phases = dict(zip(PHASES, rung.predicted, strict=False))
    return {**phases, "slow": rung.p90_seconds} if phases else {}


def _value(script: Mapping[str, Any]) -> dict[str, Any]:
    best = script["best"]
    return {
        "piece": script["piece"],
        "values": script.get("values") or {},
        "done": script["done"],
        "exit_code": script["exit_code"],
        "metric": best.get("metric", ""),
        "best": best.get("value"),
        "better": best.get("better", ""),
        "seconds": script["seconds"],
        "starts": script["starts"],
        **(_of_trial(script) if "trial" in script else {"study": ""}),
        "end": script.get("end", "").replace("_", " "),
    }


def _of_trial(trial: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a trial has besides: the model that it is for, or the kind of a script, and its length."""
    study = str(trial["piece"]).rpartition(" ")[0] or trial["kind"]
    return {
        "study": study,
        "epochs": trial["epochs"],
        "length": "epochs" if trial["kind"] == TRIAL else "scores",
    }


def lineage(receipt: Receipt, manifest: Manifest | None) -> Iterator[tuple[str, str]]:
    """Yield what the run depended on, by version and hash."""
    yield "run", receipt["run_id"]
    yield "continues", receipt["parent"]
    yield "packages", str(receipt.get("python_packages") or "")
    for instance_type in dict.fromkeys(one["instance_type"] for one in receipt["instances"]):
        machine = manifest.machines.get(instance_type) if manifest else None
        chip = f"{machine.gpu_count} x {machine.gpu_model}" if machine and machine.gpu_count else ""
        yield "machine", _joined([instance_type, chip])
    yield (
        "devices",
        _joined(
            f"{key} {value}" for key, value in receipt["devices"].items() if isinstance(value, (str, int))
        ),
    )
    if manifest is None:
        return
    yield "registered", iso(manifest.created_at)
    yield "command", manifest.command.name
    yield "code", _joined(manifest.code.get(name) for name in ("key", "sha256"))
    yield "locked packages", f"sha256 {manifest.lock_sha256}" if manifest.lock_sha256 else ""
    yield "image", _joined(manifest.image.values())
    yield "seeds", ", ".join(map(str, manifest.seeds[:MOST_INPUTS]))
    for path, sha256 in list(manifest.command.files.items())[:MOST_INPUTS]:
        yield f"file {path}", f"sha256 {sha256}"
    for item in manifest.inputs[:MOST_INPUTS]:
        version = f"version {item.version_id}" if item.version_id else ""
        yield f"input {item.path}", _joined([f"sha256 {item.sha256}" if item.sha256 else "", version])
    if (more := len(manifest.inputs) - MOST_INPUTS) > 0:
        yield "inputs", f"and {more:,} more in manifest.json"


def _some(rows: Sequence[Any], most: int) -> dict[str, Any]:
    return {"total": len(rows), "rows": list(rows[:most])}


def _listed(value: Any) -> str:
    if not isinstance(value, (list, tuple)):
        return "" if value is None else str(value)
    more = f" and {len(value) - 12} more" if len(value) > 12 else ""
    return ", ".join(map(str, value[:12])) + more


def _joined(parts: Any) -> str:
    return " · ".join(str(part) for part in parts if part)


def _short(value: Any) -> Any:
    """Return a JSON value whose texts have at most MOST_TEXT characters, and whose numbers JSON has."""
    if isinstance(value, str):
        return value if len(value) <= MOST_TEXT else f"{value[:MOST_TEXT]} ..."
    if isinstance(value, Mapping):
        return {str(key)[:MOST_TEXT]: _short(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_short(item) for item in value]
    return None if isinstance(value, float) and not -1e300 < value < 1e300 else value
