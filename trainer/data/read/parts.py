"""The files with bars of one symbol, in a form that other processes can read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from trainer.base.errors import DataError
from trainer.data.read.arrays import ARRAY, load
from trainer.data.read.candles import check_order
from trainer.data.read.sources import Series, open_candles, read_series


@dataclass(frozen=True, kw_only=True)
class Part:
    """A file with bars of one symbol only: a candle file, or an array file made from the candle file `file`.

    `timeframe` is that of its bars if they are resampled, else ''.
    """

    path: Path
    file: str
    timeframe: str = ""
    is_adjusted: bool = False


def series_of(symbol: str, parts: Sequence[Part], columns: Sequence[str]) -> list[Series]:
    """Return the bars of a symbol in each of its files, oldest first. Raises DataError."""
    series = []
    for part in parts:
        if part.path.suffix == ARRAY:
            rows = load(part.path)
            timestamp, values = rows["timestamp"].copy(), np.ascontiguousarray(rows["values"].T)
            one = Series(
                file=part.file,
                symbol=symbol,
                timestamp=timestamp,
                values=values,
                is_adjusted=part.is_adjusted,
            )
            series.append(one)
        else:
            source = open_candles(part.path, part.file)
            whole, *others = read_series(source, columns)
            if others or source.has_symbol_column and whole.symbol != symbol:
                what = f"{part.file} holds other symbols than when it was opened"
                raise DataError(what, why=f"{whole.symbol} beside {symbol}", do="Write the file again.")
            series.append(replace(whole, symbol=symbol))
        series[-1] = _oldest_first(series[-1])
        check_order(series[-1])
    return series


def _oldest_first(series: Series) -> Series:
    """Return a series sorted newest first reversed; any other unchanged."""
    if len(series.timestamp) < 2 or not (np.diff(series.timestamp) < 0).all():
        return series
    return replace(
        series, timestamp=series.timestamp[::-1].copy(), values=np.ascontiguousarray(series.values[:, ::-1])
    )
