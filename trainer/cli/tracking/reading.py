"""An ended run as a tracker gets it, whichever it is: settings, versions, scores and curves. Pure.

Settings and versions are those of the run's report, curves those of TensorBoard. Within an epoch, and of
GPUs, nothing is tracked: `mayfly pull` has it for TensorBoard.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import PurePosixPath
from statistics import fmean
from typing import Any

from trainer.job.model_names import MODEL_SUFFIX
from trainer.runs.manifest import Manifest
from trainer.runs.receipt import Receipt
from trainer.runs.report.data import lineage, settings_of
from trainer.runs.store import receipt_key
from trainer.runs.training_events import SPANS
from trainer.train.observing.observe import points_of

# Limits of MLflow 3.17, the narrower of the two (mlflow/utils/validation.py, looked up 2026-11-27): a key has
# 250 characters, a parameter's value 6,000, a tag's 8,000.
MOST_KEY, MOST_TEXT = 250, 5_000
MOST_POINTS = 1_000_000  # of all curves; of more, every second, third, ... is tracked
CURVES = ("epoch", "script")  # events of epochs, and of a script's own numbers
LISTED = ("input", "file")  # versions of which a run has many


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """A run for a tracker. Names are keys that MLflow takes, texts are bounded, and numbers finite."""

    run_id: str
    job: str  # its name: runs of one job are compared
    state: str
    verdict: str
    began: float  # seconds since 1970
    ended: float
    settings: dict[str, str]  # of the job, named with their tables
    tags: dict[str, str]  # mayfly.<name>
    scores: dict[str, float]  # <model>/<span>/<score>, their means, and sums of the run
    points: list[tuple[str, int, float, float]]  # <model>/<curve>, step, value, seconds since 1970


def tracked_run(
    receipt: Receipt, manifest: Manifest | None, events: Iterable[Mapping[str, Any]], *, bucket: str
) -> TrackedRun:
    """Return what a tracker gets of a closed run. An epoch that was trained again replaces the first."""
    settings = {name: value for name, value in settings_of(receipt["job"]) if value}
    return TrackedRun(
        run_id=receipt["run_id"],
        job=settings.pop("name", "mayfly"),
        state=receipt["state"],
        verdict=receipt["verdict"][:MOST_TEXT],
        began=_seconds(receipt["created_at"]),
        ended=_seconds(receipt.get("closed_at") or receipt["created_at"]),
        settings={plain_key(name): value[:MOST_TEXT] for name, value in settings.items()},
        tags=_tags(receipt, manifest, bucket),
        scores=_scores(receipt),
        points=_points(events),
    )


def plain_key(name: str) -> str:
    """Return a name as a key that every tracker takes: letters, digits and `_.- :/`, no empty part between
    slashes, at most MOST_KEY characters. A changed one ends with a hash, so that no two become one.
    """
    parts = (re.sub(r"[^\w.\- :]", "_", part) for part in name.split("/"))
    key = "/".join(part for part in parts if part.strip(". "))
    if key and key == name and len(name) <= MOST_KEY:
        return name
    return f"{key[: MOST_KEY - 9]}-{hashlib.sha256(name.encode(errors='replace')).hexdigest()[:8]}"


def _tags(receipt: Receipt, manifest: Manifest | None, bucket: str) -> dict[str, str]:
    """Return what is searched and looked up: the run, how it ended, what it cost and depended on."""
    dollars, failed = receipt["dollars"], receipt["error"]
    texts = {
        "run_id": receipt["run_id"],
        "state": receipt["state"],
        "work": receipt["work"],
        "place": receipt["place"],
        "error": str(failed["what"]) if failed else "",
        "dollars": f"{dollars['spent_low']:.2f} to {dollars['spent_high']:.2f}",
        "receipt": f"{bucket}/{receipt_key(receipt['run_id'])}",
    }
    for label, value in lineage(receipt, manifest):
        head, _, rest = label.partition(" ")
        name, line = (head, f"{rest} {value}") if head in LISTED else (label.replace(" ", "_"), value)
        if value and name != "run":
            texts[name] = f"{texts[name]}\n{line}" if name in texts else line
    return {f"mayfly.{name}": text[:MOST_TEXT] for name, text in texts.items() if text}


def _scores(receipt: Receipt) -> dict[str, float]:
    """Return the last scores of each model or value of a script, the models' means, and the run's sums."""
    scores: dict[str, float] = {}
    of_models: dict[str, list[float]] = {}
    for model in receipt["models"]:
        name = PurePosixPath(model["key"]).name.removesuffix(MODEL_SUFFIX)
        metrics = {span: model["metrics"].get(span) for span in SPANS}
        for key, value in points_of({"event": "model_done", "model": name, "metrics": metrics})[2].items():
            scores[plain_key(f"{name}/{key}")] = value
            of_models.setdefault(plain_key(f"mean/{key}"), []).append(value)
    for script in receipt["scripts"]:
        if best := script["best"]:
            scores[plain_key(f"{script['piece']}/best/{best['metric']}")] = float(best["value"])
    means = {name: fmean(values) for name, values in of_models.items()}
    sums = {
        "run/models": len(receipt["models"]),
        "run/failed": len(receipt["failed"]),
        "run/seconds": receipt["seconds"]["total"],
        "run/dollars": receipt["dollars"]["spent_high"],
    }
    return {**{name: float(value) for name, value in sums.items()}, **means, **scores}


def _points(events: Iterable[Mapping[str, Any]]) -> list[tuple[str, int, float, float]]:
    """Return the points of all curves in the order of names and steps, the last one of each step."""
    key: Callable[[str], str] = cache(plain_key)
    last: dict[tuple[str, int], tuple[float, float]] = {}
    for event in events:
        if event["event"] not in CURVES:
            continue
        model, step, numbers = points_of(event)
        seconds = event["time"].timestamp()
        for name, value in numbers.items():
            last[key(f"{model}/{name}"), step] = value, seconds
    every = -(-len(last) // MOST_POINTS) or 1
    return [(name, step, *last[name, step]) for name, step in sorted(last)[::every]]


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
