"""The context of a bar: its series and the calendar at its start."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import numpy as np
import pytest

from trainer.base.settings import CONTEXT
from trainer.data.context import context_of
from trainer.data.timeframes import step_of


@pytest.mark.parametrize("timeframe", ["1m", "4h", "1d", "1w", "4w", "tick100"])
def test_context_agrees_with_datetime(timeframe):
    begin, step = datetime(1999, 12, 27, 9, 44, tzinfo=timezone.utc), step_of(timeframe)
    times = [begin + number * timedelta(minutes=max(1, step // 60_000_000_000)) for number in range(500)]
    timestamp = np.array([int(time.timestamp()) for time in times]) * 1_000_000_000
    context_TC = context_of(timestamp, timeframe, series=7)
    day, short = step_of("1d"), step < step_of("1d")
    for row, time in zip(context_TC.tolist(), times, strict=True):
        weekday = time.isoweekday() if step <= day else 0
        month = time.month if step <= 14 * day else 0
        assert row == [7, weekday, month, (time.hour * 60 + time.minute) // 15 + 1 if short else 0]


def test_context_numbers_stay_within_their_limits():
    hours = np.arange(0, 400 * 24 * 4, dtype=np.int64) * 900_000_000_000
    most = context_of(hours, "15m", series=1).max(0).tolist()
    assert most == [1, *list(CONTEXT.values())[1:]]
