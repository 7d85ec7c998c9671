"""What a user tells about the columns of candle files, in `data.columns`."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.base.errors import DataError, UsageError
from trainer.data.columns import told_of
from trainer.data.read.candles import time_text
from trainer.data.read.reading import CandleFolder
from trainer.data.table import DataSettings

BAR = "1,2,0.5,1,3"


def test_further_columns_and_told_ones_are_told_apart():
    told, further = told_of(["close=last", "a=b", "volume=vol:k", "funding", "time=ts:x:ms"])
    assert further == ("a=b", "funding")
    assert told.columns == {"close": "last", "volume": "vol", "time": "ts:x"}
    assert (told.time_unit, told.date_order, told.volume_times) == ("ms", "", 1000)
    settings = DataSettings(columns=("close=last", "funding"))
    assert settings.inputs[-1] == "funding" and settings.further == ("funding",)


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        (["time=ts:sec"], "a unit of the time is s, ms, us, ns, dmy or mdy"),
        (["volume=vol:-1"], "a unit of the volume is k, M, B or a number"),
        (["close="], "it names no column"),
        (["close=a", "close=b"], "tells the close twice"),
        (["close=a", "open=a"], "takes 'a' for two parts"),
        (["date=d:ms"], "a unit of the date is dmy or mdy"),
    ],
)
def test_a_column_told_badly_is_refused_in_one_line(entries, why):
    with pytest.raises(UsageError, match="data.columns") as refused:
        DataSettings(columns=tuple(entries))
    assert why in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("columns", "header", "row", "first", "close", "volume"),
    [
        (["close=fair"], "time,open,high,low,close,volume,fair", f"2021-01-01,{BAR},1.5", "", 1.5, 3),
        (["time=t2:ms"], "t2,open,high,low,close,volume", f"1609459200000,{BAR}", "", 1, 3),
        # Without a unit this is the year 2021 in seconds; the user knows better.
        (
            ["time=ts:ms"],
            "ts,open,high,low,close,volume",
            f"1609459200,{BAR}",
            "1970-01-19T15:04:19.200Z",
            1,
            3,
        ),
        (["volume=vol:100"], "time,open,high,low,close,vol", f"2021-01-01,{BAR}", "", 1, 300),
        (["volume="], "time,open,high,low,close,volume", f"2021-01-01,{BAR}", "", 1, 0),
        (["adjusted="], "time,open,high,low,close,volume,adj close", f"2021-01-01,{BAR},0.5", "", 1, 3),
        (["time=Date:dmy"], "Date,open,high,low,close,volume", f"02/01/2021,{BAR}", "2021-01-02", 1, 3),
        (["time=Date:mdy"], "Date,open,high,low,close,volume", f"02/01/2021,{BAR}", "2021-02-01", 1, 3),
        (["time=Date:mdy"], "Date,open,high,low,close,volume", f"02.01.2021,{BAR}", "2021-02-01", 1, 3),
        (
            ["time=clock", "date=day:mdy"],
            "day,clock,open,high,low,close,volume",
            f"02/01/2021,09:30,{BAR}",
            "2021-02-01T09:30",
            1,
            3,
        ),
        (["open=a", "high=b", "low=c", "close=d"], "time,a,b,c,d,volume", f"2021-01-01,{BAR}", "", 1, 3),
    ],
)
def test_a_told_column_is_read_as_told(columns, header, row, first, close, volume, tmp_path, write_csv):
    write_csv("AAA_1d.csv", header, [row])
    folder = CandleFolder(tmp_path, tmp_path, columns=columns)
    candles = folder.read("AAA")
    assert time_text(candles.timestamp[0]).startswith(first or "2021-01-01")
    assert (candles.close[0], candles.volume[0]) == (close, volume)
    assert not [note for note in folder.notes if "dates" in note or "epoch" in note]  # nothing was guessed


def test_a_told_symbol_column_replaces_the_names(tmp_path: Path, write_csv):
    write_csv("AAA_1d.csv", "time,symbol,coin,open,high,low,close,volume", [f"2021-01-01,X,Y,{BAR}"])
    assert CandleFolder(tmp_path, tmp_path, columns=["symbol=coin"]).symbols == ("Y",)
    assert CandleFolder(tmp_path, tmp_path, columns=["symbol="]).symbols == ("AAA",)


def test_a_told_column_that_a_file_lacks_is_named(tmp_path: Path, write_csv):
    write_csv("AAA_1d.csv", "time,open,high,low,close,volume", [f"2021-01-01,{BAR}"])
    with pytest.raises(DataError, match="has no column last for the close .its columns are time, open"):
        CandleFolder(tmp_path, tmp_path, columns=["close=last"])
    with pytest.raises(DataError, match="column close of .* is the close of its bars"):
        CandleFolder(tmp_path, tmp_path, columns=["close=close", "close"]).read("AAA")


def test_epoch_numbers_outside_a_told_unit_are_refused(tmp_path: Path, write_csv):
    write_csv("AAA_1d.csv", "time,open,high,low,close,volume", [f"1609459200000,{BAR}"])
    with pytest.raises(DataError, match="not a time in the unit that data.columns tells"):
        CandleFolder(tmp_path, tmp_path, columns=["time=time:s"]).read("AAA")
