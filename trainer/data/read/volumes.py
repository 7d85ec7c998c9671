"""Find where the unit of a volume seems to change: its level jumps from one block of bars to the next, and
stays.

A block is a UTC day if the bars cover enough of them, else a few bars, and one bar of a day or longer. Its
level is the geometric mean of its volumes above zero, so that a single large bar moves it little. A jump
counts if the blocks before and after it are apart as a whole, apart from one on each side: a busy week, or a
share that is listed and takes off, has days in between.
"""

from __future__ import annotations

import numpy as np

from trainer.data.pieces import PIECE
from trainer.data.timeframes import DAY, step_of

# As log10. Shares against lots are 2 apart, thousands 3, coins against dollars the price.
_LEAST_JUMP, _LEAST_GAP = 1.5, 0.7  # of the medians; between the blocks before and after
_FEWEST, _MOST = 5, 10  # blocks on each side
_LEAST_BARS = 8  # of a block within a day


def level_changes(timestamp_N: np.ndarray, volume_N: np.ndarray, timeframe: str) -> list[tuple[int, float]]:
    """Return the bars from which the volume has another level, each with the log10 of how many times it
    grew.
    """
    rows = None if (volume_N > 0).all() else np.flatnonzero(volume_N > 0)
    if rows is not None:
        timestamp_N, volume_N = timestamp_N[rows], volume_N[rows]
    begins_B = _blocks(timestamp_N, step_of(timeframe))
    if len(begins_B) < 2 * _FEWEST:
        return []
    level_B = _levels(volume_N, begins_B)
    jumps_B = _jumps(level_B)
    changes = []
    for run in _runs(np.abs(jumps_B) >= _LEAST_JUMP):
        block = run[np.abs(jumps_B[run]).argmax()]
        low = begins_B[max(0, block - 2)]
        high = begins_B[block + 2] if block + 2 < len(begins_B) else len(volume_N)
        row = low + _best_cut(np.log10(volume_N[low:high]))
        changes.append((int(row if rows is None else rows[row]), float(jumps_B[block])))
    return changes


def _levels(volume_N: np.ndarray, begins_B: np.ndarray) -> np.ndarray:
    """Return the mean log10 (B,) of the volumes of each block, some blocks at a time."""
    ends_B = np.append(begins_B[1:], len(volume_N))
    level_B = np.empty(len(begins_B))
    first = 0
    while first < len(begins_B):
        start = begins_B[first]
        after = max(first + 1, int(np.searchsorted(ends_B, start + PIECE, side="right")))
        sums = np.add.reduceat(np.log10(volume_N[start : ends_B[after - 1]]), begins_B[first:after] - start)
        level_B[first:after] = sums / (ends_B - begins_B)[first:after]
        first = after
    return level_B


def _blocks(timestamp_N: np.ndarray, step: int) -> np.ndarray:
    """Return the first bar (B,) int64 of each block."""
    if not len(timestamp_N):
        return np.empty(0, dtype=np.int64)
    if step >= DAY:
        return np.arange(len(timestamp_N))
    starts = np.arange(timestamp_N[0] // DAY, timestamp_N[-1] // DAY + 1) * DAY
    days = np.unique(np.searchsorted(timestamp_N, np.maximum(starts, timestamp_N[0])))
    if len(days) >= 2 * _FEWEST:
        return days
    return np.arange(0, len(timestamp_N), max(_LEAST_BARS, len(timestamp_N) // (2 * _MOST)))


def _jumps(level_B: np.ndarray) -> np.ndarray:
    """Return for each block the step (B,) of the median level there, 0 where the blocks on both sides are not
    apart.
    """
    jumps = np.zeros(len(level_B))
    # Only where neighbours, or the blocks around a mixed one, differ: the windows below are costly.
    near = np.zeros(len(level_B), dtype=bool)
    near[1:] = np.abs(np.diff(level_B)) > _LEAST_GAP
    for block in np.flatnonzero(near):
        before = np.sort(level_B[max(0, block - _MOST) : block])
        after = np.sort(level_B[block : block + _MOST])
        if min(len(before), len(after)) < _FEWEST:
            continue
        step = float(np.median(after) - np.median(before))
        gap = after[1] - before[-2] if step > 0 else before[1] - after[-2]
        if gap > _LEAST_GAP:
            jumps[block] = step
    return jumps


def _runs(true_B: np.ndarray) -> list[np.ndarray]:
    """Return the numbers of neighbouring blocks that are true, a list of them for each run."""
    numbers = np.flatnonzero(true_B)
    return np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1) if len(numbers) else []


def _best_cut(logs: np.ndarray) -> int:
    """Return the number of the first value after the cut that divides values into the two groups furthest
    apart.
    """
    count = np.arange(1, len(logs))
    apart = np.cumsum(logs - logs.mean())[:-1]
    return int((apart**2 / (count * (len(logs) - count))).argmax()) + 1
