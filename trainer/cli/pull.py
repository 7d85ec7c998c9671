"""`mayfly pull RUN`: everything that a run made, into one folder: models with their cards, receipt, log, learning curves."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from trainer.artifacts.folder import check_folder
from trainer.cli.connect import connected
from trainer.cli.curves import OBSERVED, read_events, write_curves
from trainer.cli.logs import LogReader
from trainer.cli.output import say, say_json, warn
from trainer.cli.script_pull import save_output
from trainer.control.cloud import AwsCloud
from trainer.control.script_files import outputs_seen
from trainer.control.settle import settle_run
from trainer.registry.store import models_of_run, save_model, write_whole
from trainer.stack import read_stack


def run(arguments: argparse.Namespace) -> int:
    """Download a run's models (sha256 checked), its receipt if it has ended, its log, its events and TensorBoard files."""
    folder = Path(arguments.out or arguments.run)
    check_folder(folder)
    with connected(rehearse=arguments.rehearse, program=False) as access:
        stack = read_stack(access, stack=arguments.stack)
        cloud = AwsCloud(access, stack)
        settled = settle_run(cloud, arguments.run)
        models = models_of_run(cloud.objects, arguments.run)
        files = [save_model(cloud.objects, model, folder) for model in models]
        outputs = settled.receipt["files"] if settled.receipt else outputs_seen(cloud.objects, settled.look.record)
        if settled.look.record.work == "script":
            files += [save_output(access, stack.bucket, item, folder / "out") for item in outputs]
        if settled.receipt is not None:
            files.append(folder / "receipt.json")
            write_whole(files[-1], json.dumps(settled.receipt, indent=2).encode())
        log = LogReader(cloud, arguments.run).read_new()
        if log:
            files.append(folder / "log.txt")
            write_whole(files[-1], log.encode())
        files += write_curves(read_events(cloud, arguments.run), folder)
    if arguments.json:
        document = {
            "run_id": arguments.run,
            "state": settled.receipt["state"] if settled.receipt else settled.look.record.state,
            "folder": str(folder),
            "files": [path.name for path in files],
            "models": [{"name": model.name, "version_id": model.version_id, "sha256": model.sha256} for model in models],
        }
        say_json(document)
        return 0
    for path in files:
        say(str(path))
    if folder / OBSERVED in files:
        warn(f"learning curves: tensorboard --logdir {folder / OBSERVED / 'tensorboard'}")
    if settled.receipt is None:
        warn(f"{arguments.run} has not ended: this is what there is so far")
    return 0
