"""The parts of a launch that are specific to a script: flag, data, preflight, plan. launch.py calls them in
order.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from trainer.aws.access import Access, own_access
from trainer.aws.place import REHEARSAL
from trainer.aws.stack_outputs import StackOutputs
from trainer.base.errors import ConfigError, UsageError
from trainer.cli.output import counted
from trainer.cli.ready import Ready
from trainer.cli.settled import report_settled
from trainer.cli.sources.bucket import fetch_files, is_in_bucket
from trainer.cli.sources.script_packages import Packages, with_packages
from trainer.cli.terminal import Console
from trainer.control.settle import settle_unwatched
from trainer.job.job import MAX_JOB_NAME, Job
from trainer.job.tables import Tables
from trainer.launch.bundle import build_bundle
from trainer.launch.images import refuse_unfit
from trainer.launch.knowledge import known_boots
from trainer.launch.machines import refuse_retired, refuse_small_disks
from trainer.launch.preflight import look
from trainer.launch.script import known_times, plan_script, script_record
from trainer.launch.script_files import DATA_PREFIX, DataFile, data_files, script_sha256, upload_data
from trainer.launch.start import register
from trainer.launch.tasks import script_task
from trainer.machines.instances import InstanceType
from trainer.runs.receipt import Receipt
from trainer.runs.record import RunRecord
from trainer.runs.store import open_objects

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, kw_only=True)
class DeskScript:
    """A script as the desk has it: its job, its files' content by path, its data, and packages that were
    resolved for it.
    """

    job: Job
    files: Mapping[str, bytes]
    data: tuple[DataFile, ...] = ()
    packages: Packages | None = None

    def with_packages(self, image_line: str, *, rehearsal: bool, console: Console) -> DeskScript:
        """Return the script with the packages that it needs on the image line. Raises a TrainerError."""
        job, files, packages = with_packages(
            self.job, self.files, image_line, rehearsal=rehearsal, console=console
        )
        return replace(self, job=job, files=files, packages=packages)

    @property
    def hashes(self) -> dict[str, str]:
        """Return the sha256 of each of its files, by path."""
        return {path: hashlib.sha256(content).hexdigest() for path, content in self.files.items()}


@dataclass(frozen=True, kw_only=True)
class ReadyToRun(Ready):
    """A launch of a script."""

    files: Mapping[str, str]  # of the script, by path: sha256
    folder: tuple[DataFile, ...]
    sha256: str  # of all that its duration depends on
    packages: Packages | None = None  # that were resolved for this launch

    @property
    def data(self) -> dict[str, Any]:
        sent = {
            "files": len(self.folder),
            "bytes": sum(file.bytes for file in self.folder),
            "script_files": dict(self.files),
        }
        return {**sent, **({"packages": self.packages.to_dict()} if self.packages else {})}

    def view(self) -> RenderableType:
        from trainer.cli.views.plan import script_view  # late: rich takes a while to load

        return script_view(self.plan, self.job, self.data)

    def record(self, *, preflight_at: datetime, now: datetime) -> RunRecord:
        return script_record(
            self.job, self.plan, self.bundle, self.outputs, preflight_at=preflight_at, now=now
        )

    def upload(self, access: Access, console: Console) -> list[dict[str, Any]]:
        if self.packages:
            console.line(self.packages.keep())
        if not self.folder:
            return []
        size = sum(file.bytes for file in self.folder) / 1e6
        place = f"s3://{self.outputs.bucket}/{DATA_PREFIX}"
        console.update(
            f"uploading what is new of {counted(len(self.folder), 'file')}, {size:.1f} MB, to {place} ..."
        )
        return upload_data(self.folder, access, bucket=self.outputs.bucket)

    def register(self, record: RunRecord, uploaded: list[dict[str, Any]], ssh_key: str) -> None:
        task = script_task(
            record, self.job, self.files, uploaded, sha256=self.sha256, planned=self.plan.pieces
        )
        register(record, task, self.bundle, self.objects, offers=self.offers, ssh_key=ssh_key)

    def looks(self, receipt: Receipt) -> list[str]:
        run_id = receipt["run_id"]
        return [f"logs {run_id}", *([f"pull {run_id}"] if receipt["files"] else [])]


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


def read_data(job: Job, console: Console, ends: ExitStack) -> tuple[DataFile, ...]:
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


def refuse_secrets_without_role(job: Job, outputs: StackOutputs) -> None:
    """Raise ConfigError for a script with secrets if the stack has no role that may read them."""
    if job.script.secrets and not outputs.script_profile_arn:
        why = "it is older than they are"
        raise ConfigError("the stack has no role for scripts with secrets", why=why, do="Run pulumi up.")


def script_preflight(
    arguments: argparse.Namespace,
    script: DeskScript,
    machines: Sequence[InstanceType],
    access: Access,
    outputs: StackOutputs,
    console: Console,
) -> ReadyToRun:
    """Check account and prices concurrently, and make the plan. Writes nothing but the receipts of
    old runs.
    """
    if access.place.binding:
        refuse_unfit(machines, outputs.image_line, named=bool(script.job.machine.instance))
    refuse_secrets_without_role(script.job, outputs)
    if not arguments.rehearse:  # a rehearsal's packages were resolved before it started
        rehearsal = access.place is REHEARSAL
        script = script.with_packages(outputs.image_line, rehearsal=rehearsal, console=console)
    job, objects = script.job, open_objects(access, outputs.bucket)
    hashes = script.hashes
    sha256 = script_sha256(job.script, hashes, script.data)
    with ThreadPoolExecutor(max_workers=5) as pool:
        offered = pool.submit(
            look, access, outputs=outputs, machines=machines, spot=job.machine.market == "spot"
        )
        settled = None if arguments.dry_run else pool.submit(settle_unwatched, access, outputs)
        bundle = pool.submit(build_bundle, script_files=script.files)
        boots = pool.submit(known_boots, objects)
        known = pool.submit(known_times, objects, [job.name], sha256, access.place)
    report_settled(settled, console)
    if access.place.binding:
        refuse_retired(machines if job.machine.instance else (), None)
    offers = offered.result()
    input_bytes = sum(file.bytes for file in script.data)
    refuse_small_disks(machines, input_bytes, volume_gib=offers.volume_gib)
    return ReadyToRun(
        outputs=outputs,
        objects=objects,
        offers=offers,
        bundle=bundle.result(),
        job=job,
        plan=plan_script(
            job,
            offers,
            outputs,
            known=known.result(),
            place=access.place,
            input_bytes=input_bytes,
            boots=boots.result(),
        ),
        files=hashes,
        sha256=sha256,
        folder=script.data,
        packages=script.packages,
    )
