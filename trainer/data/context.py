"""The context of a bar: the number of its series, and the calendar at its start, as small integers for
embeddings.

Only models with `reads_context` get it. Columns and largest numbers are `trainer.base.settings.CONTEXT`.

Shapes: T bars, C columns.
"""

from __future__ import annotations

import numpy as np

from trainer.base.settings import CONTEXT
from trainer.data.timeframes import DAY, step_of

_LONGEST_MONTHLY = 14 * DAY  # longest bars that get a month
_WEEKDAY_OF_1970 = 3  # 1 January was a Thursday; Monday is 0


def context_of(timestamp: np.ndarray, timeframe: str, *, series: int) -> np.ndarray:
    """Return the context (T, C) int16 of bars that begin at `timestamp` (T,) int64 ns UTC, each from its own
    time only.

    Weekday is 1 (Monday) to 7, for bars up to a day; month 1 to 12, for bars up to two weeks; time of day 1
    to 96, in quarter hours, for bars shorter than a day. Event bars have all three. 0: not given.
    """
    step = step_of(timeframe)
    context_TC = np.zeros((len(timestamp), len(CONTEXT)), dtype=np.int16)
    days, within = np.divmod(timestamp, DAY)
    columns = {
        "series": np.full(len(timestamp), series),
        "weekday": (days + _WEEKDAY_OF_1970) % 7 + 1 if step <= DAY else 0,
        "month": timestamp.astype("datetime64[ns]").astype("datetime64[M]").astype(np.int64) % 12 + 1
        if step <= _LONGEST_MONTHLY
        else 0,
        "time_of_day": within * CONTEXT["time_of_day"] // DAY + 1 if step < DAY else 0,
    }
    for place, name in enumerate(CONTEXT):
        context_TC[:, place] = columns[name]
    return context_TC
