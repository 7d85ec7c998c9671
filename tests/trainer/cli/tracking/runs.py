"""A closed run with curves, as a tracker gets it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.records import RUN, at
from trainer.cli.tracking.reading import TrackedRun, tracked_run

RECEIPT = Path(__file__).parents[3] / "golden" / "receipt-done-json.txt"


def receipt(models: int = 2, **changed: Any) -> dict[str, Any]:
    document = json.loads(RECEIPT.read_text().replace("RUN-crypto", RUN))
    (model,) = document["models"]
    keys = [f"models/experiments/r/1/lstm_S{number}_1m.safetensors" for number in range(models)]
    return {**document, "models": [{**model, "key": key} for key in keys], **changed}


def epochs(models: int = 2, count: int = 3) -> Iterator[dict[str, Any]]:
    for number in range(models):
        for epoch in range(1, count + 1):
            losses = {"train_loss": 1 / epoch, "validation_loss": number + 1 / epoch}
            about = {"event": "epoch", "model": f"lstm_S{number}_1m", "epoch": epoch, "time": at(60 * epoch)}
            yield {**about, **losses}


def tracked(models: int = 2, count: int = 3, **changed: Any) -> TrackedRun:
    return tracked_run(receipt(models, **changed), None, epochs(models, count), bucket="a-bucket")
