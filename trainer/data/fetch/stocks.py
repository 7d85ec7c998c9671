"""Stocks of Yahoo Finance, through yfinance: prices as traded, with splits and dividends beside them.

Yahoo's prices, volumes and dividends are adjusted for every split up to the day of the download, so that a
later split changes all of them. They are stored as traded instead: its own splits are undone, and the reader
applies those of all files (`trainer/data/read/actions.py`). Facts of yfinance 1.7.0 and its documentation
(https://ranaroussi.github.io/yfinance, read 2026-11-27):

- `auto_adjust=False` gives prices adjusted for splits, not for dividends.
- Minutes reach back 30 days, 8 days a request; 2m to 15m 60 days; 1h 730 days; days have no limit.
- YFRateLimitError asks for patience. A ticker without prices is "possibly delisted".
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import numpy as np
import pandas as pd
import yfinance
from yfinance.cache import get_cookie_cache, get_tz_cache
from yfinance.data import YfData
from yfinance.exceptions import YFException, YFRateLimitError, YFTickerMissingError

from trainer.data.fetch.pages import possible_bars
from trainer.data.fetch.source import BadAnswer, BarPage, NoSuchSymbol, SourceBusy
from trainer.data.timeframes import DAY, SECOND

SETTLED = 6 * 3600 * SECOND  # after a day (UTC) until its bars are whole: Yahoo adds trades after the close
CONTEXT = 10 * DAY  # asked for before the first day, for actions of days without trading
# Days that Yahoo goes back, less one, and days of a page. It is asked for with the day before, since an
# action has the time of its midnight: whether a bar of that day lies before the page decides whose it is.
_REACH = {"1m": (29, 6), "2m": (59, 59), "5m": (59, 59), "15m": (59, 59), "1h": (729, 729)}
_FIRST = -25_567 * DAY  # 1900-01-01: its oldest index, ^GSPC, begins in December 1927
_PRICES = ["Open", "High", "Low", "Close", "Volume"]
_GONE = "Yahoo has no prices of it: possibly delisted, or another spelling"
_LEAST_SPLIT = np.log(1.2)  # below it a price can't tell whether it is adjusted
_TRANSIENT = (
    "Timeout",
    "ConnectionError",
    "ChunkedEncodingError",
    "SSLError",
    "ConnectTimeout",
    "ReadTimeout",
    "OperationalError",  # of yfinance's cache in SQLite, while another process writes it
)


@dataclass(frozen=True, kw_only=True)
class Action:
    """A split (new shares for one old) or a dividend (of a share, in Yahoo's adjusted units) at `time`."""

    time: int
    split: float = 1.0
    dividend: float = 0.0


class StockSource:
    """Bars of Yahoo. `session`: of requests or curl_cffi, for tests; else yfinance makes its own."""

    always_open, actions, synthetic, at_once = False, True, False, 4
    library = f"yfinance {yfinance.__version__}"

    def __init__(self, session: Any = None) -> None:
        self._session = session
        yfinance.config.debug.hide_exceptions = False
        logging.getLogger("yfinance").setLevel(logging.CRITICAL)  # its errors are ours to tell
        # It switches its own on as it is imported: with pandas 3.1 fifty lines a ticker.
        warnings.filterwarnings("ignore", category=DeprecationWarning, module="yfinance")
        with suppress(Exception):  # its caches make their tables once, and not in several threads
            for cache in (get_tz_cache(), get_cookie_cache()):
                cache.lookup("")

    def timeframes(self) -> tuple[str, ...]:
        return (*_REACH, "1d")

    def spelled(self, symbol: str) -> str:
        return symbol

    def now(self) -> int:
        return time.time_ns()

    def complete_until(self, timeframe: str, now: int) -> int:
        return (now - SETTLED) // DAY * DAY

    def earliest(self, timeframe: str, now: int) -> tuple[int, str]:
        if timeframe not in _REACH:
            return _FIRST, ""
        days, _ = _REACH[timeframe]
        return (now // DAY - days) * DAY, f"Yahoo gives the last {days + 1} days alone of bars of {timeframe}"

    def page(self, symbol: str, timeframe: str, since: int, until: int) -> BarPage:
        daily = self._history(symbol, "1d", since - CONTEXT, None)
        if daily is None:
            raise NoSuchSymbol(_GONE)
        dates = _nanoseconds(daily.index.tz_localize(None))
        _refuse_unadjusted(dates, daily)
        if timeframe == "1d":
            actions, begin = _actions(dates, daily), since - CONTEXT
            return page_of(dates, _values(daily), actions, since, until, begin=begin)
        actions = _actions(_nanoseconds(daily.index.tz_convert("UTC")), daily)
        end = min(until, since + _REACH[timeframe][1] * DAY)
        begin = min(since, max(since - DAY, self.earliest(timeframe, self.now())[0]))
        frame = self._history(symbol, timeframe, begin, end)
        if frame is None:
            return BarPage(covers_until=end, actions=np.zeros((2, 0)))
        times = _nanoseconds(frame.index.tz_convert("UTC"))
        return page_of(times, _values(frame), actions, since, end, begin=begin)

    def _history(self, symbol: str, timeframe: str, since: int, until: int | None) -> Any:
        """Return yfinance's table, None if Yahoo has no prices there."""
        span = {"start": _moment(since), "end": None if until is None else _moment(until)}
        with self._told():
            try:
                ticker = yfinance.Ticker(symbol, session=self._session)
                frame = ticker.history(interval=timeframe, auto_adjust=False, timeout=30, **span)
            except YFTickerMissingError as error:
                if until is None and getattr(error, "yahoo_reason", error) is None:
                    raise BadAnswer("an answer without prices, and without a reason") from error
                return None
            if not isinstance(frame, pd.DataFrame) or not set(_PRICES) <= set(frame.columns):
                raise BadAnswer("a table of prices was expected")
            if frame.empty:
                return None
            if getattr(frame.index, "tz", None) is None or not frame.index.is_monotonic_increasing:
                raise BadAnswer("its times have no time zone, or no order")
            return frame

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn yfinance's errors into those of a source."""
        try:
            yield
        except BadAnswer:
            raise
        except YFRateLimitError as error:
            raise SourceBusy("too many requests", 30.0) from error
        except Exception as error:  # of two HTTP libraries, and of yfinance's own reading of an answer
            YfData.cache_get.cache_clear()  # it would give the same answer again
            words = " ".join(str(error).split())[:160] or type(error).__name__
            status = getattr(getattr(error, "response", None), "status_code", 0)
            if status == 404:
                raise NoSuchSymbol(_GONE) from error
            if status >= 500 or type(error).__name__ in _TRANSIENT or "DOWN" in words:
                raise SourceBusy(words) from error
            wrong = (YFException, OSError, ValueError, LookupError, TypeError, AttributeError)
            if isinstance(error, (*wrong, RecursionError)):
                raise BadAnswer(f"{type(error).__name__}: {words}") from error
            raise


def page_of(
    times: np.ndarray,
    values: np.ndarray,
    actions: Sequence[Action],
    since: int,
    until: int,
    *,
    begin: int,
) -> BarPage:
    """Return the bars of [since, until) as traded, from Yahoo's `times` (N,) and `values` (5, N), which were
    asked for from `begin` on, and all actions since.
    """
    possible = possible_bars(values)
    kept = (times >= since) & (times < until)
    dropped = int((kept & ~possible).sum())
    times, values, kept = times[possible], values[:, possible].copy(), kept[possible]
    if (np.diff(times) <= 0).any():
        raise BadAnswer("two bars have the same time")
    values[:4] *= _splits_after(times, actions)
    values[4] /= _splits_after(times, actions)
    told = np.stack([np.ones(len(times)), np.zeros(len(times))])
    for action in actions:
        place = int(np.searchsorted(times, action.time))
        if place == len(times) or action.time < begin:
            continue  # of a bar after these, or before
        told[0, place] *= action.split
        told[1, place] += action.dividend * float(_splits_after(np.array([action.time]), actions)[0])
    return BarPage(
        covers_until=until,
        timestamp=times[kept],
        values=values[:, kept],
        actions=told[:, kept],
        dropped=dropped,
    )


def _splits_after(times: np.ndarray, actions: Sequence[Action]) -> np.ndarray:
    """Return the product of the splits after each time, (N,)."""
    factors = np.ones(len(times))
    for action in actions:
        factors[times < action.time] *= action.split
    return factors


def _actions(times: np.ndarray, frame: Any) -> list[Action]:
    found = []
    columns = (frame["Stock Splits"].to_numpy(float), frame["Dividends"].to_numpy(float))
    for moment, split, dividend in zip(times, *columns, strict=True):
        split, dividend = (
            float(value) if np.isfinite(value) and value > 0 else 0.0 for value in (split, dividend)
        )
        if split or dividend:
            found.append(Action(time=int(moment), split=split or 1.0, dividend=dividend))
    return found


def _refuse_unadjusted(dates: np.ndarray, daily: Any) -> None:
    """Raise NoSuchSymbol for a split whose earlier prices Yahoo has not adjusted yet: undoing it would be
    wrong for good.
    """
    split, opened, close = (daily[name].to_numpy(float) for name in ("Stock Splits", "Open", "Close"))
    for place in np.flatnonzero(np.isfinite(split) & (split > 0)):
        ratio = np.log(split[place])
        if place == 0 or abs(ratio) < _LEAST_SPLIT:
            continue
        jump = np.log(close[place - 1] / opened[place])
        if not abs(jump) < abs(jump - ratio):
            day = str(np.datetime64(int(dates[place]), "ns").astype("datetime64[D]"))
            raise NoSuchSymbol(f"Yahoo has not adjusted its prices for the split of {day}: fetch it later")


def _nanoseconds(index: Any) -> np.ndarray:
    return np.asarray(index.as_unit("ns").asi8)


def _values(frame: Any) -> np.ndarray:
    return np.array(frame[_PRICES].to_numpy(dtype=np.float64).T)


def _moment(time: int) -> datetime:
    return datetime.fromtimestamp(time // SECOND, tz=timezone.utc)
