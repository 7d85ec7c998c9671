"""Compute the dollars that spot saved, as a low and a high bound. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# EC2 user guide, "Billing for interrupted Spot Instances", looked up 2026-11-26: a Linux machine (SUSE apart)
# that EC2 itself interrupts in its first hour is not charged, one that its user ends is, by the second. No
# bill has shown it, so it only widens bounds.
FREE_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True)
class SpotBill:
    """One spot instance: its billed seconds, bounded by its life; its prices; whether AWS took it."""

    seconds_low: float
    seconds_high: float
    usd_per_hour: float
    on_demand_usd_per_hour: float
    taken: bool

    @property
    def may_be_free(self) -> bool:
        """Return whether it may have cost nothing: AWS took it within its first hour."""
        return self.taken and self.seconds_low < FREE_SECONDS


def saved_usd(bills: Iterable[SpotBill], *, twice_seconds: float) -> tuple[float, float]:
    """Return the bounds of what spot saved against on-demand machines, in dollars; below zero it cost more.

    The high one has every second at the difference of the prices, and what AWS may not charge. The low one
    has `twice_seconds` less, the most that was computed a second time: an on-demand machine would not have.
    """
    low = high = dearest = 0.0
    for bill in bills:
        cheaper = (bill.on_demand_usd_per_hour - bill.usd_per_hour) / 3600
        least, most = sorted((bill.seconds_low * cheaper, bill.seconds_high * cheaper))
        free = min(bill.seconds_high, FREE_SECONDS) if bill.may_be_free else 0.0
        low, high = low + least, high + most + free * bill.usd_per_hour / 3600
        dearest = max(dearest, bill.on_demand_usd_per_hour)
    return low - twice_seconds / 3600 * dearest, high
