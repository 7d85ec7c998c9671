"""Calls about a retrain's scheduled times: begin one, find those that are unfinished or overdue, and tell
their ends. `control.retrain` advances each.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from trainer.aws.access import Access, aws_errors
from trainer.aws.objects import Conflict
from trainer.aws.stack_outputs import StackOutputs
from trainer.base.errors import ConfigError, ConnectionFailed, TrainerError
from trainer.base.instants import iso
from trainer.control.retrain import advance
from trainer.control.retrain_home import RetrainHome
from trainer.retrains.decision import spent_in_month
from trainer.retrains.entries import PREFIX, ScheduledRun, begin_entry, change_entry, entry_key, read_entry
from trainer.retrains.published import UnreadablePublication, read_published
from trainer.retrains.schedule import is_name, read_schedules
from trainer.retrains.summary import PersonMessage, repeated_summary, scheduled_summary
from trainer.runs.receipt import Receipt
from trainer.runs.stored_receipt import UnreadableReceipt, read_receipt

GRACE = timedelta(minutes=15)  # how late the call of a scheduled time may come
LOOKED_BACK = timedelta(days=8)  # how long a missed scheduled time is reported
TRIES = 5  # of noting a call in an entry, against other calls


def begin(home: RetrainHome, name: str, scheduled_at: datetime, *, request_id: str = "") -> ScheduledRun:
    """Create the entry of a scheduled time and advance it as far as possible. Raises ConfigError for an
    invalid name.

    `request_id` is Lambda's, of the call; another call of the same time is noted in the entry and announced.
    """
    if not is_name(name):  # it becomes a part of keys
        raise ConfigError(
            f"{name[:80]!r} is not a retrain", do="mayfly retrains list shows those of the stack."
        )
    objects, now = home.cloud.objects, home.cloud.now()
    entry = begin_entry(objects, name, scheduled_at, now, request_id=request_id)
    if entry.is_called_again(request_id):
        _note_call(home, entry, request_id)
    return advance(home, entry) if entry.is_open else entry


def _note_call(home: RetrainHome, entry: ScheduledRun, request_id: str) -> None:
    """Announce another call of a scheduled time, and note it in the entry. Raises ConnectionFailed if others
    changed the entry each time: Lambda repeats the call.
    """
    key = entry_key(entry.retrain, entry.scheduled_at)
    home.publish(repeated_summary(entry, request_id))
    for _ in range(TRIES):
        entry, etag = read_entry(home.cloud.objects, key)
        if not entry.is_called_again(request_id):
            return
        noted = replace(entry, called_again=(*entry.called_again, request_id))
        with suppress(Conflict):
            change_entry(home.cloud.objects, noted, etag, home.cloud.now())
            return
    raise ConnectionFailed(f"others changed {key} each time", do="The next call tries again.")


def unfinished(home: RetrainHome, problems: dict[str, str]) -> list[ScheduledRun]:
    """Return every scheduled time that has not ended, or whose end was not announced, also of a retrain of an
    earlier setting.

    If a retrain's entries can't be read, the error is added to `problems` under its name.
    """
    entries: list[ScheduledRun] = []
    names = [schedule.name for schedule in read_schedules(home.outputs.retrains)]
    try:  # of one that was taken out of the stack's setting a run may be open, whose models are to be kept
        names += [name for name in home.cloud.objects.folders(prefix=PREFIX) if is_name(name)]
    except TrainerError as error:
        problems[PREFIX] = str(error)
    for name in dict.fromkeys(names):
        try:
            entries += [entry for entry in home.entries(name) if entry.is_open or entry.is_untold]
        except TrainerError as error:
            problems[name] = str(error)
    return entries


def overdue(home: RetrainHome, *, changed_at: datetime) -> list[str]:
    """Return the published retrains whose last scheduled time has no entry a quarter of an hour later: it was
    missed.

    `changed_at`: when the stack's outputs were last written. A time before that may be one of a new
    schedule alone.
    """
    now, late = home.cloud.now(), []
    for schedule in read_schedules(home.outputs.retrains):
        published_at = _published_at(home, schedule.name)
        if published_at is None:
            continue
        since = max(published_at, changed_at, now - LOOKED_BACK)
        expected = schedule.last_time(now - GRACE, since=since)
        if expected and home.cloud.objects.head(key=entry_key(schedule.name, expected)) is None:
            late.append(f"{schedule.name} of {iso(expected)}")
    return late


def _published_at(home: RetrainHome, name: str) -> datetime | None:
    """Return when a retrain was published; the distant past for an unreadable publication, whose times fail
    visibly.
    """
    try:
        stored = read_published(home.cloud.objects, name)
    except UnreadablePublication:
        return home.cloud.now() - LOOKED_BACK
    return stored[0].published_at if stored else None


def tell(home: RetrainHome, entry: ScheduledRun) -> ScheduledRun:
    """Publish the summary of an ended scheduled time: claim it, publish, note that it was announced.

    If a call dies in between, the claim remains, and a later call publishes again after TELLING.
    """
    objects, key = home.cloud.objects, entry_key(entry.retrain, entry.scheduled_at)
    entry, etag = read_entry(objects, key)
    if not entry.may_be_told(home.cloud.now()):
        return entry
    try:
        change_entry(objects, replace(entry, telling_at=home.cloud.now()), etag, home.cloud.now())
    except Conflict:  # another call announces it
        return entry
    entry, etag = read_entry(objects, key)
    schedule, others = home.schedule(entry.retrain), home.entries(entry.retrain, month_of=entry.scheduled_at)
    receipt = _readable_receipt(home, entry.run_id) if entry.run_id else None
    done = [one.run_id for one in others if one.state == "done" and one.scheduled_at < entry.scheduled_at]
    before = _readable_receipt(home, done[-1]) if done and receipt else None
    month = spent_in_month(schedule, entry, others) if schedule else 0.0
    home.publish(scheduled_summary(entry, schedule, receipt, before, month))
    return change_entry(objects, replace(entry, told_at=home.cloud.now()), etag, home.cloud.now())


def _readable_receipt(home: RetrainHome, run_id: str) -> Receipt | None:
    """Return a run's receipt; None for one that is missing, or of another version: a message does without."""
    try:
        return read_receipt(home.cloud.objects, run_id)
    except UnreadableReceipt:
        return None


def publisher(access: Access, outputs: StackOutputs) -> Callable[[PersonMessage], None]:
    """Return a function that publishes a message to the stack's topic; it raises TrainerError."""

    def publish(message: PersonMessage) -> None:
        with aws_errors("cannot publish to the stack's topic"):
            access.client("sns").publish(
                TopicArn=outputs.topic_arn, Subject=message.subject, Message=message.text
            )

    return publish
