"""Every defect of a symbol's bars is listed, with what a training does about it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trainer.base.errors import DataError
from trainer.data.check.findings import HOLE, NOTED, REFUSED, TRAINED
from trainer.data.check.folder import FolderCheck, check_folder
from trainer.data.check.repair import Repair
from trainer.data.read.reading import read_candles
from trainer.data.table import DataSettings

HEADER = "time,open,high,low,close,volume,note"
FIRST = 1_609_459_200


def bars(count: int) -> list[list[str]]:
    """Minute bars whose price rises a little."""
    prices = 100 * 1.0001 ** np.arange(count)
    return [
        [str(FIRST + 60 * row), *(f"{price * share:.4f}" for share in (1, 1.01, 0.99, 1)), "5", f"n{row}"]
        for row, price in enumerate(prices)
    ]


@pytest.fixture
def checked(tmp_path: Path, write_csv):
    """Write rows as AAA_1m.csv and check them."""

    def check(rows: list[list[str]], **settings) -> FolderCheck:
        write_csv("AAA_1m.csv", HEADER, [",".join(row) for row in rows])
        return check_folder(tmp_path, DataSettings(**settings))

    return check


def found(made: FolderCheck) -> dict[str, tuple[int, str]]:
    """Return count and outcome of each defect, by the words that it begins with."""
    (one,) = made.symbols
    return {
        defect.text.removeprefix("AAA_1m.csv "): (defect.count, defect.training) for defect in one.findings
    }


def test_clean_bars_have_no_finding(checked):
    made = checked(bars(300))
    (one,) = made.symbols
    assert (one.bars, one.first, one.last) == (300, "2021-01-01T00:00:00Z", "2021-01-01T04:59:00Z")
    assert (one.findings, one.calendar, made.is_refused) == ((), "24x7", False)


def test_every_defect_of_a_file_is_listed(checked):
    rows = bars(2000)
    rows[10], rows[20] = rows[20], rows[10]  # not sorted
    rows[100][2], rows[100][3] = rows[100][3], rows[100][2]  # high below low
    rows[200][4] = rows[200][2] = "9000"  # a spike
    rows[300][1] = ""  # no open
    for row in range(400, 420):
        rows[row][1:6] = ["100.0", "100.0", "100.0", "100.0", "0"]  # stale, no volume
    for row in range(1000, 2000):
        rows[row][5] = "5000"  # another unit
    rows = rows[:600] + rows[660:]  # a hole
    rows.insert(50, rows[49])  # twice
    rows.insert(70, [*rows[69][:4], "100.001", *rows[69][5:]])  # twice, and differs
    made = checked(rows)
    assert made.is_refused and found(made) == {
        "is not sorted by time: bars that come after later ones": (2, REFUSED),
        "has the same bar twice": (1, REFUSED),
        "has two bars for one time, which differ; keep one": (1, REFUSED),
        "open is NaN": (1, REFUSED),
        "high is below low": (1, REFUSED),
        "close is more than 50 times off the bars before and after": (1, REFUSED),
        "volume changes its level and stays there, as if its unit changed; bring one unit": (1, NOTED),
        "holes (24x7)": (4, HOLE),
        "open, high, low and close stay the same for 10 bars or more": (20, TRAINED),
        "no volume": (20, TRAINED),
    }
    (hole,) = (one for one in made.symbols[0].findings if one.training == HOLE)
    assert hole.detail == "63 bars missing; the longest of 1h 1m after 2021-01-01T09:59:00Z"
    (unit,) = (one for one in made.symbols[0].findings if one.text.startswith("volume"))
    assert unit.detail == "1,000 times larger from 2021-01-01T16:40:00Z"


def test_what_the_check_refuses_training_refuses_too(checked, tmp_path: Path):
    rows = bars(50)
    for spoiled in (
        rows[:20] + [rows[3]] + rows[20:],
        rows[:20] + rows[19:],
        [*rows[:5], [rows[5][0], *["0"] * 6]],
    ):
        assert checked(spoiled).is_refused
        with pytest.raises(DataError):
            read_candles(tmp_path)


def test_a_plan_notes_a_volume_whose_unit_changes(tmp_path: Path, checked):
    rows = bars(1000)
    for row in rows[500:]:
        row[5] = "5000"
    assert not checked(rows).is_refused
    from trainer.data.read.reading import CandleFolder

    folder = CandleFolder(tmp_path, tmp_path)
    folder.read("AAA")
    assert any(
        "as if its unit changed; bring one unit (1,000 times larger from" in note for note in folder.notes
    )


def test_files_that_disagree_and_one_that_is_none_are_listed(tmp_path: Path, write_csv):
    header = "time,open,high,low,close,volume"
    for name, close in (("AAA_1m_a.csv", "1"), ("AAA_1m_b.csv", "1.5")):
        write_csv(name, header, [f"{FIRST + 60 * row},1,2,0.5,{close},3" for row in range(20)])
    write_csv("BBB_1m.csv", header, ["2021-01-01,1,2,0.5,x,3"])
    made = check_folder(tmp_path, DataSettings())
    finding = made.symbols[0].findings[0]
    assert (
        finding.text
        == "AAA_1m_a.csv, AAA_1m_b.csv have bars for one time, which differ; keep one of the files"
    )
    assert (finding.count, finding.fix) == (20, "")
    assert "BBB_1m.csv has a value in column close that is not a number" in str(made.unreadable[0])


def test_stocks_named_by_numbers_in_a_folder_are_told_of_it(tmp_path: Path, write_csv):
    header = "time,open,high,low,close,volume"
    for name, close in (("0005.csv", "1"), ("0700.csv", "1.5")):
        (tmp_path / "HK").mkdir(exist_ok=True)
        write_csv(f"HK/{name}", header, [f"{FIRST + 60 * row},1,2,0.5,{close},3" for row in range(20)])
    (symbol,) = check_folder(tmp_path, DataSettings()).symbols
    assert symbol.findings[0].text.endswith("or name the folder HK itself if each is a symbol")
    assert [one.symbol for one in check_folder(tmp_path / "HK", DataSettings()).symbols] == ["0005", "0700"]


def test_several_timeframes_are_checked_one_after_the_other(tmp_path: Path, write_csv):
    header = "time,open,high,low,close,volume"
    for name, step in (("AAA_1m.csv", 60), ("AAA_1h.csv", 3600)):
        write_csv(name, header, [f"{FIRST + step * row},1,2,0.5,1,3" for row in range(5)])
    made = check_folder(tmp_path, DataSettings())
    assert [(one.symbol, one.timeframe, one.bars) for one in made.symbols] == [
        ("AAA", "1h", 5),
        ("AAA", "1m", 5),
    ]


def test_bars_that_make_no_longer_one_are_counted_as_they_are(checked):
    made = checked(bars(30), timeframe="1h")
    assert found(made) == {"AAA has no whole bar of 1h: its bars are of 1m": (0, REFUSED)}
    assert [(one.timeframe, one.bars) for one in made.symbols] == [("1m", 30)]


def test_holes_are_those_of_the_calendar_that_the_plan_uses(checked):
    rows = bars(600)
    rows = rows[:100] + rows[200:]
    assert found(checked(rows, calendar="events")) == {}
    assert found(checked(rows)) == {"holes (24x7)": (1, HOLE)}


def repaired(tmp_path: Path, out: str = "fixed"):
    """Check and repair the folder; return the result."""
    data = DataSettings()
    repair = Repair(path=tmp_path / "data", out=tmp_path / out, data=data)
    return repair.write(check_folder(tmp_path / "data", data, repair.add))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_repair_keeps_every_column_and_the_source(tmp_path: Path, kind):
    rows = bars(300)
    rows[10], rows[20] = rows[20], rows[10]
    rows[100][2], rows[100][3] = rows[100][3], rows[100][2]
    rows[5][6] = 'a "b", c'
    rows.insert(50, rows[49])
    data = tmp_path / "data"
    data.mkdir()
    import csv

    import pandas

    with (data / "AAA_1m.csv").open("w", newline="") as file:
        csv.writer(file).writerows([HEADER.split(","), *rows])
    if kind == "parquet":
        pandas.read_csv(data / "AAA_1m.csv").to_parquet(data / "AAA_1m.parquet", index=False)
        (data / "AAA_1m.csv").unlink()
    name = f"AAA_1m.{kind}"
    before = (data / name).read_bytes()
    made = repaired(tmp_path)
    (file,) = made.files
    assert (file.rows, file.is_sorted, file.duplicates, file.refused) == (301, True, 1, 1)
    assert not made.after.is_refused and (data / name).read_bytes() == before
    read = pandas.read_csv if kind == "csv" else pandas.read_parquet
    frame = read(tmp_path / "fixed" / name)
    assert len(frame) == 299 and frame["time"].is_monotonic_increasing
    assert frame["note"][5] == 'a "b", c' and list(frame.columns) == HEADER.split(",")
    assert len(read_candles(tmp_path / "fixed")["AAA"]) == 299


def test_a_repair_copies_what_is_whole_and_leaves_what_is_open(tmp_path: Path):
    data = tmp_path / "data"
    data.mkdir()
    lines = [",".join(row) for row in bars(30)]
    (data / "AAA_1m.csv").write_text("\n".join([HEADER, *lines]))
    differs = ",".join([*bars(30)[7][:4], "100.0", *bars(30)[7][5:]])
    (data / "BBB_1m.csv").write_text("\n".join([HEADER, *lines[:8], differs, *lines[8:]]))
    made = repaired(tmp_path)
    assert [file.is_copy for file in made.files] == [True, True]
    assert (tmp_path / "fixed" / "AAA_1m.csv").read_bytes() == (data / "AAA_1m.csv").read_bytes()
    assert [one.symbol for one in made.after.symbols if one.is_refused] == ["BBB"]


def test_a_repair_of_nothing_says_why_files_are_not_read(tmp_path: Path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "AAA_1d.csv").write_text(f"{HEADER}\n2021-01-04,1,1,1,1,1,x\nTotal,,,,,1,\n")
    with pytest.raises(DataError, match=r"repaired \(the last line of .* \(Total,,,,,1,\)\. Remove it\)\."):
        repaired(tmp_path)


def test_a_file_of_many_symbols_is_repaired_row_by_row(tmp_path: Path):
    data = tmp_path / "data"
    data.mkdir()
    rows = [[symbol, *row[:6]] for row in bars(20) for symbol in ("AAA", "BBB")]
    rows[6], rows[10] = rows[10], rows[6]  # AAA is not sorted
    rows[31][3] = "0"  # BBB has a bad bar
    lines = [",".join(row) for row in rows]
    (data / "all_1m.csv").write_text("\n".join(["symbol,time,open,high,low,close,volume", *lines]))
    (file,) = repaired(tmp_path).files
    assert (file.rows, file.is_sorted, file.refused) == (40, True, 1)
    assert {name: len(one) for name, one in read_candles(tmp_path / "fixed").items()} == {
        "AAA": 20,
        "BBB": 19,
    }


def test_a_repair_keeps_sound_bars_of_other_timeframes(tmp_path: Path):
    data = tmp_path / "data"
    data.mkdir()
    for name, step, low in (("AAA_1h.csv", 3_600, "0.5"), ("AAA_1d.csv", 86_400, "-1")):
        rows = [f"{FIRST + step * row},1,2,{low if row == 1 else 0.5},1,3" for row in range(48)]
        (data / name).write_text("\n".join(["time,open,high,low,close,volume", *rows]))
    assert [(one.file, one.refused) for one in repaired(tmp_path).files] == [
        ("AAA_1d.csv", 1),
        ("AAA_1h.csv", 0),
    ]


def test_a_file_that_has_every_bar_twice_keeps_its_timeframe(tmp_path: Path, write_csv):
    rows = [",".join(row) for row in bars(30) for _ in range(2)]
    write_csv("AAA.csv", HEADER, rows)
    (one,) = check_folder(tmp_path, DataSettings()).symbols
    assert (one.timeframe, one.rows, one.bars) == ("1m", 60, 30)
    assert [(defect.count, defect.fix) for defect in one.findings] == [(30, "drops them")]


def test_guesses_are_notes_of_the_check_too(tmp_path: Path, write_csv):
    write_csv("AAA_1m.csv", HEADER.replace("close", "price"), [",".join(row) for row in bars(30)])
    assert check_folder(tmp_path, DataSettings()).notes == [
        "AAA_1m.csv: close is column price",
        "AAA_1m.csv: times are epoch numbers in s",
    ]
    told = DataSettings(columns=("close=price", "time=time:s"))
    assert check_folder(tmp_path, told).notes == []


def test_a_bar_that_is_filled_forward_with_its_range_is_stale(checked):
    rows = bars(200)
    for row in range(101, 115):
        rows[row][1:5] = rows[100][1:5]  # as a fill of missing bars does it
    (stale,) = checked(rows).symbols[0].findings
    assert (stale.count, stale.first, stale.last) == (15, "2021-01-01T01:40:00Z", "2021-01-01T01:54:00Z")
