"""Check a job's data before anything is launched. The desk runs it as a child process, so that the launcher
needs no pyarrow:

    python -m trainer.bars.check --job JOB.json --data PATH
    python -m trainer.bars.check --describe --data FOLDER      describe each file, for the index of a data set
    python -m trainer.bars.check --joined --data FOLDER         list symbols that can't be joined

Prints one JSON document: files with hashes, symbols with bars, holes, calendar and windows, refused symbols
with reasons, and plan.json as text. For unusable data or an unusable job: {"error": {"code", "what", "why",
"do"}} and exit 2. Reads the candles and counts windows with numpy only: no torch, and no features but those
of other symbols' bars, if the job reads any.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trainer.bars.document import PlannedFile
from trainer.bars.job_plan import folder_of, plan_data, planned_file
from trainer.base.errors import DataError, TrainerError, UsageError
from trainer.base.files import HeldFolder, read_plain
from trainer.data.columns import told_parts
from trainer.data.read.candles import time_text
from trainer.data.read.folders import candle_files
from trainer.data.read.opened import FileRead, side_read
from trainer.data.read.reading import CandleFolder
from trainer.data.read.refusals import SeveralTimeframes
from trainer.data.read.side import open_side, side_errors, side_files
from trainer.job.job import Job
from trainer.job.reading import MOST_JOB_BYTES, job_from_json

_TRIES = 100  # to remove a folder while files appear in it


def check_data(path: Path, job: Job, *, scratch: Path | None = None) -> dict[str, Any]:
    """Plan the job's candles at `path`; return their description and plan as JSON values. Raises DataError if
    unusable.
    """
    with HeldFolder("candles", within=scratch) as folder_of_copies:
        folder = folder_of(job, path, scratch=Path(folder_of_copies))
        plan = plan_data(job, folder)
        told = told_parts(job.data.columns)
        read_files = zip(folder.files(), plan.files, strict=True)
        files = [_file(read, planned, told) for read, planned in read_files]
    return {
        "files": files,
        "timeframe": plan.timeframe,
        "synthetic": plan.synthetic,
        "symbols": [
            {"symbol": symbol, "first": entry.first, "last": entry.last, **entry.summary()}
            for symbol, entry in plan.symbols.items()
        ],
        "notes": list(plan.notes),
        "refused": [{"symbol": entry.symbol, **entry.error.as_dict()} for entry in plan.refused.values()],
        "inputs": list(plan.inputs),
        "index": list(folder.index),
        # Without a trial the reach of a user's own model is unknown: the node plans.
        "plan": plan.to_bytes().decode() if all(home.is_tried for home in job.own_files.values()) else "",
    }


def describe(path: Path, *, columns: Sequence[str] = (), scratch: Path | None = None) -> dict[str, Any]:
    """Return a description of each candle file of a folder, as JSON values: {"files": [...], "errors": {file:
    error}}. Of `columns`, as a job has them, what they tell about the parts of a bar.
    """
    files, errors, beside = [], {}, side_files(path)
    for file in candle_files(path).files if _has_candles(path) or not beside else ():
        try:
            with HeldFolder("candles", within=scratch) as copies:
                folder = CandleFolder(file.path, Path(copies), columns=told_parts(columns))
                for symbol in folder.symbols:
                    folder.read(symbol)
                (read,) = folder.files()
                files.append(_file(read, planned_file(read), told_parts(columns)))
        except TrainerError as error:
            errors[file.file] = error.as_dict()
    for place in beside:
        try:
            read = side_read(open_side(place))
            files.append(_file(read, planned_file(read), told_parts(columns)))
        except TrainerError as error:
            errors[place.name] = error.as_dict()
    return {"files": files, "errors": errors}


def _has_candles(path: Path) -> bool:
    try:
        return bool(candle_files(path).files)
    except DataError:
        return False


def join(path: Path, *, columns: Sequence[str] = (), scratch: Path | None = None) -> dict[str, Any]:
    """Join each symbol of a folder over all files, and each side series; return errors as JSON values:
    {"errors": {symbol, or file of a series: error}}.
    """
    errors = {name: error.as_dict() for name, error in side_errors(path).items()}
    with HeldFolder("candles", within=scratch) as copies:
        for folder in _by_timeframe(path, Path(copies), told_parts(columns)):
            for symbol in folder.symbols:
                try:
                    folder.read(symbol)
                except TrainerError as error:
                    errors[symbol] = error.as_dict()
    return {"errors": errors}


def _by_timeframe(path: Path, copies: Path, columns: Sequence[str]) -> Iterator[CandleFolder]:
    """Yield a folder's candles; of several timeframes, those of each."""
    try:
        yield CandleFolder(path, copies, columns=columns)
    except SeveralTimeframes as several:
        for timeframe in several.timeframes:
            yield CandleFolder(path, copies, columns=columns, timeframe=timeframe)


def _file(read: FileRead, planned: PlannedFile, told: Sequence[str]) -> dict[str, Any]:
    """Return a file's description: the symbols that the run uses, all symbols that it holds, its further
    columns, and what was told about those of a bar.
    """
    return {
        "file": read.file,
        "path": str(read.path),
        "bytes": planned.bytes,
        "sha256": planned.sha256,
        "symbols": list(read.symbols),
        "timeframe": read.timeframe,
        "synthetic": read.synthetic,
        "further": list(read.further),
        "told": list(told),
        "holds": [
            {
                "symbol": held.symbol,
                "bars": held.bars,
                "first": time_text(held.first),
                "last": time_text(held.last),
            }
            for held in read.holds
        ],
    }


def main(arguments: list[str] | None = None) -> int:
    """Print the description, or the error, as one JSON document; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.bars.check", description="Check a job's candles without training."
    )
    parser.add_argument("--job", type=Path, help="the job as JSON; without it, a job's defaults")
    parser.add_argument("--data", type=Path, required=True, help="folder or file of candles")
    parser.add_argument(
        "--describe", action="store_true", help="describe each file of the folder, without a job"
    )
    parser.add_argument(
        "--joined", action="store_true", help="read each symbol over all files of the folder, without a job"
    )
    parser.add_argument(
        "--columns",
        action="append",
        default=[],
        metavar="ENTRY",
        help="an entry of data.columns, for --describe and --joined; repeat it",
    )
    parser.add_argument("--parent", type=int, help="file descriptor of a pipe; end when its other end closes")
    parser.add_argument(
        "--scratch", type=Path, help="folder for copies of bars; removed when the pipe of --parent closes"
    )
    options = parser.parse_args(arguments)
    if options.parent is not None:
        watched = (options.parent, options.scratch)
        threading.Thread(target=_end_with, args=watched, name="parent-watch", daemon=True).start()
    try:
        if options.describe:
            report = describe(options.data, columns=options.columns, scratch=options.scratch)
        elif options.joined:
            report = join(options.data, columns=options.columns, scratch=options.scratch)
        else:
            report = check_data(options.data, _job(options.job), scratch=options.scratch)
    except TrainerError as error:
        json.dump({"error": error.as_dict()}, sys.stdout)
        print()
        return error.exit_code
    json.dump(report, sys.stdout)
    print()
    return 0


def _end_with(pipe: int, scratch: Path | None) -> None:
    """End this process when the other end of a pipe closes, and remove its scratch folder."""
    while os.read(pipe, 1):
        pass
    for _ in range(_TRIES if scratch else 0):  # the main thread may be writing there
        shutil.rmtree(str(scratch), ignore_errors=True)
        if not os.path.lexists(str(scratch)):
            break
    os._exit(1)


def _job(path: Path | None) -> Job:
    if path is None:
        return Job()
    try:
        return job_from_json(read_plain(path, most_bytes=MOST_JOB_BYTES).decode())
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path} is not a job in JSON", why=str(error), do="Write it with Job.to_dict()."
        ) from error


if __name__ == "__main__":
    raise SystemExit(main())
