"""Find the candle files of a data folder, each with its flat name.

Subfolders are read only if the folder itself has no candle files; partitions (`symbol=BTC/`) always.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from trainer.base.errors import DataError
from trainer.base.symbols import MOST_CANDLE_FILES, file_flaw
from trainer.data.read.file_names import flat_name
from trainer.data.read.paths import HIDDEN, check_path, no_candles
from trainer.data.read.sniffing import is_table
from trainer.data.side_names import side_name
from trainer.data.table import SUFFIXES

TEXT_SUFFIX = ".txt"  # a candle file if its first lines look like one, or if the user names it


@dataclass(frozen=True, kw_only=True)
class CandlePath:
    """A candle file: its path, and its flat name in plans and data sets."""

    path: Path
    file: str


@dataclass(frozen=True, kw_only=True)
class FolderFiles:
    """The candle files of a folder in the order of their paths, and the names of subfolders with candles that
    are not read.
    """

    files: tuple[CandlePath, ...]
    not_read: tuple[str, ...] = ()


def candle_files(path: Path) -> FolderFiles:
    """Return the candle files of a folder, or the file `path`. Raises DataError if there is none, or for a
    bad name.
    """
    check_path(str(path))
    if path.is_file():
        return FolderFiles(files=(_named(path, (path.name,)),))
    try:
        return _in_folder(path)
    except OSError as error:
        raise DataError(
            f"cannot read {error.filename or path}", why=str(error.strerror), do="Check its permissions."
        ) from error


def _in_folder(path: Path) -> FolderFiles:
    files = [_named(item, (item.name,)) for item in _candles_in(path)]
    shown = (item for item in path.iterdir() if item.name[0] not in HIDDEN)
    subfolders = sorted(item for item in shown if item.is_dir() and not item.is_symlink())
    read = [folder for folder in subfolders if not files or "=" in folder.name]
    for folder in read:
        if len(files) <= MOST_CANDLE_FILES:
            files += islice(_below(path, folder), MOST_CANDLE_FILES + 1)
    if len(files) > MOST_CANDLE_FILES:
        what = f"{path} holds more than {MOST_CANDLE_FILES:,} candle files"
        do = "Name one of its subfolders." if read else "Join the files of each symbol, or name fewer."
        raise DataError(what, do=do)
    if not files:
        raise no_candles(path)
    holding = tuple(
        folder.name for folder in subfolders if folder not in read and next(iter(_below(path, folder)), None)
    )
    return FolderFiles(files=tuple(files), not_read=holding)


def _candles_in(folder: Path) -> Iterator[Path]:
    for item in sorted(folder.iterdir()):
        name = item.name.lower()
        if name[0] in HIDDEN or not name.endswith(SUFFIXES) or side_name(name) or not item.is_file():
            continue
        if not name.endswith(TEXT_SUFFIX) or is_table(item):
            yield item


def _below(root: Path, folder: Path) -> Iterator[CandlePath]:
    def fail(error: OSError) -> None:
        raise error  # an unreadable folder must not count as empty

    for place, folders, _ in os.walk(folder, onerror=fail):
        folders[:] = sorted(name for name in folders if name[0] not in HIDDEN)
        parts = Path(place).relative_to(root).parts
        for item in _candles_in(Path(place)):
            yield _named(item, (*parts, item.name))


def _named(path: Path, parts: tuple[str, ...]) -> CandlePath:
    """Return a file with its flat name. Raises DataError for a name that an object can't have."""
    name = flat_name(parts)
    check_name(name)
    return CandlePath(path=path, file=name)


def check_name(name: str) -> None:
    """Raise DataError for the name of a file of candles, or beside them, that an object can't have."""
    if why := file_flaw(name):
        raise DataError(
            f"the candle file {ascii(name)} has a name that can't be used", why=why, do="Rename it."
        )
