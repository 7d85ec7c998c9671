"""The folder that a fetch adds to: which time its files cover, new files, and `metadata.json`, the sum of
them.

A file never changes, and appears whole or not at all; so an interrupted fetch goes on from what is there.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from trainer.base.errors import DataError
from trainer.base.files import whole_file
from trainer.base.strict_json import Unsound
from trainer.base.symbols import file_flaw, flaw, quoted
from trainer.data.fetch.source import BarPage, NoSuchSymbol
from trainer.data.read.bounds import UNREADABLE, first_line
from trainer.data.read.candles import Candles
from trainer.data.read.fetch_record import ACTIONS, FETCHED_KEY, FetchRecord, read_fetch_record, text_of
from trainer.data.read.file_names import parse_flat_name
from trainer.data.read.shapes import FIELDS
from trainer.data.read.writing import write_candles
from trainer.data.timeframes import DAY, SECOND, step_of

METADATA = "metadata.json"
_LEFT = re.compile(r"\.(?:.+\.parquet|metadata\.json)\.(\d+)-\d+\.partial")


@dataclass(frozen=True, kw_only=True)
class FetchedFile:
    """A file of the folder: its record, its number of bars, and whether they are generated."""

    path: Path
    record: FetchRecord
    bars: int


def fetched_files(folder: Path) -> list[FetchedFile]:
    """Return the folder's files that a fetch wrote, by name. Raises DataError for a parquet file that can't
    be read.
    """
    found = []
    for path in sorted(folder.glob("*.parquet")):
        if path.name.startswith(".") or not path.is_file():
            continue
        try:
            footer = pq.read_metadata(path)
            body = (footer.metadata or {}).get(FETCHED_KEY)
            if body is not None:
                record = read_fetch_record(body)
                found.append(FetchedFile(path=path, record=record, bars=footer.num_rows))
        except (*UNREADABLE, Unsound) as error:
            do = "Remove the file: it is fetched again."
            raise DataError(f"{path} can't be read", why=first_line(error), do=do) from error
    return found


def clear_left(folder: Path) -> None:
    """Remove files that a fetch, which was killed, has left half written."""
    for path in folder.glob(".*.partial"):
        match = _LEFT.fullmatch(path.name)
        if match and not _is_running(int(match[1])):
            path.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    with suppress(ProcessLookupError, OverflowError):
        try:
            os.kill(process, 0)
        except PermissionError:
            return True
        return process != os.getpid()
    return False


def name_flaw(symbol: str, timeframe: str) -> str:
    """Return why a symbol's bars can't be stored under its name, '' if they can."""
    if why := flaw(symbol):
        return f"{quoted(symbol)} is not a symbol: {why}"
    name = f"{symbol}_{timeframe}_20200101T0000-20200101T0000"
    if why := file_flaw(f"{name}.parquet"):
        return why
    return "" if parse_flat_name(name) == (symbol, timeframe) else "its name reads as that of another symbol"


def uncovered(files: Iterable[FetchedFile], since: int, until: int) -> list[tuple[int, int]]:
    """Return the parts of [since, until) that no file covers, in order."""
    gaps, at = [], since
    for file in sorted(files, key=lambda file: file.record.covers_from):
        begin, end = file.record.covers_from, file.record.covers_until
        if begin > at:
            gaps.append((at, min(begin, until)))
        at = max(at, end)
        if at >= until:
            break
    gaps.append((at, until))
    return [(begin, end) for begin, end in gaps if begin < end]


def write_bars(folder: Path, page: BarPage, record: FetchRecord, *, synthetic: bool) -> FetchedFile:
    """Write a new file with the bars of a page; it is on the disk when it appears. Raises OSError."""
    first, last = (_moment(int(time), record.timeframe) for time in page.timestamp[[0, -1]])
    path = folder / f"{record.symbol}_{record.timeframe}_{first}-{last}.parquet"
    columns = dict(zip(ACTIONS, page.actions, strict=True)) if page.actions is not None else {}
    candles = Candles(
        symbol=record.symbol,
        timeframe=record.timeframe,
        timestamp=page.timestamp,
        **dict(zip(FIELDS, page.values, strict=True)),
        columns=columns,
    )
    write_candles(path, [candles], synthetic=synthetic, metadata={FETCHED_KEY: record.to_json()}, flush=True)
    return FetchedFile(path=path, record=record, bars=len(page))


def _moment(time: int, timeframe: str) -> str:
    """Return the begin of a bar for a file's name, which no other file of these bars has."""
    text, step = text_of(time).replace("-", "").replace(":", ""), step_of(timeframe)
    return text[: 8 if step % DAY == 0 else 13 if step % (60 * SECOND) == 0 else 15]


def write_metadata(
    folder: Path, files: Sequence[FetchedFile], failures: Mapping[str, str], *, terms: str
) -> None:
    """Write what the folder's files say together, and the symbols of the last fetch that failed."""
    with whole_file(folder / METADATA) as partial:
        document = metadata_of(files, failures, terms=terms)
        partial.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


def metadata_of(files: Sequence[FetchedFile], failures: Mapping[str, str], *, terms: str) -> dict[str, Any]:
    """Return the folder's metadata as JSON values; it depends on the files and failures alone."""
    records = [file.record for file in files]
    by_symbol: dict[tuple[str, str], list[FetchedFile]] = {}
    for file in files:
        by_symbol.setdefault((file.record.symbol, file.record.timeframe), []).append(file)
    lists = {(one.chosen_on, one.chosen_by, one.chosen_symbols) for one in records}
    chosen = [
        {"on": on, "by": by, "symbols": symbols, "note": _bias(by)} for on, by, symbols in sorted(lists)
    ]
    return {
        "format": 1,
        "sources": sorted({record.source for record in records}),
        "libraries": sorted({record.library for record in records}),
        "limits": sorted({record.limit for record in records} - {""}),
        "terms": terms,
        "fetched_at": text_of(max(record.fetched_at for record in records)) if records else "",
        "adjustments": adjustments_of(records),
        "chosen": chosen,
        "failures": dict(sorted(failures.items())),
        "symbols": {" ".join(key): _sum_of(held) for key, held in sorted(by_symbol.items())},
    }


def adjustments_of(records: Iterable[FetchRecord]) -> str:
    """Return how the files' prices are adjusted, as a sentence."""
    if any(record.actions for record in records):
        return (
            "prices, volumes and dividends as traded; columns split (new shares for one old) and dividend"
            " (of a share); Mayfly adjusts prices by both, and volume by splits, when it reads"
        )
    return "none: prices as traded"


def _bias(chosen_by: str) -> str:
    return "" if chosen_by == "names" else bias_of(chosen_by)


def bias_of(chosen_by: str) -> str:
    """Return what a list of symbols of one day leaves out, as a sentence."""
    return f"{chosen_by} names the symbols of that day: it leaves out those that had failed or left before"


def _sum_of(files: Sequence[FetchedFile]) -> dict[str, Any]:
    files = sorted(files, key=lambda file: file.record.covers_from)
    return {
        "asked": files[-1].record.asked,
        "source": files[-1].record.source,
        "files": [file.path.name for file in files],
        "bars": sum(file.bars for file in files),
        "covers": [text_of(files[0].record.covers_from), text_of(files[-1].record.covers_until)],
        "hole_bars": sum(file.record.hole_bars for file in files),
        "holes": [[text_of(first), bars] for file in files for first, bars in file.record.holes],
        "impossible_bars_left_out": sum(file.record.dropped for file in files),
    }


def joined(pages: Sequence[BarPage], covers_until: int) -> BarPage:
    """Return the bars of consecutive pages as one. Raises NoSuchSymbol if none has any."""
    pages = [page for page in pages if len(page)]
    if not pages:
        raise NoSuchSymbol("there are no bars")
    actions = [page.actions for page in pages if page.actions is not None]
    return BarPage(
        covers_until=covers_until,
        timestamp=np.concatenate([page.timestamp for page in pages]),
        values=np.concatenate([page.values for page in pages], axis=1),
        actions=np.concatenate(actions, axis=1) if actions else None,
        dropped=sum(page.dropped for page in pages),
    )
