"""Files that record a training: events by model and by worker, TensorBoard's files, GPU use.

    OUT/observed/models/<model>.jsonl  workers/<number>.jsonl  gpus.jsonl  tensorboard/<model or gpu>/

The same events go to `events.jsonl` (events.py), which the node sends to S3 as metrics: `mayfly pull --live`
rebuilds the folder from them. GPU events come from `gpu_watch`.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from trainer.base.files import append_whole
from trainer.targets.described import OF_A_ROLLOUT
from trainer.train.observing.tensorboard import ScalarFile

# Between progress events of one model: one per second of hundreds of models is gigabytes in a night.
PROGRESS_SECONDS = 5.0
ENDS = ("_loss", "_score")  # of numbers of an epoch that are drawn
GPU_FIGURES = ("use_percent", "memory_used_mib", "memory_mib", "power_watts", "temperature_celsius")


class Observed:
    """Writes events to files in a folder. Thread-safe."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._folder, self._clock = folder, clock
        self._boards: dict[str, ScalarFile] = {}
        self._written_at: dict[str, float] = {}  # each model's last progress event
        self._lock = threading.Lock()

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Write one event. Raises OSError where the disk is full; what it refused is left out."""
        with self._lock:
            now = self._clock()
            if event["event"] == "progress":
                if 0 <= now - self._written_at.get(event["model"], -math.inf) < PROGRESS_SECONDS:
                    return
                self._written_at[event["model"]] = now
            places = [("models", event.get("model")), ("workers", event.get("worker"))]
            files = [f"{kind}/{name}.jsonl" for kind, name in places if name is not None]
            if event["event"] == "gpu":
                files.append("gpus.jsonl")
            time_text = datetime.fromtimestamp(now, timezone.utc).isoformat(timespec="milliseconds")
            line = json.dumps({"time": time_text, **event}) + "\n"  # NaN stays NaN: people search for it
            for name in files:
                path = self._folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                append_whole(path, line.encode())
            board, step, scalars = points_of(event)
            if scalars:
                self._board(board, now).add(scalars, step=step, now=now)

    def _board(self, name: str, now: float) -> ScalarFile:
        if name not in self._boards:
            self._boards[name] = ScalarFile(self._folder / "tensorboard" / name, now=now, suffix=name)
        return self._boards[name]


def points_of(event: Mapping[str, Any]) -> tuple[str, int, dict[str, float]]:
    """Return the TensorBoard run (a model, or gpu0), step and scalars of an event; ("", 0, {}) if it has
    none.
    """
    kind, model = event["event"], str(event.get("model", ""))
    if kind == "progress":
        step = (event["epoch"] - 1) * event["steps"] + event["step"]
        more = {f"step/{name}": event.get(name) for name in ("learning_rate", "mfu", "memory_gib", "usd")}
        speed = {f"step/{event['unit']}_per_second": event["rate"]}
        return model, step, _numbers({"step/train_loss": event["loss"], **speed, **more})
    if kind == "script":
        numbers = {"loss": event["loss"], "steps_per_second": event["rate"], **event["values"]}
        return model, event.get("step", event.get("epoch", 0)), _numbers(numbers)
    if kind == "epoch":
        of = {name: value for name, value in event.items() if name.endswith(ENDS) or name in OF_A_ROLLOUT}
        return model, event["epoch"], _numbers({f"epoch/{name}": value for name, value in of.items()})
    if kind == "model_done":
        scores = event["metrics"].items()
        named = {f"{span}/{name}": value for span, values in scores for name, value in _items(values)}
        return model, 0, _numbers(named)
    if kind == "gpu":
        return f"gpu{event['gpu']}", event["sample"], _numbers({name: event[name] for name in GPU_FIGURES})
    return "", 0, {}


def _items(values: Any) -> list[tuple[str, Any]]:
    return list(values.items()) if isinstance(values, Mapping) else []


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers among values."""
    numbers = {
        name: value
        for name, value in values.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
    return {name: float(value) for name, value in numbers.items() if math.isfinite(value)}
