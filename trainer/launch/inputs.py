"""Choose the objects of a data set, raw/<set>/, that a run reads, by their index entries. Downloads nothing.

`launch/uploads` uploads them with their hash and writes raw-index/<sha256>.json. For a file that was uploaded
by other means, raw-index/<key>/<version>.json has the hash, once `sources/taken` has checked it. The manifest
pins them by version and hash.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from trainer.aws.objects import Objects, Stored
from trainer.base.errors import DataError, nearest
from trainer.base.strict_json import MOST_TEXT, Fields, Unsound, read_object
from trainer.base.symbols import MOST_CANDLE_FILES, file_flaw, flaw
from trainer.base.text import counted, some_of
from trainer.data.columns import told_parts
from trainer.data.side_names import (
    SideColumn,
    reads_index,
    refuse_missing,
    side_name,
    split_sides,
    symbols_beside,
)
from trainer.data.timeframes import SECOND, can_resample, canonical, step_of
from trainer.job.script import MOST_DATA_FILES

RAW, INDEX = "raw/", "raw-index/"
MOST_INDEX_BYTES = 16 * 1024 * 1024  # a symbol takes 150 bytes
MOST_SYMBOLS = 20_000  # of a file
MOST_TOLD = 20  # entries of data.columns
MOST_NAMED = 12  # symbols, in an error
PARALLEL = 16


@dataclass(frozen=True, kw_only=True)
class Input:
    """An object of raw/ as a run pins it, with its index entry ({} if there is none)."""

    key: str
    version_id: str
    sha256: str
    bytes: int
    summary: Mapping[str, Any] = field(default_factory=dict)

    def pinned(self) -> dict[str, Any]:
        """Return the entry of manifest.json's inputs."""
        return {"key": self.key, "version_id": self.version_id, "sha256": self.sha256, "bytes": self.bytes}


@dataclass(frozen=True, kw_only=True)
class ChosenCandles:
    """The data of a run: symbols with their bars, one timeframe. `inputs` is empty while the files are at the
    desk.
    """

    timeframe: str
    bars: Mapping[str, int]  # symbol -> bars
    synthetic: bool
    inputs: tuple[Input, ...] = ()
    refused: tuple[str, ...] = ()  # the reasons for leaving symbols out
    notes: tuple[str, ...] = ()  # notes of the data check
    bars_plan: bytes = b""  # plan.json, if a desk has read the bars; else the node makes it
    desk_bytes: int = 0  # of the files while they are at the desk
    index: tuple[str, ...] = ()  # its symbols, if a side series reads it

    @property
    def input_bytes(self) -> int:
        """Return the bytes that a node will fetch."""
        return sum(item.bytes for item in self.inputs) or self.desk_bytes

    def to_dict(self) -> dict[str, Any]:
        """Return the data section of a plan."""
        return {
            "timeframe": self.timeframe,
            "bars": dict(self.bars),
            "synthetic": self.synthetic,
            "left_out": list(self.refused),
            "notes": list(self.notes),
            "files": [item.key for item in self.inputs],
        }


def list_inputs(
    objects: Objects, data_set: str, columns: Iterable[str] = (), *, only: Container[str] | None = None
) -> tuple[Input, ...]:
    """Return every object directly under raw/<data_set>/ with a valid file name, or those of `only` these
    names, with hash and index entry, by key. `columns`: those of a job, by which its entries were made.
    """
    read = partial(described, objects=objects, told=told_parts(columns))
    prefix = f"{RAW}{data_set}/"
    names = [item.key.removeprefix(prefix) for item in objects.list(prefix=prefix)]
    keys = [f"{prefix}{name}" for name in names if not file_flaw(name) and (only is None or name in only)]
    with ThreadPoolExecutor(max_workers=PARALLEL) as pool:
        return tuple(item for item in pool.map(read, keys) if item is not None)


def choose(
    inputs: Sequence[Input],
    *,
    symbols: Sequence[str],
    timeframe: str,
    too_few: Callable[[str, int, str], DataError | None],
    columns: Sequence[str] = (),
    index: Sequence[str] = (),
    exclude: Collection[str] = (),
    data_set: str = "main",
) -> ChosenCandles:
    """Choose the inputs of a run. A symbol is left out if `too_few(symbol, bars, timeframe)` returns an
    error. `columns` are those beside the bars, `index` the symbols of the index (none: all of the data set).

    Raises DataError if no symbol is left, and for an ambiguous choice, an unknown symbol, timeframe, column
    or side series.
    """
    checked, raw = [item for item in inputs if item.sha256 and item.summary], f"{RAW}{data_set}/"
    known = [item for item in checked if not side_name(_name(item))]
    columns, sides = split_sides(columns)
    if not known:
        names = ", ".join(item.key for item in inputs[:3])
        why = "its files were never checked"
        raise DataError(
            f"{raw} holds nothing usable ({names})", why=why, do="Name the same files with --data PATH, once."
        )
    frames = sorted({str(item.summary["timeframe"]) for item in known})
    if not timeframe and len(frames) > 1:
        raise DataError(
            f"{raw} holds several timeframes: {', '.join(frames)}",
            do=f"Choose one: --set data.timeframe={frames[0]}.",
        )
    timeframe = canonical(timeframe) if timeframe else frames[0]
    fitting = [frame for frame in frames if frame == timeframe or can_resample(frame, timeframe)]
    if not fitting:
        raise DataError(
            f"{raw} holds no {timeframe} bars",
            why=f"it has {', '.join(frames)}",
            do=f"Choose --set data.timeframe={frames[0]}.",
        )
    # as the node chooses: this timeframe, else the longest that it can be made from
    base = max(fitting, key=step_of)
    spans = _spans([item for item in known if item.summary["timeframe"] == base])
    excluded = not symbols
    for symbol in symbols or exclude:
        if symbol not in spans:
            do = "Leave it out of data.exclude." if excluded else "Choose with --symbols."
            what = f"unknown symbol '{symbol}'{' in data.exclude' if excluded else ''}"
            why = f"{raw} has {some_of(list(spans), MOST_NAMED)} at {timeframe}"
            raise DataError(what, why=why, do=nearest(symbol, spans) or do)
    there = {symbol: spans[symbol] for symbol in (symbols or sorted(spans)) if symbol not in exclude}
    errors = {
        symbol: too_few(symbol, _most_bars(held, base, timeframe), timeframe)
        for symbol, held in there.items()
    }
    short = [error for error in errors.values() if error]
    ratio = step_of(timeframe) // step_of(base) if base != timeframe else 1
    bars = {
        symbol: max(1, sum(held.values()) // ratio) for symbol, held in there.items() if not errors[symbol]
    }
    if not bars:
        raise (
            short[0]
            if short
            else DataError(
                "no symbol is left to train",
                why=f"data.exclude names all that {raw} has",
                do="Leave one out of data.exclude.",
            )
        )
    of_base = [item for item in known if item.summary["timeframe"] == base]
    for item in of_base:
        if _symbols(item) & bars.keys():
            _refuse_missing_column(item, columns)
    members = tuple(index or sorted(spans.keys() - {*exclude})) if reads_index(sides) else ()
    read = symbols_beside(sides, members)
    refuse_missing(read, spans, f"{raw} at {timeframe}")
    used = [item for item in of_base if _symbols(item) & (bars.keys() | read.keys())]
    if len(used) > MOST_CANDLE_FILES:
        raise DataError(
            f"{len(used):,} files of {raw} hold the bars",
            why=f"a run reads {MOST_CANDLE_FILES:,}",
            do="Fetch or write them into a new folder, a file a symbol, and push it to a new set.",
        )
    beside = _side_inputs(checked, [side for side in sides if side.file], raw)
    return ChosenCandles(
        timeframe=timeframe,
        bars=bars,
        synthetic=any(item.summary.get("synthetic", False) for item in used),
        inputs=(*used, *beside),
        refused=tuple(map(str, short)),
        notes=(f"bars of {timeframe} are made from bars of {base}",) if base != timeframe else (),
        index=members,
    )


def _spans(inputs: Sequence[Input]) -> dict[str, dict[tuple[str, str], int]]:
    """Return symbol -> {(first, last): bars}; the same bars under two names count once."""
    spans: dict[str, dict[tuple[str, str], int]] = {}
    for item in inputs:
        for entry in item.summary["holds"]:
            spans.setdefault(str(entry["symbol"]), {})[str(entry["first"]), str(entry["last"])] = int(
                entry["bars"]
            )
    return spans


def _most_bars(spans: Mapping[tuple[str, str], int], base: str, timeframe: str) -> int:
    """Return an upper bound on the bars of the timeframe: a market's day may have fewer minutes than the
    clock's.
    """
    bars = sum(spans.values())
    if base == timeframe:
        return bars
    try:
        times = [
            datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp() for span in spans for time in span
        ]
    except ValueError:  # an index entry that is not ours
        return bars
    return min(bars, int((max(times) - min(times)) * SECOND) // step_of(timeframe) + 1)


def overlapping(candles: ChosenCandles) -> dict[str, tuple[Input, ...]]:
    """Return by symbol the inputs whose bars overlap in time with another input's."""
    spans: dict[str, list[tuple[str, str, Input]]] = {}
    for item in candles.inputs:
        for entry in item.summary["holds"]:
            if entry["symbol"] in candles.bars:
                spans.setdefault(entry["symbol"], []).append((entry["first"], entry["last"], item))
    meeting = {symbol: _meeting(parts) for symbol, parts in spans.items()}
    return {symbol: items for symbol, items in meeting.items() if items}


def _meeting(parts: Sequence[tuple[str, str, Input]]) -> tuple[Input, ...]:
    """Return the inputs of a symbol, given with first and last bar, that overlap with one of other bytes."""
    ordered, found = sorted(parts, key=lambda part: part[0]), set[str]()
    for number, (_, last, item) in enumerate(ordered):
        for later in range(number + 1, len(ordered)):
            first, _, other = ordered[later]
            if first > last:
                break
            if other.sha256 != item.sha256:
                found |= {item.key, other.key}
    return tuple(item for _, _, item in parts if item.key in found)


def _refuse_missing_column(item: Input, columns: Sequence[str]) -> None:
    """Raise DataError for a column that a file lacks."""
    there = item.summary["further"]
    for name in columns:
        if name not in there:
            do = (
                nearest(name, there)
                or "Leave it out of data.columns, or bring files that have it with --data PATH."
            )
            why = f"its columns besides those of a bar: {', '.join(there) or 'none'}"
            raise DataError(f"{item.key} has no column {name}", why=why, do=do)


def _side_inputs(inputs: Sequence[Input], sides: Sequence[SideColumn], raw: str) -> tuple[Input, ...]:
    """Return the files of side series. Raises DataError for a series without one, or without its column."""
    chosen = dict[str, Input]()
    for side in sides:
        there = [item for item in inputs if side.is_in(_name(item))]
        if not there:
            names = sorted({name for item in inputs if (name := side_name(_name(item)))})
            why = f"{raw} has {', '.join(names) or 'none'}"
            do = nearest(side.file, names) or f"Bring {side.file}.side.csv with --data PATH."
            raise DataError(f"there is no side series {side.file}", why=why, do=do)
        for item in there if side.column else ():
            _refuse_missing_column(item, [side.column])
        chosen |= {item.key: item for item in there}
    return tuple(chosen.values())


def _name(item: Input) -> str:
    return item.key.rpartition("/")[2]


def _symbols(item: Input) -> set[str]:
    return {str(entry["symbol"]) for entry in item.summary["holds"]}


def index_key(sha256: str, told: Iterable[str]) -> str:
    """Return the key of the data check's report on a file, read by what a job tells about the parts of a bar
    (`told_parts`): another job that tells others has a report of its own.
    """
    told = list(told)
    by = f"/{hashlib.sha256(json.dumps(told).encode()).hexdigest()}" if told else ""
    return f"{INDEX}{sha256}{by}.json"


def describes(summary: Mapping[str, Any], file: str) -> bool:
    """Return whether an index entry describes a file of this name: bars, or a side series."""
    return bool(summary) and (bool(summary["holds"]) or bool(side_name(file)))


def described(
    key: str, objects: Objects, version_id: str = "", *, told: Iterable[str] | None = ()
) -> Input | None:
    """Return an object, or one version of it, with its hash and its index entry, by what is told (None: by
    any job); None if there is none.
    """
    head = objects.head(key=key, version_id=version_id)
    if head is None:  # deleted since it was listed
        return None
    sha256 = hash_of(head, objects)
    index = objects.get(key=index_key(sha256, told or ())) if sha256 else None
    if sha256 and told is None and index is None:
        others = objects.list(prefix=f"{INDEX}{sha256}/")
        index = next((objects.get(key=other.key) for other in others), None)
    summary = read_summary(index.body) if index else {}
    return Input(key=key, version_id=head.version_id, sha256=sha256, bytes=head.size, summary=summary)


def write_index(item: Input, objects: Objects) -> None:
    """Store the index entry of an object that was uploaded by other means, by its hash, and its hash by key
    and version.
    """
    key = index_key(item.sha256, item.summary.get("told", ()))
    objects.put(key=key, body=json.dumps(item.summary, indent=1).encode())
    objects.put(key=hash_key(item.key, item.version_id), body=json.dumps({"sha256": item.sha256}).encode())


def read_summary(body: bytes) -> dict[str, Any]:
    """Return an index entry, {} for a malformed one, whose file counts as unchecked."""
    try:
        fields = read_object(body, most_bytes=MOST_INDEX_BYTES, name="the index entry")
        holds = [_held(item) for item in fields.rows("holds", most=MOST_SYMBOLS)]
        told = [one.text(most=MOST_TEXT) for one in fields.value("told", []).items(most=MOST_TOLD)]
        return {
            **fields.values,
            "timeframe": fields.text("timeframe"),
            "synthetic": bool(fields.truth("synthetic")),
            "further": [name.text(most=MOST_TEXT) for name in fields.value("further").items()],
            **({"told": told} if told else {}),
            "holds": holds,
        }
    except Unsound:
        return {}


def _held(fields: Fields) -> dict[str, Any]:
    symbol = fields.text("symbol")
    if why := flaw(symbol):
        raise Unsound(f"{fields.name}.symbol can't be used: {why}")
    return {
        "symbol": symbol,
        "bars": fields.whole("bars"),
        "first": fields.text("first"),
        "last": fields.text("last"),
    }


def hash_of(item: Stored, objects: Objects) -> str:
    """Return an object's hash: as S3's answer has it, else as on record, else ''."""
    if item.sha256 or not item.version_id:
        return item.sha256
    stored = objects.get(key=hash_key(item.key, item.version_id))
    try:
        fields = read_object(stored.body, most_bytes=4096, name="the hash") if stored else None
        return fields.value("sha256").sha256() if fields else ""
    except Unsound:
        return ""


def hash_key(key: str, version_id: str) -> str:
    """Return the key that stores the hash of an object that was uploaded by other means."""
    return f"{INDEX}{key}/{version_id}.json"


def data_set_of(folder: str, bucket: str) -> str:
    """Return the data set of this bucket that a job's `data.folder` names; '' for any other folder."""
    prefix = f"s3://{bucket}/{RAW}"
    data_set = folder.removeprefix(prefix).strip("/") if folder.startswith(prefix) else ""
    return data_set if "/" not in data_set and not data_set.startswith(".") else ""


def data_now(
    folder: str, pinned: Iterable[Mapping[str, Any]], objects: Objects, *, bucket: str
) -> tuple[Mapping[str, Any], ...]:
    """Return the inputs that a script's run reads: the pinned ones, or what its data set holds now. Raises
    DataError.
    """
    if not (data_set := data_set_of(folder, bucket)):
        return tuple(pinned)
    listed, prefix = list_inputs(objects, data_set), f"{RAW}{data_set}/"
    if not listed or len(listed) > MOST_DATA_FILES:
        why = (
            f"there is nothing in {prefix}"
            if not listed
            else f"{len(listed):,} files, a run takes {MOST_DATA_FILES:,}"
        )
        raise DataError(
            f"the data set '{data_set}' can't be read by a script", why=why, do="Correct it, or name another."
        )
    if unknown := [item.key for item in listed if not item.sha256]:
        do = f"Copy it with a hash: aws s3 cp --checksum-algorithm SHA256 FILE s3://{bucket}/{prefix}"
        raise DataError(
            f"{counted(len(unknown), 'file')} of {prefix} without a sha256",
            why=f"such as {unknown[0]}",
            do=do,
        )
    return tuple({"path": item.key.removeprefix(prefix), **item.pinned()} for item in listed)
