"""The candidates of a plan: types, each with its time, price and cost, or refused with a reason. Values that
`weighing` makes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from trainer.launch.checkpoints import CheckpointCost
from trainer.machines.instances import InstanceType
from trainer.machines.planner import (
    LONGEST_DEADLINE,
    SLOWER,
    Estimate,
    default_max_duration,
    dollars,
)
from trainer.machines.rates import NOT_ESTIMATED, Rate
from trainer.runs.calibration import Calibrated


@dataclass(frozen=True, kw_only=True)
class Timed:
    """The time of a job on one machine by one rate, without interruptions."""

    phases: Estimate
    seconds_slow: float  # which deadlines follow: the slower of the estimate and of earlier runs
    rate: Rate
    visits: float  # windows in its training time, at that rate, of the GPU that trains longest
    runs: int = 0  # of its shape on its type, whose times these are; 0: they follow from the rate

    @property
    def is_estimated(self) -> bool:
        """Return whether its times are estimated: not for a user's own model without a trial."""
        return self.rate.basis != NOT_ESTIMATED

    def to_dict(self) -> dict[str, Any]:
        """Return its seconds and its rate."""
        seconds = round(self.phases.seconds_p50) if self.is_estimated else None
        return {"seconds": seconds, "rate": self.rate.to_dict(), "source": self.source}

    @property
    def source(self) -> str:
        """Return where its times are from: measured here, yours, or formula."""
        return "measured here" if self.runs else self.rate.source

    def following(self, runs: Calibrated | None) -> Timed:
        """Return the time that the last runs of its shape took. Deadlines follow the slower of both."""
        if runs is None or not self.visits:
            return self
        phases = Estimate(
            boot=runs.boot,
            stage=runs.stage,
            training=self.visits / runs.visits_per_second,
            upload=runs.upload,
        )
        slow = max(self.seconds_slow, phases.seconds_p90)
        return replace(self, phases=phases, seconds_slow=slow, runs=runs.runs)


@dataclass(frozen=True, kw_only=True)
class PlanCandidate:
    """One type on one market: its time and cost on AWS, or in `refused` the reason why it is not used."""

    machine: InstanceType
    market: str
    zones: tuple[str, ...]
    price_usd_per_hour: float
    is_typical: bool = False  # the price is the typical one of the type's spot market, by a dated list
    time: Timed
    here: Timed | None = None  # on this desk, which takes the machine's place in a rehearsal
    checkpoints: CheckpointCost | None = None  # None: the command keeps none
    lost_seconds: float = 0.0  # that its interruptions are expected to cost
    note: str = ""
    refused: str = ""
    layout: str = ""  # how its GPUs train one model together
    nodes: int = 1  # machines of this type
    at_risk: int = 1  # of them, whose loss ends an attempt

    @property
    def usd_per_hour(self) -> float:
        """Return the price of all its machines."""
        return self.nodes * self.price_usd_per_hour

    @property
    def pool(self) -> tuple[str, str]:
        """Return its type and its market."""
        return self.machine.name, self.market

    @property
    def run(self) -> Timed:
        """Return the time that its run will take where it really runs."""
        return self.here or self.time

    @property
    def is_estimated(self) -> bool:
        """Return whether its times and dollars are estimated."""
        return self.time.is_estimated

    @property
    def rate(self) -> Rate:
        """Return the rate behind its times."""
        return self.time.rate

    @property
    def seconds_p50(self) -> float:
        """Return its seconds with what interruptions are expected to cost."""
        return self.time.phases.seconds_p50 + self.lost_seconds

    @property
    def seconds_p90(self) -> float:
        """Return the seconds that nine of ten runs stay below."""
        return self.seconds_p50 * SLOWER

    @property
    def dollars_p50(self) -> float:
        """Return its cost at P50."""
        return dollars(self.seconds_p50, self.usd_per_hour)

    @property
    def dollars_p90(self) -> float:
        """Return its cost at P90."""
        return dollars(self.seconds_p90, self.usd_per_hour)

    @property
    def sagemaker_usd(self) -> float | None:
        """Return the cost of the same seconds on SageMaker, on demand; None without a quote."""
        quoted = self.machine.sagemaker_usd_per_hour
        if not quoted or not self.is_estimated:
            return None
        return dollars(self.time.phases.seconds_p50, self.nodes * quoted)

    def longest_attempt(self, timed: Timed) -> timedelta:
        """Return the longest attempt of a job that names no duration, by one of its times."""
        return (
            default_max_duration(timed.seconds_slow, self.machine) if timed.is_estimated else LONGEST_DEADLINE
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as `--dry-run --json` prints it."""
        known, here = self.is_estimated, self.here
        return {
            "instance_type": self.machine.name,
            "seller": self.machine.seller or "AWS",
            "market": self.market,
            "zones": list(self.zones),
            "gpus": self.machine.gpus,
            "gpu_model": self.machine.gpu_model,
            "nodes": self.nodes,
            "price_usd_per_hour": self.price_usd_per_hour,
            "price_date": self.machine.spot.as_of
            if self.is_typical and self.machine.spot
            else self.machine.price_date,
            "boot_allowance_seconds": self.machine.boot.allowance_seconds,
            "seconds": {
                "p50": round(self.seconds_p50),
                "p90": round(self.seconds_p90),
                **self._phases(),
                "lost": round(self.lost_seconds, 1),
            }
            if known
            else None,
            "here": here.to_dict() if here else None,
            "dollars": {"p50": round(self.dollars_p50, 4), "p90": round(self.dollars_p90, 4)}
            if known
            else None,
            "sagemaker_dollars": round(usd, 4) if (usd := self.sagemaker_usd) is not None else None,
            "rate": self.rate.to_dict(),
            "source": self.time.source,
            "note": self.note,
            "refused": self.refused,
        }

    def _phases(self) -> dict[str, float]:
        phases = self.time.phases
        named = {
            "boot": phases.boot,
            "stage": phases.stage,
            "train": phases.training,
            "upload": phases.upload,
        }
        return {name: round(seconds, 1) for name, seconds in named.items()}


def hours(seconds: float) -> str:
    """Return a time of a plan as text."""
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"
