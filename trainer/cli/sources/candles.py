"""The candles of a launch from a desk: those that the user names, those of the data set, the demo's."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainer.aws.objects import Objects
from trainer.aws.place import Place
from trainer.base.errors import ConfigError, DataError, UsageError
from trainer.base.files import HeldFolder
from trainer.base.text import some_of
from trainer.cli.output import counted
from trainer.cli.sources.check_child import INDEXED, CheckChild
from trainer.cli.sources.taken import compare_overlaps, take
from trainer.data.table import DataSettings
from trainer.job.job import Job
from trainer.launch.inputs import RAW, ChosenCandles, list_inputs
from trainer.launch.planning import FoundCandles, choose_from_set
from trainer.launch.uploads import DeskFile

DEMO_SYMBOLS = ("BTC-USD", "ETH-USD", "SOL-USD")
DEMO_BARS = 20_000
DEMO_SET = "demo"
MOST_NAMED = 6  # files, in a line
# What the demo's job sets where the user does not: small enough for two minutes on two cores.
DEMO_JOB: dict[str, Any] = {
    "name": "crypto-lstm",
    "data.symbols": DEMO_SYMBOLS,
    "data.timeframe": "1m",
    "data.bars": DEMO_BARS,
    "train.epochs": 3,
}


def find_candles(
    job: Job,
    check: CheckChild | None,
    objects: Objects,
    *,
    place: Place,
    dry_run: bool = False,
) -> FoundCandles:
    """Find what to train on: what `--data` names and `check` reads, else what the job's data set holds, else,
    where the place has one, the demo.

    Files of the set that no launch uploaded are fetched, checked and, unless `dry_run`, indexed. Raises
    DataError, or UsageError if there is nothing.
    """
    if check is not None:
        return _checked(job, check)
    if listed := list_inputs(objects, job.data.set, job.data.columns):
        inputs, taken = take(listed, objects, columns=job.data.columns, writes=not dry_run)
        candles = choose_from_set(job, inputs)
        candles, compared = compare_overlaps(candles, objects, columns=job.data.columns, writes=not dry_run)
        notes = [_listed(job.data.set, candles), *taken, *compared, *candles.notes, *_left_out(candles)]
        return FoundCandles(job=job, candles=candles, notes=notes)
    if place.has_demo:
        return _demo(job)
    why = f"raw/{job.data.set}/ in the bucket is empty"
    # What scripts read is not a data set.
    if sets := [name for name in objects.folders(prefix=RAW) if not name.startswith(".")]:
        do = f"Choose one with data.set: {', '.join(sets[:12])}; or name your candles with --data PATH."
        raise DataError(f"there is no data set '{job.data.set}'", why=why, do=do)
    do = "Name your candles with --data PATH: they are uploaded there and stay."
    raise UsageError("there is nothing to train on", why=why, do=do)


def _checked(job: Job, check: CheckChild) -> FoundCandles:
    """Wait for the check and return what it found. Raises DataError as the child wrote it."""
    report = check.report()
    files = [
        DeskFile(
            place=Path(entry["path"]),
            path=entry["file"],
            sha256=entry["sha256"],
            bytes=entry["bytes"],
            # The index says all that a file holds, whatever this job takes of it: a later job plans from it.
            summary={name: entry[name] for name in INDEXED},
        )
        for entry in report["files"]
    ]
    refused = [DataError(entry["what"], why=entry["why"], do=entry["do"]) for entry in report["refused"]]
    candles = ChosenCandles(
        timeframe=report["timeframe"],
        bars={entry["symbol"]: int(entry["bars"]) for entry in report["symbols"]},
        synthetic=bool(report["synthetic"]),
        bars_plan=report["plan"].encode(),
        refused=tuple(map(str, refused)),
        notes=tuple(report["notes"]),
        desk_bytes=sum(file.bytes for file in files),
        index=tuple(report["index"]),
    )
    return FoundCandles(job=job, candles=candles, files=files, notes=[*candles.notes, *_left_out(candles)])


def _demo(job: Job) -> FoundCandles:
    """Return the demo's job and candles."""
    from trainer.rehearsal import client, home  # only a rehearsal has this folder

    folder = demo_data(home.open_home(client.default_root()) / "demo-data")
    own = DEMO_SET if job.data.set == DataSettings().set else job.data.set  # never among the user's own bars
    demo = job.with_defaults(DEMO_JOB).with_data(path=str(folder), set=own)
    found = _checked(demo, CheckChild(demo.data.path, job=demo))
    bars = f"SYNTHETIC bars of {', '.join(DEMO_SYMBOLS)} from a seeded generator, no market data"
    note = f"no --data and no data set {job.data.set}, so this is the demo's job: {bars}"
    return replace(found, notes=[note, *found.notes])


def _listed(data_set: str, candles: ChosenCandles) -> str:
    """Return a line with the files of a data set that will be trained on."""
    names = [item.key.rpartition("/")[2] for item in candles.inputs]
    shown = some_of(names, MOST_NAMED)
    return f"trains on data set {data_set}, {counted(len(names), 'file')}: {shown}"


def _left_out(candles: ChosenCandles) -> list[str]:
    return [f"left out: {reason}" for reason in candles.refused]


def demo_data(folder: Path) -> Path:
    """Return the folder with the demo's candles: seeded synthetic bars, made if there are none yet."""
    if folder.is_dir() and any(folder.iterdir()):  # seeded: the same bars every time
        return folder
    with HeldFolder("demo-data", within=folder.parent) as scratch:
        bars = Path(scratch) / "bars"
        command = [sys.executable, "-m", "trainer.data.synthetic", "--out", str(bars)]
        command += ["--symbols", ",".join(DEMO_SYMBOLS)]
        command += ["--bars", str(DEMO_BARS), "--timeframe", "1m", "--seed", "0"]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            why = (made.stderr.strip().splitlines() or [f"exit {made.returncode}"])[-1]
            raise ConfigError("the demo's bars could not be made", why=why, do="Run make setup.")
        try:
            bars.rename(folder)  # all of them or none: an interrupted command starts over
        except OSError:
            if not folder.is_dir():  # else another command has just made the same
                raise
    return folder
