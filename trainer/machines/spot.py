"""Spot as a risk and a saving: the chance that a run ends in time, and what the market saved. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

# Interruptions of one GPU machine an hour. An assumption, not looked up: Bamboo (Thorpe et al., NSDI 2023)
# evaluates rates of 10 %, 16 % and 33 % an hour, from its traces of GPUs on spot; AWS has classes a month
# (Spot Instance Advisor). `trainer.node.snapshots` assumes the same.
INTERRUPTIONS_PER_HOUR = 0.10
# Between two machines: the end of one is seen, the next is bought, and its command starts. Besides the boot.
RECOVERY_SECONDS = 120.0
# Training that is lost at most where a command keeps checkpoints: the longest time between two in S3
MOST_LOST_SECONDS = 120.0
# EC2 user guide, "Billing for interrupted Spot Instances" (recalled, not looked up): a Linux machine that EC2
# itself interrupts in its first hour is not charged. No bill has shown it, so it only widens bounds.
FREE_SECONDS = 3600.0


def chance_to_finish(
    *,
    seconds: float,
    limit_seconds: float,
    restart_seconds: float,
    most_losses: int,
    keeps_checkpoints: bool = True,
    per_hour: float = INTERRUPTIONS_PER_HOUR,
) -> float:
    """Return the chance that work of `seconds` ends within `limit_seconds` although its machines are taken.

    Interruptions are a Poisson process of working time (as in Young, CACM 17(9), 1974, and Daly, FGCS 22(3),
    2006). With checkpoints each costs `restart_seconds`: as many as fit into the time left are survived, and
    `most_losses` at most. Without, work starts over, and a lost try counts in full, which is the worst case.
    """
    slack = limit_seconds - seconds
    if slack < 0:
        return 0.0
    expected = per_hour * seconds / 3600
    if keeps_checkpoints:
        survived = min(most_losses, math.floor(slack / restart_seconds))
        terms = (expected**losses / math.factorial(losses) for losses in range(survived + 1))
        return math.exp(-expected) * sum(terms)
    tries = 1 + min(most_losses, math.floor(slack / (seconds + restart_seconds)))
    return 1 - (1 - math.exp(-expected)) ** tries


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
