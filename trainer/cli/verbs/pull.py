"""`mayfly pull RUN`: download a run's models with their cards, its receipt, log and learning curves into one
folder.

With --live it continues until the run ends. All of it comes from S3: nothing connects to the machine.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from trainer.aws.access import Access, aws_error
from trainer.aws.stack import read_stack
from trainer.aws.transfer import fetch_file
from trainer.base.arguments import check_folder
from trainer.base.errors import ConfigError, UsageError
from trainer.base.files import whole_file
from trainer.base.symbols import path_flaw
from trainer.base.text import printable
from trainer.cli.connect import connected, folder_of_run, named_run
from trainer.cli.output import say, say_json, warn
from trainer.cli.parts import EventsReader, LogReader
from trainer.cli.views.curves import OBSERVED, CurveFiles
from trainer.control.cloud import AwsCloud, Cloud
from trainer.control.observe import outputs_seen
from trainer.control.settle import Settled, settle_run
from trainer.store.listing import Model, models_of_run, save_model

LOG = "log.txt"


def run(arguments: argparse.Namespace) -> int:
    """Download a run's models (sha256 checked), its receipt if it has ended, its log, its events and
    TensorBoard files.
    """
    if arguments.out:
        check_folder(Path(arguments.out))
    with connected(rehearse=arguments.rehearse, program=False, local=arguments.local) as access:
        outputs = read_stack(access, stack=arguments.stack)
        cloud = AwsCloud(access, outputs)
        arguments.run = named_run(cloud.objects, arguments.run)
        folder = Path(arguments.out) if arguments.out else folder_of_run(arguments.run)
        check_folder(folder)
        pulled = Pulled(cloud, arguments.run, folder, partial(_save_output, access, outputs.bucket))
        while True:
            new = pulled.bring()
            if not arguments.json:
                _announce(new, pulled)
            if pulled.ended or not arguments.live:
                break
            time.sleep(access.place.poll_seconds)
    if arguments.json:
        say_json(pulled.document())
    elif not pulled.ended:
        warn(f"{arguments.run} has not ended: this is what there is so far")
    return 0


class Pulled:
    """The local folder of one run; `bring` updates it. Each model and each line is downloaded once."""

    def __init__(
        self, cloud: Cloud, run_id: str, folder: Path, save_output: Callable[[Mapping[str, Any], Path], Path]
    ) -> None:
        self._save_output = save_output
        self.folder = folder
        self.files: list[Path] = []
        self._cloud, self._run_id = cloud, run_id
        self._log, self._events = LogReader(cloud, run_id), EventsReader(cloud, run_id)
        self._curves = CurveFiles(folder)
        self._models: dict[str, Model] = {}  # by key and version
        self._outputs: dict[str, str] = {}  # of a script: path -> sha256
        self._settled: Settled | None = None

    @property
    def ended(self) -> bool:
        """Return whether the run had ended at the last look."""
        return self._settled is not None and self._settled.receipt is not None

    def bring(self) -> list[Path]:
        """Download what is new; return the files that were added."""
        self._settled = settle_run(self._cloud, self._run_id)  # first: the files of an ended run are complete
        before = set(self.files)
        for model in models_of_run(self._cloud.objects, self._run_id):
            if f"{model.key} {model.version_id}" not in self._models:
                self._add([save_model(self._cloud.objects, model, self.folder)])
                self._models[f"{model.key} {model.version_id}"] = model
        receipt, record = self._settled.receipt, self._settled.look.record
        outputs = outputs_seen(self._cloud.objects, record) if receipt is None else receipt["files"]
        for item in outputs if record.leaves == "files" else ():
            if self._outputs.get(item["file"]) != item["sha256"]:
                self._add([self._save_output(item, self.folder / "out")])
                self._outputs[item["file"]] = item["sha256"]
        if self._settled.receipt is not None:
            with whole_file(self.folder / "receipt.json") as partial:
                partial.write_text(json.dumps(self._settled.receipt, indent=2), encoding="utf-8")
            self._add([self.folder / "receipt.json"])
        self._append_log(self._log.read_new())
        self._add(self._curves.add(self._events.read_new()))
        return [path for path in self.files if path not in before]

    def document(self) -> dict[str, Any]:
        """Return the document of `--json`."""
        assert self._settled is not None, "bring() comes first"
        receipt = self._settled.receipt
        models = [
            {"name": one.name, "version_id": one.version_id, "sha256": one.sha256}
            for one in self._models.values()
        ]
        return {
            "run_id": self._run_id,
            "state": receipt["state"] if receipt else self._settled.look.record.state,
            "folder": str(self.folder),
            "files": [path.name for path in self.files],
            "models": models,
        }

    def _append_log(self, text: str) -> None:
        path = self.folder / LOG
        if text and path not in self.files:
            with whole_file(path) as partial:
                partial.write_bytes(printable(text).encode())
            self._add([path])
        elif text:
            with path.open("ab") as file:
                file.write(printable(text).encode())

    def _add(self, paths: Iterable[Path]) -> None:
        self.files += [path for path in paths if path not in self.files]


def _announce(new: list[Path], pulled: Pulled) -> None:
    for path in new:
        say(str(path))
    if pulled.folder / OBSERVED in new:
        warn(f"learning curves: tensorboard --logdir {pulled.folder / OBSERVED / 'tensorboard'}")


def _save_output(access: Access, bucket: str, item: Mapping[str, Any], into: Path) -> Path:
    """Write an output file under `into`, by its relative path. Raises ConfigError if it is missing or has
    another hash.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    if why := path_flaw(item["file"]):
        do = "mayfly receipts RUN --json has its key."
        raise ConfigError(f"{item['file'][:80]!r} is not written here", why=why, do=do)
    path: Path = into / str(item["file"])
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.parent.resolve().is_relative_to(into.resolve()):  # a folder that came with a repository
        raise UsageError(f"{path.parent} leads out of {into}", why="it is a link", do="Choose another --out.")
    try:
        sha256 = fetch_file(
            path, item["key"], item["version_id"], item["sha256"], access.client("s3"), bucket=bucket
        )
    except (BotoCoreError, ClientError) as error:
        raise aws_error(error, f"cannot read s3://{bucket}/{item['key']}") from error
    if sha256 != item["sha256"]:
        why = f"sha256 is {sha256}, it should be {item['sha256']}"
        raise ConfigError(f"{item['file']} is damaged", why=why, do="Fetch it again.")
    return path
