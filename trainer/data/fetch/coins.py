"""Exchanges of coins, through ccxt's synchronous classes: Coinbase Exchange, Binance (spot) and Kraken.

Facts of their candles (documentation of each exchange and ccxt 4.5.90's source, read 2026-11-27):

- Coinbase: GET /products/ID/candles gives at most 300 bars of [start, end], both included, newest first; a
  bar without a trade is left out. https://docs.cdp.coinbase.com/exchange/reference
- Binance: GET /api/v3/klines gives at most 1,000 bars from startTime on, oldest first. 429 asks for
  patience with Retry-After, 418 is a ban, 451 refuses a region.
- Kraken: GET /0/public/OHLC gives the last 720 bars, whatever `since` says; no history.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import ccxt

from trainer.data.fetch.pages import MILLISECOND, page_of_rows
from trainer.data.fetch.source import BadAnswer, BarPage, NoSuchSymbol, SourceBusy, SourceRefused
from trainer.data.timeframes import DAY, SECOND, bar_begin, canonical, step_of

SETTLED_SECONDS = 30  # after the end of a bar, until which an exchange may still add a trade to it
_LONGEST = 7 * DAY
_REFUSALS = (403, 451)


@dataclass(frozen=True, kw_only=True)
class _Exchange:
    """Properties of one exchange: ccxt's class, bars a page, symbols at a time, and how many of its last bars
    it gives (0: all).
    """

    made: Callable[[dict[str, Any]], Any]
    title: str
    page_bars: int
    at_once: int = 4
    last_bars: int = 0


_EXCHANGES = {
    "coinbase": _Exchange(made=ccxt.coinbaseexchange, title="Coinbase", page_bars=300),
    "binance": _Exchange(made=ccxt.binance, title="Binance", page_bars=1000),
    "kraken": _Exchange(made=ccxt.kraken, title="Kraken", page_bars=720, at_once=1, last_bars=720),
}


class CoinSource:
    """Bars of an exchange. Each thread has a ccxt object of its own, whose rate limit is its share of all."""

    always_open, actions = True, False
    library = f"ccxt {ccxt.__version__}"

    def __init__(self, name: str, *, address: str = "", synthetic: bool = False) -> None:
        """`address`: ask a server on loopback that answers as the exchange does."""
        self._kind, self._name, self._address = _EXCHANGES[name], name, address
        self.synthetic, self.at_once = synthetic, self._kind.at_once
        self._own, self._lock = threading.local(), threading.Lock()
        self._markets: Any = None

    def timeframes(self) -> tuple[str, ...]:
        names = [name for name in self._exchange().timeframes if not name.endswith("M")]
        return tuple(canonical(name) for name in names if step_of(name) <= _LONGEST)

    def spelled(self, symbol: str) -> str:
        base, _, quote = symbol.rpartition("-")
        return f"{base}/{quote}" if base and "/" not in symbol else symbol

    def now(self) -> int:
        with self._told():
            return int(self._exchange().fetch_time()) * MILLISECOND

    def complete_until(self, timeframe: str, now: int) -> int:
        return bar_begin(now - SETTLED_SECONDS * SECOND, step_of(timeframe))

    def earliest(self, timeframe: str, now: int) -> tuple[int, str]:
        if not (last := self._kind.last_bars):
            return 0, ""
        begin = self.complete_until(timeframe, now) - (last - 1) * step_of(timeframe)  # one is unfinished
        return begin, f"{self._kind.title} gives its last {last} bars alone, and no history"

    def page(self, symbol: str, timeframe: str, since: int, until: int) -> BarPage:
        step = step_of(timeframe)
        if self._name == "coinbase":
            return self._of_coinbase(symbol, timeframe, since, until, step)
        rows = self._rows(symbol, timeframe, since, until - 1, self._kind.page_bars)
        last = self._name == "kraken"
        page = page_of_rows(rows, since=since, until=until, step=step, covers_until=until, may_skip=last)
        if last or len(rows) < self._kind.page_bars or not len(page):
            return page
        return replace(page, covers_until=int(page.timestamp[-1]) + step)

    def _of_coinbase(self, symbol: str, timeframe: str, since: int, until: int, step: int) -> BarPage:
        end = min(until, since + self._kind.page_bars * step)
        rows = self._rows(symbol, timeframe, since, end - step, self._kind.page_bars)
        page = page_of_rows(rows, since=since, until=end, step=step, covers_until=end, may_skip=True)
        if len(page) or page.dropped or end >= until or step >= DAY:
            return page
        # Nothing, and more to ask for: find the first day with a trade, such as that of a listing.
        days = self._kind.page_bars * DAY
        begin = since // DAY * DAY
        found = self._rows(symbol, "1d", begin, begin + days - DAY, self._kind.page_bars)
        until_day = begin + days
        listed = page_of_rows(
            found, since=begin, until=until_day, step=DAY, covers_until=until_day, may_skip=True
        )
        later = [int(time) for time in listed.timestamp if time >= end]
        if any(time < end and time + DAY > end for time in listed.timestamp):
            return page  # the day goes on
        return BarPage(covers_until=min(until, later[0] if later else max(end, begin + days)))

    def _rows(self, symbol: str, timeframe: str, since: int, until: int, limit: int) -> Any:
        with self._told():
            exchange = self._exchange(markets=True)
            asked = self.spelled(symbol)
            if asked not in exchange.markets:
                near = "" if "/" in asked else ": write BASE-QUOTE, such as BTC-USD"
                raise NoSuchSymbol(f"{self._kind.title} has no market {asked}{near}")
            last = {} if self._kind.last_bars else {"until": until // MILLISECOND}
            exchange.last_json_response = None
            rows = exchange.fetch_ohlcv(asked, timeframe, since // MILLISECOND, limit, last)
            self._refuse_other_answers(exchange, exchange.market(asked)["id"])
            return rows

    def _refuse_other_answers(self, exchange: Any, market: str) -> None:
        """Raise BadAnswer unless the answer was a list of bars: ccxt takes a page of HTML for no bars."""
        found = exchange.last_json_response
        if self._name == "kraken":
            result = found.get("result") if isinstance(found, dict) else None
            found = result.get(market) if isinstance(result, dict) else None
        if not isinstance(found, list):
            text = " ".join(str(exchange.last_http_response).split())[:60]
            raise BadAnswer(f"a list of bars was expected, not {text!r}")

    def _exchange(self, *, markets: bool = False) -> Any:
        if not hasattr(self._own, "exchange"):
            made = self._kind.made({"enableRateLimit": True, "timeout": 30_000, "requests_trust_env": True})
            made.rateLimit *= self.at_once
            made.options["fetchMarkets"] = {"types": ["spot"]}
            made.has["fetchCurrencies"], made.enableLastJsonResponse = False, True
            made.parse_ohlcvs = lambda rows, market=None, *_: [made.parse_ohlcv(row, market) for row in rows]
            if self._address:
                made.urls["api"]["public"], made.requests_trust_env = self._address, False
                made.session.trust_env, made.rateLimit = False, 0
            self._own.exchange = made
        exchange = self._own.exchange
        if markets and not exchange.markets:
            with self._lock:
                if self._markets is None:
                    self._markets = list(exchange.load_markets().values())
                else:
                    exchange.set_markets(self._markets)
        return exchange

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn ccxt's errors into those of a source."""
        try:
            yield
        except ccxt.BadSymbol as error:
            raise NoSuchSymbol(_words(error)) from error
        except ccxt.BaseError as error:
            response = getattr(error.__cause__ or error.__context__, "response", None)
            status = getattr(response, "status_code", 0)
            if status in _REFUSALS:
                why = (
                    f"{self._kind.title} refuses to answer here (HTTP {status}): it serves some regions alone"
                )
                raise SourceRefused(why) from error
            if isinstance(error, ccxt.NetworkError):
                raise SourceBusy(_words(error, status), _retry_after(response)) from error
            raise BadAnswer(_words(error, status)) from error
        except (TypeError, ValueError, KeyError, IndexError, AttributeError, RecursionError) as error:
            # What ccxt does with an answer that is not what its exchange documents.
            raise BadAnswer(f"ccxt can't read the answer ({type(error).__name__}: {error})"[:200]) from error


def _words(error: Exception, status: int = 0) -> str:
    text = " ".join(str(error).split())[:160] or type(error).__name__
    return f"HTTP {status}: {text}" if status else text


def _retry_after(response: Any) -> float | None:
    text = str(response.headers.get("Retry-After", "")) if response is not None else ""
    return float(text) if text.isascii() and text.isdigit() else None
