"""The product's sender of checkpoints (`node.snapshots`), on files in memory."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tests.chaos.run import RUN
from trainer.node.checkpoint_folder import Files, Unit
from trainer.node.snapshots import Snapshots

if TYPE_CHECKING:
    from tests.chaos.nodes import Machine


class InMemory:
    """The folder of a sender's files: one unit."""

    too_many = None

    def __init__(self, files: dict[str, bytes]) -> None:
        self._files = files

    def scan(self) -> dict[str, Unit]:
        return {"": {path: (0, len(body), 0, 0) for path, body in self._files.items()}} if self._files else {}

    def hashed(self, unit: Unit) -> Files:
        return {path: (hashlib.sha256(self._files[path]).hexdigest(), unit[path][1]) for path in unit}


class Sender(Snapshots):
    """The product's sender of checkpoints, on files in memory."""

    def __init__(self, machine: Machine) -> None:
        identity = SimpleNamespace(keys=machine.keys, run_id=RUN, attempt=machine.attempt, spot_zone="")
        node: Any = SimpleNamespace(
            status=SimpleNamespace(identity=identity, phase="train", models=()), uplink=machine,
            fail=machine.give_up, work=Path("/"),
        )  # fmt: skip
        super().__init__(node, Path("/"), clock=machine.seconds)
        self.files: dict[str, bytes] = {}
        self._folder: Any = self.files
        self._there: Any = InMemory(self.files)


def files_in_memory(folder: Mapping[str, bytes], path: str) -> io.BytesIO:
    """Open a file of a sender's folder."""
    return io.BytesIO(folder[path])
