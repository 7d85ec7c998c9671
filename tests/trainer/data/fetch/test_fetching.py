"""A fetch against a source in memory: parts, holes, patience, interruptions. No clock and no network."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tests.jobs import job_of
from trainer.bars.check import check_data
from trainer.bars.document import read_plan
from trainer.base.errors import ConnectionFailed, DataError, UsageError
from trainer.base.strict_json import Unsound
from trainer.data.fetch import fetching, folder
from trainer.data.fetch.fetching import Fetch, FetchReport, FetchRequest
from trainer.data.fetch.folder import fetched_files, write_metadata
from trainer.data.fetch.source import BadAnswer, BarPage, NoSuchSymbol, SourceBusy, SourceRefused
from trainer.data.read.fetch_record import FETCHED_KEY, FetchRecord, read_fetch_record, text_of
from trainer.data.read.reading import CandleFolder, read_candles
from trainer.data.read.writing import write_candles
from trainer.data.synthetic import synthetic_candles
from trainer.data.timeframes import DAY, SECOND
from trainer.train.evaluate.cards import _data
from trainer.train.inputs.source import Origin

HOUR = 3600 * SECOND
BEGIN = 1_767_225_600 * SECOND  # 2026-01-01
PART = 48  # bars of a file


@dataclass(kw_only=True)
class MemorySource:
    """Hours of some symbols from `listed` on, 10 a page; `missing` ones never come, `late` ones at the second call.
    `trouble` is raised before an answer, one at each call.
    """

    symbols: dict[str, int]
    clock: int = BEGIN + 100 * HOUR + 20 * 60 * SECOND
    missing: set[int] = field(default_factory=set)
    late: set[int] = field(default_factory=set)
    trouble: list[Exception] = field(default_factory=list)
    always_open: bool = True
    page_bars: int = 10
    calls: list[tuple[str, int]] = field(default_factory=list)
    before: Callable[[], None] = lambda: None
    library, actions, at_once, synthetic = "memory 1.0", False, 1, True

    def timeframes(self) -> tuple[str, ...]:
        return ("1h",)

    def spelled(self, symbol: str) -> str:
        return symbol.replace("-", "/")

    def now(self) -> int:
        return self.clock

    def complete_until(self, timeframe: str, now: int) -> int:
        return now // HOUR * HOUR

    def earliest(self, timeframe: str, now: int) -> tuple[int, str]:
        return 0, ""

    def page(self, symbol: str, timeframe: str, since: int, until: int) -> BarPage:
        self.before()
        if self.trouble:
            raise self.trouble.pop(0)
        if symbol not in self.symbols:
            raise NoSuchSymbol(f"there is no {symbol}")
        again = (symbol, since) in self.calls
        self.calls.append((symbol, since))
        end = min(until, since + self.page_bars * HOUR)
        gone = self.missing if again else self.missing | self.late
        times = [
            time for time in range(since, end, HOUR) if time >= self.symbols[symbol] and time not in gone
        ]
        close = np.array([100 + time // HOUR % 7 for time in times], dtype=np.float64)
        values = np.vstack([close, close + 1, close - 1, close, close / 10])
        return BarPage(covers_until=end, timestamp=np.array(times, dtype=np.int64), values=values)


def hours(*numbers: int) -> set[int]:
    return {BEGIN + number * HOUR for number in numbers}


def fetch(source: Any, out: Path, *symbols: str, since: int = BEGIN, **asked: Any) -> FetchReport:
    request = FetchRequest(source="memory", begins=dict.fromkeys(symbols, since), timeframe="1h", **asked)
    waited: list[float] = []
    report = Fetch(
        request, source, out, pause=lambda seconds: bool(waited.append(seconds)), part_bars=PART
    ).run()
    write_metadata(out, fetched_files(out), report.failures, terms="")
    return report


def content(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(out.iterdir())}


def test_files_end_at_multiples_and_cover_all(tmp_path: Path) -> None:
    report = fetch(MemorySource(symbols={"BTC-USD": 0}), tmp_path, "BTC-USD")
    names = [file.path.name for file in report.added]
    assert names == [
        "BTC-USD_1h_20260101T0000-20260102T2300.parquet",
        "BTC-USD_1h_20260103T0000-20260104T2300.parquet",
        "BTC-USD_1h_20260105T0000-20260105T0300.parquet",
    ]
    candles = read_candles(tmp_path)["BTC-USD"]
    assert candles.timestamp.tolist() == list(
        range(BEGIN, BEGIN + 100 * HOUR, HOUR)
    )  # not the unfinished bar
    record = report.added[0].record
    assert (record.source, record.asked, record.covers_until) == ("memory", "BTC/USD", BEGIN + 48 * HOUR)
    told = json.loads((tmp_path / "metadata.json").read_text())
    assert told["symbols"]["BTC-USD 1h"]["covers"] == [text_of(BEGIN), text_of(BEGIN + 100 * HOUR)]


def test_a_second_fetch_asks_for_new_bars_alone(tmp_path: Path) -> None:
    source = MemorySource(symbols={"BTC-USD": 0})
    fetch(source, tmp_path, "BTC-USD")
    before = content(tmp_path)
    source.calls.clear()
    assert fetch(source, tmp_path, "BTC-USD").added == [] and source.calls == []
    source.clock += 2 * HOUR
    (added,) = fetch(source, tmp_path, "BTC-USD").added
    assert source.calls == [("BTC-USD", BEGIN + 100 * HOUR)] and added.bars == 2
    assert all(content(tmp_path)[name] == before[name] for name in before if name != "metadata.json")


def test_two_fetches_at_once_write_no_bar_twice(tmp_path: Path) -> None:
    first, second = (MemorySource(symbols={"BTC-USD": 0}) for _ in range(2))
    refusals: list[str] = []

    def fetch_beside() -> None:
        first.before = lambda: None
        with pytest.raises(UsageError) as refused:
            fetch(second, tmp_path, "BTC-USD", since=BEGIN + 10 * HOUR)
        refusals.append(str(refused.value))

    first.before = fetch_beside
    fetch(first, tmp_path, "BTC-USD")
    assert sum(file.bars for file in fetched_files(tmp_path)) == 100
    assert refusals == [f"another command writes to {tmp_path}. Wait for its end, or give another --out."]


def test_an_earlier_day_is_fetched_before_what_is_there(tmp_path: Path) -> None:
    source = MemorySource(symbols={"BTC-USD": 0})
    fetch(source, tmp_path, "BTC-USD", since=BEGIN + 10 * HOUR)
    source.calls.clear()
    (added,) = fetch(source, tmp_path, "BTC-USD").added
    assert (added.bars, added.record.covers_until) == (10, BEGIN + 10 * HOUR) and len(source.calls) == 1
    assert len(read_candles(tmp_path)["BTC-USD"]) == 100


def test_holes_are_asked_for_once_more_and_then_recorded(tmp_path: Path) -> None:
    source = MemorySource(symbols={"BTC-USD": 0}, missing=hours(5, 6, 61), late=hours(15))
    fetch(source, tmp_path, "BTC-USD")
    asked = [since for _, since in source.calls]
    again = [(since - BEGIN) // HOUR for since in dict.fromkeys(asked) if asked.count(since) == 2]
    assert again == [0, 10, 58]
    first, second, _ = (file.record for file in fetched_files(tmp_path))
    assert (first.hole_bars, first.holes) == (2, ((BEGIN + 5 * HOUR, 2),))  # the late bar has come
    assert second.holes == ((BEGIN + 61 * HOUR, 1),)
    assert len(read_candles(tmp_path)["BTC-USD"]) == 97


def test_bars_missing_at_the_end_are_asked_for_next_time(tmp_path: Path) -> None:
    source = MemorySource(symbols={"BTC-USD": 0}, missing=hours(98, 99))
    fetch(source, tmp_path, "BTC-USD")
    source.missing, source.clock = set(), source.clock + HOUR
    fetch(source, tmp_path, "BTC-USD")
    assert len(read_candles(tmp_path)["BTC-USD"]) == 101


def test_time_before_a_listing_is_no_hole(tmp_path: Path) -> None:
    source = MemorySource(symbols={"SOL-USD": BEGIN + 60 * HOUR})
    fetch(source, tmp_path, "SOL-USD")
    first, _ = (file.record for file in fetched_files(tmp_path))
    assert (first.hole_bars, first.covers_from) == (0, BEGIN)
    source.calls.clear()
    fetch(source, tmp_path, "SOL-USD")
    assert source.calls == []  # the empty time is covered


def test_a_symbol_that_fails_stops_no_other(tmp_path: Path) -> None:
    report = fetch(MemorySource(symbols={"BTC-USD": 0}), tmp_path, "NOPE-USD", "BTC-USD", "../x")
    assert report.failures.keys() == {"NOPE-USD", "../x"} and len(report.added) == 3
    assert (
        json.loads((tmp_path / "metadata.json").read_text())["failures"]["NOPE-USD"] == "there is no NOPE-USD"
    )


def test_a_busy_source_is_asked_again_with_longer_pauses(tmp_path: Path) -> None:
    busy: list[Exception] = [
        SourceBusy("HTTP 429", 7.0),
        SourceBusy("cut"),
        BadAnswer("HTML"),
        BadAnswer("half"),
    ]
    waited: list[float] = []
    request = FetchRequest(source="memory", begins={"BTC-USD": BEGIN}, timeframe="1h")
    source = MemorySource(symbols={"BTC-USD": 0}, trouble=busy)
    report = Fetch(request, source, tmp_path, pause=lambda seconds: bool(waited.append(seconds))).run()
    assert waited == [7.0, 2.0, 4.0, 8.0] and not report.failures


@pytest.mark.parametrize(
    ("trouble", "why"),
    [
        ([SourceBusy("HTTP 418", 86_400.0)], r"does not answer \(HTTP 418, and asks for 86,400 s\)"),
        ([SourceBusy("cut")] * 30, r"memory does not answer \(cut\).*What was fetched stays"),
        ([SourceRefused("HTTP 451: not in this region")], "451: not in this region. Choose another source"),
    ],
)
def test_a_source_that_does_not_answer_ends_the_fetch(
    trouble: list[Exception], why: str, tmp_path: Path
) -> None:
    source = MemorySource(symbols={"BTC-USD": 0, "ETH-USD": 0}, trouble=trouble)
    with pytest.raises(ConnectionFailed, match=why):
        fetch(source, tmp_path, "BTC-USD", "ETH-USD")
    assert not list(tmp_path.iterdir())


class AtSubmit(ThreadPoolExecutor):
    """Ends each piece of work before the next is submitted: no thread is ahead of another."""

    def submit(self, *args: Any, **keywords: Any) -> Future[Any]:
        future = super().submit(*args, **keywords)
        future.exception()
        return future


def test_no_symbol_asks_a_source_that_ended_the_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "ThreadPoolExecutor", AtSubmit)
    source = MemorySource(symbols={"BTC-USD": 0, "ETH-USD": 0}, trouble=[SourceBusy("HTTP 418", 86_400.0)])
    with pytest.raises(ConnectionFailed, match="does not answer"):
        fetch(source, tmp_path, "BTC-USD", "ETH-USD")
    assert not source.calls


def test_wrong_answers_fail_one_symbol(tmp_path: Path) -> None:
    source = MemorySource(symbols={"BTC-USD": 0, "ETH-USD": 0}, trouble=[BadAnswer("HTML")] * 4)
    report = fetch(source, tmp_path, "BTC-USD", "ETH-USD")
    assert report.failures == {"BTC-USD": "memory gave 4 wrong answers: HTML"}
    assert {file.record.symbol for file in report.added} == {"ETH-USD"}


def test_pages_that_never_go_on_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        MemorySource, "page", lambda self, symbol, timeframe, since, until: BarPage(covers_until=since)
    )
    report = fetch(MemorySource(symbols={"BTC-USD": 0}), tmp_path, "BTC-USD")
    assert "does not go on" in report.failures["BTC-USD"]


def test_an_unknown_timeframe_is_refused(tmp_path: Path) -> None:
    request = FetchRequest(source="memory", begins={"A-B": BEGIN}, timeframe="7m")
    with pytest.raises(UsageError, match="memory has no bars of 7m. Choose one of 1h"):
        Fetch(request, MemorySource(symbols={}), tmp_path).run()


def test_files_of_two_sources_are_not_mixed(tmp_path: Path) -> None:
    source = MemorySource(symbols={"BTC-USD": 0})
    fetch(source, tmp_path, "BTC-USD")
    request = FetchRequest(source="other", begins={"BTC-USD": BEGIN}, timeframe="1h")
    report = Fetch(request, source, tmp_path).run()
    assert report.failures == {"BTC-USD": "the folder has its bars of memory; give another folder"}


class Killed(BaseException):
    """The end of the process."""


def test_twenty_interruptions_leave_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def new_source() -> MemorySource:
        symbols = {"BTC-USD": 0, "SOL-USD": BEGIN + 130 * HOUR}
        return MemorySource(
            symbols=symbols, clock=BEGIN + 300 * HOUR, missing=hours(7, 8, 150), late=hours(33)
        )

    fetch(new_source(), tmp_path / "whole", "BTC-USD", "SOL-USD")
    source, left = new_source(), [0]

    def step() -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Killed

    source.before = step
    write = folder.write_candles

    def killed_while_writing(path: Path, *words: Any, **named: Any) -> None:
        step()
        torn = path.with_name(f".{path.name}.999999999-1.partial")  # as a killed process leaves it
        torn.write_bytes(b"PAR1 half a file")
        step()
        torn.unlink()
        write(path, *words, **named)
        step()

    monkeypatch.setattr(folder, "write_candles", killed_while_writing)
    chance, interrupted = random.Random(7), 0
    for _ in range(500):
        left[0] = chance.randint(1, 12) if interrupted < 20 else 10**9
        source.calls.clear()
        try:
            fetch(source, tmp_path / "broken", "BTC-USD", "SOL-USD")
            break
        except Killed:
            interrupted += 1
    assert interrupted == 20
    assert content(tmp_path / "broken") == content(tmp_path / "whole")
    assert len(content(tmp_path / "whole")) == 13  # 7 and 5 files, and metadata.json


def test_a_torn_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "BTC-USD_1h.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match="can't be read.*Remove the file: it is fetched again"):
        fetch(MemorySource(symbols={"BTC-USD": 0}), tmp_path, "BTC-USD")


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"symbol": "../x"},
        {"covers_from": "2027-01-01T00:00:00Z"},
        {"covers_from": 5},
        {"source": "A b"},
        {"holes": [["x", 1]]},
        {"holes": [["2026-01-01T00:00:00Z"]]},
        {"chosen_symbols": -1},
        {"limit": "x" * 1000},
    ],
)
def test_a_hostile_record_is_refused(change: dict[str, Any]) -> None:
    record = FetchRecord(
        source="memory",
        library="memory 1.0",
        symbol="BTC-USD",
        asked="BTC/USD",
        timeframe="1h",
        covers_from=BEGIN,
        covers_until=BEGIN + DAY,
        fetched_at=BEGIN,
        chosen_by="names",
        chosen_symbols=1,
        chosen_on="2026-01-01",
        holes=((BEGIN, 2),),
    )
    assert read_fetch_record(record.to_json()) == record
    with pytest.raises(Unsound):
        read_fetch_record(json.dumps({**json.loads(record.to_json()), **change}).encode())


def test_a_file_with_a_hostile_record_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "BTC-USD_1m.parquet"
    write_candles(path, [synthetic_candles("BTC-USD", bars=9)], metadata={FETCHED_KEY: b"[]"})
    with pytest.raises(DataError, match="says where it is from in a way that can't be read"):
        CandleFolder(path, tmp_path)


def test_a_plan_names_the_source_and_the_list(tmp_path: Path) -> None:
    source = MemorySource(symbols={"BTC-USD": 0})
    chosen = {"chosen_by": "top.txt", "chosen_symbols": 50, "chosen_on": "2026-11-27"}
    fetch(source, tmp_path, "BTC-USD", until=BEGIN + DAY, **chosen)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    notes = CandleFolder(tmp_path, scratch).notes
    assert any("fetched from memory by memory 1.0" in note for note in notes)
    assert any(
        "chosen by top.txt of 2026-11-27, with 50 symbols: a list of its day" in note for note in notes
    )


def test_part_bars_keep_a_part_in_memory_small() -> None:
    assert fetching.PART_BARS * 8 * 8 < 8 << 20


def test_a_plan_carries_the_origins_to_the_cards(tmp_path: Path) -> None:
    chosen = {"chosen_by": "top.txt", "chosen_symbols": 50, "chosen_on": "2026-11-27"}
    fetch(MemorySource(symbols={"BTC-USD": 0}), tmp_path / "bars", "BTC-USD", **chosen)
    features = ["log_return_1", "bar_range"]
    job = job_of(lookback=4, horizon=1, features=features, embargo=1, batch=16, path=str(tmp_path / "bars"))
    plan = read_plan(check_data(tmp_path / "bars", job)["plan"].encode())
    assert plan.origins == (
        "chosen by top.txt of 2026-11-27, with 50 symbols: a list of its day leaves out what had failed or left"
        " before",
        "fetched from memory by memory 1.0",
    )
    assert b'"origins"' not in replace(plan, origins=()).to_bytes()  # as of bars that nobody fetched
    origin = Origin(
        entries=tuple(plan.symbols.values()),
        files=(),
        timeframe="1h",
        synthetic=True,
        origins=plan.origins,
        made=cast(Any, SimpleNamespace(fingerprint="ab")),
    )
    assert _data(origin)["origins"] == list(plan.origins)
    assert "origins" not in _data(replace(origin, origins=()))
