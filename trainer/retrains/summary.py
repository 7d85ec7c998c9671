"""Messages about scheduled runs, and about runs that ended without a command attached: a subject and ten
lines. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.aws.place import place_named
from trainer.base.errors import TrainerError
from trainer.base.instants import iso
from trainer.base.text import counted, some_of
from trainer.retrains.entries import ScheduledRun
from trainer.retrains.schedule import RetrainSchedule
from trainer.runs.attempts import Attempt
from trainer.runs.receipt import is_whole
from trainer.runs.record import RunRecord
from trainer.runs.recovery import lost_machine
from trainer.targets.described import decided, headline_title
from trainer.targets.marks import in_order

MOST_LINES = 10
MOST_SUBJECT = 100  # characters, ASCII: what SNS takes (API reference, Publish, looked up 2026-11-22)
MOST_MODELS, MOST_FAILED, MOST_LAST_LINES, MOST_NOTES, MOST_LINE = 3, 2, 2, 2, 200
MOST_NAMED = 8  # pieces that went to production


@dataclass(frozen=True, kw_only=True)
class PersonMessage:
    """A message to people, as the topic takes it."""

    subject: str
    text: str


def scheduled_summary(
    entry: ScheduledRun,
    schedule: RetrainSchedule | None,
    receipt: Mapping[str, Any] | None,
    before: Mapping[str, Any] | None,
    month_usd: float,
) -> PersonMessage:
    """Return the message about a scheduled time that has ended. `before`: receipt of the last run that was
    done.
    """
    at = schedule.local(entry.scheduled_at) if schedule else entry.scheduled_at
    zone = schedule.time_zone if schedule else "UTC"
    lines = [f"{entry.retrain}, scheduled {at:%a %Y-%m-%d %H:%M} {zone}: {entry.state}"]
    if receipt is not None:
        lines += _of_receipt(receipt, before)
    if entry.refreshed:
        cost = f", ${entry.prepare_usd:.2f}" if entry.prepare_usd else ""
        lines.append(f"data: {entry.refreshed}{cost}")
    if entry.gate:
        lines.append(f"gate: {entry.gate}")
    if entry.promoted:
        lines.append(f"to production: {some_of(entry.promoted, MOST_NAMED)}")
    if schedule is not None:
        lines.append(f"this month: ${month_usd:.2f} of ${schedule.budget_month:.2f}")
    lines += [f"note: {note}" for note in entry.shown_notes[:MOST_NOTES]]
    lines += _of_error(entry.error)
    if run_id := entry.run_id or entry.prepare_run_id:
        again = f"; to run it now: mayfly retrains run {entry.retrain}" if entry.state == "failed" else ""
        lines.append(f"more: mayfly receipts {run_id}, mayfly retrains history {entry.retrain}{again}")
    return _message(f"{entry.retrain}: {entry.state}", lines)


def run_notes(record: RunRecord) -> tuple[str, ...]:
    """Return what a run that is done met on its way: the machines that it lost, and its waits for
    capacity.
    """
    waits = [_waited(item) for item in record.attempts if item.queue and item.created_at]
    return (*map(lost_machine, record.lost), *waits)


def _waited(attempt: Attempt) -> str:
    assert attempt.queue is not None and attempt.created_at is not None
    seconds = (attempt.created_at - attempt.queue.since).total_seconds()
    lasted = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"
    return f"every pool was full: attempt {attempt.number} waited {lasted} for capacity"


def repeated_summary(entry: ScheduledRun, request_id: str) -> PersonMessage:
    """Return the message about another call of a scheduled time, which starts nothing."""
    lines = [
        f"{entry.retrain}: another call named its time {iso(entry.scheduled_at)}, and started nothing",
        f"first call: {iso(entry.began_at)}, request {entry.called_by or 'unknown'}; it is {entry.state}",
        f"this call: request {request_id[:80]}",
        "why: a schedule delivered twice, or somebody called the control function with this time",
        "do: CloudTrail shows who called, if it records calls of functions; a time that was used up runs by"
        f" mayfly retrains run {entry.retrain}",
    ]
    return _message(f"{entry.retrain}: a time was called twice", lines)


def untimely_summary(name: str, error: TrainerError, request_id: str) -> PersonMessage:
    """Return the message about a call for a time that is not now, which starts nothing."""
    lines = [
        f"{name}: a call was refused, request {request_id[:80] or 'unknown'}",
        *_of_error(error.as_dict()),
    ]
    return _message(f"{name}: a call was refused", lines)


def end_summary(receipt: Mapping[str, Any]) -> PersonMessage:
    """Return the message about a run that ended without an attached command to show it."""
    lines = [f"run {receipt['run_id']} ended without a command attached: {receipt['state']}"]
    lines += [*_of_receipt(receipt, None), *_of_error(receipt["error"])]
    return _message(
        f"run {receipt['run_id']}: {receipt['state']}", [*lines, f"more: mayfly receipts {receipt['run_id']}"]
    )


def unread_end_summary(run_id: str, error: TrainerError) -> PersonMessage:
    """Return the message about a run that ended and whose receipt can't be read."""
    lines = [f"run {run_id} ended without a command attached", *_of_error(error.as_dict())]
    return _message(f"run {run_id}: ended", lines)


def _of_receipt(receipt: Mapping[str, Any], before: Mapping[str, Any] | None) -> Iterator[str]:
    last = {str(model["piece"]): model for model in (before or {}).get("models", ())}
    models, failed = in_order(receipt["models"]), receipt["failed"]
    if told := receipt["verdict"]:
        yield told
    for model in models[:MOST_MODELS]:
        yield _of_model(model, last.get(str(model["piece"])))
    if len(models) > MOST_MODELS:
        yield f"and {counted(len(models) - MOST_MODELS, 'more model')}"
    yield from _of_scripts(receipt.get("scripts", ()), (before or {}).get("scripts", ()))
    for item in failed[:MOST_FAILED]:
        more = (
            f" (and {len(failed) - MOST_FAILED} more)"
            if len(failed) > MOST_FAILED and item is failed[MOST_FAILED - 1]
            else ""
        )
        yield f"not made: {item['piece']}: {item['reason']}{more}"
    dollars, kinds = receipt["dollars"], dict.fromkeys(item["instance_type"] for item in receipt["instances"])
    on = f" on {', '.join(kinds)}" if kinds else ""
    seconds = receipt["seconds"]["total"]
    lasted = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"
    title = place_named(receipt["place"]).title
    known = dollars["estimated"] or not receipt.get("scripts")
    estimated = f"estimated ${dollars['estimated']:.2f}" if known else "not estimated"
    yield f"{lasted}{on}, ${dollars['spent_high']:.2f} ({estimated}){f', a {title}' if title else ''}"


def _of_model(model: Mapping[str, Any], before: Mapping[str, Any] | None) -> str:
    """Return a model's mark, its deciding score beside a baseline's, and that of the last run."""
    metrics, judgement = model.get("metrics") or {}, model["judgement"]
    (score, baseline), title = decided(metrics, judgement), headline_title(metrics)
    then = decided(before.get("metrics") or {}, None)[0] if before else "-"
    beside = [baseline, f"last time {then}" if then != "-" else ""]
    notes = ", ".join(one for one in beside if one not in ("", "-"))
    mark = f"{judgement['mark']}, " if judgement else ""
    return f"{model['piece']}: {mark}{title or 'score'} {score}{f' ({notes})' if notes else ''}"


def _of_scripts(scripts: Sequence[Mapping[str, Any]], before: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the best metric of each piece of a script that is done, and the last lines of a single piece."""
    is_search = any("trial" in script for script in scripts)  # whose trials have other values each time
    last = {} if is_search else {str(script["piece"]): script["best"] for script in before}
    done = [script for script in scripts if is_whole(script)]
    if len(scripts) > 1:
        again = sum(script["starts"] > 1 for script in scripts)
        noun = "trials" if is_search else "values"
        yield f"{len(done)} of {len(scripts)} {noun} done{f', {again} started again' if again else ''}"
    for script in done[:MOST_MODELS]:
        best, then = script["best"], last.get(str(script["piece"]), {})
        beside = f" (last time {then['value']:.4g})" if best and then.get("metric") == best["metric"] else ""
        outcome = f"best {best['metric']} {best['value']:.4g}{beside}" if best else "done"
        yield f"{script['piece']}: {outcome}"
    if len(done) > MOST_MODELS:
        yield f"and {counted(len(done) - MOST_MODELS, 'more trial' if is_search else 'more value')}"
    if len(scripts) == 1:
        yield from (f"| {line}" for line in scripts[0]["last_lines"][-MOST_LAST_LINES:])


def _of_error(error: Mapping[str, Any] | None) -> Iterator[str]:
    if error:
        yield f"why: {error['what']}{f' ({why})' if (why := error.get('why')) else ''}"
        if error.get("do"):
            yield f"do: {error['do']}"


def _message(subject: str, lines: list[str]) -> PersonMessage:
    """Shorten to a readable length and to SNS's limit; keep the last lines, which have cause and remedy."""
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES - 4], *lines[-4:]]
    plain = "".join(
        letter if letter.isascii() and letter.isprintable() else "?" for letter in f"mayfly {subject}"
    )
    shown = [
        "".join(letter if letter.isprintable() else " " for letter in line)[:MOST_LINE] for line in lines
    ]
    return PersonMessage(subject=plain[:MOST_SUBJECT], text="\n".join(shown))
