"""Requests that made settings of buckets and parameters, in a folder: a later session replays them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trainer.base.files import whole_file
from trainer.rehearsal.home import reading


class StoredSettings:
    """The stored requests of one account."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, service: str, operation: str, about: str, params: dict[str, Any]) -> None:
        """Store a request about a bucket or a parameter, in place of an earlier one."""
        rank = 0 if operation == "CreateBucket" else 1
        name = hashlib.sha256(f"{operation} {about}".encode()).hexdigest()[:24]
        saved = {"service": service, "operation": operation, "about": about, "params": params}
        with whole_file(self._folder / f"{rank}-{name}.json") as new:
            new.write_text(json.dumps(saved), encoding="utf-8")

    def drop(self, about: str) -> None:
        """Delete the stored requests about one bucket or parameter."""
        for path in self._folder.glob("*.json"):
            if json.loads(path.read_text(encoding="utf-8"))["about"] == about:
                path.unlink()

    def read(self) -> Iterable[tuple[Path, str, str, dict[str, Any]]]:
        """Yield the stored requests, those that create a bucket first: (file, service, operation,
        parameters). Raises ConfigError for a file that can't be read.
        """
        for path in sorted(self._folder.glob("*.json")):
            with reading(path):
                saved = json.loads(path.read_text(encoding="utf-8"))
                service, operation, params = saved["service"], saved["operation"], dict(saved["params"])
            yield path, service, operation, params
