"""The last check: what AWS billed for the machines of all others, at most what they said."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from tests.live.context import Live, require
from trainer.base.instants import from_iso, iso

LAG = timedelta(
    hours=20
)  # after which Cost Explorer has most of a day (it is updated at least once in 24 hours)
TYPES = ("t3.large", "g4dn.xlarge", "g6.xlarge", "g6.12xlarge")  # of the checks' machines
# On what receipts say: Cost Explorer dates usage by its hour, and its figures move until the month is closed.
ALLOWANCE = 1.1


def first_paid(seen: Mapping[str, Any]) -> datetime | None:
    """Return when the first check that costs something began; None before it."""
    began = [entry["began"] for name, entry in seen.items() if entry["dollars"] and name != "bill"]
    return min(map(from_iso, began), default=None)


def not_yet(live: Live) -> str:
    """Return why the bill can't be looked at yet."""
    began = first_paid(live.seen)
    if began is None:
        return "no check has cost anything yet"
    due = began + LAG
    return (
        ""
        if live.now() >= due
        else f"AWS's figures come late: try again from {iso(due.replace(microsecond=0))} on"
    )


def bounds(seen: Mapping[str, Any]) -> tuple[float, float]:
    """Return the least and the most that the machines of all checks cost: by their receipts, else by the most
    that a check can cost.
    """
    low = high = 0.0
    for name, entry in seen.items():
        spent = list(entry.get("spent", {}).values())
        low += sum(least for least, _ in spent)
        most = sum(most for _, most in spent)
        # A check that failed may have started what it has no receipt of.
        high += most if spent and entry["passed"] else max(most, entry["dollars"] if name != "bill" else 0)
    return low, high


def bill(live: Live) -> None:
    """Require that EC2 billed something for the checks' types since the first of them, and at most what
    they may have cost.
    """
    began = first_paid(live.seen)
    require(began, "no check has cost anything")
    assert began is not None
    days = {"Start": f"{began:%Y-%m-%d}", "End": f"{live.now() + timedelta(days=1):%Y-%m-%d}"}
    services = {"Dimensions": {"Key": "SERVICE", "Values": ["Amazon Elastic Compute Cloud - Compute"]}}
    types = {"Dimensions": {"Key": "INSTANCE_TYPE", "Values": list(TYPES)}}
    usage = {"Dimensions": {"Key": "RECORD_TYPE", "Values": ["Usage"]}}  # without credits that pay it
    asked: dict[str, Any] = {"Granularity": "DAILY", "Metrics": ["UnblendedCost"]}
    asked["Filter"] = {"And": [services, types, usage]}
    found = live.client("ce").get_cost_and_usage(TimePeriod=days, **asked)["ResultsByTime"]
    billed = sum(float(item["Total"]["UnblendedCost"]["Amount"]) for item in found)
    low, high = bounds(live.seen)
    live.say(f"EC2 billed {billed:.2f} $ for {', '.join(TYPES)} since {days['Start']}")
    live.say(f"the receipts say {low:.2f} $ at least; the checks {high:.2f} $ at most")
    require(billed > 0, "AWS billed nothing: its figures are not there yet. Try again later")
    require(billed <= high * ALLOWANCE, f"AWS billed {billed:.2f} $, more than {high:.2f} $ by a tenth")
