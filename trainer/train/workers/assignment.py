"""Messages of the supervisor to workers and ranks, and the result of a training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.job.job import Job
from trainer.job.pieces.piece import Piece
from trainer.train.inputs.source import JobData
from trainer.train.machine_file import MachineFacts


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """Settings of all workers of a training."""

    job: Job
    data: JobData
    out: Path
    checkpoints: Path
    machine: MachineFacts = field(default_factory=MachineFacts)  # expected hardware
    choice: Mapping[str, Any] = field(default_factory=dict)  # settings with their sources, for cards
    notice: Path | None = None  # the file of `notice.Notice`
    machine_file: Path | None = None  # of `machine_file.CheckpointInterval`


@dataclass(frozen=True, kw_only=True)
class ReadAhead:
    """A message to a worker: the pieces that it will probably train next and may read ahead. It drops what
    else it has read ahead.
    """

    pieces: tuple[Piece, ...]


@dataclass(frozen=True, kw_only=True)
class Drop:
    """A message to a worker: a model that it trains ends at its next step, as if it had stopped early."""

    model: str


@dataclass(kw_only=True)
class Outcome:
    """Result of a training, by model name."""

    done: dict[str, dict[str, Any]] = field(default_factory=dict)  # its model_done event
    failed: dict[str, dict[str, Any]] = field(default_factory=dict)  # its model_failed event
    trials: dict[str, dict[str, Any]] = field(default_factory=dict)  # its trial_done event
    retries: int = 0
    stopped: dict[str, dict[str, Any]] = field(default_factory=dict)  # by a notice: its model_stopped event
    elsewhere: set[str] = field(default_factory=set)  # models that other nodes have or had in hand

    @property
    def over(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Return the last events of the pieces that are over, by kind of event."""
        return {"model_done": self.done, "model_failed": self.failed, "trial_done": self.trials}
