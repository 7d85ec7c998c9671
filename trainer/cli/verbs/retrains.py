"""`mayfly retrains`: publish the job of a schedule, list its times and their results, run it now,
pause it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Any

from trainer.aws.access import aws_error, meaning_of
from trainer.aws.objects import Objects, open_objects
from trainer.aws.place import Place
from trainer.aws.stack import read_stack
from trainer.aws.stack_outputs import StackOutputs
from trainer.base.errors import UsageError, nearest
from trainer.base.instants import iso, utc_now
from trainer.cli.connect import connected, same_place
from trainer.cli.output import money, say, say_json, warn
from trainer.cli.terminal import show
from trainer.cli.verbs.publish import PlannedNow, plan_now, publish, swap
from trainer.cli.views.plan import work_view
from trainer.cli.views.table import FittedTable
from trainer.control.published import publication
from trainer.launch.work import Account
from trainer.retrains.entries import ScheduledRun, UnreadableEntry, entry_keys, read_entry, run_id_of
from trainer.retrains.published import PublishedRetrain, UnreadablePublication, read_published, verified_job
from trainer.retrains.schedule import RetrainSchedule, read_schedules

SHOWN_TIMES = 3
UTC = "UTC"  # a time of such a schedule is told once


def run(arguments: argparse.Namespace) -> int:
    """Carry out one action of the verb."""
    program = arguments.action in ("publish", "run")  # these need a rehearsal's stack
    with connected(rehearse=arguments.rehearse, program=program) as access:
        outputs = read_stack(access, stack=arguments.stack)
        objects = open_objects(access, outputs.bucket)
        if arguments.action == "list":
            return _list(arguments, outputs, objects, access.place)
        account = Account(access=access, outputs=outputs, objects=objects)
        schedule = _schedule(outputs, arguments.name, access.place)
        return ACTIONS[arguments.action](arguments, schedule, account)


def _schedule(outputs: StackOutputs, name: str, place: Place) -> RetrainSchedule:
    schedules = {schedule.name: schedule for schedule in read_schedules(outputs.retrains)}
    if name not in schedules:
        do = nearest(name, schedules) or place.no_retrain
        raise UsageError(f"the stack's setting `retrains` has no '{name}'", do=do)
    return schedules[name]


def _publish(arguments: argparse.Namespace, schedule: RetrainSchedule, account: Account) -> int:
    retrain, ready = publish(arguments, schedule, account)
    where, by_hash = same_place(arguments), f"job {retrain.job_sha256[:12]}, code {retrain.code_sha256[:12]}"
    said = [f"published {retrain.name}: {by_hash}, image {retrain.image_id}"]
    said += [f"it is paused: mayfly retrains pause {retrain.name} --off{where}"] if retrain.paused else []
    return _planned(arguments, schedule, retrain, ready, said)


def _preview(arguments: argparse.Namespace, schedule: RetrainSchedule, account: Account) -> int:
    retrain = _published(account.objects, schedule.name)[0]
    job, stored = verified_job(account.objects, retrain), publication(retrain, account.objects)
    image = retrain.image_id
    ready = plan_now(job, stored.bundle, stored.published, schedule, account, image_id=image)
    return _planned(arguments, schedule, retrain, ready, [])


def _planned(
    arguments: argparse.Namespace,
    schedule: RetrainSchedule,
    retrain: PublishedRetrain,
    ready: PlannedNow,
    said: list[str],
) -> int:
    """Print the plan of a retrain with its notes, and its next times."""
    if arguments.json:
        plan, described = ready.plan.to_dict(), _described(schedule, retrain)
        say_json({"retrain": described, "plan": plan, "notes": list(ready.notes)})
    else:
        show(work_view(ready.work, ready.plan, ready.work.data))
        say(*(f"note: {note}" for note in ready.notes), *said, *_times(schedule))
    return 0


def _run_now(arguments: argparse.Namespace, schedule: RetrainSchedule, account: Account) -> int:
    """Invoke the control function as the schedule would, with the current second as the scheduled time."""
    from botocore.exceptions import BotoCoreError, ClientError  # late, like boto3 itself

    now = utc_now().replace(microsecond=0)
    history = f"mayfly retrains history {schedule.name}{same_place(arguments)}"
    payload = json.dumps({"retrain": schedule.name, "scheduled_time": iso(now)}).encode()
    try:
        client, control = account.access.client("lambda"), account.outputs.control_arn
        client.invoke(FunctionName=control, InvocationType="Event", Payload=payload)
    except (BotoCoreError, ClientError) as error:
        failed = aws_error(error, "cannot call the control function")
        if meaning_of(error).step(exception=True) == "replay":  # only the answer may be lost
            failed.do = f"It may have been called: see {history} before you call it again. {failed.do}"
        raise failed from error
    run_id = run_id_of(schedule.name, now)
    if arguments.json:
        say_json({"run_id": run_id, "scheduled_at": iso(now)})
    else:
        say(run_id)
        warn(f"control was called; {history} shows the result")
    return 0


def _pause(arguments: argparse.Namespace, schedule: RetrainSchedule, account: Account) -> int:
    retrain, etag = _published(account.objects, schedule.name)
    changed = replace(retrain, paused=not arguments.off)
    if changed != retrain:
        swap(account.objects, changed, replaces=etag)
    if arguments.json:
        say_json({"retrain": _described(schedule, changed)})
    elif changed.paused:
        say(f"{schedule.name} is paused: its scheduled times are skipped; an open run is not affected")
    else:
        say(f"{schedule.name} is resumed", *_times(schedule))
    return 0


def _list(arguments: argparse.Namespace, outputs: StackOutputs, objects: Objects, place: Place) -> int:
    rows, documents = [], []
    for schedule in read_schedules(outputs.retrains):
        stored = _readable(objects, schedule.name)
        last = next(_entries(objects, reversed(entry_keys(objects, schedule.name))), None)
        documents.append({**_described(schedule, stored), "last": _entry(last) if last else None})
        rows.append(_row(schedule, stored, last))
    if arguments.json:
        say_json({"retrains": documents})
    elif rows:
        show(FittedTable(rows, right=("spent",)))
    else:
        say(f"the stack has no retrains. {place.no_retrain}")
    return 0


def _history(arguments: argparse.Namespace, schedule: RetrainSchedule, account: Account) -> int:
    entries = list(_entries(account.objects, entry_keys(account.objects, schedule.name)))
    if arguments.json:
        say_json({"retrain": schedule.name, "history": [_entry(entry) for entry in entries]})
    elif entries:
        show(history_table(entries))
    else:
        say(f"{schedule.name} has not run yet")
    return 0


ACTIONS = {"publish": _publish, "preview": _preview, "run": _run_now, "pause": _pause, "history": _history}


def _published(objects: Objects, name: str) -> tuple[PublishedRetrain, str]:
    stored = read_published(objects, name)
    if stored is None:
        do = f"Publish it: mayfly retrains publish {name} --job FILE."
        raise UsageError(f"retrain {name} was never published", do=do)
    return stored


def _readable(objects: Objects, name: str) -> PublishedRetrain | None:
    """Return a publication for the list; None, with a warning, for a damaged one."""
    try:
        stored = read_published(objects, name)
    except UnreadablePublication as error:
        warn(f"warning: {error}")
        return None
    return stored[0] if stored else None


def _entries(objects: Objects, keys: Iterable[str]) -> Iterator[ScheduledRun]:
    """Yield the entries of these keys, with a warning for each that is damaged. Any other error is raised: an
    older one would count as the last.
    """
    for key in keys:
        try:
            yield read_entry(objects, key)[0]
        except UnreadableEntry as error:
            warn(f"warning: {error}")


def _coming(schedule: RetrainSchedule) -> list[datetime]:
    return list(islice(schedule.times(utc_now()), SHOWN_TIMES))


def _times(schedule: RetrainSchedule) -> list[str]:
    """Return the next scheduled times in words."""
    zone = schedule.time_zone
    return [
        f"next  {schedule.local(at):%a %Y-%m-%d %H:%M} {zone}"
        + ("" if zone == UTC else f"   {at:%Y-%m-%d %H:%M} UTC")
        for at in _coming(schedule)
    ]


def _state(retrain: PublishedRetrain | None) -> str:
    return "never published" if retrain is None else "paused" if retrain.paused else "on"


def _row(
    schedule: RetrainSchedule, retrain: PublishedRetrain | None, last: ScheduledRun | None
) -> dict[str, str]:
    coming = next(schedule.times(utc_now()))
    return {
        "retrain": schedule.name,
        "next": f"{schedule.local(coming):%a %Y-%m-%d %H:%M} {schedule.time_zone}",
        UTC: "-" if schedule.time_zone == UTC else f"{coming:%Y-%m-%d %H:%M}",
        "state": _state(retrain),
        "last run": f"{last.state} {last.scheduled_at:%Y-%m-%d}" if last else "-",
        "spent": money(last.spent_usd) if last else "-",
    }


def history_table(entries: Iterable[ScheduledRun]) -> FittedTable:
    """Return the table of the results of scheduled times."""
    return FittedTable(map(_history_row, entries), right=("spent",), leaving=("spent",), wraps=("why",))


def _history_row(entry: ScheduledRun) -> dict[str, str]:
    return {
        "scheduled": f"{entry.scheduled_at:%Y-%m-%d %H:%M} UTC",
        "state": entry.state,
        "run": entry.run_id or "-",
        "spent": money(entry.spent_usd),
        "why": str((entry.error or {}).get("what", ""))
        or "; ".join(filter(None, (entry.gate, *entry.shown_notes))),
    }


def _described(schedule: RetrainSchedule, retrain: PublishedRetrain | None) -> dict[str, Any]:
    """Return a retrain for --json."""
    published = None
    if retrain is not None:
        names = ("job_sha256", "code_sha256", "image_id", "commit")
        published = {name: getattr(retrain, name) for name in names}
        published["published_at"] = iso(retrain.published_at)
    coming = [{"local": schedule.local(at).isoformat(), "utc": iso(at)} for at in _coming(schedule)]
    return {**schedule.to_dict(), "state": _state(retrain), "published": published, "next": coming}


def _entry(entry: ScheduledRun) -> dict[str, Any]:
    """Return an entry for --json."""
    same = {name: getattr(entry, name) for name in ("state", "most_usd", "spent_usd", "error", "gate")}
    at, runs = iso(entry.scheduled_at), (entry.run_id or None, entry.score_run_id or None)
    known = {"run_id": runs[0], "score_run_id": runs[1], **same, "promoted": list(entry.promoted)}
    return {"scheduled_at": at, **known, "notes": list(entry.shown_notes)}
