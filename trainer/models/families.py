"""Which model families there are, and how each is built from its architecture: the dictionary that a card carries."""

from __future__ import annotations

from typing import Any

from torch import nn

from trainer.config import Job
from trainer.models.lstm import LstmClassifier
from trainer.models.tcn import Tcn


def architecture_of(job: Job, *, num_features: int) -> dict[str, Any]:
    """Return what `build` needs to make the job's model again, as JSON values."""
    if job.model == "tcn":
        return {"features": num_features, "width": job.width, "dilations": list(job.dilations), "dropout": job.dropout}
    return {"features": num_features, "hidden": job.hidden, "layers": job.layers, "dropout": job.dropout}


def build(family: str, architecture: dict[str, Any], *, recompute: bool = False) -> nn.Module:
    """Build an untrained model. Its weights come from torch's global generator. Raises ValueError for an unknown family.

    `recompute` is activation checkpointing: how the model trains, and no part of what it is.
    """
    if family == "lstm":
        return LstmClassifier(**architecture, recompute=recompute)
    if family == "tcn":
        return Tcn(**architecture, recompute=recompute)
    raise ValueError(f"unknown model family {family!r}")
