from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainer.base.errors import DataError
from trainer.data.read import folders
from trainer.data.read.reading import read_candles

NINE = 1_609_491_600  # 2021-01-01T09:00:00Z


@pytest.mark.parametrize(
    "times",
    [
        ["2021-01-01T09:00:00Z", "2021-01-01T09:01:00Z"],
        ["2021-01-01 09:00:00", "2021-01-01 09:01:00"],
        ["2021-01-01T10:00:00+01:00", "2021-01-01T10:01:00+01:00"],
        [f"{NINE}", f"{NINE + 60}"],
        [f"{NINE}.0", f"{NINE + 60}.0"],
        [f"{NINE}000", f"{NINE + 60}000"],
        [f"{NINE}000000", f"{NINE + 60}000000"],
        [f"{NINE}000000000", f"{NINE + 60}000000000"],
    ],
)
def test_times_are_read_as_nanoseconds_utc(write_csv, times: list[str]) -> None:
    path = write_csv("AAA_1m.csv", "time,open,high,low,close,volume", [f"{time},1,2,1,2,5" for time in times])
    candles = read_candles(path)["AAA"]
    assert candles.timestamp.dtype == np.int64
    assert candles.timestamp.tolist() == [NINE * 10**9, (NINE + 60) * 10**9]


def test_an_opening_time_goes_before_the_timestamp_of_the_end(write_csv) -> None:
    # CoinMarketCap's export
    header = "timeOpen;timeClose;timeHigh;timeLow;name;open;high;low;close;volume;marketCap;timestamp"
    row = "{0}T00:00:00.000Z;{0}T23:59:59.999Z;{0}T21:46:00.000Z;{0}T01:46:00.000Z;2781;1;2;1;2;5;9;{0}T23:59:59.999Z"
    path = write_csv("Bitcoin_1d.csv", header, [row.format(day) for day in ("2021-01-02", "2021-01-01")])
    candles = read_candles(path)["Bitcoin"]
    assert candles.timestamp.tolist() == [1_609_459_200 * 10**9, 1_609_545_600 * 10**9]


@pytest.mark.parametrize("folder", ["", "symbol=AAA/"])
def test_more_files_than_a_run_reads_are_refused(write_csv, monkeypatch, tmp_path: Path, folder: str) -> None:
    monkeypatch.setattr(folders, "MOST_CANDLE_FILES", 2)
    (tmp_path / folder).mkdir(exist_ok=True)
    for number in range(3):
        (tmp_path / folder / f"AAA_{number}.csv").write_text("date,open,high,low,close,volume\n")
    with pytest.raises(DataError, match="more than 2 candle files"):
        folders.candle_files(tmp_path)


def test_dates_as_text_and_as_numbers_are_midnights(write_csv, tmp_path: Path) -> None:
    text = write_csv(
        "AAA_1d.csv", "date,open,high,low,close,volume", ["2021-01-01,1,1,1,1,1", "2021-01-04,1,1,1,1,1"]
    )
    number = write_csv(
        "BBB_1d.csv", "date,open,high,low,close,volume", ["20210101,1,1,1,1,1", "20210104,1,1,1,1,1"]
    )
    expected = [1_609_459_200 * 10**9, 1_609_718_400 * 10**9]
    assert read_candles(text)["AAA"].timestamp.tolist() == expected
    assert read_candles(number)["BBB"].timestamp.tolist() == expected


def test_columns_are_recognized_in_any_order_and_case(write_csv) -> None:
    path = write_csv(
        "AAA_1m.csv",
        "Vol;C;Open Time;L;H;O;Trades",
        [f"7;2;{NINE};1;3;1.5;99", f"8;2;{NINE + 60};1;3;1.5;99"],
    )
    candles = read_candles(path)["AAA"]
    row = [float(getattr(candles, name)[0]) for name in ("open", "high", "low", "close", "volume")]
    assert row == [1.5, 3.0, 1.0, 2.0, 7.0]


@pytest.mark.parametrize(
    "name", ["Volume MA", "volume_sma_20", "volume_weighted_average_price", "Volume Change"]
)
def test_what_is_made_of_volumes_is_no_volume(write_csv, name: str) -> None:
    read = [
        read_candles(write_csv(file, f"time,{header},o,h,l,c", ["2021-01-04,5,7,1,1,1,1"]))["AAA"].volume[0]
        for file, header in (("AAA_1d.csv", f"{name},x"), ("AAA_1d_1.csv", f"{name},Volume BTC"))
    ]
    assert read == [0, 7]


def test_a_symbol_column_wins_over_the_files_name(write_csv) -> None:
    rows = [
        f"{NINE},600519,1,1,1,1,1",
        f"{NINE},NA,2,2,2,2,2",
        f"{NINE + 60},600519,1,1,1,1,1",
        f"{NINE + 60},NA,2,2,2,2,2",
    ]
    candles = read_candles(write_csv("ALL_1m.csv", "time,ticker,open,high,low,close,volume", rows))
    assert list(candles) == ["600519", "NA"]
    assert candles["NA"].close.tolist() == [2.0, 2.0]


def test_a_pandas_index_is_the_time(tmp_path: Path) -> None:
    index = pd.date_range("2021-01-01 09:00", periods=3, freq="min")
    frame = pd.DataFrame(
        {name: [1, 2, 3] for name in ("Open", "High", "Low", "Close", "Volume")}, index=index
    )
    frame.to_parquet(tmp_path / "AAA_1m.parquet")
    candles = read_candles(tmp_path)["AAA"]
    assert int(candles.timestamp[0]) == NINE * 10**9
    assert candles.close.tolist() == [1.0, 2.0, 3.0]


def test_single_precision_keeps_its_value(tmp_path: Path) -> None:
    columns = {
        name: pa.array([47_000.12], pa.float32()) for name in ("open", "high", "low", "close", "volume")
    }
    pq.write_table(
        pa.table({"timestamp": pa.array([NINE], pa.timestamp("s", "UTC")), **columns}),
        tmp_path / "AAA_1m.parquet",
    )
    assert read_candles(tmp_path)["AAA"].close[0] == np.float64(np.float32(47_000.12))


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("tickers", [["AAPL"], ["AAPL", "MSFT"]])
def test_columns_grouped_by_ticker_are_told_how_to_stack(
    tmp_path: Path, form: str, tickers: list[str]
) -> None:
    days = pd.date_range("2021-01-04", periods=3, name="Date")
    fields = ("Open", "High", "Low", "Close", "Volume")
    columns = pd.MultiIndex.from_product([tickers, fields], names=["Ticker", "Price"])
    frame = pd.DataFrame(1.0, index=days, columns=columns)  # yfinance, group_by="ticker"
    file, data = tmp_path / f"prices_1d.{form}", tmp_path / "data"
    data.mkdir()
    getattr(frame, f"to_{form}")(file)
    with pytest.raises(DataError, match="has its columns grouped by ticker") as caught:
        read_candles(file)
    line = re.search(r"(frame\.stack.*)\.$", caught.value.do)
    assert line is not None
    exec(line[1].replace("FILE", repr(str(data / file.name))), {"frame": frame})
    assert sorted(read_candles(data)) == tickers


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16-le"])
def test_a_csv_that_is_not_utf_8_says_so(tmp_path: Path, encoding: str) -> None:
    text = "date;open;high;low;close;volume;W\u00e4hrung\n2021-01-04;1;1;1;1;1;EUR\n"
    (tmp_path / "AAA_1d.csv").write_bytes(text.encode(encoding))
    with pytest.raises(DataError, match=r"AAA_1d.csv is not CSV \(.*\)\. Save it as CSV in UTF-8\."):
        read_candles(tmp_path)


@pytest.mark.parametrize("time", ["01/13/21", "20210104  09:30:00", "2021-01-04 09:30:00 EST"])
def test_an_unknown_style_of_times_is_shown(write_csv, time: str) -> None:
    path = write_csv("AAA_1m.csv", "date,o,h,l,c,v", [f"{time},1,1,1,1,1"])
    with pytest.raises(DataError, match=re.escape(f"in column date ('{time}' is not a time)")):
        read_candles(path)


@pytest.mark.parametrize("time", ["yesterday", "09:00", "12", ""])
def test_a_malformed_time_is_refused(write_csv, time: str) -> None:
    path = write_csv("AAA_1m.csv", "time,o,h,l,c,v", [f"{time},1,1,1,1,1"])
    with pytest.raises(DataError, match="time"):
        read_candles(path)


def test_a_price_that_is_not_a_number_is_refused(write_csv) -> None:
    with pytest.raises(DataError, match=r"AAA_1m\.csv has a value in column c that is not a number.*dear"):
        read_candles(write_csv("AAA_1m.csv", "time,o,h,l,c,v", [f"{NINE},1,1,1,dear,1"]))
