"""`mayfly data fetch`: fetch bars of symbols from a source into a folder of files, and say what there is."""

from __future__ import annotations

import argparse
from datetime import date, datetime, timezone
from pathlib import Path

from trainer.base.arguments import check_folder
from trainer.base.errors import DataError, UsageError
from trainer.base.files import read_plain
from trainer.base.instants import utc_now
from trainer.base.strict_json import YEARS_OF_BARS
from trainer.base.symbols import flaw, quoted, tidy
from trainer.cli.output import counted, say, say_json
from trainer.cli.terminal import Console
from trainer.data.fetch.fetching import Fetch, FetchReport, FetchRequest
from trainer.data.fetch.folder import (
    METADATA,
    FetchedFile,
    bias_of,
    fetched_files,
    metadata_of,
    write_metadata,
)
from trainer.data.fetch.sources import REHEARSAL, SOURCES, TERMS, open_source
from trainer.data.timeframes import SECOND, canonical

MOST_LIST_BYTES = 1 << 20
MOST_SYMBOLS = 20_000
MOST_NAMED = 12


def run(arguments: argparse.Namespace) -> int:
    """Fetch, write the folder's metadata and print a line for each symbol. Return 2 if a symbol failed."""
    if not arguments.source and not arguments.rehearse:
        do = f"Add --source with one of {', '.join(SOURCES)}; --rehearse needs none."
        raise UsageError("no --source was named", do=do)
    name = REHEARSAL if arguments.rehearse else arguments.source
    request, folder = _request(arguments, name), Path(arguments.out)
    check_folder(folder)
    source = open_source(name)
    console, failures, refused = Console(plain=arguments.json), dict[str, str](), False
    try:
        for line in _notes(request, synthetic=source.synthetic):
            console.line(line)
        report = Fetch(request, source, folder, told=console.update).run()
        failures = report.failures
        if report.limit:
            console.line(f"{report.limit}.")
    except UsageError:  # nothing was fetched, and another command may be writing to the folder
        refused = True
        raise
    finally:
        console.close()
        files = [] if refused else _described(folder, name, failures)
    _tell(arguments, report, files, request, folder, synthetic=source.synthetic)
    if report.failures and not files:
        raise DataError(f"nothing was fetched from {name}", why=_failed(report), do="Correct the symbols.")
    return DataError.exit_code if report.failures else 0


def _request(arguments: argparse.Namespace, source: str) -> FetchRequest:
    symbols = [tidy(symbol) for symbol in arguments.symbols]
    if arguments.file:
        symbols += _symbols_in(Path(arguments.file))
    symbols = list(dict.fromkeys(symbols))
    for symbol in symbols:
        if why := flaw(symbol):
            raise UsageError(f"{quoted(symbol)} is not a symbol", why=why, do="Write it as BTC-USD or AAPL.")
    if not 1 <= len(symbols) <= MOST_SYMBOLS:
        do = f"Name 1 to {MOST_SYMBOLS:,}, or a file of them with --file."
        raise UsageError(f"{counted(len(symbols), 'symbol')} to fetch", do=do)
    since, until = _day("--since", arguments.since), 0
    if since > int(utc_now().timestamp()) * SECOND:
        raise UsageError(f"--since {arguments.since} has not come yet", do="Name a day of the past.")
    if arguments.until and (until := _day("--until", arguments.until)) <= since:
        raise UsageError(f"--until {arguments.until} is not after --since {arguments.since}", do="Swap them.")
    return FetchRequest(
        source=source,
        begins=dict.fromkeys(symbols, since),
        timeframe=canonical(arguments.timeframe),
        until=until,
        chosen_by=Path(arguments.file).name if arguments.file else "names",
    )


def _symbols_in(path: Path) -> list[str]:
    """Return the symbols of a text file: the first cell of each line, without comments after #."""
    try:
        text = read_plain(path, most_bytes=MOST_LIST_BYTES).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        why = str(getattr(error, "strerror", "") or "it is not UTF-8")
        raise UsageError(
            f"cannot read {path}", why=why, do="Name a text file with a symbol in a line."
        ) from error
    lines = (line.split("#")[0].split(",")[0].strip().strip('"') for line in text.splitlines())
    return [tidy(line) for line in lines if line and line.lower() not in ("symbol", "ticker")]


def _day(flag: str, text: str) -> int:
    try:
        day = date.fromisoformat(text)
        if day.year not in YEARS_OF_BARS:
            raise ValueError(f"it is outside the years {YEARS_OF_BARS.start} to {YEARS_OF_BARS.stop - 1}")
    except ValueError as error:
        raise UsageError(
            f"{flag} is {text[:40]!r}", why=str(error), do="Write a day as 2024-01-31."
        ) from error
    return int(datetime(day.year, day.month, day.day, tzinfo=timezone.utc).timestamp()) * SECOND


def _notes(request: FetchRequest, *, synthetic: bool) -> list[str]:
    notes = ["SYNTHETIC bars from a generator, no market data"] if synthetic else []
    if request.source in TERMS:
        notes.append(TERMS[request.source])
    if request.chosen_by != "names":
        notes.append(bias_of(request.chosen_by))
    return notes


def _described(folder: Path, source: str, failures: dict[str, str]) -> list[FetchedFile]:
    """Write the folder's metadata; return its files."""
    files = fetched_files(folder) if folder.is_dir() else []
    if files or failures:
        write_metadata(folder, files, failures, terms=TERMS.get(source, ""))
    return files


def _tell(
    arguments: argparse.Namespace,
    report: FetchReport,
    files: list[FetchedFile],
    request: FetchRequest,
    folder: Path,
    *,
    synthetic: bool,
) -> None:
    document = metadata_of(files, report.failures, terms=TERMS.get(request.source, ""))
    if arguments.json:
        added = [file.path.name for file in report.added]
        say_json({**document, "added": added, "synthetic": synthetic, "folder": str(folder)})
        return
    label = " SYNTHETIC" if synthetic else ""
    grown = {file.record.symbol for file in report.added}
    keys = {symbol: f"{symbol} {request.timeframe}" for symbol in sorted(request.begins)}
    there = [symbol for symbol in keys if keys[symbol] in document["symbols"]]
    for symbol in there[:MOST_NAMED]:
        entry = document["symbols"][keys[symbol]]
        holes = f", {counted(entry['hole_bars'], 'bar')} missing" if entry["hole_bars"] else ""
        new = "" if symbol in grown else ", nothing new"
        say(f"{keys[symbol]}: {entry['bars']:,}{label} bars, {' to '.join(entry['covers'])}{holes}{new}")
    if (more := len(there) - MOST_NAMED) > 0:
        say(f"and {counted(more, 'symbol')} more: {folder / METADATA}")
    if report.failures:
        say(f"{counted(len(report.failures), 'symbol')} failed: {_failed(report)}")
    say(f"{counted(len(report.added), 'new file')} in {folder}, {counted(len(files), 'file')} in all")


def _failed(report: FetchReport) -> str:
    told = [f"{symbol} ({why})" for symbol, why in sorted(report.failures.items())]
    more = f" and {len(told) - MOST_NAMED} more" if len(told) > MOST_NAMED else ""
    return ", ".join(told[:MOST_NAMED]) + more
