"""Curves of a run for its report: losses and numbers by piece, throughput and use of GPUs over time. Folded
from events while they are read, so that memory follows the number of pieces, not of events.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from trainer.runs.training_events import EventReader
from trainer.targets.described import OF_A_ROLLOUT

BUCKETS = 240  # of a run's time
MOST_POINTS = 120  # of a curve; a longer one is thinned out
FEWEST_POINTS = 24  # of each curve of many pieces
MOST_NUMBERS = 100_000  # of all curves together: a megabyte
MOST_HELD = 4_000  # points of a curve while it is read
MOST_SERIES = 12  # of a piece
MOST_GPUS = 64  # of all nodes
MOST_GAPS = 8  # times the usual gap between a worker's reports; over longer ones its rate is not known
DIGITS = 5
LOSSES = {"train_loss": "training loss", "validation_loss": "validation loss"}
FIRST = ("validation loss", "training loss", "loss")  # of the names of series
GPU_SERIES = {"use_percent": "use", "memory_used_mib": "memory", "power_watts": "power"}


@dataclass(kw_only=True)
class _Mean:
    total: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.total, self.count = self.total + value, self.count + 1

    @property
    def value(self) -> float:
        return self.total / self.count


@dataclass(kw_only=True)
class RunCurves:
    """Curves of a run between two instants. `add` takes the lines of a node's events, part by part."""

    begin: datetime
    end: datetime
    _reader: EventReader = field(default_factory=EventReader)
    # piece -> series -> epoch or step -> value
    _pieces: dict[str, dict[str, dict[int, float]]] = field(default_factory=dict)
    _along: dict[str, str] = field(default_factory=dict)  # piece -> what its curves are along
    _rates: dict[tuple[str, str], dict[int, _Mean]] = field(default_factory=dict)  # node, worker -> bucket
    _unit: str = ""
    # node and GPU -> figure -> bucket
    _gpus: dict[str, dict[str, dict[int, _Mean]]] = field(default_factory=dict)
    _gpu_memory: float = 0.0  # MiB of the largest

    def add(self, lines: bytes, *, node: str = "") -> None:
        """Fold the events of whole lines. `node`: its name in labels, of several nodes."""
        for event in self._reader.read(lines.splitlines()):
            kind = event["event"]
            if kind == "epoch":
                self._epoch(event)
            elif kind == "script":
                self._script(event)
            elif kind == "gpu":
                self._gpu(event, node)
            if kind in ("progress", "script") and event["rate"] is not None:
                self._rate(event, node)

    def to_dict(self, order: Sequence[str] = ()) -> dict[str, Any]:
        """Return them as JSON values; of many pieces the first in `order` whose curves fit, thinned out."""
        ranks = {piece: place for place, piece in enumerate(order)}
        pieces = sorted(self._pieces, key=lambda piece: (ranks.get(piece, len(ranks)), piece))
        names = max(1, max((len(series) for series in self._pieces.values()), default=1))
        points = max(FEWEST_POINTS, min(MOST_POINTS, MOST_NUMBERS // (names + 1) // max(1, len(pieces))))
        shown = pieces[: max(1, MOST_NUMBERS // (names + 1) // FEWEST_POINTS)]
        return {
            "pieces": [self._piece(piece, points) for piece in shown],
            "left_out": len(pieces) - len(shown),
            "throughput": self._throughput(),
            "gpus": [self._gpu_row(name) for name in sorted(self._gpus) if self._gpus[name]],
            "gpu_memory_mib": self._gpu_memory,
            "begin": round(self.begin.timestamp(), 3),
            "bucket_seconds": self._bucket_seconds,
        }

    @property
    def _bucket_seconds(self) -> float:
        return max(1.0, (self.end - self.begin).total_seconds() / BUCKETS)

    def _bucket(self, at: datetime) -> int:
        """Return the place of an instant by the node's clock, inside the run."""
        inside = min(max(at - self.begin, timedelta()), self.end - self.begin)
        return int(inside.total_seconds() / self._bucket_seconds)

    def _epoch(self, event: Mapping[str, Any]) -> None:
        values = {name: event[key] for key, name in LOSSES.items()}
        if score := event.get("score"):
            values |= {f"{score} in training": event["train_score"]}
            values |= {f"{score} in validation": event["validation_score"]}
        values |= {key.replace("_", " "): event.get(key) for key in OF_A_ROLLOUT}
        self._points(event["piece"], "epoch", event["epoch"], values)

    def _script(self, event: Mapping[str, Any]) -> None:
        along = next((name for name in ("step", "epoch") if name in event), "")
        if along:
            self._points(event["piece"], along, event[along], {"loss": event["loss"], **event["values"]})

    def _points(self, piece: str, along: str, place: int, values: Mapping[str, float | None]) -> None:
        if self._along.setdefault(piece, along) != along:
            return
        known = self._pieces.setdefault(piece, {})
        for name, value in values.items():
            if value is None or (name not in known and len(known) >= MOST_SERIES):
                continue
            curve = known.setdefault(name, {})
            curve[place] = value
            if len(curve) > MOST_HELD:
                known[name] = {at: curve[at] for at in _thinned(sorted(curve), MOST_HELD // 2)}

    def _rate(self, event: Mapping[str, Any], node: str) -> None:
        self._unit = self._unit or event["unit"]
        # a script's pieces run side by side, each with a rate of its own
        worker = str(event["worker"]) if "worker" in event else f"piece {event['piece']}"
        buckets = self._rates.setdefault((node, worker), {})
        buckets.setdefault(self._bucket(event["time"]), _Mean()).add(event["rate"])

    def _gpu(self, event: Mapping[str, Any], node: str) -> None:
        name = f"{node} GPU {event['gpu']}".strip()
        if name not in self._gpus and len(self._gpus) >= MOST_GPUS:
            return
        figures, bucket = self._gpus.setdefault(name, {}), self._bucket(event["time"])
        for figure in GPU_SERIES:
            if event.get(figure) is not None:
                figures.setdefault(figure, {}).setdefault(bucket, _Mean()).add(event[figure])
        self._gpu_memory = max(self._gpu_memory, event.get("memory_mib") or 0.0)

    def _piece(self, piece: str, points: int) -> dict[str, Any]:
        series = self._pieces[piece]
        places = _thinned(sorted(set().union(*series.values())), points)
        names = sorted(series, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))
        return {
            "piece": piece,
            "along": self._along[piece],
            "x": places,
            "series": {name: _at(series[name], places) for name in names},
        }

    def _throughput(self) -> dict[str, Any]:
        """Return the sum of the workers' rates in each bucket."""
        totals: dict[int, float] = {}
        for rates in self._rates.values():
            for bucket, rate in _held(rates):
                totals[bucket] = totals.get(bucket, 0.0) + rate
        buckets = sorted(totals)
        return {"unit": self._unit, "buckets": buckets, "rates": [_rounded(totals[one]) for one in buckets]}

    def _gpu_row(self, name: str) -> dict[str, Any]:
        """Return the figures of a GPU, each by the buckets that have any."""
        figures = self._gpus[name]
        buckets = sorted(set[int]().union(*figures.values()))
        shown = {
            title: [_rounded(means[one].value) if one in means else None for one in buckets]
            for key, title in GPU_SERIES.items()
            if (means := figures.get(key))
        }
        return {"name": name, "buckets": buckets, **shown}


def _thinned(points: Sequence[int], most: int) -> list[int]:
    """Return at most so many points, evenly spread, the first and the last among them."""
    if len(points) <= most:
        return list(points)
    return [points[number * (len(points) - 1) // (most - 1)] for number in range(most)]


def _at(curve: Mapping[int, float], places: Sequence[int]) -> list[float | None]:
    """Return the last value of a curve up to each place and after the one before; None where it has none."""
    values = {bisect_left(places, place): curve[place] for place in sorted(curve)}
    return [_rounded(values.get(number)) for number in range(len(places))]


def _held(rates: Mapping[int, _Mean]) -> Iterator[tuple[int, float]]:
    """Yield a worker's rate by bucket: each holds until the next report, unless that is far."""
    buckets = sorted(rates)
    gaps = [after - bucket for bucket, after in pairwise(buckets)]
    far = MOST_GAPS * sorted(gaps)[len(gaps) // 2] if gaps else 0
    for bucket, gap in zip(buckets, [*gaps, 1], strict=True):
        for held in range(bucket, bucket + gap if gap <= far else bucket + 1):
            yield held, rates[bucket].value


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.{DIGITS}g}")


def curves_of(parts: Iterable[tuple[str, bytes]], *, begin: datetime, end: datetime) -> RunCurves:
    """Return the curves of parts of events, each with its node's name."""
    made = RunCurves(begin=begin, end=end)
    for node, lines in parts:
        made.add(lines, node=node)
    return made
