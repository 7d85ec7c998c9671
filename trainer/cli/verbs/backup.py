"""`mayfly backup [FOLDER]`: upload the changed files of the local folder to the bucket; `--restore` downloads
them.
"""

from __future__ import annotations

import argparse

from trainer.aws.objects import open_objects
from trainer.aws.stack import read_stack
from trainer.base.errors import UsageError
from trainer.cli.connect import connected, local_root
from trainer.cli.output import counted, say, say_json, warn
from trainer.store.backup import BackupReport, back_up, restore


def run(arguments: argparse.Namespace) -> int:
    """Back the folder up, or restore it. Returns 0, or 2 if files failed, or a restore skipped files that
    differ.
    """
    folder = local_root(arguments.folder)
    if arguments.overwrite and not arguments.restore:
        raise UsageError(
            "--overwrite is for --restore", do="A backup never overwrites: S3 keeps the version before."
        )
    with connected(rehearse=arguments.rehearse, program=False) as access:
        to = read_stack(access, stack=arguments.stack).bucket
        objects, each = open_objects(access, to), (lambda name: None) if arguments.json else say
        if arguments.restore:
            report = restore(folder, access, objects, bucket=to, overwrite=arguments.overwrite, on_file=each)
        else:
            report = back_up(folder, access, objects, bucket=to, on_file=each)
    if arguments.json:
        say_json({"folder": str(folder), "restored": arguments.restore, **vars(report)})
    else:
        _tell(report, "restored" if arguments.restore else "uploaded")
    return 2 if report.differing or report.failed else 0


def _tell(report: BackupReport, done: str) -> None:
    """Print a summary to stderr; files are printed as they are copied."""
    for name, why in report.skipped.items():
        warn(f"left out: {name} ({why})")
    for name, why in report.failed.items():
        warn(f"failed: {name} ({why})")
    for name in report.differing:
        warn(f"left alone: {name} differs from the backup; --overwrite replaces it")
    size = f" ({report.moved_bytes / 1e6:.1f} MB)" if report.moved else ""
    left = f", {len(report.differing)} left alone" if report.differing else ""
    warn(f"{counted(len(report.moved), 'file')} {done}{size}, {report.unchanged:,} unchanged{left}")
