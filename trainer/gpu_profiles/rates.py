"""How fast a profile trains a job's models: as a tuner measured this very shape there, else by the profile's rate.

The profile's rate is the reference model's, divided by what a window of the job's costs against that: an estimate. A measured
one is of one device (on a CPU: of one core), with as many models at a time as its pack had. Arithmetic; it knows no clock and
no cloud.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from trainer.gpu_profiles.chips import GpuProfile, named_profile
from trainer.gpu_profiles.memory import figures
from trainer.job import Job

TORCH = "2.13"  # that instances train with, up to its minor; a test holds it to the node's
# An estimate is not off by more: what was "measured" a hundred times beside it is an error, or somebody's joke.
BELIEVED = 100.0


@dataclass(frozen=True, kw_only=True)
class Rate:
    """What one device trains in a second, in windows of the job's models (or bars of chunks), and where that is from.

    `models` have to train at a time for it: those of a pack take their steps as one program, and a place that stays empty is
    lost. `basis` is `measured on <date>`, `estimate`, or what the profile's figure says (`yours`, `measured <date>`).
    """

    per_second: float
    basis: str
    models: int = 1

    @property
    def is_estimate(self) -> bool:
        """Say whether nobody measured it."""
        return self.basis == "estimate"

    def with_models(self, models: float) -> float:
        """Return the rate with so many models to train."""
        return self.per_second * min(1.0, models / self.models)


def rate_of(profile: GpuProfile, job: Job, entry: Mapping[str, Any] | None = None, *, torch: str = TORCH) -> Rate:
    """Return the rate of one device: what the user says of it, else the tuner's entry for this shape, else the profile's.

    The entry is one of `tuned`, checked for form. It counts only if it is of this `torch` (a version, or its beginning), has a
    date, and lies within a hundred times of the estimate.
    """
    estimate = visits_per_second(profile, job)
    basis = figures(profile)["windows_per_second"].basis
    if entry is not None and basis != "yours" and _same_torch(str(entry["torch"]), torch) and _is_date(str(entry["date"])):
        measured = entry["windows_per_second"] * job.model.bars_out
        models = 1 if entry["strategy"] == "lanes" else entry["pack"]
        if estimate / BELIEVED <= measured / models and measured <= estimate * BELIEVED:
            return Rate(per_second=measured, basis=f"measured on {entry['date']}", models=models)
    return Rate(per_second=estimate, basis=basis)


def visits_per_second(profile: GpuProfile, job: Job) -> float:
    """Return how many windows (or bars of chunks) of the job's models one device trains in a second."""
    rate = figures(profile)["windows_per_second"].value or figures(named_profile("t4"))["windows_per_second"].value
    cpu, gpu = job.model.costs
    return float(rate) / (cpu if profile.name == "cpu" else gpu)


def _same_torch(found: str, wanted: str) -> bool:
    return found == wanted or found.startswith(f"{wanted}.")


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True
