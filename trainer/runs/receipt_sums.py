"""Sum the time and dollars of receipts by month, job or symbol. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trainer.job.model_names import TRIAL

By = Literal["month", "job", "symbol"]
NO_SYMBOL = "-"  # of scripts and prepare runs


@dataclass(frozen=True, kw_only=True)
class CostSum:
    """The runs of a group, their seconds, their dollars as low and high bounds, and what was estimated of
    those with an estimate.
    """

    group: str
    runs: int = 0
    seconds: float = 0.0
    low: float = 0.0
    high: float = 0.0
    estimated: float = 0.0
    estimated_runs: int = 0

    def plus(self, receipt: Mapping[str, Any], share: float) -> CostSum:
        """Return the sum with a share of a run's time and dollars."""
        dollars = receipt["dollars"]
        return CostSum(
            group=self.group,
            runs=self.runs + 1,
            seconds=self.seconds + share * receipt["seconds"]["total"],
            low=self.low + share * dollars["spent_low"],
            high=self.high + share * dollars["spent_high"],
            estimated=self.estimated + share * dollars["estimated"],
            estimated_runs=self.estimated_runs + (dollars["estimated"] > 0),
        )


def summed(receipts: Iterable[Mapping[str, Any]], by: By) -> list[CostSum]:
    """Return the sums of each group: months and jobs in the order of their runs, symbols the dearest first.

    A run's time and dollars are divided evenly over its models, made or not, and a model's over its symbols.
    """
    sums: dict[str, CostSum] = {}
    for receipt in receipts:
        for group, share in _groups(receipt, by):
            sums[group] = sums.get(group, CostSum(group=group)).plus(receipt, share)
    if by == "symbol":
        return sorted(sums.values(), key=lambda one: (-one.high, one.group))
    return list(sums.values())


def _groups(receipt: Mapping[str, Any], by: By) -> Iterator[tuple[str, float]]:
    """Yield the groups of a run, each with its share."""
    if by == "month":
        yield str(receipt["created_at"])[:7], 1.0
    elif by == "job":
        yield str(receipt["job"].get("name") or NO_SYMBOL), 1.0
    else:
        made_or_not = [*receipt["models"], *receipt["failed"]] if receipt["work"] == "train" else []
        pieces = [piece for piece in made_or_not if piece["kind"] != TRIAL]
        shares: dict[str, float] = {}
        for piece in pieces:
            for symbol in piece["series"]:
                part = 1 / len(pieces) / len(piece["series"])
                shares[str(symbol)] = shares.get(str(symbol), 0.0) + part
        yield from shares.items() or [(NO_SYMBOL, 1.0)]
