"""Inputs of a model: features of a symbol's bars, and columns of its files. `formulas` has the formulas,
`feature_names` the names of features.

The promise: row t of a feature depends on bars t - lookback to t only, to the last bit. It does not change if
later bars are added, removed or changed, or if the series begins elsewhere (at least its lookback before t),
so that a prediction reproduces the card's metrics exactly.

Holes are not treated here: a return over a hole is a return, and `log_seconds_since_last_bar` gives its
duration.

Memory: besides the bars and the result, that of a piece of the series, whatever its length: 26 MB for version
1.0, 36 MB for every feature, and 10 MB of columns; with features of longer bars further 60 bytes for each of
a million bars and of those that they look back (measured 2026-11-27).

Shapes: N bars, M longer bars, F features or inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.base.errors import DataError
from trainer.data.feature_names import (
    AT,
    FEATURES,
    FEATURES_VERSION,
    LOOKBACK,
    WARMUP,
    warmup_of_features,
)
from trainer.data.feature_table import TABLE
from trainer.data.formulas import FORMULAS
from trainer.data.formulas.shared import FeatureBars
from trainer.data.own_features import OwnFeatures, functions_of
from trainer.data.own_features import lookback_of as lookback_of_own
from trainer.data.own_values import compute_own
from trainer.data.read.candles import Candles, longer_bars, time_text
from trainer.data.read.shapes import FIELDS
from trainer.data.rolling import last
from trainer.data.timeframes import step_of

__all__ = ["FEATURES", "FEATURES_VERSION", "WARMUP", "compute_each", "compute_inputs"]

_PIECE = 1 << 16  # rows: fit the cache, and a head of 256 is little beside them (measured 2026-11-27)
_SHORT_SERIES = 1 << 16  # rows of short series in one pass
_LONG_PIECE = 1 << 20  # rows whose longer bars are made at once


def compute_inputs(
    candles: Candles,
    *,
    features: Sequence[str] = FEATURES,
    own: OwnFeatures | None = None,
    into: Tensor | None = None,
) -> Tensor:
    """Return (N, F) float32 on the CPU, row-major: features, in their order, then the candles' columns.
    `own` has the user's functions among them. `into` (N, F), there already, takes them and is returned.

    Row t of a column is its value at bar t. It is meaningful from `candles.columns_begin` on, and zero before
    its first value. Raises DataError for features of longer bars where bars are closer than their timeframe.
    """
    rows_NF = into
    if rows_NF is None:
        width = len(features) + len(candles.columns)
        rows_NF = torch.empty(len(candles), width, dtype=torch.float32)
    groups: dict[str, list[int]] = {}
    for place, name in enumerate(features):
        if own and name in own.names:
            _write_own(candles, own, name, rows_NF[:, place])
            continue
        groups.setdefault(name.partition(AT)[2], []).append(place)
    for timeframe, places in groups.items():
        stems = [features[place].partition(AT)[0] for place in places]
        target_NF = rows_NF[:, places[0] : places[-1] + 1]  # names are in order: each group is one block
        if timeframe:
            _write_longer(candles, timeframe, stems, target_NF)
        else:
            _write_features(candles, stems, target_NF)
    for number, values_N in enumerate(candles.columns.values(), len(features)):
        column_N = torch.from_numpy(np.asarray(values_N)).to(torch.float32).nan_to_num_(nan=0.0)
        rows_NF[:, number] = column_N
    return rows_NF


def compute_each(
    parts: Sequence[Candles], *, features: Sequence[str], own: OwnFeatures | None = None
) -> Iterator[Tensor]:
    """Yield the inputs (N, F) of each series, on the CPU, many short series in one pass.

    Series are laid end to end, since a row depends only on the bars that it looks back before it. The first
    rows of each series are not meaningful and may not be finite. Features of longer bars, which begin by the
    clock, and the user's are computed of each series alone.
    """
    if own or any(AT in name for name in features):
        yield from (compute_inputs(part, features=features, own=own) for part in parts)
        return
    first, ends = 0, np.cumsum([len(part) for part in parts])
    while first < len(parts):
        start = int(ends[first - 1]) if first else 0
        end = max(first + 1, int(np.searchsorted(ends, start + _SHORT_SERIES, side="right")))
        rows_NF = compute_inputs(_end_to_end(parts[first:end]), features=features)
        yield from torch.split(rows_NF, [len(part) for part in parts[first:end]])
        first = end


def _end_to_end(parts: Sequence[Candles]) -> Candles:
    if len(parts) == 1:
        return parts[0]
    rows: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in ("timestamp", *FIELDS)
    }
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}
    return replace(parts[0], **rows, columns=columns)


def _write_features(candles: Candles, features: Sequence[str], rows_NF: Tensor) -> None:
    """Write the features, in their order.

    The series is cut into pieces that fit the cache; each starts as many bars earlier as they look back.
    """
    num_bars = len(candles)
    head = max(WARMUP, *(LOOKBACK[name] for name in features))  # what features share takes WARMUP
    formulas = [(FORMULAS[TABLE[name].function], TABLE[name].span) for name in features]
    # One transpose is faster than writing columns one by one, and no float64 column is kept.
    whole_FN = torch.empty(len(features), min(_PIECE, num_bars), dtype=torch.float32)
    for start in range(0, num_bars, _PIECE):
        stop = min(start + _PIECE, num_bars)
        part = candles.rows(max(0, start - head), stop)
        bars = FeatureBars(part, head=max(0, head - start))
        # Of the last piece a copy: torch transposes contiguous columns four times as fast.
        columns_FN = whole_FN if stop - start == whole_FN.shape[1] else whole_FN[:, : stop - start].clone()
        each = columns_FN.numpy()
        for place, (formula, span) in enumerate(formulas):
            each[place] = last(formula(bars, span), stop - start)
        rows_NF[start:stop] = columns_FN.t()


def _write_longer(candles: Candles, timeframe: str, features: Sequence[str], rows_NF: Tensor) -> None:
    """Write features of longer bars: at each bar those of the last longer bar that had closed by its end, and
    0 before the first.
    """
    short = step_of(candles.timeframe)
    head = warmup_of_features([f"{name}{AT}{timeframe}" for name in features], candles.timeframe)
    candles = replace(candles, columns={})
    for start in range(0, len(candles), _LONG_PIECE):
        part = candles.rows(max(0, start - head), start + _LONG_PIECE)
        _refuse_overlap(part, short)
        longer = longer_bars(part, timeframe)
        longer_MF = torch.empty(len(longer), len(features), dtype=torch.float32)
        _write_features(longer, features, longer_MF)
        ends_M = longer.timestamp + step_of(timeframe)
        times_N = candles.timestamp[start : start + _LONG_PIECE]
        place_N = torch.from_numpy(np.searchsorted(ends_M, times_N + short, side="right") - 1)
        values_NF = longer_MF[place_N.clamp(min=0)]
        rows_NF[start : start + _LONG_PIECE] = values_NF.masked_fill_((place_N < 0)[:, None], 0.0)


def _write_own(candles: Candles, own: OwnFeatures, name: str, column_N: Tensor) -> None:
    """Write a user's feature, in pieces that each start as many bars earlier as it looks back."""
    head = lookback_of_own(name, functions_of(own)[name])
    for start in range(0, len(candles), _LONG_PIECE):
        part = candles.rows(max(0, start - head), start + _LONG_PIECE)
        values_N = torch.from_numpy(compute_own(own, name, part))
        column_N[start : start + _LONG_PIECE] = values_N[start - max(0, start - head) :]


def _refuse_overlap(candles: Candles, short: int) -> None:
    """Raise DataError for bars that begin before the one before has ended: a longer bar would hold more of
    them than features of it may look back.
    """
    close_N = np.diff(candles.timestamp) < short
    if close_N.any():
        at = time_text(candles.timestamp[int(close_N.argmax()) + 1])
        raise DataError(
            f"{candles.symbol} has bars closer than {candles.timeframe}",
            why=f"one begins at {at}; features of longer bars count on whole bars",
            do="Name the timeframe that the bars have, or leave features with @ out.",
        )
