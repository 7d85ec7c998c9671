"""Check a job's data before anything is launched. The desk runs it as a child process, so that the launcher needs no
pyarrow:

    python -m trainer.plan.check --job JOB.json --data PATH

One JSON document on stdout: files with hashes, symbols with bars, holes, calendar and windows. Data or a job that no run
could use: {"error": {"code", "what", "why", "do"}} and exit 2. Reads the candles and counts windows, in numpy alone: no
torch, no features.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from trainer.data.candles import Candles, CandleSet, read_candles, time_text
from trainer.errors import TrainerError, UsageError
from trainer.job import Job, job_from_json
from trainer.plan.plans import plan_folds


def check_data(path: Path, job: Job) -> dict[str, Any]:
    """Read the job's candles at `path` and describe them as JSON values. Raises DataError for what a run could not use."""
    data = job.data
    candles = read_candles(path, symbols=data.symbols, timeframe=data.timeframe, bars=data.bars, columns=data.columns)
    return {
        "files": _files(path, candles),
        "timeframe": candles.timeframe,
        "synthetic": candles.synthetic,
        "symbols": [_symbol(item, job) for item in candles.symbols.values()],
        "inputs": list(data.inputs),
    }


def _files(path: Path, candles: CandleSet) -> list[dict[str, Any]]:
    """Describe each file: what the run takes from it; all that it holds, and its further columns, whatever the job takes."""
    described = []
    for read in candles.files:
        file = path if path.is_file() else path / read.file
        with file.open("rb") as stream:
            sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        described.append(
            {
                "file": read.file,
                "bytes": file.stat().st_size,
                "sha256": sha256,
                "symbols": list(read.symbols),
                "timeframe": read.timeframe,
                "synthetic": read.synthetic,
                "further": list(read.further),
                "holds": [
                    {"symbol": held.symbol, "bars": held.bars, "first": time_text(held.first), "last": time_text(held.last)}
                    for held in read.holds
                ],
            }
        )
    return described


def _symbol(candles: Candles, job: Job) -> dict[str, Any]:
    plan = plan_folds(candles, job)[-1]  # the one with the most windows
    return {
        "symbol": candles.symbol,
        "bars": len(candles),
        "first": time_text(candles.timestamp[0]),
        "last": time_text(candles.timestamp[-1]),
        "holes": int(plan.holes.sum()),
        "calendar": plan.calendar,
        "ties": plan.ties,
        "windows": {name: len(bars) for name, bars in plan.bars.items()},
        **plan.horizon,
    }


def main(arguments: list[str] | None = None) -> int:
    """Print the description, or the error, as one JSON document; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m trainer.plan.check", description="Check a job's candles without training.")
    parser.add_argument("--job", type=Path, help="the job as JSON; without it, a job's defaults")
    parser.add_argument("--data", type=Path, required=True, help="folder or file of candles")
    options = parser.parse_args(arguments)
    try:
        report = check_data(options.data, _job(options.job))
    except TrainerError as error:
        json.dump({"error": error.as_dict()}, sys.stdout)
        print()
        return error.exit_code
    json.dump(report, sys.stdout)
    print()
    return 0


def _job(path: Path | None) -> Job:
    if path is None:
        return Job()
    try:
        return job_from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is no job in JSON", why=str(error), do="Write it with Job.to_dict().") from error


if __name__ == "__main__":
    raise SystemExit(main())
