"""Check the path of candles by file names only, before a command loads or starts anything else. Standard
library only.
"""

from __future__ import annotations

import os
from pathlib import Path

from trainer.base.errors import DataError
from trainer.data.table import SUFFIXES

HIDDEN = "._"  # files and folders whose name starts with one of these are not read
_MOST_NAMES = 100_000  # names to check; the reader checks larger folders
_ADVICE = {  # remedies for other formats
    ".xlsx": "Save it as CSV.",
    ".xls": "Save it as CSV.",
    ".zip": "Unzip it.",
    ".json": "Write it as CSV: pandas.read_json(FILE).to_csv('SYMBOL_TIMEFRAME.csv', index=False).",
}

# For a list of lists, as ccxt's fetch_ohlcv and exchanges return it: its columns have no names.
_ADVICE_ON_LISTS = (
    "Write it as CSV: pandas.read_json(FILE).set_axis(['time', 'open', 'high', 'low', 'close', 'volume'],"
    " axis=1).to_csv('SYMBOL_TIMEFRAME.csv', index=False)."
)
_HEAD_BYTES = 256


def check_path(path: str) -> None:
    """Raise DataError if the path does not exist, or if its names can't be those of candle files."""
    scheme, mark, rest = path.partition(":/")
    if mark and scheme in ("s3", "gs", "http", "https"):
        copied = f"aws s3 sync s3://{rest.lstrip('/')} candles/, then name candles/"
        do = f"Copy it first: {copied}." if scheme == "s3" else "Download it first."
        raise DataError(f"{scheme}://{rest.lstrip('/')} is not a file or folder on this machine", do=do)
    place = Path(path)
    try:
        path.encode()
        there = place.exists()
    except UnicodeEncodeError as error:
        raise DataError(f"{path} can't be read", why="its path is not UTF-8", do="Rename it.") from error
    except OSError as error:
        raise DataError(
            f"cannot read {path}", why=str(error.strerror), do="Check the path and its permissions."
        ) from error
    if not there:
        raise DataError(f"data folder {path} does not exist", do="Give a folder or a file of candles.")
    if not place.is_file() and not place.is_dir():
        raise DataError(
            f"{path} is neither a plain file nor a folder", do="Give a folder or a file of candles."
        )
    if place.is_file() and not place.name.lower().endswith(SUFFIXES):
        raise DataError(
            f"{path} is not a candle file",
            why=f"it does not end in {', '.join(SUFFIXES)}",
            do=_advice(place) or "Convert it to parquet or CSV.",
        )
    if place.is_dir() and not _may_hold_candles(place):
        raise no_candles(place)


def no_candles(folder: Path) -> DataError:
    """Return the error for a folder without a candle file."""
    others = sorted(
        (item.suffix.lower(), _advice(item)) for item in folder.iterdir() if item.is_file() and _advice(item)
    )
    return DataError(
        f"data folder {folder} holds no candles",
        why=f"no file ends in {', '.join(SUFFIXES)}",
        do="It has {} files: {}".format(*others[0]) if others else "Give a folder that does.",
    )


def _advice(path: Path) -> str:
    """Return the remedy for a file of another format; '' for any other."""
    suffix = path.suffix.lower()
    if suffix == ".json" and _is_list_of_lists(path):
        return _ADVICE_ON_LISTS
    return _ADVICE.get(suffix, "")


def _is_list_of_lists(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return b"".join(file.read(_HEAD_BYTES).split()).startswith(b"[[")
    except OSError:
        return False


def _may_hold_candles(folder: Path) -> bool:
    """Return whether a file in or below a folder has a candle file's suffix; True if not all of it can be
    checked.
    """
    unreadable: list[OSError] = []
    looked = 0
    for _, folders, names in os.walk(folder, onerror=unreadable.append):
        folders[:] = [name for name in folders if name[0] not in HIDDEN]
        looked += len(names)
        if looked > _MOST_NAMES or any(
            name[0] not in HIDDEN and name.lower().endswith(SUFFIXES) for name in names
        ):
            return True
    return bool(unreadable)
