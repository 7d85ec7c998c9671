"""The session clock: bars of every kind of calendar counted in sessions."""

from __future__ import annotations

import numpy as np

from trainer.data.calendar import session_clock
from trainer.data.timeframes import DAY

MINUTE = 60 * 1_000_000_000
HOUR = 60 * MINUTE
MONDAY = 1_704_067_200_000_000_000  # 2024-01-01T00:00:00Z


def test_days_of_a_coin_are_those_of_the_clock():
    times = MONDAY + 6 * HOUR * np.arange(9)
    assert (session_clock(times, "6h", "24x7") // DAY).tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2]


def test_the_session_clock_skips_weekends():
    days = np.array([0, 1, 2, 3, 4, 7, 8, 9, 10, 11])  # two weeks of five days
    times = (MONDAY + days[:, None] * DAY + 14 * HOUR + HOUR * np.arange(7)).ravel()
    clock = session_clock(times, "1h", "sessions")
    assert (clock // DAY).tolist() == np.repeat(np.arange(10), 7).tolist()
    assert (np.diff(clock.reshape(10, 7), axis=0) == DAY).all()


def test_a_session_over_midnight_is_one():
    times = (
        MONDAY + np.arange(5)[:, None] * DAY + 20 * HOUR + HOUR * np.arange(10)
    ).ravel()  # 20:00 to 05:00
    assert (session_clock(times, "1h", "sessions") // DAY).tolist() == np.repeat(np.arange(5), 10).tolist()


def test_summer_time_moves_no_bar_within_its_session():
    weeks = [(0, 14 * HOUR), (1, 13 * HOUR)]  # the clock of the exchange goes forward between them
    times = np.concatenate(
        [
            MONDAY + (7 * week + day) * DAY + opens + HOUR * np.arange(7)
            for week, opens in weeks
            for day in range(5)
        ]
    )
    clock = session_clock(times, "1h", "sessions").reshape(10, 7)
    assert (np.diff(clock % DAY, axis=0) == 0).all()


def test_bars_of_a_day_are_a_session_each():
    times = MONDAY + DAY * np.array([0, 1, 2, 3, 4, 7, 8])
    assert session_clock(times, "1d", "sessions").tolist() == (DAY * np.arange(7)).tolist()


def test_the_few_event_bars_of_a_sunday_evening_belong_to_monday():
    random = np.random.default_rng(0)
    days = [
        np.sort(MONDAY + (7 * week + day) * DAY + random.integers(8 * HOUR, 20 * HOUR, 40))
        for week in range(4)
        for day in range(5)
    ]
    sundays = [MONDAY + (7 * week + 6) * DAY + 23 * HOUR + MINUTE * np.arange(3) for week in range(3)]
    times = np.sort(np.concatenate(days + sundays))
    clock = session_clock(times, "tick100", "events")
    _, bars = np.unique(clock // DAY, return_counts=True)
    assert len(bars) == 20 and (np.diff(clock) >= 0).all()
    assert sorted(bars.tolist()) == [40] * 17 + [43] * 3
