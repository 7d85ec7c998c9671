"""What is kept of a training for a later look: events by model and by worker, TensorBoard's files, and what the GPUs did.

    OUT/observed/models/<model>.jsonl  workers/<number>.jsonl  gpus.jsonl  tensorboard/<model or gpu>/

The same events go to `events.jsonl` (events.py), which the node sends to S3 as metrics: a run's folder can be made of that.
On a machine whose driver has no nvidia-smi, nothing is said of GPUs.
"""

from __future__ import annotations

import json
import math
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from trainer.train.tensorboard import ScalarFile

GPU_SECONDS = 5.0
PROGRESS_SECONDS = 5.0  # of one model: each second of hundreds of models would be gigabytes in a night
GPU_FIELDS = {
    "utilization.gpu": "use_percent",
    "memory.used": "memory_used_mib",
    "memory.total": "memory_mib",
    "power.draw": "power_watts",
    "temperature.gpu": "temperature_celsius",
}
QUERY = ("nvidia-smi", f"--query-gpu=index,{','.join(GPU_FIELDS)}", "--format=csv,noheader,nounits")
Emit = Callable[[dict[str, Any]], None]


class Observed:
    """Keep events under a folder. Threads may call it at once."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._folder, self._clock = folder, clock
        self._boards: dict[str, ScalarFile] = {}
        self._told: dict[str, float] = {}  # when each model's progress was kept last
        self._lock = threading.Lock()

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Keep one event."""
        with self._lock:
            now = self._clock()
            if event["event"] == "progress":
                if now - self._told.get(event["model"], -math.inf) < PROGRESS_SECONDS:
                    return
                self._told[event["model"]] = now
            places = [("models", event.get("model")), ("workers", event.get("worker"))]
            files = [f"{kind}/{name}.jsonl" for kind, name in places if name is not None]
            if event["event"] == "gpu":
                files.append("gpus.jsonl")
            time_text = datetime.fromtimestamp(now, timezone.utc).isoformat(timespec="milliseconds")
            line = json.dumps({"time": time_text, **event}) + "\n"  # NaN stays NaN here: it is what a person looks for
            for name in files:
                path = self._folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("a", encoding="utf-8") as file:
                    file.write(line)
            board, step, scalars = points_of(event)
            if scalars:
                self._board(board, now).add(scalars, step=step, now=now)

    def _board(self, name: str, now: float) -> ScalarFile:
        if name not in self._boards:
            self._boards[name] = ScalarFile(self._folder / "tensorboard" / name, now=now, suffix=name)
        return self._boards[name]


def points_of(event: Mapping[str, Any]) -> tuple[str, int, dict[str, float]]:
    """Return what an event adds to TensorBoard: whose, at which step, and which numbers. No numbers: nothing."""
    kind, model = event["event"], str(event.get("model", ""))
    if kind == "progress":
        step = (event["epoch"] - 1) * event["steps"] + event["step"]
        return model, step, _numbers({"step/train_loss": event["loss"], "step/windows_per_second": event["windows_per_second"]})
    if kind == "epoch":
        losses = {f"epoch/{name}": value for name, value in event.items() if name.endswith("_loss")}
        return model, event["epoch"], _numbers(losses)
    if kind == "model_done":
        scores = event["metrics"].items()
        return model, 0, _numbers({f"{span}/{name}": value for span, found in scores for name, value in _items(found)})
    if kind == "gpu":
        return f"gpu{event['gpu']}", event["sample"], _numbers({name: event[name] for name in GPU_FIELDS.values()})
    return "", 0, {}


def _items(found: Any) -> list[tuple[str, Any]]:
    return list(found.items()) if isinstance(found, Mapping) else []


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Keep what TensorBoard can draw: finite numbers."""
    numbers = {name: value for name, value in values.items() if isinstance(value, (int, float)) and not isinstance(value, bool)}
    return {name: float(value) for name, value in numbers.items() if math.isfinite(value)}


class GpuWatch:
    """Emit a `gpu` event for every GPU every few seconds, from a thread of its own, while the `with` lasts."""

    def __init__(self, emit: Emit, *, seconds: float = GPU_SECONDS) -> None:
        self._emit, self._seconds = emit, seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="gpu-watch", daemon=True)

    def __enter__(self) -> GpuWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=self._seconds)

    def _watch(self) -> None:
        sample = 0
        while not self._ended.is_set():
            try:
                answer = subprocess.run(QUERY, capture_output=True, text=True, timeout=20, check=True)
            except (OSError, subprocess.SubprocessError):
                return  # no driver, or one that fails: training goes on without these numbers
            for event in read_sample(answer.stdout):
                self._emit({**event, "sample": sample})
            sample += 1
            self._ended.wait(self._seconds)


def read_sample(listing: str) -> list[dict[str, Any]]:
    """Read what QUERY prints: one event a GPU; what this GPU does not tell is None."""
    events = []
    for line in listing.splitlines():
        index, *cells = (cell.strip() for cell in line.split(","))
        if index.isdigit() and len(cells) == len(GPU_FIELDS):
            told = {name: _number(cell) for name, cell in zip(GPU_FIELDS.values(), cells, strict=True)}
            events.append({"event": "gpu", "gpu": int(index), **told})
    return events


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:  # [N/A], [Not Supported]
        return None
