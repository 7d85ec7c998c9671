"""x86-64 instance types without a GPU: for prepare and score runs, where any will do, for scripts and agents.

cpu_types.csv has a row a family: within one, AWS prices sizes in proportion to their vCPUs. Prices are on
demand, Linux, in us-east-1: those of 2025-10-01 as github.com/skypilot-org/skypilot-catalog has them
(v8/aws/vms.csv at 00148f2a, whose newest types are of that month), checked on two sizes of each family and
more. Threads of a core: EC2 DescribeInstanceTypes as in moto 5.2.5, 2026-10-27. T3 types launch in unlimited
mode: CPU above their baseline costs $0.05 a vCPU-hour besides, which these prices leave out.
"""

from __future__ import annotations

import csv
import re
from functools import cache
from importlib.resources import files

from trainer.base.errors import UsageError, nearest
from trainer.machines.instances import InstanceType, boot_of

# Service Quotas codes: Running On-Demand Standard instances, All Standard Spot Instance Requests
ON_DEMAND_QUOTA, SPOT_QUOTA = "L-1216C47A", "L-34B43A08"
ARM = re.compile(r"a1\.|[a-z]+\d[a-z]*g[a-z]*\.")  # m7g, c8gn, t4g, also g5g
# Those that a plan weighs where a script names none
USUAL = (
    *("t3.large", "t3.xlarge", "t3.2xlarge", "m6i.large", "m6i.xlarge", "m7i.large", "m7i.xlarge"),
    *("r6i.large", "r6i.xlarge", "c7i.2xlarge", "c7i.4xlarge", "c7i.8xlarge"),
)


@cache
def cpu_types() -> dict[str, InstanceType]:
    """Return every known type by name, in the order of the table and by size."""
    table = (files("trainer.machines") / "cpu_types.csv").read_text(encoding="utf-8")
    return {
        machine.name: machine for row in csv.DictReader(table.splitlines()) for machine in _of_family(row)
    }


def _of_family(row: dict[str, str]) -> list[InstanceType]:
    names = [f"{row['family']}.{size}" for size in row["sizes"].split()]
    return [
        InstanceType(
            name=name,
            status="current",
            vcpus=vcpus,
            threads_per_core=int(row["threads_per_core"]),
            memory_gib=vcpus * float(row["gib_per_vcpu"]),
            price_usd_per_hour=round(vcpus * float(row["usd_per_vcpu_hour"]), 6),
            price_date=row["as_of"],
            on_demand_quota_code=ON_DEMAND_QUOTA,
            spot_quota_code=SPOT_QUOTA,
            boot=boot_of(USUAL[0]),  # the table's patterns of sizes are about GPUs
        )
        for name in names
        for vcpus in [_vcpus(name.partition(".")[2])]
    ]


def _vcpus(size: str) -> int:
    return 2 if size == "large" else 4 * int(size.removesuffix("xlarge") or 1)


def cpu_instance_type(name: str) -> InstanceType:
    """Look up a type without a GPU. Raises UsageError with the nearest names, or for one of Arm."""
    known = cpu_types()
    if name not in known:
        refuse_arm(name)
        do = nearest(name, known) or f"Name one such as {', '.join(USUAL[:3])} or c7i.4xlarge."
        raise UsageError(f"unknown instance type '{name}' without a GPU", do=do)
    return known[name]


def refuse_arm(name: str) -> None:
    """Raise UsageError for a type with an Arm processor."""
    if ARM.match(name):
        why = "images and wheels are those of x86-64"
        raise UsageError(f"{name} has an Arm processor", why=why, do="Name a type such as m7i.xlarge.")
