"""The objects of raw/ that a run reads, chosen by their index entries. Nothing is downloaded.

`data/sync` puts them there; the manifest pins them by version and hash.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from trainer.errors import DataError, nearest
from trainer.runs.store import Objects

RAW, INDEX = "raw/", "raw-index/"
_PARALLEL = 8


@dataclass(frozen=True, kw_only=True)
class Input:
    """An object of raw/ as a run pins it, with its index entry ({} where there is none)."""

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
    """The data of a run: symbols with their bars, one timeframe. `inputs` is empty while the files are at the desk."""

    timeframe: str
    bars: Mapping[str, int]  # symbol -> bars
    synthetic: bool
    inputs: tuple[Input, ...] = ()
    left_out: tuple[str, ...] = ()  # keys of raw/ without an index entry
    refused: tuple[str, ...] = ()  # why some symbols can't be trained on and are left out
    plan: bytes = b""  # plan.json, where a desk has read the bars; else the node makes it

    def to_dict(self) -> dict[str, Any]:
        """Return the data section of a plan."""
        return {
            "timeframe": self.timeframe,
            "bars": dict(self.bars),
            "synthetic": self.synthetic,
            "left_out": list(self.refused),
        }


def list_inputs(objects: Objects) -> tuple[Input, ...]:
    """Return every object of raw/ with its hash and index entry, by key."""
    keys = [stored.key for stored in objects.list(prefix=RAW) if not stored.key.endswith("/")]
    with ThreadPoolExecutor(max_workers=_PARALLEL) as pool:
        return tuple(item for item in pool.map(lambda key: _described(key, objects), keys) if item is not None)


def choose(
    inputs: Sequence[Input],
    *,
    symbols: Sequence[str],
    timeframe: str,
    fewest_bars: int,
    columns: Sequence[str] = (),
    exclude: Collection[str] = (),
) -> ChosenCandles:
    """Choose the inputs of a run; a symbol with too few bars is left out.

    Raises DataError where no symbol is left, for an open choice, an unknown symbol, timeframe or column.
    """
    known = [item for item in inputs if item.sha256 and item.summary]
    if not known:
        names = ", ".join(item.key for item in inputs[:3])
        why = "its files were not put there by a launch, so nobody checked them"
        raise DataError(f"raw/ holds nothing usable ({names})", why=why, do="Name the same files with --data PATH, once.")
    frames = sorted({str(item.summary["timeframe"]) for item in known})
    if not timeframe and len(frames) > 1:
        raise DataError(f"raw/ holds several timeframes: {', '.join(frames)}", do="Choose one with --timeframe.")
    timeframe = timeframe or frames[0]
    if timeframe not in frames:
        raise DataError(f"raw/ holds no {timeframe} bars", why=f"it has {', '.join(frames)}", do="Choose with --timeframe.")
    spans = _spans([item for item in known if item.summary["timeframe"] == timeframe])
    for symbol in (*symbols, *exclude):
        if symbol not in spans:
            do = nearest(symbol, spans) or "Choose with --symbols."
            raise DataError(f"unknown symbol '{symbol}'", why=f"raw/ has {', '.join(spans)} at {timeframe}", do=do)
    there = {symbol: sum(spans[symbol].values()) for symbol in (symbols or sorted(spans)) if symbol not in exclude}
    bars = {symbol: count for symbol, count in there.items() if count >= fewest_bars}
    why, do = f"one window and its label take {fewest_bars}", "Bring more bars, or set a smaller lookback."
    short = [DataError(f"{symbol} has {count} bars", why=why, do=do) for symbol, count in there.items() if symbol not in bars]
    if not bars:
        raise (
            short[0]
            if short
            else DataError(
                "no symbol is left to train", why="data.exclude names all that raw/ has", do="Leave one out of data.exclude."
            )
        )
    used = [item for item in known if item.summary["timeframe"] == timeframe and _symbols(item) & bars.keys()]
    for item in used:
        _refuse_missing_column(item, columns)
    return ChosenCandles(
        timeframe=timeframe,
        bars=bars,
        synthetic=any(item.summary.get("synthetic", False) for item in used),
        inputs=tuple(used),
        left_out=tuple(item.key for item in inputs if item not in known),
        refused=tuple(map(str, short)),
    )


def _spans(inputs: Sequence[Input]) -> dict[str, dict[tuple[str, str], int]]:
    """Return symbol -> {(first, last): bars}; the same bars under two names count once."""
    spans: dict[str, dict[tuple[str, str], int]] = {}
    for item in inputs:
        for entry in item.summary["holds"]:
            spans.setdefault(str(entry["symbol"]), {})[str(entry["first"]), str(entry["last"])] = int(entry["bars"])
    return spans


def _refuse_missing_column(item: Input, columns: Sequence[str]) -> None:
    """Raise DataError for a column that a file has not. Index entries of before 2026-11-22 do not say; the node finds out."""
    there = item.summary.get("further", columns)
    for name in columns:
        if name not in there:
            do = nearest(name, there) or "Leave it out of data.columns, or bring files that have it with --data PATH."
            why = f"its columns beside those of a bar: {', '.join(there) or 'none'}"
            raise DataError(f"{item.key} has no column {name}", why=why, do=do)


def _symbols(item: Input) -> set[str]:
    return {str(entry["symbol"]) for entry in item.summary["holds"]}


def _described(key: str, objects: Objects) -> Input | None:
    head = objects.head(key=key)
    if head is None:  # deleted since it was listed
        return None
    index = objects.get(key=f"{INDEX}{head.sha256}.json") if head.sha256 else None
    summary = json.loads(index.body) if index else {}
    return Input(key=key, version_id=head.version_id, sha256=head.sha256, bytes=head.size, summary=summary)
