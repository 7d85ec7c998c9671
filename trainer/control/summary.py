"""Messages to people about runs that nobody watched, ten lines each at most, from the receipt and the last run's. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trainer.artifacts.metrics import headline
from trainer.retrains.entries import ScheduledRun
from trainer.runs.receipt import Receipt

MOST_LINES, MOST_LINE, MOST_SUBJECT = 10, 160, 99  # SNS takes subjects below 100 characters of ASCII
MOST_NAMED = 3  # models, and failures, that have a line of their own


@dataclass(frozen=True, kw_only=True)
class PersonalMessage:
    """A message for people: subject and text."""

    subject: str
    text: str


@dataclass(frozen=True, kw_only=True)
class MonthToDate:
    """Dollars of a retrain in its calendar month so far, and what the month may cost."""

    spent_usd: float
    budget_usd: float


def of_run(receipt: Receipt) -> PersonalMessage:
    """Return the message about a run that was launched by a person and ended while nobody watched it."""
    return _message(receipt["run_id"], receipt["state"], _lines_of_run(receipt, None, None))


def of_scheduled(
    entry: ScheduledRun, receipt: Receipt | None, *, last: Receipt | None, month: MonthToDate | None
) -> PersonalMessage:
    """Return the message about a scheduled time that has come to its end; without a receipt it never became a run."""
    name = f"{entry.retrain} {entry.scheduled_at:%Y-%m-%d %H:%M} UTC"
    if receipt is not None:
        return _message(name, entry.state, [*_lines_of_run(receipt, last, month), *entry.notes])
    lines = [*_why(entry.error), f"See: mayfly retrains history {entry.retrain}", *entry.notes]
    return _message(name, entry.state, lines)


def _lines_of_run(receipt: Receipt, last: Receipt | None, month: MonthToDate | None) -> list[str]:
    models, failed, dollars = receipt["models"], receipt["failed"], receipt["dollars"]
    minutes = receipt["seconds"]["total"] / 60
    cost = f"${dollars['spent_low']:.2f} to ${dollars['spent_high']:.2f}, estimated ${dollars['estimated']:.2f}"
    so_far = f"; this month ${month.spent_usd:.2f} of ${month.budget_usd:.2f}" if month else ""
    lines = [f"{len(models)} of {len(models) + len(failed)} models in {minutes:.0f} min; {cost}{so_far}"]
    if receipt["rehearsal"]:
        lines[0] += " (a rehearsal)"
    lines += _why(receipt["error"])
    lines += _scores(models, {model["piece"]: model for model in last["models"]} if last else {})
    lines += _some(f"failed: {item['piece']}: {item.get('reason', '')}" for item in failed)
    return [*lines, f"See: mayfly receipts {receipt['run_id']}, mayfly logs {receipt['run_id']}"]


def _scores(models: Iterable[Mapping[str, Any]], last: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = []
    for model in models:
        before = last.get(model["piece"])
        beside = f" (last run {headline(before.get('metrics') or {})})" if before else ""
        lines.append(f"{model['piece']}: {headline(model.get('metrics') or {})}{beside}")
    return _some(lines)


def _some(lines: Iterable[str]) -> list[str]:
    every = list(lines)
    more = [f"and {len(every) - MOST_NAMED} more"] if len(every) > MOST_NAMED else []
    return [*every[:MOST_NAMED], *more]


def _why(error: Mapping[str, Any] | None) -> list[str]:
    """Return what went wrong and what to do, each on a line."""
    if not error:
        return []
    why = f" ({error['why']})" if error.get("why") else ""
    return [f"{error['what']}{why}", *([str(error["do"])] if error.get("do") else [])]


def _message(name: str, state: str, lines: Iterable[str]) -> PersonalMessage:
    subject = "".join(letter for letter in f"mayfly: {name}: {state}" if " " <= letter <= "~")
    plain = ("".join(letter if letter.isprintable() else " " for letter in line)[:MOST_LINE] for line in lines)
    return PersonalMessage(subject=subject[:MOST_SUBJECT], text="\n".join(list(plain)[:MOST_LINES]))
