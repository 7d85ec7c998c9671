"""`mayfly receipts [RUN]`: receipts of ended runs, or their sums. First settles runs without a command."""

from __future__ import annotations

import argparse
import webbrowser
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from trainer.aws.stack import read_stack
from trainer.base.arguments import check_folder
from trainer.base.environment import has_screen
from trainer.base.errors import UsageError
from trainer.base.files import whole_file
from trainer.cli.connect import connected, folder_of_run, named_run
from trainer.cli.output import bars_are, counted, duration, lacks, money, say, say_json
from trainer.cli.terminal import show
from trainer.cli.views.receipt import receipt_view, spent
from trainer.cli.views.table import FittedTable
from trainer.control.cloud import AwsCloud, Cloud
from trainer.control.report import report_of
from trainer.control.settle import settle_run, settle_unwatched
from trainer.launch.known_times import RECEIPTS_AT_ONCE
from trainer.runs.receipt import Receipt
from trainer.runs.receipt_sums import CostSum, summed
from trainer.runs.record import RunRecord
from trainer.runs.store import REPORT, run_ids
from trainer.runs.stored_receipt import UnreadableReceipt, read_receipt


def run(arguments: argparse.Namespace) -> int:
    """Print one receipt, a table of all, oldest first, or their sums; or open the report of one."""
    if arguments.run and arguments.by:
        raise UsageError("--by sums all receipts", do="Leave out the run, or --by.")
    if arguments.open and not arguments.run:
        raise UsageError("--open shows the report of one run", do="Name the run, or `last`.")
    with connected(rehearse=arguments.rehearse, program=False, local=arguments.local) as access:
        outputs = read_stack(access, stack=arguments.stack)
        cloud = AwsCloud(access, outputs)
        if arguments.run:
            run_id = named_run(cloud.objects, arguments.run)
            settled = settle_run(cloud, run_id)
            receipt = settled.receipt
            if receipt is None:
                do = f"mayfly status {run_id} shows its progress."
                raise UsageError(f"run {run_id} has no receipt yet", why="it has not ended", do=do)
            if arguments.open:
                return open_report(cloud, settled.look.record, receipt, as_json=arguments.json)
            view = receipt_view(receipt, outputs.experiment_days, checkpoint_days=outputs.checkpoint_days)
            say_json(receipt) if arguments.json else show(view)
            return 0
        problems = settle_unwatched(access, outputs).problems

        def read(run_id: str) -> Receipt | None:
            try:
                return read_receipt(cloud.objects, run_id)
            except UnreadableReceipt as error:
                problems[run_id] = error
                return None

        with ThreadPoolExecutor(RECEIPTS_AT_ONCE) as pool:
            receipts = list(filter(None, pool.map(read, run_ids(cloud.objects))))
    unread = {run_id: error.as_dict() for run_id, error in problems.items()}
    sums = summed(receipts, arguments.by) if arguments.by else []
    if arguments.json:
        told = {"sums": [vars(one) for one in sums]} if arguments.by else {"receipts": receipts}
        say_json({**told, "problems": unread})
    elif not receipts:
        say("no receipts yet")
    else:
        show(sums_table(sums, arguments.by) if arguments.by else receipts_table(receipts))
    return lacks(problems, as_json=arguments.json)


def open_report(cloud: Cloud, record: RunRecord, receipt: Receipt, *, as_json: bool) -> int:
    """Write a run's report where `pull` does, print its path, and open it where there is a browser."""
    path = folder_of_run(record.run_id) / REPORT
    check_folder(path.parent)
    with whole_file(path) as new:
        new.write_bytes(report_of(cloud, record, receipt))
    if as_json:
        say_json({"run_id": record.run_id, "report": str(path)})
    else:
        say(str(path))
    if has_screen():
        with suppress(webbrowser.Error):
            webbrowser.open(path.resolve().as_uri())
    return 0


def sums_table(sums: Iterable[CostSum], by: str) -> FittedTable:
    """Return the table of sums, with that of all below."""
    rows = list(sums)
    total = CostSum(
        group="all",
        runs=sum(one.runs for one in rows),
        seconds=sum(one.seconds for one in rows),
        low=sum(one.low for one in rows),
        high=sum(one.high for one in rows),
        estimated=sum(one.estimated for one in rows),
        estimated_runs=sum(one.estimated_runs for one in rows),
    )
    shown = [*rows, total] if by != "symbol" else rows  # a run counts for each of its symbols
    return FittedTable([_sum_row(one, by) for one in shown], right=("runs", "time", "spent", "estimated"))


def _sum_row(one: CostSum, by: str) -> dict[str, str]:
    of = f" of {counted(one.estimated_runs, 'run')}" if one.estimated_runs < one.runs else ""
    return {
        by: one.group,
        "runs": f"{one.runs:,}",
        "time": duration(one.seconds),
        "spent": spent({"spent_low": one.low, "spent_high": one.high}),
        "estimated": f"{money(one.estimated)}{of}" if one.estimated_runs else "-",
    }


def receipts_table(receipts: Iterable[Receipt]) -> FittedTable:
    """Return the table of the receipts."""
    return FittedTable(
        map(_row, receipts),
        right=("exit code", "made", "failed", "time"),
        leaving=("instance", "end", "exit code", "bars", "failed", "spent", "time"),
    )


def _row(receipt: dict[str, Any]) -> dict[str, str]:
    instance = receipt["instances"][-1] if receipt["instances"] else None
    return {
        "run": receipt["run_id"],
        "state": receipt["state"],
        "exit code": str(receipt["exit_code"]),
        "made": _made(receipt),
        "failed": str(len(receipt["failed"])),
        "bars": bars_are(receipt["data"].get("synthetic")),
        "time": duration(receipt["seconds"]["total"]),
        "spent": spent(receipt["dollars"]),
        "instance": instance["instance_id"] if instance else "-",
        "end": instance["state"] if instance else "-",
    }


def _made(receipt: dict[str, Any]) -> str:
    """Return how much a run made: models, scores, or files of a script or of a prepare run."""
    if receipt["work"] == "score":
        return "scores"
    if receipt["work"] == "train":
        return counted(len(receipt["models"]), "model")
    return counted(len(receipt["files"]), "file")
