"""Machines outside AWS: rented GPUs at dated prices (outside.csv), and the user's own at a price that they
name. Package data, no network.

Mayfly starts none of them: a plan compares their time and price, and the user's own tools rent them. A row
without a source and a date is refused.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from trainer.base.errors import UsageError
from trainer.machines.chips import named_profile
from trainer.machines.instances import Boot, InstanceType, Owned, boot_of
from trainer.machines.memory import CPU

DESK = "desk"  # the seller of the user's own machine
MOST_USD = 10_000.0  # an hour
# The numbers that describe a machine that was bought, with their bounds.
BOUGHT = {"watts": (1.0, 100_000.0), "kwh": (0.0, 10.0), "price": (0.0, 10_000_000.0), "years": (0.1, 20.0)}
_AT_ONCE = Boot(expected_seconds=0.0, allowance_seconds=900, smoke_seconds=180, basis="it is on already")


@cache
def outside_machines() -> tuple[InstanceType, ...]:
    """Return the machines of outside.csv. Raises ValueError for a row without a source, a date or a
    price.
    """
    table = (files("trainer.machines") / "outside.csv").read_text(encoding="utf-8")
    return tuple(_machine(row) for row in csv.DictReader(table.splitlines()))


def desk_machines(named: Sequence[str]) -> tuple[InstanceType, ...]:
    """Return the user's machines, each named PROFILE=USD, a GPU profile and the dollars of an hour of it.

    Instead of the dollars also watts:W,kwh:USD,price:USD,years:N: its power under load, the price of a
    kilowatt-hour, and what the machine cost, written off over so many years.

    Raises UsageError for another form, an unknown profile, and a number out of its bounds.
    """
    return tuple(_desk(text) for text in named)


def _desk(text: str) -> InstanceType:
    name, _, price = text.partition("=")
    if name.strip() == CPU:
        do = "A rehearsal's plan has this desk's time: mayfly launch --rehearse --dry-run."
        raise UsageError("--desk cpu", why="the plan compares GPUs", do=do)
    profile = named_profile(name.strip())
    usd, owned, source = _bought(text, price) if ":" in price else (_number(price), None, "yours")
    if not 0 <= usd <= MOST_USD:
        do = "Write --desk PROFILE=USD, the dollars of an hour, such as --desk rtx_4090=0.12."
        raise UsageError(f"--desk {text} has no price", do=do)
    return InstanceType(
        name=f"your {profile.name}",
        status="current",
        gpus=1.0,
        gpu_model=profile.devices[0] if profile.devices else profile.chip,
        gpu_memory_gib=profile.memory_gib,
        compute_capability=profile.compute_capability,
        vcpus=0,
        memory_gib=0.0,
        price_usd_per_hour=usd,
        price_date="",
        on_demand_quota_code="",
        boot=_AT_ONCE,
        seller=DESK,
        source=source,
        owned=owned,
    )


def _bought(text: str, numbers: str) -> tuple[float, Owned, str]:
    """Return the dollars of an hour of its power, what it cost, and both as text."""
    named = [part.strip().partition(":") for part in numbers.split(",")]
    given = {key: _number(value) for key, _, value in named}
    inside = all(low <= given.get(key, -1.0) <= high for key, (low, high) in BOUGHT.items())
    if set(given) != set(BOUGHT) or len(named) != len(BOUGHT) or not inside:
        do = "Write all four as numbers: --desk rtx_4090=watts:450,kwh:0.17,price:1900,years:3."
        raise UsageError(f"--desk {text} does not say what the machine costs", do=do)
    watts, kwh, price, years = (given[key] for key in BOUGHT)
    source = f"yours: {watts:g} W at ${kwh:g} a kWh, ${price:,.0f} over {years:g} years"
    return watts / 1000 * kwh, Owned(price_usd=price, years=years), source


def _number(text: str) -> float:
    """Return a number as text, -1 for what is none."""
    try:
        return float(text)
    except ValueError:
        return -1.0


def _machine(row: dict[str, str]) -> InstanceType:
    gpus, each = int(row["gpus"]), float(row["usd_per_gpu_hour"])
    if not (row["source"] and row["as_of"] and each > 0):
        raise ValueError(f"outside.csv: {row['seller']} {row['gpu_model']} has no source, date or price")
    return InstanceType(
        name=f"{row['seller']} {gpus}×{row['gpu_model'].removeprefix('NVIDIA ').removeprefix('GeForce ')}",
        status="current",
        gpus=float(gpus),
        gpu_model=row["gpu_model"],
        gpu_memory_gib=float(row["vram_gib_per_gpu"]),
        compute_capability=row["compute_capability"],
        gpu_interconnect=row["gpu_interconnect"],
        nvlink_gb_per_s=float(row["nvlink_gb_per_s_per_gpu"]),
        vcpus=0,
        memory_gib=0.0,
        price_usd_per_hour=gpus * each,
        price_date=row["as_of"],
        on_demand_quota_code="",
        boot=boot_of(row["seller"]),
        seller=row["seller"],
        source=row["source"],
    )
