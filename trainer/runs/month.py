"""Sum what all runs of a calendar month (UTC) cost, and warn if one more passes the account's budget."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from trainer.aws.objects import Objects
from trainer.base.errors import TrainerError
from trainer.runs.store import read_record, record_key
from trainer.runs.stored_receipt import read_receipt

_PARALLEL = 8


@dataclass(frozen=True, kw_only=True)
class MonthOfRuns:
    """The runs that began in a month: the dollars of their receipts, at most, and what open ones plan to
    cost.
    """

    month: str  # such as 2026-11
    spent_usd: float = 0.0
    open_usd: float = 0.0
    unread: int = 0  # receipts and records that can't be read

    def notes(self, budget_usd: float, *, planned_usd: float, most_usd: float) -> list[str]:
        """Return a warning if a run that plans to cost `planned_usd`, and `most_usd` at its hard stop, passes
        a month's budget; 0: there is none.
        """
        left = budget_usd - self.spent_usd - self.open_usd
        planned_usd = planned_usd or most_usd
        if not budget_usd or most_usd <= left:
            return []
        used = f"runs of {self.month} have cost ${self.spent_usd:.2f}"
        used += f", open ones plan ${self.open_usd:.2f}" if self.open_usd else ""
        used += f" ({self.unread} can't be read)" if self.unread else ""
        this = (
            f"this run, planned at ${planned_usd:.2f}, passes"
            if planned_usd > left
            else f"this run passes at its hard stop (${most_usd:.2f})"
        )
        return [f"{used}: {this} account_budget, ${budget_usd:,.2f} a month. Nothing is refused for it."]


def month_of_runs(objects: Objects, now: datetime) -> MonthOfRuns:
    """Sum the runs of a bucket that began in this month: a request for each, three for an open one."""
    month = f"{now:%Y%m}"  # with which the ids of its runs begin
    ids = [month + rest for rest in objects.folders(prefix=f"runs/{month}")]
    with ThreadPoolExecutor(max_workers=_PARALLEL) as pool:
        read = list(pool.map(partial(_dollars, objects), ids))
    return MonthOfRuns(
        month=f"{now:%Y-%m}",
        spent_usd=_sum(spent for spent, _ in filter(None, read)),
        open_usd=_sum(planned for _, planned in filter(None, read)),
        unread=read.count(None),
    )


def _sum(dollars: Iterable[float]) -> float:
    return round(sum(dollars), 6)


def _dollars(objects: Objects, run_id: str) -> tuple[float, float] | None:
    """Return what a run has cost at most, and what an open one plans to; None for one that can't be read."""
    try:
        if receipt := read_receipt(objects, run_id):
            return float(receipt["dollars"]["spent_high"]), 0.0
        if objects.head(key=record_key(run_id)) is None:  # its launch was killed as it began
            return 0.0, 0.0
        record, _ = read_record(objects, run_id)
    except TrainerError:
        return None
    return 0.0, record.estimated_usd or record.budget_usd
