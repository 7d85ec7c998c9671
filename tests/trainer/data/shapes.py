"""Shapes of candle files that people have: what lies in the folder, and what becomes of it. docs/data.md has
a row for each.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

NINE = 1_609_491_600  # 2021-01-01T09:00:00Z
FIRST, FIRST_DAY = "2021-01-01T09:00:00Z", "2021-01-04T00:00:00Z"
PRICES = ("100.5,101.5,99.5,101,7", "101,102.25,100,102,8", "102,103,101.5,102.5,9")
CELLS = tuple(bar.split(",") for bar in PRICES)
DAYS = ("2021-01-04", "2021-01-05", "2021-01-06")
MINUTES = tuple(str(NINE + 60 * row) for row in range(3))
OHLCV = "open,high,low,close,volume"
EPOCH_S, EPOCH_MS = ("times are epoch numbers in s",), ("times are epoch numbers in ms",)
POLYGON_GUESSES = ("time is column window_start", "times are epoch numbers in ns")
DAY_FIRST = ("dates begin with the day",)
DATE_OHLCV = "Date,Open,High,Low,Close,Volume"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A folder's files by name, and what `--data` of it gives: symbol, timeframe and the first bar, or an
    error.
    """

    title: str  # as docs/data.md has it
    files: Mapping[str, str | bytes]
    symbol: str = "AAPL"
    timeframe: str = "1d"
    first: str = FIRST_DAY
    closes: tuple[float, ...] = (101.0, 102.0, 102.5)
    volumes: tuple[float, ...] = (7, 8, 9)
    notes: tuple[str, ...] = ()  # parts of the lines that the plan shows, each in this order
    guesses: tuple[str, ...] = ()  # parts of the lines after them, on what the file leaves open
    error: str = ""  # a part of the one line that refuses it
    asked: Mapping[str, str] = field(default_factory=dict)  # flags: timeframe

    @property
    def outcome(self) -> str:
        """Return what the table says of it."""
        return "refused" if self.error else "read"


def lines(rows: Iterable[str]) -> str:
    return "".join(f"{row}\n" for row in rows)


def rows(*times: str, prices: tuple[str, ...] = PRICES) -> str:
    """Return lines of bars with these times in front."""
    return lines(f"{time},{bar}" for time, bar in zip(times, prices, strict=False))


def daily(title: str, text: str | bytes, *, name: str = "AAPL_1d.csv", **told: Any) -> Shape:
    """Return a file of days of AAPL."""
    return Shape(title=title, files={name: text}, **told)


def minutes(title: str, name: str, text: str | bytes, symbol: str, **told: Any) -> Shape:
    """Return a file of minutes."""
    return Shape(title=title, files={name: text}, symbol=symbol, timeframe="1m", first=FIRST, **told)


def klines(zeros: str) -> str:
    times = [f"{time}{zeros}" for time in MINUTES]
    return lines(
        f"{time},{bar},{int(time) + 59_999},700,12,3,300,0" for time, bar in zip(times, PRICES, strict=True)
    )


def gzipped(text: str) -> bytes:
    return gzip.compress(text.encode(), mtime=0)


def feather(*, stream: bool) -> bytes:
    """Return days as an Arrow file, or as a stream."""
    cells = [[float(cell) for cell in column] for column in zip(*CELLS, strict=True)]
    times = pa.array(DAYS).cast(pa.timestamp("us"))
    table = pa.table({"date": times, **dict(zip(OHLCV.split(","), cells, strict=True))})
    sink = pa.BufferOutputStream()
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(sink, table.schema) as file:
        file.write_table(table)
    return sink.getvalue().to_pybytes()


def five_minutes() -> Shape:
    bars = (f"{NINE + 60 * n},{100 + n},{101 + n},{99 + n},{100.5 + n},1" for n in range(1, 21) if n != 7)
    return Shape(
        title="Minutes, with `--timeframe 5m`",
        files={"BTC-USD_1m.csv": f"time,{OHLCV}\n{lines(bars)}"},
        symbol="BTC-USD",
        timeframe="5m",
        first="2021-01-01T09:05:00Z",
        closes=(109.5, 114.5, 119.5),
        volumes=(4, 5, 5),
        notes=("BTC-USD: bars of 5m are made from bars of 1m",),
        guesses=EPOCH_S,
        asked={"timeframe": "5m"},
    )


MINUTE_ROWS, DAY_ROWS = rows(*MINUTES), rows(*DAYS)
WITH_MINUTES, WITH_DAYS = f"time,{OHLCV}\n{MINUTE_ROWS}", f"date,{OHLCV}\n{DAY_ROWS}"
CRYPTO_DATA_DOWNLOAD = (
    "https://www.CryptoDataDownload.com\n"
    "Unix,Date,Symbol,Open,High,Low,Close,Volume BTC,Volume USDT,tradecount\n"
    + lines(
        f"{NINE + 60 * row}000,2021-01-01 09:0{row}:00,BTC/USDT,{PRICES[row]},900,12"
        for row in (2, 1, 0)  # newest first
    )
)
COINBASE = "time,low,high,open,close,volume\n" + lines(
    f"{time},{low},{high},{opened},{close},{volume}"
    for time, (opened, high, low, close, volume) in zip(MINUTES, CELLS, strict=True)
)
METATRADER = "<DATE>,<TIME>,<OPEN>,<HIGH>,<LOW>,<CLOSE>,<TICKVOL>,<VOL>,<SPREAD>\n" + lines(
    f"2021.01.01,09:0{row}:00,{PRICES[row]},0,1" for row in range(3)
)
STOOQ = "<TICKER>,<PER>,<DATE>,<TIME>,<OPEN>,<HIGH>,<LOW>,<CLOSE>,<VOL>,<OPENINT>\n" + lines(
    f"AAPL.US,D,{day.replace('-', '')},000000,{bar},0" for day, bar in zip(DAYS, PRICES, strict=True)
)
POLYGON = "ticker,volume,open,close,high,low,window_start,transactions\n" + lines(
    f"AAPL,{volume},{opened},{close},{high},{low},{time}000000000,5"
    for time, (opened, high, low, close, volume) in zip(MINUTES, CELLS, strict=True)
)
YFINANCE = "Price,Open,High,Low,Close,Volume\nTicker,AAPL,AAPL,AAPL,AAPL,AAPL\nDate,,,,,\n" + DAY_ROWS
SIDE_BY_SIDE = (
    "Price,Open,Open,High,High,Low,Low,Close,Close,Volume,Volume\n"
    "Ticker,AAPL,MSFT,AAPL,MSFT,AAPL,MSFT,AAPL,MSFT,AAPL,MSFT\n"
    "Date,,,,,,,,,,\n2021-01-04,1,2,1,2,1,2,1,2,1,2\n"
)
YAHOO = (
    "Date,Open,High,Low,Close,Adj Close,Volume\n2021-01-04,700,714,693,707,101,7\n"
    "2021-01-05,101,102.25,100,102,102,8\n2021-01-06,102,103,101.5,102.5,102.5,9\n"
)
EUROPEAN = "Date;Open;High;Low;Close;Volume\n" + lines(
    f"{day};{bar.replace(',', ';').replace('.', ',')}"
    for day, bar in zip(("04.01.2021", "05.01.2021", "13.01.2021"), PRICES, strict=True)
)

SHAPES: tuple[Shape, ...] = (
    daily("Plain CSV", WITH_DAYS),
    daily("Feather, as pandas and polars write it", feather(stream=False), name="AAPL_1d.feather"),
    daily("Arrow stream", feather(stream=True), name="AAPL_1d.arrow"),
    daily("Compressed CSV", gzipped(WITH_DAYS), name="AAPL_1d_2021.csv.gz"),
    minutes(
        "Binance klines, no header", "BTCUSDT-1m-2021-01.csv", klines("000"), "BTCUSDT", guesses=EPOCH_MS
    ),
    minutes(
        "Binance klines since 2025, microseconds",
        "BTCUSDT-1m-2021-01.csv",
        klines("000000"),
        "BTCUSDT",
        guesses=("times are epoch numbers in us",),
    ),
    minutes(
        "CryptoDataDownload",
        "Binance_BTCUSDT_minute.csv",
        CRYPTO_DATA_DOWNLOAD,
        "BTC-USDT",
        guesses=("time is column Date, volume is column Volume BTC",),
        notes=("BTC/USDT: a name can't contain a slash (it trains as BTC-USDT)",),
    ),
    minutes(
        "Kraken OHLCVT, no header",
        "XBTUSD_1m.csv",
        MINUTE_ROWS.replace("\n", ",4\n"),
        "XBTUSD",
        guesses=EPOCH_S,
    ),
    minutes("Coinbase, columns in another order", "BTC-USD_1m.csv", COINBASE, "BTC-USD", guesses=EPOCH_S),
    minutes(
        "MetaTrader 5",
        "EURUSD_M1_202101010900_202101010902.csv",
        METATRADER.replace(",", "\t"),
        "EURUSD",
        notes=("volume is column <TICKVOL>",),
    ),
    daily(
        "MetaTrader 4, no header",
        rows("2021.01.04,00:00", "2021.01.04,01:00", "2021.01.04,02:00"),
        name="EURUSD_H1.csv",
        symbol="EURUSD",
        timeframe="1h",
    ),
    daily("Stooq, one symbol", f"{DATE_OHLCV}\n{DAY_ROWS}", name="aapl_us_d.csv", symbol="aapl_us"),
    daily("Stooq, bulk", STOOQ, name="daily/us/nasdaq stocks/aapl.us.txt", symbol="AAPL.US"),
    daily(
        "pandas `to_csv()`, unnamed index of times",
        f",Open,High,Low,Close,Volume\n{DAY_ROWS}",
        guesses=("time is the column without a name",),
    ),
    daily(
        "pandas `to_csv()`, index of numbers",
        f",date,{OHLCV}\n" + lines(f"{n},{row}" for n, row in enumerate(DAY_ROWS.splitlines())),
    ),
    minutes("Polygon flat file", "2021-01-01.csv.gz", gzipped(POLYGON), "AAPL", guesses=POLYGON_GUESSES),
    daily("yfinance, header of three lines", YFINANCE, name="prices_1d.csv"),
    daily(
        "yfinance, several tickers side by side",
        SIDE_BY_SIDE,
        name="prices_1d.csv",
        error="has 2 tickers side by side (its second line names AAPL, MSFT). Write one below the other",
    ),
    daily(
        "Yahoo, with `Adj Close`",
        YAHOO,
        name="AAPL_Daily.csv",
        notes=("prices are adjusted by column Adj Close",),
    ),
    daily(
        "A split, unadjusted",
        f"date,{OHLCV}\n2021-01-04,700,714,693,707,7\n{rows(*DAYS[1:], prices=PRICES[1:])}",
        closes=(707.0, 102.0, 102.5),
        notes=("prices jump as at a split; bring adjusted prices, such as a column Adj Close (7:1 at",),
    ),
    daily(
        "One bar a hundred times off",
        f"date,{OHLCV}\n{rows(*DAYS, prices=(PRICES[0], '101,10200,100,10200,8', PRICES[2]))}",
        error="close is more than 50 times off the bars before and after in a bar of AAPL (1 such bar",
    ),
    daily(
        "A close outside high and low",
        f"date,{OHLCV}\n{rows(*DAYS, prices=(PRICES[0], '101,102.25,100,103,8', PRICES[2]))}",
        closes=(101.0, 103.0, 102.5),
        notes=("AAPL: open or close lies outside high and low (at 2021-01-05",),
    ),
    daily(
        "US dates",
        f"{DATE_OHLCV}\n{rows('01/04/2021', '01/05/2021', '01/13/2021')}",
        guesses=("dates begin with the month",),
    ),
    daily(
        "US dates and clock",
        f"Date,Time,{OHLCV}\n" + rows("01/13/2021,09:30 AM", "01/13/2021,10:00 AM", "01/13/2021,12:30 PM"),
        name="AAPL_30m.csv",
        timeframe="30m",
        first="2021-01-13T09:30:00Z",
        guesses=("dates begin with the month",),
    ),
    daily("European, semicolons and decimal commas", EUROPEAN, guesses=DAY_FIRST),
    daily(
        "European dates with slashes",
        f"{DATE_OHLCV}\n{rows('04/01/2021', '05/01/2021', '13/01/2021')}",
        guesses=DAY_FIRST,
    ),
    daily(
        "Dates with two readings",
        f"{DATE_OHLCV}\n{rows('04/01/2021', '05/01/2021', '06/01/2021')}",
        error="04/01/2021 has two readings: no date of the file has a day above 12). Write dates as 2021",
    ),
    daily(
        "Prices with two readings",
        "Date;Open;High;Low;Close;Volume\n2021-01-04;47,123;47,500;47,000;47,200;7\n",
        error="has numbers with two readings (47,123 may be 47123 or 47.123). Write them with a decimal",
    ),
    daily(
        "Thousands separators and currency signs",
        'Date,Close/Last,Volume,Open,High,Low\n2021-01-04,"$1,101.50",7,"$1,100.00","$1,102","$1,099"\n',
        error="has numbers such as '$1,101.50' (a number is read with one decimal sign and nothing between",
    ),
    daily(
        "Forex without volume",
        "time,open,high,low,close\n" + rows(*DAYS, prices=tuple(bar.rpartition(",")[0] for bar in PRICES)),
        name="EURUSD_1d.csv",
        symbol="EURUSD",
        volumes=(0, 0, 0),
        notes=("there is no volume, so it counts as zero",),
    ),
    minutes(
        "HistData, no header",
        "EURUSD_M1_2021.csv",
        rows(*(f"20210101 0{900 + row}00" for row in range(3))).replace(",", ";"),
        "EURUSD",
    ),
    minutes(
        "Dukascopy",
        "EURUSD_Candlestick_1_M_BID_01.01.2021-01.01.2021.csv",
        "Gmt time,Open,High,Low,Close,Volume\n" + rows(*(f"01.01.2021 09:0{n}:00.000" for n in range(3))),
        "EURUSD",
        guesses=("time is column Gmt time", *DAY_FIRST),
    ),
    minutes(
        "TradingView",
        "BINANCE_BTCUSDT, 1.csv",
        f"time,{OHLCV},MA\n" + MINUTE_ROWS.replace("\n", ",1\n"),
        "BTCUSDT",
        guesses=EPOCH_S,
    ),
    minutes(
        "A column of symbols such as BTC/USD",
        "all_1m.csv",
        f"symbol,time,{OHLCV}\n" + lines(f"BTC/USD,{row}" for row in MINUTE_ROWS.splitlines()),
        "BTC-USD",
        notes=("BTC/USD: a name can't contain a slash (it trains as BTC-USD)",),
        guesses=EPOCH_S,
    ),
    Shape(
        title="Hive partitions",
        files={
            "symbol=BTC%2FUSD/year=2021/part-0.csv": WITH_MINUTES,
            "symbol=BTC%2FUSD/year=2022/part-0.csv": f"time,{OHLCV}\n{NINE + 180},102.5,104,102,103,10\n",
        },
        symbol="BTC-USD",
        timeframe="1m",
        first=FIRST,
        closes=(101.0, 102.0, 102.5, 103.0),
        volumes=(7, 8, 9, 10),
        notes=("BTC/USD: a name can't contain a slash",),
        guesses=EPOCH_S,
    ),
    minutes("A folder for each symbol", "BTC-USD/1m/2021-01.csv", WITH_MINUTES, "BTC-USD", guesses=EPOCH_S),
    Shape(
        title="Files beside subfolders",
        files={
            "BTC-USD_1m.csv": WITH_MINUTES,
            "old/BTC-USD_1m.csv": f"time,{OHLCV}\n{rows(*MINUTES, prices=('1,1,1,1,1',) * 3)}",
        },
        symbol="BTC-USD",
        timeframe="1m",
        first=FIRST,
        notes=("its folder old/ is not read, because there are candle files beside it",),
        guesses=EPOCH_S,
    ),
    daily(
        "UTF-16, as Excel and MetaTrader write it",
        f"sep=;\r\nDate;Open;High;Low;Close;Volume\r\n{DAY_ROWS.replace(',', ';')}".encode("utf-16"),
    ),
    daily("Newest bar first", f"date,{OHLCV}\n" + lines(reversed(DAY_ROWS.splitlines()))),
    daily(
        "Bars in no order",
        f"date,{OHLCV}\n" + rows(DAYS[1], DAYS[0], DAYS[2]),
        error="has unsorted bars of AAPL (2021-01-04T00:00:00Z comes after 2021-01-05T00:00:00Z). Sort",
    ),
    minutes(
        "Times as 202101010900",
        "AAPL_1m.csv",
        f"time,{OHLCV}\n{rows('202101010900', '202101010901', '202101010902')}",
        "AAPL",
    ),
    daily(
        "Excel's numbers of days",
        f"date,{OHLCV}\n{rows('44200', '44201', '44202')}",
        error="has a time that can't be read in column date (44200 is not a date). Write times as ISO 8601",
    ),
    daily("Zoned times", f"time,{OHLCV}\n" + rows(*(f"{day} 01:00:00+01:00" for day in DAYS))),
    daily("Dates with month names", f"Date,{OHLCV}\n{rows('04-Jan-2021', '05-Jan-2021', '06-Jan-2021')}"),
    daily(
        "An unknown export without a header",
        "2021-01-04,1,2,0.5,1.5,3,4,5,6\n",
        error="has no header, and its first line is not that of a known export (2021-01-04,1,2,0.5",
    ),
    daily(
        "Without a header, columns in another order",
        "2021-01-04,99.5,101.5,100.5,101,7\n",
        error="has no header, and its columns are not time, open, high, low, close, volume (high and low",
    ),
    daily(
        "Ticks or quotes, not bars",
        "time,bid,ask\n2021-01-04,1,2\n",
        error="has no column for open, high, low, close (its columns are time, bid, ask). Name the column",
    ),
    five_minutes(),
    daily(
        "Another timeframe than the name's",
        WITH_DAYS,
        name="AAPL_1h.csv",
        timeframe="1h",
        notes=("AAPL: bars should be of 1h, but most are 1d apart",),
    ),
    daily("Excel", b"PK", name="AAPL.xlsx", error="It has .xlsx files: Save it as CSV."),
    daily(
        "A footer below the bars",
        WITH_DAYS + '"Downloaded from an exchange, as of 2021-01-07"\n',
        error='is not a bar ("Downloaded from an exchange, as of 2021-01-07"). Remove it.',
    ),
    daily("A line of totals", WITH_DAYS + "Total,,,,,24\n", error="is not a bar (Total,,,,,24). Remove it."),
    daily(
        "A currency sign alone",
        "Date,Open,High,Low,Close\n2021-01-04,$100.0,$102.0,$99.0,$101.5\n",
        error="has numbers such as '$100.0' (a number is read with one decimal sign and nothing between",
    ),
    daily(
        "Two columns of one name",
        "Date,open,high,low,close,Close\n2021-01-04,100,102,99,101,100\n",
        error="has two columns for close: close and Close. Rename one of them, or leave it out.",
    ),
    minutes(
        "Alpha Vantage",
        "intraday_1min_IBM.csv",
        "timestamp," + WITH_MINUTES.partition(",")[2],
        "IBM",
        guesses=EPOCH_S,
    ),
    Shape(
        title="The second copy of a download",
        files={"AAPL_1d.csv": WITH_DAYS, "AAPL_1d (2).csv": WITH_DAYS},
        notes=("AAPL_1d (2).csv: its name ends as a copy's",),
    ),
    daily("JSON", "[]", name="AAPL.json", error="It has .json files: Write it as CSV: pandas.read_json("),
    daily(
        "JSON, a list of lists, as ccxt returns it",
        "[[1609459200000, 1, 2, 1, 2, 3]]",
        name="AAPL.json",
        error="Write it as CSV: pandas.read_json(FILE).set_axis(['time', 'open', 'high', 'low', 'close', 'volume'],",
    ),
)
