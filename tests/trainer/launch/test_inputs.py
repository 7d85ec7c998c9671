from __future__ import annotations

from dataclasses import replace

import pytest

from tests.candles import fewest
from tests.jobs import job_of, with_settings
from trainer.base.errors import DataError
from trainer.launch import inputs as inputs_module
from trainer.launch.inputs import Input, choose, overlapping
from trainer.launch.planning import choose_from_set, with_candles


def item(name: str, timeframe: str, *held: tuple[str, int], synthetic: bool = False) -> Input:
    holds = [{"symbol": symbol, "bars": bars, "first": name, "last": name} for symbol, bars in held]
    summary = {"file": name, "timeframe": timeframe, "synthetic": synthetic, "further": [], "holds": holds}
    return Input(key=f"raw/{name}", version_id="v", sha256=name, bytes=1, summary=summary)


BTC_2021, BTC_2022 = item("btc21", "1m", ("BTC-USD", 1000)), item("btc22", "1m", ("BTC-USD", 500))
ETH, DAILY = item("eth", "1m", ("ETH-USD", 900)), item("daily", "1d", ("BTC-USD", 300), ("SPY", 300))


def chosen(*inputs: Input, symbols: tuple[str, ...] = (), timeframe: str = "", least: int = 65):
    return choose(inputs, symbols=symbols, timeframe=timeframe, too_few=fewest(least))


def test_every_symbol_is_taken_and_the_files_of_one_are_added_up():
    candles = chosen(BTC_2021, BTC_2022, ETH)
    assert (candles.timeframe, candles.bars) == ("1m", {"BTC-USD": 1500, "ETH-USD": 900})


def test_only_files_that_hold_a_wanted_symbol_are_pinned():
    candles = chosen(BTC_2021, ETH, DAILY, symbols=("ETH-USD",), timeframe="1m")
    assert [entry.key for entry in candles.inputs] == ["raw/eth"]


def test_more_files_than_a_run_reads_are_refused_first(monkeypatch):
    monkeypatch.setattr(inputs_module, "MOST_CANDLE_FILES", 2)
    files = [item(f"{number}.csv", "1m", ("A", 100)) for number in range(3)]
    assert len(chosen(*files[:2]).inputs) == 2
    with pytest.raises(DataError, match="3 files of raw/main/ hold the bars .a run reads 2"):
        chosen(*files)


def test_several_timeframes_are_listed_and_none_is_guessed():
    with pytest.raises(DataError, match="several timeframes: 1d, 1m. Choose one: --set data.timeframe=1d"):
        chosen(ETH, DAILY)


def test_longer_bars_are_made_from_those_of_the_set():
    quarter = item("quarter", "15m", ("ETH-USD", 400))
    candles = chosen(BTC_2021, ETH, quarter, DAILY, timeframe="60m", least=65)
    assert (candles.timeframe, candles.bars) == ("1h", {"ETH-USD": 100})
    assert [entry.key for entry in candles.inputs] == ["raw/quarter"] and candles.to_dict()["files"] == [
        "raw/quarter"
    ]
    assert candles.notes == ("bars of 1h are made from bars of 15m",)


def test_an_unknown_timeframe_or_symbol_names_what_there_is():
    with pytest.raises(DataError, match=r"no 90s bars \(it has 1m\)"):
        chosen(ETH, timeframe="90s")
    with pytest.raises(
        DataError, match=r"unknown symbol 'ETH-EUR' \(raw/main/ has ETH-USD at 1m\). Did you mean ETH-USD"
    ):
        chosen(ETH, symbols=("ETH-EUR",))


def test_of_thousands_of_symbols_an_error_names_some():
    many = [item(f"f{number}", "1m", (f"S{number:04d}", 900)) for number in range(3_000)]
    with pytest.raises(
        DataError, match="raw/main/ has S0000, S0001, .* S0011 and 2,988 more at 1m"
    ) as raised:
        chosen(*many, symbols=("ETH-EUR",))
    assert len(str(raised.value)) < 300


def test_files_day_by_day_are_compared_with_their_neighbours(monkeypatch):
    """50,000 files of twenty symbols would be a hundred million comparisons."""
    days, compared = [], []

    class Day(str):
        def __le__(self, other):
            compared.append(self)
            return str.__le__(self, other)

        def __gt__(self, other):
            compared.append(self)
            return str.__gt__(self, other)

    for number in range(500):
        held = {"symbol": "A", "bars": 900, "first": Day(f"{number:03d}a"), "last": Day(f"{number:03d}b")}
        days.append(replace(item(f"f{number:03d}", "1m"), summary=item("", "1m").summary | {"holds": [held]}))
    again = replace(days[7], key="raw/again")  # the same bytes
    held = days[300].summary["holds"][0] | {"first": Day("299b")}
    other = replace(days[300], key="raw/other", sha256="x", summary=days[300].summary | {"holds": [held]})
    candles = chosen(*days, again, other)
    compared.clear()
    assert [one.key for one in overlapping(candles)["A"]] == ["raw/f299", "raw/f300", "raw/other"]
    assert len(compared) < 3_000


def test_fewer_bars_than_one_window_are_refused():
    with pytest.raises(DataError, match=r"ETH-USD has 900 bars \(1000 are needed\)"):
        chosen(ETH, least=1000)


def held(symbol: str, timeframe: str, bars: int, first: str, last: str) -> Input:
    summary = {
        "timeframe": timeframe,
        "further": [],
        "holds": [{"symbol": symbol, "bars": bars, "first": first, "last": last}],
    }
    return Input(key=f"raw/{symbol}", version_id="v", sha256=symbol, bytes=1, summary=summary)


def test_a_symbol_without_bars_after_its_warm_up_is_left_out():
    long = item("long", "1d", ("SPY", 2000))
    job = job_of(features="all")
    candles = choose_from_set(
        job, [long, item("short", "1d", ("NEW", 300)), item("brief", "1d", ("ABC", 340))]
    )
    assert candles.bars == {"SPY": 2000}
    brief, short = candles.refused
    first = (
        "of 340 bars the first 256 are the warm-up of log_atr_14; 55 are left for train, the model sees 60, a"
        " label takes 5"
    )
    assert brief.startswith(f"ABC has no bar left in train ({first} more).")
    assert short.startswith(
        "NEW has 300 bars (one label needs 321: 256 that log_atr_14 looks back, 60 that the model sees, 5 "
    )
    panel = choose_from_set(with_settings(job, panel=True), [long, item("short", "1d", ("NEW", 300))])
    with pytest.raises(DataError, match="a panel of one symbol .raw/main/ has only SPY at 1d"):
        choose_from_set(with_settings(job, panel=True), [long])
    assert set(panel.bars) >= {"NEW"} and not panel.refused  # it counts in the ranks of its dates
    # 60 bars of warm-up
    assert choose_from_set(job_of(), [item("brief", "1d", ("ABC", 340))]).bars == {"ABC": 340}
    with pytest.raises(DataError, match="SPY has 100 bars"):
        choose_from_set(job_of(bars=100), [long])


def test_days_of_a_market_with_nights_count_by_the_calendar():
    # 68 times 1,440 minutes
    year = held("SPY", "1m", 390 * 252, "2021-01-04T14:30:00Z", "2021-12-31T20:59:00Z")
    assert list(choose_from_set(job_of(timeframe="1d"), [year]).bars) == ["SPY"]
    month = held("SPY", "1m", 390 * 21, "2021-01-04T14:30:00Z", "2021-01-29T20:59:00Z")
    with pytest.raises(DataError, match="SPY has 26 bars .one label needs"):
        choose_from_set(job_of(timeframe="1d"), [month])


def test_a_symbol_with_too_few_bars_or_excluded_is_left_out():
    candles = chosen(BTC_2021, ETH, least=950)
    assert candles.bars == {"BTC-USD": 1000} and [entry.key for entry in candles.inputs] == ["raw/btc21"]
    assert candles.refused == ("ETH-USD has 900 bars (950 are needed). Bring more.",)
    taken = {"symbols": (), "timeframe": "1m", "too_few": fewest(65)}
    assert list(choose([BTC_2021, ETH], **taken, exclude=["BTC-USD"]).bars) == ["ETH-USD"]
    with pytest.raises(DataError, match="no symbol is left to train"):
        choose([ETH], **taken, exclude=["ETH-USD"])
    with pytest.raises(DataError, match="unknown symbol 'ETH'"):
        choose([ETH], **taken, exclude=["ETH"])
    with pytest.raises(DataError, match=r"'X' in data.exclude .* Leave it out of data.exclude\."):
        choose([ETH], **taken, exclude=["X"])


def test_a_file_that_nobody_checked_is_left_out():
    stranger = Input(key="raw/x.parquet", version_id="v", sha256="", bytes=1)
    assert chosen(ETH, stranger).inputs == (ETH,)
    with pytest.raises(DataError, match="--data PATH"):
        chosen(stranger)


def test_synthetic_bars_stay_synthetic():
    assert chosen(item("s", "1m", ("A", 500), synthetic=True)).synthetic is True
    assert chosen(ETH).synthetic is False


def test_a_missing_column_is_refused_before_anything_starts():
    entry = replace(ETH, summary={**ETH.summary, "further": ["funding_rate", "trades"]})
    taken = {"symbols": (), "timeframe": "1m", "too_few": fewest(65)}
    assert choose([entry], **taken, columns=["trades"]).bars == {"ETH-USD": 900}
    with pytest.raises(
        DataError, match=r"raw/eth has no column funding .*: funding_rate, trades.*Did you mean funding_rate"
    ):
        choose([entry], **taken, columns=["funding"])


def test_side_series_are_pinned_by_name_and_are_no_candles():
    def side(name: str, *columns: str) -> Input:
        summary = {"timeframe": "", "synthetic": False, "further": list(columns), "holds": []}
        return Input(key=f"raw/main/{name}", version_id="v", sha256=name, bytes=1, summary=summary)

    fear, trends = side("fear.side.csv", "value"), side("trends.side.2026.parquet", "btc", "eth")

    def keys(*columns: str) -> list[str]:
        read = choose((BTC_2021, fear, trends), symbols=(), timeframe="", too_few=fewest(65), columns=columns)
        assert (read.timeframe, dict(read.bars)) == ("1m", {"BTC-USD": 1000})
        return [entry.key.rpartition("/")[2] for entry in read.inputs]

    assert keys() == ["btc21"]
    assert keys("fear lag 1d", "trends.eth lag 2h") == ["btc21", "fear.side.csv", "trends.side.2026.parquet"]
    with pytest.raises(
        DataError, match=r"no side series fears .raw/main/ has fear, trends.. Did you mean fear"
    ):
        keys("fears lag 1d")
    with pytest.raises(DataError, match="has no column sol"):
        keys("trends.sol lag 1d")


def test_side_series_bars_are_pinned_and_not_trained_on():
    sol = item("sol", "1m", ("SOL-USD", 20))  # too few to train on

    def read(*columns: str, index: tuple[str, ...] = ()):
        asked = {"symbols": ("ETH-USD",), "timeframe": "1m", "exclude": ("SOL-USD",), "index": index}
        return choose((BTC_2021, BTC_2022, ETH, sol, DAILY), **asked, too_few=fewest(65), columns=columns)

    one = read("log_return_60 of BTC-USD")
    assert dict(one.bars) == {"ETH-USD": 900} and not one.index
    assert [entry.key for entry in one.inputs] == ["raw/btc21", "raw/btc22", "raw/eth"]
    assert read("rsi_14 of SOL-USD").inputs == (ETH, sol), "an excluded one, too"
    every = read("log_return_60 of index")
    assert every.index == ("BTC-USD", "ETH-USD") and every.inputs == one.inputs
    named = read("log_return_60 of index", index=("SOL-USD", "ETH-USD"))
    assert named.index == ("SOL-USD", "ETH-USD") and named.inputs == (ETH, sol)
    with pytest.raises(DataError, match=r"no bars of XRP .* raw/main/ at 1m holds BTC-USD, ETH-USD"):
        read("log_return_60 of XRP")
    job = job_of(symbols=("ETH-USD",), timeframe="1m", columns=("log_return_1 of index",))
    pinned = with_candles(job, choose_from_set(job, (BTC_2021, ETH))).data
    assert pinned.columns == ("log_return_1 of index", "index=BTC-USD/ETH-USD")
    assert pinned.symbols == ("ETH-USD",)
