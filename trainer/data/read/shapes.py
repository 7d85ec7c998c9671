"""Known shapes of candle files, as data: names of columns, and exports without a header."""

from __future__ import annotations

import re
from dataclasses import dataclass

FIELDS = ("open", "high", "low", "close", "volume")
OPENS = "timeopen"  # of CoinMarketCap, whose timestamp is the end of the bar
# Names of columns, preferred ones first, in the form of `plain_name`.
NAMES: dict[str, tuple[str, ...]] = {
    "timestamp": (
        *(OPENS, "timestamp", "open_time", "opentime", "datetime", "date_time", "time", "date", "ts", "t"),
        *("unix", "__index_level_0__", "window_start", "time_period_start", "ts_event", "start_time"),
        *("starttime", "start", "begins_at", "gmt_time", "local_time", "time_utc", "date_utc"),
        *("datetime_utc", "date(utc)", "unix_time", "unix_timestamp", "timestamp_ms", "open_timestamp"),
        *("dtyyyymmdd", "trade_date", "trading_date", "index", "", "unnamed:_0"),
    ),
    "open": ("open", "o", "open_price", "price_open"),
    "high": ("high", "h", "high_price", "price_high"),
    "low": ("low", "l", "low_price", "price_low"),
    "close": ("close", "c", "close_price", "price_close", "close/last", "last", "price"),
    "volume": (
        *("volume", "v", "vol", "base_volume", "volume_base", "volume_traded", "vol.", "real_volume"),
        *("total_traded_quantity", "shares", "qty", "quantity"),
    ),
    "symbol": ("symbol", "ticker", "sym", "instrument", "pair"),
}
UNNAMED = ("", "unnamed:_0", "index", "__index_level_0__")  # an index of pandas
# Names that leave nothing open: any other choice is told to the user.
CERTAIN: dict[str, tuple[str, ...]] = {
    "timestamp": (OPENS, "timestamp", "open_time", "opentime", "datetime", "time", "date", "ts", "t"),
    **{part: NAMES[part][:2] for part in ("open", "high", "low", "close")},
    "volume": ("volume", "v", "vol", "tickvol"),
    "symbol": NAMES["symbol"],
}
# Volume columns otherwise; the first counts: `Volume BTC` before `Volume USDT`. What is made of volumes, as
# `Volume MA`, is none.
VOLUME_OF = re.compile(r"volume_(?!([sew]?ma|avg|average|mean|std|weighted|change|chg|pct|ratio)(?![a-z]))")
# Combined with a time of day in another column.
DATES = ("date", "dtyyyymmdd", "day", "trade_date", "trading_date")
TICKS = ("tickvol", "tick_volume", "tick_vol", "ticks")  # used instead of a missing or all-zero volume
ADJUSTED = (
    *("adj_close", "adjclose", "adjusted_close", "adj._close", "close_adj", "adj_close_price"),
    "adjusted_close_price",
)
# First cells of the first two lines of a header as pandas writes columns of two levels: fields, tickers, name
# of the index.
TWO_LEVELS = {"price": "ticker", "attributes": "symbols"}


@dataclass(frozen=True, kw_only=True)
class Headerless:
    """An export without a header: its columns, and a pattern of its first cells."""

    columns: tuple[str, ...]
    begins: str  # regular expression for the cells of time, joined by blanks


_EPOCH, _DAY = r"\d{9,19}", r"\d{4}[-./]?\d{2}[-./]?\d{2}"
_MOMENT = rf"({_EPOCH}|{_DAY})([ T]\d{{2}}:?\d{{2}}(:?\d{{2}})?Z?)?"
_KLINES = ("close_time", "quote_volume", "trades", "taker_base_volume", "taker_quote_volume", "ignore")
HEADERLESS = (
    # Binance klines
    Headerless(columns=("open_time", *FIELDS, *_KLINES), begins=_EPOCH),
    # Kraken OHLCVT
    Headerless(columns=("time", *FIELDS, "trades"), begins=_EPOCH),
    # MetaTrader 4
    Headerless(columns=("date", "time", *FIELDS), begins=rf"{_DAY} \d{{2}}:\d{{2}}(:\d{{2}})?"),
    # any other with a time and a bar
    Headerless(columns=("time", *FIELDS), begins=_MOMENT),
    Headerless(columns=("time", *FIELDS[:4]), begins=_MOMENT),
)


def plain_name(name: str) -> str:
    """Return a column's name in the form of NAMES: `<OPEN>`, `1. open` and `Open ` are open; `Open Time` is
    open_time.
    """
    plain = name.strip().strip("<>").strip().lower().replace(" ", "_").replace("-", "_")
    return re.sub(r"^\d+[a-z]?\._+", "", plain)
