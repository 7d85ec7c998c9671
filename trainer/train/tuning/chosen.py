"""How a training trains, decided once before any worker starts: by its job, else by its own checkpoints, else by what is known
of this chip, else by a tuner that looks now, else by the device's default. Where each part is from stands in the card.

Owns when it is worth to look: 2 % of the estimated run and 60 s are the most that the tuner takes, and below 12 s it is not
started; a job that asks for it gives it the 60 s. A strategy for GPUs is never taken unless the tuner has seen it agree with
plain modules on this chip.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from trainer.data.features import FEATURES
from trainer.errors import UsageError
from trainer.gpu_profiles.choice import Choice
from trainer.gpu_profiles.memory import REFERENCE_BATCH, batch_limit
from trainer.gpu_profiles.rates import rate_of
from trainer.gpu_profiles.tuned import OPEN, Entry, key_of, known_here, shape_of, sound, with_entry
from trainer.job import Job, with_settings
from trainer.settings import WINDOWS
from trainer.train.packs.strategy import concrete
from trainer.train.survey import Survey
from trainer.train.tuning.placement import placed
from trainer.train.tuning.tune import MOST_SECONDS, candidates, entry_of
from trainer.train.tuning.tuner_process import Tuning, run_tuner

SHARE = 0.02  # of the estimated run
LEAST_SECONDS = 12.0  # for less, torch is hardly loaded before the time is up; a run of ten minutes has so much

RunTuner = Callable[..., Tuning]


@dataclass(frozen=True, kw_only=True)
class Prospect:
    """What lies ahead: how long the run is estimated to take, and how large `batch = "auto"` may become."""

    run_seconds: float
    batch_limit: int

    @property
    def tuner_seconds(self) -> float:
        """Return the most that a tuner may take."""
        return min(MOST_SECONDS, SHARE * self.run_seconds)


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where a job trains: `kind` is cuda or cpu."""

    kind: str
    profile: Choice
    workers: int
    workers_per_gpu: int = 1


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The job as it will be trained, with nothing left open; `choice` says the same, and of each part where it is from."""

    job: Job
    choice: dict[str, Any]


def look_ahead(job: Job, site: Site, found: Survey) -> Prospect:
    """Return what lies ahead of a surveyed job: its windows by the rate that is remembered of them here, else the profile's."""
    choice = site.profile
    visits = sum(task.estimate for task in found.tasks)
    symbols = found.data["symbols"].values()
    limit = 0
    if job.model.reads == WINDOWS:
        limit = batch_limit(
            choice.profile,
            job,
            memory_gib=choice.memory_gib,
            features=len(FEATURES),
            bars=max(int(summary["bars"]) for summary in symbols),
            windows=min(fold["train"] for summary in symbols for fold in summary["folds"]),
            timeframe=found.data["timeframe"],
        )
    remembered: Entry | None = None
    with suppress(UsageError):  # a memory that can't be read is said where a way is taken from it; here it is an estimate
        remembered = known_here(key_of(choice.profile), job, torch=torch.__version__)
    rate = rate_of(choice.profile, job, remembered, torch=torch.__version__)
    devices = site.workers / site.workers_per_gpu  # workers that share a GPU share its rate
    run_seconds = visits / rate.with_models(len(found.tasks) / devices) / devices
    return Prospect(run_seconds=run_seconds, batch_limit=limit)


def choose_way(
    job: Job,
    *,
    site: Site,
    found: Survey,
    out: Path,
    emit: Callable[[dict[str, Any]], None],
    run: RunTuner = run_tuner,
    clock: Callable[[], float] = time.monotonic,
) -> Chosen:
    """Decide how a surveyed job trains; `out` may hold its checkpoints. Tells `tuning` and `tuned` where it has a tuner look.

    Raises UsageError where one model is too large for the device.
    """
    ahead, kind, key = look_ahead(job, site, found), site.kind, key_of(site.profile.profile)
    resumed = _of_checkpoints(out / "checkpoints", shape_of(job))
    entry: Entry | None = None
    sources: Mapping[str, str] = {}
    if resumed is not None and (resumed["profile"], resumed.get("torch")) == (key, torch.__version__):
        entry, sources = sound({"": resumed})[""], resumed["from"]
    elif (entry := known_here(key, job, torch=torch.__version__)) is not None:
        sources = _from(job, "remembered")
    elif seconds := _worth(job, kind, ahead):
        emit({"event": "tuning", "profile": key, "seconds": round(seconds, 1), "run_seconds": round(ahead.run_seconds)})
        began = clock()
        tuning = run(job, device=kind, seconds=seconds, batch_limit=ahead.batch_limit)
        entry = entry_of(tuning.timings[0]) if tuning.timings else None
        sources = _from(job, "tuned here") if entry else {}
        emit(_told(tuning, entry, job, key=key, seconds=clock() - began, limit_seconds=seconds))
    way = with_entry(job, entry) if entry else _without_unproven(job, kind)
    way = with_settings(way, batch=_batch(job, way, resumed, ahead))
    if kind == "cuda":
        given = with_settings(job, batch=way.train.batch, strategy=way.train.strategy)
        way = placed(
            given,
            site.profile,
            tuned=way,
            workers_per_gpu=site.workers_per_gpu,
            symbols=found.data["symbols"],
            measured_gib=entry["memory_per_model_gib"] if entry else 0.0,
        )
    way = concrete(way, kind)
    names = (*OPEN, "batch")
    told = {"profile": key, "shape": shape_of(job), **{name: getattr(way.train, name) for name in names}}
    wanted = with_entry(job, entry) if entry else None
    where = {name: _source(name, job, way, wanted, sources) for name in names}
    usual = concrete(with_settings(job, batch=way.train.batch), kind)
    for name in ("micro_batch", "activation_checkpointing"):  # nothing was measured, and by the formula no more fits
        if where[name] == "default" and getattr(way.train, name) != getattr(usual.train, name):
            where[name] = "memory"
    if resumed is not None and not job.train.batch:
        where["batch"] = resumed["from"].get("batch", "default")
    if entry and entry["memory_per_model_gib"]:  # so that a resumed training fits as this one did
        told["memory_per_model_gib"] = entry["memory_per_model_gib"]
    return Chosen(job=way, choice={**told, "torch": torch.__version__, "from": where})


def _worth(job: Job, kind: str, ahead: Prospect) -> float:
    """Return how many seconds a tuner gets, 0 for none."""
    unproven = kind == "cuda" and job.model.has_stacked_form and job.train.strategy in ("streams", "fused")
    if unproven:  # whatever the job says about tuning: it has to agree with plain modules first
        return MOST_SECONDS
    if job.train.tune == "never" or (job.train.batch and len(candidates(job, kind)) < 2):
        return 0.0
    if job.train.tune == "always":  # who asks for an answer gets one on a busy machine, too
        return MOST_SECONDS
    return ahead.tuner_seconds if ahead.tuner_seconds >= LEAST_SECONDS else 0.0


def _without_unproven(job: Job, kind: str) -> Job:
    """Return the job without a strategy that no tuner has seen to agree with plain modules here."""
    return with_settings(job, strategy="lanes") if kind == "cuda" and job.train.strategy in ("streams", "fused") else job


def _batch(job: Job, way: Job, resumed: Mapping[str, Any] | None, ahead: Prospect) -> int:
    """Return the batch: the job's; of a resumed run its own, on whatever chip; else the tuner's or 256, within the limit."""
    if job.train.batch:
        return job.train.batch
    return int(resumed["batch"]) if resumed else min(way.train.batch or REFERENCE_BATCH, ahead.batch_limit)


def _of_checkpoints(folder: Path, shape: str) -> dict[str, Any] | None:
    """Return the choice that stands in the newest checkpoint of this job's shape; None where there is none."""
    manifests = {path: path.stat().st_mtime for path in folder.glob("*/*/manifest.json")}
    for path in sorted(manifests, key=lambda path: manifests[path], reverse=True):
        try:
            choice = json.loads(path.read_bytes())["choice"]
            if choice["shape"] == shape and sound({shape: choice}) and choice["profile"] and dict(choice["from"]):
                return dict(choice)
        except (OSError, ValueError, KeyError, TypeError):
            continue  # torn, or of a version that kept none: an older one may do
    return None


def _from(job: Job, source: str) -> dict[str, str]:
    return dict.fromkeys((*OPEN, "batch"), source)


def _source(name: str, job: Job, way: Job, wanted: Job | None, sources: Mapping[str, str]) -> str:
    """Say where a part of the choice is from."""
    if getattr(way.train, name) == getattr(job.train, name) not in ("auto", 0, False):
        return "job"
    if wanted is not None and getattr(way.train, name) == getattr(wanted.train, name):
        return sources.get(name, "default")
    return "default" if wanted is None else "memory"  # what fits, where that is less than what was found fastest


def _told(tuning: Tuning, entry: Entry | None, job: Job, *, key: str, seconds: float, limit_seconds: float) -> dict[str, Any]:
    timed = [timing for timing in tuning.timings if not timing.excluded]
    out = [timing for timing in tuning.timings if timing.excluded]
    return {
        "event": "tuned",
        "profile": key,
        "shape": shape_of(job),
        "unit": job.model.reads,
        "entry": entry,
        "candidates": [asdict(timing) for timing in timed],
        "excluded": [{"candidate": asdict(timing.candidate), "reason": timing.excluded} for timing in out],
        "seconds": round(seconds, 1),
        "limit_seconds": round(limit_seconds, 1),
        "failure": tuning.failure,
    }
