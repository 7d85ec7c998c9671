"""Check before a run is registered that the account accepts it: the safety net, quotas, and dry runs of the request."""

from __future__ import annotations

from functools import partial

from trainer.access import Access
from trainer.control.dry_run import dry_run_note
from trainer.launch.checks import account_checks, ask_all
from trainer.launch.preflight import limit_seconds
from trainer.runs.record import RunRecord
from trainer.stack_outputs import StackOutputs


def check_account(access: Access, outputs: StackOutputs, record: RunRecord, *, sweep: bool) -> list[str]:
    """Return notes on a run that is not stored yet. Raises a TrainerError if it would fail.

    `sweep`: invoke the sweeper, too, and require an answer.
    """
    seconds = limit_seconds(access)
    checks = account_checks(access, outputs, record.ladder, sweep=sweep)
    checks["the request"] = partial(dry_run_note, access, outputs, record, seconds=seconds)
    return ask_all(checks, seconds=seconds)
