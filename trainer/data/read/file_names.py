"""Infer symbol and timeframe from a candle file's name, and give a file in subfolders a flat name.

A file `symbol=BTC/part-0.parquet` is called `symbol=BTC!part-0.parquet` in plans and in a data set, which
have no folders. The same symbol is read from that name, so that the node reads what the desk read.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from trainer.data.timeframes import DAY, UNITS, canonical, name_of

SEPARATOR = "!"  # of folders, in a flat name
_IN_NAME = re.compile(
    r"(?P<symbol>.+?)[_-](?P<timeframe>\d+(?:sec|s|min|m|h|d|w)|(?:tick|vol|volume|dollar|range|renko)\d+)(?:[_-].*)?",
    re.I,
)
_WORDS = {
    "minute": "1m",
    **dict.fromkeys(("hourly", "hour"), "1h"),
    **dict.fromkeys(("daily", "day", "d"), "1d"),
    **dict.fromkeys(("weekly", "week", "w"), "1w"),
}
_SPAN = r"(?:[_-](?:bid|ask))?(?:[_-]\d[\d._-]*)?"  # what may follow: a side, dates
_LAST_WORD = re.compile(rf"(?P<symbol>.+?)[_-](?P<word>{'|'.join(_WORDS)}){_SPAN}", re.I)
# EURUSD_M15_2021..., EURUSDH4; eurusd-m1-bid-2021-01-01-2022-01-01. Not ES_H24, ES_M24: months of futures.
_CODE = r"M(?:[1-9]|10|12|15|20|30|45)|H(?:[1-4]|6|8|12)|[DW]1"
_METATRADER = re.compile(
    rf"(?P<symbol>.+?)(?:[_-](?P<code>(?i:{_CODE}))|(?<=^[^_-]{{6}})(?P<joined>{_CODE}))(?i:{_SPAN})"
)
# BINANCE_BTCUSDT, 60
_TRADINGVIEW = re.compile(r"(?:[A-Z0-9]+_)?(?P<symbol>.+), (?=\w)(?P<count>\d*)(?P<unit>[SDW]?)(?:_\w+)?")
_DUKASCOPY = re.compile(
    r"(?P<symbol>.+)_Candlestick_(?P<count>\d+)_(?P<unit>s|m|M|h|Hour|D|d|w|W)_(?:BID|ASK)_.*"
)
# intraday_5min_IBM, daily_adjusted_IBM
_ALPHA_VANTAGE = re.compile(
    r"(?P<word>intraday|daily|weekly)(?:_adjusted)?(?:_(?P<count>\d+)min)?_(?P<symbol>[A-Z][A-Z0-9.-]*)"
)
# AAPL_1d (2), AAPL_1d copy, AAPL_1d - Copy: what browsers and file managers call the second of a name.
_COPY = re.compile(r" ?(?:\(\d{1,3}\)|(?<= )copy(?: \d{1,3})?|- Copy(?: \(\d{1,3}\))?)$")
_DATES = re.compile(r"[\d.-]+")
_DATE = re.compile(r"(?:19|20)\d\d(?:[-.]?(?:0[1-9]|1[0-2])(?:[-.]?(?:0[1-9]|[12]\d|3[01]))?)?")
_NUMBER = re.compile(r"\d{4,6}")  # of a symbol: 0700, 7203, 600519
_NO_SYMBOL = re.compile(r"(part|data|candles|ohlcv?|bars|klines)?[-_.\d]*", re.I)
_PART = re.compile(rf"{_DATE.pattern}|(?:part|data)[-_.]?\d+", re.I)
_PARTITION = re.compile(r"(?P<key>[A-Za-z_]+)=(?P<value>.+)")
_SYMBOL_KEYS = ("symbol", "ticker", "instrument", "pair")
_TIMEFRAME_KEYS = ("timeframe", "interval", "freq", "resolution")


def flat_name(parts: tuple[str, ...]) -> str:
    """Return the one name of a file below a data folder, from the parts of its path there."""
    return SEPARATOR.join(parts)


def parse_flat_name(name: str) -> tuple[str, str]:
    """Return (symbol, timeframe) of a flat name without its ending: what is nearest to the file's own name
    wins.
    """
    *folders, stem = name.split(SEPARATOR)
    symbol, timeframe = parse_name(stem)
    if not folders:
        return symbol, timeframe
    is_number = timeframe and _NUMBER.fullmatch(symbol) and not _DATE.fullmatch(symbol)
    if _NO_SYMBOL.fullmatch(symbol) and not is_number or _timeframe_of(symbol):
        symbol, timeframe = "", timeframe or _timeframe_of(symbol)
    for folder in reversed(folders):
        partition = _PARTITION.fullmatch(folder)
        if partition:
            key, value = partition["key"].lower(), unquote(partition["value"])
            # A partition is explicit, a file's name a guess.
            symbol = value if key in _SYMBOL_KEYS else symbol
            timeframe = (_timeframe_of(value) or timeframe) if key in _TIMEFRAME_KEYS else timeframe
        elif of_folder := _timeframe_of(folder):
            timeframe = timeframe or of_folder
        elif not symbol and not _NO_SYMBOL.fullmatch(folder):
            symbol = folder
    return symbol or stem, timeframe


def parse_name(stem: str) -> tuple[str, str]:
    """Return (symbol, timeframe) by a file's name without suffix, '' for no timeframe: BTC-USD_1m_2021 ->
    ('BTC-USD', '1m').
    """
    stem = _COPY.sub("", stem)
    if match := _ALPHA_VANTAGE.fullmatch(stem):
        return match["symbol"], _canonical(f"{match['count']}m") if match["count"] else _WORDS.get(
            match["word"], ""
        )
    if match := _TRADINGVIEW.fullmatch(stem):
        unit = match["unit"].lower() or "m"
        return match["symbol"], _canonical(f"{match['count'] or 1}{unit}")
    if match := _DUKASCOPY.fullmatch(stem):
        return match["symbol"], _canonical(f"{match['count']}{match['unit'][0].lower()}")
    match = _IN_NAME.fullmatch(stem)
    if match and not match["timeframe"].endswith("M"):
        return match["symbol"], canonical(match["timeframe"])
    if match := _METATRADER.fullmatch(stem):
        code = match["code"] or match["joined"]
        return match["symbol"], _canonical(f"{code[1:]}{code[0]}")
    if match := _LAST_WORD.fullmatch(stem):
        return match["symbol"], _WORDS[match["word"].lower()]
    parts = stem.split("_")
    while len(parts) > 1 and _DATES.fullmatch(parts[-1]):
        parts.pop()  # years and dates at the end are not part of a symbol
    return "_".join(parts), ""


def is_part(symbol: str) -> bool:
    """Return whether a file's name has a date, or a part's number, where others have a symbol."""
    return bool(_PART.fullmatch(symbol))


def is_copy(stem: str) -> bool:
    """Return whether a file's name without suffix ends as that of a second copy: `AAPL_1d (2)`."""
    return bool(_COPY.search(stem))


def _timeframe_of(text: str) -> str:
    """Return the canonical timeframe of a text such as `1min` or `daily`, '' if it is none."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    match = re.fullmatch(r"(\d{1,5})(sec|s|min|m|h|d|w)", text, re.I)
    return _canonical(text) if match and not text.endswith("M") else ""


def _canonical(timeframe: str) -> str:
    count, unit = re.fullmatch(r"(\d+)([a-z]+)", timeframe.lower()).groups()  # type: ignore[union-attr]
    step = int(count) * UNITS[unit[0]]
    return name_of(step) if 0 < step <= 400 * DAY else ""
