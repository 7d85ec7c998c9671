from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainer.base.errors import DataError
from trainer.data.read.candles import Candles, in_time_order
from trainer.data.read.reading import CandleFolder, read_candles, read_parts
from trainer.data.read.sources import Series
from trainer.data.read.writing import write_candles

HEADER = "time,open,high,low,close,volume"


def rows(first: int, count: int, *, close: float = 1.0) -> list[str]:
    """Minute bars from minute `first` of 2021 on."""
    return [f"{1_609_459_200 + 60 * (first + index)},1,2,0.5,{close},3" for index in range(count)]


@pytest.mark.parametrize("by", ["symbol", "time"])
def test_symbols_of_an_unknown_column_are_told(write_csv, by: str) -> None:
    rows = [
        f"2021-01-0{day},{price},{price},{price},{price},1,{name}"
        for name, price in (("AAL", 1), ("AAPL", 2))
        for day in (1, 2, 3)
    ]
    path = write_csv(
        "all_1d.csv", "date,open,high,low,close,volume,Name", sorted(rows) if by == "time" else rows
    )
    with pytest.raises(DataError, match="If it has several symbols, name their column"):
        read_candles(path)
    candles = read_candles(path, columns=["symbol=Name"])
    assert [candles[symbol].close.tolist() for symbol in ("AAL", "AAPL")] == [[1, 1, 1], [2, 2, 2]]


def test_files_that_do_not_overlap_are_joined_in_time_order(write_csv, tmp_path: Path) -> None:
    write_csv("AAA_1m_b.csv", HEADER, rows(10, 5))
    write_csv("AAA_1m_c.csv", HEADER, rows(0, 10))
    folder = CandleFolder(tmp_path, tmp_path)
    assert np.diff(folder.read("AAA").timestamp).tolist() == [60_000_000_000] * 14
    assert [(file.file, file.bars) for file in folder.files()] == [("AAA_1m_b.csv", 5), ("AAA_1m_c.csv", 10)]


def test_bars_that_come_in_order_are_not_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check sorts twice: of 20 million bars that was half of its time."""
    first, last = (
        Series(file=file, symbol="A", timestamp=np.array(times), values=np.full((5, 3), value))
        for file, times, value in (("a", [1, 2, 3], 1.0), ("b", [3, 4, 5], 2.0))
    )
    sort, sorts = np.argsort, list[int]()

    def noted(times: np.ndarray, **how: Any) -> np.ndarray:
        sorts.append(len(times))
        return sort(times, **how)

    monkeypatch.setattr(np, "argsort", noted)
    timestamp, values, owner = in_time_order([first, last])
    assert (timestamp.tolist(), sorts) == ([1, 2, 3, 3, 4, 5], [])
    assert (values[0].tolist(), owner.tolist()) == ([1, 1, 1, 2, 2, 2], [0, 0, 0, 1, 1, 1])
    timestamp, values, owner = in_time_order([last, first])
    assert (timestamp.tolist(), sorts) == ([1, 2, 3, 3, 4, 5], [6])
    assert (values[0].tolist(), owner.tolist()) == ([1, 1, 2, 1, 2, 2], [1, 1, 0, 1, 0, 0])


def test_the_same_bars_twice_count_once(write_csv, tmp_path: Path) -> None:
    write_csv("AAA_1m_a.csv", HEADER, rows(0, 10))
    write_csv("AAA_1m_b.csv", HEADER, rows(5, 10))
    assert len(read_candles(tmp_path)["AAA"]) == 15


def test_files_that_disagree_are_refused_by_name(write_csv, tmp_path: Path) -> None:
    write_csv("AAA_1m_a.csv", HEADER, rows(0, 10))
    write_csv("AAA_1m_b.csv", HEADER, rows(5, 10, close=1.5))
    with pytest.raises(
        DataError, match=r"AAA_1m_a\.csv and AAA_1m_b\.csv disagree about AAA \(5 bars differ.*00:05:00Z"
    ):
        read_candles(tmp_path)


def test_several_timeframes_without_a_choice_are_listed(write_csv, tmp_path: Path) -> None:
    write_csv("AAA_1m.csv", HEADER, rows(0, 3))
    write_csv("AAA_1h.csv", HEADER, rows(0, 1))
    write_csv("ES_tick2800.csv", HEADER, rows(0, 3))
    with pytest.raises(DataError, match="several timeframes: 1h, 1m, tick2800.*--set data.timeframe=1h"):
        read_candles(tmp_path)
    assert read_candles(tmp_path, timeframe="60min")["AAA"].timeframe == "1h"


def test_requested_symbols_determine_the_timeframe(write_csv, tmp_path: Path) -> None:
    write_csv("AAA_1m.csv", HEADER, rows(0, 3))
    write_csv("BBB_1h.csv", HEADER, rows(0, 1))
    assert read_candles(tmp_path, symbols=["BBB"])["BBB"].timeframe == "1h"


def test_a_name_without_a_timeframe_takes_the_commonest_step(write_csv, tmp_path: Path) -> None:
    write_csv("AAA.csv", HEADER, rows(0, 5) + rows(60, 5))
    folder = CandleFolder(tmp_path, tmp_path)
    assert (folder.timeframe, list(folder.symbols)) == ("1m", ["AAA"])


def test_the_last_bars_are_taken_after_joining(write_csv, tmp_path: Path) -> None:
    write_csv("AAA_1m_a.csv", HEADER, rows(0, 10))
    write_csv("AAA_1m_b.csv", HEADER, rows(10, 10))
    candles = read_candles(tmp_path, bars=12)
    assert len(candles["AAA"]) == 12
    assert candles["AAA"].timestamp[-1] == (1_609_459_200 + 60 * 19) * 10**9


def test_symbols_come_in_the_order_asked_for(write_csv, tmp_path: Path) -> None:
    for symbol in ("AAA", "BBB", "CCC"):
        write_csv(f"{symbol}_1m.csv", HEADER, rows(0, 3))
    assert list(read_candles(tmp_path)) == ["AAA", "BBB", "CCC"]
    assert list(read_candles(tmp_path, symbols=["CCC", "AAA", "CCC"])) == ["CCC", "AAA"]


def test_files_of_another_timeframe_are_not_opened(write_csv, tmp_path: Path) -> None:
    write_csv("AAA_1m.csv", HEADER, rows(0, 3))
    (tmp_path / "AAA_1h.parquet").write_bytes(b"no parquet")
    (tmp_path / "README.md").write_text("not candles")
    assert [part.file for part in CandleFolder(tmp_path, tmp_path, timeframe="1m").parts("AAA")] == [
        "AAA_1m.csv"
    ]


def test_a_file_lists_all_its_symbols(tmp_path: Path, make_candles) -> None:
    write_candles(tmp_path / "ALL_1m.parquet", [make_candles(5, symbol="BBB"), make_candles(7, symbol="AAA")])
    folder = CandleFolder(tmp_path, tmp_path, symbols=["AAA"])
    folder.read("AAA")
    (file,) = folder.files()
    assert (file.symbols, file.bars) == (("AAA",), 7)
    assert [(held.symbol, held.bars) for held in file.holds] == [("AAA", 7), ("BBB", 5)]


def test_a_single_file_without_a_symbol_has_the_requested_one(write_csv) -> None:
    assert list(read_candles(write_csv("latest.csv", HEADER, rows(0, 3)), symbols=["BTC-USD"])) == ["BTC-USD"]


def test_candles_are_synthetic_when_any_file_is(tmp_path: Path, make_candles) -> None:
    write_candles(tmp_path / "AAA_1m.parquet", [make_candles(5)])
    assert not CandleFolder(tmp_path, tmp_path).synthetic
    write_candles(tmp_path / "BBB_1m.parquet", [make_candles(5, symbol="BBB")], synthetic=True)
    assert CandleFolder(tmp_path, tmp_path).synthetic
    assert not CandleFolder(tmp_path, tmp_path, symbols=["AAA"]).synthetic


@pytest.mark.parametrize(
    ("name", "said"),
    [("nowhere", "nowhere does not exist. Give a folder or a file"), ("caf\udce9", "its path is not UTF-8")],
)
def test_a_missing_folder_is_refused(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said):  # pyarrow can't open a path that is not UTF-8
        read_candles(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("AAA_1m.parquet", b"not parquet at all", "is not parquet"),
        ("AAA_1m.parquet", b"", "is not parquet"),
        ("AAA_1m.parquet", b"PAR1junkPAR1", "is not parquet"),
        ("AAA_1m.csv", b"", ""),
        ("AAA_1m.csv", b"\x00\xff\xfe binary \x80\n\x81", ""),
        ("AAA_1m.csv", f"{HEADER}\n".encode(), "holds no bars"),
    ],
)
def test_a_malformed_file_is_refused(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=f"{name} {said}"):
        read_candles(tmp_path)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("180,1,2,0.5,nan,3", "AAA_1m.csv: close is NaN in a bar of AAA"),
        ("180,1,2,,1,3", "AAA_1m.csv: low is NaN in a bar of AAA"),
        ("180,1,2,0.5,1,", "AAA_1m.csv: volume is NaN in a bar of AAA"),
        ("180,inf,2,0.5,1,3", "AAA_1m.csv: open is infinite in a bar of AAA"),
        ("180,1,2,0.5,-1,3", "AAA_1m.csv: close is not above zero in a bar of AAA"),
        ("180,1,2,0,1,3", "AAA_1m.csv: low is not above zero in a bar of AAA"),
        ("180,1,1,2,1,3", "AAA_1m.csv: high is below low in a bar of AAA"),
        ("180,1,2,0.5,1,-3", "AAA_1m.csv: volume is negative in a bar of AAA"),
        ("180,1,2,0.5,1,1e308", r"AAA_1m.csv: volume is above 1e\+100 in a bar of AAA"),
        ("120,1,2,0.5,1,3", "AAA_1m.csv has duplicate bars of AAA"),
    ],
)
def test_a_bad_bar_is_refused_with_its_time(write_csv, tmp_path: Path, row: str, said: str) -> None:
    seconds, cells = row.split(",", 1)
    write_csv("AAA_1m.csv", HEADER, [*rows(0, 3), f"{1_609_459_200 + int(seconds)},{cells}"])
    with pytest.raises(
        DataError, match=rf"{said} .1 .*, the first at 2021-01-01T00:0{int(seconds) // 60}:00Z"
    ):
        read_candles(tmp_path)


def test_a_folder_without_candles_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(DataError, match="holds no candles"):
        read_candles(tmp_path)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("x")
    with pytest.raises(DataError, match="is not a candle file"):
        read_candles(tmp_path / "notes.md")


def test_an_unknown_symbol_is_refused_with_the_nearest(write_csv, tmp_path: Path) -> None:
    write_csv("BTC-USD_1m.csv", HEADER, rows(0, 3))
    write_csv("ETH-USD_1m.csv", HEADER, rows(0, 3))
    with pytest.raises(DataError, match=r"unknown symbol 'btc-usd'.*BTC-USD, ETH-USD.*Did you mean BTC-USD"):
        read_candles(tmp_path, symbols=["btc-usd"], timeframe="1m")


def test_an_unknown_timeframe_is_named_with_those_found(write_csv, tmp_path: Path) -> None:
    write_csv("AAA_1m.csv", HEADER, rows(0, 3))
    write_csv("BBB.csv", HEADER, rows(0, 3))
    with pytest.raises(DataError, match="no candles of timeframe 90s .it holds 1m"):
        read_candles(tmp_path, timeframe="90s")


def test_files_with_and_without_adjusted_prices_are_not_joined(write_csv, tmp_path: Path) -> None:
    write_csv("AAA_1m_a.csv", f"{HEADER},adj close", [f"{row},0.9" for row in rows(0, 3)])
    write_csv("AAA_1m_b.csv", HEADER, rows(3, 3))
    with pytest.raises(DataError, match=r"AAA_1m_a\.csv has adjusted prices of AAA, AAA_1m_b\.csv has none"):
        read_candles(tmp_path)


def test_a_missing_adjusted_close_is_refused_with_its_time(write_csv, tmp_path: Path) -> None:
    write_csv(
        "AAA_1m.csv",
        f"{HEADER},Adj Close",
        [f"{row},{cell}" for row, cell in zip(rows(0, 3), ("1", "", "0"), strict=True)],
    )
    with pytest.raises(
        DataError, match="no adjusted close in 2 bars of column Adj Close .the first at 2021-01-01T00:01:00Z"
    ):
        read_candles(tmp_path)


def test_rows_are_views_of_the_bars(make_candles) -> None:
    candles: Candles = make_candles(10)
    part = candles.rows(-4, -1)
    assert part.close.tolist() == candles.close[6:9].tolist()
    assert np.shares_memory(part.close, candles.close)


# --- further columns


def with_cells(first: int, cells: list[str]) -> list[str]:
    return [f"{row},{cell}" for row, cell in zip(rows(first, len(cells)), cells, strict=True)]


def test_an_empty_cell_takes_the_last_earlier_value(write_csv, tmp_path: Path) -> None:
    write_csv("AAA_1m_a.csv", f"{HEADER},funding", with_cells(0, ["", "", "0.5", "", "NaN"]))
    write_csv("AAA_1m_b.csv", f"{HEADER},funding", with_cells(5, ["", "-1", ""]))
    candles = read_candles(tmp_path, columns=["funding"])["AAA"]
    np.testing.assert_array_equal(candles.columns["funding"], [np.nan, np.nan, 0.5, 0.5, 0.5, 0.5, -1, -1])
    assert candles.columns_begin == 2
    assert read_candles(tmp_path)["AAA"].columns == {}


def test_bars_that_are_cut_off_still_give_their_value(write_csv, tmp_path: Path) -> None:
    write_csv("AAA_1m.csv", f"{HEADER},funding", with_cells(0, ["7", "", "", "8"]))
    candles = read_candles(tmp_path, columns=["funding"], bars=3)["AAA"]
    assert candles.columns["funding"].tolist() == [7, 7, 8] and candles.columns_begin == 0
    assert candles.rows(1).columns["funding"].tolist() == [7, 8]


def test_values_are_carried_within_a_symbol_only(write_csv) -> None:
    lines = [
        f"{symbol},{row}"
        for pair in zip(with_cells(0, ["1", "", "2"]), with_cells(0, ["", "5", ""]), strict=True)
        for symbol, row in zip(("AAA", "BBB"), pair, strict=True)
    ]
    found = read_candles(write_csv("all_1m.csv", f"symbol,{HEADER},funding", lines), columns=["funding"])
    np.testing.assert_array_equal(found["AAA"].columns["funding"], [1, 1, 2])
    np.testing.assert_array_equal(found["BBB"].columns["funding"], [np.nan, 5, 5])


def test_a_later_cell_changes_no_earlier_value(write_csv) -> None:
    cells = ["", "1", "", "2", "", "", "3", ""]
    path = write_csv("AAA_1m.csv", f"{HEADER},funding", with_cells(0, cells))
    before = read_candles(path, columns=["funding"])["AAA"].columns["funding"]
    for at in range(len(cells)):
        for cell in ("9", ""):
            changed = write_csv(
                "AAA_1m.csv", f"{HEADER},funding", with_cells(0, [*cells[:at], *[cell] * (len(cells) - at)])
            )
            after = read_candles(changed, columns=["funding"])["AAA"].columns["funding"]
            np.testing.assert_array_equal(after[:at], before[:at])


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (
            ["fundign"],
            (
                r"has no column fundign .its columns besides those of a bar: funding, note\)\. Did you mean"
                r" funding\?"
            ),
        ),
        (["Funding"], r"has no column Funding .*Did you mean funding\?"),
        (["note"], r"has a value in column note that is not a number .*calm"),
        (["close"], r"column close of .*AAA_1m\.csv is the close of its bars .*another name"),
    ],
)
def test_an_unreadable_column_is_refused(write_csv, columns: list[str], said: str) -> None:
    path = write_csv(
        "AAA_1m.csv", f"{HEADER}, funding,note", [f"{row},calm" for row in with_cells(0, ["1", "2"])]
    )
    assert read_candles(path, columns=["funding"])["AAA"].columns["funding"].tolist() == [1, 2]
    with pytest.raises(DataError, match=said):
        read_candles(path, columns=columns)


def test_a_parquet_column_of_texts_is_refused(tmp_path: Path, make_candles) -> None:
    write_candles(tmp_path / "AAA_1m.parquet", [make_candles(3)])
    table = pq.read_table(tmp_path / "AAA_1m.parquet").append_column("mood", pa.array(["calm", None, "wild"]))
    pq.write_table(table, tmp_path / "AAA_1m.parquet")
    with pytest.raises(DataError, match=r"has a value in column mood that is not a number"):
        read_candles(tmp_path, columns=["mood"])


def test_an_infinite_cell_is_refused_with_its_time(write_csv) -> None:
    path = write_csv("AAA_1m.csv", f"{HEADER},funding", with_cells(0, ["1", "inf", "2"]))
    with pytest.raises(
        DataError,
        match=r"funding is infinite in a bar of AAA .1 such bar, the first at 2021-01-01T00:01:00Z",
    ):
        read_candles(path, columns=["funding"])


def test_files_of_one_symbol_must_agree_about_columns(write_csv, tmp_path: Path) -> None:
    write_csv("AAA_1m_a.csv", f"{HEADER},funding", with_cells(0, ["1", "", "3"]))
    other = write_csv("AAA_1m_b.csv", HEADER, rows(3, 2))
    with pytest.raises(DataError, match=r"AAA_1m_b\.csv has no column funding"):
        read_candles(tmp_path, columns=["funding"])
    other.write_text("\n".join([f"{HEADER},funding", *with_cells(1, ["", "3", "4"])]))
    assert read_candles(tmp_path, columns=["funding"])["AAA"].columns["funding"].tolist() == [1, 1, 3, 4]
    other.write_text("\n".join([f"{HEADER},funding", *with_cells(1, ["", "5", "4"])]))
    with pytest.raises(
        DataError,
        match=r"a\.csv and AAA_1m_b\.csv disagree about AAA .1 bar differs, the first at .*00:02:00Z",
    ):
        read_candles(tmp_path, columns=["funding"])


def test_a_file_lists_its_further_columns(write_csv, tmp_path: Path) -> None:
    write_csv("AAA_1m.csv", f"{HEADER},funding,note", [f"{row},calm" for row in with_cells(0, ["1", "2"])])
    folder = CandleFolder(tmp_path, tmp_path)
    folder.read("AAA")
    assert folder.files()[0].further == ("funding", "note")


# --- longer bars from shorter ones


def test_longer_bars_are_made_where_no_file_has_them(write_csv, tmp_path: Path) -> None:
    write_csv("AAA_1m.csv", HEADER, rows(0, 20))
    write_csv("AAA_5m.csv", HEADER, [f"{1_609_459_200 + 300 * row},1,2,0.5,1,15" for row in range(4)])
    write_csv("BBB_1m.csv", HEADER, rows(0, 20))
    assert CandleFolder(tmp_path, tmp_path, timeframe="5m").symbols == (
        "AAA",
    )  # as it was: what has no such file is not meant
    folder = CandleFolder(tmp_path, tmp_path, timeframe="5m", symbols=["AAA", "BBB"])
    assert [part.file for part in (*folder.parts("AAA"), *folder.parts("BBB"))] == [
        "AAA_5m.csv",
        "BBB_1m.csv",
    ]
    assert folder.read("BBB").volume.tolist() == folder.read("AAA").volume.tolist() == [15] * 4
    assert folder.notes[0] == "BBB: bars of 5m are made from bars of 1m"
    assert read_parts("BBB", "5m", folder.parts("BBB"), bars=2).volume.tolist() == [15, 15]
    assert (
        len(CandleFolder(tmp_path, tmp_path, timeframe="10m", symbols=["AAA"]).read("AAA")) == 2
    )  # of 5m, the longest that fit


def test_weeks_begin_on_monday_and_partial_ones_are_dropped(write_csv) -> None:
    days = [f"{1_609_459_200 + 86_400 * day},1,2,0.5,1,1" for day in range(20)]  # from Friday, 2021-01-01 on
    weeks = read_candles(write_csv("AAA_1d.csv", HEADER, days), timeframe="1w")["AAA"]
    assert [str(np.datetime64(int(moment), "ns"))[:10] for moment in weeks.timestamp] == [
        "2021-01-04",
        "2021-01-11",
    ]
    assert weeks.volume.tolist() == [7, 7]


@pytest.mark.parametrize("base", ["1h", "7m", "tick100"])
def test_bars_that_do_not_divide_are_not_resampled(write_csv, tmp_path: Path, base: str) -> None:
    write_csv(f"AAA_{base}.csv", HEADER, rows(0, 20))
    with pytest.raises(DataError, match=f"no candles of timeframe 15m .it holds {base}"):
        read_candles(tmp_path, timeframe="15m")
