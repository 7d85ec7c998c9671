"""The choice among a plan's candidates: the cheapest, the fastest, and the one to take, and why. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from trainer.base.errors import BudgetError
from trainer.base.text import counted
from trainer.launch.candidates import PlanCandidate, hours
from trainer.machines.instances import catalogue

# The figure that each objective minimizes.
OBJECTIVES: dict[str, Callable[[PlanCandidate], float]] = {
    "cost": lambda one: one.dollars_p50,
    "time": lambda one: one.seconds_p50,
    "balanced": lambda one: one.dollars_p50 * one.seconds_p50,
}
WORDS = {
    "cost": "it costs least",
    "time": "it is done first",
    "balanced": "its dollars x hours are the least",
}


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The cheapest, the fastest and the recommended candidate, and why that one is."""

    cheapest: PlanCandidate
    fastest: PlanCandidate
    recommended: PlanCandidate
    why: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        named = {
            "cheapest": self.cheapest,
            "fastest": self.fastest,
            "recommended": self.recommended,
        }
        rows = {
            title: {"instance_type": one.machine.name, "market": one.market} for title, one in named.items()
        }
        return {**rows, "why": list(self.why)}


def recommend(
    candidates: Sequence[PlanCandidate], *, objective: str, deadline: timedelta | None = None
) -> Recommendation:
    """Choose by an objective among the candidates whose times are estimated; nine of ten runs have to end
    within the deadline.

    Raises BudgetError if none does. At least one candidate has to be usable and estimated.
    """
    usable = [one for one in candidates if not one.refused and one.is_estimated]
    in_time = [one for one in usable if deadline is None or one.seconds_p90 <= deadline.total_seconds()]
    if not in_time:
        assert deadline is not None
        first = min(usable, key=lambda one: one.seconds_p90)
        raise BudgetError(
            f"no run ends within {hours(deadline.total_seconds())}",
            why=f"on the fastest, {named(first)}, nine of ten runs end within {hours(first.seconds_p90)}",
            do="Allow more time, or train less.",
        )
    by_cost, by_time = OBJECTIVES["cost"], OBJECTIVES["time"]
    taken = min(in_time, key=lambda one: (OBJECTIVES[objective](one), one.dollars_p50))
    return Recommendation(
        cheapest=min(in_time, key=lambda one: (by_cost(one), by_time(one))),
        fastest=min(in_time, key=lambda one: (by_time(one), by_cost(one))),
        recommended=taken,
        why=tuple(_why(taken, in_time, candidates, objective)),
    )


def named(candidate: PlanCandidate) -> str:
    """Return a candidate's type and market, and how many machines they are."""
    several = f"{candidate.nodes} × " if candidate.nodes > 1 else ""
    return f"{several}{candidate.machine.name} {candidate.market.replace('_', '-')}"


def _why(
    taken: PlanCandidate,
    usable: Sequence[PlanCandidate],
    candidates: Sequence[PlanCandidate],
    objective: str,
) -> list[str]:
    """Return sentences: why this one, how many GPUs, spot or not."""
    return [
        f"of {counted(len(usable), 'candidate')} {WORDS[objective]}",
        *_on_a_gpu(taken, usable, objective),
        *_on_gpus(taken, usable),
        *_on_spot(taken, usable, candidates),
    ]


def _on_a_gpu(taken: PlanCandidate, usable: Sequence[PlanCandidate], objective: str) -> list[str]:
    """Return whether a GPU is worth it, beside the best machine of the other kind."""
    others = [one for one in usable if bool(one.machine.gpus) != bool(taken.machine.gpus)]
    if not others:
        return []
    best = min(others, key=lambda one: (OBJECTIVES[objective](one), one.dollars_p50))
    if taken.machine.gpus:
        return [f"a GPU: without one, {named(best)} would take {_difference(best, taken)}"]
    return [f"a GPU is not worth it: with one, {named(best)} would take {_difference(best, taken)}"]


def _on_gpus(taken: PlanCandidate, usable: Sequence[PlanCandidate]) -> list[str]:
    """Return how many GPUs: beside the nearest other number of them on the same market, and which of two and
    three no type has.
    """
    alike = [
        one
        for one in usable
        if (one.machine.gpu_model, one.market) == (taken.machine.gpu_model, taken.market)
        and one.machine.gpus != taken.machine.gpus
    ]
    if not alike:
        return []
    other = min(alike, key=lambda one: abs(one.machine.gpus - taken.machine.gpus))
    of_chip = (one for one in catalogue().values() if one.gpu_model == taken.machine.gpu_model)
    sold = {one.gpus for one in of_chip if one.launchable}  # weighed here or not
    none = " or ".join(str(count) for count in (2, 3) if count not in sold)
    no_type = f" (no type has {none} of them)" if none else ""
    return [f"{_gpus(taken)}: {_gpus(other)} would take {_difference(other, taken)}{no_type}"]


def _on_spot(
    taken: PlanCandidate, usable: Sequence[PlanCandidate], candidates: Sequence[PlanCandidate]
) -> list[str]:
    """Return whether spot: beside the same type on the other market, or why that is out."""
    of_type = [one for one in candidates if one.machine.name == taken.machine.name]
    both = [one for one in of_type if one.market != taken.market]
    if not both:
        return []
    other = both[0]
    if other.refused:
        return [f"{taken.market.replace('_', '-')}: {other.market.replace('_', '-')} is out, {other.refused}"]
    if other not in usable:
        return [f"{taken.market.replace('_', '-')}: {other.market.replace('_', '-')} is not done in time"]
    if taken.market == "spot":
        lost = f"although interruptions are expected to cost {taken.lost_seconds:.0f} s"
        saved = other.dollars_p50 - taken.dollars_p50
        return [f"spot: it saves ${saved:.2f} of ${other.dollars_p50:.2f}, {lost}"]
    return [f"on-demand: spot would take {_difference(other, taken)}"]


def _gpus(one: PlanCandidate) -> str:
    gpus = one.nodes * one.machine.gpus
    return f"{gpus:g} GPU{'' if gpus <= 1 else 's'}"


def _difference(other: PlanCandidate, taken: PlanCandidate) -> str:
    """Return how much longer and dearer another candidate is."""
    seconds = other.seconds_p50 - taken.seconds_p50
    usd = other.dollars_p50 - taken.dollars_p50
    longer = f"{hours(abs(seconds))} {'longer' if seconds > 0 else 'less'}"
    if abs(seconds) < 60:
        longer = f"{abs(seconds):.0f} s {'longer' if seconds > 0 else 'less'}"
    dearer = f"cost ${abs(usd):.2f} {'more' if usd > 0 else 'less'}"
    return f"{longer} and {dearer}"
