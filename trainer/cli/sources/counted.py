"""The bars of candle files by their symbols, counted in a moment: parquet by its footer, CSV by its lines,
Arrow by its parts.

A plan without an account uses it. Nothing is checked: a launch's own check may leave bars and symbols out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.base.errors import DataError
from trainer.base.extras import needs
from trainer.data.timeframes import can_resample, canonical, step_of


@dataclass(frozen=True, kw_only=True)
class CountedBars:
    """Symbols with their bars, the timeframe of the files, and their bytes."""

    bars: dict[str, int]
    timeframe: str
    bytes: int


def count_bars(path: str, *, timeframe: str = "") -> CountedBars:
    """Count the bars of a file or folder, of one timeframe: as a training chooses, those in the files, else
    those that the longest shorter ones make. Raises DataError for files that can't be read, and if they have
    several timeframes of which none is named.
    """
    needs("pyarrow")
    from trainer.data.read.candles import commonest_step
    from trainer.data.read.folders import candle_files
    from trainer.data.read.headers import open_header
    from trainer.data.read.sources import first_times

    headers = [open_header(one.path, one.file) for one in candle_files(Path(path)).files]
    frames = sorted({header.name_timeframe for header in headers if header.name_timeframe})
    unnamed = next((header for header in headers if not header.name_timeframe), None)
    if unnamed is not None and not frames:
        frames = [commonest_step(first_times(unnamed))]
    if not timeframe and len(frames) > 1:
        why, do = f"they are {', '.join(frames)}", "Choose one with --timeframe."
        raise DataError(f"{path} holds several timeframes", why=why, do=do)
    wanted = canonical(timeframe) if timeframe else "".join(frames)
    fitting = [frame for frame in frames if frame == wanted or can_resample(frame, wanted)]
    base = max(fitting, key=step_of, default=wanted)
    chosen = [one for one in headers if one.name_timeframe in ("", base)]
    if not chosen:
        why, do = f"it has {', '.join(frames)}", "Name one of these with --timeframe."
        raise DataError(f"{path} holds no {wanted} bars", why=why, do=do)
    bars: Counter[str] = Counter()
    for header in chosen:
        bars.update(_bars_of(header))
    ratio = step_of(wanted) // step_of(base) if base != wanted else 1
    size = sum(header.path.stat().st_size for header in chosen)
    made = {symbol: count // ratio for symbol, count in sorted(bars.items())}
    return CountedBars(bars=made, timeframe=wanted, bytes=size)


def _bars_of(header: Any) -> dict[str, int]:
    """Return the bars of a file by symbol."""
    if header.has_symbol_column:
        counts = _column(header).value_counts()
        return {str(one["values"]): int(one["counts"].as_py()) for one in counts}
    return {header.name_symbol: _rows(header)}


def _column(header: Any) -> Any:
    """Return the column of a file's symbols."""
    import pyarrow.csv as pa_csv
    import pyarrow.parquet as pq

    from trainer.data.read.arrow_files import arrow_table, is_arrow
    from trainer.data.read.bounds import text_stream
    from trainer.data.read.headers import read_options

    name = header.columns["symbol"]
    if is_arrow(header.path):
        return arrow_table(header.path, [name]).column(name)
    if header.shape is None:
        return pq.read_table(header.path, columns=[name]).column(name)
    convert = pa_csv.ConvertOptions(include_columns=[name])
    with text_stream(header.path) as stream:
        table = pa_csv.read_csv(stream, convert_options=convert, **read_options(header.shape))
    return table.column(name)


def _rows(header: Any) -> int:
    """Return the rows of a file of one symbol."""
    import pyarrow.parquet as pq

    from trainer.data.read.arrow_files import arrow_rows, is_arrow
    from trainer.data.read.bounds import text_stream

    if is_arrow(header.path):
        return arrow_rows(header.path)
    if header.shape is None:
        return int(pq.ParquetFile(header.path).metadata.num_rows)
    lines, ends = 0, True
    with text_stream(header.path) as stream:
        while block := stream.read(1 << 20):
            lines += block.count(b"\n")
            ends = block.endswith(b"\n")
    first = 0 if header.shape.columns else 1
    return max(0, lines + (not ends) - int(header.shape.skip_rows) - first)
