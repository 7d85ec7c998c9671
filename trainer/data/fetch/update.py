"""Add new bars to a folder of fetched files, from the source that each names: what a retrain's refresh runs.

    python -m trainer.data.fetch.update --data FOLDER

Prints a line for each new file and for each symbol that failed. One that failed stops no other, unless all
did.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from trainer.base.errors import DataError, TrainerError, problem_of
from trainer.base.extras import missing_library
from trainer.base.text import counted
from trainer.data.fetch.fetching import Fetch, FetchReport, FetchRequest
from trainer.data.fetch.folder import FetchedFile, fetched_files
from trainer.data.fetch.source import BarSource
from trainer.data.fetch.sources import open_source


def update(
    folder: Path, *, opened: Callable[[str], BarSource] = open_source, told: Callable[[str], None] = print
) -> None:
    """Fetch the bars after the last ones of each symbol of the folder. Raises DataError if its files name no
    source, or if every symbol fails; ConnectionFailed if a source does not answer.
    """
    files = fetched_files(folder)
    if not files:
        why = "mayfly data fetch writes it into each file"
        do = "Fetch the set's first files so, or name a script in data.refresh."
        raise DataError("no file of the set says from which source its bars are", why=why, do=do)
    reports = [_fetched(request, folder, opened, told) for request in requests_of(files)]
    failures = {symbol: why for report in reports for symbol, why in report.failures.items()}
    if len(failures) == len({file.record.symbol for file in files}):
        symbol, why = next(iter(failures.items()))
        more = f", and {counted(len(failures) - 1, 'other')}" if len(failures) > 1 else ""
        raise DataError(f"no symbol could be fetched: {symbol}{more}", why=why, do="Fetch one at a desk.")


def _fetched(
    request: FetchRequest,
    folder: Path,
    opened: Callable[[str], BarSource],
    told: Callable[[str], None],
) -> FetchReport:
    report = Fetch(request, opened(request.source), folder).run()
    for file in report.added:
        told(f"{file.path.name}: {file.bars} bars of {request.source}")
    for symbol, why in report.failures.items():
        told(f"{symbol}: {why}")
    return report


def requests_of(files: Sequence[FetchedFile]) -> list[FetchRequest]:
    """Return what to ask of each source: each symbol from the end of its last file on."""
    latest: dict[tuple[str, str], FetchedFile] = {}
    for file in files:
        key = (file.record.symbol, file.record.timeframe)
        if key not in latest or latest[key].record.covers_until < file.record.covers_until:
            latest[key] = file
    groups: dict[tuple[str, str, str, int, str], dict[str, int]] = {}
    for file in latest.values():
        one = file.record
        chosen = (one.chosen_by, one.chosen_symbols, one.chosen_on)
        groups.setdefault((one.source, one.timeframe, *chosen), {})[one.symbol] = one.covers_until
    return [
        FetchRequest(
            source=source,
            begins=begins,
            timeframe=timeframe,
            chosen_by=by,
            chosen_symbols=symbols,
            chosen_on=on,
        )
        for (source, timeframe, by, symbols, on), begins in sorted(groups.items(), key=lambda item: item[0])
    ]


def main(arguments: list[str] | None = None) -> int:
    """Update a folder; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m trainer.data.fetch.update")
    parser.add_argument(
        "--data", type=Path, required=True, help="folder of fetched files; new ones are added"
    )
    options = parser.parse_args(arguments)
    try:
        update(options.data, told=lambda line: print(line, flush=True))
    except (TrainerError, ModuleNotFoundError, OSError) as raised:
        error = missing_library(raised) if isinstance(raised, ModuleNotFoundError) else problem_of(raised)
        if error is None:
            raise
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
