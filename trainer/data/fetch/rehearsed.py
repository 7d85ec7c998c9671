"""An exchange in this process, for rehearsals: an HTTP server on loopback that answers as Binance documents
its spot API, with generated bars.

GET /api/v3/time, /api/v3/exchangeInfo and /api/v3/klines, in the format of
https://developers.binance.com/docs/binance-spot-api-docs/rest-api (read 2026-11-27). Its bars depend on
symbol and time alone, have no holes, and begin in 2017; files made from them are marked synthetic.
"""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np

from trainer.data.fetch.coins import CoinSource
from trainer.data.timeframes import SECOND, bar_begin, step_of

COINS = ("ADA", "BTC", "DOGE", "ETH", "LTC", "SOL", "XRP")
QUOTES = ("USD", "USDT")
BEGIN = 1_483_228_800  # 2017-01-01T00:00:00Z, in seconds
MOST_BARS = 1000  # of an answer
_DAYS = 40_000  # until 2126
_DAY, _MINUTE = 86_400, 60
_MINUTES = _DAY // _MINUTE
_MILLISECONDS = 1000


def open_rehearsed(clock: Callable[[], float] = time.time) -> CoinSource:
    """Start the exchange, and return the source that asks it. It ends with the process."""
    server = serve(clock)
    return CoinSource("binance", address=f"http://127.0.0.1:{server.server_port}/api/v3", synthetic=True)


def serve(clock: Callable[[], float]) -> ThreadingHTTPServer:
    """Serve the exchange on a free port of loopback, on a thread of its own."""

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(asked.query).items()}
            status, body = answer(asked.path, query, clock())
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *words: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="exchange", daemon=True).start()
    return server


def answer(path: str, query: Mapping[str, str], now: float) -> tuple[int, Any]:
    """Return status and body of a request at `now` (seconds)."""
    name = path.rpartition("/")[2]
    if name == "time":
        return 200, {"serverTime": int(now * _MILLISECONDS)}
    if name == "exchangeInfo":
        return 200, {
            "timezone": "UTC",
            "symbols": [_market(coin, quote) for coin in COINS for quote in QUOTES],
        }
    if name == "klines":
        known = {f"{coin}{quote}" for coin in COINS for quote in QUOTES}
        if query.get("symbol") not in known:
            return 400, {"code": -1121, "msg": "Invalid symbol."}
        return 200, _klines(query, now)
    return 404, {"code": -1, "msg": "Not found."}


def _market(coin: str, quote: str) -> dict[str, Any]:
    places = {"baseAssetPrecision": 8, "quotePrecision": 8, "quoteAssetPrecision": 8}
    return {
        "symbol": f"{coin}{quote}",
        "status": "TRADING",
        "baseAsset": coin,
        "quoteAsset": quote,
        **places,
        "orderTypes": ["LIMIT"],
        "isSpotTradingAllowed": True,
        "isMarginTradingAllowed": False,
        "permissions": ["SPOT"],
        "filters": [],
    }


def _klines(query: Mapping[str, str], now: float) -> list[list[Any]]:
    length = step_of(query["interval"])
    least = max(int(query.get("startTime", 0)) // _MILLISECONDS, BEGIN)
    step, first = length // SECOND, bar_begin(least * SECOND + length - 1, length) // SECOND
    until = min(int(query.get("endTime", now * _MILLISECONDS)) // _MILLISECONDS, int(now))
    count = min(int(query.get("limit", 500)), MOST_BARS, (until - first) // step + 1)
    if count <= 0:
        return []
    return [_kline(query["symbol"], first + step * bar, step) for bar in range(count)]


def _kline(symbol: str, begin: int, step: int) -> list[Any]:
    parts, at = [], begin
    while at < begin + step:
        day, second = divmod(at - BEGIN, _DAY)
        end = min(begin + step - at, _DAY - second)
        if step < _MINUTE:
            parts.append(_within(_minutes(symbol, day)[:, second // _MINUTE], second % _MINUTE, end))
        else:
            parts.append(_minutes(symbol, day)[:, second // _MINUTE : (second + end) // _MINUTE])
        at += end
    bars = np.concatenate(parts, axis=1)
    prices = (bars[0, 0], bars[1].max(), bars[2].min(), bars[3, -1])
    volume = float(bars[4].sum())
    texts = [f"{price:.6f}" for price in prices]
    closes = (begin + step) * _MILLISECONDS - 1
    money = f"{volume * float(bars[3, -1]):.6f}"
    return [begin * _MILLISECONDS, *texts, f"{volume:.6f}", closes, money, 1, "0", "0", "0"]


def _within(minute: np.ndarray, second: int, seconds: int) -> np.ndarray:
    """Return the bar (5, 1) of some seconds of a minute (5,), in which the price goes straight from open to
    close.
    """
    opened, close = (
        minute[0] * (minute[3] / minute[0]) ** (at / _MINUTE) for at in (second, second + seconds)
    )
    bar = [opened, max(opened, close), min(opened, close), close, minute[4] * seconds / _MINUTE]
    return np.array(bar)[:, None]


@cache
def _closes(symbol: str) -> np.ndarray:
    """Return the logarithms of the prices at each midnight, (days + 1,): a random walk with a pull to its
    start.
    """
    random = np.random.default_rng([zlib.crc32(symbol.encode()), 2017])
    steps = random.normal(0, 0.03, _DAYS)
    logs, at = np.empty(_DAYS + 1), 0.0
    logs[0] = at
    for day, move in enumerate(steps):
        at = 0.999 * at + move
        logs[day + 1] = at
    return np.asarray(logs + np.log(10.0 + zlib.crc32(symbol.encode()) % 1000))


@lru_cache(maxsize=400)  # days, of 57 kB
def _minutes(symbol: str, day: int) -> np.ndarray:
    """Return open, high, low, close and volume of a day's minutes, (5, 1440): a bridge between midnights."""
    random = np.random.default_rng([zlib.crc32(symbol.encode()), day])
    begin, end = _closes(symbol)[day : day + 2]
    walk = np.cumsum(random.normal(0, 0.03 / np.sqrt(_MINUTES), _MINUTES))
    share = np.arange(1, _MINUTES + 1) / _MINUTES
    close = begin + walk - share * walk[-1] + share * (end - begin)
    open_ = np.concatenate([[begin], close[:-1]])
    reach = np.abs(random.normal(0, 0.01 / np.sqrt(_MINUTES), (2, _MINUTES)))
    high, low = np.maximum(open_, close) + reach[0], np.minimum(open_, close) - reach[1]
    volume = random.lognormal(1.0, 0.7, _MINUTES)
    return np.vstack([np.exp([open_, high, low, close]), volume[None]])
