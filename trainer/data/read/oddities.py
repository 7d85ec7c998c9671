"""Find implausible bars: prices far off their neighbours, jumps like splits, closes outside high and low.

A close far off both neighbours is refused (`candles`); everything else becomes a note in the plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from trainer.base.text import some_of
from trainer.data.pieces import rows_where
from trainer.data.read.candles import Candles, commonest_step, far_apart, time_text
from trainer.data.read.shapes import FIELDS
from trainer.data.read.volumes import level_changes
from trainer.data.timeframes import EVENTS, SECOND, origin_of, step_of

# Log ratio of a close to the one before, or of a high or low to its bar, from which it is noted.
_FAR = np.log(10)
_SPLITS = (
    *((new, 1) for new in (2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 25, 30, 40, 50, 100, 1000)),
    (3, 2),
    (5, 4),
)
_LOG_SPLITS = np.log([new / old for new, old in _SPLITS])
_SMALLEST_SPLIT = np.log(5 / 4 * 0.97)
# Tolerances as shares of the jump's log ratio, and as log ratios: of the jump to a split, and of the medians
# around it to the jump. A gap of a quarter is more often news than a split, so it has to be near 5:4.
_NEAR_A_SPLIT, _STAYS = (0.13, 0.1), (0.35, 0.25)
_AROUND = 5  # bars before and after a split that are compared
_ROUNDING = 1e-4  # share of a price by which a close may be outside high and low, as with adjusted prices


@dataclass(frozen=True, kw_only=True)
class DataNote:
    """A remark on a symbol's bars or on a file: its subject, a text shared by all remarks of its kind, and
    details.
    """

    subject: str
    text: str
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Oddity:
    """Implausible bars of one kind: a text, the rows (K,) int64, ascending, and details beyond their number
    and the first.
    """

    text: str
    rows: np.ndarray
    detail: str = ""


def oddities(candles: Candles) -> list[DataNote]:
    """Return notes on implausible bars of a symbol."""
    notes = []
    for odd in odd_bars(candles):
        count, first = len(odd.rows), time_text(candles.timestamp[odd.rows[0]])
        counts = f"at {first}" if count == 1 else f"{count} bars, the first at {first}"
        notes.append(DataNote(subject=candles.symbol, text=odd.text, detail=odd.detail or counts))
    timeframe = candles.timeframe
    if step_of(timeframe) and (step := commonest_step(candles.timestamp)) not in (timeframe, EVENTS):
        text = f"bars should be of {timeframe}, but most are {step} apart"
        notes.append(DataNote(subject=candles.symbol, text=text))
    if (
        len(candles)
        and _are_ends(candles.timestamp[[0, -1]], timeframe)
        and _are_ends(candles.timestamp, timeframe)
    ):
        text = "times are in the last second of a bar, as ends are; bring starts, or side series look ahead"
        notes.append(DataNote(subject=candles.symbol, text=text, detail=time_text(candles.timestamp[0])))
    return notes


def _are_ends(timestamp_N: np.ndarray, timeframe: str) -> bool:
    """Return whether all times are in the last second of a bar that begins at a multiple of its length."""
    step = step_of(timeframe)
    return step > SECOND and bool(((timestamp_N - origin_of(step)) % step >= step - SECOND).all())


def odd_bars(candles: Candles) -> list[Oddity]:
    """Return the implausible bars of a symbol, each kind that it has."""
    open_N, high_N, low_N, close_N = (getattr(candles, name) for name in FIELDS[:4])
    rows = far_apart(close_N[1:], close_N[:-1], _FAR) + 1
    rows = rows[np.abs(np.log(close_N[rows]) - np.log(close_N[rows - 1])) > _FAR]
    jumps = _jumps(open_N, close_N)
    wide = far_apart(high_N, low_N, _FAR)
    highest, lowest = np.maximum(open_N[wide], close_N[wide]), np.minimum(open_N[wide], close_N[wide])
    above, below = np.log(high_N[wide]) - np.log(highest), np.log(lowest) - np.log(low_N[wide])

    def is_outside(part: slice) -> np.ndarray:
        highest_N, lowest_N = (pick(open_N[part], close_N[part]) for pick in (np.maximum, np.minimum))
        return np.asarray(
            (highest_N > high_N[part] * (1 + _ROUNDING)) | (lowest_N < low_N[part] * (1 - _ROUNDING))
        )

    cases = {
        "open or close lies outside high and low": rows_where(len(candles), is_outside),
        "high or low is more than ten times off open and close": wide[above + below > _FAR],
        "close changes more than tenfold from one bar to the next": np.setdiff1d(rows, jumps),
    }
    odd = [Oddity(text=text, rows=rows) for text, rows in cases.items() if len(rows)]
    return [*odd, *_splits(candles, jumps), *_volumes(candles)]


def _jumps(open_N: np.ndarray, close_N: np.ndarray) -> np.ndarray:
    """Return the bars, ascending, that open at a split's ratio to the previous close, with prices staying
    there.
    """
    jumps = []
    for row in far_apart(open_N[1:], close_N[:-1], _SMALLEST_SPLIT):
        gap = abs(float(np.log(open_N[row + 1]) - np.log(close_N[row])))
        before, after = close_N[max(0, row + 1 - _AROUND) : row + 1], close_N[row + 1 : row + 1 + _AROUND]
        moved = abs(float(np.log(np.median(after)) - np.log(np.median(before))))
        near, stays = (min(share * gap, most) for share, most in (_NEAR_A_SPLIT, _STAYS))
        is_split = np.abs(_LOG_SPLITS - gap).min() < near and abs(moved - gap) < stays
        if gap > _SMALLEST_SPLIT and is_split:
            jumps.append(int(row) + 1)
    return np.array(jumps, dtype=np.int64)


def _splits(candles: Candles, rows: np.ndarray) -> list[Oddity]:
    if not len(rows):
        return []
    cases = []
    for row in rows[:3]:
        ratio = float(candles.close[row - 1] / candles.open[row])
        more_of, less = _SPLITS[int(np.abs(_LOG_SPLITS - abs(np.log(ratio))).argmin())]
        change = f"{more_of}:{less}" if ratio > 1 else f"{less}:{more_of}"
        cases.append(f"{change} at {time_text(candles.timestamp[row])}")
    more = f" and {len(rows) - 3} more" if len(rows) > 3 else ""
    text = "prices jump as at a split; bring adjusted prices, such as a column Adj Close"
    return [Oddity(text=text, rows=rows, detail=", ".join(cases) + more)]


def _volumes(candles: Candles) -> list[Oddity]:
    changes = level_changes(candles.timestamp, candles.volume, candles.timeframe)
    if not changes:
        return []
    cases = []
    for row, jump in changes[:3]:
        larger = "larger" if jump > 0 else "smaller"
        cases.append(f"{10 ** abs(jump):,.0f} times {larger} from {time_text(candles.timestamp[row])}")
    more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
    text = "volume changes its level and stays there, as if its unit changed; bring one unit"
    rows = np.array([row for row, _ in changes])
    return [Oddity(text=text, rows=rows, detail=", ".join(cases) + more)]


def lines_of(notes: Iterable[DataNote]) -> tuple[str, ...]:
    """Return notes as lines, one line for all notes with the same text."""
    by_text: dict[str, dict[str, str]] = {}
    for note in notes:
        by_text.setdefault(note.text, {}).setdefault(note.subject, note.detail)
    lines = []
    for text, details in by_text.items():
        names = list(details)
        detail = details[names[0]]
        case = f" ({detail})" if len(names) == 1 else f" ({names[0]}: {detail})"
        lines.append(f"{some_of(names, 3)}: {text}{case if detail else ''}")
    return tuple(lines)
