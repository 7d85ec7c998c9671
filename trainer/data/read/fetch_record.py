"""The record that `mayfly data fetch` puts into each file's parquet metadata: source, range, holes, and how
the symbols were chosen. The one strict reader of it: files of other users are untrusted.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.base.strict_json import YEARS_OF_BARS, Fields, Unsound, instant, read_object
from trainer.base.symbols import flaw
from trainer.base.text import counted
from trainer.data.timeframes import SECOND, canonical

FETCHED_KEY = b"mayfly_fetched"  # schema metadata
SPLIT, DIVIDEND = "split", "dividend"  # columns of a file whose record has `actions`
ACTIONS = (SPLIT, DIVIDEND)
MOST_RUNS = 200  # holes that a record lists; it counts all
NAMES = "names"  # symbols that were named one by one, and no list
_FORMAT = 1
_MOST_BYTES = 1 << 16
_MOST_WORDS = 400


@dataclass(frozen=True, kw_only=True)
class FetchRecord:
    """The origin of one file. Times are int64 ns UTC; it has every bar of [covers_from, covers_until) that
    the source has.
    """

    source: str  # its name on the command line, such as coinbase
    library: str  # with its version: ccxt 4.5.90
    symbol: str  # as it trains
    asked: str  # the source's spelling
    timeframe: str
    covers_from: int
    covers_until: int
    fetched_at: int
    chosen_by: str  # 'names', or the name of the file of tickers
    chosen_symbols: int
    chosen_on: str  # date
    actions: bool = False  # prices as traded, with columns of splits and dividends
    hole_bars: int = 0
    holes: tuple[tuple[int, int], ...] = ()  # (first missing bar, number of bars), the first MOST_RUNS
    dropped: int = 0  # impossible bars of the source, left out
    limit: str = ""  # what the source does not give, as a sentence

    @property
    def origins(self) -> tuple[str, ...]:
        """Return source and library, what the source does not give, and the list that chose the symbols."""
        texts = [f"fetched from {self.source} by {self.library}", self.limit, self.choice]
        return tuple(text for text in texts if text)

    @property
    def choice(self) -> str:
        """Return how the symbols were chosen, '' if they were named."""
        if self.chosen_by == NAMES:
            return ""
        many = f"{self.chosen_by} of {self.chosen_on}, with {counted(self.chosen_symbols, 'symbol')}"
        return f"chosen by {many}: a list of its day leaves out what had failed or left before"

    def to_json(self) -> bytes:
        """Return the record as the file's metadata holds it."""
        return json.dumps({"format": _FORMAT, **self.to_dict()}, sort_keys=True).encode()

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON values, times as text."""
        return {
            **vars(self),
            "covers_from": text_of(self.covers_from),
            "covers_until": text_of(self.covers_until),
            "fetched_at": text_of(self.fetched_at),
            "holes": [[text_of(first), bars] for first, bars in self.holes],
        }


def read_fetch_record(body: bytes) -> FetchRecord:
    """Read a file's record. Raises Unsound for anything that `to_json` would not have written."""
    fields = read_object(body, most_bytes=_MOST_BYTES, name="its fetch record")
    if (version := fields.whole("format")) != _FORMAT:
        raise Unsound(f"its fetch record has format {version}, not {_FORMAT}: update Mayfly")
    symbol = fields.text("symbol")
    if why := flaw(symbol):
        raise Unsound(f"its fetch record names symbol {symbol[:40]!r}: {why}")
    begin, end = _time(fields, "covers_from"), _time(fields, "covers_until")
    if begin >= end:
        raise Unsound("its fetch record covers no time")
    runs = [item.items(least=2, most=2) for item in fields.value("holes").items(most=MOST_RUNS)]
    return FetchRecord(
        source=fields.text("source", pattern=r"[a-z][a-z0-9-]{0,39}"),
        library=fields.text("library", most=80),
        symbol=symbol,
        asked=fields.text("asked", most=100),
        timeframe=canonical(fields.text("timeframe", pattern=r"\d{1,5}[smhdw]")),
        covers_from=begin,
        covers_until=end,
        fetched_at=_time(fields, "fetched_at"),
        chosen_by=fields.text("chosen_by"),
        chosen_symbols=fields.whole("chosen_symbols", least=1, most=1_000_000),
        chosen_on=fields.text("chosen_on", pattern=r"\d{4}-\d\d-\d\d"),
        actions=bool(fields.truth("actions")),
        hole_bars=fields.whole("hole_bars"),
        holes=tuple((_nanoseconds(first.text(most=40)), bars.whole(least=1)) for first, bars in runs),
        dropped=fields.whole("dropped"),
        limit=fields.text("limit", "", most=_MOST_WORDS),
    )


def fetch_notes(record: FetchRecord) -> list[tuple[str, str]]:
    """Return notes on a fetched file, a text and its detail: source, adjustments, what is left out."""
    texts = [(text, "") for text in record.origins]
    if record.actions:
        texts.append(
            ("prices are stored as traded, and adjusted here by the source's splits and dividends", "")
        )
    if record.dropped:
        texts.append(("impossible bars of the source were left out", counted(record.dropped, "bar")))
    return texts


def text_of(time: int) -> str:
    """Return a time in ns UTC as ISO 8601 text to the second."""
    return f"{np.datetime64(time, 'ns').astype('datetime64[s]')}Z"


def _time(fields: Fields, key: str) -> int:
    return _nanoseconds(fields.text(key, most=40))


def _nanoseconds(text: str) -> int:
    return int(instant(text, years=YEARS_OF_BARS).timestamp()) * SECOND
