"""Table of AWS GPU instance types: GPUs, memory, list prices with their date, quota codes. Package data, no
network.

The table ages: offers and spot prices are queried from the account at run time (`launch/preflight`).
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files

from trainer.base.errors import UsageError, nearest

TABLE_REGION = "us-east-1"  # whose prices the table has
QUOTED = "price_list_quote"  # how the basis of a SageMaker price begins that was looked up in 2026
# Four-GPU machines offered today, which replace a retired type (list prices, 2026-07-20).
REPLACEMENTS = {
    1: ("g6.xlarge", "g5.xlarge", "g6e.xlarge"),
    4: ("g6.12xlarge", "g5.12xlarge", "g6e.12xlarge"),
    8: ("g6.48xlarge", "g5.48xlarge", "g6e.48xlarge"),
}


@dataclass(frozen=True, kw_only=True)
class Boot:
    """Boot times of a type, in seconds. boot.csv has the figures with their basis: few are measured."""

    expected_seconds: float  # from the launch to the agent, in the plan's estimate
    allowance_seconds: (
        int  # from the launch to the first sign of life, and from that to the agent's; then it counts as hung
    )
    smoke_seconds: int  # for the first training steps on all of its GPUs, after the first import of torch
    basis: str


@dataclass(frozen=True, kw_only=True)
class SpotMarket:
    """Typical price and interruptions of a type's spot capacity, by AWS's Spot Instance Advisor (us-east-1,
    Linux), as packaged in alexei-led/spotinfo at the date.
    """

    saving: float  # share of the price on demand
    interruptions: str  # class of the share of machines that were taken in a month
    as_of: str


@dataclass(frozen=True, kw_only=True)
class Owned:
    """Fixed costs of a machine of the user's own: those besides its power."""

    price_usd: float
    years: float  # over which its price is written off, evenly

    @property
    def usd_per_month(self) -> float:
        """Return the dollars of a month."""
        return self.price_usd / (12 * self.years)


@dataclass(frozen=True, kw_only=True)
class InstanceType:
    """One EC2 instance type. `gpus` may be a fraction of a GPU; `num_workers` is how many processes
    that is.
    """

    name: str
    status: str  # current, previous_generation, legacy_limited or retired
    gpus: float = 0.0
    gpu_model: str = ""
    gpu_memory_gib: float = 0.0  # of one GPU
    compute_capability: str = ""
    gpu_interconnect: str = "none"  # pcie, nvlink, nvswitch, or of a type with one GPU none
    nvlink_gb_per_s: float = 0.0  # nominal, of one GPU, both directions; 0: PCIe only
    vcpus: int
    threads_per_core: int = 2  # that vCPUs are; of a type without GPUs
    memory_gib: float
    # On demand, Linux, in us-east-1 unless `launch.prices` says otherwise; None: not sold there.
    price_usd_per_hour: float | None
    price_date: str
    on_demand_quota_code: str
    spot_quota_code: str = ""
    boot: Boot
    local_disk_gb: float = 0.0  # of its instance store, all disks together
    network_gbps: float = 0.0  # its baseline; 0: not known
    is_sold: bool = True  # in TABLE_REGION
    spot: SpotMarket | None = None  # None: not in the list
    # A SageMaker training instance of the same size, as quoted; None: no quote.
    sagemaker_usd_per_hour: float | None = None
    seller: str = ""  # of a machine outside AWS
    source: str = ""  # of its price
    owned: Owned | None = None  # a machine that was bought; its price an hour is then that of its power

    @property
    def num_workers(self) -> int:
        """Return the GPUs that a node of this type shows: one worker process each."""
        return max(1, math.floor(self.gpus))

    @property
    def num_trainers(self) -> int:
        """Return the worker processes of a training: one per GPU; without GPUs one per core."""
        return self.num_workers if self.gpus else max(1, self.vcpus // self.threads_per_core)

    @property
    def can_be_grouped(self) -> bool:
        """Return whether a cluster placement group takes it: every type of these tables but the burstable
        ones (EC2 user guide, "Placement strategies", looked up 2026-11-27).
        """
        return not self.name.startswith("t")

    @property
    def launchable(self) -> bool:
        """Return whether AWS still starts this type and current images run on it."""
        return self.status in ("current", "previous_generation")


@cache
def catalogue() -> dict[str, InstanceType]:
    """Return every known type by name, in the order of the table."""
    table = (files("trainer.machines") / "instances.csv").read_text(encoding="utf-8")
    return {row["instance_type"]: _from_row(row) for row in csv.DictReader(table.splitlines())}


def instance_type(name: str) -> InstanceType:
    """Look a type up. Raises UsageError with the nearest names."""
    known = catalogue()
    if name not in known:
        raise UsageError(
            f"unknown instance type '{name}'",
            do=nearest(name, known) or "Known types are such as g6.xlarge, g5.12xlarge or p5.4xlarge.",
        )
    return known[name]


def replacements(retired: InstanceType) -> tuple[InstanceType, ...]:
    """Return the types to offer instead of a retired one: as many GPUs, cheapest first."""
    return tuple(instance_type(name) for name in REPLACEMENTS.get(retired.num_workers, REPLACEMENTS[4]))


def boot_of(name: str) -> Boot:
    """Return a type's boot times: the first row of boot.csv with a matching pattern."""
    return next(
        boot for patterns, boot in _boots() if any(fnmatchcase(name, pattern) for pattern in patterns)
    )


@cache
def _boots() -> tuple[tuple[tuple[str, ...], Boot], ...]:
    table = (files("trainer.machines") / "boot.csv").read_text(encoding="utf-8")
    return tuple(
        (
            tuple(row["types"].split()),
            Boot(
                expected_seconds=float(row["expected_seconds"]),
                allowance_seconds=int(row["allowance_seconds"]),
                smoke_seconds=int(row["smoke_seconds"]),
                basis=row["basis"],
            ),
        )
        for row in csv.DictReader(table.splitlines())
    )


def _from_row(row: dict[str, str]) -> InstanceType:
    price, sagemaker = row["on_demand_usd_per_hour_us_east_1"], row["sagemaker_usd_per_hour"]
    quoted = sagemaker and row["sagemaker_price_basis"].startswith(QUOTED)
    return InstanceType(
        name=row["instance_type"],
        status=row["status"],
        gpus=float(row["gpu_count"]),
        gpu_model=row["gpu_model"],
        gpu_memory_gib=float(row["vram_gib_per_gpu"]),
        compute_capability=row["compute_capability"],
        gpu_interconnect=row["gpu_interconnect"].split(" ")[0],
        nvlink_gb_per_s=float(row["nvlink_gb_per_s_per_gpu"]),
        vcpus=int(row["vcpus"]),
        memory_gib=float(row["memory_gib"]),
        price_usd_per_hour=float(price) if price else None,
        price_date=row["on_demand_price_as_of"],
        on_demand_quota_code=row["on_demand_quota_code"],
        spot_quota_code=row["spot_quota_code"],
        boot=boot_of(row["instance_type"]),
        local_disk_gb=float(row["local_nvme_gb"] or 0),
        network_gbps=float(row["network_gbps_baseline"] or 0),
        is_sold=row["us_east_1_offered"] == "yes",
        spot=_spot_market(row),
        sagemaker_usd_per_hour=float(sagemaker) if quoted else None,
    )


def _spot_market(row: dict[str, str]) -> SpotMarket | None:
    if not row["spot_as_of"]:
        return None
    return SpotMarket(
        saving=float(row["spot_saving_percent"]) / 100,
        interruptions=row["spot_interruptions_a_month"],
        as_of=row["spot_as_of"],
    )
