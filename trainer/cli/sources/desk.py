"""Sources of a launch at a desk: own files, encoder, candles and their check, a script with its packages and
data.

`Desk` does what needs no AWS before anything is started; `at` gives the sources for one stack.
"""

from __future__ import annotations

import os
import re
import shlex
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trainer.aws.access import own_access
from trainer.aws.place import ACCOUNT
from trainer.base.errors import UsageError
from trainer.cli.sources.bucket import fetch_candles, fetch_files, is_in_bucket
from trainer.cli.sources.candles import CheckedCandles, DataCheck, find_candles
from trainer.cli.sources.local import local_candles
from trainer.cli.sources.script_packages import Packages, with_packages
from trainer.cli.terminal import Console
from trainer.data.read.paths import check_path
from trainer.job.job import MAX_JOB_NAME, Job
from trainer.job.tables import Tables
from trainer.launch.bundle import Bundle, build_bundle
from trainer.launch.planning import with_candles
from trainer.launch.script_files import data_files, hashes_of, script_files, script_sha256
from trainer.launch.uploads import DeskFile, encoder_file
from trainer.launch.work import Account, ScriptWork, TrainingWork
from trainer.runs.receipt import Receipt
from trainer.train.inputs.encoder import check_inputs, pinned
from trainer.train.inputs.encoder import portable as portable_encoder
from trainer.train.own.check import checked, contents, portable


@dataclass
class Desk:
    """What this desk adds to a job. `with_this_python`: its script's packages are for this environment."""

    job: Job
    console: Console
    ends: ExitStack
    with_this_python: bool = False
    resolves: bool = True  # a script's packages; not where another Python has its own
    files: dict[str, bytes] | None = None  # of a script
    data: tuple[DeskFile, ...] = ()
    packages: Packages | None = None
    check: DataCheck | None = None  # runs beside everything else
    found: CheckedCandles | None = None
    bundle: Bundle | None = None  # the work's code

    def begin(self) -> Desk:
        """Read what needs no AWS, and start the data check. Raises a TrainerError before anything starts."""
        if self.job.is_script:
            self.files = script_files(self.job.script)
            if self.with_this_python and self.resolves:  # its image is this environment
                self._resolve("", here=True)
            return self
        path = self.job.data.path
        if path and not is_in_bucket(path):
            check_path(path)
        if self.job.own_files:
            self.console.update("trying your own files ...")
            self.job = checked(self.job)
        self.job = pinned(self.job)
        if is_in_bucket(path):
            self.console.update(f"fetching {path} ...")
            fetched = Path(self.ends.enter_context(TemporaryDirectory(prefix="mayfly-bucket-")))
            self.job = self.job.with_data(path=str(fetch_candles(path, own_access(), fetched)))
        self._start_check()
        return self

    def read_folder(self) -> Desk:
        """Hash a script's data folder."""
        self.data = read_data(self.job, self.console, self.ends) if self.job.is_script else ()
        return self

    def describe(self, work: TrainingWork | ScriptWork) -> dict[str, Any]:
        """Return the data section of a plan, with the packages that were resolved for it."""
        return {**work.data, **({"packages": self.packages.to_dict()} if self.packages else {})}

    def looks(self, receipt: Receipt, given: str) -> list[str]:
        """Return the commands that a receipt ends with. `given`: the path of candles as the user named it."""
        run_id = receipt["run_id"]
        if self.job.is_script:
            return [f"logs {run_id}", *([f"pull {run_id}"] if receipt["files"] else [])]
        made = [f"logs {run_id} --metrics", f"pull {run_id}"] if receipt["models"] else []
        here = self.found.job.data.path if self.found else ""
        if made and here and not is_in_bucket(given):
            made.append(f"predict --run {run_id} --data {shlex.quote(here)} --last 5")
        return [f"logs {run_id}", *made]

    def at(self, account: Account, *, dry_run: bool = False) -> DeskSources:
        """Return the sources for a stack."""
        return DeskSources(desk=self, account=account, dry_run=dry_run)

    def _start_check(self) -> None:
        if self.job.data.path:
            self.check = DataCheck(self.job)
            self.ends.callback(self.check.close)

    def _resolve(self, image_line: str, *, here: bool) -> None:
        assert self.files is not None
        self.job, self.files, self.packages = with_packages(
            self.job, self.files, image_line, rehearsal=here, console=self.console
        )


@dataclass(frozen=True, kw_only=True)
class DeskSources:
    """`launch.work.WorkSources` of a desk."""

    desk: Desk
    account: Account
    dry_run: bool

    def training(self, job: Job) -> TrainingWork:
        desk, access = self.desk, self.account.access
        if here := local_candles(job, access.folder):
            desk.console.line(f"candles of {here}, the local folder")
            desk.job = job.with_data(path=str(here))
            desk._start_check()
        found = find_candles(
            desk.job, desk.check, self.account.objects, place=access.place, dry_run=self.dry_run
        )
        for note in found.notes:
            desk.console.line(note)
        desk.found = found
        if found.candles is None:
            do = "Name your candles with --data PATH: they are uploaded there and stay."
            why = f"raw/{job.data.set}/ in the bucket is empty"
            raise UsageError("there is nothing to train on", why=why, do=do)
        own = contents(found.job)
        job = with_candles(found.job, found.candles)
        check_inputs(job)
        desk.bundle = build_bundle(own_files=own)
        return TrainingWork(
            job=portable_encoder(portable(job)),
            code=desk.bundle,
            candles=found.candles,
            files=tuple(found.files),
            encoder=encoder_file(job),
        )

    def script(self, job: Job) -> ScriptWork:
        desk, outputs = self.desk, self.account.outputs
        if not desk.with_this_python:
            desk._resolve(outputs.image_line, here=self.account.place is not ACCOUNT)
        assert desk.files is not None
        hashes = hashes_of(desk.files)
        desk.bundle = build_bundle(script_files=desk.files)
        return ScriptWork(
            job=desk.job,
            code=desk.bundle,
            files=hashes,
            sha256=script_sha256(desk.job.script, hashes, desk.data),
            folder=desk.data,
            names=(desk.job.name,),
        )


def with_script(tables: Tables, file: str) -> Tables:
    """Return the tables with `--script FILE`: its command, its folder, and the run's name if none is
    given.
    """
    path = Path(file)
    if not path.is_file():
        what = "is not a file" if path.exists() else "does not exist"
        raise UsageError(f"script {file} {what}", do="Name your training script: --script train.py.")
    name = re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-")[:MAX_JOB_NAME].strip("-") or "script"
    script = {
        **tables.get("script", {}),
        "command": shlex.join(["python", path.name]),
        "root": str(path.parent),
    }
    return {"name": name, **tables, "script": script}


def read_data(job: Job, console: Console, ends: ExitStack) -> tuple[DeskFile, ...]:
    """Return the files of a script's data, those of a bucket fetched to the desk. Raises DataError."""
    folder = job.data.folder
    if not folder:
        return ()
    if is_in_bucket(folder):
        console.update(f"fetching {folder} ...")
        fetched = Path(ends.enter_context(TemporaryDirectory(prefix="mayfly-bucket-")))
        folder = str(fetch_files(folder, own_access(), fetched))
    console.update(f"hashing {os.path.normpath(folder)} ...")
    return tuple(data_files(folder))
