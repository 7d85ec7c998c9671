"""Prices of storage: of a machine's root disk, and of a run's inputs by the stack's storage mode. Standard
library only.

us-east-1, looked up 2026-11-20: S3 standard, EFS standard storage, elastic throughput. EC2 reads S3 in its
region free of charge. EBS gp3: as people quote the price list, looked up 2026-11-24.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

S3_USD_PER_GB_MONTH = 0.023
EFS_USD_PER_GB_MONTH = 0.30
EFS_READ_USD_PER_GB, EFS_WRITE_USD_PER_GB = 0.03, 0.06  # elastic throughput; bursting has no price a GB
GB = 1e9
GP3_USD_PER_GIB_MONTH = 0.08
GP3_FREE_IOPS, GP3_USD_PER_IOPS_MONTH = 3000, 0.005
GP3_FREE_THROUGHPUT, GP3_USD_PER_MB_PER_S_MONTH = 125, 0.04
HOURS_PER_MONTH = 730.0  # as AWS's price calculator has it


@dataclass(frozen=True, kw_only=True)
class RootDisk:
    """The gp3 volume that an instance boots from, as its launch template has it; 0: not known."""

    gib: int = 0
    iops: int = 0
    throughput: int = 0  # MB/s

    @property
    def usd_per_hour(self) -> float:
        """Return its price in us-east-1, billed by the second while its instance lives."""
        month = self.gib * GP3_USD_PER_GIB_MONTH
        month += max(self.iops - GP3_FREE_IOPS, 0) * GP3_USD_PER_IOPS_MONTH
        month += max(self.throughput - GP3_FREE_THROUGHPUT, 0) * GP3_USD_PER_MB_PER_S_MONTH
        return month / HOURS_PER_MONTH


@dataclass(frozen=True, kw_only=True)
class StorageCost:
    """A storage mode and its cost for the inputs of one run, in dollars."""

    mode: str  # s3 or efs-cache
    gigabytes: float  # of inputs
    read_usd: float = 0.0  # by a run that finds them
    add_usd: float = 0.0  # once, by the first run

    @property
    def month_usd(self) -> float:
        """Return the monthly cost of keeping the inputs, in S3 and in the cache."""
        rate = S3_USD_PER_GB_MONTH + (EFS_USD_PER_GB_MONTH if self.mode == "efs-cache" else 0.0)
        return self.gigabytes * rate

    def to_dict(self) -> dict[str, Any]:
        """Return it as `--dry-run --json` prints it."""
        dollars = {"read": self.read_usd, "add_once": self.add_usd, "keep_a_month": self.month_usd}
        rounded = {name: round(usd, 4) for name, usd in dollars.items()}
        return {"mode": self.mode, "gigabytes": round(self.gigabytes, 6), "dollars": rounded}


def storage_cost(mode: str, *, throughput: str, input_bytes: int) -> StorageCost:
    """Return the cost of inputs of so many bytes in a mode; `throughput` is that of the cache's file
    system.
    """
    size = input_bytes / GB
    metered = size if mode == "efs-cache" and throughput == "elastic" else 0.0
    return StorageCost(
        mode=mode,
        gigabytes=size,
        read_usd=metered * EFS_READ_USD_PER_GB,
        add_usd=metered * EFS_WRITE_USD_PER_GB,
    )
