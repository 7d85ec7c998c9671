"""Holes and sessions of exchanges that a job names, on bars made by their published hours."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from exchange_calendars import get_calendar_names

from tests.jobs import job_of
from trainer.bars.symbol_plan import plan_symbol
from trainer.base.errors import DataError, UsageError
from trainer.data.calendar import holes, infer_calendar, session_clock
from trainer.data.table import CALENDARS, EXCHANGES, DataSettings
from trainer.data.timeframes import DAY

NEW_YORK, TOKYO = "America/New_York", "Asia/Tokyo"
# nyse.com/markets/hours-calendars: closed on 23 November 2023 (Thanksgiving), closes at 13:00 on the day
# after.
THANKSGIVING = (
    "2023-11-21 9:30-16:00",
    "2023-11-22 9:30-16:00",
    "2023-11-24 9:30-13:00",
    "2023-11-27 9:30-16:00",
)


def bars(*spans: str, zone: str = NEW_YORK, step: str = "1min") -> np.ndarray:
    """Bars that begin within spans of an exchange's own time, such as '2023-11-22 9:30-16:00'."""
    parts = []
    for span in spans:
        day, hours = span.split(" ")
        first, last = (pd.Timestamp(f"{day} {time}", tz=zone) for time in hours.split("-"))
        parts.append(
            pd.date_range(first, last, freq=step, inclusive="left").tz_convert("UTC").as_unit("ns").asi8
        )
    return np.concatenate(parts)


def after(timestamps: np.ndarray, timeframe: str, calendar: str, zone: str = NEW_YORK) -> list[str]:
    """The first bars after holes, in the exchange's time."""
    rows = np.flatnonzero(holes(timestamps, timeframe, calendar))
    return [str(moment)[:16] for moment in pd.to_datetime(timestamps[rows], utc=True).tz_convert(zone)]


@pytest.mark.parametrize(("timeframe", "step"), [("1m", "1min"), ("30m", "30min"), ("1h", "60min")])
def test_holidays_and_early_closes_are_no_holes(timeframe: str, step: str) -> None:
    series = bars(*THANKSGIVING, step=step)
    assert after(series, timeframe, "XNYS") == []
    on_the_hour = series // (60 * 60_000_000_000) * (60 * 60_000_000_000) if timeframe == "1h" else series
    assert after(on_the_hour, timeframe, "XNYS") == []


def test_a_missing_part_of_a_known_session_is_a_hole() -> None:
    whole_day = bars(THANKSGIVING[0], *THANKSGIVING[2:])
    late_close = bars("2023-11-21 9:30-15:30", *THANKSGIVING[1:])
    late_open = bars(THANKSGIVING[0], "2023-11-22 10:00-16:00", *THANKSGIVING[2:])
    for series, day in (
        (whole_day, "2023-11-24 09:30"),
        (late_close, "2023-11-22 09:30"),
        (late_open, "2023-11-22 10:00"),
    ):
        assert after(series, "1m", "XNYS") == [day]
        assert after(series, "1m", "sessions") == []
    inside = np.delete(bars(*THANKSGIVING), [500, 501])
    assert after(inside, "1m", "XNYS") == ["2023-11-22 11:22"]


def test_bars_before_and_after_trading_may_come_and_go() -> None:
    series = bars(
        "2023-11-21 4:00-20:00", "2023-11-22 7:00-16:00", "2023-11-24 9:30-17:00", "2023-11-27 8:15-8:20"
    )
    assert after(series, "1m", "XNYS") == []
    assert after(np.append(series, bars("2023-11-27 9:31-16:00")), "1m", "XNYS") == ["2023-11-27 09:31"]


def test_summer_time_and_a_long_holiday_are_known() -> None:
    assert after(bars("2024-03-08 9:30-16:00", "2024-03-11 9:30-16:00"), "1m", "XNYS") == []
    # Shanghai, Golden Week of 2023: closed from 29 September to 8 October.
    week = bars(
        "2023-09-28 9:30-11:30", "2023-09-28 13:00-15:00", "2023-10-09 9:30-11:30", zone="Asia/Shanghai"
    )
    assert after(week, "1m", "XSHG") == []
    assert after(week, "1m", "sessions", "Asia/Shanghai")[-1] == "2023-10-09 09:30"


def test_a_known_lunch_break_is_no_hole() -> None:
    spans = [
        f"2024-0{month}-1{day} {hours}"
        for month in (3, 4)
        for day in (1, 2)
        for hours in ("9:00-11:30", "12:30-15:00")
    ]
    spans = [span for span in spans if span < "2024-03-13"]
    series = bars(*spans, zone=TOKYO)
    assert after(series, "1m", "XTKS", TOKYO) == []
    assert after(np.delete(series, 150), "1m", "XTKS", TOKYO) == ["2024-03-11 12:31"]


def test_a_session_without_a_daily_bar_is_a_hole() -> None:
    dates = pd.to_datetime(["2023-11-21", "2023-11-22", "2023-11-24", "2023-11-27", "2023-11-29"])
    for times in (
        dates.tz_localize("UTC"),
        dates.tz_localize(NEW_YORK),
        (dates + pd.Timedelta("9h30min")).tz_localize(NEW_YORK),
    ):
        rows = np.flatnonzero(holes(times.tz_convert("UTC").as_unit("ns").asi8, "1d", "XNYS"))
        assert rows.tolist() == [4]  # the 28th
    sydney = (
        pd.bdate_range("2024-02-01", periods=12, tz="UTC").as_unit("ns").asi8
    )  # a session opens on the evening before
    assert not holes(sydney, "1d", "XASX").any()
    ticks = bars(*THANKSGIVING[:2], "2023-11-28 9:30-16:00")
    assert np.flatnonzero(holes(ticks, "tick100", "XNYS")).tolist() == [780]


def test_a_sessions_clock_follows_the_exchange_and_not_utc() -> None:
    series = bars("2024-03-08 8:00-16:00", "2024-03-11 9:30-18:00", "2024-03-12 9:30-16:00")
    clock = session_clock(series, "1m", "XNYS")
    assert (np.diff(clock) > 0).all() and np.unique(clock // DAY).tolist() == [0, 1, 2]
    opens = series.searchsorted(bars("2024-03-08 9:30-9:31", "2024-03-11 9:30-9:31", "2024-03-12 9:30-9:31"))
    assert np.diff(clock[opens]).tolist() == [DAY, DAY]  # across the change of clocks
    assert np.bincount(clock // DAY).tolist() == [480, 510, 390]


def test_a_bar_on_a_weekend_belongs_to_fridays_session() -> None:
    series = bars("2024-03-08 9:30-16:00", "2024-03-09 22:00-22:01", "2024-03-11 9:30-16:00")
    clock = session_clock(series, "1m", "XNYS")
    assert (np.diff(clock) > 0).all() and np.bincount(clock // DAY).tolist() == [391, 390]


def test_bars_outside_the_exchanges_hours_are_refused(make_candles) -> None:
    local = bars(*THANKSGIVING, zone="UTC")  # New York's times, written as if they were UTC
    with pytest.raises(
        DataError, match=r"2\d% of the bars lie in the trading hours of XNYS .times are read as UTC.*auto"
    ):
        holes(local, "1m", "XNYS")
    with pytest.raises(DataError, match=r"AAA: \d\d% of the bars lie in the trading hours of XNYS"):
        plan_symbol(make_candles(5000), job_of(calendar="XNYS"))
    with pytest.raises(DataError, match="calendar XSHG has no sessions for bars from 1970-01-01"):
        holes(np.arange(3) * DAY, "1d", "XSHG")


def test_exchanges_are_known_to_the_library_and_others_refused() -> None:
    assert set(EXCHANGES) <= set(get_calendar_names(include_aliases=True)) and list(EXCHANGES) == sorted(
        set(EXCHANGES)
    )
    with pytest.raises(
        UsageError,
        match=r"'data.calendar' is 'NYSE' .*24x7, sessions, events, and exchanges.*Did you mean XNYS",
    ):
        DataSettings(calendar="NYSE")
    assert DataSettings(calendar="XNYS").calendar == "XNYS" and not set(EXCHANGES) & set(CALENDARS)


def test_auto_is_still_inferred() -> None:
    assert infer_calendar(bars(*THANKSGIVING), "1m") == "sessions"
