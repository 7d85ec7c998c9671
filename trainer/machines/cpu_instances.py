"""Instance types without a GPU, for prepare runs: a short table, since any of them will do.

List prices of us-east-1, Linux, on demand, and the quota that all of them count against (looked up
2026-11-22). T3 types launch in unlimited mode: CPU above their baseline costs $0.05 a vCPU-hour besides,
which these prices leave out.
"""

from __future__ import annotations

from trainer.base.errors import UsageError, nearest
from trainer.machines.instances import InstanceType, boot_of

PRICE_DATE, QUOTA = "2026-11-22", "L-1216C47A"  # Running On-Demand Standard instances
# type: vCPUs, memory in GiB, dollars an hour
_TYPES = {
    "t3.large": (2, 8.0, 0.0832),
    "t3.xlarge": (4, 16.0, 0.1664),
    "t3.2xlarge": (8, 32.0, 0.3328),
    "m6i.large": (2, 8.0, 0.096),
    "m6i.xlarge": (4, 16.0, 0.192),
    "m7i.large": (2, 8.0, 0.1008),
    "m7i.xlarge": (4, 16.0, 0.2016),
    "r6i.large": (2, 16.0, 0.126),
    "r6i.xlarge": (4, 32.0, 0.252),
}


def cpu_instance_type(name: str) -> InstanceType:
    """Look a type up. Raises UsageError with the nearest names."""
    if name not in _TYPES:
        do = nearest(name, _TYPES) or f"Set the stack's setting prepare_type to one of {', '.join(_TYPES)}."
        raise UsageError(f"unknown instance type '{name}' for prepare runs", do=do)
    vcpus, memory_gib, price = _TYPES[name]
    return InstanceType(
        name=name,
        status="current",
        gpus=0,
        gpu_model="",
        gpu_memory_gib=0.0,
        compute_capability="",
        gpu_interconnect="none",
        nvlink_gb_per_s=0.0,
        vcpus=vcpus,
        memory_gib=memory_gib,
        price_usd_per_hour=price,
        price_date=PRICE_DATE,
        on_demand_quota_code=QUOTA,
        spot_quota_code="",
        boot=boot_of(name),
    )
