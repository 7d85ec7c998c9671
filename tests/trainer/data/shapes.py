"""Shapes of candle files that people have: what lies in the folder, and what becomes of it. docs/data.md has
a row for each.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import dataclass, field

NINE = 1_609_491_600  # 2021-01-01T09:00:00Z
DAY = 86_400
FIRST, FIRST_DAY = "2021-01-01T09:00:00Z", "2021-01-04T00:00:00Z"
PRICES = ("100.5,101.5,99.5,101,7", "101,102.25,100,102,8", "102,103,101.5,102.5,9")
CLOSES = (101.0, 102.0, 102.5)


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
    closes: tuple[float, ...] = CLOSES
    volumes: tuple[float, ...] = (7, 8, 9)
    notes: tuple[str, ...] = ()  # parts of the lines that the plan shows, each in this order
    error: str = ""  # a part of the one line that refuses it
    asked: Mapping[str, str] = field(default_factory=dict)  # flags: timeframe

    @property
    def outcome(self) -> str:
        """Return what the table says of it."""
        return "refused" if self.error else "read"


def rows(*times: str, prices: tuple[str, ...] = PRICES, mark: str = ",") -> str:
    """Return lines of bars with these times in front."""
    return "".join(f"{time},{bar}\n".replace(",", mark) for time, bar in zip(times, prices, strict=False))


def minutes(unit: int = 1) -> tuple[str, ...]:
    return tuple(str((NINE + 60 * row) * unit) for row in range(3))


DAYS = ("2021-01-04", "2021-01-05", "2021-01-06")
METATRADER = "<DATE>\t<TIME>\t<OPEN>\t<HIGH>\t<LOW>\t<CLOSE>\t<TICKVOL>\t<VOL>\t<SPREAD>\n"
OHLCV = "open,high,low,close,volume"
COMMA = tuple(bar.replace(",", ";").replace(".", ",") for bar in PRICES)


def klines(unit: int) -> str:
    return "".join(
        f"{time},{bar},{int(time) + 59_999},700,12,3,300,0\n"
        for time, bar in zip(minutes(unit), PRICES, strict=True)
    )


def per_ticker(day: str, *cells: str) -> str:
    return ",".join((day, *cells)) + "\n"


SHAPES: tuple[Shape, ...] = (
    Shape(title="Plain CSV", files={"AAPL_1d.csv": f"date,{OHLCV}\n{rows(*DAYS)}"}),
    Shape(
        title="Compressed CSV",
        files={"AAPL_1d_2021.csv.gz": gzip.compress(f"date,{OHLCV}\n{rows(*DAYS)}".encode(), mtime=0)},
    ),
    Shape(
        title="Binance klines, no header",
        files={"BTCUSDT-1m-2021-01.csv": klines(1000)},
        symbol="BTCUSDT",
        timeframe="1m",
        first=FIRST,
    ),
    Shape(
        title="Binance klines since 2025, microseconds",
        files={"BTCUSDT-1m-2021-01.csv": klines(1_000_000)},
        symbol="BTCUSDT",
        timeframe="1m",
        first=FIRST,
    ),
    Shape(
        title="CryptoDataDownload",
        files={
            "Binance_BTCUSDT_minute.csv": (
                "https://www.CryptoDataDownload.com\n"
                "Unix,Date,Symbol,Open,High,Low,Close,Volume BTC,Volume USDT,tradecount\n"
                + "".join(
                    f"{NINE + 60 * row}000,2021-01-01 09:0{row}:00,BTC/USDT,{PRICES[row]},900,12\n"
                    for row in (2, 1, 0)  # newest first
                )
            )
        },
        symbol="BTC-USDT",
        timeframe="1m",
        first=FIRST,
        notes=("BTC/USDT: a name can't contain a slash (it trains as BTC-USDT)",),
    ),
    Shape(
        title="Kraken OHLCVT, no header",
        files={"XBTUSD_1m.csv": "".join(f"{line},4\n" for line in rows(*minutes()).splitlines())},
        symbol="XBTUSD",
        timeframe="1m",
        first=FIRST,
    ),
    Shape(
        title="Coinbase, columns in another order",
        files={
            "BTC-USD_1m.csv": (
                "time,low,high,open,close,volume\n"
                + "".join(
                    f"{time},{low},{high},{opened},{close},{volume}\n"
                    for time, (opened, high, low, close, volume) in zip(
                        minutes(), (bar.split(",") for bar in PRICES), strict=True
                    )
                )
            )
        },
        symbol="BTC-USD",
        timeframe="1m",
        first=FIRST,
    ),
    Shape(
        title="MetaTrader 5",
        files={
            "EURUSD_M1_202101010900_202101010902.csv": (
                "\t".join(
                    (
                        "<DATE>",
                        "<TIME>",
                        "<OPEN>",
                        "<HIGH>",
                        "<LOW>",
                        "<CLOSE>",
                        "<TICKVOL>",
                        "<VOL>",
                        "<SPREAD>\n",
                    )
                )
                + "".join(
                    f"2021.01.01\t09:0{row}:00\t{PRICES[row]}\t0\t1\n".replace(",", "\t") for row in range(3)
                )
            )
        },
        symbol="EURUSD",
        timeframe="1m",
        first=FIRST,
        notes=("volume is column <TICKVOL>",),
    ),
    Shape(
        title="MetaTrader 4, no header",
        files={"EURUSD_H1.csv": rows("2021.01.04,00:00", "2021.01.04,01:00", "2021.01.04,02:00")},
        symbol="EURUSD",
        timeframe="1h",
    ),
    Shape(
        title="Stooq, one symbol",
        files={"aapl_us_d.csv": f"Date,Open,High,Low,Close,Volume\n{rows(*DAYS)}"},
        symbol="aapl_us",
    ),
    Shape(
        title="Stooq, bulk",
        files={
            "daily/us/nasdaq stocks/aapl.us.txt": (
                "<TICKER>,<PER>,<DATE>,<TIME>,<OPEN>,<HIGH>,<LOW>,<CLOSE>,<VOL>,<OPENINT>\n"
                + "".join(
                    f"AAPL.US,D,{day.replace('-', '')},000000,{bar},0\n"
                    for day, bar in zip(DAYS, PRICES, strict=True)
                )
            )
        },
        symbol="AAPL.US",
    ),
    Shape(
        title="pandas `to_csv()`, unnamed index of times",
        files={"AAPL_1d.csv": f",Open,High,Low,Close,Volume\n{rows(*DAYS)}"},
    ),
    Shape(
        title="pandas `to_csv()`, index of numbers",
        files={
            "AAPL_1d.csv": (
                f",date,{OHLCV}\n"
                + "".join(f"{n},{line}\n" for n, line in enumerate(rows(*DAYS).splitlines()))
            )
        },
    ),
    Shape(
        title="Polygon flat file",
        files={
            "2021-01-01.csv.gz": gzip.compress(
                (
                    "ticker,volume,open,close,high,low,window_start,transactions\n"
                    + "".join(
                        f"AAPL,{volume},{opened},{close},{high},{low},{time},5\n"
                        for time, (opened, high, low, close, volume) in zip(
                            minutes(10**9), (bar.split(",") for bar in PRICES), strict=True
                        )
                    )
                ).encode(),
                mtime=0,
            )
        },
        timeframe="1m",
        first=FIRST,
    ),
    Shape(
        title="yfinance, header of three lines",
        files={
            "prices_1d.csv": (
                "Price,Open,High,Low,Close,Volume\nTicker,AAPL,AAPL,AAPL,AAPL,AAPL\nDate,,,,,\n" + rows(*DAYS)
            ),
        },
    ),
    Shape(
        title="yfinance, several tickers side by side",
        files={
            "prices_1d.csv": (
                "Price,Open,Open,High,High,Low,Low,Close,Close,Volume,Volume\n"
                "Ticker,AAPL,MSFT,AAPL,MSFT,AAPL,MSFT,AAPL,MSFT,AAPL,MSFT\nDate,,,,,,,,,,\n2021-01-04,1,2,1,2,1,2,1,2,1,2\n"
            ),
        },
        error=(
            "has 2 tickers side by side (its second line names AAPL, MSFT). Write one below the other:"
            " frame.stack("
        ),
    ),
    Shape(
        title="Yahoo, with `Adj Close`",
        files={
            "AAPL_Daily.csv": (
                "Date,Open,High,Low,Close,Adj Close,Volume\n"
                "2021-01-04,700,714,693,707,101,7\n2021-01-05,101,102.25,100,102,102,8\n2021-01-06,102,103,101.5,102.5,102.5,9\n"
            )
        },
        notes=("prices are adjusted by column Adj Close",),
    ),
    Shape(
        title="A split, unadjusted",
        files={
            "AAPL_1d.csv": f"date,{OHLCV}\n2021-01-04,700,714,693,707,7\n{rows(*DAYS[1:], prices=PRICES[1:])}"
        },
        closes=(707.0, 102.0, 102.5),
        notes=(
            (
                "AAPL: prices jump as at a split; bring adjusted prices, such as a column Adj Close (7:1 at"
                " 2021-01-05"
            ),
        ),
    ),
    Shape(
        title="One bar a hundred times off",
        files={
            "AAPL_1d.csv": (
                f"date,{OHLCV}\n{rows(*DAYS, prices=(PRICES[0], '101,10200,100,10200,8', PRICES[2]))}"
            )
        },
        error=(
            "close is more than 50 times off the bars before and after in a bar of AAPL (1 such bars, the"
            " first at 2021"
        ),
    ),
    Shape(
        title="A close outside high and low",
        files={
            "AAPL_1d.csv": (
                f"date,{OHLCV}\n{rows(*DAYS, prices=(PRICES[0], '101,102.25,100,103,8', PRICES[2]))}"
            )
        },
        closes=(101.0, 103.0, 102.5),
        notes=("AAPL: open or close lies outside high and low (at 2021-01-05",),
    ),
    Shape(
        title="US dates",
        files={
            "AAPL_1d.csv": (
                f"Date,Open,High,Low,Close,Volume\n{rows('01/04/2021', '01/05/2021', '01/13/2021')}"
            ),
        },
    ),
    Shape(
        title="US dates and clock",
        files={
            "AAPL_30m.csv": (
                f"Date,Time,{OHLCV}\n{rows('01/13/2021,09:30 AM', '01/13/2021,10:00 AM', '01/13/2021,12:30 PM')}"
            )
        },
        timeframe="30m",
        first="2021-01-13T09:30:00Z",
    ),
    Shape(
        title="European, semicolons and decimal commas",
        files={
            "AAPL_1d.csv": (
                "Date;Open;High;Low;Close;Volume\n"
                + "".join(
                    f"{day};{bar}\n"
                    for day, bar in zip(("04.01.2021", "05.01.2021", "13.01.2021"), COMMA, strict=True)
                )
            )
        },
    ),
    Shape(
        title="European dates with slashes",
        files={
            "AAPL_1d.csv": (
                f"Date,Open,High,Low,Close,Volume\n{rows('04/01/2021', '05/01/2021', '13/01/2021')}"
            )
        },
    ),
    Shape(
        title="Dates with two readings",
        files={
            "AAPL_1d.csv": (
                f"Date,Open,High,Low,Close,Volume\n{rows('04/01/2021', '05/01/2021', '06/01/2021')}"
            )
        },
        error=(
            "04/01/2021 has two readings: no date of the file has a day above 12). Write dates as 2021-03-04"
        ),
    ),
    Shape(
        title="Prices with two readings",
        files={"AAPL_1d.csv": "Date;Open;High;Low;Close;Volume\n2021-01-04;47,123;47,500;47,000;47,200;7\n"},
        error=(
            "has numbers with two readings (47,123 may be 47123 or 47.123). Write them with a decimal point"
        ),
    ),
    Shape(
        title="Thousands separators and currency signs",
        files={
            "AAPL_1d.csv": (
                'Date,Close/Last,Volume,Open,High,Low\n2021-01-04,"$1,101.50",7,"$1,100.00","$1,102","$1,099"\n'
            )
        },
        error=(
            "has numbers such as '$1,101.50' (a number is read with one decimal sign and nothing between"
            " thousands)"
        ),
    ),
    Shape(
        title="Forex without volume",
        files={
            "EURUSD_1d.csv": (
                "time,open,high,low,close\n"
                + rows(*DAYS, prices=tuple(bar.rpartition(",")[0] for bar in PRICES))
            )
        },
        symbol="EURUSD",
        volumes=(0, 0, 0),
        notes=("there is no volume, so it counts as zero",),
    ),
    Shape(
        title="HistData, no header",
        files={
            "EURUSD_M1_2021.csv": "".join(
                f"20210101 0{900 + row}00;{bar}\n".replace(",", ";") for row, bar in enumerate(PRICES)
            )
        },
        symbol="EURUSD",
        timeframe="1m",
        first=FIRST,
    ),
    Shape(
        title="Dukascopy",
        files={
            "EURUSD_Candlestick_1_M_BID_01.01.2021-01.01.2021.csv": (
                "Gmt time,Open,High,Low,Close,Volume\n"
                + rows(*(f"01.01.2021 09:0{row}:00.000" for row in range(3)))
            )
        },
        symbol="EURUSD",
        timeframe="1m",
        first=FIRST,
    ),
    Shape(
        title="TradingView",
        files={
            "BINANCE_BTCUSDT, 1.csv": (
                f"time,{OHLCV},MA\n" + "".join(f"{x},1\n" for x in rows(*minutes()).splitlines())
            )
        },
        symbol="BTCUSDT",
        timeframe="1m",
        first=FIRST,
    ),
    Shape(
        title="A column of symbols such as BTC/USD",
        files={
            "all_1m.csv": (
                f"symbol,time,{OHLCV}\n" + "".join(f"BTC/USD,{x}\n" for x in rows(*minutes()).splitlines())
            )
        },
        symbol="BTC-USD",
        timeframe="1m",
        first=FIRST,
        notes=("BTC/USD: a name can't contain a slash (it trains as BTC-USD)",),
    ),
    Shape(
        title="Hive partitions",
        files={
            "symbol=BTC%2FUSD/year=2021/part-0.csv": f"time,{OHLCV}\n{rows(*minutes())}",
            "symbol=BTC%2FUSD/year=2022/part-0.csv": f"time,{OHLCV}\n{NINE + 180},102.5,104,102,103,10\n",
        },
        symbol="BTC-USD",
        timeframe="1m",
        first=FIRST,
        closes=(*CLOSES, 103.0),
        volumes=(7, 8, 9, 10),
        notes=("BTC/USD: a name can't contain a slash",),
    ),
    Shape(
        title="A folder for each symbol",
        files={"BTC-USD/1m/2021-01.csv": f"time,{OHLCV}\n{rows(*minutes())}"},
        symbol="BTC-USD",
        timeframe="1m",
        first=FIRST,
    ),
    Shape(
        title="Files beside subfolders",
        files={
            "BTC-USD_1m.csv": f"time,{OHLCV}\n{rows(*minutes())}",
            "old/BTC-USD_1m.csv": f"time,{OHLCV}\n{rows(*minutes(), prices=('1,1,1,1,1',) * 3)}",
        },
        symbol="BTC-USD",
        timeframe="1m",
        first=FIRST,
        notes=("its folder old/ is not read, because there are candle files beside it",),
    ),
    Shape(
        title="UTF-16, as Excel and MetaTrader write it",
        files={
            "AAPL_1d.csv": f"sep=;\r\nDate;Open;High;Low;Close;Volume\r\n{rows(*DAYS, mark=';')}".encode(
                "utf-16"
            )
        },
    ),
    Shape(
        title="Newest bar first",
        files={
            "AAPL_1d.csv": f"date,{OHLCV}\n" + "".join(f"{x}\n" for x in reversed(rows(*DAYS).splitlines()))
        },
    ),
    Shape(
        title="Bars in no order",
        files={"AAPL_1d.csv": f"date,{OHLCV}\n" + rows(DAYS[1], DAYS[0], DAYS[2])},
        error=(
            "has unsorted bars of AAPL (2021-01-04T00:00:00Z comes after 2021-01-05T00:00:00Z). Sort the file"
            " by time."
        ),
    ),
    Shape(
        title="Times as 202101010900",
        files={"AAPL_1m.csv": f"time,{OHLCV}\n{rows('202101010900', '202101010901', '202101010902')}"},
        timeframe="1m",
        first=FIRST,
    ),
    Shape(
        title="Excel's numbers of days",
        files={"AAPL_1d.csv": f"date,{OHLCV}\n{rows('44200', '44201', '44202')}"},
        error=(
            "has a time that can't be read in column date (44200 is not a date). Write times as ISO 8601 text"
        ),
    ),
    Shape(
        title="Zoned times",
        files={"AAPL_1d.csv": f"time,{OHLCV}\n" + rows(*(f"{day} 01:00:00+01:00" for day in DAYS))},
    ),
    Shape(
        title="Dates with month names",
        files={"AAPL_1d.csv": f"Date,{OHLCV}\n{rows('04-Jan-2021', '05-Jan-2021', '06-Jan-2021')}"},
    ),
    Shape(
        title="An unknown export without a header",
        files={"AAPL_1d.csv": "2021-01-04,1,2,0.5,1.5,3,4,5,6\n"},
        error=(
            "has no header, and its first line is not that of a known export"
            " (2021-01-04,1,2,0.5,1.5,3,4,5,6). Write"
        ),
    ),
    Shape(
        title="Without a header, columns in another order",
        files={"AAPL_1d.csv": "2021-01-04,99.5,101.5,100.5,101,7\n"},
        error=(
            "has no header, and its columns are not time, open, high, low, close, volume (high and low do not"
            " hold open"
        ),
    ),
    Shape(
        title="Ticks or quotes, not bars",
        files={"AAPL_1d.csv": "time,bid,ask\n2021-01-04,1,2\n"},
        error=(
            "has no column for open, high, low, close (its columns are time, bid, ask). Name the column open"
        ),
    ),
    Shape(
        title="Minutes, with `--timeframe 5m`",
        files={
            "BTC-USD_1m.csv": (
                f"time,{OHLCV}\n"
                + "".join(
                    f"{NINE + 60 * row},{100 + row},{101 + row},{99 + row},{100.5 + row},1\n"
                    for row in range(1, 21)
                    if row != 7
                )
            )
        },
        symbol="BTC-USD",
        timeframe="5m",
        first="2021-01-01T09:05:00Z",
        closes=(109.5, 114.5, 119.5),
        volumes=(4, 5, 5),
        notes=("BTC-USD: bars of 5m are made from bars of 1m",),
        asked={"timeframe": "5m"},
    ),
    Shape(
        title="Another timeframe than the name's",
        files={"AAPL_1h.csv": f"date,{OHLCV}\n{rows(*DAYS)}"},
        timeframe="1h",
        notes=("AAPL: bars should be of 1h, but most are 1d apart",),
    ),
    Shape(title="Excel", files={"AAPL.xlsx": b"PK"}, error="It has .xlsx files: Save it as CSV."),
    Shape(
        title="JSON",
        files={"AAPL.json": "[]"},
        error="It has .json files: Write it as CSV: pandas.read_json(",
    ),
)
