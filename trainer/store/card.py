"""The card of a model: its settings, training data and scores, stored in the metadata of the model file.

Standard library only: the Lambdas read cards, and reading one loads no weights. `card_reading.py` checks
every type and bound, `weights.py` writes files.

A safetensors file is 8 bytes (little endian: the header's length), the header as JSON, then the tensors.
Metadata is a dictionary of texts in the header; ours has one key, `mayfly_card`.
https://huggingface.co/docs/safetensors (2026-11-20).
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from trainer.base.errors import DataError
from trainer.base.files import open_plain
from trainer.base.strict_json import Fields, Unsound, read_object
from trainer.store.card_reading import FORMAT, MOST_CARD_BYTES, MOST_CARD_NUMBER, read_values
from trainer.store.card_reading import LATER_BARS as LATER_BARS  # for the card's writer
from trainer.store.card_reading import TOLD_COLUMNS as TOLD_COLUMNS

METADATA_KEY = "mayfly_card"
MOST_HEADER_BYTES = 2 * MOST_CARD_BYTES  # it has the escaped card, and the names of tensors
MOST_TENSORS_BYTES = 2 << 20  # of a header without its card; an entry takes about 100 bytes
_LENGTH_BYTES = 8
_CARD = re.compile(rf'"{METADATA_KEY}"\s*:\s*"[^"\\]*+(?:\\.[^"\\]*+)*+"'.encode(), re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class CardSeries:
    """One series that a model was trained on, with its own values."""

    symbol: str
    calendar: str
    horizon: int  # of the longest label, in bars
    scaler: dict[str, Any]  # mean and std by feature; limit: deviations to which scaled features are clamped
    splits: dict[str, Any]
    fitted: dict[str, float] = field(default_factory=dict)  # by the target on this fold: scale, calibration
    data: dict[str, Any] = field(default_factory=dict)  # bars, first, last, holes, ties
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)  # by span; empty with one series
    number: int = 0  # number in a panel's embedding; 0: it had no training windows


@dataclass(frozen=True, kw_only=True)
class CardPanel:
    """Scaler and fitted values over all series of a panel: a symbol that training never saw gets these."""

    scaler_of: str  # pooled, series or rank
    scaler: dict[str, Any]  # as in CardSeries, over all series
    fitted: dict[str, Any]
    calendar: str
    horizon: int

    def unknown(self, symbol: str) -> CardSeries:
        """Return the entry of a symbol that training never saw."""
        return CardSeries(
            symbol=symbol,
            calendar=self.calendar,
            horizon=self.horizon,
            scaler=self.scaler,
            splits={},
            fitted=self.fitted,
        )


@dataclass(frozen=True, kw_only=True)
class Card:
    """Everything needed to use and to judge a model."""

    model: str
    piece: str  # label of the piece
    kind: str  # of piece: symbol, pooled, or another
    family: str
    series: list[CardSeries]
    timeframe: str
    architecture: dict[str, Any]
    features: list[str]  # the inputs of each bar, in order
    features_version: str
    lookback: int
    metrics: dict[str, dict[str, Any]]  # by span, over all series; `about`: see `TargetSettings.about`
    training: dict[str, Any]
    data: dict[str, Any]
    code_sha256: str
    seed: int
    created_at: str
    mayfly: str
    target: str
    target_settings: dict[str, Any]
    columns: list[str] = field(default_factory=list)  # the last of `features`: columns of the candle files
    own_files: dict[str, dict[str, str]] = field(default_factory=dict)  # by table: file, class, sha256, text
    parent: dict[str, str] = field(default_factory=dict)  # the model that it started from
    losses: dict[str, Any] = field(default_factory=dict)  # of its test span by cell: begins, bars, sums
    reliability: dict[str, Any] = field(default_factory=dict)  # of its test span, by event
    trades: dict[str, Any] = field(default_factory=dict)  # what a plain rule made in test, by cell
    fold: int = 1  # of `folds`, oldest first
    folds: int = 1
    panel: CardPanel | None = None
    # End of the bars that trained it, and of those by which it was chosen (ISO 8601, UTC)
    trained_until: str = ""
    # Of a refit: `sha256`, `trained_until`, `series` and `panel` of its held-out twin, whose scores these are
    # and whose weights are in the same file. {} for any other model.
    held_out: dict[str, Any] = field(default_factory=dict)
    members: int = 1  # networks, whose mean it forecasts
    tried: int = 1  # models of its run, each scored on test
    test_scored: int = 1  # times that its training was scored on the test span, with ever more epochs
    format: int = FORMAT

    @property
    def knows_later_bars(self) -> bool:
        """Return whether it was trained on bars after its test span, as models of k folds are."""
        return self.data.get(LATER_BARS) is True

    @property
    def told_columns(self) -> list[str]:
        """Return what its job told about the parts of a bar, as entries of data.columns."""
        return list(self.data.get(TOLD_COLUMNS, ()))

    @property
    def symbols(self) -> tuple[str, ...]:
        """Return the symbols of its series."""
        return tuple(one.symbol for one in self.series)

    @property
    def twin(self) -> Card:
        """Return the card of the model that the scores are of: a refit's held-out twin, else this one."""
        if not self.held_out:
            return self
        values = {key: value for key, value in self.held_out.items() if key != "sha256"}
        return replace(self, held_out={}, **_read_parts(values))

    def of(self, symbol: str = "") -> CardSeries:
        """Return the entry of a symbol that the model was trained on; without a symbol, that of its only
        series.
        """
        (series,) = (one for one in self.series if symbol in ("", one.symbol))
        return series

    def to_json(self, *, indent: int | None = None) -> str:
        """Return the card as JSON; floats keep every digit."""
        return json.dumps(asdict(self), indent=indent, allow_nan=False)


def card_from_json(text: str) -> Card:
    """Read a card. Raises DataError for another format and for a malformed card."""
    values = read_values(text)
    return Card(**{**values, **_read_parts(values)})


def _read_parts(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with series and panel of a card, or of a twin, as their classes."""
    panel = CardPanel(**values["panel"]) if values["panel"] else None
    return {**values, "series": [CardSeries(**one) for one in values["series"]], "panel": panel}


def read_card(source: Path | bytes) -> Card:
    """Read the card of a model file, or of the first bytes of one. Raises DataError."""
    if isinstance(source, bytes):
        return _card_of(_header_of(source, "the model"), "the model")
    try:
        with open_plain(source) as file:
            length = file.read(_LENGTH_BYTES)
            start = length + file.read(min(int.from_bytes(length, "little"), MOST_HEADER_BYTES))
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise DataError(
            f"cannot read model {source}", why=str(error.strerror), do="Check the path."
        ) from error
    header = _header_of(start, str(source))
    _check_size(header, source, len(start), size)
    return _card_of(header, str(source))


def header_bytes(start: bytes) -> int:
    """Return how many bytes of a model file must be read for its card; `start` has at least the first
    eight.
    """
    return _LENGTH_BYTES + int.from_bytes(start[:_LENGTH_BYTES], "little")


def _header_of(start: bytes, name: str) -> Fields:
    length = int.from_bytes(start[:_LENGTH_BYTES], "little")
    if len(start) <= _LENGTH_BYTES or length > MOST_HEADER_BYTES or len(start) < _LENGTH_BYTES + length:
        raise _broken(name, "it has no safetensors header, or only a part of one")
    body = start[_LENGTH_BYTES : _LENGTH_BYTES + length]
    card = _CARD.search(body)
    if (tensors := length - (len(card[0]) if card else 0)) > MOST_TENSORS_BYTES:
        raise _broken(name, f"its header has {tensors:,} bytes besides the card, too many for tensors")
    try:
        return read_object(
            body, most_bytes=MOST_HEADER_BYTES, most_number=MOST_CARD_NUMBER, name="its header"
        )
    except Unsound as error:
        raise _broken(name, str(error)) from error


def _check_size(header: Fields, path: Path, header_bytes: int, size: int) -> None:
    """Raise DataError if the file's length differs from its header's, as after a partial upload."""
    try:
        tensors = [item.fields() for key, item in header.entries().items() if key != "__metadata__"]
        ends = [tensor.value("data_offsets").items(least=2, most=2)[1].whole() for tensor in tensors]
    except Unsound as error:
        raise _broken(str(path), f"a tensor has no place in it: {error}") from error
    promised = header_bytes + max(ends, default=0)
    if size != promised:
        raise _broken(str(path), f"it has {size} bytes and its header promises {promised}")


def _card_of(header: Fields, name: str) -> Card:
    try:
        text = header.table("__metadata__").text(METADATA_KEY, "", most=MOST_HEADER_BYTES)
    except Unsound as error:
        raise _broken(name, str(error)) from error
    if not text:
        raise DataError(
            f"{name} has no card",
            why="it was not made by Mayfly",
            do="Give a model that `mayfly models list` shows.",
        )
    return card_from_json(text)


def _broken(name: str, why: str) -> DataError:
    return DataError(f"{name} is not a whole model file", why=why, do="Fetch the model again.")
