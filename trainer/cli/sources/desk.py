"""The work of a launch from a desk: candles with own files and encoder, or a script with packages and data.

`begin` does what needs no AWS before anything is started; as the sources of `planning.resolve` they answer
for one stack.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from trainer.aws.access import Access, own_access
from trainer.aws.place import Place
from trainer.base.errors import renaming
from trainer.base.extras import needs
from trainer.base.files import HeldFolder
from trainer.cli.connect import local_candles
from trainer.cli.sources.bucket import fetch_candles, fetch_files, is_in_bucket
from trainer.cli.sources.candles import find_candles
from trainer.cli.sources.check_child import CheckChild
from trainer.cli.sources.script_packages import Packages, with_packages
from trainer.cli.terminal import Console
from trainer.data.read.paths import check_path
from trainer.job.job import Job
from trainer.job.pieces import kind_of
from trainer.launch.bundle import Bundle, build_bundle
from trainer.launch.planning import FoundCandles, FoundScript
from trainer.launch.script_files import data_files, hashes_of, names_checkpoints, script_files, script_sha256
from trainer.launch.script_needs import listed_packages
from trainer.launch.uploads import DeskFile, start_model_file
from trainer.launch.work import Account, ScriptWork, TrainingWork
from trainer.runs.receipt import Receipt
from trainer.train.inputs.encoder import check_inputs, pinned
from trainer.train.inputs.encoder import portable as portable_start
from trainer.train.own.check import checked, contents, portable


@dataclass
class JobAtDesk:
    """A job at the desk, with what it adds to it."""

    job: Job
    console: Console
    ends: ExitStack
    place: Place  # that the user names; a shell may rehearse, too
    dry_run: bool = False  # nothing is written, not even what a check of the set's files found
    bundle: Bundle | None = None  # the work's code
    packages: Packages | None = None  # that were resolved for it
    copies: dict[str, str] = field(default_factory=dict)  # of data in a bucket: path -> the bucket's

    def describe(self, work: TrainingWork | ScriptWork) -> dict[str, Any]:
        """Return the data section of a plan, with the packages that were resolved for it."""
        return {**work.data, **({"packages": self.packages.to_dict()} if self.packages else {})}

    def sent(self, job: Job) -> tuple[Job, DeskFile | None]:
        """Return the job without a path of this desk, and the model that it starts from if it has to be
        uploaded.
        """
        check_inputs(job)
        return portable_start(portable(job)), start_model_file(job)

    def _fetched(self, path: str, fetch: Callable[[str, Access, Path], Path]) -> Path:
        """Return a copy of data in a bucket, which is gone when the command ends; errors and notes name the
        bucket's.
        """
        self.console.update(f"fetching {path} ...")
        copy = fetch(path, own_access(), Path(self.ends.enter_context(HeldFolder("bucket"))))
        self.copies = {str(copy): path.rstrip("/")}
        self.ends.enter_context(renaming(self.copies))
        return copy

    def _named(self, texts: Iterable[str]) -> tuple[str, ...]:
        """Return notes with the bucket's names in place of copies."""
        for copy, name in self.copies.items():
            texts = [text.replace(copy, name) for text in texts]
        return tuple(texts)


@dataclass
class CandleDesk(JobAtDesk):
    """A training: own files, encoder, and candles with their check, which runs beside everything else."""

    check: CheckChild | None = None
    found: FoundCandles | None = None
    is_fetched: bool = False  # its candles are a copy, which is gone when the command ends

    def begin(self) -> Self:
        """Read what needs no AWS, and start the check. Raises a TrainerError before anything starts."""
        path = self.job.data.path
        if path and not is_in_bucket(path):
            check_path(path)
        if self.job.own_files:
            self.console.update("trying your own files ...")
            self.job = checked(self.job)
        self.job = pinned(self.job)
        if is_in_bucket(path):
            self.is_fetched = True
            self.job = self.job.with_data(path=str(self._fetched(path, fetch_candles)))
        self._start_check()
        return self

    def begin_here(self, python: str) -> Self:
        """Begin a run on this machine."""
        needs("torch")
        return self.begin()

    def find(self, job: Job, account: Account) -> FoundCandles:
        """Return the candles of the job. Raises a TrainerError if there are none for it."""
        access = account.access
        if here := local_candles(job, access.folder):
            self.console.line(f"candles of {here}, the local folder")
            self.job = job = job.with_data(path=str(here))
            self._start_check()
        found = find_candles(job, self.check, account.objects, place=access.place, dry_run=self.dry_run)
        candles = replace(found.candles, notes=self._named(found.candles.notes))
        asked = found.job.with_data(path=self.copies.get(found.job.data.path, found.job.data.path))
        self.found = replace(found, job=asked, notes=self._named(found.notes), candles=candles)
        for note in self.found.notes:
            self.console.line(note)
        return self.found

    def code(self, job: Job) -> Bundle:
        """Return the package with the job's own files."""
        self.bundle = build_bundle(own_files=contents(job))
        return self.bundle

    def looks(self, receipt: Receipt) -> list[str]:
        """Return the commands that a receipt ends with."""
        run_id = receipt["run_id"]
        made = [f"logs {run_id} --metrics", f"pull {run_id}"] if receipt["models"] else []
        here = self.found.job.data.path if self.found else ""
        if made and here and not self.is_fetched and not self.job.target.has_environment:
            files = (self.job.own_files.get(table) for table in ("model", "data"))
            own = "".join(f" --model-file {shlex.quote(home.file)}" for home in files if home)
            made.append(f"predict --run {run_id} --data {shlex.quote(here)} --last 5{own}")
        return [f"logs {run_id}", *made]

    def _start_check(self) -> None:
        if self.job.data.path:
            self.check = CheckChild(self.job.data.path, job=self.job)
            self.ends.callback(self.check.close)


@dataclass
class ScriptDesk(JobAtDesk):
    """A script: its files, packages and data."""

    files: dict[str, bytes] = field(default_factory=dict)
    data: tuple[DeskFile, ...] = ()
    has_packages: bool = False  # they are resolved, or another Python has them

    def begin(self) -> Self:
        """Read what needs no AWS. Raises a TrainerError before anything starts."""
        self.files = script_files(self.job.script)
        if self.place.desk_python:
            self._resolve_packages(self.place, "")
        folder = self.job.data.folder
        if is_in_bucket(folder):
            folder = str(self._fetched(folder, fetch_files))
        if folder:
            self.console.update(f"hashing {self.job.data.folder} ...")
            self.data = tuple(data_files(folder))
        return self

    def begin_here(self, python: str) -> Self:
        """Begin a run on this machine. `python`: one that has the packages, '' for none."""
        from trainer.node.stack_secrets import own_secrets  # late, as few scripts have any

        own_secrets(self.job.script.secrets)
        self.has_packages = bool(python)
        self.begin()
        if python and self.job.script.requirements:  # or these requirements name them
            listed_packages(self.job.script, self.files)
        return self

    def find(self, job: Job, account: Account) -> FoundScript:
        """Return the script with its packages, resolved for the stack's image."""
        self._resolve_packages(account.place, account.outputs.image_line)
        job, hashes = self.job, hashes_of(self.files)
        sha256 = script_sha256(job, hashes, self.data)
        keeps = names_checkpoints(job.script, self.files)
        return FoundScript(
            job=job,
            files=hashes,
            sha256=sha256,
            folder=self.data,
            names=(job.name,),
            keeps_checkpoints=keeps,
        )

    def code(self, job: Job) -> Bundle:
        """Return the package with the script's files."""
        self.bundle = build_bundle(script_files=self.files)
        return self.bundle

    def looks(self, receipt: Receipt) -> list[str]:
        """Return the commands that a receipt ends with."""
        run_id = receipt["run_id"]
        return [f"logs {run_id}", *([f"pull {run_id}"] if receipt["files"] else [])]

    def _resolve_packages(self, place: Place, image_line: str) -> None:
        if not self.has_packages:
            self.has_packages = True
            self.job, self.files, self.packages = with_packages(
                self.job, self.files, image_line, place=place, console=self.console
            )


Desk = CandleDesk | ScriptDesk
DESKS: dict[str, type[Desk]] = {TrainingWork.name: CandleDesk, ScriptWork.name: ScriptDesk}


def desk_of(job: Job, console: Console, ends: ExitStack, *, place: Place, dry_run: bool = False) -> Desk:
    """Return the desk for a job, by its command. `place`: where the user wants it to run."""
    return DESKS[kind_of(job).command](job, console, ends, place, dry_run)
