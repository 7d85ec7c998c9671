"""Spot as a risk: the chance that a run ends in time although its machines are taken, and the time that it
expects to lose. Pure."""

from __future__ import annotations

import math

# Interruptions of one GPU machine an hour. An assumption, not looked up: Bamboo (Thorpe et al., NSDI 2023)
# evaluates rates of 10 %, 16 % and 33 % an hour, from its traces of GPUs on spot; AWS has classes a month
# (Spot Instance Advisor). `trainer.node.snapshots` assumes the same.
INTERRUPTIONS_PER_HOUR = 0.10
# Between two machines: the end of one is seen, the next is bought, and its command starts. Besides the boot.
RECOVERY_SECONDS = 120.0
MOST_EXPECTED = 50.0  # interruptions that a figure is made for


def chance_to_finish(
    *,
    seconds: float,
    limit_seconds: float,
    restart_seconds: float,
    most_losses: int,
    keeps_checkpoints: bool,
    per_hour: float,
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


def expected_loss(
    *, seconds: float, restart_seconds: float, keeps_checkpoints: bool, machines: int = 1
) -> float:
    """Return the seconds that work of `seconds` is expected to lose to interruptions of any of so many
    machines.

    With checkpoints each interruption costs `restart_seconds`. Without, work starts over (Daly, FGCS 22(3),
    2006, for no checkpoint): seconds x (e^x - 1) / x in all, where x interruptions are expected.
    """
    per_hour = INTERRUPTIONS_PER_HOUR * machines
    expected = min(per_hour * seconds / 3600, MOST_EXPECTED)
    if keeps_checkpoints:
        return expected * restart_seconds
    again = math.expm1(expected)
    return again * 3600 / per_hour - seconds + again * restart_seconds
