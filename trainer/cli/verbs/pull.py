"""`mayfly pull RUN`: download a run's receipt and report, log, learning curves and results, its models with
their cards and its output files into one folder. With --track the ended run is written to a tracker, too.

With --live it continues until the run ends. All of it comes from S3: nothing connects to the machine. A file
that can't be had stops no other: it is reported at the end, and decides the exit code. One command at a time
writes to a folder: log and events are appended to.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from trainer.aws.access import Access, aws_error
from trainer.aws.objects import given
from trainer.aws.stack import read_stack
from trainer.aws.transfer import fetch_file
from trainer.base.arguments import check_folder
from trainer.base.errors import ConfigError, ConnectionFailed, TrainerError, UsageError, problem_of
from trainer.base.files import append_whole, held_alone, whole_file
from trainer.base.symbols import path_flaw
from trainer.base.text import printable
from trainer.cli.connect import connected, folder_of_run, look_again, named_run
from trainer.cli.output import say, say_json, warn
from trainer.cli.parts import EventsReader, LogReader
from trainer.cli.tracking.track import Tracked, need_trackers, track
from trainer.cli.views.curves import EVENTS, OBSERVED, CurveFiles
from trainer.control.cloud import AwsCloud, Cloud
from trainer.control.observe import files_so_far
from trainer.control.report import report_of
from trainer.control.settle import Settled, settle_run
from trainer.runs.reports import MOST_RESULT_BYTES
from trainer.runs.store import REPORT, read_record
from trainer.store.listing import FETCHED_AT_ONCE, Model, models_of_run, save_model

LOG, RESULTS = "log.txt", "training_results.json"
MOST_SHOWN = 20  # problems


def run(arguments: argparse.Namespace) -> int:
    """Download a run's files: models and outputs with their sha256 checked, receipt and results if it has
    ended. Returns 0, or the exit code of the first file that could not be had.
    """
    if arguments.out:
        check_folder(Path(arguments.out))
    need_trackers(arguments.track)
    with (
        connected(rehearse=arguments.rehearse, program=False, local=arguments.local) as access,
        ExitStack() as ends,
    ):
        outputs = read_stack(access, stack=arguments.stack)
        cloud = AwsCloud(access, outputs)
        arguments.run = named_run(cloud.objects, arguments.run)
        folder = Path(arguments.out) if arguments.out else folder_of_run(arguments.run)
        check_folder(folder)
        read_record(cloud.objects, arguments.run)  # an unknown run leaves no folder
        ends.enter_context(held_alone(folder))
        pulled = Pulled(cloud, arguments.run, folder, partial(_fetch, access, outputs.bucket))
        wait, new = partial(time.sleep, access.place.poll_seconds), pulled.bring()
        while True:
            if not arguments.json:
                _announce(new, pulled)
            if pulled.ended or not arguments.live:
                break
            wait()
            new = look_again(pulled.bring, wait)
        for tracked in pulled.track(dict.fromkeys(arguments.track)):
            if not arguments.json:
                warn(str(tracked))
    if arguments.json:
        say_json(pulled.document())
    elif not pulled.ended:
        warn(f"{arguments.run} has not ended: this is what there is so far")
    for name, problem in list(pulled.problems.items())[:MOST_SHOWN] if not arguments.json else ():
        warn(f"error: {name}: {problem}")
    if (more := len(pulled.problems) - MOST_SHOWN) > 0 and not arguments.json:
        warn(f"error: {more:,} more files could not be had; --json has them all")
    return next((problem.exit_code for problem in pulled.problems.values()), 0)


class Pulled:
    """The local folder of one run; `bring` updates it. Each model and each line is downloaded once, and the
    bytes of each output once, several at a time.
    """

    def __init__(
        self, cloud: Cloud, run_id: str, folder: Path, fetch: Callable[[Mapping[str, Any], Path], None]
    ) -> None:
        self._fetch = fetch  # an output file to a path
        self.folder = folder
        self.files: dict[Path, None] = {}  # in the order in which they came
        self.problems: dict[str, TrainerError] = {}  # of the last look, by file
        self._cloud, self._run_id = cloud, run_id
        self._log, self._events = LogReader(cloud, run_id), EventsReader(cloud, run_id)
        self._curves = CurveFiles(folder)
        self._models: dict[str, Model] = {}  # by key and version
        self._outputs: dict[str, str] = {}  # of a script: path -> sha256
        self._fetched: set[tuple[str, str]] = set()  # keys and versions of these
        self._settled: Settled | None = None
        self._tracked: list[Tracked] = []

    @property
    def ended(self) -> bool:
        """Return whether the run had ended at the last look."""
        return self._settled is not None and self._settled.receipt is not None

    def bring(self) -> list[Path]:
        """Download what is new; return the files that were added."""
        self._settled = settle_run(self._cloud, self._run_id)  # first: the files of an ended run are complete
        before = set(self.files)
        # Lines that a disk refused are lost to this command; what S3 did not show, this look reads.
        lost = {name: self.problems[name] for name in (LOG, EVENTS) if name in self.problems}
        self.problems = {name: why for name, why in lost.items() if not isinstance(why, ConnectionFailed)}
        steps = {
            "receipt.json": self._write_receipt,
            REPORT: self._write_report,
            LOG: lambda: self._append_log(self._log.read_new()),
            EVENTS: lambda: self._curves.add(self._events.read_new()),
            RESULTS: self._write_results,
            "models": self._save_models,
            "out": self._save_outputs,
        }
        for name, step in steps.items():
            self.files.update(dict.fromkeys(self._tried(name, step)))
        self.problems = dict(sorted(self.problems.items()))
        return [path for path in self.files if path not in before]

    def track(self, trackers: Iterable[str]) -> Iterator[Tracked]:
        """Write the run to trackers, and yield where it is; a failure is a problem of the tracker's name."""
        for tracker in trackers:
            try:
                if self._settled is None or self._settled.receipt is None:
                    do = "Pull it again then, or with --live now."
                    raise UsageError("the run is not tracked", why="it has not ended", do=do)
                self._tracked.append(track(self._cloud, self._settled.receipt, tracker))
                yield self._tracked[-1]
            except TrainerError as error:
                self.problems[tracker] = error

    def document(self) -> dict[str, Any]:
        """Return the document of `--json`."""
        assert self._settled is not None, "bring() comes first"
        receipt = self._settled.receipt
        models = [
            {"name": one.name, "version_id": one.version_id, "sha256": one.sha256}
            for one in sorted(self._models.values(), key=lambda one: one.name)
        ]
        return {
            "run_id": self._run_id,
            "state": receipt["state"] if receipt else self._settled.look.record.state,
            "folder": str(self.folder),
            "files": [path.relative_to(self.folder).as_posix() for path in self.files],
            "models": models,
            "tracked": [asdict(one) for one in self._tracked],
            "problems": [{"file": name, **problem.as_dict()} for name, problem in self.problems.items()],
        }

    def _tried(self, name: str, step: Callable[[], Iterable[Path]]) -> Iterable[Path]:
        """Return the files that a step wrote; what fails there is a problem of that name."""
        try:
            return step()
        except (TrainerError, OSError) as error:
            if (problem := problem_of(error)) is None:
                raise
            self.problems[name] = problem
        return ()

    def _write_receipt(self) -> Iterable[Path]:
        if self._settled is None or self._settled.receipt is None:
            return ()
        return [self._written("receipt.json", json.dumps(self._settled.receipt, indent=2).encode())]

    def _write_report(self) -> Iterable[Path]:
        if self._settled is None or self._settled.receipt is None or self.folder / REPORT in self.files:
            return ()
        made = report_of(self._cloud, self._settled.look.record, self._settled.receipt)
        return [self._written(REPORT, made)]

    def _append_log(self, text: str) -> Iterable[Path]:
        path = self.folder / LOG
        if text and path not in self.files:
            return [self._written(LOG, printable(text).encode())]
        if text:
            append_whole(path, printable(text).encode())
        return ()

    def _write_results(self) -> Iterable[Path]:
        """Write the results of the training, which its node stores at its end."""
        if not self.ended or self.folder / RESULTS in self.files:
            return ()
        assert self._settled is not None
        found = b""
        for keys in self._settled.look.record.all_nodes:
            key, most = f"{keys.folder}{RESULTS}", MOST_RESULT_BYTES + 1
            stored = given(partial(self._cloud.objects.get, key=key, first_bytes=most))
            found = stored.body if stored and stored.body else found
        if len(found) > MOST_RESULT_BYTES:
            why = f"it has more than {MOST_RESULT_BYTES:,} bytes"
            raise ConfigError(f"{RESULTS} is not written here", why=why, do="It stays in the bucket.")
        return [self._written(RESULTS, found)] if found else ()

    def _written(self, name: str, body: bytes) -> Path:
        with whole_file(self.folder / name) as new:
            new.write_bytes(body)
        return self.folder / name

    def _save_models(self) -> Iterable[Path]:
        models = models_of_run(self._cloud.objects, self._run_id)
        new = [model for model in models if f"{model.key} {model.version_id}" not in self._models]
        return self._in_parallel([partial(self._save_model, model) for model in new])

    def _save_model(self, model: Model) -> Iterable[Path]:
        def save() -> Iterable[Path]:
            path = save_model(self._cloud.objects, model, self.folder)
            self._models[f"{model.key} {model.version_id}"] = model
            return [path]

        return self._tried(model.name, save)

    def _save_outputs(self) -> Iterable[Path]:
        assert self._settled is not None
        receipt, record = self._settled.receipt, self._settled.look.record
        if record.leaves != "files":
            return ()
        had = self._fetched
        outputs = files_so_far(self._cloud.objects, record, had=had) if receipt is None else receipt["files"]
        same: dict[str, list[Mapping[str, Any]]] = {}  # by hash
        for item in outputs:
            if self._outputs.get(item["file"]) != item["sha256"]:
                same.setdefault(item["sha256"], []).append(item)
        return self._in_parallel([partial(self._save_same, items) for items in same.values()])

    def _save_same(self, items: Sequence[Mapping[str, Any]]) -> Iterable[Path]:
        """Write output files of the same bytes: the first that can be had is fetched, the others are its
        copies.
        """
        saved: list[Path] = []

        def save(item: Mapping[str, Any]) -> Iterable[Path]:
            path = _place_of(item, self.folder / "out")
            if saved:
                with whole_file(path) as new:
                    shutil.copyfile(saved[0], new)
            else:
                self._fetch(item, path)
            self._outputs[item["file"]] = item["sha256"]
            self._fetched.add((item["key"], item["version_id"]))
            return [path]

        for item in items:
            saved += self._tried(f"out/{item['file']}", partial(save, item))
        return saved

    def _in_parallel(self, steps: Sequence[Callable[[], Iterable[Path]]]) -> Iterable[Path]:
        """Return the files of all steps, in order. Interrupted, it begins no more of them."""
        pool = ThreadPoolExecutor(FETCHED_AT_ONCE)
        try:
            return [path for paths in pool.map(lambda step: step(), steps) for path in paths]
        finally:
            pool.shutdown(cancel_futures=True)


def _announce(new: list[Path], pulled: Pulled) -> None:
    for path in new:
        say(str(path))
    if pulled.folder / OBSERVED in new:
        warn(f"learning curves: tensorboard --logdir {pulled.folder / OBSERVED / 'tensorboard'}")


def _place_of(item: Mapping[str, Any], into: Path) -> Path:
    """Return the place of an output file under `into`, by its relative path, with its folder made. Raises
    ConfigError or UsageError for one that is not below it.
    """
    if why := path_flaw(item["file"]):
        do = "mayfly receipts RUN --json has its key."
        raise ConfigError(f"{item['file'][:80]!r} is not written here", why=why, do=do)
    path: Path = into / str(item["file"])
    if not path.parent.resolve().is_relative_to(into.resolve()):  # a folder that came with a repository
        raise UsageError(f"{path.parent} leads out of {into}", why="it is a link", do="Choose another --out.")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _fetch(access: Access, bucket: str, item: Mapping[str, Any], path: Path) -> None:
    """Write an output file. Raises ConfigError if it is missing or has another hash."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        known: Any = {"bucket": bucket, "size": item["bytes"]}
        sha256 = fetch_file(
            path, item["key"], item["version_id"], item["sha256"], access.client("s3"), **known
        )
    except (BotoCoreError, ClientError) as error:
        raise aws_error(error, f"cannot read s3://{bucket}/{item['key']}") from error
    if sha256 != item["sha256"]:
        why = f"sha256 is {sha256}, it should be {item['sha256']}"
        raise ConfigError(f"{item['file']} is damaged", why=why, do="Fetch it again.")
