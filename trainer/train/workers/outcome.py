"""The result of a training: the last event of each of its models."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True)
class Outcome:
    """Result of a training, by model name."""

    done: dict[str, dict[str, Any]] = field(default_factory=dict)  # its model_done event
    failed: dict[str, dict[str, Any]] = field(default_factory=dict)  # its model_failed event
    retries: int = 0
