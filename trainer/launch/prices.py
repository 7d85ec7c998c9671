"""On-demand list prices of the stack's region, from the AWS Price List.

Budgets and deadlines follow from these prices, so an unknown one must not be too low: if the Price List does
not answer, a price is the package's table's in us-east-1, with its date, and elsewhere UNKNOWN_REGION_FACTOR
times as much, and the plan says so.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from typing import Any

from trainer.aws.access import Access, begin_calls, error_code
from trainer.machines.instances import TABLE_REGION, InstanceType
from trainer.machines.storage import RootDisk

# The Price List answers in us-east-1, eu-central-1 and ap-south-1 only (AWS Price List guide, looked up
# 2026-11-22).
PRICE_LIST_REGION = "us-east-1"
# A bound, not a measurement: us-gov-west-1 lists GPU types at 1.26 times us-east-1 (Karpenter's price file,
# 2026-07-20), and no region at twice the price is known to us.
UNKNOWN_REGION_FACTOR = 2.0
_PARALLEL = 8
ASK_SECONDS = 6.0  # for all types; a preflight takes ten at most


@dataclass(frozen=True, kw_only=True)
class PricedTypes:
    """Instance types with their prices in one region, and the source of the prices as text."""

    machines: tuple[InstanceType, ...]
    basis: str


def table_prices(machines: Sequence[InstanceType]) -> PricedTypes:
    """Return the types with the table's prices."""
    dates = sorted({machine.price_date for machine in machines if machine.price_date})
    return PricedTypes(machines=tuple(machines), basis=f"list prices of {TABLE_REGION}, {', '.join(dates)}")


def list_prices(access: Access, machines: Sequence[InstanceType], *, region: str, today: date) -> PricedTypes:
    """Return the types with the prices that AWS has today in a region.

    A type that the Price List does not have there has no price; in the table's region it keeps the table's.
    An error of the Price List (a missing permission, no network, no answer within ASK_SECONDS) is no error
    here: the prices are then the table's, elsewhere times UNKNOWN_REGION_FACTOR.
    """
    asked, why = _asked(access, machines, region=region)
    if why:
        is_known = region == TABLE_REGION
        return table_prices(machines) if is_known else assumed_prices(machines, region=region, why=why)
    machines = [_quoted_in(machine, region) for machine in machines]
    priced = [
        machine
        if price is None and region == TABLE_REGION
        else replace(machine, price_usd_per_hour=price, price_date=today.isoformat())
        for machine, price in zip(machines, asked, strict=True)
    ]
    return PricedTypes(machines=tuple(priced), basis=f"list prices of {region}, {today.isoformat()}")


def _asked(
    access: Access, machines: Sequence[InstanceType], *, region: str
) -> tuple[list[float | None], str]:
    """Return the prices of types, or why they are unknown. The first is asked alone: where AWS refuses it, no
    other call begins.
    """
    from botocore.exceptions import BotoCoreError, ClientError  # late: half a second that --help need not pay

    client = replace(access, region=PRICE_LIST_REGION).client("pricing")
    prices, until, futures = list[float | None](), time.monotonic() + ASK_SECONDS, list[Future[Any]]()
    try:
        for asked in (machines[:1], machines[1:]):
            calls = [partial(_price, client, machine.name, region=region) for machine in asked]
            futures = begin_calls(calls, most=_PARALLEL)
            left = wait(futures, timeout=until - time.monotonic(), return_when="FIRST_EXCEPTION")
            for future in left.done:
                future.result()
            if left.not_done:
                return [], f"no answer within {ASK_SECONDS:.0f} s"
            prices += [future.result() for future in futures]
        return prices, ""
    except (BotoCoreError, ClientError) as error:
        return [], error_code(error)
    finally:
        for future in futures:
            future.cancel()


def disk_price(disk: RootDisk, *, region: str) -> float:
    """Return the dollars an hour of a root disk, an upper bound outside of TABLE_REGION."""
    return disk.usd_per_hour * (1.0 if region == TABLE_REGION else UNKNOWN_REGION_FACTOR)


def with_disk(priced: PricedTypes, usd_per_hour: float) -> PricedTypes:
    """Return the types with prices that include their root disk's."""
    if not usd_per_hour:
        return priced
    machines = tuple(
        replace(machine, price_usd_per_hour=machine.price_usd_per_hour + usd_per_hour)
        if machine.price_usd_per_hour
        else machine
        for machine in priced.machines
    )
    basis = f"{priced.basis}, with ${usd_per_hour:.3f} an hour for the root disk"
    return PricedTypes(machines=machines, basis=basis)


def assumed_prices(machines: Sequence[InstanceType], *, region: str, why: str) -> PricedTypes:
    """Return the types with assumed prices, for a region whose prices are unknown."""
    raised = [
        replace(
            _quoted_in(machine, region),
            price_usd_per_hour=machine.price_usd_per_hour
            and machine.price_usd_per_hour * UNKNOWN_REGION_FACTOR,
        )
        for machine in machines
    ]
    basis = (
        f"{UNKNOWN_REGION_FACTOR:g} x the list prices of {TABLE_REGION}, since those of {region} are unknown"
        f" ({why})"
    )
    return PricedTypes(machines=tuple(raised), basis=basis)


def _quoted_in(machine: InstanceType, region: str) -> InstanceType:
    """Return a type, outside of TABLE_REGION without SageMaker's price: it is quoted there alone."""
    return machine if region == TABLE_REGION else replace(machine, sagemaker_usd_per_hour=None)


def _price(client: Any, instance_type: str, *, region: str) -> float | None:
    """Return the dollars an hour of a Linux instance on demand, None if the Price List has none."""
    products = products_of(client, instance_type, region=region)
    return max((price for product in products for price in prices_in(product)), default=None)


def products_of(client: Any, instance_type: str, *, region: str) -> list[str]:
    """Return the products of a Linux instance in the Price List, each as JSON text with all its terms."""
    wanted = {
        "instanceType": instance_type,
        "regionCode": region,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
    }
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()]
    return list(client.get_products(ServiceCode="AmazonEC2", Filters=filters)["PriceList"])


def prices_in(product: str) -> list[float]:
    """Return the on-demand dollars an hour in one product of the Price List (JSON text); none if it has
    another shape.
    """
    try:
        terms = json.loads(product)["terms"]["OnDemand"].values()
        dimensions = [one for term in terms for one in term["priceDimensions"].values()]
        prices = [float(one["pricePerUnit"]["USD"]) for one in dimensions if one["unit"] == "Hrs"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
    return [price for price in prices if 0 < price < float("inf")]
