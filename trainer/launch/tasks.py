"""Tasks of a launch's nodes: a training, a user's script, the refresh of a data set, or scores of models.

Each is a command with its rights (`runs.manifest`), its inputs by version and hash, and the documents that
speed it up. A further command is one more function here, or a `Task` made elsewhere.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Literal

from trainer.aws.objects import Objects
from trainer.aws.place import place_named
from trainer.aws.stack_outputs import script_secrets_path, secrets_path
from trainer.data.side_names import reads_index, split_sides, symbols_beside
from trainer.data.table import FETCH, SUFFIXES
from trainer.job.job import Job
from trainer.job.pieces import kind_of, pieces_of
from trainer.job.pieces.piece import Piece
from trainer.job.script import KIND
from trainer.job.search import text_of
from trainer.job.start_model import start_model_of
from trainer.launch.inputs import ChosenCandles, Input
from trainer.launch.knowledge import own_profiles, profiles_of
from trainer.launch.preflight import Offers
from trainer.launch.uploads import DeskFile, pinned_start_model
from trainer.machines.chips import user_tables
from trainer.runs.manifest import ARRIVING_FILE, DATA, GIVEN, Command, ManifestInput, ManifestPiece
from trainer.runs.record import RunRecord
from trainer.runs.store import bars_plan_key

PLAN_FILE = "plan.json"
UNCHECKED_FILE = "unchecked.json"  # of a refresh: the files of the set that no index entry describes
REFRESH_SECONDS = 1500.0  # within the half hour of a prepare run
_EVENTS = ("--out", "$MAYFLY_OUT", "--events", "$EVENTS")
TRAINER = (
    *("$PYTHON", "-m", "trainer.train", "--job", "$GIVEN/job.json", "--data", "$MAYFLY_DATA", *_EVENTS),
    *("--checkpoints", "$MAYFLY_CHECKPOINTS", "--machine", "$GIVEN/machine.json"),
    *("--finished", "$GIVEN/finished.json"),
    *("--workers", "$MAYFLY_DEVICES", "--device", "$DEVICE"),
)
# The files by which one of several nodes knows the others, and what was fetched of their models.
CLUSTER = ("--cluster", "$CLUSTER", "--carried", "$GIVEN/carried.json")
_BY_GIVEN = ("--data", "$MAYFLY_DATA", *_EVENTS, "--given", "$GIVEN")
REFRESH = ("$PYTHON", "-m", "trainer.node.refresh", *_BY_GIVEN)
SCORE = ("$PYTHON", "-m", "trainer.train.score", *_BY_GIVEN)


@dataclass(frozen=True, kw_only=True)
class Task:
    """A command with all that it reads. `job` has no path of the desk."""

    job: Job
    command: Command
    inputs: tuple[ManifestInput, ...] = ()
    documents: Mapping[str, Any] = field(default_factory=dict)
    pieces: tuple[ManifestPiece, ...] = ()  # that the agent starts
    bars_plan: bytes = b""  # plan.json, an input that is written with the manifest


def training_task(
    record: RunRecord,
    job: Job,
    candles: ChosenCandles,
    objects: Objects,
    offers: Offers | None = None,
    *,
    start_model: DeskFile | None = None,
) -> Task:
    """Return the training of a job, which has its symbols and timeframe; without `offers` on this machine.

    `start_model`: the job's, while it is not uploaded. Raises DataError if the bucket lacks it otherwise.
    """
    job = job.without_desk()
    # A model of several series needs all files, and all models need side files, and those of an index.
    sides = split_sides(job.data.further)[1]
    whole = kind_of(job).one_split or reads_index(sides) or any(side.file for side in sides)
    arrives = bool(candles.bars_plan) and not whole
    order = _need(candles, symbols_beside(sides, ())) if arrives else _key
    inputs = [_candle_file(item) for item in sorted(candles.inputs, key=order)]
    if candles.bars_plan:  # without one, the node makes it
        sha256, size = hashlib.sha256(candles.bars_plan).hexdigest(), len(candles.bars_plan)
        key, path = bars_plan_key(record.run_id), f"{GIVEN}/{PLAN_FILE}"
        inputs.append(ManifestInput(path=path, key=key, version_id="", sha256=sha256, bytes=size))
    if (start := start_model_of(job)) and (entry := pinned_start_model(start, objects, start_model)):
        job = start.put(job, path=entry["sha256"])
        inputs.append(ManifestInput(path=f"{GIVEN}/{entry['sha256']}", **entry))
    command = Command(
        name="train",
        title="the trainer",
        words=(
            *TRAINER,
            *(("--plan", f"$GIVEN/{PLAN_FILE}") if candles.bars_plan else ()),
            *(("--arriving", f"$GIVEN/{ARRIVING_FILE}") if arrives else ()),
            *(CLUSTER if record.num_nodes > 1 else ()),
        ),
        user="agent",
        network="internet and metadata",
        variables={},
        secrets={},
        files={},
        requirements="",
        devices="tested",
        gpus=0.0,
        seconds=0.0,
        restarts=0,
        metrics={},
        tells="events",
        leaves="models",
        out_bytes=0,
        beside=("training_results.json", "trace/*.json.gz", *(() if candles.bars_plan else (PLAN_FILE,))),
        sha256="",
    )
    documents: dict[str, Any] = {"gpu_profiles.json": user_tables()}
    if offers:
        used = {rung.instance_type for rung in record.ladder}
        machines = [machine for machine in offers.priced.machines if machine.name in used]
        profiles = profiles_of(job, machines, place_named(record.place))
        documents = {"gpu_profiles.json": own_profiles(job, profiles)}
    return Task(
        job=job, command=command, inputs=tuple(inputs), documents=documents, bars_plan=candles.bars_plan
    )


def script_task(
    record: RunRecord,
    job: Job,
    files: Mapping[str, str],
    inputs: Iterable[Mapping[str, Any]],
    *,
    sha256: str,
    planned: Sequence[Piece] = (),
    devices: Literal["found", "tested"] = "tested",
) -> Task:
    """Return the run of a job's script. `files`: path -> sha256 of its files. `inputs` have their paths.

    `sha256`: of all that its duration depends on. `planned`: its pieces with their estimates.
    """
    script, path = job.script, script_secrets_path(record.project, record.stack)
    command = Command(
        name=KIND,
        title="the script",
        words=tuple(script.words),
        user="own",
        network="internet",
        variables=script.variables,
        secrets={name: f"{path}{name}" for name in script.secrets},
        files=dict(files),
        requirements=script.requirements,
        devices=devices,
        gpus=job.gpus_each,
        seconds=0.0,
        restarts=script.restarts,
        metrics=job.search.metrics or script.metrics,
        tells="numbers",
        leaves="files",
        out_bytes=int(script.out_gib * 2**30),
        beside=(),
        sha256=sha256,
    )
    made = {piece.title: piece for piece in pieces_of(job, (), timeframe="")}
    estimates = {piece.title: piece.estimate for piece in planned}
    return Task(
        job=job.without_desk(),
        command=command,
        inputs=tuple(ManifestInput(**{**item, "path": f"{DATA}/{item['path']}"}) for item in inputs),
        pieces=tuple(
            ManifestPiece(
                **vars(piece),
                trial=made[piece.piece].trial,
                values={key: text_of(value) for key, value in made[piece.piece].values},
                estimate=estimates.get(piece.piece, 1.0),
            )
            for piece in record.pieces
        ),
    )


def refresh_task(record: RunRecord, job: Job, inputs: Sequence[Input]) -> Task:
    """Return the refresh of a job's data set: its script, and the check of its new files."""
    candles = [item for item in inputs if item.summary or item.key.lower().endswith(SUFFIXES)]
    path = secrets_path(record.project, record.stack)
    command = Command(
        name="prepare",
        title="the fetch of new bars" if job.data.refresh == FETCH else "the refresh script",
        words=REFRESH,
        user="agent",
        network="internet and metadata",
        variables={},
        secrets={name: f"{path}{name}" for name in job.data.secrets},
        files={},
        requirements="",
        devices="none",
        gpus=0.0,
        seconds=REFRESH_SECONDS,
        restarts=0,
        metrics={},
        tells="events",
        leaves="candles",
        out_bytes=0,
        beside=(),
        sha256="",
    )
    unchecked = [_candle_file(item).path.removeprefix(f"{DATA}/") for item in candles if not item.summary]
    return Task(
        job=job,
        command=command,
        inputs=tuple(map(_candle_file, candles)),
        documents={UNCHECKED_FILE: unchecked},
    )


def score_task(
    job: Job, inputs: Sequence[ManifestInput], documents: Mapping[str, Any], *, leaves: str
) -> Task:
    """Return the scoring of models: `inputs` has them and the candles, `leaves` names the file of scores."""
    command = Command(
        name="score",
        title="the scorer",
        words=SCORE,
        user="agent",
        network="internet and metadata",
        variables={},
        secrets={},
        files={},
        requirements="",
        devices="none",
        gpus=0.0,
        seconds=0.0,
        restarts=0,
        metrics={},
        tells="events",
        leaves="files",
        out_bytes=0,
        beside=(leaves,),
        sha256="",
    )
    return Task(job=job, command=command, inputs=tuple(inputs), documents=documents)


def _key(item: Input) -> tuple[float, str, str]:
    return 0.0, "", item.key


def _need(candles: ChosenCandles, beside: Collection[str]) -> Callable[[Input], tuple[float, str, str]]:
    """Return the order in which the models of a run need its files: first those of `beside`, symbols that all
    of them read, then the longest model's, as the queue has them, and all files of one after another.
    """

    def place(item: Input) -> tuple[float, str, str]:
        holds = {str(entry["symbol"]) for entry in item.summary.get("holds", ())}
        if first_of_all := holds & {*beside}:
            return -math.inf, min(first_of_all), item.key
        held = holds & candles.bars.keys()
        first = min(((-candles.bars[symbol], symbol) for symbol in held), default=(0.0, ""))
        return *first, item.key

    return place


def _candle_file(item: Input) -> ManifestInput:
    return ManifestInput(path=f"{DATA}/{PurePosixPath(item.key).name}", **item.pinned())
