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
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import trainer
from trainer.aws.access import Access
from trainer.aws.place import REHEARSAL
from trainer.aws.stack_outputs import StackOutputs
from trainer.base.errors import BudgetError, ConfigError, UsageError
from trainer.cli.sources.candles import find_candles
from trainer.cli.sources.refresh_script import with_refresh_script
from trainer.cli.sources.script_launch import DeskScript, read_data, refuse_secrets_without_role
from trainer.cli.terminal import Console
from trainer.control.check_account import check_account
from trainer.job.job import Job, load_job, parse_job
from trainer.launch.bundle import Bundle, build_bundle, upload_bundle
from trainer.launch.encoder import encoder_file
from trainer.launch.machines import machines_of, on_demand_price
from trainer.launch.plan import LaunchPlan
from trainer.launch.planning import PlannedRetrain, listed_inputs, plan_retrain, within_budget
from trainer.launch.preflight import Offers
from trainer.launch.prepare import LONGEST
from trainer.launch.script import script_record
from trainer.launch.script_files import script_files, script_sha256, upload_data
from trainer.launch.script_retrain import PlannedScript, data_set_of, plan_script_retrain
from trainer.launch.start import new_record
from trainer.machines.chips import packaged, user_file, user_tables
from trainer.machines.cpu_instances import cpu_instance_type
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
from trainer.retrains.schedule import PUBLISHED_FORMAT, RetrainSchedule
from trainer.runs.record import utc_now
from trainer.runs.store import Conflict, Objects
from trainer.train.inputs.encoder import check_inputs, pinned
from trainer.train.inputs.encoder import portable as portable_encoder
from trainer.train.own.check import checked, contents, portable

GAP_DAYS = 3 * 366  # within which a scheduled time may not fall into the gap of a clock change


def publish(
    arguments: argparse.Namespace,
    schedule: RetrainSchedule,
    access: Access,
    outputs: StackOutputs,
    objects: Objects,
) -> tuple[PublishedRetrain, PlannedRetrain | PlannedScript, list[str]]:
    """Publish a job for a retrain; return the publication, its plan of now, and notes. Checks come before
    writes.
    """
    now = utc_now()
    refuse_unfit_stack(outputs)
    refuse_skipped_times(schedule, now)
    job = parse_job(load_job(Path(arguments.job)), {}, arguments.settings)
    _refuse_own_profile(job)
    if job.is_script:
        return _publish_script(job, schedule, access, outputs, objects, now)
    if job.data.path:
        do = f"Upload it once with mayfly launch --data {job.data.path}, and leave data.path out."
        raise UsageError("data.path is a folder of this desk", why="a retrain reads its data set", do=do)
    script = with_refresh_script(job)
    job = pinned(checked(script.job))
    encoder, sent = encoder_file(job), portable_encoder(portable(job))
    ready, notes = plan_now(sent, schedule, access, outputs, objects)
    bundle = build_bundle(own_files={**contents(job), **script.files})
    record = new_record(ready.job, ready.plan, bundle, outputs, preflight_at=now, now=now)
    notes += check_account(access, outputs, record, sweep=True)
    if encoder:
        check_inputs(job.with_data(timeframe=ready.candles.timeframe))
        upload_data([encoder], access, bucket=outputs.bucket)
    retrain = _written(schedule.name, sent, bundle, ready.offers, objects, now)
    return retrain, ready, notes


def _publish_script(
    job: Job,
    schedule: RetrainSchedule,
    access: Access,
    outputs: StackOutputs,
    objects: Objects,
    now: datetime,
) -> tuple[PublishedRetrain, PlannedScript, list[str]]:
    """Publish a script with its files, and with its data or the name of the data set to list at each
    scheduled time.
    """
    _refuse_types(machines_of(job), outputs)
    refuse_secrets_without_role(job, outputs)
    listed = bool(data_set_of(job.data.folder, outputs.bucket))
    if listed and job.script.secrets:
        why = "the role that reads secrets reads no data set"
        do = "Leave script.secrets out, or name a folder of this desk, whose files are pinned now."
        raise UsageError("a script with secrets can't read a data set", why=why, do=do)
    desk = DeskScript(job=job, files=script_files(job.script))
    with ExitStack() as ends:
        console = Console(plain=True)
        ends.callback(console.close)
        rehearsal = access.place is REHEARSAL
        desk = desk.with_packages(outputs.image_line, rehearsal=rehearsal, console=console)
        data = () if listed else read_data(job, console, ends)
        inputs = tuple(upload_data(data, access, bucket=outputs.bucket)) if data else ()
    sha256 = script_sha256(desk.job.script, desk.hashes, data)
    job = desk.job.without_desk()
    if listed:
        job = job.with_data(folder=desk.job.data.folder)
    script = PublishedScript(files=desk.hashes, inputs=inputs, sha256=sha256)
    ready = plan_script_now(job, script, schedule, access, outputs, objects)
    bundle = build_bundle(script_files=desk.files)
    record = script_record(job, ready.plan, bundle, outputs, preflight_at=now, now=now)
    notes = check_account(access, outputs, record, sweep=True)
    if schedule.promote != "never":
        notes.append(
            f"promote is {schedule.promote}: a script makes no model of Mayfly's, so nothing of it goes to"
            " production"
        )
    retrain = _written(schedule.name, job, bundle, ready.offers, objects, now, script=script)
    return retrain, ready, notes


def plan_script_now(
    job: Job,
    script: PublishedScript,
    schedule: RetrainSchedule,
    access: Access,
    outputs: StackOutputs,
    objects: Objects,
    *,
    image_id: str = "",
) -> PlannedScript:
    """Plan a retrain's script for now, within its budgets and on types that control may start."""
    job = within_budget(job, schedule.budget)
    _refuse_types(machines_of(job), outputs)
    ready = plan_script_retrain(
        job,
        access,
        outputs,
        objects,
        files=script.files,
        inputs=script.inputs,
        sha256=script.sha256,
        retrain=schedule.name,
        pinned_image=image_id,
    )
    _refuse_beyond_month(ready.plan, schedule)
    return ready


def plan_now(
    job: Job,
    schedule: RetrainSchedule,
    access: Access,
    outputs: StackOutputs,
    objects: Objects,
    *,
    image_id: str = "",
) -> tuple[PlannedRetrain, list[str]]:
    """Plan a retrain's job for now, within its budgets and on types that control may start; return also notes
    on its data.

    Files of the set that no launch uploaded are fetched, checked and indexed here, since control can't.
    """
    job = within_budget(job, schedule.budget)
    _refuse_types(machines_of(job), outputs)
    listed_inputs(job, objects)
    found = find_candles(job, None, objects, place=access.place)
    assert found.candles is not None
    ready = plan_retrain(job, found.candles, access, outputs, objects, pinned_image=image_id)
    _refuse_beyond_month(ready.plan, schedule)
    notes = list(found.notes)
    if job.data.refresh:
        machine, seconds = cpu_instance_type(outputs.prepare_type), LONGEST.total_seconds()
        most = dollars(seconds, on_demand_price(machine))
        notes.append(
            f"first the refresh script runs on {machine.name}, {seconds / 60:.0f} minutes and ${most:.2f} at"
            f" most; after a failure the job's data.stale says: {job.data.stale}"
        )
    return ready, notes


def _refuse_beyond_month(plan: LaunchPlan, schedule: RetrainSchedule) -> None:
    """Raise BudgetError if one run may cost more than the month's budget."""
    if plan.hard_stop_usd > schedule.budget_month:
        why = f"one run may cost ${plan.hard_stop_usd:.2f}"
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
        if not any(fnmatchcase(name, pattern) for pattern in outputs.control_types):
            why, do = (
                f"it may start {', '.join(outputs.control_types)}",
                "Add it to the stack's setting control_types.",
            )
            raise ConfigError(
                f"control may not start {name}", why=why, do=f"{do} Or name another --set machine.instance."
            )


def _written(
    name: str,
    job: Job,
    bundle: Bundle,
    offers: Offers,
    objects: Objects,
    now: datetime,
    *,
    script: PublishedScript | None = None,
) -> PublishedRetrain:
    """Upload job and code under their hashes, then replace the publication; a pause stays."""
    upload_bundle(bundle, objects)
    sha256 = _by_hash(objects, json.dumps(job.to_dict(), indent=1, sort_keys=True).encode())
    script_hash = _by_hash(objects, script.to_json()) if script else ""
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
