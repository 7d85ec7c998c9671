"""Fetch the bars of symbols: in parts of a bounded size, page by page, with patience for a busy source.

Every part that is done is a file at once. A part ends at a multiple of PART_BARS bars since 1970, so that the
files do not depend on where an earlier fetch was interrupted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from trainer.base.errors import ConnectionFailed, Stopped, UsageError
from trainer.base.files import held_alone
from trainer.base.text import counted
from trainer.data.fetch.folder import (
    FetchedFile,
    clear_left,
    fetched_files,
    joined,
    name_flaw,
    uncovered,
    write_bars,
)
from trainer.data.fetch.pages import missing_runs
from trainer.data.fetch.source import BadAnswer, BarPage, BarSource, NoSuchSymbol, SourceBusy, SourceRefused
from trainer.data.read.fetch_record import MOST_RUNS, FetchRecord, text_of
from trainer.data.timeframes import bar_begin, step_of

PART_BARS = 1 << 16  # of a file: 45 days of minutes, 7 years of hours
MOST_TRIES = 4  # of a page whose answers are wrong
MOST_SECONDS = 600.0  # of patience with a busy source, for one page
_LONGEST_WAIT = 60.0
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, kw_only=True)
class FetchRequest:
    """Symbols to fetch, spelled as they train, each from its own time (ns UTC) up to `until` (0: now)."""

    source: str
    begins: Mapping[str, int]
    timeframe: str
    until: int = 0
    chosen_by: str = "names"
    chosen_symbols: int = 0  # 0: as many as are asked for
    chosen_on: str = ""  # a date; today


@dataclass(kw_only=True)
class FetchReport:
    """Result of a fetch: its new files, and the symbols that failed, with reasons."""

    added: list[FetchedFile] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    limit: str = ""


class Fetch:
    """One fetch into a folder. `told` gets lines of progress; `pause` waits so many seconds, and returns
    whether the fetch is to stop.
    """

    def __init__(
        self,
        request: FetchRequest,
        source: BarSource,
        folder: Path,
        *,
        told: Callable[[str], None] = lambda line: None,
        pause: Callable[[float], bool] | None = None,
        part_bars: int = PART_BARS,
    ) -> None:
        self._request, self._source, self._folder, self._told = request, source, folder, told
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._pause = pause or self._stop.wait
        self._part_bars, self._bars, self._done = part_bars, 0, 0
        self._step = step_of(request.timeframe)
        self.report = FetchReport()

    def run(self) -> FetchReport:
        """Fetch everything. Raises UsageError, also while another command writes to the folder; DataError;
        and ConnectionFailed if the source does not answer or refuses. What was written stays.
        """
        known = self._source.timeframes()
        if self._request.timeframe not in known:
            do = f"Choose one of {', '.join(known)}: training makes longer bars from shorter ones."
            raise UsageError(f"{self._request.source} has no bars of {self._request.timeframe}", do=do)
        with held_alone(self._folder):  # two would each fetch what the other has not written yet
            return self._fetched()

    def _fetched(self) -> FetchReport:
        """Fetch everything into a folder that is this fetch's alone."""
        clear_left(self._folder)
        self._now = self._patient(self._source.now)
        complete = self._source.complete_until(self._request.timeframe, self._now)
        self._until = min(bar_begin(self._request.until or complete, self._step), complete)
        self._earliest, self.report.limit = self._source.earliest(self._request.timeframe, self._now)
        files: dict[str, list[FetchedFile]] = {}
        for file in fetched_files(self._folder):
            if file.record.timeframe == self._request.timeframe:
                files.setdefault(file.record.symbol, []).append(file)
        with ThreadPoolExecutor(max_workers=self._source.at_once) as threads:
            work = {
                symbol: threads.submit(self._symbol_or_stop, symbol, since, files.get(symbol, []))
                for symbol, since in self._request.begins.items()
            }
            try:
                for symbol, one in work.items():
                    self._result(symbol, one.result)
            except BaseException:  # Ctrl-C too: no thread goes on fetching
                self._stop.set()
                threads.shutdown(cancel_futures=True)
                raise
        self.report.added.sort(key=lambda file: file.path.name)
        return self.report

    def _result(self, symbol: str, result: Callable[[], None]) -> None:
        try:
            result()
        except (NoSuchSymbol, BadAnswer) as error:
            self.report.failures[symbol] = str(error)
            self._told(f"{symbol}: {error}")
        except Stopped:
            return  # the symbol that ended the fetch raises its own error
        self._done += 1

    def _symbol_or_stop(self, symbol: str, since: int, own: Sequence[FetchedFile]) -> None:
        """Fetch a symbol with its `own` files. An error that ends the fetch stops the others at once: a
        source that bans an address bans it for longer if it goes on asking.
        """
        try:
            self._symbol(symbol, since, own)
        except (NoSuchSymbol, BadAnswer, Stopped):
            raise
        except BaseException:
            self._stop.set()
            raise

    def _symbol(self, symbol: str, since: int, own: Sequence[FetchedFile]) -> None:
        """Fetch what no file covers of a symbol's range."""
        request = self._request
        if why := name_flaw(symbol, request.timeframe):
            raise NoSuchSymbol(why)
        if others := sorted({file.record.source for file in own} - {request.source}):
            raise NoSuchSymbol(f"the folder has its bars of {others[0]}; give another folder")
        begin = max(bar_begin(since + self._step - 1, self._step), self._earliest)
        gaps = uncovered(own, begin, self._until)
        found = []
        for gap in gaps:
            listed = any(file.record.covers_until <= gap[0] for file in own)
            found.append(self._range(symbol, *gap, listed=listed))
        if not own and not any(found):
            span = f"from {text_of(since)} to {text_of(self._until)}"
            raise NoSuchSymbol(f"{request.source} has no bars of it {span}")

    def _range(self, symbol: str, begin: int, end: int, *, listed: bool) -> bool:
        """Write the files of [begin, end); return whether there are any. A part without bars is covered by
        the file after it. `listed`: there are earlier bars, so that none at the beginning is a hole.
        """
        length, covers_from, found = self._part_bars * self._step, begin, False
        at = begin
        while at < end:
            until = min(end, (at // length + 1) * length)
            pages = list(self._pages(symbol, at, until, listed=listed or found))
            at = until
            if not any(map(len, pages)):
                continue
            page = joined(pages, until)
            # What is missing at the very end may still come: it is asked for again.
            last = int(page.timestamp[-1]) + self._step
            covers = last if until == self._until else until
            self._write(symbol, page, covers_from, covers, listed=listed or found)
            covers_from, found = covers, True
        return found

    def _write(
        self, symbol: str, page: BarPage, covers_from: int, covers_until: int, *, listed: bool
    ) -> None:
        request, first = self._request, covers_from if listed else int(page.timestamp[0])
        always = self._source.always_open
        holes = missing_runs(page.timestamp, first, covers_until, self._step) if always else []
        record = FetchRecord(
            source=request.source,
            library=self._source.library,
            symbol=symbol,
            asked=self._source.spelled(symbol),
            timeframe=request.timeframe,
            covers_from=covers_from,
            covers_until=covers_until,
            fetched_at=self._now,
            chosen_by=request.chosen_by,
            chosen_symbols=request.chosen_symbols or len(request.begins),
            chosen_on=request.chosen_on or text_of(self._now)[:10],
            actions=page.actions is not None,
            hole_bars=sum(bars for _, bars in holes),
            holes=tuple(holes[:MOST_RUNS]),
            dropped=page.dropped,
            limit=self.report.limit,
        )
        written = write_bars(self._folder, page, record, synthetic=self._source.synthetic)
        with self._lock:
            self.report.added.append(written)

    def _pages(self, symbol: str, begin: int, end: int, *, listed: bool) -> Iterator[BarPage]:
        """Yield the pages of [begin, end); one with holes is asked for once more."""
        at = begin
        while at < end:
            page = self._page(symbol, at, end)
            listed = listed or len(page) > 0 or page.dropped > 0
            if self._source.always_open and listed and self._has_holes(page, at):
                page = _both(page, self._page(symbol, at, page.covers_until))
            yield page
            at = page.covers_until
            with self._lock:
                self._bars += len(page)
                many = counted(len(self._request.begins), "symbol")
                self._told(f"{self._bars:,} bars; {self._done} of {many} done; {symbol} to {text_of(at)}")

    def _has_holes(self, page: BarPage, begin: int) -> bool:
        return len(page) * self._step < page.covers_until - begin

    def _page(self, symbol: str, begin: int, end: int) -> BarPage:
        def ask() -> BarPage:
            page = self._source.page(symbol, self._request.timeframe, begin, end)
            if not begin < page.covers_until <= end:
                raise BadAnswer("the answer does not go on from the time that was asked for")
            return page

        return self._patient(ask)

    def _patient(self, ask: Callable[[], _Answer]) -> _Answer:
        """Return an answer. Ask again after ever longer pauses as long as the source is busy, and a few times
        where its answer is wrong.
        """
        waited, wrong, wait = 0.0, 0, 1.0
        name = self._request.source
        while True:
            if self._stop.is_set():
                raise Stopped("another symbol ended the fetch")
            try:
                return ask()
            except SourceRefused as error:
                raise ConnectionFailed(str(error), do="Choose another source.") from error
            except SourceBusy as busy:
                seconds = max(wait, busy.seconds or 0.0)
                if waited + seconds > MOST_SECONDS:
                    do = "What was fetched stays: run the same command again later."
                    asked = f", and asks for {busy.seconds:,.0f} s" if busy.seconds else ""
                    raise ConnectionFailed(f"{name} does not answer", why=f"{busy}{asked}", do=do) from busy
                self._told(f"{name} is busy ({busy}): asking again in {seconds:.0f} s")
            except BadAnswer as bad:
                wrong, seconds = wrong + 1, wait
                if wrong == MOST_TRIES:
                    raise BadAnswer(f"{name} gave {MOST_TRIES} wrong answers: {bad}") from bad
            waited += seconds
            wait = min(2 * wait, _LONGEST_WAIT)
            if self._pause(seconds):
                raise Stopped("another symbol ended the fetch")


def _both(page: BarPage, again: BarPage) -> BarPage:
    """Return the bars of two answers for the same time; of a bar in both, the later answer's."""
    last = min(page.covers_until, again.covers_until)
    timestamp = np.concatenate([again.timestamp, page.timestamp])
    values = np.concatenate([again.values, page.values], axis=1)
    times, places = np.unique(timestamp, return_index=True)  # of equal ones, the first
    keep = times < last
    return replace(
        page,
        covers_until=last,
        timestamp=times[keep],
        values=values[:, places[keep]],
        dropped=again.dropped,
    )
