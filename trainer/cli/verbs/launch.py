"""`mayfly launch` (python -m trainer.launch): from a job to its receipt.

In order: the job, preflight, the plan, the question, the record, the run, the receipt. Owns this order and
the messages; `launch.plan` and `runs.reconcile` decide. From here `control.drive` leads to CreateFleet
(`control.cloud`) and to the receipt (`runs.receipt`).
"""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from trainer.attach.keys import forget_ended, make_key
from trainer.aws.objects import open_objects
from trainer.aws.place import ACCOUNT, REHEARSAL
from trainer.aws.stack import read_stack
from trainer.base.errors import ConfigError, Stopped, TrainerError, UsageError
from trainer.base.extras import needs
from trainer.base.instants import iso, utc_now
from trainer.cli.asked_job import asked_job
from trainer.cli.connect import connected, same_place
from trainer.cli.defaults import notes
from trainer.cli.output import agrees, mayfly, refuse_unasked, say, say_json
from trainer.cli.question import question
from trainer.cli.sources.desk import Desk, desk_of
from trainer.cli.terminal import Console, show
from trainer.cli.tracking.track import need_trackers, track
from trainer.control.check_account import check_account
from trainer.control.cloud import AwsCloud
from trainer.control.drive import drive, start
from trainer.control.resume import continued, read_parent
from trainer.control.settle import Settling, settle_unwatched
from trainer.control.stop import StopSignal
from trainer.launch.bundle import upload_bundle
from trainer.launch.machines import machines_of
from trainer.launch.plan import LaunchPlan
from trainer.launch.planning import Planned, offers_for, plan_work, resolve
from trainer.launch.preflight import Offers
from trainer.launch.start import manifest_of, record_of, register
from trainer.launch.weighing import UNPROVEN
from trainer.launch.work import Account, ScriptWork, TrainingWork, Work
from trainer.runs.deadline import CAUSES
from trainer.runs.index import note_shown
from trainer.runs.launching import waiting_words
from trainer.runs.month import month_of_runs
from trainer.runs.receipt import Receipt
from trainer.runs.record import RunRecord
from trainer.runs.store import read_record
from trainer.runs.stored_receipt import read_receipt

if TYPE_CHECKING:
    from trainer.aws.stack_outputs import StackOutputs
    from trainer.rehearsal.interruptions import Interruption

_COUNTED = {  # of the run that a launch continues
    "all": "its finished work and its newest checkpoints count",
    "checkpoints": "its newest checkpoints count, and nothing that it finished",
}
_WHY = {"train": "train.epochs is higher, so "}  # of its checkpoints alone


def run(arguments: argparse.Namespace) -> int:
    """Launch a job and follow it to its end. Returns the run's exit code, 0 for a dry run or a
    detached one.
    """
    launched: list[str] = []
    try:
        return _launch(arguments, launched)
    except KeyboardInterrupt as error:  # before the run is followed, or after: meanwhile none is raised
        if not launched:
            raise
        do = f"mayfly status {launched[0]}{same_place(arguments)} shows it."
        raise Stopped(f"interrupted after {launched[0]} was launched", why="Ctrl-C", do=do) from error


def _launch(arguments: argparse.Namespace, launched: list[str]) -> int:
    """Do what `run` does; add the run's id to `launched` once it has its record."""
    began = utc_now()
    console = Console(plain=arguments.json)
    interruption = _interruption(arguments)
    job = asked_job(arguments)
    need_trackers(job.track)
    machines_of(job)  # an unknown type or profile ends here, before anything is started
    with ExitStack() as ends:
        ends.callback(console.close)
        place = REHEARSAL if arguments.rehearse else ACCOUNT
        desk = desk_of(job, console, ends, place=place, dry_run=arguments.dry_run).begin()
        if arguments.rehearse:
            console.update("starting the embedded AWS ...")
        access = ends.enter_context(connected(rehearse=arguments.rehearse))
        outputs = read_stack(access, stack=arguments.stack)
        account = Account(access=access, outputs=outputs, objects=open_objects(access, outputs.bucket))
        parent = _parent(arguments, account)
        work, offers = _resolved(arguments, desk, account, console)
        plan = plan_work(work, offers, account)
        # Late, as in `_end`: rich takes a while to load, and a wrong word should not wait for it.
        from trainer.cli.views.plan import work_view
        from trainer.cli.views.table import Inline
        from trainer.cli.views.watch import Watch

        view = work_view(work, plan, desk.describe(work))
        continues = _continuing(parent, Planned(work=work.by_hash(), offers=offers, plan=plan), account)
        kept = (
            [f"continues {parent.run_id}: {_counted(parent, continues['parent_counts'])}"] if parent else []
        )
        kept += [*notes(arguments), *month_notes(account, plan)]
        if arguments.dry_run:
            if not arguments.json:
                show(view)
            # a dry run changes nothing, so it sweeps nothing
            said = [*kept, *_checked(work, plan, account, sweep=False)]
            return _print_notes(arguments, work, plan, account, desk.describe(work), said)
        console.line()
        console.show(view)
        if account.place.asks:
            do = "Add -y to launch, or --dry-run to look."
            refuse_unasked(arguments, "this would spend money", do=do)
        console.update("asking the account whether it would launch this ...")
        if arguments.detach:
            kept += unreplaced((one.machine.name for one in plan.candidates if not one.refused), outputs)
        for note in [*kept, *_checked(work, plan, account, sweep=True)]:
            console.line(f"note: {note}")
        _ask(arguments, plan)
        if desk.packages:
            console.line(desk.packages.keep())
        work = work.uploaded(account, console.update)
        record = replace(record_of(work, plan, account, preflight_at=began, now=utc_now()), **continues)
        planned = Planned(work=work, offers=offers, plan=plan)
        asking = None if arguments.detach else question(console)
        with StopSignal(asking).installed() as stop:  # from here on a run's end is stored in its record
            assert desk.bundle is not None
            upload_bundle(desk.bundle, account.objects)
            register(record, planned, account, ssh_key=_ssh_key(account, record.run_id, console))
            launched.append(record.run_id)
            console.line()
            if interruption is not None:
                from trainer.rehearsal.client import interrupt_run

                interrupt_run(record.run_id, interruption)
                console.line(f"rehearsed interruption: {interruption.text}")
            console.show(Inline([f"run {record.run_id}", f"ends by {record.deadline:%H:%M} UTC"]))
            watch, cloud = Watch(console, stop), AwsCloud(access, outputs)
            follow: dict[str, Any] = {
                "known": record,
                "poll_seconds": account.place.poll_seconds,
                "on_event": watch.on_event,
                "stop": stop,
            }
            if arguments.detach:
                left = start(cloud, record.run_id, **follow)
                return detached(arguments, left, account, desk, console)
            receipt = drive(cloud, record.run_id, **follow)
        if receipt is None:
            left = read_record(account.objects, record.run_id, seen=True)[0]
            for note in unreplaced((rung.instance_type for rung in left.ladder), outputs):
                console.line(f"note: {note}")
            return detached(arguments, left, account, desk, console)
        if interruption is not None and receipt["state"] == "done" and len(receipt["attempts"]) == 1:
            console.line("note: the work was done before its machine was taken back")
        return end_of_run(arguments, receipt, account, desk, console)


def _interruption(arguments: argparse.Namespace) -> Interruption | None:
    """Return the interruption that the user asks for, which buys spot; None without one. Raises UsageError
    outside a rehearsal.
    """
    if arguments.interrupt is None:
        return None
    from trainer.rehearsal.interruptions import read_interruption

    wanted = read_interruption(arguments.interrupt)
    if not arguments.rehearse:
        why, do = "AWS alone takes machines back", "Add --rehearse, or leave it out."
        raise UsageError("--interrupt is for rehearsals", why=why, do=do)
    if arguments.market and arguments.market[0] != "spot":
        why, do = "AWS takes back spot machines alone", "Name --spot first, or neither."
        raise UsageError("--interrupt with --on-demand", why=why, do=do)
    arguments.market = arguments.market or ["spot"]
    return wanted


def _counted(parent: RunRecord, counts: str) -> str:
    """Return what counts of the run that a launch continues."""
    why = _WHY.get(parent.work, "the script has changed, so ") if counts == "checkpoints" else ""
    return why + _COUNTED[counts]


def _parent(arguments: argparse.Namespace, account: Account) -> RunRecord | None:
    """Return the ended run that the launch continues, None without `--resume`."""
    if arguments.resume is None:
        return None
    outputs, place = account.outputs, account.place.name
    return read_parent(
        account.objects, arguments.resume, project=outputs.project, stack=outputs.stack, place=place
    )


def _continuing(parent: RunRecord | None, planned: Planned, account: Account) -> dict[str, Any]:
    """Return the fields of a record that name the run it continues, {} without one. Raises UsageError if
    nothing of that counts. Before the question: an upload and a machine cost time and money.
    """
    if parent is None:
        return {}
    now = utc_now()
    record = record_of(planned.work, planned.plan, account, preflight_at=now, now=now)
    record = continued(account.objects, record, parent, manifest_of(record, planned, account))
    return {name: getattr(record, name) for name in ("parent", "parent_counts", "ancestors")}


def _resolved(
    arguments: argparse.Namespace, desk: Desk, account: Account, console: Console
) -> tuple[TrainingWork | ScriptWork, Offers]:
    """Resolve the job while the account is asked. Writes nothing but the receipts of old runs."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        offered = pool.submit(offers_for, desk.job, account)
        settle = partial(settle_unwatched, account.access, account.outputs)
        settled = None if arguments.dry_run else pool.submit(settle)
        work = resolve(desk.job, desk, account)
    if settled:
        _report_settled(settled, console)
    return work, offered.result()


def _report_settled(settled: Future[Settling], console: Console) -> None:
    """Print the runs that ended. A problem with an old run is a warning and does not stop a new one."""
    try:
        for receipt in settled.result().receipts:
            console.line(f"settled {receipt['run_id']}, which had no command attached: {receipt['state']}")
        for run_id, problem in settled.result().problems.items():
            console.line(f"warning: run {run_id} could not be settled: {problem}")
    except TrainerError as error:
        console.line(f"warning: an earlier run could not be settled: {error}")


def _print_notes(
    arguments: argparse.Namespace,
    work: Work,
    plan: LaunchPlan,
    account: Account,
    data: Mapping[str, Any],
    notes: list[str],
) -> int:
    """Print the end of a dry run."""
    if arguments.json:
        known = {"stack": account.outputs.stack, "job": work.job.to_dict(), "data": data}
        say_json({"dry_run": True, **known, **plan.to_dict(), "notes": notes})
    else:
        say(*(f"note: {note}" for note in notes), "dry run: nothing was uploaded and nothing launched")
    return 0


def _checked(work: Work, plan: LaunchPlan, account: Account, *, sweep: bool) -> list[str]:
    """Return the notes of the account's checks. Raises a TrainerError for a launch that would fail."""
    now = utc_now()
    record = record_of(work, plan, account, preflight_at=now, now=now)
    return check_account(account.access, account.outputs, record, sweep=sweep)


def month_notes(account: Account, plan: LaunchPlan) -> list[str]:
    """Return a warning if this month's runs and this one pass the stack's account_budget."""
    if not (budget := account.outputs.account_budget):
        return []
    month = month_of_runs(account.objects, utc_now())
    return month.notes(budget, planned_usd=plan.estimated_usd, most_usd=plan.hard_stop_usd)


def _ask(arguments: argparse.Namespace, plan: LaunchPlan) -> None:
    """Ask before money is spent: never in a rehearsal. Raises Stopped for a no."""
    if not plan.place.asks or arguments.yes:
        return
    unknown = [one.machine.name for one in plan.candidates if not one.refused and UNPROVEN in one.note]
    on = f" on {', '.join(unknown)}, which the image is not known to support" if unknown else ""
    if not agrees(f"Launch{on}?"):
        raise Stopped("not launched", do="Nothing was uploaded, and nothing costs anything.")


def _ssh_key(account: Account, run_id: str, console: Console) -> str:
    """Make the run's SSH key if its stack has attach = ssh, and return the public half; delete keys of ended
    runs.
    """
    if account.outputs.attach != "ssh" or account.place.no_attach:
        return ""
    try:
        needs("paramiko")
    except ConfigError as error:  # the run does not depend on attaching
        console.line(f"note: attaching to this run will not be possible: {error}")
        return ""
    forget_ended(account.objects)
    return make_key(run_id)


def detached(
    arguments: argparse.Namespace,
    record: RunRecord,
    account: Account,
    desk: Desk,
    console: Console,
) -> int:
    """Leave a run that has its instance; print the receipt if it has ended."""
    receipt = read_receipt(account.objects, record.run_id) if record.state == "closed" else None
    if receipt is not None:
        return end_of_run(arguments, receipt, account, desk, console)
    console.close()
    deadline = record.effective_deadline
    instances = list(record.working_ids)
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
    where, until = same_place(arguments), f"{iso(deadline.at)}, set by {CAUSES[deadline.cause]}"
    console.line(f"detached: {going_on(record, instances)} by {until}")
    commands = {
        "follow it": f"logs {record.run_id} -f",
        "look at it": f"status {record.run_id} -f",
        "end it": f"stop {record.run_id}",
    }
    if desk.job.track:
        trackers = "".join(f" --track {tracker}" for tracker in desk.job.track)
        commands["track it"] = f"pull {record.run_id} --live{trackers}"
    for title, command in commands.items():
        console.prompt(f"{title + ':':<12}{mayfly()} {command}{where}\n")  # as below a receipt
    return 0


def unreplaced(types: Iterable[str], outputs: StackOutputs) -> list[str]:
    """Return a note on the instance types of a run that control may not start, if there are any: a run that
    its command left ends with a machine of these.
    """
    names = sorted({name for name in types if not outputs.control_may_start(name)})
    if not names:
        return []
    do = "Stay attached, or add it to the stack's setting control_types."
    return [f"control may not start {', '.join(names)}: a lost machine ends a run that you left. {do}"]


def going_on(record: RunRecord, instances: list[str]) -> str:
    """Return what goes on with a run that its command leaves."""
    if record.has_instances and record.state in ("starting", "recovering"):
        waits = waiting_words(record)
        begins = (
            f"{waits}; control starts its machine" if waits else "it lost its machine; control starts another"
        )
        return f"{begins}, and it ends"
    return f"{', '.join(instances) or record.host} continues, and ends"


def end_of_run(
    arguments: argparse.Namespace,
    receipt: Receipt,
    account: Account,
    desk: Desk,
    console: Console,
) -> int:
    """Print the receipt and return the run's exit code."""
    from trainer.cli.views.receipt import receipt_view

    console.close()
    forget_ended(account.objects)
    view = receipt_view(
        receipt, account.outputs.experiment_days, checkpoint_days=account.outputs.checkpoint_days
    )
    say_json(receipt) if arguments.json else show(view)
    note_shown(account.objects, receipt)
    where = same_place(arguments)
    _track(desk.job.track, receipt, account, console, where)
    console.line()
    console.line("look at it:")
    for look_at in desk.looks(receipt):
        console.prompt(
            f"  {mayfly()} {look_at}{where}\n"
        )  # broken by the terminal alone, so that it can be copied
    return int(receipt["exit_code"])


def _track(trackers: Iterable[str], receipt: Receipt, account: Account, console: Console, where: str) -> None:
    """Write an ended run to the trackers of its job. A failure is one line, and changes no result."""
    for tracker in dict.fromkeys(trackers):
        console.update(f"tracking in {tracker} ...")
        try:
            console.line(str(track(AwsCloud(account.access, account.outputs), receipt, tracker)))
        except TrainerError as error:
            again = f"{mayfly()} pull {receipt['run_id']} --track {tracker}{where}"
            console.line(f"note: {error} Repeat it: {again}")
        except Exception:  # a fault of ours about a copy: the run has its result all the same
            traceback.print_exc()
    console.close()
