"""Exchanges through ccxt, against a server on loopback that answers as they document it, throttles, cuts and lies.

Its answers are in tests/recorded/exchanges.json, written after each exchange's documentation.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from trainer.base.errors import ConnectionFailed
from trainer.data.fetch.fetching import Fetch, FetchReport, FetchRequest
from trainer.data.fetch.folder import fetched_files
from trainer.data.read.reading import read_candles
from trainer.data.timeframes import SECOND

ccxt = pytest.importorskip("ccxt", reason="the extra fetch is not installed")

from trainer.data.fetch.coins import CoinSource  # noqa: E402
from trainer.data.fetch.rehearsed import answer, open_rehearsed  # noqa: E402
from trainer.data.fetch.update import requests_of  # noqa: E402

RECORDED = json.loads((Path(__file__).parents[3] / "recorded" / "exchanges.json").read_text())
NOW = 1_767_586_200  # of the recorded times: 2026-01-05 04:10
HOUR = 3600
BEGIN = NOW // HOUR * HOUR - 100 * HOUR
MONDAY = 1_764_547_200  # 2025-12-01
SYMBOLS = {"coinbase": "BTC-USD", "binance": "BTC-USDT", "kraken": "BTC-USD"}
Fault = Callable[[Any], Any]  # of an answer with candles, in place of it


class Cut(Exception):
    """The connection ends within an answer."""


class Status(Exception):
    """An answer of this status, with a header Retry-After if it has seconds."""

    def __init__(self, status: int, seconds: str = "", body: str = '{"message": "no"}') -> None:
        super().__init__(status)
        self.status, self.seconds, self.body = status, seconds, body


class Exchange:
    """A server that answers as the exchange of this name; each fault changes one answer with candles."""

    def __init__(self) -> None:
        self.name, self.faults, self.asked, self.listed = "", list[Fault](), list[tuple[int, int, int]](), 0
        exchange = self

        class Answers(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                asked = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(asked.query).items()}
                status, seconds, cut = 200, "", False
                try:
                    body = exchange.answer(asked.path, query)
                except Status as other:
                    status, seconds, body = other.status, other.seconds, other.body
                except Cut:
                    body, cut = "[[17675", True
                content = (body if isinstance(body, str) else json.dumps(body)).encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/html" if content[:1] == b"<" else "application/json")
                self.send_header("Content-Length", str(len(content) + (1000 if cut else 0)))
                if seconds:
                    self.send_header("Retry-After", seconds)
                self.end_headers()
                self.wfile.write(content)
                self.close_connection = cut

            def log_message(self, *words: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, path: str, query: dict[str, str]) -> Any:
        known = RECORDED[self.name]
        if path in known:
            return known[path]
        rows = self.candles(query)
        changed = self.faults.pop(0)(rows) if self.faults else rows
        if self.name == "kraken" and isinstance(changed, list):
            return {"error": [], "result": {"XXBTZUSD": changed, "last": NOW}}
        return changed

    def candles(self, query: dict[str, str]) -> list[list[Any]]:
        if self.name == "coinbase":
            first, last = (int(datetime.fromisoformat(query[key]).timestamp()) for key in ("start", "end"))
            step = int(query["granularity"])
            self.asked.append((step, first, last))
            assert (last - first) // step < 300, "Coinbase refuses more"
            return [[at, 99, 102, 100, 101, 2.5] for at in reversed(self.times(first, last, step))]
        if self.name == "binance":
            first, last = int(query["startTime"]) // 1000, int(query["endTime"]) // 1000
            times = self.times(first, last, HOUR)[: int(query["limit"])]
            end = (HOUR - 1) * 1000 + 999
            rest = ["250.0", 12, "1.0", "100.0", "0"]
            return [[at * 1000, "100", "102.5", "99", "101", "2.5", at * 1000 + end, *rest] for at in times]
        first = max(int(query["since"]) + HOUR, NOW // HOUR * HOUR - 719 * HOUR)
        return [
            [at, "100.0", "102.0", "99.0", "101.0", "100.5", "2.5", 12] for at in self.times(first, NOW, HOUR)
        ]

    def times(self, first: int, last: int, step: int) -> list[int]:
        begin = max(-(-first // step) * step, self.listed // step * step)
        return list(range(begin, min(last, NOW) + 1, step))


@pytest.fixture(scope="module")
def served() -> Iterator[Exchange]:
    exchange = Exchange()
    yield exchange
    exchange.server.shutdown()
    exchange.server.server_close()


@pytest.fixture
def exchange(served: Exchange) -> Exchange:
    served.faults, served.asked, served.listed = [], [], 0
    return served


def fetch(
    exchange: Exchange, out: Path, name: str, *faults: Fault, hours: int = 100, symbol: str = ""
) -> tuple[FetchReport, list[float]]:
    """Fetch the last hours of a symbol, with these faults; return the report and the pauses."""
    exchange.name, exchange.faults = name, list(faults)
    path = "/api/v3" if name == "binance" else ""
    source = CoinSource(name, address=f"http://127.0.0.1:{exchange.server.server_port}{path}")
    waited: list[float] = []
    begin = (NOW // HOUR - hours) * HOUR * SECOND
    request = FetchRequest(source=name, begins={symbol or SYMBOLS[name]: begin}, timeframe="1h")
    return Fetch(request, source, out, pause=lambda seconds: bool(waited.append(seconds))).run(), waited


@pytest.mark.parametrize("name", SYMBOLS)
def test_an_exchange_gives_whole_bars_in_order(name: str, exchange: Exchange, tmp_path: Path) -> None:
    report, waited = fetch(exchange, tmp_path, name)
    assert not report.failures and not waited
    (candles,) = read_candles(tmp_path).values()
    assert (candles.timestamp // SECOND).tolist() == list(range(BEGIN, BEGIN + 100 * HOUR, HOUR))
    high = 102.5 if name == "binance" else 102.0
    bar = [getattr(candles, field)[0] for field in ("open", "high", "low", "close", "volume")]
    assert bar == [100.0, high, 99.0, 101.0, 2.5]
    (file,) = fetched_files(tmp_path)
    assert file.record.library == f"ccxt {ccxt.__version__}" and not file.record.actions


@pytest.mark.parametrize("name", ["coinbase", "binance"])
def test_a_long_history_is_read_page_by_page(name: str, exchange: Exchange, tmp_path: Path) -> None:
    hours = 1200 if name == "binance" else 500
    fetch(exchange, tmp_path, name, hours=hours)
    assert len(read_candles(tmp_path)[SYMBOLS[name]]) == hours


def test_kraken_says_that_it_has_no_history(exchange: Exchange, tmp_path: Path) -> None:
    report, _ = fetch(exchange, tmp_path, "kraken", hours=5000)
    (file,) = report.added
    assert file.bars == 719  # the 720th is unfinished
    assert report.limit == file.record.limit == "Kraken gives its last 720 bars alone, and no history"


def test_years_before_a_listing_take_few_requests(exchange: Exchange, tmp_path: Path) -> None:
    exchange.listed = NOW // HOUR * HOUR - 100 * HOUR
    fetch(exchange, tmp_path, "coinbase", hours=30_000)
    assert len(read_candles(tmp_path)["BTC-USD"]) == 100
    assert len(exchange.asked) < 15, "100 pages of 300 hours"


def lie(status: int = 0, seconds: str = "", body: str = '{"message": "no"}') -> Fault:
    def raised(rows: Any) -> Any:
        raise Status(status, seconds, body) if status else Cut

    return raised


MENDED: dict[str, tuple[Fault, list[float]]] = {
    "throttled": (lie(429, "5"), [5.0]),
    "throttled without a time": (lie(429), [1.0]),
    "failing": (lie(503), [1.0]),
    "cut": (lie(), [1.0]),
    "HTML": (lambda rows: "<html>Just a moment...</html>", [1.0]),
    "throttled by a strange number": (lie(429, "\u00b2"), [1.0]),
    "JSON of 100,000 levels": (lambda rows: "[" * 100_000, [1.0]),
    "half a JSON": (lambda rows: json.dumps(rows)[:-9], [1.0]),
    "another JSON": (lambda rows: {"message": "maintenance"}, [1.0]),
    "no times": (lambda rows: [[None, *row[1:]] for row in rows], [1.0]),
    "texts": (lambda rows: [[*row[:1], "a", *row[2:]] for row in rows], [1.0]),
    "between bars": (lambda rows: [[row[0] + 60, *row[1:]] for row in rows[:5]], [1.0]),
    "bars that differ": (
        lambda rows: [*rows, [rows[0][0], *rows[1][1:5], rows[1][5] and 9, *rows[1][6:]]],
        [1.0],
    ),
    "wrong order": (lambda rows: sorted(rows, key=lambda row: row[0] % 7), []),
    "duplicates": (lambda rows: rows + rows[:10], []),
    "far bars, too": (lambda rows: [*rows, [rows[0][0] * 2, *rows[0][1:]]], []),
}


QUICK = (
    "throttled",
    "cut",
    "HTML",
    "JSON of 100,000 levels",
    "half a JSON",
    "bars that differ",
    "wrong order",
    "duplicates",
)
CASES = [
    pytest.param(name, lies, marks=() if name == "binance" and lies in QUICK else pytest.mark.nightly)
    for name in SYMBOLS
    for lies in MENDED
]


@pytest.mark.parametrize(("name", "lies"), CASES)
def test_a_wrong_answer_is_mended_or_asked_for_again(
    lies: str, name: str, exchange: Exchange, tmp_path: Path
) -> None:
    fault, pauses = MENDED[lies]
    report, waited = fetch(exchange, tmp_path, name, fault, hours=20)
    (candles,) = read_candles(tmp_path).values()
    assert not report.failures and waited in (pauses, []) and not exchange.faults
    assert (candles.timestamp // SECOND).tolist() == [BEGIN + (80 + bar) * HOUR for bar in range(20)]
    assert set(candles.open) == {100.0} and set(candles.volume) == {2.5}


def test_impossible_bars_become_holes_that_are_told(exchange: Exchange, tmp_path: Path) -> None:
    def bad(rows: Any) -> Any:  # low, high, open, close
        return [[row[0], 99, 98, 100, 101, 1] if row[0] == BEGIN + 90 * HOUR else row for row in rows]

    report, _ = fetch(exchange, tmp_path, "coinbase", bad, bad, hours=20)
    (record,) = (file.record for file in report.added)
    assert (record.dropped, record.hole_bars) == (1, 1) and len(read_candles(tmp_path)["BTC-USD"]) == 19


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (
            lie(451),
            r"Binance refuses to answer here \(HTTP 451\): it serves some regions alone. Choose another",
        ),
        (lie(418, "90000"), r"binance does not answer \(HTTP 418.*asks for 90,000 s\)"),
    ],
)
def test_a_refusal_ends_the_fetch_with_one_line(
    fault: Fault, why: str, exchange: Exchange, tmp_path: Path
) -> None:
    with pytest.raises(ConnectionFailed, match=why) as error:
        fetch(exchange, tmp_path, "binance", fault)
    assert "\n" not in str(error.value) and not list(tmp_path.iterdir())


def test_answers_that_stay_wrong_fail_the_symbol(exchange: Exchange, tmp_path: Path) -> None:
    html: Fault = lambda rows: "<html>\n<b>Just a moment...</b></html>"  # noqa: E731
    report, waited = fetch(exchange, tmp_path, "coinbase", *[html] * 4)
    assert waited == [1.0, 2.0, 4.0] and not list(tmp_path.iterdir())
    assert report.failures["BTC-USD"].startswith("coinbase gave 4 wrong answers: ")


def test_a_page_that_repeats_itself_ends(exchange: Exchange, tmp_path: Path) -> None:
    first: list[Any] = []

    def repeat(rows: Any) -> Any:
        first[:] = first or rows
        return first

    report, _ = fetch(exchange, tmp_path, "binance", *[repeat] * 9, hours=2500)
    assert "none of the bars is of the time that was asked for" in report.failures["BTC-USDT"]


def test_an_unknown_market_is_named(exchange: Exchange, tmp_path: Path) -> None:
    report, _ = fetch(exchange, tmp_path, "coinbase", symbol="BTCUSD")
    assert report.failures == {"BTCUSD": "Coinbase has no market BTCUSD: write BASE-QUOTE, such as BTC-USD"}


def test_the_rehearsals_exchange_gives_the_same_bars_always(tmp_path: Path) -> None:
    request = FetchRequest(source="rehearsal", begins={"ETH-USD": BEGIN * SECOND}, timeframe="1h")
    for out in ("one", "two"):
        Fetch(request, open_rehearsed(lambda: NOW), tmp_path / out).run()
    one, two = (next((tmp_path / out).iterdir()) for out in ("one", "two"))
    assert (one.name, one.read_bytes()) == (two.name, two.read_bytes())
    (candles,) = read_candles(tmp_path / "one").values()
    assert len(candles) == 100 and (candles.high >= candles.low).all()
    day = (BEGIN // 86_400 + 1) * 86_400_000
    asked = {"symbol": "ETHUSD", "startTime": str(day), "endTime": str(day), "interval": "1d"}
    ((_, opened, *_),) = answer("/klines", asked, NOW)[1]
    hours = {**asked, "interval": "1h"}
    assert answer("/klines", hours, NOW)[1][0][1] == opened


def test_the_rehearsals_exchange_knows_its_markets_and_its_time() -> None:
    assert answer("/api/v3/klines", {"symbol": "NOPE", "interval": "1h"}, NOW)[0] == 400
    future = {"symbol": "BTCUSD", "interval": "1h", "startTime": str((NOW + HOUR) * 1000)}
    assert answer("/api/v3/klines", future, NOW) == (200, [])
    assert answer("/api/v3/depth", {}, NOW)[0] == 404


def test_weeks_begin_on_mondays_and_none_is_left_out(tmp_path: Path) -> None:
    week, now = 7 * 24 * HOUR, [MONDAY + 3 * 7 * 24 * HOUR + HOUR]
    request = FetchRequest(source="rehearsal", begins={"ETH-USD": MONDAY * SECOND}, timeframe="1w")
    report = Fetch(request, open_rehearsed(lambda: now[0]), tmp_path).run()
    assert not report.failures
    for _ in range(3):  # refreshes, each a week later
        now[0] += week
        (again,) = requests_of(fetched_files(tmp_path))
        Fetch(again, open_rehearsed(lambda: now[0]), tmp_path).run()
    (candles,) = read_candles(tmp_path).values()
    assert candles.timestamp.tolist() == [(MONDAY + number * week) * SECOND for number in range(6)]


def test_the_rehearsals_exchange_has_the_seconds_of_its_minutes() -> None:
    asked = {"symbol": "ETHUSD", "startTime": str(MONDAY * 1000), "limit": "60"}
    (minute, *_) = answer("/klines", {**asked, "interval": "1m"}, MONDAY + 120)[1]
    seconds = answer("/klines", {**asked, "interval": "1s"}, MONDAY + 120)[1]
    assert len(seconds) == 60 and seconds[1][0] == (MONDAY + 1) * 1000
    assert (seconds[0][1], seconds[-1][4]) == (minute[1], minute[4])
    assert sum(float(bar[5]) for bar in seconds) == pytest.approx(float(minute[5]), abs=1e-4)


def test_seconds_of_one_minute_are_files_of_their_own(tmp_path: Path) -> None:
    request = FetchRequest(source="rehearsal", begins={"ETH-USD": MONDAY * SECOND}, timeframe="1s")
    now = [MONDAY + 30]
    for _ in range(3):
        now[0] += 10  # the last half minute is not settled yet
        report = Fetch(request, open_rehearsed(lambda: now[0]), tmp_path).run()
        assert [file.bars for file in report.added] == [10]
    (candles,) = read_candles(tmp_path).values()
    assert candles.timestamp.tolist() == [(MONDAY + number) * SECOND for number in range(30)]
