"""Prices of storage, and the storage cost of a run's inputs by the stack's storage mode. Standard library
only.

us-east-1, looked up 2026-11-20: S3 standard, EFS standard storage, elastic throughput. EC2 reads S3 in its
region free of charge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

S3_USD_PER_GB_MONTH = 0.023
EFS_USD_PER_GB_MONTH = 0.30
EFS_READ_USD_PER_GB, EFS_WRITE_USD_PER_GB = 0.03, 0.06  # elastic throughput; bursting has no price a GB
GB = 1e9


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
