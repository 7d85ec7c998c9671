"""The work of a launch: a job whose sources are resolved, for whoever launches it.

`planning.resolve` makes it; `planning.offers_for`, `planning.plan_work`, `start.record_of` and
`start.register` take it from there.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from trainer.aws.access import Access
from trainer.aws.objects import Objects
from trainer.aws.place import ACCOUNT, Place
from trainer.aws.stack_outputs import StackOutputs
from trainer.job.job import Job
from trainer.job.pieces import check_machines, pieces_of
from trainer.job.pieces.piece import Piece
from trainer.job.script import KIND as SCRIPT
from trainer.launch.bundle import BundleName
from trainer.launch.inputs import RAW, ChosenCandles, Input
from trainer.launch.knowledge import known_calibration, known_rates
from trainer.launch.known_times import KnownTimes, known_times
from trainer.launch.machines import refuse_retired, refuse_small_disks
from trainer.launch.preflight import Offers
from trainer.launch.tasks import Task, refresh_task, score_task, script_task, training_task
from trainer.launch.uploads import DATA_PREFIX, DeskFile, upload_candles, upload_data
from trainer.machines.cpu_types import cpu_types
from trainer.machines.planner import Workload, with_bytes, workload
from trainer.machines.rates import NOT_ESTIMATED, Rate
from trainer.runs.calibration import Calibrated
from trainer.runs.manifest import ManifestInput
from trainer.runs.record import Leaves, RunRecord


@dataclass(frozen=True, kw_only=True)
class Account:
    """The stack that a launch works on, and the access to it."""

    access: Access
    outputs: StackOutputs
    objects: Objects

    @property
    def place(self) -> Place:
        return self.access.place


@dataclass(frozen=True, kw_only=True)
class Load:
    """The pieces of a job, and for each offered type the rate of one of its GPUs on AWS; `here`: those of
    this desk, where it takes their place. `runs`: what the last runs of its shape took at the place.
    """

    work: Workload
    rates: Mapping[str, Rate]
    here: Mapping[str, Rate] = field(default_factory=dict)
    runs: Mapping[str, Calibrated] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Work(ABC):
    """A job with its code, as the machine reads it: it names no path of the desk."""

    job: Job
    code: BundleName
    name: ClassVar[str]  # of its command
    leaves: ClassVar[Leaves]

    @property
    def refused(self) -> tuple[str, ...]:
        """Return why symbols of its data were left out."""
        return ()

    @property
    def num_nodes(self) -> int:
        """Return how many machines of an attempt do it."""
        return 1

    def role(self, outputs: StackOutputs) -> tuple[str, str]:
        """Return the unique id of its machine's role, and the ARN of its profile if the template has
        another.
        """
        return outputs.instance_role_id, ""

    @abstractmethod
    def task(
        self, record: RunRecord, account: Account, offers: Offers | None, planned: Sequence[Piece]
    ) -> Task:
        """Return the command with all that it reads. `offers`: None on the caller's own machine."""


@dataclass(frozen=True, kw_only=True)
class WeighedWork(Work):
    """Work whose types are chosen by time and price."""

    @property
    def num_nodes(self) -> int:
        return self.job.machine.nodes

    @property
    @abstractmethod
    def input_bytes(self) -> int: ...

    @property
    def keeps_checkpoints(self) -> bool:
        """Return whether another machine goes on where this one was lost."""
        return True

    @abstractmethod
    def weighed(self, offers: Offers, account: Account) -> Load:
        """Return its pieces, and the rate of each offered type; refuses what can't work."""


@dataclass(frozen=True, kw_only=True)
class TrainingWork(WeighedWork):
    """Models from candles. `files`, `start_model`: what has to be uploaded from this desk."""

    candles: ChosenCandles
    files: tuple[DeskFile, ...] = ()
    start_model: DeskFile | None = None
    name: ClassVar[str] = "train"
    leaves: ClassVar[Leaves] = "models"

    @property
    def data(self) -> dict[str, Any]:
        """Return the data section of a plan."""
        return self.candles.to_dict()

    @property
    def keeps_checkpoints(self) -> bool:
        return self.job.train.checkpoint_seconds > 0

    @property
    def refused(self) -> tuple[str, ...]:
        return self.candles.refused

    @property
    def input_bytes(self) -> int:
        return self.candles.input_bytes

    @property
    def entries(self) -> list[Mapping[str, Any]]:
        """Return its pinned inputs."""
        return [item.pinned() for item in self.candles.inputs]

    @property
    def bars_plan(self) -> bytes:
        """Return the plan of its bars."""
        return self.candles.bars_plan

    @property
    def places(self) -> dict[str, Path]:
        """Return the files of this desk by sha256."""
        return {file.sha256: file.place for file in self.files}

    def weighed(self, offers: Offers, account: Account) -> Load:
        job, machines, place = self.job, offers.priced.machines, account.place
        work = with_bytes(workload(job, self.candles.bars), job, input_bytes=self.input_bytes)
        check_machines(job, work.pieces)
        if place.binding and job.machine.instance:
            refuse_retired(machines, work)

        def known(at: Place) -> dict[str, Rate]:
            return known_rates(job, machines, at, pieces=len(work.pieces))

        runs = known_calibration(job, machines, account.objects, place, pieces=len(work.pieces))
        return Load(work=work, rates=known(ACCOUNT), here=known(place) if place.chip else {}, runs=runs)

    def pieces(self) -> tuple[Piece, ...]:
        """Return its pieces without estimates, for a machine that nobody prices."""
        return workload(self.job, self.candles.bars).pieces

    def by_hash(self) -> TrainingWork:
        """Return the work with its inputs as an upload will pin them, but for their versions."""
        if not self.files:
            return self
        folder = f"{RAW}{self.job.data.set}/"
        inputs = tuple(file.as_input(f"{folder}{file.path}") for file in self.files)
        return replace(self, candles=replace(self.candles, inputs=inputs))

    def uploaded(self, account: Account, say: Callable[[str], None]) -> TrainingWork:
        """Upload what is at the desk, and return the work with its inputs pinned."""
        bucket, data_set = account.outputs.bucket, self.job.data.set
        if self.start_model:
            size = _megabytes([self.start_model.bytes])
            say(f"uploading the model to start from, {size}, unless it is in the bucket ...")
            upload_data([self.start_model], account.access, bucket=bucket)
        sent = replace(self, start_model=None)
        if not self.files:
            return sent
        size = _megabytes(file.bytes for file in self.files)
        say(f"uploading {_files(self.files)}, {size}, to s3://{bucket}/raw/{data_set}/ ...")
        inputs = upload_candles(self.files, account.access, bucket=bucket, data_set=data_set)
        return replace(sent, candles=replace(self.candles, inputs=inputs))

    def task(
        self, record: RunRecord, account: Account, offers: Offers | None, planned: Sequence[Piece]
    ) -> Task:
        return training_task(
            record, self.job, self.candles, account.objects, offers, start_model=self.start_model
        )


@dataclass(frozen=True, kw_only=True)
class ScriptWork(WeighedWork):
    """A user's script: its files and data by hash. `folder`: the data that is at this desk."""

    files: Mapping[str, str]  # of the script, by path: sha256
    sha256: str  # of all that its duration depends on
    inputs: tuple[Mapping[str, Any], ...] = ()  # entries of the manifest, with their paths
    folder: tuple[DeskFile, ...] = ()
    names: tuple[str, ...]  # in the ids of its earlier runs: of its job and its retrain
    has_checkpoints: bool = True  # its files name their folder
    name: ClassVar[str] = SCRIPT
    leaves: ClassVar[Leaves] = "files"
    bars_plan: ClassVar[bytes] = b""

    @property
    def keeps_checkpoints(self) -> bool:
        return self.has_checkpoints

    @property
    def data(self) -> dict[str, Any]:
        files = len(self.inputs) or len(self.folder)
        return {"files": files, "bytes": self.input_bytes, "script_files": dict(self.files)}

    @property
    def input_bytes(self) -> int:
        return sum(int(entry["bytes"]) for entry in self.inputs) or sum(file.bytes for file in self.folder)

    @property
    def entries(self) -> list[Mapping[str, Any]]:
        """Return its pinned inputs."""
        return list(self.inputs)

    @property
    def places(self) -> dict[str, Path]:
        """Return the files of this desk by sha256."""
        return {file.sha256: file.place for file in self.folder}

    def role(self, outputs: StackOutputs) -> tuple[str, str]:
        if self.job.script.secrets:  # the one role that reads them
            return outputs.script_role_id, outputs.script_profile_arn
        return super().role(outputs)

    def weighed(self, offers: Offers, account: Account) -> Load:
        machines, place = offers.priced.machines, account.place
        if place.binding and self.job.machine.instance:
            refuse_retired(machines, None)
        refuse_small_disks(machines, self.input_bytes, volume_gib=offers.disk.gib)
        gpus, nodes = self.job.gpus_each, self.job.machine.nodes
        work = Workload(pieces=self.pieces(), gpus=gpus, nodes=nodes)

        def known(at: Place) -> KnownTimes:
            return known_times(account.objects, self.names, self.sha256, at)

        if place.chip:  # its bucket has receipts of rehearsals alone
            return timed(work, KnownTimes(), offers, here=known(place))
        return timed(work, known(place), offers)

    def pieces(self) -> tuple[Piece, ...]:
        return pieces_of(self.job, (), timeframe="")

    def by_hash(self) -> ScriptWork:
        """Return the work with its inputs as an upload will pin them, but for their versions."""
        entries = tuple(
            {"path": file.path, **file.as_input(f"{DATA_PREFIX}{file.sha256}").pinned()}
            for file in self.folder
        )
        return replace(self, inputs=entries or self.inputs)

    def uploaded(self, account: Account, say: Callable[[str], None]) -> ScriptWork:
        if not self.folder:
            return self
        bucket, size = account.outputs.bucket, _megabytes(file.bytes for file in self.folder)
        say(f"uploading what is new of {_files(self.folder)}, {size}, to s3://{bucket}/{DATA_PREFIX} ...")
        return replace(self, inputs=tuple(upload_data(self.folder, account.access, bucket=bucket)))

    def task(
        self, record: RunRecord, account: Account, offers: Offers | None, planned: Sequence[Piece]
    ) -> Task:
        return script_task(
            record,
            self.job,
            self.files,
            self.inputs,
            sha256=self.sha256,
            planned=planned,
            devices="tested" if offers and not _has_no_gpu(record) else "found",
        )


def _has_no_gpu(record: RunRecord) -> bool:
    """Return whether a run's machine has no GPU to test: its types are all of one kind."""
    return any(rung.instance_type in cpu_types() for rung in record.ladder)


@dataclass(frozen=True, kw_only=True)
class Refresh(Work):
    """The refresh and check of a data set, before a scheduled training."""

    inputs: tuple[Input, ...]
    name: ClassVar[str] = "prepare"
    leaves: ClassVar[Leaves] = "candles"

    def role(self, outputs: StackOutputs) -> tuple[str, str]:
        return outputs.prepare_role_id, ""

    def task(
        self, record: RunRecord, account: Account, offers: Offers | None, planned: Sequence[Piece]
    ) -> Task:
        return refresh_task(record, self.job, self.inputs)


@dataclass(frozen=True, kw_only=True)
class Score(Work):
    """The scoring of models on windows of a data set, after a scheduled training. `documents`: what is
    asked; `scores_file`: what it leaves.
    """

    inputs: tuple[ManifestInput, ...]
    documents: Mapping[str, Any]
    scores_file: str
    name: ClassVar[str] = "score"
    leaves: ClassVar[Leaves] = "files"

    def role(self, outputs: StackOutputs) -> tuple[str, str]:
        return outputs.score_role_id, ""

    def task(
        self, record: RunRecord, account: Account, offers: Offers | None, planned: Sequence[Piece]
    ) -> Task:
        return score_task(self.job, self.inputs, self.documents, leaves=self.scores_file)


def timed(work: Workload, times: KnownTimes, offers: Offers, *, here: KnownTimes | None = None) -> Load:
    """Return work whose pieces the agent starts with their shares of the known times, and their rates.
    `here`: the times on this desk, where it takes a machine's place.
    """
    shares = here.shares if here else times.shares
    pieces = tuple(replace(piece, estimate=shares.get(piece.title, 1.0)) for piece in work.pieces)
    unknown = Rate(per_second=1.0, basis=NOT_ESTIMATED)

    def rates(known: KnownTimes) -> dict[str, Rate]:
        return {one.name: known.rates.get(one.name, unknown) for one in offers.priced.machines}

    return Load(work=replace(work, pieces=pieces), rates=rates(times), here=rates(here) if here else {})


def work_sha256(work: TrainingWork | ScriptWork, bucket: str) -> str:
    """Return the hash by which a run is resumed on the caller's own machine: of code, settings except the
    machine's, data, plan and bucket.
    """
    settings = {table: values for table, values in work.job.to_dict().items() if table != "machine"}
    read = sorted((str(entry.get("path", entry["key"])), str(entry["sha256"])) for entry in work.entries)
    known = (settings, work.code.sha256, bucket, read, hashlib.sha256(work.bars_plan).hexdigest())
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def _megabytes(sizes: Any) -> str:
    return f"{sum(sizes) / 1e6:.1f} MB"


def _files(files: Sequence[Any]) -> str:
    return f"{len(files):,} file{'' if len(files) == 1 else 's'}"
