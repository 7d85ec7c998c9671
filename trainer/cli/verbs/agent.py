"""`mayfly agent --here`: run a job on this machine: a desk with a GPU, a rented machine of another cloud, a
container.

The agent, its uplink, the record and the receipt are those of a node on EC2; there is no instance, no plan
and no price. The deadline ends the training and leaves the machine alone. Reads downwards, like launch.py:
job, inputs, record, agent, receipt.
"""

from __future__ import annotations

import argparse
import re
import shutil
import socket
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainer.aws.access import Access, aws_error
from trainer.aws.objects import open_objects
from trainer.aws.place import HERE
from trainer.aws.stack import read_stack
from trainer.aws.stack_outputs import StackOutputs
from trainer.base import environment
from trainer.base.errors import ConfigError, UsageError
from trainer.base.instants import iso, utc_now
from trainer.cli.asked_job import asked_job
from trainer.cli.connect import connected, local_root
from trainer.cli.defaults import notes
from trainer.cli.output import counted
from trainer.cli.question import question
from trainer.cli.sources.desk import desk_of
from trainer.cli.terminal import Console
from trainer.cli.tracking.track import need_trackers
from trainer.cli.verbs.launch import detached, end_of_run
from trainer.control.cloud import AwsCloud
from trainer.control.drive import drive
from trainer.control.settle import close_last
from trainer.control.stop import StopSignal
from trainer.launch.bundle import upload_bundle
from trainer.launch.planning import plan_here, resolve
from trainer.launch.start import record_here, record_of, write_task
from trainer.launch.work import Account, work_sha256
from trainer.runs.keys import LOCAL_USER
from trainer.runs.record_json import USER_ID

DEFAULT_DURATION = "12h"  # of a script, whose job has to name one


def run(arguments: argparse.Namespace) -> int:
    """Run a job here and follow it to its end. Returns the run's exit code, 0 if it was left running."""
    began = utc_now()
    if sys.platform != "linux":
        why, do = f"this is {sys.platform}", "Run it under WSL or Docker."
        raise ConfigError("the agent needs Linux or a container", why=why, do=do)
    arguments.python = python_of(arguments.python)
    console = Console(plain=arguments.json)
    job = asked_job(arguments, script_duration=DEFAULT_DURATION)
    need_trackers(job.track)
    for note in notes(arguments):
        console.line(f"note: {note}")
    if job.machine.budget:
        console.line("note: the budget is ignored, since nothing is rented here; --max-duration ends the run")
        job = replace(job, machine=replace(job.machine, budget=0.0))
    with ExitStack() as ends:
        ends.callback(console.close)
        desk = desk_of(job, console, ends, place=HERE).begin_here(arguments.python)
        access, outputs = _stack(arguments, ends)
        account = Account(access=access, outputs=outputs, objects=open_objects(access, outputs.bucket))
        cloud, user_id = AwsCloud(access, outputs), user_id_of(access)
        resolved = resolve(desk.job, desk, account)
        if desk.packages:
            console.line(f"packages: {', '.join(desk.packages.names)}; {desk.packages.keep()}")
        resolved = resolved.uploaded(account, console.update)
        work = _open_work(work_sha256(resolved, outputs.bucket), ends)
        if left := work.clear():
            console.line(
                f"ended {counted(left, 'process', 'processes')} of a run here whose agent was killed"
            )
        if (before := work.last_run) and (note := close_last(cloud, before)):
            console.line(note)
        if work.resumable:
            console.line("resuming from the checkpoints of the last run")
        assert desk.bundle is not None
        upload_bundle(desk.bundle, account.objects)
        plan = plan_here(resolved)
        record = record_of(resolved, plan, account, preflight_at=began, now=utc_now())
        record = record_here(record, user_id=user_id, host=socket.gethostname()[:100] or "this machine")
        task = resolved.task(record, account, None, plan.pieces)
        asking = None if arguments.detach else question(console)
        with StopSignal(asking).installed() as stop:
            from trainer.cli.views.watch import Watch  # late, as in launch.py
            from trainer.node.work_folder import inputs_here

            state = {"run_id": record.run_id, "user_id": record.user_id, "deadline": iso(record.deadline)}
            files = inputs_here(task.inputs, resolved.places)
            work.lay_out(desk.bundle.content, state, files)
            write_task(record, task, resolved.code, account.objects)
            agent = work.start(_variables(arguments, access, outputs))
            _lend(access, agent.pid)
            console.line(
                f"run {record.run_id} on {record.host}, ends by {record.deadline:%Y-%m-%d %H:%M} UTC"
            )
            receipt = None
            if not arguments.detach:
                receipt = drive(
                    cloud,
                    record.run_id,
                    known=record,
                    poll_seconds=access.place.poll_seconds,
                    on_event=Watch(console, stop).on_event,
                    stop=stop,
                    agent=agent,
                )
        console.close()
        if receipt is None:
            return detached(arguments, record, account, desk, console)
        if receipt["state"] == "done":
            work.remove()
        else:
            console.line(f"to resume, repeat the command: its checkpoints are in {work.path}")
            if not receipt["scripts"] and not receipt["models"]:
                console.line(f"its last line: {work.last_line()}")
        return end_of_run(arguments, receipt, account, desk, console)


def python_of(name: str) -> str:
    """Return the absolute path of `--python`: the agent starts it from another folder. '' for none. Raises
    UsageError.
    """
    if not name:
        return ""
    if (program := shutil.which(name)) is None:
        do = "Name a Python, such as --python .venv/bin/python."
        raise UsageError(f"--python {name} is not a program", do=do)
    return str(Path(program).absolute())  # a link is not followed: it makes the virtual environment


def user_id_of(access: Access) -> str:
    """Return the caller's `aws:userid`, which their keys begin with. Raises a TrainerError if STS does not
    say.
    """
    if access.folder is not None:
        return LOCAL_USER
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        user_id = str(access.client("sts").get_caller_identity()["UserId"])
    except (BotoCoreError, ClientError) as error:
        raise aws_error(error, "AWS does not say who you are") from error
    if not re.fullmatch(USER_ID, user_id):
        why, do = "no key can begin with it", "Sign in as another user or role."
        raise ConfigError(f"your AWS user id is {user_id[:80]!r}", why=why, do=do)
    return user_id


def _stack(arguments: argparse.Namespace, ends: ExitStack) -> tuple[Access, StackOutputs]:
    """Return access to the stack, or to the folder that replaces it."""
    if arguments.local is not None:
        root = local_root(arguments.local)
        if not root.exists():  # what is no folder is refused below
            root.mkdir(parents=True, exist_ok=True)
    access = ends.enter_context(connected(rehearse=arguments.rehearse, local=arguments.local))
    return access, read_stack(access, stack=arguments.stack)


def _open_work(sha256: str, ends: ExitStack) -> Any:
    from trainer.node.work_folder import open_work, prune  # late: Linux alone has its lock

    root = environment.here_folder()
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    work = open_work(root, sha256)
    ends.callback(work.release)
    prune(root)  # the others
    return work


def _variables(arguments: argparse.Namespace, access: Access, outputs: StackOutputs) -> dict[str, str]:
    """Return the agent's variables; it takes credentials from its environment, except in a rehearsal."""
    told = {"MAYFLY_BUCKET": outputs.bucket, "AWS_REGION": outputs.region}
    told["MAYFLY_DESK_PYTHON"] = arguments.python or sys.executable
    if access.folder is not None:
        return told | {"MAYFLY_FOLDER": str(access.folder)}
    if access.access_key is None:
        return told
    own = {"AWS_ACCESS_KEY_ID": access.access_key, "AWS_SECRET_ACCESS_KEY": str(access.secret_key)}
    return told | own | {"AWS_ENDPOINT_URL": str(access.endpoint_url)}


def _lend(access: Access, pid: int) -> None:
    """Keep a rehearsal's AWS up for as long as the agent lives, also after this command has ended."""
    if access.access_key:
        from trainer.rehearsal.client import default_root, lease_server

        lease_server(default_root(), holder=pid)
