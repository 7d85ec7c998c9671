"""Predicted against actual seconds of runs by phase, in `memory/calibration.json`: plans follow them.

Whoever closes a run appends it, by compare-and-swap (`control.learn`). A case is a shape of model on an
instance type at a place. A damaged object counts as empty.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainer.base.strict_json import Fields, Unsound, read_object

OBJECT = "memory/calibration.json"
FORMAT = 1
PHASES = ("boot", "stage", "train", "upload")
LEAST_RUNS, NEWEST = 3, 5  # runs of a case that a plan needs, and follows at most
MOST_BYTES, MOST_RUNS, MOST_TEXT = 4 << 20, 1_000, 400
MOST_SECONDS = 1e8


@dataclass(frozen=True, kw_only=True)
class TimedRun:
    """A run that is done: its case, and what its plan predicted and it took, in the order of PHASES."""

    run_id: str
    case: str
    visits: float  # windows of one of its devices
    predicted: tuple[float, ...]
    actual: tuple[float, ...]

    @property
    def error(self) -> float:
        """Return how far the prediction of all phases was off, as a share of what they took."""
        took = sum(self.actual)
        return abs(sum(self.predicted) - took) / took if took else 0.0


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """Measured times of the last runs of a case: seconds of each phase, and visits a second of one device."""

    boot: float
    stage: float
    visits_per_second: float
    upload: float
    runs: int


def case_of(place: str, instance_type: str, shape: str) -> str:
    """Return the case of a run."""
    return f"{place} {instance_type} {shape}"


def runs_from(body: bytes) -> tuple[TimedRun, ...]:
    """Read the stored runs, oldest first; () if the object is damaged."""
    try:
        stored = read_object(body, most_bytes=MOST_BYTES, name="the calibration")
        stored.whole("format", least=FORMAT, most=FORMAT)
        return tuple(_run(row) for row in stored.rows("runs", most=MOST_RUNS))
    except Unsound:
        return ()


def with_run(known: Sequence[TimedRun], run: TimedRun) -> tuple[TimedRun, ...]:
    """Return the runs with one more, or the same one again; the oldest are left out."""
    return (*(one for one in known if one.run_id != run.run_id), run)[-MOST_RUNS:]


def to_bytes(runs: Sequence[TimedRun]) -> bytes:
    """Return the stored form."""
    rows = [{**vars(run), "predicted": list(run.predicted), "actual": list(run.actual)} for run in runs]
    return (json.dumps({"format": FORMAT, "runs": rows}, indent=1) + "\n").encode()


def calibrated(runs: Sequence[TimedRun], case: str) -> Calibrated | None:
    """Return the medians of a case's newest runs; None for fewer than LEAST_RUNS."""
    alike = [run for run in runs if run.case == case and run.visits and run.actual[2]][-NEWEST:]
    if len(alike) < LEAST_RUNS:
        return None
    boot, stage, _, upload = (
        statistics.median(run.actual[number] for run in alike) for number in range(len(PHASES))
    )
    rate = statistics.median(run.visits / run.actual[2] for run in alike)
    return Calibrated(boot=boot, stage=stage, visits_per_second=rate, upload=upload, runs=len(alike))


def _run(row: Fields) -> TimedRun:
    def seconds(name: str) -> tuple[float, ...]:
        values = row.value(name).items(least=len(PHASES), most=len(PHASES))
        return tuple(value.number(least=0, most=MOST_SECONDS) for value in values)

    visits: Any = row.number("visits", least=0)
    return TimedRun(
        run_id=row.text("run_id"),
        case=row.text("case", most=MOST_TEXT),
        visits=visits or 0.0,
        predicted=seconds("predicted"),
        actual=seconds("actual"),
    )
