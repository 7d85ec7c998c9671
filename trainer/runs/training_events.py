"""Events of a training as its node sent them, one JSON object per line: read strictly and bounded, for
learning curves.

Keeps the events that curves are made of: progress, epochs, scores, GPU figures. Malformed lines are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from trainer.base.strict_json import Fields, Unsound, read_object
from trainer.job.model_names import MODEL_SUFFIX, is_model_file
from trainer.runs.reports import MOST_COUNT, MOST_MODELS, MOST_TITLE, UNITS
from trainer.runs.samples import MOST_GPUS, gpu_figures
from trainer.targets.described import OF_A_ROLLOUT

MOST_EVENT_BYTES = 256 * 1024  # a model_done with its metrics takes 8 KB
MOST_SCORES = 200  # numbers of a span
MOST_WORKERS = 1024
CURVE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_./ -]{0,63}")  # characters of the name of a script's number
LOSSES = ("train_loss", "validation_loss")
EPOCH_SCORES = ("train_score", "validation_score")
MOST_NAME = 64  # letters of a metric
SPANS = ("validation", "test")


@dataclass(kw_only=True)
class EventReader:
    """Reads lines of events. Counts skipped lines in `unsound`."""

    unsound: int = 0
    _models: set[str] = field(default_factory=set)

    def read(self, lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
        """Yield each event of a curve, with its `time` (a datetime in UTC)."""
        for line in lines:
            try:
                fields = read_object(line, most_bytes=MOST_EVENT_BYTES, name="the event")
                kind = fields.text("event")
                if kind in _READERS:
                    event = {"event": kind, "time": fields.instant("time"), **_READERS[kind](fields)}
                    self._admit(event)
                    yield event
            except Unsound:
                self.unsound += 1

    def _admit(self, event: dict[str, Any]) -> None:
        """Raise Unsound for more models than a run can have, since each becomes a file."""
        if "model" not in event or event["model"] in self._models:
            return
        if len(self._models) >= MOST_MODELS:
            raise Unsound(f"more than {MOST_MODELS} models")
        self._models.add(event["model"])


def _progress(fields: Fields) -> dict[str, Any]:
    counts = {key: fields.whole(key, least=1, most=MOST_COUNT) for key in ("epoch", "epochs", "steps")}
    worker = fields.whole("worker", 0, most=MOST_WORKERS)
    values = {
        "step": fields.whole("step", most=MOST_COUNT),
        "loss": fields.number("loss"),
        "rate": fields.number("rate", least=0),
    }
    return {
        **_model(fields),
        **counts,
        **values,
        "unit": fields.choice("unit", UNITS, "windows"),
        "worker": worker,
    }


def _epoch(fields: Fields) -> dict[str, Any]:
    return {
        **_model(fields),
        "epoch": fields.whole("epoch", most=MOST_COUNT),
        **({"fit": fields.whole("fit", most=MOST_COUNT)} if "fit" in fields.values else {}),
        **{key: fields.number(key) for key in LOSSES},
        **_epoch_scores(fields),
        **{key: fields.number(key) for key in OF_A_ROLLOUT if key in fields.values},
    }


def _epoch_scores(fields: Fields) -> dict[str, Any]:
    """Return the score of an epoch in training and validation, with its name; {} if it has none."""
    name = fields.text("score", "", most=MOST_NAME)
    if not name.isidentifier():
        return {}
    return {"score": name, **{key: fields.number(key) for key in EPOCH_SCORES}}


def _script(fields: Fields) -> dict[str, Any]:
    """Return the progress of a script, without missing counts, and its named numbers."""
    counts = {
        key: fields.whole(key, most=MOST_COUNT)
        for key in ("step", "steps", "epoch", "epochs")
        if fields.values.get(key) is not None
    }
    named = fields.table("values", most=MOST_SCORES)
    values = {name: named.number(name) for name in named.values if CURVE_NAME.fullmatch(name)}
    numbers = {"loss": fields.number("loss"), "rate": fields.number("rate", least=0), "values": values}
    return {**_model(fields), **counts, **numbers, "unit": fields.choice("unit", UNITS, "steps")}


def _done(fields: Fields) -> dict[str, Any]:
    metrics = fields.table("metrics")
    return {**_model(fields), "metrics": {span: _scores(metrics.table(span)) for span in SPANS}}


def _scores(fields: Fields) -> dict[str, float]:
    """Return the plain numbers of a span, without intervals and baselines."""
    names = [
        name
        for name, value in fields.values.items()
        if isinstance(value, (int, float)) and name.isidentifier()
    ]
    return {name: float(fields.values[name]) for name in names[:MOST_SCORES]}


def _gpu(fields: Fields) -> dict[str, Any]:
    numbers = {"gpu": fields.whole("gpu", most=MOST_GPUS), "sample": fields.whole("sample", most=MOST_COUNT)}
    return {**numbers, **gpu_figures(fields)}


def _model(fields: Fields) -> dict[str, str]:
    """Return the model's name, which becomes the name of a file, and its piece's."""
    name = fields.text("model")
    if not is_model_file(f"{name}{MODEL_SUFFIX}"):
        raise Unsound(f"{fields.name}.model is {name[:120]!r}, not a model's name")
    return {"model": name, "piece": fields.text("piece", name, most=MOST_TITLE)}


_READERS: dict[str, Callable[[Fields], dict[str, Any]]] = {
    "progress": _progress,
    "epoch": _epoch,
    "script": _script,
    "model_done": _done,
    "gpu": _gpu,
}
