"""The table of sources. The library of one is imported when it is opened."""

from __future__ import annotations

from trainer.base.errors import UsageError, nearest
from trainer.data.fetch.source import BarSource

REHEARSAL = "rehearsal"  # an exchange in this process, with generated bars
COINS, STOCKS = ("coinbase", "binance", "kraken"), ("yahoo",)
SOURCES = (*COINS, *STOCKS)
TERMS = {
    "yahoo": "Yahoo's terms allow personal use of its data alone; yfinance is not affiliated with Yahoo",
}


def open_source(name: str) -> BarSource:
    """Open a source by its name. Raises UsageError for an unknown one, ModuleNotFoundError without its
    library.
    """
    if name == REHEARSAL:
        from trainer.data.fetch.rehearsed import open_rehearsed

        return open_rehearsed()
    if name in COINS:
        from trainer.data.fetch.coins import CoinSource

        return CoinSource(name)
    if name in STOCKS:
        from trainer.data.fetch.stocks import StockSource

        return StockSource()
    do = nearest(name, SOURCES) or "Choose one of these."
    raise UsageError(f"unknown source '{name}'", why=f"there are {', '.join(SOURCES)}", do=do)
