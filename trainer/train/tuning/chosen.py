"""Choose the training settings before workers start. Precedence: job, checkpoint, cached measurement, new
trial, default.

The card has the source of each setting. `tune = "auto"` runs a trial before a run of ten minutes or more; on
a GPU, of models that have strategies for it, before a run of five seconds. A strategy for GPUs is used only
after a trial in which it agreed with plain modules on this chip.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from trainer.base.settings import WINDOWS
from trainer.base.strict_json import Unsound
from trainer.job.job import Job
from trainer.machines.choice import Choice
from trainer.machines.measurements import (
    OPEN,
    Entry,
    known_here,
    of_a_device,
    shape_of,
    sound_entry,
    with_entry,
)
from trainer.machines.memory import FEWEST_STEPS, REFERENCE_BATCH, batch_limit, fit
from trainer.machines.ranks import place_on_gpus
from trainer.machines.rates import rate_of
from trainer.train.checkpoint_files import MANIFEST, read_manifest
from trainer.train.inputs.survey import Survey
from trainer.train.packs.strategy import concrete
from trainer.train.tuning.tune import Tuning, candidates, entry_of, run_tuner, trial_seconds

LONG_RUN_SECONDS = 600.0  # a trial is 2 % of it
# Of models with strategies for GPUs, estimated at about the fastest one's rate. An H100 trains plain modules
# at an eighth of it (docs/benchmarks.md, 2026-11-26): the run would take 40 s, and a trial takes 20.
LONG_RUN_OF_STACKED_SECONDS = 5.0
PARTS = (*OPEN, "batch")

RunTuner = Callable[..., Tuning]


@dataclass(frozen=True, kw_only=True)
class Site:
    """The devices a job trains on: `kind` is cuda or cpu."""

    kind: str
    profile: Choice
    workers: int
    workers_per_gpu: int = 1
    together: bool = False  # the workers train each model together, as ranks

    def trial_of(self, job: Job, surveyed: Survey) -> Job:
        """Return the job that a trial times on one device."""
        pieces = len(surveyed.pieces)
        return of_a_device(job, devices=self.workers, pieces=pieces, on_gpu=self.kind == "cuda")


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The job with every setting chosen; `choice` has the settings with their sources."""

    job: Job
    choice: dict[str, Any]
    sharded: bool = False  # each rank holds a part of the model (FSDP2), which does not fit one GPU


def run_estimate(job: Job, site: Site, surveyed: Survey) -> tuple[float, int]:
    """Return the estimated seconds of a surveyed job's run, and the largest batch that `batch = "auto"` may
    choose.

    The estimate uses the rate measured for the job's shape on this machine, else the profile's.
    """
    profile, pieces = site.profile.profile, [piece for piece in surveyed.pieces if piece.bars]
    limit = 0
    if job.model.reads == WINDOWS:
        limit = batch_limit(
            profile,
            job,
            memory_gib=site.profile.memory_gib,
            features=len(job.data.inputs),
            bars=max((piece.bars for piece in pieces), default=0),
            windows=_fewest_windows(surveyed),
            timeframe=surveyed.data["timeframe"],
        )
    rate = rate_of(
        profile,
        job,
        known_here(profile.key, site.trial_of(job, surveyed), torch=torch.__version__),
        torch=torch.__version__,
    )
    devices = site.workers / site.workers_per_gpu  # workers that share a GPU share its rate
    visits = sum(piece.estimate for piece in pieces)
    return visits / rate.with_models(len(surveyed.pieces) / devices) / devices, limit


def choose_settings(
    job: Job,
    *,
    site: Site,
    surveyed: Survey,
    checkpoints: Path,
    emit: Callable[[dict[str, Any]], None],
    run: RunTuner = run_tuner,
) -> Chosen:
    """Choose the settings of a surveyed job; `checkpoints` may hold its own. Emits `tuning` and `tuned` if it
    runs a trial.

    Raises UsageError if one model is too large for the device.
    """
    kind, resumed = site.kind, _of_checkpoints(checkpoints, shape_of(job))
    run_seconds, limit = run_estimate(job, site, surveyed)
    trial = site.trial_of(job, surveyed)
    entry, sources = _measured(trial, site, resumed, run_seconds=run_seconds, limit=limit, emit=emit, run=run)
    wanted = with_entry(job, entry) if entry else job
    if entry is None and kind == "cuda" and job.expert.strategy != "auto":
        wanted = job.with_expert(strategy="sequential")  # no other was compared with plain modules here
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
    shapes = {"shape": shape_of(job), "timed_as": shape_of(trial)}
    choice = {"profile": site.profile.profile.key, **shapes, **_parts(tuned)}
    if entry and entry["memory_per_model_gib"]:  # so that a resumed training fits as well
        choice["memory_per_model_gib"] = entry["memory_per_model_gib"]
    if site.together:
        choice["layout"] = "fsdp" if sharded else "ddp"
    return Chosen(job=tuned, choice={**choice, "torch": torch.__version__, "from": where}, sharded=sharded)


def _measured(
    trial: Job,
    site: Site,
    resumed: Mapping[str, Any] | None,
    *,
    run_seconds: float,
    limit: int,
    emit: Callable[[dict[str, Any]], None],
    run: RunTuner,
) -> tuple[Entry | None, Mapping[str, str]]:
    """Return the fastest settings known, with their sources: the checkpoint's, else those measured here
    before, else those of a trial, if one is worth its time.
    """
    kind, key = site.kind, site.profile.profile.key
    if resumed is not None and (resumed["profile"], resumed.get("torch")) == (key, torch.__version__):
        return sound_entry(resumed), resumed["from"]
    if (known := known_here(key, trial, torch=torch.__version__)) is not None:
        return known, dict.fromkeys(PARTS, "remembered")
    if not _is_worth(trial, kind, run_seconds):
        return None, {}
    seconds = trial_seconds(trial, kind)
    emit({"event": "tuning", "profile": key, "seconds": seconds, "run_seconds": round(run_seconds)})
    began = time.monotonic()
    tuning = run(trial, device=kind, seconds=seconds, batch_limit=limit)
    entry = entry_of(tuning.timings[0]) if tuning.timings else None
    outcome = _tuned(tuning, entry, trial, limit_seconds=seconds)
    emit({"event": "tuned", "profile": key, **outcome, "seconds": round(time.monotonic() - began, 1)})
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
        job,
        memory_gib=site.profile.memory_gib / site.workers_per_gpu,
        features=len(job.data.inputs),
        bars=bars,
        tuned=tuned,
        measured_gib=entry["memory_per_model_gib"] if entry else 0.0,
    )
    batch = job.train.batch
    return tuned.with_expert(
        pack=size.models,
        micro_batch=size.micro_batch if size.micro_batch < batch else tuned.expert.micro_batch,
        activation_checkpointing=size.activation_checkpointing,
    )


def _is_worth(job: Job, kind: str, run_seconds: float) -> bool:
    """Return whether to run a trial."""
    if kind == "cuda" and job.model.has_stacked_form and job.expert.strategy in ("streams", "fused"):
        return True  # whatever `tune` is: the strategy must first agree with plain modules
    if job.expert.tune == "never" or (job.train.batch and len(candidates(job, kind)) < 2):
        return False
    long = LONG_RUN_OF_STACKED_SECONDS if kind == "cuda" and job.model.has_stacked_form else LONG_RUN_SECONDS
    return job.expert.tune == "always" or run_seconds >= long


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


def _tuned(tuning: Tuning, entry: Entry | None, job: Job, *, limit_seconds: float) -> dict[str, Any]:
    timed = [asdict(timing) for timing in tuning.timings]
    return {
        "shape": shape_of(job),
        "unit": job.model.reads,
        "entry": entry,
        "candidates": [one for one in timed if not one["excluded"]],
        "excluded": [
            {"candidate": one["candidate"], "reason": one["excluded"]} for one in timed if one["excluded"]
        ],
        "limit_seconds": limit_seconds,
        "failure": tuning.failure,
    }
