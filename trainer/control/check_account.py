"""Ask the account before a run is registered whether it would take it: the safety net, quotas, and dry runs of the request."""

from __future__ import annotations

from functools import partial

from trainer.access import Access
from trainer.control.dry_run import dry_run_note
from trainer.launch.checks import account_checks, ask_all
from trainer.launch.preflight import limit_seconds
from trainer.runs.record import RunRecord
from trainer.stack_outputs import StackOutputs


def check_account(access: Access, outputs: StackOutputs, record: RunRecord, *, sweep: bool) -> list[str]:
    """Return what the account has to say to a run that is not stored yet. Raises ours for what would fail.

    `sweep`: the sweeper has to sweep, and to answer.
    """
    seconds = limit_seconds(access)
    checks = account_checks(access, outputs, record.ladder, sweep=sweep)
    checks["the request"] = partial(dry_run_note, access, outputs, record, seconds=seconds)
    return ask_all(checks, seconds=seconds)
