"""Choose the training settings before workers start. Precedence: job, checkpoint, trial, default.

The card has the source of each setting. On a GPU every training of models that have several strategies
begins with a trial of a few seconds: one is used only if it agreed with plain modules on this chip.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainer.base.settings import WINDOWS
from trainer.base.strict_json import Unsound
from trainer.job.job import Job
from trainer.job.search import largest
from trainer.machines.choice import Choice
from trainer.machines.memory import FEWEST_STEPS, REFERENCE_BATCH, batch_limit, fit
from trainer.machines.ranks import place_on_gpus
from trainer.machines.shapes import (
    MODELS_AT_A_TIME,
    OPEN,
    Entry,
    of_a_device,
    shape_of,
    sound_entry,
    with_entry,
)
from trainer.train.checkpoint_files import MANIFEST, read_manifest
from trainer.train.inputs.survey import Survey
from trainer.train.packs.strategy import concrete, strategy_of
from trainer.train.tuning.trial import STRATEGIES, TRIAL_SECONDS, Trial, entry_of, has_choice, run_trial

PARTS = (*OPEN, "batch")

RunTrial = Callable[..., Trial]


@dataclass(frozen=True, kw_only=True)
class Site:
    """The devices a job trains on: `kind` is cuda or cpu."""

    kind: str
    profile: Choice
    workers: int
    workers_per_gpu: int = 1
    together: bool = False  # the workers train each model together, as ranks

    def trial_of(self, job: Job, surveyed: Survey) -> Job:
        """Return the job that a trial times: with as many models as one GPU trains at a time by the formula.

        Raises UsageError if not one fits.
        """
        if self.kind == "cpu" or not job.model.has_stacked_form:
            return job
        pieces, bars = len(surveyed.pieces), max(piece.bars for piece in surveyed.pieces)
        alone = of_a_device(job, devices=self.workers, pieces=pieces, on_gpu=True)
        most = alone.with_expert(pack=alone.expert.pack or MODELS_AT_A_TIME)
        return placed(job, self, tuned=most, bars=bars)


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The job with every setting chosen; `choice` has the settings with their sources."""

    job: Job
    choice: dict[str, Any]
    sharded: bool = False  # each rank holds a part of the model (FSDP2), which does not fit one GPU


def largest_batch(job: Job, site: Site, surveyed: Survey) -> int:
    """Return the largest batch that `batch = "auto"` may choose."""
    if job.model.reads != WINDOWS:
        return 0
    return batch_limit(
        site.profile.profile,
        job,
        memory_gib=site.profile.memory_gib,
        features=len(job.data.inputs),
        bars=max((piece.bars for piece in surveyed.pieces if piece.bars), default=0),
        windows=_fewest_windows(surveyed),
        timeframe=surveyed.data["timeframe"],
    )


def choose_settings(
    job: Job,
    *,
    site: Site,
    surveyed: Survey,
    checkpoints: Path,
    emit: Callable[[dict[str, Any]], None],
    run: RunTrial = run_trial,
) -> Chosen:
    """Choose the settings of a surveyed job; `checkpoints` may hold its own. Emits `tuning` and `tuned` if it
    runs a trial.

    Raises UsageError if one model is too large for the device.
    """
    kind, resumed = site.kind, _of_checkpoints(checkpoints, shape_of(job))
    limit = largest_batch(job, site, surveyed)
    entry, sources = _settled(job, site, surveyed, resumed, limit=limit, emit=emit, run=run)
    wanted = with_entry(job, entry) if entry else job
    if job.target.acts:
        wanted = wanted.with_expert(strategy=strategy_of(job, kind))
    elif kind == "cuda" and (entry is None or entry["strategy"] == "sequential"):
        wanted = wanted.with_expert(strategy="sequential")  # no other agreed with plain modules here
    tuned = wanted.with_train(batch=_batch(job, wanted, resumed, limit, windows=_fewest_windows(surveyed)))
    given, sharded = job.with_train(batch=tuned.train.batch), False
    if kind == "cuda" and site.together:
        tuned, sharded = placed_on_ranks(given, site, tuned=tuned, surveyed=surveyed)
    elif kind == "cuda":
        bars = max(piece.bars for piece in surveyed.pieces)
        given = given.with_expert(strategy=tuned.expert.strategy)
        tuned = placed(given, site, tuned=tuned, bars=bars, entry=entry)
    tuned = concrete(tuned, kind)
    if entry is None:  # the memory formula may allow less than the usual slice
        usual = concrete(job.with_train(batch=tuned.train.batch), kind)
        wanted, sources = usual.with_expert(strategy=tuned.expert.strategy, pack=tuned.expert.pack), {}
    where = {name: _source(name, job, tuned, wanted, sources) for name in PARTS}
    if resumed is not None and not job.train.batch and tuned.train.batch == resumed["batch"]:
        where["batch"] = resumed["from"].get("batch", "default")
    choice = {"profile": site.profile.profile.key, "shape": shape_of(job), **_parts(tuned)}
    if entry and entry["memory_per_model_gib"]:  # so that a resumed training fits as well
        choice["memory_per_model_gib"] = entry["memory_per_model_gib"]
    if site.together:
        choice["layout"] = "fsdp" if sharded else "ddp"
    return Chosen(job=tuned, choice={**choice, "torch": torch.__version__, "from": where}, sharded=sharded)


def _settled(
    job: Job,
    site: Site,
    surveyed: Survey,
    resumed: Mapping[str, Any] | None,
    *,
    limit: int,
    emit: Callable[[dict[str, Any]], None],
    run: RunTrial,
) -> tuple[Entry | None, Mapping[str, str]]:
    """Return the checkpoint's settings with their sources, else those of a trial, if there is something to
    compare.
    """
    key = site.profile.profile.key
    if resumed is not None and (resumed["profile"], resumed.get("torch")) == (key, torch.__version__):
        return sound_entry(resumed), resumed["from"]
    if not _is_tried(job, site):
        return None, {}
    timed = site.trial_of(job, surveyed)
    emit({"event": "tuning", "profile": key, "seconds": TRIAL_SECONDS})
    began = time.monotonic()
    trial = run(timed, device=site.kind, seconds=TRIAL_SECONDS, batch_limit=limit)
    entry = entry_of(trial.timings[0]) if trial.timings else None
    timings = [timing.to_dict() for timing in trial.timings]
    took = {"seconds": round(time.monotonic() - began, 1), "limit_seconds": TRIAL_SECONDS}
    chosen = {"entry": entry, "timings": timings, "failure": trial.failure, "unit": job.model.reads}
    emit({"event": "tuned", "profile": key, "shape": shape_of(timed), **chosen, **took})
    return entry, dict.fromkeys(PARTS, "tuned here")


def placed_on_ranks(job: Job, site: Site, *, tuned: Job, surveyed: Survey) -> tuple[Job, bool]:
    """Return the tuned job with slices and activation checkpointing that fit each rank's GPU, and whether
    ranks hold parts.

    Raises UsageError if even the parts do not fit.
    """
    placement = place_on_gpus(
        site.profile.profile,
        job,
        devices=site.workers,
        memory_gib=site.profile.memory_gib / site.workers_per_gpu,
        features=len(job.data.inputs),
        bars=max(piece.bars for piece in surveyed.pieces),
        tuned=tuned,
    )
    chosen = tuned.with_expert(
        strategy="sequential",
        pack=1,
        micro_batch=placement.micro_batch,
        activation_checkpointing=placement.activation_checkpointing,
    )
    return chosen, placement.sharded


def placed(job: Job, site: Site, *, tuned: Job, bars: int, entry: Entry | None = None) -> Job:
    """Return the tuned job with `pack`, `micro_batch` and activation checkpointing that fit one GPU of the
    site.

    Settings of `job` itself are kept. `bars` are those of the longest piece. Without an entry the memory
    formula decides. Raises UsageError if one model is too large.
    """
    size = fit(
        site.profile.profile,
        largest(job),
        memory_gib=site.profile.memory_gib / site.workers_per_gpu,
        features=len(job.data.inputs),
        bars=bars,
        tuned=largest(tuned),
        measured_gib=entry["memory_per_model_gib"] if entry else 0.0,
    )
    batch = job.train.batch
    return tuned.with_expert(
        pack=size.models,
        micro_batch=size.micro_batch if size.micro_batch < batch else tuned.expert.micro_batch,
        activation_checkpointing=size.activation_checkpointing,
    )


def _is_tried(job: Job, site: Site) -> bool:
    """Return whether to run a trial."""
    if site.together or not has_choice(job, site.kind):
        return False
    if site.kind == "cuda" and job.expert.strategy in STRATEGIES:
        return True  # whatever `tune` is: the strategy must first agree with plain modules
    return job.expert.tune == "always" or (job.expert.tune == "auto" and site.kind == "cuda")


def _batch(job: Job, tuned: Job, resumed: Mapping[str, Any] | None, limit: int, *, windows: int) -> int:
    """Return the batch: the job's, else a resumed run's own (on any chip), else the trial's or 256, within
    the limit.

    A checkpoint's batch that leaves too few steps in an epoch of `windows` windows was chosen for other data.
    """
    if job.train.batch:
        return job.train.batch
    if resumed and resumed["batch"] <= max(1, windows // FEWEST_STEPS):
        return int(resumed["batch"])
    return min(tuned.train.batch or REFERENCE_BATCH, limit)


def _fewest_windows(surveyed: Survey) -> int:
    return min((piece.windows for piece in surveyed.pieces if piece.bars), default=0)


def _of_checkpoints(folder: Path, shape: str) -> dict[str, Any] | None:
    """Return the choice in the newest checkpoint of this job's shape; None if there is none."""
    for path in sorted(folder.glob(f"*/*/{MANIFEST}"), key=lambda path: path.stat().st_mtime, reverse=True):
        with suppress(OSError, Unsound, KeyError, TypeError):  # damaged: try an older one
            choice = dict(read_manifest(path.parent).choice)
            if (
                choice["shape"] == shape
                and sound_entry(choice)
                and choice["profile"]
                and dict(choice["from"])
            ):
                return choice
    return None


def _source(name: str, job: Job, tuned: Job, wanted: Job, sources: Mapping[str, str]) -> str:
    """Return the source of a setting; `memory` if it was lowered to fit."""
    value = _parts(tuned)[name]
    if value == _parts(job)[name] not in ("auto", 0, False):
        return "job"
    return sources.get(name, "default") if value == _parts(wanted)[name] else "memory"


def _parts(job: Job) -> dict[str, Any]:
    """Return the job's values of what is chosen here."""
    return {**{name: getattr(job.expert, name) for name in OPEN}, "batch": job.train.batch}
