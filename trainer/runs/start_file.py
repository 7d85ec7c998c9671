"""The start file of an attempt: what earlier attempts finished, which checkpoints it begins with, and which
instances do its work. Its caller writes it (`control.carry`), the node reads it.

It lies where no node can write (`store.start_key`): created once, before the first call that could make an
instance, then given the ids whose word counts. The objects it names are copies that its caller made of
snapshots that verified, so that what an earlier machine writes later changes nothing. Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from trainer.aws.objects import Stored
from trainer.base.cluster import MOST_NODES, Cluster, private_address
from trainer.base.errors import ConfigError
from trainer.base.strict_json import Fields, Unsound, read_object
from trainer.job.model_names import is_model_file
from trainer.runs.keys import of_experiment
from trainer.runs.reports import (
    MOST_COUNT,
    MOST_FILE_SIZE,
    MOST_FILES,
    MOST_MODELS,
    MOST_RESULT_BYTES,
    model_entry,
    read_checkpoints,
    read_failed,
    read_outputs,
    script_entry,
    trial_end,
)
from trainer.runs.snapshots import SnapshotFile, StoredObject, flaws_of, read_file
from trainer.runs.store import carried_key, start_key

FORMAT = 1
MOST_START_BYTES = MOST_RESULT_BYTES * 3 // 2  # it holds what a result does, files and checkpoints besides
INSTANCE_ID = "i-[0-9a-z]+"


@dataclass(frozen=True, kw_only=True)
class CarriedObject(StoredObject):
    """A copy of one object of an earlier attempt's snapshot, in the version that its caller verified."""

    key: str


@dataclass(frozen=True, kw_only=True)
class StartFile:
    """The work and the checkpoints that an attempt begins with, and its instances."""

    run_id: str
    attempt: int
    # entries of models, with a key, and of pieces that the agent started, as results have them
    finished: tuple[Mapping[str, Any], ...] = ()
    failed: tuple[Mapping[str, Any], ...] = ()  # pieces that failed in earlier attempts, with the reason
    outputs: tuple[Mapping[str, Any], ...] = ()  # files that earlier attempts left in MAYFLY_OUT
    objects: tuple[CarriedObject, ...] = ()
    files: tuple[SnapshotFile, ...] = ()
    sent: Mapping[str, int] = field(default_factory=dict)  # checkpoints by earlier attempts, counted
    instances: tuple[str, ...] = ()  # whose word counts, node 0 first; (): CreateFleet has not answered
    addresses: tuple[str, ...] = ()  # of several instances: their private IPv4 addresses, in the same order
    # by unfinished piece: the most steps of its training that earlier attempts reported (`runs.repeated`)
    reached: Mapping[str, int] = field(default_factory=dict)
    steps_twice: int = 0  # that those attempts computed a second time

    @property
    def models(self) -> tuple[Mapping[str, Any], ...]:
        """Return the finished models."""
        return tuple(entry for entry in self.finished if "key" in entry)

    @property
    def scripts(self) -> tuple[Mapping[str, Any], ...]:
        """Return the ends of the finished pieces that an agent started."""
        return tuple(entry for entry in self.finished if "key" not in entry)

    @property
    def pieces(self) -> tuple[str, ...]:
        """Return the names of the finished pieces."""
        return tuple(str(entry["piece"]) for entry in self.finished)

    @property
    def trials(self) -> tuple[Mapping[str, Any], ...]:
        """Return the ends of the finished trials of a search, as a training reads them."""
        return tuple(trial_end(entry) for entry in self.scripts if "trial" in entry)

    @property
    def over(self) -> tuple[str, ...]:
        """Return the names of the pieces that are not begun again: those that are finished, or failed."""
        return (*self.pieces, *(str(entry["piece"]) for entry in self.failed))

    def cluster_of(self, instance_id: str) -> Cluster | None:
        """Return the attempt's nodes as one of them is told of them; None for one node, and before their
        addresses are known.
        """
        if not self.addresses or instance_id not in self.instances:
            return None
        return Cluster(node=self.instances.index(instance_id), addresses=self.addresses)


def start_to_json(start: StartFile) -> bytes:
    """Write a start file."""
    values = asdict(start)
    if not start.addresses:
        del values["addresses"]
    return json.dumps({"format": FORMAT, **values}).encode()  # indented, models take 40 % more


def read_start(body: bytes, *, run_id: str, attempt: int) -> StartFile:
    """Read the start file of an attempt. Raises Unsound for a malformed one, or another attempt's."""
    fields = read_object(body, most_bytes=MOST_START_BYTES, name="the start file")
    if fields.values.get("format") != FORMAT:
        raise Unsound(f"the start file has format {str(fields.values.get('format'))[:40]}, not {FORMAT}")
    if (fields.text("run_id"), fields.whole("attempt")) != (run_id, attempt):
        raise Unsound(f"the start file is not that of attempt {attempt} of run {run_id}")
    reached = fields.table("reached", most=MOST_MODELS).entries()
    start = StartFile(
        run_id=run_id,
        attempt=attempt,
        finished=tuple(map(_finished, fields.rows("finished", most=MOST_MODELS))),
        failed=tuple(map(read_failed, fields.rows("failed", most=MOST_MODELS))),
        outputs=read_outputs(fields, name="outputs"),
        objects=tuple(_object(item, run_id, attempt) for item in fields.rows("objects", most=MOST_FILES)),
        files=tuple(map(read_file, fields.rows("files", most=MOST_FILES))),
        sent=read_checkpoints(fields.table("sent")),
        instances=tuple(_ids(fields)),
        addresses=tuple(_addresses(fields)),
        reached={piece: steps.whole(most=MOST_COUNT) for piece, steps in reached.items()},
        steps_twice=fields.whole("steps_twice", 0, most=MOST_COUNT),
    )
    _check_consistency(start)
    return start


def stored_start(stored: Stored | None, run_id: str, attempt: int) -> StartFile | None:
    """Read a stored start file, None if there is none. Raises ConfigError for a malformed one, which no node
    can have written.
    """
    if stored is None:
        return None
    try:
        return read_start(stored.body, run_id=run_id, attempt=attempt)
    except Unsound as error:
        what, do = f"cannot read {stored.key}", "Its earlier versions are in the bucket."
        raise ConfigError(what, why=str(error), do=do) from error


def check_keys(start: StartFile, runs: Collection[str]) -> None:
    """Raise ConfigError if a start file names a model or a file of another run than these."""
    for entry in (*start.models, *start.outputs):
        if (of_experiment(str(entry["key"])) or ("",))[0] not in runs:
            why = f"it names {str(entry['key'])[:120]!r}, which is not of {' or '.join(sorted(runs)[:3])}"
            do = "Its earlier versions are in the bucket."
            raise ConfigError(f"cannot use {start_key(start.run_id, start.attempt)}", why=why, do=do)


def _finished(fields: Fields) -> dict[str, Any]:
    if fields.values.get("key") is None:
        entry = script_entry(fields)
        if not entry["done"]:
            raise Unsound(f"{fields.name} is a piece that is not done")
        return entry
    made = of_experiment(fields.text("key", most=1024))
    if made is None or not is_model_file(made[2]):
        raise Unsound(f"{fields.name}.key is {fields.text('key', most=1024)[:120]!r}, not a model's")
    return model_entry(fields)


def _object(fields: Fields, run_id: str, attempt: int) -> CarriedObject:
    sha256 = fields.value("sha256").sha256()
    key, version_id = fields.text("key", most=1024), fields.text("version_id", most=1024)
    if key != carried_key(run_id, attempt, sha256) or not version_id:
        raise Unsound(f"{fields.name}.key is {key[:120]!r}, not that of the attempt's copy in a version")
    return CarriedObject(
        sha256=sha256, size=fields.whole("size", most=MOST_FILE_SIZE), key=key, version_id=version_id
    )


def _ids(fields: Fields) -> Iterator[str]:
    for item in fields.value("instances", []).items(most=MOST_NODES):
        if not (instance_id := item.text(pattern=INSTANCE_ID)):
            raise Unsound(f"{item.name} names no instance")
        yield instance_id


def _addresses(fields: Fields) -> Iterator[str]:
    for item in fields.value("addresses", []).items(most=MOST_NODES):
        yield private_address(item.text())


def _check_consistency(start: StartFile) -> None:
    """Raise Unsound unless its files and objects fit, and no piece or instance occurs twice."""
    wrong = {
        **flaws_of(start.objects, start.files),
        "a piece twice": len(set(start.over)) < len(start.over),
        "an instance twice": len(set(start.instances)) < len(start.instances),
        "an address twice": len(set(start.addresses)) < len(start.addresses),
        "not one address for each instance": len(start.addresses) not in (0, len(start.instances)),
    }
    for what, is_so in wrong.items():
        if is_so:
            raise Unsound(f"the start file has {what}")
