"""Settle runs that no command drives, and print how they ended."""

from __future__ import annotations

from concurrent.futures import Future

from trainer.base.errors import TrainerError
from trainer.cli.terminal import Console
from trainer.control.settle import Settling


def report_settled(settled: Future[Settling] | None, console: Console) -> None:
    """Settle and print ended runs. A problem with an old run is a warning and does not stop a new one."""
    if settled is None:
        return
    try:
        for receipt in settled.result().receipts:
            console.line(f"settled {receipt['run_id']}, which had no command attached: {receipt['state']}")
        for run_id, problem in settled.result().problems.items():
            console.line(f"warning: run {run_id} could not be settled: {problem}")
    except TrainerError as error:
        console.line(f"warning: an earlier run could not be settled: {error}")
