"""training_results.json: the outcome of a training in one file, built from its events and stored beside its
models.

{format, job, instance_type, device, workers, choice, seconds, usd, retries, models: [{piece, state, history,
rate, ...}]}
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainer.base.files import whole_file
from trainer.targets.described import OF_A_ROLLOUT
from trainer.train.machine_file import MachineFacts
from trainer.train.observing.events import finite

FORMAT = 1
FILE = "training_results.json"
OF_PROGRESS = ("rate", "unit", "learning_rate", "mfu", "memory_gib")  # of a model's last progress
OF_AN_EPOCH = (
    *("epoch", "fit", "train_loss", "validation_loss", "score", "train_score", "validation_score"),
    *OF_A_ROLLOUT,
)
OF_LINKS = ("bus_gb_per_s", "expected_gb_per_s", "devices")
OF_A_TRIAL = ("values", "score", "epochs")
OF_THE_END = ("file", "sha256", "metrics", "reason", "kept")


class TrainingResults:
    """Collects events; call `write` after the last one."""

    def __init__(
        self, job: str, machine: MachineFacts, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._job, self._machine, self._clock, self._began = job, machine, clock, clock()
        self._models: dict[str, dict[str, Any]] = {}
        self._training: dict[str, Any] = {}
        self._retries = 0

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Add one event."""
        kind = event["event"]
        if kind == "started":
            self._training = {
                "device": event["device"],
                "workers": event["workers"],
                "choice": event["choice"],
            }
            finished = event.get("finished", ())  # by an earlier attempt: nothing of them is here
            self._models = {
                model["model"]: {
                    **model,
                    "state": "finished" if model["piece"] in finished else "waiting",
                    "history": [],
                }
                for model in event["models"]
            }
        elif kind == "retry":
            self._retries += 1
        model = self._models.get(str(event.get("model", "")))
        if model is None:
            return
        if kind == "progress":
            model.update({key: event[key] for key in OF_PROGRESS if event.get(key) is not None})
        elif kind == "epoch":
            # A resumed model repeats epochs.
            known = [one for one in model["history"] if one["epoch"] < event["epoch"]]
            losses = {key: event[key] for key in OF_AN_EPOCH if key in event}
            model["history"] = [*known, losses]
        elif kind == "links":
            model["links"] = {key: event[key] for key in OF_LINKS}
        elif kind == "trial_done":
            model.update({"state": event["end"], **{key: event[key] for key in OF_A_TRIAL}})
        elif kind in ("model_done", "model_failed", "model_stopped"):
            end = {key: event[key] for key in OF_THE_END if key in event}
            model.update({"state": kind.removeprefix("model_"), **end})

    def write(self, out: Path, *, usd: float | None) -> None:
        """Write the file; `usd` is the cost of the machine until now."""
        value = {
            "format": FORMAT,
            "job": self._job,
            "instance_type": self._machine.instance_type,
            **self._training,
            "seconds": round(self._clock() - self._began, 3),
            "usd": None if usd is None else round(usd, 4),
            "retries": self._retries,
            "models": list(self._models.values()),
        }
        with whole_file(out / FILE) as partial:
            partial.write_text(json.dumps(finite(value), indent=1, allow_nan=False) + "\n", encoding="utf-8")
