"""What every worker, and every rank, of a training gets once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.job import Job
from trainer.train.machine_file import MachineFacts
from trainer.train.source import JobData


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """Settings that every worker gets once."""

    job: Job
    data: JobData
    out: Path
    machine: MachineFacts = field(default_factory=MachineFacts)  # what it should be
    choice: Mapping[str, Any] = field(default_factory=dict)  # settings with their sources, for cards
