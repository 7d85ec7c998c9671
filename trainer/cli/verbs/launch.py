"""`mayfly launch` (python -m trainer.launch): from a job to its receipt.

In order: the job, preflight, the plan, the question, the record, the run, the receipt. Owns this order and
the messages; `launch.plan` and `runs.reconcile` decide. From here `control.drive` leads to CreateFleet
(`control.cloud`) and to the receipt (`runs.receipt`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from trainer.attach.keys import forget_ended, make_key
from trainer.aws.access import Access, own_access
from trainer.aws.stack import read_stack
from trainer.aws.stack_outputs import StackOutputs
from trainer.base.errors import ConfigError, Stopped, UsageError
from trainer.base.extras import needs
from trainer.cli.connect import connected
from trainer.cli.output import ask, mayfly, say, say_json
from trainer.cli.question import question
from trainer.cli.ready import Ready
from trainer.cli.ready_to_train import ReadyToTrain
from trainer.cli.settled import report_settled
from trainer.cli.sources.bucket import fetch_candles, is_in_bucket
from trainer.cli.sources.candles import DataCheck, find_candles
from trainer.cli.sources.local import local_candles
from trainer.cli.sources.script_launch import DeskScript, read_data, script_preflight, with_script
from trainer.cli.terminal import Console, show
from trainer.control.check_account import check_account
from trainer.control.cloud import AwsCloud
from trainer.control.drive import drive, start
from trainer.control.settle import settle_unwatched
from trainer.control.stop import StopSignal
from trainer.data.read.paths import check_path
from trainer.job.job import Job, load_job, parse_job
from trainer.launch.bundle import build_bundle, upload_bundle
from trainer.launch.candidates import UNPROVEN
from trainer.launch.encoder import encoder_file
from trainer.launch.images import refuse_unfit
from trainer.launch.knowledge import known_boots, known_rates
from trainer.launch.machines import machines_of, refuse_retired
from trainer.launch.plan import LaunchPlan
from trainer.launch.planning import plan_launch, with_candles
from trainer.launch.preflight import look
from trainer.launch.script_files import script_files
from trainer.machines.instances import InstanceType
from trainer.machines.planner import workload
from trainer.runs.deadline import CAUSES
from trainer.runs.receipt import Receipt
from trainer.runs.record import RunRecord, iso, utc_now
from trainer.runs.store import open_objects, read_record
from trainer.runs.stored_receipt import read_receipt
from trainer.train.inputs.encoder import check_inputs, pinned
from trainer.train.inputs.encoder import portable as portable_encoder
from trainer.train.own.check import checked, contents, portable

if TYPE_CHECKING:
    from rich.console import RenderableType

FLAGS = {  # of the job, with their keys
    "instance": "machine.instance",
    "model": "model.name",
    "target": "target.name",
    "symbols": "data.symbols",
    "timeframe": "data.timeframe",
    "data": "data.path",
    "market": "machine.market",
    "max_duration": "machine.max_duration",
}
NUMBERS = {"epochs": "train.epochs", "budget": "machine.budget"}


def run(arguments: argparse.Namespace) -> int:
    """Launch a job and follow it to its end. Returns the run's exit code, 0 for a dry run or a
    detached one.
    """
    began = utc_now()
    console = Console(plain=arguments.json)
    job = asked_job(arguments)
    given_path = job.data.path
    machines = machines_of(
        job
    )  # an unknown type or profile ends here, before anything is started; so does a missing path
    script = DeskScript(job=job, files=script_files(job.script)) if job.is_script else None
    if job.data.path and not is_in_bucket(job.data.path):
        check_path(job.data.path)
    if job.own_files:
        console.update("trying your own files ...")
        job = checked(job)
    job = pinned(job)
    with ExitStack() as ends:
        ends.callback(console.close)
        if is_in_bucket(job.data.path):
            console.update(f"fetching {job.data.path} ...")
            fetched = Path(ends.enter_context(TemporaryDirectory(prefix="mayfly-bucket-")))
            job = job.with_data(path=str(fetch_candles(job.data.path, own_access(), fetched)))
        if (
            script and arguments.rehearse
        ):  # whose image is this environment: what it can't have is refused before it starts
            script = script.with_packages("", rehearsal=True, console=console)
        if script:
            script = replace(script, data=read_data(job, console, ends))
        check = DataCheck(job) if job.data.path else None  # started first: it runs beside everything else
        if check:
            ends.callback(check.close)
        if arguments.rehearse:
            console.update("starting the embedded AWS ...")
        access = ends.enter_context(connected(rehearse=arguments.rehearse))
        outputs = read_stack(access, stack=arguments.stack)
        if script:
            ready: Ready = script_preflight(arguments, script, machines, access, outputs, console)
        else:
            if here := local_candles(job):
                console.line(f"candles of {here}, the local folder")
                job = job.with_data(path=str(here))
                check = DataCheck(job)
                ends.callback(check.close)
            ready = _preflight(arguments, job, given_path, machines, check, access, outputs, console)
        # Late, as in `_end`: rich takes a while to load, and a wrong word should not wait for it.
        from trainer.cli.views.table import Inline
        from trainer.cli.views.watch import Watch

        view = ready.view()
        if arguments.dry_run:
            return _dry_run(arguments, ready, view, access)
        console.line()
        console.show(view)
        _refuse_unasked(arguments, access)
        console.update("asking the account whether it would launch this ...")
        for note in _checked(ready, access, sweep=True):
            console.line(f"note: {note}")
        _ask(arguments, ready.plan, access)
        uploaded = ready.upload(access, console)
        record = ready.record(preflight_at=began, now=utc_now())
        asking = None if arguments.detach else question(console)
        with StopSignal(asking).installed() as stop:  # from here on a run's end is stored in its record
            upload_bundle(ready.bundle, ready.objects)
            ready.register(record, uploaded, _ssh_key(ready, record.run_id, access, console))
            console.line()
            console.show(Inline([f"run {record.run_id}", f"ends by {record.deadline:%H:%M} UTC"]))
            watch = Watch(console, stop)
            cloud = AwsCloud(access, ready.outputs)
            if arguments.detach:
                left = start(
                    cloud,
                    record.run_id,
                    known=record,
                    poll_seconds=access.place.poll_seconds,
                    on_event=watch.on_event,
                    stop=stop,
                )
                return _detached(arguments, left, ready, console)
            receipt = drive(
                cloud,
                record.run_id,
                known=record,
                poll_seconds=access.place.poll_seconds,
                on_event=watch.on_event,
                stop=stop,
            )
        if receipt is None:
            return _detached(
                arguments, read_record(ready.objects, record.run_id, seen=True)[0], ready, console
            )
        return _end(arguments, receipt, ready, console)


def asked_job(arguments: argparse.Namespace, *, script_duration: str = "") -> Job:
    """Parse the job that the user asks for, the later winning: job file, flags, --set.

    `script_duration`: longest duration of a script whose user names none.
    """
    file = load_job(Path(arguments.job)) if arguments.job else {}
    flags = {key: value for name, key in FLAGS.items() if (value := getattr(arguments, name)) is not None}
    if arguments.script is not None:
        file = with_script(file, arguments.script)
    if "script" in file and "data.path" in flags:
        flags["data.folder"] = flags.pop("data.path")
    numbers = [
        f"{key}={value}" for name, key in NUMBERS.items() if (value := getattr(arguments, name)) is not None
    ]
    return parse_job(file, flags, [*numbers, *arguments.settings], script_duration=script_duration)


def _preflight(
    arguments: argparse.Namespace,
    job: Job,
    given_path: str,
    machines: Sequence[InstanceType],
    check: DataCheck | None,
    access: Access,
    outputs: StackOutputs,
    console: Console,
) -> Ready:
    """Look at account, candles and prices at once, and make the plan. Writes nothing but the receipts of old
    runs.
    """
    if access.place.binding:
        refuse_unfit(machines, outputs.image_line, named=bool(job.machine.instance))
    objects = open_objects(access, outputs.bucket)
    with ThreadPoolExecutor(max_workers=5) as pool:
        offers = pool.submit(
            look, access, outputs=outputs, machines=machines, spot=job.machine.market == "spot"
        )
        settled = None if arguments.dry_run else pool.submit(settle_unwatched, access, outputs)
        bundle = pool.submit(build_bundle, own_files=contents(job))
        rates = pool.submit(known_rates, job, machines, objects, access.place)
        boots = pool.submit(known_boots, objects)
        dry_run = bool(arguments.dry_run)
        candles = find_candles(job, check, objects, place=access.place, dry_run=dry_run)
    for note in candles.notes:
        console.line(note)
    report_settled(settled, console)
    if access.place.binding:
        refuse_retired(
            machines if job.machine.instance else (),
            workload(candles.job, candles.candles.bars) if candles.candles else None,
        )
    if candles.candles is None:
        do = "Name your candles with --data PATH: they are uploaded there and stay."
        raise UsageError(
            "there is nothing to train on", why=f"raw/{job.data.set}/ in the bucket is empty", do=do
        )
    job = with_candles(candles.job, candles.candles)
    check_inputs(job)
    encoder, job = encoder_file(job), portable_encoder(portable(job))
    plan = plan_launch(
        job,
        candles.candles,
        offers.result(),
        outputs,
        rates.result(),
        place=access.place,
        boots=boots.result(),
    )
    return ReadyToTrain(
        outputs=outputs,
        objects=objects,
        offers=offers.result(),
        bundle=bundle.result(),
        checked=candles,
        job=job,
        candles=candles.candles,
        plan=plan,
        encoder=encoder,
        given_path=given_path,
    )


def _dry_run(arguments: argparse.Namespace, ready: Ready, view: RenderableType, access: Access) -> int:
    """Print the plan, then the result of the account's checks. Changes nothing, so it sweeps nothing."""
    if not arguments.json:
        show(view)
    return _print_notes(arguments, ready, _checked(ready, access, sweep=False))


def _print_notes(arguments: argparse.Namespace, ready: Ready, notes: list[str]) -> int:
    if arguments.json:
        known = {"stack": ready.outputs.stack, "job": ready.job.to_dict(), "data": ready.data}
        say_json({"dry_run": True, **known, **ready.plan.to_dict(), "notes": notes})
    else:
        say(*(f"note: {note}" for note in notes), "dry run: nothing was uploaded and nothing launched")
    return 0


def _checked(ready: Ready, access: Access, *, sweep: bool) -> list[str]:
    """Return the notes of the account's checks. Raises a TrainerError for a launch that would fail."""
    now = utc_now()
    record = ready.record(preflight_at=now, now=now)
    return check_account(access, ready.outputs, record, sweep=sweep)


def _refuse_unasked(arguments: argparse.Namespace, access: Access) -> None:
    """Raise UsageError if money would be spent and there is no terminal to ask on."""
    if not access.place.asks or arguments.yes:
        return
    if arguments.json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        why = "--json was given" if arguments.json else "there is no terminal to ask on"
        raise UsageError(
            "this would spend money and was not confirmed",
            why=why,
            do="Add -y to launch, or --dry-run to look.",
        )


def _ask(arguments: argparse.Namespace, plan: LaunchPlan, access: Access) -> None:
    """Ask before money is spent: never in a rehearsal. Raises Stopped for a no."""
    if not access.place.asks or arguments.yes:
        return
    unknown = [one.machine.name for one in plan.candidates if not one.refused and UNPROVEN in one.note]
    on = f" on {', '.join(unknown)}, which the image is not known to support" if unknown else ""
    if ask(f"Launch{on}? [y/N] ").lower() not in ("y", "yes"):
        raise Stopped("not launched", do="Nothing was uploaded, and nothing costs anything.")


def _ssh_key(ready: Ready, run_id: str, access: Access, console: Console) -> str:
    """Make the run's SSH key if its stack has attach = ssh, and return the public half; delete keys of ended
    runs.
    """
    if ready.outputs.attach != "ssh" or not access.place.asks:
        return ""
    try:
        needs("paramiko")
    except ConfigError as error:  # the run does not depend on attaching
        console.line(f"note: attaching to this run will not be possible: {error}")
        return ""
    forget_ended(ready.objects)
    return make_key(run_id)


def _detached(arguments: argparse.Namespace, record: RunRecord, ready: Ready, console: Console) -> int:
    """Leave a run that has its instance; print the receipt if it has ended."""
    receipt = read_receipt(ready.objects, record.run_id) if record.state == "closed" else None
    if receipt is not None:
        return _end(arguments, receipt, ready, console)
    console.close()
    deadline = record.effective_deadline
    instances = list(record.last_launch.instance_ids) if record.last_launch else []
    if arguments.json:
        document = {
            "run_id": record.run_id,
            "state": record.state,
            "detached": True,
            "instances": instances,
            "deadline": iso(deadline.at),
            "deadline_cause": deadline.cause,
        }
        say_json(document)
    else:
        say(record.run_id)
    where, until = _where(arguments), f"{iso(deadline.at)}, set by {CAUSES[deadline.cause]}"
    console.line(f"detached: {', '.join(instances)} continues, and ends by {until}")
    commands = {
        "follow it": f"logs {record.run_id} -f",
        "look at it": f"status {record.run_id}",
        "end it": f"stop {record.run_id}",
    }
    for title, command in commands.items():
        console.prompt(f"{title + ':':<12}{mayfly()} {command}{where}\n")  # as below a receipt
    return 0


def _end(arguments: argparse.Namespace, receipt: Receipt, ready: Ready, console: Console) -> int:
    """Print the receipt and return the run's exit code."""
    from trainer.cli.views.receipt import receipt_view

    console.close()
    forget_ended(ready.objects)
    say_json(receipt) if arguments.json else show(receipt_view(receipt))
    looks, where = ready.looks(receipt), _where(arguments)
    console.line()
    console.line("look at it:")
    for look_at in looks:
        console.prompt(
            f"  {mayfly()} {look_at}{where}\n"
        )  # broken by the terminal alone, so that it can be copied
    return int(receipt["exit_code"])


def _where(arguments: argparse.Namespace) -> str:
    """Return the flags that the next commands need to look at the same AWS and stack."""
    return (" --rehearse" if arguments.rehearse else "") + (
        f" --stack {arguments.stack}" if arguments.stack != "dev" else ""
    )
