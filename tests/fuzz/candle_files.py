"""Properties of good bars in any dialect: they are read bit for bit, or refused where they have two
readings; and for the shapes of docs/data.md, changed: no bar is lost in silence.
"""

from __future__ import annotations

import gzip
import re
import tempfile
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.drawn import is_shown
from tests.trainer.data.shapes import SHAPES
from trainer.base.errors import DataError
from trainer.data.read.reading import CandleFolder
from trainer.data.read.sniffing import sniff
from trainer.data.timeframes import step_of

COLUMNS = {
    "open": ("open", "Open", "<OPEN>", "o", "1. open", "price_open"),
    "high": ("high", "High", "<HIGH>", "h", "2. high"),
    "low": ("low", "LOW", "<LOW>", "l", "3. low"),
    "close": ("close", "Close", "<CLOSE>", "c", "4. close", "Close/Last"),
    "volume": ("volume", "Volume", "<VOL>", "v", "Volume BTC", "real_volume"),
}
TIME_COLUMNS = (
    *("time", "Date", "timestamp", "Open Time", "datetime"),
    *("window_start", "unix", "", "Unnamed: 0", "<DATE>"),
)
UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
FORMATS = (  # of a moment; those in the last line need a day above 12, unless it is certain from the dots
    *("%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%SZ", "%Y/%m/%d %H:%M", "%Y.%m.%d %H:%M", "%Y%m%d%H%M"),
    *("%Y-%m-%d %H:%M:%S UTC", "%d.%m.%Y %H:%M:%S.000", "%d-%b-%Y %H:%M", "%b %d, %Y %H:%M"),
    *("%Y%m%d %H%M%S", "%Y-%m-%d %I-%p", "%d.%m.%Y %H:%M GMT+0000"),
    *("%m/%d/%Y %H:%M", "%d/%m/%Y %H:%M", "%m/%d/%Y %I:%M %p", "%d-%m-%Y %H:%M:%S"),
)
CLOCKS = ("%H:%M", "%H:%M:%S", "%H%M%S", "%I:%M %p")
DAYS = ("%Y-%m-%d", "%Y.%m.%d", "%Y%m%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y")


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """Bars, and a file of them as somebody writes it."""

    name: str
    content: bytes
    symbol: str
    timeframe: str  # '' where the name does not tell
    moments: list[int]  # ns, ascending
    bars: list[tuple[float, ...]]
    has_two_readings: bool
    others: tuple[str, ...] = ()


def _texts(draw: st.DrawFn, moments: list[datetime]) -> tuple[str, list[str], list[str], bool]:
    """Return the time's column, the cells of it, those of a date beside it, and whether they have two
    readings.
    """
    kind = draw(st.sampled_from(("epoch", "text", "joined")))
    open_days = all(moment.day <= 12 for moment in moments)
    if kind == "epoch":
        unit = UNITS[draw(st.sampled_from(sorted(UNITS)))]
        cells = [str(int(moment.timestamp()) * unit) for moment in moments]
        return draw(st.sampled_from(TIME_COLUMNS)), cells, [], False
    if kind == "text":
        style = draw(st.sampled_from(FORMATS))
        if "%I-%p" in style and any(moment.minute for moment in moments):
            style = FORMATS[0]
        two_readings = open_days and bool(re.match(r"%[dm][/-]%[dm]", style))
        cells = [moment.strftime(style) for moment in moments]
        return draw(st.sampled_from(TIME_COLUMNS)), cells, [], two_readings
    clock, day = draw(st.sampled_from(CLOCKS)), draw(st.sampled_from(DAYS))
    times, dates = ([moment.strftime(style) for moment in moments] for style in (clock, day))
    return draw(st.sampled_from(("time", "<TIME>", "Time"))), times, dates, open_days and "/" in day


@st.composite
def dialects(draw: st.DrawFn) -> Dialect:
    """Draw good bars in a dialect."""
    timeframe = draw(st.sampled_from(("1m", "5m", "15m", "1h", "4h")))
    step = step_of(timeframe) // 10**9
    count = draw(st.integers(3, 40))
    begin = draw(st.integers(631_152_000 // step, 1_893_456_000 // step)) * step
    gaps = draw(st.sets(st.integers(1, count - 2), max_size=count // 3))
    kept = [row for row in range(count) if row not in gaps]
    moments = [datetime.fromtimestamp(begin + step * row, timezone.utc) for row in kept]
    digits = draw(st.integers(0, 5))
    base = draw(st.sampled_from((1.1, 110.25, 47_123.0)))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    bars = []
    for _ in moments:
        opened, close = (round(base * (1 + 0.01 * random.standard_normal()), digits) for _ in range(2))
        wick = 10.0**-digits
        high = round(max(opened, close) + wick, digits)
        low = max(round(min(opened, close) - wick, digits), wick)
        bars.append((opened, high, low, close, float(random.integers(1, 1000))))
    bars = [(max(o, low), h, min(low, o, c), max(c, low), v) for o, h, low, c, v in bars]
    name, cells, dates, two_readings = _texts(draw, moments)
    delimiter = draw(st.sampled_from((",", ",", ";", "\t", "|")))
    comma = delimiter != "," and draw(st.booleans())
    numbers = [[f"{value:.{digits}f}" for value in bar[:4]] + [f"{bar[4]:.0f}"] for bar in bars]
    if comma:
        numbers = [[cell.replace(".", ",") for cell in row] for row in numbers]
        two_readings |= digits == 3 and base >= 1
    header = {field: draw(st.sampled_from(names)) for field, names in COLUMNS.items()}
    table: dict[str, list[str]] = {name: cells}
    if dates:
        table["<DATE>" if name == "<TIME>" else "Date"] = dates
    for place, field in enumerate(COLUMNS):
        table[header[field]] = [row[place] for row in numbers]
    symbol = draw(st.sampled_from(("AAA", "BTC-USD", "^GSPC", "600519")))
    extra = draw(st.sampled_from(("", "", "adjusted", "ticks", "no volume", "two symbols")))
    in_column = extra == "two symbols" or draw(st.booleans())
    if in_column:
        table["Symbol"] = [symbol] * len(moments)
    if extra == "adjusted":
        halves = [f"{bar[3] / 2:.{digits + 1}f}" for bar in bars]
        table["Adj Close"] = [cell.replace(".", ",") for cell in halves] if comma else halves
        two_readings |= comma and digits == 2
        bars = [(*(price / 2 for price in bar[:4]), bar[4]) for bar in bars]
    elif extra == "ticks":
        table["<TICKVOL>"], table[header["volume"]] = table[header["volume"]], ["0"] * len(moments)
    elif extra == "no volume":
        del table[header["volume"]]
        bars = [(*bar[:4], 0.0) for bar in bars]
    if draw(st.booleans()):
        table["trades"] = [str(number) for number in range(len(moments))]
    keys = draw(st.permutations(list(table)))
    rows = [list(keys), *([table[key][row] for key in keys] for row in range(len(moments)))]
    if extra == "two symbols":  # the other's bars between those of the one
        other = list(keys).index("Symbol")
        rows[1:] = [one for row in rows[1:] for one in (row, [*row[:other], "ZZZ", *row[other + 1 :]])]
    lines = [delimiter.join(f'"{cell}"' if delimiter in cell else cell for cell in row) for row in rows]
    if draw(st.booleans()):
        lines[1:] = lines[:0:-1]
    preambles = ((), (), ("https://example.com",), ("# made by hand", ""), ("sep=" + delimiter,))
    above, newline = draw(st.sampled_from(preambles)), draw(st.sampled_from(("\n", "\r\n")))
    text = newline.join((*above, *lines)) + draw(st.sampled_from(("", "\n", "\n\n")))
    encoding = draw(st.sampled_from(("utf-8", "utf-8", "utf-8-sig", "utf-16")))
    named = draw(st.booleans())
    suffix = draw(st.sampled_from((".csv", ".csv.gz", ".txt")))
    content = text.encode(encoding)
    stem = f"{'all' if in_column else symbol}{f'_{timeframe}' if named else ''}"
    return Dialect(
        name=f"{stem}{suffix}",
        content=gzip.compress(content) if suffix.endswith("gz") else content,
        symbol=symbol,
        timeframe=timeframe if named else "",
        moments=[int(moment.timestamp()) * 10**9 for moment in moments],
        bars=bars,
        has_two_readings=two_readings,
        others=("ZZZ",) if extra == "two symbols" else (),
    )


@given(dialects())
def good_bars_are_read_bit_for_bit_in_any_dialect(dialect: Dialect) -> None:
    with tempfile.TemporaryDirectory(prefix="mayfly-fuzz-") as place:
        data, scratch = Path(place) / "data", Path(place) / "scratch"
        data.mkdir()
        scratch.mkdir()
        (data / dialect.name).write_bytes(dialect.content)
        try:
            folder = CandleFolder(data, scratch)
            candles = folder.read(dialect.symbol)
        except DataError as error:
            assert is_shown(str(error))
            assert dialect.has_two_readings and "two readings" in str(error), str(error)
            return
        assert folder.symbols == tuple(sorted((dialect.symbol, *dialect.others)))
        assert dialect.timeframe in ("", folder.timeframe)
        assert candles.timestamp.tolist() == dialect.moments
        read = zip(candles.open, candles.high, candles.low, candles.close, candles.volume, strict=True)
        if "adjusted" in " ".join(folder.notes):
            np.testing.assert_allclose(list(read), dialect.bars, rtol=1e-12)
        else:
            assert [tuple(map(float, bar)) for bar in read] == dialect.bars
        assert all(is_shown(line) for line in folder.notes)


TEXTS = [
    (Path(name).name, content)
    for shape in SHAPES
    for name, content in shape.files.items()
    if isinstance(content, str) and name.endswith((".csv", ".txt"))
]
CELLS = (
    *("", "0", "-1", "1e999", "nan", "x", '"', "1,5", "1.5", "2021-01-01", "01/02/2021", "00:00"),
    *("20210101", "é", "\x00", "9" * 30),
)


@st.composite
def changed_texts(draw: st.DrawFn) -> tuple[str, str]:
    """Draw a file of the table with some of its lines and cells changed."""
    name, text = draw(st.sampled_from(TEXTS))
    lines = text.splitlines()
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(lines) - 1))
        kind = draw(st.sampled_from(("cell", "cell", "swap", "drop", "twice", "column", "line")))
        mark = max(",;\t|", key=lines[place].count)
        cells = lines[place].split(mark)
        if kind == "cell":
            cells[draw(st.integers(0, len(cells) - 1))] = draw(st.sampled_from(CELLS) | st.text(max_size=5))
            lines[place] = mark.join(cells)
        elif kind == "swap":
            other = draw(st.integers(0, len(lines) - 1))
            lines[place], lines[other] = lines[other], lines[place]
        elif kind == "drop" and len(lines) > 1:
            del lines[place]
        elif kind == "twice":
            lines.insert(place, lines[place])
        elif kind == "line":
            lines.insert(place, draw(st.text(max_size=30)))
        else:
            drop = draw(st.integers(0, len(cells) - 1))
            lines = [
                mark.join(cell for number, cell in enumerate(line.split(mark)) if number != drop)
                for line in lines
            ]
    return name, "\n".join(lines) + "\n"


@given(changed_texts())
def changed_shape_is_read_whole_or_refused(file: tuple[str, str]) -> None:
    name, text = file
    with tempfile.TemporaryDirectory(prefix="mayfly-fuzz-") as place:
        path, scratch = Path(place) / name, Path(place) / "scratch"
        scratch.mkdir()
        path.write_bytes(text.encode(errors="surrogatepass"))
        try:
            folder = CandleFolder(path, scratch)
            counts = {symbol: len(folder.read(symbol)) for symbol in folder.symbols}
        except DataError as error:
            assert is_shown(str(error))
            return
        assert all(is_shown(line) for line in folder.notes)
        if '"' not in text:  # within quotes a line may go on
            shape = sniff(path)
            below = re.split(r"\r\n|\n|\r", text)[shape.skip_rows :]
            assert sum(counts.values()) == sum(bool(line) for line in below) - (not shape.columns)


PROPERTIES = (good_bars_are_read_bit_for_bit_in_any_dialect, changed_shape_is_read_whole_or_refused)
