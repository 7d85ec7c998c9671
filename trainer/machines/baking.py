"""Savings of a baked image: seconds and dollars a run, and from how many runs a month on it pays for itself.

    runs a month = (builds x hours of a build x its type's price + snapshot)
                   / (seconds saved x the run's price)

Seconds are means of measured boots, if there are any. The pipeline's cost was never measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer.machines.instances import instance_type

BUILD_TYPE, BUILDS_A_MONTH = "g4dn.xlarge", 1  # as docs/infrastructure.md suggests, and infra/image.py does
BUILD_HOURS = 1.0  # boot, install, snapshot, boot again, smoke test: assumed
KEPT_IMAGES = 2  # infra/image.py
IMAGE_GB = 100  # of its snapshot: the volume by default (infra/: volume_gib)
SNAPSHOT_USD_PER_GB_MONTH = 0.05  # aws.amazon.com/ebs/pricing, us-east-1, 2026-11-20
ASSUMED_SECONDS = 30.0  # of installing the environment, as boot.csv assumes
KEPT_SECONDS = 1.0  # of finding that there is nothing to install


@dataclass(frozen=True, kw_only=True)
class Baking:
    """Savings and costs of a baked image for runs on one type."""

    saved_seconds: float  # of a boot; 0: none
    usd_per_run: float
    usd_per_month: float  # of the pipeline and its images
    runs_per_month: int | None  # from which on it pays; None: never
    runs_measured: int  # boots behind `saved_seconds`; 0: assumed
    in_use: bool  # the launch boots a baked image

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            **vars(self),
            "saved_seconds": round(self.saved_seconds, 1),
            "usd_per_run": round(self.usd_per_run, 4),
        }


def baking(boots: Mapping[str, Mapping[str, float]], *, usd_per_hour: float, in_use: bool) -> Baking:
    """Weigh a baked image for a type: `boots` are its remembered ones, baked and plain, by step.

    With boots of both kinds all steps count, since a baked image may be slower to read; else the install
    alone.
    """
    plain, baked = boots.get("plain"), boots.get("baked")
    if plain and baked:
        saved = sum(seconds - baked.get(step, 0.0) for step, seconds in plain.items() if step != "runs")
        measured = int(plain["runs"] + baked["runs"])
    else:
        saved = (plain["environment"] if plain else ASSUMED_SECONDS) - KEPT_SECONDS
        measured = int(plain["runs"]) if plain else 0
    saved = max(saved, 0.0)
    a_run, a_month = saved * usd_per_hour / 3600, pipeline_usd_per_month()
    return Baking(
        saved_seconds=saved,
        usd_per_run=a_run,
        usd_per_month=a_month,
        runs_per_month=math.ceil(a_month / a_run) if a_run > 0 else None,
        runs_measured=measured,
        in_use=in_use,
    )


def pipeline_usd_per_month() -> float:
    """Return what the pipeline costs a month with one build and the images that are kept."""
    build = instance_type(BUILD_TYPE).price_usd_per_hour or 0.0
    return round(BUILDS_A_MONTH * BUILD_HOURS * build + KEPT_IMAGES * IMAGE_GB * SNAPSHOT_USD_PER_GB_MONTH, 2)
