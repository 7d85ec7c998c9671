"""Checkpoints of one model on disk. The manifest is written last; a checkpoint without a sound one is not
read.

    <folder>/<model>/<batches>/data.safetensors    weights, buffers, average, Adam's moments, best weights
    <folder>/<model>/<batches>/manifest.json       position, hash of data.safetensors, its writer (`Made`)

A checkpoint belongs to a model, not to a pack: any strategy can resume it. If several ranks train one model,
each writes its shard instead of data.safetensors (`trainer.train.ranks.shards`). All random numbers
follow from seed and position (`seeds.py`), so the position is the state of every generator. No pickle:
reading a checkpoint runs no code.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import safetensors
import torch

from trainer.base.strict_json import Unsound
from trainer.job.job import Job
from trainer.job.model_settings import model_settings
from trainer.train.checkpoint_files import (
    MANIFEST,
    CheckpointManifest,
    Made,
    read_manifest,
    read_tensors,
    whole_in,
    write_tensors,
)
from trainer.train.loop import Report
from trainer.train.packs.pack import ModelState
from trainer.train.run import EARLIER, Run
from trainer.train.stages import is_of_a_stage

DATA = "data.safetensors"  # of a single process
KEPT = 2  # checkpoints per model: the second in case the newest is damaged
_POSITION = ("learning_rate", "epoch", "position", "loss_sum", "loss_windows", "skipped", "lowered")
_STATE = ("updates", "batches", "loss_scale", "good_steps", "steps")
_TENSORS = ("weights", "buffers", "average", "exp_avg", "exp_avg_sq")  # of the state, by the tensor's name
_BEST = ("best_loss", "best_epoch", "history", "first_steps")
_ASKED = ("epochs_asked", "scored_before")

Store = Callable[..., Path]  # with the arguments of `write`


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A whole checkpoint: the position of the run and the model's state."""

    fields: Mapping[str, Any]
    state: ModelState
    best_weights: dict[str, torch.Tensor]
    earlier: Mapping[str, torch.Tensor]  # what earlier stages left: `trainer.train.stages`

    def put_into(self, run: Run) -> None:
        """Set a fresh run to this position."""
        for name in (*_POSITION, *_BEST):
            setattr(run, name, self.fields[name])
        run.best_weights, run.resume, run.mates = self.best_weights, self.state, (EARLIER,)
        ended_before = self.fields["epochs_asked"] < run.epochs_asked  # and was scored, for all that is known
        run.scored_before = self.fields["scored_before"] + ended_before


def made_by(job: Job, *, data: Mapping[str, bytes], code_sha256: str, precision: str = "") -> Made:
    """Return what a run must share with the writer to resume: torch, the code that training reaches, the
    settings that determine the model, bars, precision.
    """
    settings = model_settings(job.to_dict())
    bars = hashlib.sha256()
    for name, content in data.items():
        bars.update(name.encode() + hashlib.sha256(content).digest())
    return Made(
        torch=torch.__version__,
        code=code_sha256,
        settings=hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest(),
        data=bars.hexdigest(),
        precision=precision,
    )


def write(folder: Path, run: Run, state: ModelState, made: Made, *, choice: Mapping[str, Any]) -> Path:
    """Write a checkpoint, then delete all but the newest two of the model; return its folder.

    `choice` is the training strategy and where it came from; a resumed run keeps it.
    """
    place = checkpoint_folder(folder, run, state)
    tensors = tensors_of_checkpoint(run, state)
    manifest = manifest_of(run, state, made, choice=choice)
    sha256 = write_tensors(place / DATA, tensors)
    replace(manifest, shards={DATA: sha256}, tensors=whole_in(DATA, tensors)).write(place)
    drop_old(place)
    return place


def checkpoint_folder(folder: Path, run: Run, state: ModelState) -> Path:
    """Return the folder of the checkpoint of this state."""
    return folder / run.member.name / f"{run.steps_before + state.batches:012d}"


def tensors_of_checkpoint(run: Run, state: ModelState) -> dict[str, torch.Tensor]:
    """Return the tensors of a checkpoint: `<part>.<name of the weight>`, such as `exp_avg.head.weight`."""
    parts = {**{part: getattr(state, part) for part in _TENSORS}, "best": run.best_weights}
    own = {f"{part}.{name}": tensor for part, named in parts.items() for name, tensor in named.items()}
    return {**own, **run.earlier}


def manifest_of(run: Run, state: ModelState, made: Made, *, choice: Mapping[str, Any]) -> CheckpointManifest:
    """Return the manifest of a checkpoint whose tensors are still to be written."""
    return CheckpointManifest(
        model=run.member.name,
        made=made,
        choice=choice,
        state={name: getattr(state, name) for name in _STATE},
        run={name: getattr(run, name) for name in (*_POSITION, *_BEST, *_ASKED)},
        shards={},
        tensors={},
    )


def drop_old(place: Path) -> None:
    """Delete a model's other checkpoints after the one in `place` was written, except the last before it.

    Later ones were not resumed: they are damaged, or of another job, data or code. Kept, they would push this
    run's out.
    """
    others = sorted(other for other in place.parent.iterdir() if other.is_dir())
    number = others.index(place)
    for other in (*others[: max(0, number + 1 - KEPT)], *others[number + 1 :]):
        shutil.rmtree(other)


def newest(folder: Path, model: str, made: Made) -> Checkpoint | None:
    """Return the newest complete checkpoint of a model that a run of `made` can continue, or None."""
    for place in _places(folder, model):
        if (checkpoint := _read(place, made)) is not None:
            return checkpoint
    return None


def newest_folder(folder: Path, model: str, made: Made) -> Path | None:
    """Return the folder of the checkpoint that `newest` returns."""
    return next((place for place in _places(folder, model) if _read(place, made) is not None), None)


def why_none_continues(folder: Path, model: str, made: Made) -> str:
    """Return why a run of `made` can't continue the newest checkpoint of a model, by the manifests alone;
    empty if it can continue one, or if there is none.
    """
    reasons = []
    for place in _places(folder, model):
        try:
            reasons.append(read_manifest(place).made.difference(made))
        except (OSError, Unsound) as error:
            reasons.append(f"its manifest is damaged: {error}")
    return reasons[0] if all(reasons) and reasons else ""


def _places(folder: Path, model: str) -> list[Path]:
    """Return the folders of a model's checkpoints that have a manifest, the newest first."""
    return [path.parent for path in sorted((folder / model).glob(f"*/{MANIFEST}"), reverse=True)]


def has_any(folder: Path, model: str) -> bool:
    """Return whether a model has a checkpoint, sound or not."""
    return bool(_places(folder, model))


def forget(folder: Path, model: str) -> None:
    """Delete the checkpoints of a finished model. The folder itself stays: the agent sends it to S3."""
    shutil.rmtree(folder / model, ignore_errors=True)


def _read(place: Path, made: Made) -> Checkpoint | None:
    """Read one checkpoint; None if it is incomplete, damaged, or of another writer than a run of `made`."""
    try:
        manifest = read_manifest(place)
        return checkpoint_from(manifest, read_tensors(place, manifest)) if manifest.made == made else None
    except (OSError, Unsound, safetensors.SafetensorError):
        return None


def checkpoint_from(manifest: CheckpointManifest, tensors: Mapping[str, torch.Tensor]) -> Checkpoint:
    """Return the checkpoint made of a manifest and its tensors. Raises Unsound if either has other fields
    than a checkpoint.
    """
    if set(manifest.state) != set(_STATE) or set(manifest.run) != {*_POSITION, *_BEST, *_ASKED}:
        raise Unsound("the manifest has other fields than a checkpoint's")
    parts: dict[str, dict[str, torch.Tensor]] = {part: {} for part in (*_TENSORS, "best")}
    earlier = {key: tensor for key, tensor in tensors.items() if is_of_a_stage(key)}
    for key, tensor in tensors.items():
        if key in earlier:
            continue
        part, _, name = key.partition(".")
        if part not in parts:
            raise Unsound(f"{key[:80]} is not a tensor of a checkpoint")
        parts[part][name] = tensor
    best = parts.pop("best")
    named: dict[str, Any] = {**parts, **manifest.state}
    state = ModelState(**named)
    return Checkpoint(fields=manifest.run, state=state, best_weights=best, earlier=earlier)


class CheckpointWriter:
    """Write checkpoints on a separate thread, one at a time. Training waits for the copy of the state, not
    for the disk.

    A pack's models are due together; each may have one state waiting for the disk. If the disk is slower than
    the interval, training waits, so that memory does not grow. Each `checkpoint` event has the seconds spent
    on copying, waiting and writing.
    """

    def __init__(
        self, folder: Path, report: Report, *, choice: Mapping[str, Any] | None = None, store: Store = write
    ) -> None:
        """`choice` is stored with each checkpoint; `store` writes one: `write`, or that of ranks."""
        self._folder, self._report, self._store = folder, report, partial(store, choice=choice or {})
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoints")
        self._writing: dict[str, Future[None]] = {}  # by model

    def submit(self, run: Run, state: ModelState, made: Made, *, snapshot_seconds: float) -> None:
        """Queue this state. `run` is a copy that nothing else changes."""
        began = time.perf_counter()
        self._finish(run.member.name)
        training = {"snapshot_seconds": snapshot_seconds, "waited_seconds": time.perf_counter() - began}
        self._writing[run.member.name] = self._thread.submit(self._write, run, state, made, training)

    def flush(self) -> None:
        """Wait until everything queued is on disk. Raises the writer's errors except OSError, which is
        reported as an event.
        """
        for model in list(self._writing):
            self._finish(model)

    def _finish(self, model: str) -> None:
        if model in self._writing:
            self._writing.pop(model).result()

    def _write(self, run: Run, state: ModelState, made: Made, training: Mapping[str, float]) -> None:
        identity = {"model": run.member.name, "piece": run.title}
        began = time.perf_counter()
        try:
            place = self._store(self._folder, run, state, made)
        except OSError as error:
            # A full disk costs the checkpoint, not the model.
            self._report({"event": "checkpoint_failed", **identity, "reason": str(error)})
            return
        cost = {**training, "write_seconds": time.perf_counter() - began}
        seconds = {name: round(value, 6) for name, value in cost.items()}
        written = {"event": "checkpoint", **identity, "folder": f"{place.parent.name}/{place.name}"}
        self._report({**written, **seconds})
