"""The card of a model: what it is, what it was trained on, how well it does. It travels in the model's own metadata.

Standard library only: the Lambdas read cards, and a card is read without loading a weight. `weights.py` writes files.

A safetensors file is 8 bytes (little endian: the header's length), the header as JSON, then the tensors. Metadata is a
dictionary of texts in the header; ours has one key, `mayfly_card`. https://huggingface.co/docs/safetensors (2026-11-20).
"""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from trainer.errors import DataError, UsageError, nearest

FORMAT = 2  # 1, before pieces: one series, whose fields are the card's
READABLE_FORMATS = (1, 2)
METADATA_KEY = "mayfly_card"
SERIES_DATA = ("bars", "first", "last", "holes", "ties")
MOST_NAMED = 6  # symbols, in a message
_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # the limit that safetensors itself sets


@dataclass(frozen=True, kw_only=True)
class CardSeries:
    """One series that a model was trained on, and what belongs to it alone."""

    symbol: str
    calendar: str
    horizon: int  # of the longest label, in bars
    scaler: dict[str, Any]  # mean and std by feature; limit: deviations that scaled features are held to
    splits: dict[str, Any]
    fitted: dict[str, Any] = field(default_factory=dict)  # of the target, on this fold: scale and calibration
    data: dict[str, Any] = field(default_factory=dict)  # bars, first, last, holes, ties
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)  # by span; empty where the card's are of it alone


@dataclass(frozen=True, kw_only=True)
class Card:
    """Everything a reader needs to use a model, and to judge it."""

    model: str
    piece: str  # what people call what it was made of
    kind: str  # of piece: symbol, pooled, or another
    family: str
    series: list[CardSeries]
    timeframe: str
    architecture: dict[str, Any]
    features: list[str]  # what the model reads of each bar, in order
    features_version: str
    lookback: int
    metrics: dict[str, dict[str, Any]]  # by span, of all series together; `about`: `settings.TargetSettings.about`
    training: dict[str, Any]
    data: dict[str, Any]
    code_sha256: str
    seed: int
    created_at: str
    mayfly: str
    target: str = ""  # empty in cards of before 2026-11-22: the model's default
    target_settings: dict[str, Any] = field(default_factory=dict)
    columns: list[str] = field(default_factory=list)  # those of `features`, at their end, that are columns of the candle files
    own_files: dict[str, dict[str, str]] = field(default_factory=dict)  # the user's: file, class, sha256, text by table
    fold: int = 1  # of `folds`, oldest first
    folds: int = 1
    format: int = FORMAT

    @property
    def symbols(self) -> tuple[str, ...]:
        """Return the symbols of its series."""
        return tuple(one.symbol for one in self.series)

    def of(self, symbol: str = "") -> CardSeries:
        """Return one of its series; without a symbol the only one. Raises UsageError where it has no such, or several."""
        found = [one for one in self.series if symbol in ("", one.symbol)]
        if len(found) == 1:
            return found[0]
        names = ", ".join(self.symbols[:MOST_NAMED]) + (", ..." if len(self.series) > MOST_NAMED else "")
        if symbol:
            do = nearest(symbol, self.symbols) or "Choose one of these."
            raise UsageError(f"model {self.model} does not know {symbol!r}", why=f"it was trained on {names}", do=do)
        why = f"it was trained on {len(self.series)}: {names}"
        raise UsageError(f"model {self.model} has no symbol of its own", why=why, do="Choose one with --symbol.")

    def to_json(self, *, indent: int | None = None) -> str:
        """Return the card as JSON; floats keep every digit."""
        return json.dumps(asdict(self), indent=indent, allow_nan=False)


def card_from_json(text: str) -> Card:
    """Read a card. Raises DataError for a format that this version does not know, or for missing parts."""
    try:
        values = json.loads(text)
    except ValueError as error:
        raise DataError("the model's card is not JSON", why=str(error), do="Fetch the model again.") from error
    if not isinstance(values, dict) or values.get("format") not in READABLE_FORMATS:
        found = values.get("format") if isinstance(values, dict) else values
        known = ", ".join(map(str, READABLE_FORMATS))
        what = f"the model's card has format {found!r}"
        raise DataError(what, why=f"this Mayfly reads {known}", do="Use the Mayfly that made it.")
    if values["format"] == 1:
        values = _of_format_1(values)
    given = values.get("series")
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise _incomplete("no list of series")
    series = [_built(CardSeries, one) for one in given]
    card: Card = _built(Card, {**values, "series": series, "format": FORMAT})
    return card


def _built(cls: Any, values: dict[str, Any]) -> Any:
    """Build a card, or one of its series. Keys of a later version are left out. Raises DataError for missing ones."""
    known = {item.name: item for item in fields(cls)}
    required = {name for name, item in known.items() if item.default is item.default_factory is MISSING}
    if missing := sorted(required - values.keys()):
        raise _incomplete("no " + ", ".join(missing))
    return cls(**{name: values[name] for name in known.keys() & values.keys()})


def _of_format_1(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a card that had one series, and the fields of that among its own."""
    own = {item.name for item in fields(CardSeries)} - {"data", "metrics"}
    series = {name: values[name] for name in own & values.keys()}
    data = values.get("data")
    series["data"] = {key: data[key] for key in SERIES_DATA if key in data} if isinstance(data, dict) else {}
    symbol = values.get("symbol", "")
    return {**values, "piece": symbol, "kind": "symbol", "series": [series]}


def _incomplete(why: str) -> DataError:
    return DataError("the model's card is incomplete", why=why, do="Fetch the model again.")


def read_card(source: Path | bytes) -> Card:
    """Read the card of a model file, or of the first bytes of one. Loads no tensor and runs no code. Raises DataError."""
    if isinstance(source, bytes):
        return _card_of(_header_of(source, "the model"), "the model")
    try:
        with source.open("rb") as file:
            length = file.read(_LENGTH_BYTES)
            start = length + file.read(min(int.from_bytes(length, "little"), _MAX_HEADER_BYTES))
    except OSError as error:
        raise DataError(f"cannot read model {source}", why=str(error.strerror), do="Check the path.") from error
    header = _header_of(start, str(source))
    _check_size(header, source, len(start))
    return _card_of(header, str(source))


def header_bytes(start: bytes) -> int:
    """Return how many bytes of a model file the card needs, by the file's first eight."""
    return _LENGTH_BYTES + int.from_bytes(start[:_LENGTH_BYTES], "little")


def _header_of(start: bytes, name: str) -> dict[str, Any]:
    length = int.from_bytes(start[:_LENGTH_BYTES], "little")
    if len(start) <= _LENGTH_BYTES or length > _MAX_HEADER_BYTES or len(start) < _LENGTH_BYTES + length:
        raise _broken(name, "it has no safetensors header, or only a part of one")
    try:
        header = json.loads(start[_LENGTH_BYTES : _LENGTH_BYTES + length])
    except ValueError as error:
        raise _broken(name, "its header is not JSON") from error
    if not isinstance(header, dict):
        raise _broken(name, "its header is not an object")
    return header


def _check_size(header: dict[str, Any], path: Path, header_bytes: int) -> None:
    """Compare the file's length with what its header promises: half an upload must not pass for a model."""
    try:
        ends = [entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"]
        promised = header_bytes + max(ends, default=0)
    except (KeyError, IndexError, TypeError) as error:
        raise _broken(str(path), "its header describes a tensor without its place") from error
    if path.stat().st_size != promised:
        raise _broken(str(path), f"it has {path.stat().st_size} bytes where its header promises {promised}")


def _card_of(header: dict[str, Any], name: str) -> Card:
    metadata = header.get("__metadata__")
    if not isinstance(metadata, dict) or METADATA_KEY not in metadata:
        raise DataError(
            f"{name} has no card", why="it was not made by Mayfly", do="Give a model that `mayfly models list` shows."
        )
    return card_from_json(metadata[METADATA_KEY])


def _broken(name: str, why: str) -> DataError:
    return DataError(f"{name} is not a whole model file", why=why, do="Fetch the model again.")
