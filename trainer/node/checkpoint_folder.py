"""The files in a command's CHECKPOINTS, as units that have to fit together: one checkpoint of Mayfly's
trainer, which counts once its manifest.json is there; the folder of one piece; else everything.

The folder is untrusted: no link is followed, and number, names and bytes are bounded.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection
from pathlib import Path

from trainer.base.errors import TrainerError, TrainingFailed
from trainer.node.inside import State, entries_inside, open_inside, sha256_of, state_of
from trainer.node.outputs import flaw
from trainer.runs.reports import MOST_FILES
from trainer.runs.snapshots import MOST_DATA_BYTES

log = logging.getLogger("trainer.node")
MOST_LOOKED_AT = 100_000
MOST_SAID = 20  # files of which the log says that they are not sent
Unit = dict[str, State]  # files that are consistent together, by path
Files = dict[str, tuple[str, int]]  # path -> (sha256, size)


class CheckpointFolder:
    """The units of a folder, whose files are read once each.

    `whole_with`: the file that completes a folder with files of one checkpoint; '': each of `folders` (of the
    pieces), else everything, is one. `redacts`: whether a secret is in a path.
    """

    def __init__(
        self, folder: Path, *, whole_with: str, folders: Collection[str], redacts: Callable[[str], bool]
    ) -> None:
        self._folder, self._whole_with, self._folders = folder, whole_with, folders
        self._redacts = redacts
        self._read: dict[str, tuple[State, str, int]] = {}  # path -> its last state that was hashed
        self._left_out: set[str] = set()  # files that are never sent, as the log says
        self.too_many: TrainerError | None = None  # what one snapshot can't hold, at the last look

    def scan(self) -> dict[str, Unit]:
        """Return the states of the files of each unit."""
        found: Unit = {}
        there = self._folder.is_dir()  # a trainer that made all of its models leaves none
        for number, (path, about) in enumerate(entries_inside(self._folder, hidden=True) if there else ()):
            if number >= MOST_LOOKED_AT:
                log.warning("CHECKPOINTS has more than %d files and folders", MOST_LOOKED_AT)
                break
            why = flaw(path, about, 0, hidden=True)
            if not why and not self._redacts(path):
                found[path] = state_of(about)
            elif why and path not in self._left_out and len(self._left_out) < MOST_SAID:
                self._left_out.add(path)
                log.warning("%s of CHECKPOINTS is not sent: %s", path, why)
        self._read = {path: known for path, known in self._read.items() if path in found}
        units: dict[str, Unit] = {}
        for path, state in found.items():
            if (name := self._unit_of(path, found)) is not None:
                units.setdefault(name, {})[path] = state
        return self._bounded(units)

    def hashed(self, unit: Unit) -> Files | None:
        """Return the files of a unit with their hashes; None if one changed or vanished meanwhile."""
        files: Files = {}
        for path, state in unit.items():
            known = self._read.get(path)
            if known is None or known[0] != state:
                try:
                    with open_inside(self._folder, path) as body:
                        sha256, size = sha256_of(body)
                        after = state_of(os.fstat(body.fileno()))
                except OSError:
                    return None
                if after != state:
                    return None
                known = self._read[path] = (state, sha256, size)
            files[path] = known[1:]
        return files

    def _unit_of(self, path: str, found: Collection[str]) -> str | None:
        """Return the name of the unit that a file belongs to; None if it is not complete yet."""
        above, _, _ = path.rpartition("/")
        if self._whole_with:
            return above if f"{above}/{self._whole_with}" in found else None
        first = path.partition("/")[0]
        return first if first in self._folders else ""

    def _bounded(self, units: dict[str, Unit]) -> dict[str, Unit]:
        """Return the units that one snapshot holds."""
        files = total = 0
        self.too_many = None
        kept: dict[str, Unit] = {}
        for name, unit in units.items():
            size = sum(state[1] for state in unit.values())
            if files + len(unit) > MOST_FILES or total + size > MOST_DATA_BYTES:
                what = "a part of MAYFLY_CHECKPOINTS is not sent"
                why = f"{len(unit):,} files of {size:,} bytes{f' in {name}' if name else ''} are too many"
                log.warning("%s: %s", what, why)
                self.too_many = TrainingFailed(what, why=why, do="Keep fewer checkpoints there.")
                continue
            kept[name], files, total = unit, files + len(unit), total + size
        return kept
