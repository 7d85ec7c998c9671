"""Files of a data set that a desk looks into: each is downloaded and checked only once.

`take`: those that were uploaded by other means than a launch, such as `aws s3 sync`. The data check describes
each alone; later launches use its index entry. `compare_overlaps`: those that have bars of the same symbol
and time. Whether they agree takes both.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainer.aws.objects import Objects
from trainer.base.errors import DataError, renaming
from trainer.base.files import HeldFolder
from trainer.cli.sources.check_child import INDEXED, CheckChild
from trainer.data.columns import told_parts
from trainer.data.table import SUFFIXES
from trainer.launch.inputs import INDEX, ChosenCandles, Input, overlapping, write_index

MOST_BYTES = 1 << 30  # fetched by one launch


def take(
    inputs: Sequence[Input], objects: Objects, *, columns: Sequence[str] = (), writes: bool = True
) -> tuple[list[Input], list[str]]:
    """Index the inputs that have no index entry; return all inputs, and notes.

    At most MOST_BYTES are fetched, small files first. `columns`: data.columns of the job. `writes`: store the
    index entries in the bucket.
    """
    notes, fetched, left = [], list[Input](), MOST_BYTES
    for item in sorted((item for item in inputs if not item.summary), key=lambda item: item.bytes):
        if not item.key.lower().endswith(SUFFIXES):
            notes.append(f"left out: {item.key} (no candle file: it does not end in {', '.join(SUFFIXES)})")
        elif item.bytes > left:
            most = f"a launch checks {MOST_BYTES / 1e9:.1f} GB of new files"
            notes.append(f"left out: {item.key} ({most}; name it with --data once)")
        else:
            fetched.append(item)
            left -= item.bytes
    if not fetched:
        return list(inputs), notes
    described, told = _described(fetched, objects, columns)
    if writes:
        for item in described.values():
            write_index(item, objects)
    return [described.get(item.key, item) for item in inputs], [*notes, *told]


def fetch(item: Input, objects: Objects, folder: Path) -> str | None:
    """Download an object of a data set into a folder and return its sha256; None if it was deleted after it
    was listed.
    """
    stored = objects.get(key=item.key, version_id=item.version_id)
    if stored is None:
        return None
    (folder / item.key.rpartition("/")[2]).write_bytes(stored.body)
    return hashlib.sha256(stored.body).hexdigest()


def _described(
    items: Sequence[Input], objects: Objects, columns: Sequence[str]
) -> tuple[dict[str, Input], list[str]]:
    """Return by key the inputs that could be read, with hash and summary, and a note on each of `items`."""
    inputs, notes = dict[str, Input](), []
    with HeldFolder("taken") as folder:
        by_name = {}
        for item in items:
            if (sha256 := fetch(item, objects, Path(folder))) is not None:
                by_name[item.key.rpartition("/")[2]] = replace(item, sha256=sha256)
        with renaming({f"{folder}/": "", folder: "the data set"}):
            report = CheckChild(folder, columns=columns).report() if by_name else {"files": [], "errors": {}}
        for entry in report["files"]:
            item = replace(by_name[entry["file"]], summary={name: entry[name] for name in INDEXED})
            inputs[item.key] = item
            bars = sum(held["bars"] for held in entry["holds"])
            what = f"{bars:,} bars" if entry["holds"] else "a side series"
            notes.append(f"taken: {item.key} ({what}; no launch put it there)")
        for name in by_name.keys() - {entry["file"] for entry in report["files"]} - report["errors"].keys():
            notes.append(f"left out: {by_name[name].key} (it is not a table of candles)")
        for name, error in report["errors"].items():
            why = f"{error['what']}: {error['why']}" if error["why"] else error["what"]
            notes.append(f"left out: {by_name[name].key} ({why.replace(folder + '/', '')})")
    return inputs, notes


def compare_overlaps(
    candles: ChosenCandles, objects: Objects, *, columns: Sequence[str] = (), writes: bool = True
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
        if objects.get(key=_agreement_key(symbol, items, columns)) is None
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
    errors = _errors(inputs, objects, columns)
    for symbol in compared.keys() - errors.keys() if writes else ():
        objects.put(key=_agreement_key(symbol, compared[symbol], columns), body=b"{}")
    return _without(candles, {symbol: error for symbol, error in errors.items() if symbol in compared}), notes


def _errors(inputs: Mapping[str, Input], objects: Objects, columns: Sequence[str]) -> dict[str, DataError]:
    with HeldFolder("overlaps") as folder:
        for item in inputs.values():
            fetch(item, objects, Path(folder))
        names = {f"{folder}/": "", folder: "the data set"}
        with renaming(names):
            report: dict[str, Any] = CheckChild(folder, joined=True, columns=columns).report()
    errors = {
        symbol: DataError(error["what"], why=error.get("why", ""), do=error.get("do", ""))
        for symbol, error in report["errors"].items()
    }
    for error in errors.values():
        error.rename(names)
    return errors


def _without(candles: ChosenCandles, errors: Mapping[str, DataError]) -> ChosenCandles:
    """Return the candles without some symbols and without files that no remaining symbol needs."""
    if not errors:
        return candles
    bars = {symbol: count for symbol, count in candles.bars.items() if symbol not in errors}
    if not bars:
        raise next(iter(errors.values()))
    inputs = tuple(
        item
        for item in candles.inputs
        if not {entry["symbol"] for entry in item.summary["holds"]} & errors.keys()
        or any(entry["symbol"] in bars for entry in item.summary["holds"])
    )
    return replace(candles, bars=bars, inputs=inputs, refused=(*candles.refused, *map(str, errors.values())))


def _agreement_key(symbol: str, items: tuple[Input, ...], columns: Sequence[str]) -> str:
    """Return the key of the note that these files, read by what `columns` tell, agree on the symbol."""
    named = json.dumps([symbol, sorted(item.sha256 for item in items), *told_parts(columns)])
    return f"{INDEX}agreed/{hashlib.sha256(named.encode()).hexdigest()}.json"
