"""The candles of a launch, at the desk: the data check as a child process, the demo's data, and the way into raw/.

The check runs in a child because it needs pyarrow, and the launcher does not. Its errors are the user's errors, word for word.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainer import environment
from trainer.access import Access
from trainer.data.sync import LocalFile, upload
from trainer.errors import ConfigError, DataError, UsageError
from trainer.job import Job, job_from, with_keys
from trainer.launch.inputs import ChosenCandles, Input, choose, list_inputs
from trainer.runs.store import Objects

DEMO_SYMBOLS = ("BTC-USD", "ETH-USD", "SOL-USD")
DEMO_BARS = 20_000
INDEXED = ("file", "bytes", "sha256", "timeframe", "synthetic", "further")  # of a file, beside what it holds
# What the demo's job sets where the user does not: small enough for two minutes on two cores.
DEMO_JOB: dict[str, Any] = {
    "name": "crypto-lstm",
    "data": {"symbols": list(DEMO_SYMBOLS), "timeframe": "1m", "bars": DEMO_BARS},
    "train": {"epochs": 3},
}


class DataCheck:
    """`python -m trainer.plan.check`, running beside the launcher until somebody asks what it found."""

    def __init__(self, job: Job) -> None:
        self.job, self._data = job, Path(job.data.path)
        self._folder = tempfile.TemporaryDirectory(prefix="mayfly-check-")
        job_file = Path(self._folder.name) / "job.json"
        job_file.write_text(json.dumps(job.to_dict()), encoding="utf-8")
        command = [sys.executable, "-m", "trainer.plan.check", "--job", str(job_file), "--data", job.data.path]
        command += ["--scratch", self._folder.name]  # cleaned up by `close`, or by the child where this process is killed
        theirs, self._ours = os.pipe()  # its other end closes when this process ends, whatever ends it: then the child does
        self._child = subprocess.Popen(
            [*command, "--parent", str(theirs)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=(theirs,),
        )
        os.close(theirs)

    def result(self) -> tuple[ChosenCandles, list[LocalFile]]:
        """Wait for the check and return what it found. Raises DataError as the child wrote it."""
        try:
            stdout, stderr = self._child.communicate()
        finally:
            self.close()
        if self._child.returncode not in (0, 2) or not stdout.strip():
            lines = stderr.strip().splitlines() or [f"exit {self._child.returncode}"]
            why = lines[-1]
            raise ConfigError("the data check could not run", why=why, do="Run make setup, or pip install 'mayfly[train]'.")
        report = json.loads(stdout)
        if "error" in report:
            error = report["error"]
            raise DataError(error["what"], why=error.get("why", ""), do=error.get("do", ""))
        return self._understood(report)

    def close(self) -> None:
        """End the child if it still runs, and remove its job file."""
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait()
        if self._ours >= 0:
            os.close(self._ours)
            self._ours = -1
        self._folder.cleanup()

    def _understood(self, report: Mapping[str, Any]) -> tuple[ChosenCandles, list[LocalFile]]:
        files = []
        for entry in report["files"]:
            # The index says all that a file holds, whatever this job takes of it: a later job plans from it.
            summary = {name: entry[name] for name in (*INDEXED, "holds")}
            path = self._data if self._data.is_file() else self._data / entry["file"]
            files.append(LocalFile(path=path, sha256=entry["sha256"], bytes=entry["bytes"], summary=summary))
        bars = {entry["symbol"]: int(entry["bars"]) for entry in report["symbols"]}
        plan, synthetic = report["plan"].encode(), bool(report["synthetic"])
        refused = tuple(str(DataError(entry["what"], why=entry["why"], do=entry["do"])) for entry in report["refused"])
        chosen = ChosenCandles(timeframe=report["timeframe"], bars=bars, synthetic=synthetic, plan=plan, refused=refused)
        return chosen, files


@dataclass(frozen=True, kw_only=True)
class Found:
    """The candles of a job: in raw/ already, at the desk in `files`, or None; `job` is the demo's for want of others."""

    job: Job
    candles: ChosenCandles | None
    files: Sequence[LocalFile] = ()
    notes: Sequence[str] = ()  # what the user should know of how they were found


def find_candles(job: Job, settings: Mapping[str, Any], check: DataCheck | None, objects: Objects, *, rehearsal: bool) -> Found:
    """Find what to train on: what `--data` names, else what raw/ holds, else, in a rehearsal, the demo's candles."""
    if check is not None:
        candles, files = check.result()
        return Found(job=job, candles=candles, files=files, notes=_left_out(candles))
    if inputs := list_inputs(objects):
        candles = choose(
            inputs,
            symbols=job.data.symbols,
            timeframe=job.data.timeframe,
            columns=job.data.columns,
            exclude=job.data.exclude,
            fewest_bars=job.model.bars_seen + job.target.bars_ahead,
        )
        notes = [f"left out: {key} (no launch put it there; name it with --data once)" for key in candles.left_out]
        return Found(job=job, candles=candles, notes=[*notes, *_left_out(candles)])
    if not rehearsal:
        return Found(job=job, candles=None)
    from trainer.rehearsal.client import default_root  # only a rehearsal has this folder

    folder, sentence = demo_data(default_root())
    theirs = {table: {**DEMO_JOB[table], **settings.get(table, {})} for table in ("data", "train")}
    demo = job_from(with_keys({**DEMO_JOB, **settings, **theirs}, {"data.path": str(folder)}))
    candles, files = DataCheck(demo).result()
    note = f"no --data and an empty raw/, so this is the demo's job: {sentence}"
    return Found(job=demo, candles=candles, files=files, notes=[note])


def _left_out(candles: ChosenCandles) -> list[str]:
    return [f"left out: {reason}" for reason in candles.refused]


def upload_candles(candles: ChosenCandles, files: Sequence[LocalFile], access: Access, *, bucket: str) -> ChosenCandles:
    """Put the checked files into raw/ and return the candles with the inputs that the manifest pins."""
    entries = upload(files, access, bucket=bucket)
    inputs = tuple(Input(**entry, summary=file.summary) for entry, file in zip(entries, files, strict=True))
    return replace(candles, inputs=inputs)


def demo_data(home: Path) -> tuple[Path, str]:
    """Return the demo's candles and a sentence about them: real ones where they lie ready, else seeded synthetic bars.

    Real: the folder that $DATA names, else ../shared/data/raw. Synthetic bars are written below `home`.
    """
    named = environment.demo_folder()
    folder = Path(named) if named else Path.cwd().parent / "shared" / "data" / "raw"
    if folder.exists():
        return (
            folder,
            f"real one-minute candles of {', '.join(DEMO_SYMBOLS)} from {folder}",
        )
    if named:
        raise UsageError(f"DATA={named} does not exist", do="Name a folder of candles, or leave DATA out for synthetic bars.")
    return _synthetic(
        home / "demo-data"
    ), f"SYNTHETIC bars of {', '.join(DEMO_SYMBOLS)} from a seeded generator, no market data"


def _synthetic(folder: Path) -> Path:
    if folder.is_dir() and any(folder.iterdir()):  # seeded: the same bars every time
        return folder
    command = [sys.executable, "-m", "trainer.data.synthetic", "--out", str(folder), "--symbols", ",".join(DEMO_SYMBOLS)]
    command += ["--bars", str(DEMO_BARS), "--timeframe", "1m", "--seed", "0"]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        why = (made.stderr.strip().splitlines() or [f"exit {made.returncode}"])[-1]
        raise ConfigError("the demo's bars could not be made", why=why, do="Run make setup.")
    return folder
