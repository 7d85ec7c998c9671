"""`mayfly doctor`: check everything that a run depends on, one by one, and print a remedy for each failure.

With `--fix` it lists the remains of ended runs, asks, and deletes them; with `--sweep` it ends the machines
that the sweeper would end, by the sweeper's own code.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from functools import partial

from botocore.exceptions import BotoCoreError, ClientError

from trainer.attach.ssm import check_tools
from trainer.aws.access import Access, aws_error
from trainer.aws.objects import open_objects
from trainer.aws.stack import read_stack, require_sign_in
from trainer.aws.stack_outputs import StackOutputs
from trainer.base.errors import (
    ConnectionFailed,
    PermissionDenied,
    Stopped,
    TerminationUnconfirmed,
    TrainerError,
    UsageError,
)
from trainer.base.extras import needs
from trainer.base.instants import utc_now
from trainer.base.text import counted
from trainer.cli.connect import connected
from trainer.cli.output import agrees, refuse_unasked, say, say_json, warn
from trainer.cli.terminal import show
from trainer.cli.views.table import FittedTable
from trainer.control.functions.sweep import Clients, SweepSettings, sweep
from trainer.control.orphans import KINDS, Orphan, delete, orphans, orphans_note
from trainer.launch.health import stack_checks

OK, NOTE, UNKNOWN, FAILED = "ok", "note", "unknown", "failed"
MARKS = {OK: "✓", NOTE: "!", UNKNOWN: "?", FAILED: "✗"}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check. `unknown`: these credentials may not look; `exit_code` is the error's, 0
    without one.
    """

    check: str
    state: str
    what: str = ""
    why: str = ""
    do: str = ""
    exit_code: int = 0


def run(arguments: argparse.Namespace) -> int:
    """Check the stack, after deletions with `--fix`. Returns 0, or the exit code of the first check that
    failed.
    """
    if arguments.dry_run and not arguments.sweep:
        raise UsageError("--dry-run is for --sweep", do="Add --sweep, or leave it out.")
    if arguments.fix and arguments.sweep:
        raise UsageError("--fix and --sweep don't go together", do="Do one, then the other.")
    if arguments.sweep:
        return sweep_stack(arguments)
    if arguments.fix:
        refuse_unasked(arguments, "--fix would delete things", do="Add -y, or leave --fix out to look.")
    with connected(rehearse=arguments.rehearse, create=False) as access:
        deleted = fix(access, stack=arguments.stack, yes=arguments.yes) if arguments.fix else []
        findings = examine(access, stack=arguments.stack)
    if arguments.json:
        say_json({"checks": [asdict(one) for one in findings], "deleted": [asdict(one) for one in deleted]})
    else:
        rows = [{"": MARKS[one.state], "check": one.check, "finding": _words(one)} for one in findings]
        show(FittedTable(rows, wraps=("finding",)))
    return next((one.exit_code for one in findings if one.state == FAILED), 0)


def sweep_stack(arguments: argparse.Namespace) -> int:
    """End, after a question, what is past its deadline or silent. Returns 110 if an instance could not be
    ended, 103 if S3 did not show whether one is silent.

    By AWS's clock: this machine's may be wrong.
    """
    if not arguments.dry_run:
        refuse_unasked(arguments, "--sweep would end machines", do="Add -y, or --dry-run to look.")
    with connected(rehearse=arguments.rehearse, create=False) as access:
        outputs = read_stack(access, stack=arguments.stack)
        settings = SweepSettings(
            project=outputs.project,
            stack=outputs.stack,
            bucket=outputs.bucket,
            schedule_group=outputs.schedule_group,
        )
        clients = Clients(**{name: access.client(name) for name in ("cloudwatch", "ec2", "s3", "scheduler")})
        one_sweep = partial(sweep, settings, clients, chores=False)
        try:
            summary = one_sweep(now=_now_of(access), dry_run=True)
            listed = summary.terminated
            _list_machines(listed)
            if not arguments.dry_run and summary.terminated:
                several = len(summary.terminated) > 1
                if not (arguments.yes or agrees(f"End {'these' if several else 'it'}?")):
                    raise Stopped("nothing was ended", do="Everything is as it was.")
                summary = one_sweep(now=_now_of(access))
                _list_machines({one: why for one, why in summary.terminated.items() if one not in listed})
        except (BotoCoreError, ClientError) as error:
            raise aws_error(error, "cannot sweep") from error
    if arguments.json:
        say_json({"dry_run": arguments.dry_run, "sweep": summary.as_dict()})
    else:
        verb = "would end" if arguments.dry_run else "ended"
        say(f"{counted(summary.seen, 'machine')} seen, {verb} {len(summary.terminated)}")
    for what, why in summary.failed.items():
        warn(f"error: cannot end {what} ({why})")
    if (unread := summary.lease_check) != "done":
        warn(f"error: whether a machine is silent was not looked at ({unread}). Sweep again once S3 answers.")
    if summary.failed:
        return TerminationUnconfirmed.exit_code
    return 0 if unread == "done" else ConnectionFailed.exit_code


def _list_machines(reasons: Mapping[str, str]) -> None:
    for instance_id, why in reasons.items():
        warn(f"{instance_id}: {why}")


def _now_of(access: Access) -> datetime:
    """Return the current time by AWS's clock."""
    answer = access.client("sts").get_caller_identity()
    return parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"]).astimezone(timezone.utc)


def examine(access: Access, *, stack: str) -> list[Finding]:
    """Check sign-in and stack, and then, all at once, what depends on them."""
    signed_in = finding("sign-in", lambda: _who(access))
    if signed_in.state == FAILED:
        return [signed_in]
    try:
        outputs = read_stack(access, stack=stack)
    except TrainerError as error:
        return [signed_in, _of_error("stack", error)]
    about = f"{outputs.project}-{outputs.stack} in {outputs.region}, {outputs.bucket}"
    found = Finding(check="stack", state=OK, what=about)
    checks = {**stack_checks(access, outputs), **attach_checks(outputs)}
    objects = open_objects(access, outputs.bucket)
    for kind in KINDS:
        checks[f"orphaned {kind}s"] = partial(orphans_note, kind, access, outputs, objects, now=utc_now())
    with ThreadPoolExecutor(max_workers=len(checks)) as pool:
        return [signed_in, found, *pool.map(finding, checks.keys(), checks.values())]


def attach_checks(outputs: StackOutputs) -> dict[str, Callable[[], str]]:
    """Return the check of what `mayfly attach` needs at this desk, by its name; empty if the stack has attach
    = off.
    """

    def check() -> str:
        if outputs.attach == "ssm":
            check_tools()
        else:
            needs("paramiko")
        return ""

    return {} if outputs.attach == "off" else {"attach": check}


def fix(access: Access, *, stack: str, yes: bool) -> list[Orphan]:
    """Show the remains of runs that ended, ask unless `yes`, and delete them. Raises Stopped for a no, ours
    for a refusal.
    """
    outputs = read_stack(access, stack=stack)
    objects, now = open_objects(access, outputs.bucket), utc_now()
    try:
        remains = [one for kind in KINDS for one in orphans(kind, access, outputs, objects, now=now)]
    except (BotoCoreError, ClientError) as error:
        raise aws_error(error, "cannot look for remains of runs") from error
    if not remains:
        warn("nothing to delete: no volume, interface or schedule of a run that ended is left")
        return []
    for one in remains:
        warn(f"{one.kind} {one.id}{one.about}, of run {one.run_id}")
    if not yes and not agrees(f"Delete {'it' if len(remains) == 1 else f'these {len(remains)}'}?"):
        raise Stopped("not deleted", do="Everything is as it was.")
    for one in remains:
        try:
            delete(access, outputs, one)
        except (BotoCoreError, ClientError) as error:
            raise aws_error(error, f"cannot delete the {one.kind} {one.id}") from error
        warn(f"deleted {one.id}")
    return remains


def finding(name: str, check: Callable[[], str]) -> Finding:
    """Run one check and return its finding."""
    try:
        note = check()
    except (BotoCoreError, ClientError) as error:
        return _of_error(name, aws_error(error, f"cannot check the {name}"))
    except TrainerError as error:
        return _of_error(name, error)
    return Finding(check=name, state=NOTE if note and name != "sign-in" else OK, what=note)


def _of_error(name: str, error: TrainerError) -> Finding:
    denied = isinstance(error, PermissionDenied) and name not in ("sign-in", "stack")
    state, code = (UNKNOWN, 0) if denied else (FAILED, error.exit_code)
    return Finding(check=name, state=state, what=error.what, why=error.why, do=error.do, exit_code=code)


def _who(access: Access) -> str:
    require_sign_in(access)
    return str(access.client("sts").get_caller_identity()["Arn"])


def _words(found: Finding) -> str:
    because = f" ({found.why})" if found.why else ""
    return f"{found.what}{because}{'. ' if found.do else ''}{found.do}"
