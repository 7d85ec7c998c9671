"""Yahoo through yfinance, against answers in the format of its chart API, made here after yfinance's documentation
and source: prices are made up.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

from trainer.base.errors import DataError
from trainer.data.fetch.fetching import Fetch, FetchReport, FetchRequest
from trainer.data.fetch.folder import fetched_files
from trainer.data.fetch.stocks import Action, page_of
from trainer.data.read.actions import adjust_by_actions
from trainer.data.read.candles import Candles
from trainer.data.read.reading import CandleFolder, read_candles
from trainer.data.read.writing import write_candles
from trainer.data.timeframes import DAY, SECOND

yfinance = pytest.importorskip("yfinance", reason="the extra fetch is not installed")
import requests  # noqa: E402

from trainer.data.fetch.stocks import StockSource  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword")  # of yfinance 1.7.0 with pandas 3.1
FIRST = 1_704_153_600  # 2024-01-02, a Tuesday
DAYS = [FIRST + 86_400 * day for day in range(60) if (day + 1) % 7 not in (5, 6)]
SPLIT, DIVIDEND = DAYS[20], DAYS[30]


@dataclass(kw_only=True)
class Yahoo(requests.adapters.BaseAdapter):
    """Days of AAPL as traded: 400 before a split of 4:1, then 100; a dividend of 2. `now`: what it knows."""

    now: int = FIRST + 100 * 86_400
    faults: list[Any] = field(default_factory=list)  # bodies in place of a chart, or a status
    unadjusted: bool = False  # the split is told, its prices are not yet adjusted
    asked: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def close(self) -> None:
        pass

    def send(self, request: Any, **_: Any) -> Any:
        url = urlsplit(request.url)
        answer = requests.Response()
        answer.request, answer.url, answer.status_code = request, request.url, 200
        if not url.path.startswith("/v8/finance/chart/"):
            answer._content = b"crumb"
            return answer
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        ticker = url.path.rpartition("/")[2]
        body: Any = _gone() if ticker != "AAPL" else self._chart(query)
        if "period1" in query:
            self.asked.append(query)
            if self.faults:
                body = self.faults.pop(0)
        if isinstance(body, int):
            answer.status_code, body = body, "no"
        elif ticker != "AAPL":
            answer.status_code = 404
        answer._content = (body if isinstance(body, str) else json.dumps(body)).encode()
        return answer

    def _chart(self, query: dict[str, str]) -> dict[str, Any]:
        begin = int(query.get("period1", 0))
        days = [day for day in DAYS if day + 86_400 > begin and day < self.now]
        if query["interval"] == "1d":
            times = [day + 5 * 3600 + 9 * 1800 for day in days]  # 9:30 in New York, in winter
        else:
            end = int(query["period2"])
            times = [day + 52_200 + 3600 * hour for day in days for hour in range(7)]
            times = [time for time in times if begin <= time < min(end, self.now)]
        known = [SPLIT] if self.now > SPLIT else []
        close = [400.0 if time < SPLIT else 100.0 for time in times]
        rise = [1 + (time // 3600) % 5 / 100 for time in times]
        adjust = [4.0 if known and time < SPLIT and not self.unadjusted else 1.0 for time in times]
        price = [value * up / by for value, up, by in zip(close, rise, adjust, strict=True)]
        volume = [int(1000 * by) for by in adjust]
        events: dict[str, Any] = {}
        if known:
            at = SPLIT + 52_200
            ratio = {"date": at, "numerator": 4.0, "denominator": 1.0, "splitRatio": "4:1"}
            events["splits"] = {str(at): ratio}
        if self.now > DIVIDEND:
            events["dividends"] = {str(DIVIDEND + 52_200): {"amount": 2.0, "date": DIVIDEND + 52_200}}
        quote = {
            "open": price,
            "high": [value * 1.01 for value in price],
            "low": [value * 0.99 for value in price],
            "close": price,
            "volume": volume,
        }
        meta = {
            "currency": "USD",
            "symbol": "AAPL",
            "instrumentType": "EQUITY",
            "exchangeTimezoneName": "America/New_York",
            "timezone": "EST",
            "gmtoffset": -18_000,
            "priceHint": 2,
            "firstTradeDate": FIRST,
            "regularMarketTime": self.now,
            "dataGranularity": query["interval"],
            "validRanges": ["1d", "5d", "1mo", "max"],
            "tradingPeriods": [[_session(day)] for day in days] or [[_session(FIRST)]],
        }
        indicators: dict[str, Any] = {"quote": [quote]}
        if query["interval"] == "1d":
            indicators["adjclose"] = [{"adjclose": price}]
        result = {"meta": meta, "timestamp": times, "events": events, "indicators": indicators}
        return {"chart": {"result": [result], "error": None}}


def _session(day: int) -> dict[str, Any]:
    return {"timezone": "EST", "start": day + 52_200, "end": day + 75_600, "gmtoffset": -18_000}


def _gone() -> dict[str, Any]:
    error = {"code": "Not Found", "description": "No data found, symbol may be delisted"}
    return {"chart": {"result": None, "error": error}}


def test_nobody_reads_what_yfinance_thinks_of_pandas() -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.filterwarnings("default", category=DeprecationWarning, module="^yfinance")  # as it does
        StockSource()
        warnings.warn_explicit("inplace", DeprecationWarning, "utils.py", 568, module="yfinance.utils")
        warnings.warn_explicit("ours", UserWarning, "x.py", 1, module="trainer.x")
    assert [str(one.message) for one in told] == ["ours"]


@pytest.fixture
def yahoo(tmp_path: Path) -> Iterator[Yahoo]:
    yfinance.set_tz_cache_location(str(tmp_path / "cache"))
    adapter = Yahoo()
    adapter.session = requests.Session()  # type: ignore[attr-defined]
    adapter.session.mount("https://", adapter)  # type: ignore[attr-defined]
    yfinance.data.YfData.cache_get.cache_clear()
    yield adapter


def fetch(yahoo: Yahoo, out: Path, *symbols: str, timeframe: str = "1d", **asked: Any) -> FetchReport:
    source = StockSource(yahoo.session)  # type: ignore[attr-defined]
    source.now = lambda: yahoo.now * SECOND  # type: ignore[method-assign]
    begins = dict.fromkeys(symbols or ("AAPL",), FIRST * SECOND)
    request = FetchRequest(source="yahoo", begins=begins, timeframe=timeframe, **asked)
    return Fetch(request, source, out, pause=lambda seconds: False).run()


def test_files_of_before_a_split_stay_true(yahoo: Yahoo, tmp_path: Path) -> None:
    yahoo.now = DAYS[10] + 43_200
    fetch(yahoo, tmp_path / "parts")
    yahoo.now = DAYS[40] + 43_200
    (second,) = fetch(yahoo, tmp_path / "parts").added
    fetch(yahoo, tmp_path / "once")
    parts, once = (read_candles(tmp_path / name)["AAPL"] for name in ("parts", "once"))
    assert len(fetched_files(tmp_path / "parts")) == 2 and second.record.actions
    assert parts.timestamp.tolist() == once.timestamp.tolist() == [day * SECOND for day in DAYS[:40]]
    for name in ("open", "high", "low", "close", "volume"):
        assert np.allclose(getattr(parts, name), getattr(once, name), rtol=1e-12), name
    assert parts.close[0] == pytest.approx(100 * (1 - 2 / 104))  # 104 the day before
    assert (parts.volume == 4000).sum() == 20  # before the split, in shares of today
    assert np.abs(np.diff(np.log(parts.close))).max() < 0.1  # no jump


def test_days_before_1970_are_asked_for(yahoo: Yahoo, tmp_path: Path) -> None:
    source = StockSource(yahoo.session)  # type: ignore[attr-defined]
    for out, since, begins in (
        ("index", -10_000 * DAY, -10_000 * DAY),
        ("all", -(10**6) * DAY, -25_567 * DAY),
    ):
        request = FetchRequest(source="yahoo", begins={"AAPL": since}, timeframe="1d")
        (added,) = Fetch(request, source, tmp_path / out, pause=lambda seconds: False).run().added
        assert added.record.covers_from == begins
        assert min(int(asked["period1"]) for asked in yahoo.asked) < begins // SECOND
        assert fetched_files(tmp_path / out)[0].record.covers_from == begins


def test_a_file_has_prices_as_traded_and_actions_beside_them(yahoo: Yahoo, tmp_path: Path) -> None:
    (file,) = fetch(yahoo, tmp_path).added
    import pyarrow.parquet as pq

    table = pq.read_table(file.path).to_pydict()
    assert {round(close) // 100 for close in table["close"][:20]} == {4}
    assert {round(close) // 100 for close in table["close"][20:]} == {1}
    assert set(table["volume"]) == {1000.0}
    assert [at for at, ratio in enumerate(table["split"]) if ratio == 4.0] == [20]
    assert [(at, money) for at, money in enumerate(table["dividend"]) if money] == [(30, 2.0)]


def test_hours_take_the_splits_of_the_days(yahoo: Yahoo, tmp_path: Path) -> None:
    fetch(yahoo, tmp_path, timeframe="1h")
    candles = read_candles(tmp_path)["AAPL"]
    assert len(candles) == 7 * len(DAYS) and candles.timestamp[0] == (FIRST + 52_200) * SECOND
    assert np.abs(np.diff(np.log(candles.close))).max() < 0.1
    assert (candles.volume[: 20 * 7] == 4000).all() and (candles.volume[20 * 7 :] == 1000).all()


def test_hours_that_are_fetched_each_day_know_every_split(yahoo: Yahoo, tmp_path: Path) -> None:
    for day in DAYS[18:34]:
        yahoo.now = day + 86_400 + 8 * 3600
        fetch(yahoo, tmp_path / "each", timeframe="1h")
    fetch(yahoo, tmp_path / "once", timeframe="1h")
    each, once = (read_candles(tmp_path / name)["AAPL"] for name in ("each", "once"))
    assert np.abs(np.diff(np.log(each.close))).max() < 0.1  # the split's day begins a file
    assert each.timestamp.tolist() == once.timestamp.tolist()
    assert np.allclose(each.close, once.close, rtol=1e-12) and (each.volume == once.volume).all()


@pytest.mark.nightly
def test_minutes_say_how_far_they_reach(yahoo: Yahoo, tmp_path: Path) -> None:
    yahoo.now = DAYS[-1] + 43_200
    report = fetch(yahoo, tmp_path, timeframe="1m")
    assert report.limit == "Yahoo gives the last 30 days alone of bars of 1m"
    windows = [
        int(asked["period2"]) - int(asked["period1"]) for asked in yahoo.asked if asked["interval"] == "1m"
    ]
    assert windows and max(windows) <= 7 * 86_400


def test_delisted_tickers_are_told_and_stop_nothing(yahoo: Yahoo, tmp_path: Path) -> None:
    chosen = {"chosen_by": "sp500.txt", "chosen_symbols": 2}
    report = fetch(yahoo, tmp_path, "GONE", "AAPL", **chosen)
    assert report.failures == {"GONE": "Yahoo has no prices of it: possibly delisted, or another spelling"}
    assert [file.record.symbol for file in report.added] == ["AAPL"]
    notes = CandleFolder(tmp_path, tmp_path).notes
    assert any("adjusted here by the source's splits and dividends" in note for note in notes)
    assert any("chosen by sp500.txt" in note for note in notes)


def test_a_split_without_adjusted_prices_waits(yahoo: Yahoo, tmp_path: Path) -> None:
    yahoo.unadjusted = True
    report = fetch(yahoo, tmp_path)
    assert (
        "has not adjusted its prices for the split of 2024-01-30: fetch it later" in report.failures["AAPL"]
    )
    assert not fetched_files(tmp_path)


@pytest.mark.parametrize(
    "fault",
    [
        "<html>Will be right back</html>",
        "<html>",
        "[" * 100_000,
        '{"chart": {"result"',
        {"chart": {}},
        {"finance": {}},
        500,
        429,
    ],
)
def test_wrong_answers_are_asked_about_again(fault: Any, yahoo: Yahoo, tmp_path: Path) -> None:
    yahoo.faults = [fault, fault] if isinstance(fault, int) else [fault]  # yfinance asks twice by itself
    report = fetch(yahoo, tmp_path)
    assert not report.failures and len(read_candles(tmp_path)["AAPL"]) == len(DAYS)


def test_as_traded_undoes_later_splits_alone() -> None:
    times = np.arange(4) * DAY
    actions = [
        Action(time=2 * DAY, split=2.0),
        Action(time=3 * DAY, dividend=1.0),
        Action(time=DAY, dividend=0.5),
    ]
    values = np.array([[50.0] * 4] * 4 + [[20.0] * 4])
    page = page_of(times, values, actions, DAY, 4 * DAY, begin=0)
    assert page.values[0].tolist() == [100.0, 50.0, 50.0] and page.values[4].tolist() == [10.0, 20.0, 20.0]
    assert page.actions is not None
    assert page.actions.tolist() == [[1.0, 2.0, 1.0], [1.0, 0.0, 1.0]]


def test_adjusting_is_that_of_yahoos_adjusted_close() -> None:
    values = np.array([[100.0, 100.0, 50.0, 50.0]] * 4 + [[10.0, 10.0, 20.0, 20.0]])
    adjust_by_actions(values, np.array([1.0, 1.0, 2.0, 0.0]), np.array([0.0, 0.0, 0.0, 1.0]))
    assert values[3].tolist() == [49.0, 49.0, 49.0, 50.0] and values[4].tolist() == [20.0] * 4


def test_prices_as_traded_are_not_joined_with_others(yahoo: Yahoo, tmp_path: Path) -> None:
    fetch(yahoo, tmp_path)
    one = np.full(3, 100.0)
    times = (DAYS[-1] + 86_400 * np.arange(1, 4)) * SECOND
    values = dict.fromkeys(("open", "high", "low", "close", "volume"), one)
    write_candles(
        tmp_path / "AAPL_1d_own.parquet", [Candles(symbol="AAPL", timeframe="1d", timestamp=times, **values)]
    )
    with pytest.raises(
        DataError, match="has prices of AAPL as traded, with splits and dividends; AAPL_1d_own"
    ):
        read_candles(tmp_path)
