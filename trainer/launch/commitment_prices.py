"""Commitments at today's prices of the account's region: reserved instances by the AWS Price List, compute
savings plans by the Savings Plans API. Nothing is bought: both calls only read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date
from typing import Any

from trainer.aws.access import Access, error_code
from trainer.launch.prices import PRICE_LIST_REGION, products_of
from trainer.machines.commitments import RESERVED, SAVINGS_PLAN, UPFRONT, Commitment

PRICE_LIST, SAVINGS_PLANS = "AWS Price List", "AWS Savings Plans API"
YEAR_HOURS, YEAR_SECONDS = 8760, 365 * 86_400
_UPFRONT = {"No Upfront": "none", "Partial Upfront": "partial", "All Upfront": "all"}
_YEARS = {"1yr": 1, "3yr": 3}
_MOST_PAGES = 20


def account_commitments(
    access: Access, instance_type: str, *, region: str, today: date
) -> tuple[tuple[Commitment, ...], tuple[str, ...]]:
    """Return the commitments of a type in a region, and why a list of them is missing.

    Of each plan and number of years: nothing upfront, and what is cheapest. An error of AWS (a missing
    permission, no network) leaves a list out.
    """
    from botocore.exceptions import BotoCoreError, ClientError  # late: half a second that --help need not pay

    asked = replace(access, region=PRICE_LIST_REGION)  # of both services: neither has one in every region
    found, missing = list[Commitment](), list[str]()
    for plan, title, ask, action in (
        (RESERVED, "reserved instances", _reserved, "pricing:GetProducts"),
        (SAVINGS_PLAN, "savings plans", _savings_plans, "savingsplans:DescribeSavingsPlansOfferingRates"),
    ):
        try:
            known = [
                replace(one, plan=plan, instance_type=instance_type, as_of=today.isoformat())
                for one in ask(asked, instance_type, region)
            ]
        except (BotoCoreError, ClientError) as error:
            missing.append(
                f"AWS does not tell the prices of {title} ({error_code(error)}); it takes {action}."
            )
            continue
        found += _worth_showing(known)
    return tuple(found), tuple(missing)


def reserved_in(product: str) -> list[Commitment]:
    """Return the standard reservations in one product of the Price List (JSON text); what has another shape
    is left out.
    """
    try:
        terms = json.loads(product)["terms"]["Reserved"].values()
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
    return [one for term in terms if (one := _reservation(term))]


def _reservation(term: Any) -> Commitment | None:
    try:
        about, prices = term["termAttributes"], term["priceDimensions"].values()
        years, upfront = _YEARS[about["LeaseContractLength"]], _UPFRONT[about["PurchaseOption"]]
        sums = dict.fromkeys(("Hrs", "Quantity"), 0.0)
        for one in prices:
            sums[one["unit"]] += float(one["pricePerUnit"]["USD"])
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    if about.get("OfferingClass") != "standard":
        return None
    return _priced(years, upfront, sums["Hrs"] + sums["Quantity"] / (years * YEAR_HOURS), source=PRICE_LIST)


def _reserved(access: Access, instance_type: str, region: str) -> Iterator[Commitment]:
    for product in products_of(access.client("pricing"), instance_type, region=region):
        yield from reserved_in(product)


def _savings_plans(access: Access, instance_type: str, region: str) -> Iterator[Commitment]:
    """Yield the rates of compute savings plans: dollars of each hour of the term, whatever is paid
    upfront.
    """
    client = access.client("savingsplans")
    wanted = {
        "region": region,
        "instanceType": instance_type,
        "productDescription": "Linux/UNIX",
        "tenancy": "shared",
    }
    asked: dict[str, Any] = {
        "savingsPlanTypes": ["Compute"],
        "products": ["EC2"],
        "serviceCodes": ["AmazonEC2"],
        "filters": [{"name": name, "values": [value]} for name, value in wanted.items()],
    }
    for _ in range(_MOST_PAGES):
        answer = client.describe_savings_plans_offering_rates(**asked)
        yield from (one for row in answer.get("searchResults", ()) if (one := _rate(row)))
        if not answer.get("nextToken"):
            return
        asked["nextToken"] = answer["nextToken"]


def _rate(row: dict[str, Any]) -> Commitment | None:
    offering = row.get("savingsPlanOffering") or {}
    years, rest = divmod(int(offering.get("durationSeconds", 0)), YEAR_SECONDS)
    upfront = _UPFRONT.get(offering.get("paymentOption", ""))
    if rest or row.get("unit") != "Hrs" or offering.get("currency") != "USD" or upfront is None:
        return None
    try:
        rate = float(row.get("rate", ""))
    except ValueError:
        return None
    return _priced(years, upfront, rate, source=SAVINGS_PLANS)


def _priced(years: int, upfront: str, usd_per_hour: float, *, source: str) -> Commitment | None:
    if years not in _YEARS.values() or not 0 < usd_per_hour < math.inf:
        return None
    return Commitment(
        instance_type="",
        plan="",
        years=years,
        upfront=upfront,
        usd_per_hour=usd_per_hour,
        as_of="",
        source=source,
    )


def _worth_showing(known: Sequence[Commitment]) -> list[Commitment]:
    shown = list[Commitment]()
    for years in sorted({one.years for one in known}):
        of_term = [one for one in known if one.years == years]
        # A type may have a price for each of several products: as on demand, the dearest counts.
        dearest = {
            upfront: max((one for one in of_term if one.upfront == upfront), key=lambda one: one.usd_per_hour)
            for upfront in UPFRONT
            if any(one.upfront == upfront for one in of_term)
        }
        cheapest = min(dearest.values(), key=lambda one: one.usd_per_hour)
        shown += [one for upfront, one in dearest.items() if upfront == UPFRONT[0] or one is cheapest]
    return shown
