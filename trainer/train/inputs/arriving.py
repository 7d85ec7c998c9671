"""Candle files that an agent still brings (`node/arriving.py`): wait for those of a symbol when its bars are
read, so that the first model trains before the last file is there.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from trainer.bars.job_plan import folder_of
from trainer.base.arrivals import read_arrivals
from trainer.base.errors import DataError
from trainer.base.signs import sign
from trainer.data.read.file_names import parse_flat_name
from trainer.data.read.headers import stem_of
from trainer.data.read.parts import Part
from trainer.data.read.side import SideSeries
from trainer.job.job import Job

LOOK_SECONDS = 0.1
_beats: dict[Path, int] = {}  # the last that this process has seen, by document
_sides: dict[tuple[Path, tuple[str, ...]], tuple[SideSeries, ...]] = {}  # by document and columns


@dataclass(frozen=True, kw_only=True)
class ArrivingCandles:
    """The folder of the files, the document about those that are not there, and room for copies of bars."""

    folder: Path
    document: Path
    scratch: Path

    def opened(
        self, symbol: str, files: Collection[str], job: Job, timeframe: str
    ) -> tuple[tuple[Part, ...], tuple[SideSeries, ...]]:
        """Wait for the files of a symbol, which has those of its side series, and return both for
        `read_parts`; a process makes the side series once. Raises DataError.
        """
        self.wait(files)
        chosen = job.with_data(symbols=(symbol,), exclude=(), timeframe=timeframe)
        scratch = Path(tempfile.mkdtemp(dir=self.scratch))
        folder = folder_of(chosen, self.folder, scratch=scratch, files=set(files))
        if (key := (self.document, job.data.further)) not in _sides:
            _sides[key] = folder.sides
        return folder.parts(symbol), _sides[key]

    def wait(self, files: Iterable[str], *, pause: Callable[[float], None] = time.sleep) -> None:
        """Wait until all files are there. Raises DataError as the agent wrote it for one that does not come,
        and where nobody brings it.

        That the agent is at it is a sign of progress: it gives up by itself.
        """
        while not self.is_there(files):
            pause(LOOK_SECONDS)

    def is_there(self, files: Iterable[str]) -> bool:
        """Return whether all files are there. Raises DataError as `wait` does."""
        missing = self._missing(files)
        if not missing:
            return True
        arrivals = read_arrivals(self.document)
        if failed := next((arrivals.failed[name] for name in missing if name in arrivals.failed), None):
            raise DataError(failed.what, why=failed.why, do=failed.do)
        if arrivals.over and self._missing(missing):
            what = f"{missing[0]} did not come"
            raise DataError(what, why="its machine fetches no more files", do="Launch again.")
        if arrivals.beat != _beats.get(self.document):
            _beats[self.document] = arrivals.beat
            sign("files arrive")
        return False

    def _missing(self, files: Iterable[str]) -> list[str]:
        return [name for name in files if not (self.folder / name).exists()]


def by_symbol(files: Iterable[str]) -> bool:
    """Return whether each file's name says of which symbol and timeframe it is: those of one symbol are read
    without the others then.
    """
    named = [parse_flat_name(stem_of(file)) for file in files]
    return all(symbol and timeframe for symbol, timeframe in named)
