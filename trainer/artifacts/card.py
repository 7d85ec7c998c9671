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

from trainer.errors import DataError

FORMAT = 1
METADATA_KEY = "mayfly_card"
_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # the limit that safetensors itself sets


@dataclass(frozen=True, kw_only=True)
class Card:
    """Everything a reader needs to use a model, and to judge it."""

    model: str
    family: str
    symbol: str
    timeframe: str
    architecture: dict[str, Any]
    features: list[str]  # what the model reads of each bar, in order
    features_version: str
    lookback: int
    horizon: int
    calendar: str
    scaler: dict[str, Any]  # mean and std by feature; limit: deviations that scaled features are held to
    splits: dict[str, Any]
    metrics: dict[str, dict[str, Any]]  # by span; `about` describes them: `settings.TargetSettings.about`
    training: dict[str, Any]
    data: dict[str, Any]
    code_sha256: str
    seed: int
    created_at: str
    mayfly: str
    target: str = ""  # empty in cards of before 2026-11-22: the model's default
    target_settings: dict[str, Any] = field(default_factory=dict)
    fitted: dict[str, Any] = field(default_factory=dict)  # of the target, on this fold: scale and calibration
    columns: list[str] = field(default_factory=list)  # those of `features`, at their end, that are columns of the candle files
    own_files: dict[str, dict[str, str]] = field(default_factory=dict)  # the user's: file, class, sha256, text by table
    fold: int = 1  # of `folds`, oldest first
    folds: int = 1
    format: int = FORMAT

    def to_json(self, *, indent: int | None = None) -> str:
        """Return the card as JSON; floats keep every digit."""
        return json.dumps(asdict(self), indent=indent, allow_nan=False)


def card_from_json(text: str) -> Card:
    """Read a card. Raises DataError for a format that this version does not know, or for missing parts."""
    try:
        values = json.loads(text)
    except ValueError as error:
        raise DataError("the model's card is not JSON", why=str(error), do="Fetch the model again.") from error
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        found = values.get("format") if isinstance(values, dict) else values
        raise DataError(
            f"the model's card has format {found!r}", why=f"this Mayfly reads {FORMAT}", do="Use the Mayfly that made it."
        )
    names = {item.name for item in fields(Card)}
    missing = sorted(
        item.name for item in fields(Card) if item.default is item.default_factory is MISSING and item.name not in values
    )
    if missing:
        raise DataError("the model's card is incomplete", why="no " + ", ".join(missing), do="Fetch the model again.")
    return Card(**{name: values[name] for name in names & values.keys()})


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
