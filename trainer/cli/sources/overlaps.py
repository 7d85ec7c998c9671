"""Compare files of a data set that have bars of the same symbol and time: downloaded and compared once.

Each file was checked alone when it was added; whether overlapping files agree takes both.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainer.base.errors import DataError
from trainer.cli.sources.check_child import CheckChild
from trainer.cli.sources.taken import MOST_BYTES, fetch
from trainer.launch.inputs import INDEX, ChosenCandles, Input, overlapping
from trainer.runs.store import Objects


def compare_overlaps(
    candles: ChosenCandles, objects: Objects, *, writes: bool = True
) -> tuple[ChosenCandles, list[str]]:
    """Return the candles without symbols whose files disagree, and a note on each file that is too large to
    compare here.

    At most MOST_BYTES are fetched. `writes`: store in the bucket which files agree, so that they are compared
    only once. Raises DataError if no symbol is left.
    """
    meeting = overlapping(candles)
    open_ = {
        symbol: items
        for symbol, items in meeting.items()
        if objects.get(key=_agreement_key(symbol, items)) is None
    }
    compared, notes, inputs = {}, [], dict[str, Input]()
    for symbol, items in sorted(open_.items(), key=lambda entry: sum(item.bytes for item in entry[1])):
        together = {**inputs, **{item.key: item for item in items}}
        if sum(item.bytes for item in together.values()) > MOST_BYTES:
            names = " and ".join(item.key for item in items[:2])
            notes.append(
                f"not compared here, but on the machine: {symbol} in {names} (over {MOST_BYTES / 1e9:.1f} GB)"
            )
            continue
        compared[symbol], inputs = items, together
    if not compared:
        return candles, notes
    errors = _errors(inputs, objects)
    for symbol in compared.keys() - errors.keys() if writes else ():
        objects.put(key=_agreement_key(symbol, compared[symbol]), body=b"{}")
    return _without(candles, {symbol: error for symbol, error in errors.items() if symbol in compared}), notes


def _errors(inputs: Mapping[str, Input], objects: Objects) -> dict[str, DataError]:
    with tempfile.TemporaryDirectory(prefix="mayfly-overlaps-") as folder:
        for item in inputs.values():
            fetch(item, objects, Path(folder))
        report: dict[str, Any] = CheckChild(folder, joined=True).report()
    return {
        symbol: DataError(error["what"], why=error.get("why", ""), do=error.get("do", ""))
        for symbol, error in report["errors"].items()
    }


def _without(candles: ChosenCandles, errors: Mapping[str, DataError]) -> ChosenCandles:
    """Return the candles without some symbols and without files that no remaining symbol needs."""
    if not errors:
        return candles
    bars = {symbol: count for symbol, count in candles.bars.items() if symbol not in errors}
    if not bars:
        raise next(iter(errors.values()))
    inputs = tuple(
        item for item in candles.inputs if any(entry["symbol"] in bars for entry in item.summary["holds"])
    )
    return replace(candles, bars=bars, inputs=inputs, refused=(*candles.refused, *map(str, errors.values())))


def _agreement_key(symbol: str, items: tuple[Input, ...]) -> str:
    """Return the key of the note that these files agree on the symbol."""
    named = json.dumps([symbol, sorted(item.sha256 for item in items)])
    return f"{INDEX}agreed/{hashlib.sha256(named.encode()).hexdigest()}.json"
