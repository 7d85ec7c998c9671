"""`mayfly retrains publish`: check a job as a launch would, upload job and code by hash, replace the
publication.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import trainer
from trainer.aws.objects import Conflict, Objects
from trainer.aws.stack_outputs import StackOutputs
from trainer.base.errors import BudgetError, ConfigError, UsageError
from trainer.base.instants import utc_now
from trainer.cli.sources.candles import find_candles
from trainer.cli.sources.desk import desk_of
from trainer.cli.sources.refresh_script import refuse_unfetched, with_refresh_script
from trainer.cli.terminal import Console
from trainer.control.check_account import check_account
from trainer.control.published import Publication
from trainer.data.table import FETCH, K_FOLD
from trainer.job.job import Job
from trainer.job.pieces import kind_of
from trainer.job.reading import load_job, parse_job
from trainer.launch.bundle import Bundle, BundleName, build_bundle, upload_bundle
from trainer.launch.cpu_run import PREPARE, SCORE, CpuRun
from trainer.launch.inputs import data_set_of
from trainer.launch.machines import machines_of, on_demand_price
from trainer.launch.plan import LaunchPlan
from trainer.launch.planning import (
    FoundCandles,
    listed_inputs,
    offers_for,
    plan_work,
    resolve,
    within_budget,
)
from trainer.launch.preflight import Offers
from trainer.launch.start import record_of
from trainer.launch.uploads import DeskFile, start_model_file, upload_data
from trainer.launch.work import Account, ScriptWork, TrainingWork
from trainer.machines.chips import packaged, user_file, user_tables
from trainer.machines.cpu_types import cpu_instance_type
from trainer.machines.instances import InstanceType
from trainer.machines.planner import dollars
from trainer.retrains.published import (
    PublishedRetrain,
    PublishedScript,
    UnreadablePublication,
    published_key,
    read_published,
    write_published,
)
from trainer.retrains.schedule import BETTER, PUBLISHED_FORMAT, RetrainSchedule
from trainer.train.inputs.encoder import check_inputs, pinned
from trainer.train.inputs.encoder import portable as portable_start
from trainer.train.own.check import checked, contents, portable

GAP_DAYS = 3 * 366  # within which a scheduled time may not fall into the gap of a clock change


@dataclass(frozen=True, kw_only=True)
class Sent:
    """The content of a publication: job and code, a script's files and data, and an encoder to upload."""

    job: Job
    bundle: Bundle
    script: PublishedScript | None = None
    start_model: DeskFile | None = None
    at_desk: Job | None = None  # with the encoder's path


@dataclass(frozen=True, kw_only=True)
class PlannedNow:
    """A retrain planned for now, as control does at each scheduled time."""

    work: TrainingWork | ScriptWork
    offers: Offers
    plan: LaunchPlan
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class DeskPublication(Publication):
    """Sources of a retrain that is planned at a desk, where files that no launch uploaded are checked."""

    notes: list[str]

    def candles(self, job: Job, account: Account) -> FoundCandles:
        """Choose the set's files; those that nobody checked are fetched, checked and indexed here, since
        control can't.
        """
        listed_inputs(job, account.objects)
        found = find_candles(job, None, account.objects, place=account.place)
        self.notes.extend(found.notes)
        return found


def refuse_k_folds(job: Job) -> None:
    """Raise UsageError for a job whose models would know bars after their test spans."""
    if job.data.split == K_FOLD:
        why = "a model of k folds knows bars after its test, and is never compared with one in production"
        raise UsageError("data.split = kfold in a retrain", why=why, do="Set data.split = walk.")


def track_notes(job: Job) -> list[str]:
    """Return a note on a job's trackers, to which no scheduled run is written."""
    trackers = "".join(f" --track {tracker}" for tracker in dict.fromkeys(job.track))
    return [f"no desk tracks a scheduled run; after it: mayfly pull RUN{trackers}"] if trackers else []


def publish(
    arguments: argparse.Namespace, schedule: RetrainSchedule, account: Account
) -> tuple[PublishedRetrain, PlannedNow]:
    """Publish a job for a retrain; return the publication and its plan of now. Checks come before writes."""
    now, access, outputs = utc_now(), account.access, account.outputs
    refuse_unfit_stack(outputs)
    refuse_skipped_times(schedule, now)
    job = parse_job(load_job(Path(arguments.job)), {}, arguments.settings)
    _refuse_own_profile(job)
    refuse_k_folds(job)
    _refuse_types(machines_of(job), outputs)
    sent = SENT[kind_of(job).command](job, account)
    ready = plan_now(sent.job, sent.bundle, sent.script, schedule, account)
    record = record_of(ready.work, ready.plan, account, preflight_at=now, now=now)
    notes = [*ready.notes, *track_notes(job), *check_account(access, outputs, record, sweep=True)]
    if sent.script and schedule.promote != "never":
        notes.append(
            f"promote is {schedule.promote}: a script makes no model of Mayfly's, so nothing of it goes to"
            " production"
        )
    if sent.start_model and sent.at_desk:
        check_inputs(sent.at_desk.with_data(timeframe=ready.work.job.data.timeframe))
        upload_data([sent.start_model], access, bucket=outputs.bucket)
    retrain = _written(schedule.name, sent, ready.offers, account.objects, now)
    return retrain, replace(ready, notes=tuple(notes))


def _training_sent(job: Job, account: Account) -> Sent:
    """Return a training as it is published: without a path of this desk."""
    if job.data.path:
        do = (
            f"Upload it once, and leave data.path out: mayfly data push {job.data.path} --set {job.data.set}."
        )
        raise UsageError("data.path is a folder of this desk", why="a retrain reads its data set", do=do)
    if job.data.refresh == FETCH:
        refuse_unfetched(account.objects, job.data.set)
    job, refresh = with_refresh_script(job)
    job = pinned(checked(job))
    bundle = build_bundle(own_files={**contents(job), **refresh})
    sent = portable_start(portable(job))
    return Sent(job=sent, bundle=bundle, start_model=start_model_file(job), at_desk=job)


def _script_sent(job: Job, account: Account) -> Sent:
    """Return a script as it is published: with its data uploaded, or the data set to list at each time."""
    outputs = account.outputs
    listed = bool(data_set_of(job.data.folder, outputs.bucket))
    if listed and job.script.secrets:
        why = "the role that reads secrets reads no data set"
        do = "Leave script.secrets out, or name a folder of this desk, whose files are pinned now."
        raise UsageError("a script with secrets can't read a data set", why=why, do=do)
    with ExitStack() as ends:
        console = Console(plain=True)
        ends.callback(console.close)
        at_desk = job.with_data(folder="") if listed else job
        desk = desk_of(at_desk, console, ends, place=account.place).begin()
        work = resolve(desk.job, desk, account).uploaded(account, console.update)
    assert isinstance(work, ScriptWork) and desk.bundle is not None
    sent = work.job.without_desk()
    return Sent(
        job=sent.with_data(folder=job.data.folder) if listed else sent,
        bundle=desk.bundle,
        script=PublishedScript(files=work.files, inputs=work.inputs, sha256=work.sha256),
    )


SENT = {TrainingWork.name: _training_sent, ScriptWork.name: _script_sent}


def plan_now(
    job: Job,
    code: BundleName,
    script: PublishedScript | None,
    schedule: RetrainSchedule,
    account: Account,
    *,
    image_id: str = "",
) -> PlannedNow:
    """Plan a retrain's job for now, within its budgets and on types that control may start."""
    notes: list[str] = []
    sources = DeskPublication(name=schedule.name, bundle=code, published=script, notes=notes)
    scoring = _most_usd(SCORE, account) if schedule.promote == BETTER and not job.script.command else 0.0
    if scoring >= schedule.budget:
        why, do = f"its score run may cost ${scoring:.2f}", "Raise budget of the stack's setting `retrains`."
        raise BudgetError(f"budget of retrain {schedule.name} is ${schedule.budget:.2f}", why=why, do=do)
    job = within_budget(job, schedule.budget - scoring)
    _refuse_types(machines_of(job), account.outputs)
    work = resolve(job, sources, account)
    offers = offers_for(work.job, account, pinned_image=image_id)
    plan = plan_work(work, offers, account)
    _refuse_beyond_month(plan.hard_stop_usd + scoring, schedule)
    if job.data.refresh:
        what = "new bars are fetched" if job.data.refresh == FETCH else "the refresh script runs"
        notes.append(
            f"first {what} {_on_cpu(PREPARE, account)}; after a failure the job's data.stale says:"
            f" {job.data.stale}"
        )
    if scoring:
        notes.append(f"after it champion and challenger are scored {_on_cpu(SCORE, account)}")
    return PlannedNow(work=work, offers=offers, plan=plan, notes=tuple(notes))


def _on_cpu(kind: CpuRun, account: Account) -> str:
    """Return where a short run runs and what it takes at most, as text."""
    minutes, most = kind.longest.total_seconds() / 60, _most_usd(kind, account)
    return f"on {account.outputs.prepare_type}, {minutes:.0f} minutes and ${most:.2f} at most"


def _most_usd(kind: CpuRun, account: Account) -> float:
    """Return the most that a short run costs, by the table of prices."""
    machine = cpu_instance_type(account.outputs.prepare_type)
    return dollars(kind.longest.total_seconds(), on_demand_price(machine))


def _refuse_beyond_month(most_usd: float, schedule: RetrainSchedule) -> None:
    """Raise BudgetError if one run, with its scoring, may cost more than the month's budget."""
    if most_usd > schedule.budget_month:
        why = f"one run may cost ${most_usd:.2f}"
        do = "Raise budget_month of the stack's setting `retrains`, or lower its budget."
        what = f"budget_month of retrain {schedule.name} is ${schedule.budget_month:.2f}"
        raise BudgetError(what, why=why, do=do)


def refuse_unfit_stack(outputs: StackOutputs) -> None:
    """Raise ConfigError if the deployed control function reads another format of publications."""
    if outputs.retrain_format != PUBLISHED_FORMAT:
        why = (
            f"it reads publications of format {outputs.retrain_format}, this Mayfly writes {PUBLISHED_FORMAT}"
        )
        raise ConfigError("the stack's control function is of another version", why=why, do="Run pulumi up.")


def refuse_skipped_times(schedule: RetrainSchedule, now: datetime) -> None:
    """Raise UsageError for a schedule with a local time that a clock change skips: Scheduler would not run
    it.
    """
    skipped = schedule.skipped_days(now, days=GAP_DAYS)
    if skipped:
        what = f"{skipped[0]} {schedule.hour:02}:{schedule.minute:02} does not exist in {schedule.time_zone}"
        why = "clocks go forward there on that day, and EventBridge leaves the run out"
        do = "Choose another hour, or time_zone UTC, in the stack's setting `retrains`."
        raise UsageError(what, why=why, do=do)


def _refuse_own_profile(job: Job) -> None:
    """Raise UsageError for a GPU profile of this desk: control plans each run, and knows the
    package's alone.
    """
    name = job.machine.gpu_profile
    if name in user_tables() and name not in packaged():
        why, do = (
            "control, which plans each run, does not have that file",
            "Leave machine.gpu_profile out: a machine finds its own.",
        )
        raise UsageError(f"GPU profile {name} is in {user_file()}, of this desk", why=why, do=do)


def _refuse_types(machines: Iterable[InstanceType], outputs: StackOutputs) -> None:
    """Raise ConfigError for a type that control's role may not start."""
    for name in (machine.name for machine in machines):
        if not outputs.control_may_start(name):
            why, do = (
                f"it may start {', '.join(outputs.control_types)}",
                "Add it to the stack's setting control_types.",
            )
            raise ConfigError(
                f"control may not start {name}", why=why, do=f"{do} Or name another --set machine.instance."
            )


def _written(name: str, sent: Sent, offers: Offers, objects: Objects, now: datetime) -> PublishedRetrain:
    """Upload job and code under their hashes, then replace the publication; a pause stays."""
    bundle = sent.bundle
    upload_bundle(bundle, objects)
    sha256 = _by_hash(objects, json.dumps(sent.job.to_dict(), indent=1, sort_keys=True).encode())
    script_hash = _by_hash(objects, sent.script.to_json()) if sent.script else ""
    paused, replaces = _replaced(objects, name)
    retrain = PublishedRetrain(
        name=name,
        job_key=f"code/{sha256}.json",
        job_sha256=sha256,
        code_key=bundle.key,
        code_sha256=bundle.sha256,
        lock_sha256=bundle.lock_sha256,
        image_line=offers.image_line,
        image_id=offers.image_id,
        commit=commit(),
        published_at=now,
        paused=paused,
        script_key=f"code/{script_hash}.json" if script_hash else "",
        script_sha256=script_hash,
    )
    swap(objects, retrain, replaces=replaces)
    return retrain


def _by_hash(objects: Objects, body: bytes) -> str:
    """Upload a document under its hash unless it exists, and return the hash."""
    sha256 = hashlib.sha256(body).hexdigest()
    with suppress(Conflict):  # published before
        objects.put(key=f"code/{sha256}.json", body=body, create=True)
    return sha256


def _replaced(objects: Objects, name: str) -> tuple[bool, str]:
    """Return whether the current publication is paused, and its ETag. An unreadable one is replaced, too."""
    try:
        before = read_published(objects, name)
    except UnreadablePublication:
        stored = objects.head(key=published_key(name))
        return False, stored.etag if stored else ""
    return (before[0].paused, before[1]) if before else (False, "")


def swap(objects: Objects, retrain: PublishedRetrain, *, replaces: str) -> None:
    """Write a publication. Raises UsageError if another desk published in the meantime."""
    try:
        write_published(objects, retrain, replaces=replaces)
    except Conflict as error:
        do = "Look at it with mayfly retrains list, then try again."
        raise UsageError(f"another desk published retrain {retrain.name} at the same time", do=do) from error


def commit() -> str:
    """Return the commit of the checkout that holds this package; '' outside of one."""
    folder = Path(next(iter(trainer.__path__))).parent
    if not (folder / ".git").exists():
        return ""
    asked: Any = subprocess.run(
        ["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return str(asked.stdout).strip()[:40] if asked.returncode == 0 else ""
