"""`mayfly doctor`: check everything that a run depends on, each on its own, and say what to do about what is not well."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

from botocore.exceptions import BotoCoreError, ClientError

from trainer.access import Access, aws_error
from trainer.attach.ssm import check_tools
from trainer.cli.connect import connected
from trainer.cli.output import say_json
from trainer.cli.table import FittedTable, TableColumn
from trainer.cli.terminal import show
from trainer.errors import PermissionDenied, TrainerError
from trainer.extras import needs
from trainer.launch.health import stack_checks
from trainer.stack import read_stack, require_sign_in
from trainer.stack_outputs import StackOutputs

OK, NOTE, UNKNOWN, FAILED = "ok", "note", "unknown", "failed"
MARKS = {OK: "✓", NOTE: "!", UNKNOWN: "?", FAILED: "✗"}
COLUMNS = (TableColumn(title=""), TableColumn(title="check"), TableColumn(title="finding", wraps=True))


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check. `unknown`: these credentials may not look; `exit_code` is the error's, 0 without one."""

    check: str
    state: str
    what: str = ""
    why: str = ""
    do: str = ""
    exit_code: int = 0


def run(arguments: argparse.Namespace) -> int:
    """Check the stack. Returns 0, or the exit code of the first check that failed."""
    with connected(rehearse=arguments.rehearse, create=False) as access:
        findings = examine(access, stack=arguments.stack)
    if arguments.json:
        say_json({"checks": [asdict(one) for one in findings]})
    else:
        show(FittedTable(COLUMNS, [(MARKS[one.state], one.check, _words(one)) for one in findings]))
    return next((one.exit_code for one in findings if one.state == FAILED), 0)


def examine(access: Access, *, stack: str) -> list[Finding]:
    """Check sign-in and stack, and then, all at once, what depends on them."""
    signed_in = finding("sign-in", lambda: _who(access))
    if signed_in.state == FAILED:
        return [signed_in]
    try:
        outputs = read_stack(access, stack=stack)
    except TrainerError as error:
        return [signed_in, _of_error("stack", error)]
    found = Finding(check="stack", state=OK, what=f"{outputs.project}-{outputs.stack} in {outputs.region}, {outputs.bucket}")
    checks = {**stack_checks(access, outputs), **attach_checks(outputs)}
    with ThreadPoolExecutor(max_workers=len(checks)) as pool:
        return [signed_in, found, *pool.map(finding, checks.keys(), checks.values())]


def attach_checks(outputs: StackOutputs) -> dict[str, Callable[[], str]]:
    """Return the check of what `mayfly attach` needs at this desk, by its name; none where the stack has attach = off."""

    def check() -> str:
        if outputs.attach == "ssm":
            check_tools()
        else:
            needs("paramiko")
        return ""

    return {} if outputs.attach == "off" else {"attach": check}


def finding(name: str, check: Callable[[], str]) -> Finding:
    """Make one check, and return what came of it."""
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
