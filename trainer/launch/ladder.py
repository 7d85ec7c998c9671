"""The capacity ladder: the order in which pools are asked. Pure; prices and zones come in.

Order: the user's types as given, and within a type its zones, cheapest first if spot prices differ. Every
zone of a type is asked before the next type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainer.machines.instances import InstanceType
from trainer.runs.record import Rung


@dataclass(frozen=True, kw_only=True)
class Pools:
    """One type on one market: the zones where the stack has a subnet, each with its price."""

    machine: InstanceType
    market: str
    on_demand_usd_per_hour: float
    price_by_zone: Mapping[str, float]  # zone -> dollars an hour on this market
    default_seconds: float = 0.0  # of max_duration on this type; 0: the job names one
    estimate_seconds: float = 0.0  # limit by a measured estimate where the job names one; 0: none
    p90_seconds: float = 0.0  # of an attempt on this type; 0: not estimated


def build_ladder(
    pools: Sequence[Pools], *, subnets: Mapping[str, str], launch_template_id: str, image_id: str
) -> tuple[Rung, ...]:
    """Return the rungs in the order in which they are asked for capacity."""
    return tuple(
        Rung(
            instance_type=pool.machine.name,
            availability_zone=zone,
            subnet_id=subnets[zone],
            market=pool.market,
            price_usd_per_hour=price,
            on_demand_usd_per_hour=pool.on_demand_usd_per_hour,
            gpu_count=pool.machine.num_workers,
            launch_template_id=launch_template_id,
            image_id=image_id,
            vcpus=pool.machine.vcpus,
            quota_code=pool.machine.spot_quota_code
            if pool.market == "spot"
            else pool.machine.on_demand_quota_code,
            default_seconds=pool.default_seconds,
            estimate_seconds=pool.estimate_seconds,
            p90_seconds=pool.p90_seconds,
            boot_seconds=pool.machine.boot.allowance_seconds,
        )
        for pool in pools
        for zone, price in sorted(pool.price_by_zone.items(), key=lambda entry: (entry[1], entry[0]))
    )
