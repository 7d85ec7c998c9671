"""Properties of any data file: the data check describes it, or refuses it with one error, and writes
nothing elsewhere.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.drawn import is_shown
from tests.jobs import job_of
from trainer.bars.check import check_data
from trainer.bars.document import read_plan
from trainer.base.errors import TrainerError
from trainer.base.symbols import flaw

JOB = job_of(lookback=2, horizon=1, batch=4, validation_fraction=0.2, test_fraction=0.2)
ROWS = 400
NINE = 1_609_491_600  # 2021-01-01T09:00:00Z
SYMBOLS = (
    *("A", "BTC-USD", "../x", "..", "/etc/passwd", "a/b", "x" * 300, "a\0b", "\x1b[31m"),
    *("é", "NA", "", " A", "1e5", "\u202e"),
)
TIMES: tuple[Any, ...] = (
    *(0, -1, 1, NINE, NINE * 10**3, NINE * 10**6, NINE * 10**9, 20210101, 2**62, -(2**62), 10**15),
    *("2021-01-01", "2021-01-01T09:00:00Z", "9999-12-31", "0001-01-01", "now", "", "x"),
    "2021-01-01T09:00:00+99:00",
)
PRICES: tuple[Any, ...] = (1.0, 0.0, -1.0, 1e308, 1e-308, float("nan"), float("inf"), "", "x", "1,5", None)
HEADERS = (
    *("time", "open", "high", "low", "close", "volume", "symbol", "Open", "date", "funding"),
    *("", "a\nb", "x" * 500, "\ufeff"),
)
NAMES = (
    *(b"A_1m", b"A", b"all_1d", b"BTC-USD_1h_2021-2022", b"A_99999999999999999999d", b"A_tick1"),
    *(b"..x_1m", b"A\xff_1m", b"x" * 240),
)
TYPES = (
    *(pa.int64(), pa.float64(), pa.string(), pa.timestamp("ms"), pa.date32()),
    *(pa.binary(), pa.uint64(), pa.bool_(), pa.list_(pa.int8())),
    *(
        pa.large_string(),
        pa.string_view(),
        pa.decimal128(20, 4),
        pa.time32("s"),
        pa.dictionary(pa.int32(), pa.string()),
    ),
)


def good_columns() -> dict[str, list[Any]]:
    """Return bars that are trained on without a word."""
    closes = [100.0 + (row * 7919 % 13) for row in range(ROWS)]
    return {
        "time": [NINE + 60 * row for row in range(ROWS)],
        "open": closes,
        "high": [close + 1 for close in closes],
        "low": [close - 1 for close in closes],
        "close": closes,
        "volume": [1.0 + row % 5 for row in range(ROWS)],
    }


@st.composite
def columns(draw: st.DrawFn) -> dict[str, list[Any]]:
    """Draw good bars with some cells, columns and rows changed."""
    made = good_columns()
    if draw(st.booleans()):
        names = draw(st.lists(st.sampled_from(SYMBOLS) | st.text(max_size=8), min_size=1, max_size=3))
        made["symbol"] = [names[row % len(names)] for row in range(ROWS)]
    for _ in range(draw(st.integers(0, 3))):
        name = draw(st.sampled_from(sorted(made)))
        start, stop = sorted(draw(st.tuples(st.integers(0, ROWS), st.integers(0, ROWS))))
        value = draw(st.sampled_from((*TIMES, *PRICES)) | st.integers(-(2**63), 2**63 - 1) | st.floats())
        made[name] = [value if start <= row < stop else cell for row, cell in enumerate(made[name])]
    if draw(st.integers(0, 4)) == 0:
        made = {
            (draw(st.sampled_from(HEADERS)) if draw(st.booleans()) else name): cells
            for name, cells in made.items()
        }
    rows = draw(st.sampled_from((0, 1, 2, ROWS, ROWS, ROWS)))
    return {name: cells[:rows] for name, cells in made.items()}


@st.composite
def csv_files(draw: st.DrawFn) -> bytes:
    """Draw the content of a CSV."""
    made = draw(columns())
    separator = draw(st.sampled_from(",,,;\t|x"))
    rows = [made.keys(), *zip(*made.values(), strict=True)]
    lines = [separator.join("" if cell is None else str(cell) for cell in row) for row in rows]
    text = draw(st.sampled_from(("\n", "\n", "\r\n", "\r"))).join(lines)
    mark = draw(st.sampled_from((b"", b"", b"\xef\xbb\xbf", b"\xff\xfe")))
    return mark + text.encode(errors="surrogatepass")


@st.composite
def parquet_files(draw: st.DrawFn) -> bytes:
    """Draw the content of a parquet file: any types, and any of its bytes changed."""
    arrays: dict[str, Any] = {}
    for name, cells in draw(columns()).items():
        kind = draw(st.sampled_from(TYPES)) if draw(st.integers(0, 9)) == 0 else None
        try:
            arrays[name] = pa.array(cells, kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            arrays[name] = pa.array(["" if cell is None else ascii(cell) for cell in cells], pa.string())
        if draw(st.integers(0, 9)) == 0 and arrays[name].type != pa.string_view():  # which it can't write
            try:
                arrays[name] = arrays[name].dictionary_encode()
            except pa.ArrowException:
                continue
    target = io.BytesIO()
    groups, statistics = draw(st.sampled_from((ROWS, 50, 1000))), draw(st.booleans())
    pq.write_table(pa.table(arrays), target, row_group_size=groups, write_statistics=statistics)
    content = bytearray(target.getvalue())
    for _ in range(draw(st.sampled_from((0, 0, 0, 1, 2, 8)))):
        content[draw(st.integers(-len(content), -1))] = draw(st.integers(0, 255))
    whole = len(content)
    return bytes(content[: draw(st.sampled_from((whole, whole, whole, whole // 2, 8)))])


@st.composite
def packed_files(draw: st.DrawFn) -> bytes:
    """Draw a compressed CSV that unpacks to up to 200 MB: one row, or a cell of it, again and again."""
    header = draw(
        st.sampled_from(("time,open,high,low,close,volume", "symbol,time,open,high,low,close", "x"))
    )
    row = draw(
        st.sampled_from(("1609491600,1,1,1,1,1\n", "A,1609491600,1,1,1,1\n", "\n", "\r", "1", "1,", '"'))
    )
    most = draw(st.sampled_from((10, 10**4, 10**6, 10**7)))
    times = draw(st.integers(1, most))
    return gzip.compress(header.encode() + b"\n" + row.encode() * times, 1)


@given(
    st.sampled_from(NAMES),
    st.one_of(
        st.tuples(st.just(b".parquet"), parquet_files()),
        st.tuples(st.just(b".csv"), csv_files()),
        st.tuples(st.just(b".csv.gz"), packed_files()),
        st.tuples(st.sampled_from((b".csv", b".csv.gz", b".parquet", b".pq")), st.binary(max_size=200)),
    ),
)
def data_file_is_described_or_refused(name: bytes, file: tuple[bytes, bytes]) -> None:
    suffix, content = file
    with tempfile.TemporaryDirectory(prefix="mayfly-fuzz-") as place:
        data, scratch = Path(place) / "data", Path(place) / "scratch"
        data.mkdir()
        scratch.mkdir()
        (data / os.fsdecode(name + suffix)).write_bytes(content)
        try:
            report = check_data(data, JOB, scratch=scratch)
        except TrainerError as error:
            assert is_shown(str(error)) and json.dumps(error.as_dict())
        else:
            assert json.dumps(report, allow_nan=False)
            assert not any(flaw(entry["symbol"]) for entry in (*report["symbols"], *report["refused"]))
            assert read_plan(report["plan"].encode()).symbols
        assert sorted(item.name for item in Path(place).iterdir()) == ["data", "scratch"]
        assert len(list(data.iterdir())) == 1 and not list(scratch.iterdir())


PROPERTIES = (data_file_is_described_or_refused,)
