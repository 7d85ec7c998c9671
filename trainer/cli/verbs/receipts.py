"""`mayfly receipts [RUN]`: receipts of ended runs. First settles runs that no command drives."""

from __future__ import annotations

import argparse
from typing import Any

from trainer.aws.stack import read_stack
from trainer.base.errors import UsageError
from trainer.cli.connect import connected
from trainer.cli.output import bars_are, counted, duration, say, say_json, warn
from trainer.cli.terminal import show
from trainer.cli.views.receipt import receipt_view, spent
from trainer.cli.views.table import FittedTable, TableColumn
from trainer.control.cloud import AwsCloud
from trainer.control.settle import settle_run, settle_unwatched
from trainer.runs.receipt import Receipt
from trainer.runs.store import run_ids
from trainer.runs.stored_receipt import UnreadableReceipt, read_receipt

COLUMNS = (
    TableColumn(title="run"),
    TableColumn(title="state"),
    TableColumn(title="exit code", right=True, leaves=5),
    TableColumn(title="made", right=True),
    TableColumn(title="failed", right=True, leaves=3),
    TableColumn(title="bars", leaves=4),
    TableColumn(title="time", right=True, leaves=1),
    TableColumn(title="spent", leaves=2),
    TableColumn(title="instance", leaves=7),
    TableColumn(title="end", leaves=6),
)


def run(arguments: argparse.Namespace) -> int:
    """Print one receipt, or a table of all, oldest first."""
    with connected(rehearse=arguments.rehearse, program=False, local=arguments.local) as access:
        outputs = read_stack(access, stack=arguments.stack)
        cloud = AwsCloud(access, outputs)
        if arguments.run:
            receipt = settle_run(cloud, arguments.run).receipt
            if receipt is None:
                do = f"mayfly status {arguments.run} shows its progress."
                raise UsageError(f"run {arguments.run} has no receipt yet", why="it has not ended", do=do)
            say_json(receipt) if arguments.json else show(receipt_view(receipt))
            return 0
        problems = settle_unwatched(access, outputs).problems
        receipts: list[Receipt] = []
        for run_id in run_ids(cloud.objects):
            try:
                receipt = read_receipt(cloud.objects, run_id)
                receipts += [receipt] if receipt else []
            except UnreadableReceipt as error:
                problems[run_id] = error
    if arguments.json:
        say_json(
            {
                "receipts": receipts,
                "problems": {run_id: error.as_dict() for run_id, error in problems.items()},
            }
        )
    else:
        for problem in problems.values():
            warn(f"warning: {problem}")
        show(FittedTable(COLUMNS, map(_row, receipts))) if receipts else say("no receipts yet")
    return 0


def _row(receipt: dict[str, Any]) -> list[str]:
    instance = receipt["instances"][-1] if receipt["instances"] else None
    return [
        receipt["run_id"],
        receipt["state"],
        str(receipt["exit_code"]),
        _made(receipt),
        str(len(receipt["failed"])),
        bars_are(receipt["data"].get("synthetic")),
        duration(receipt["seconds"]["total"]),
        spent(receipt["dollars"]),
        instance["instance_id"] if instance else "-",
        instance["state"] if instance else "-",
    ]


def _made(receipt: dict[str, Any]) -> str:
    """Return how much a run made: models, or files of a script or of a prepare run."""
    if receipt.get("work", "train") == "train":
        return counted(len(receipt["models"]), "model")
    return counted(len(receipt["files"]), "file")
