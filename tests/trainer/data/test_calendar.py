from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from trainer.data.calendar import holes, infer_calendar, session_clock
from trainer.data.timeframes import DAY

MINUTE = 60_000_000_000


def minutes(first: str, count: int, zone: str = "UTC") -> np.ndarray:
    return (
        pd.date_range(pd.Timestamp(first, tz=zone), periods=count, freq="min")
        .tz_convert("UTC")
        .as_unit("ns")
        .asi8
    )


def sessions(
    first: str, days: int, *, zone: str, opens: str, count: int, step: str = "min", eve: int = 0
) -> np.ndarray:
    """Bars of every weekday's session, in the exchange's own time; `eve` 1 opens it on the evening before."""
    dates = pd.bdate_range(first, periods=days) - pd.Timedelta(days=eve)
    parts = [
        pd.date_range(pd.Timestamp(f"{date.date()} {opens}", tz=zone), periods=count, freq=step)
        for date in dates
    ]
    return np.concatenate([part.tz_convert("UTC").as_unit("ns").asi8 for part in parts])


def found(timestamps: np.ndarray, timeframe: str, calendar: str) -> list[str]:
    """The first bars after holes, as text."""
    rows = np.flatnonzero(holes(timestamps, timeframe, calendar))
    return [str(timestamps[row].astype("datetime64[ns]").astype("datetime64[m]")) for row in rows]


def test_coins_trade_on_saturdays() -> None:
    assert infer_calendar(minutes("2024-01-01", 8 * 1440), "1m") == "24x7"


def test_coins_may_begin_late_on_a_saturday() -> None:
    assert infer_calendar(minutes("2024-01-06 20:00", 8 * 1440), "1m") == "24x7"


@pytest.mark.parametrize(("hours", "calendar"), [(11, "sessions"), (13, "24x7")])
def test_half_a_saturday_makes_a_coin(hours: int, calendar: str) -> None:
    """Brokers quote for some hours of a Saturday."""
    week = sessions("2024-01-01", 15, zone="UTC", opens="00:00", count=1440)
    series = np.sort(np.concatenate([week, minutes("2024-01-06", hours * 60)]))
    assert infer_calendar(series, "1m") == calendar


def test_coins_with_large_holes_are_still_coins() -> None:
    series = minutes("2024-01-01", 40 * 1440)
    assert infer_calendar(np.concatenate([series[: 8 * 1440], series[35 * 1440 :]]), "1m") == "24x7"


def test_a_few_minutes_without_a_hole_count_as_24x7() -> None:
    assert infer_calendar(minutes("2024-01-02", 300), "1m") == "24x7"


def test_a_few_days_with_nights_are_sessions() -> None:
    series = sessions("2024-01-01", 3, zone="America/New_York", opens="09:30", count=390)
    assert infer_calendar(series, "1m") == "sessions"


def test_weekdays_are_sessions() -> None:
    days = pd.bdate_range("2024-01-01", periods=60).as_unit("ns").asi8
    assert infer_calendar(days, "1d") == "sessions"
    assert infer_calendar(pd.date_range("2024-01-01", periods=60).as_unit("ns").asi8, "1d") == "24x7"


def test_ticks_are_events() -> None:
    assert infer_calendar(minutes("2024-01-01", 8 * 1440), "tick2800") == "events"


def test_any_missing_bar_is_a_hole_round_the_clock() -> None:
    series = np.delete(minutes("2024-01-01", 1000), [100, 101, 500])
    assert found(series, "1m", "24x7") == ["2024-01-01T01:42", "2024-01-01T08:21"]


@pytest.mark.parametrize(
    ("zone", "opens", "count", "eve"),
    [
        ("America/New_York", "09:30", 390, 0),
        ("America/New_York", "04:00", 960, 0),  # with the hours before and after, past midnight UTC in winter
        ("Asia/Tokyo", "09:00", 360, 0),
        (
            "America/Chicago",
            "17:00",
            1380,
            1,
        ),  # futures: all day but one hour, and that hour moves with summer time
        ("Australia/Sydney", "10:00", 360, 0),
    ],
)
def test_a_missing_bar_is_a_hole_and_a_night_is_not(zone: str, opens: str, count: int, eve: int) -> None:
    series = sessions("2024-01-01", 130, zone=zone, opens=opens, count=count, eve=eve)
    assert found(series, "1m", "sessions") == []
    row = 50 * count + count // 2
    assert found(np.delete(series, row), "1m", "sessions") == [
        str(series[row + 1].astype("datetime64[ns]").astype("datetime64[m]"))
    ]


def test_a_holiday_and_an_early_close_are_no_holes() -> None:
    series = sessions("2024-01-01", 30, zone="America/New_York", opens="09:30", count=390)
    holiday = np.arange(5 * 390, 6 * 390)
    early_close = np.arange(12 * 390 + 210, 13 * 390)
    assert found(np.delete(series, np.concatenate([holiday, early_close])), "1m", "sessions") == []


def test_a_lunch_break_is_inferred() -> None:
    morning = sessions("2024-01-01", 20, zone="Asia/Shanghai", opens="09:30", count=120)
    afternoon = sessions("2024-01-01", 20, zone="Asia/Shanghai", opens="13:00", count=120)
    series = np.sort(np.concatenate([morning, afternoon]))
    assert found(series, "1m", "sessions") == []
    assert found(np.delete(series, 10), "1m", "sessions") == ["2024-01-01T01:41"]


def test_one_day_with_a_missing_bar_has_a_hole() -> None:
    assert found(np.delete(minutes("2024-01-02 14:30", 390), 100), "1m", "sessions") == ["2024-01-02T16:11"]


def test_a_break_of_more_than_five_days_is_a_hole() -> None:
    days = (
        pd.to_datetime(["2024-03-28", "2024-04-02", "2024-04-03", "2024-04-09"]).as_unit("ns").asi8
    )  # Easter, then six days
    for calendar in ("sessions", "events"):
        assert found(days, "1d", calendar) == ["2024-04-09T00:00"]
    assert found(days, "tick100", "events") == ["2024-04-09T00:00"]


def test_hourly_sessions_over_a_change_of_clocks_have_no_hole() -> None:
    series = sessions("2024-02-26", 20, zone="America/New_York", opens="09:00", count=7, step="h")
    assert found(series, "1h", "sessions") == []
    assert len(found(np.delete(series, 3), "1h", "sessions")) == 1


@pytest.mark.parametrize(("timeframe", "step", "count"), [("1h", "h", 24), ("4h", "4h", 6)])
def test_a_currency_day_turns_when_its_week_begins(timeframe: str, step: str, count: int) -> None:
    """Currencies trade from Sunday to Friday, 17:00 in New York: five sessions, and no sixth of a Sunday's
    evening.
    """
    series = sessions("2024-02-26", 20, zone="America/New_York", opens="17:00", count=count, step=step, eve=1)
    series = series[series >= series[0] + 30 * 60 * MINUTE]  # from Tuesday on
    clock = session_clock(series, timeframe, "sessions")
    assert np.bincount(clock // DAY)[1:].tolist() == [count] * 18
    missing = np.delete(series, [count + 1, count + 2])
    assert len(found(series, timeframe, "sessions")) == 0 and len(found(missing, timeframe, "sessions")) == 1
