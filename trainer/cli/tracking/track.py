"""Track an ended run: read it, and have a child process write it to the user's tracker.

The child is `python -m trainer.cli.tracking.child TRACKER`: a library that hangs, prints or crashes ends with
it, and its variables are not this process's. Where it writes to, and with which key, the tracker's own
variables say: nothing of it is in a job, a stack or a bucket.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import trainer
from trainer.aws.objects import Objects
from trainer.base import environment
from trainer.base.errors import ConfigError, Stopped, UsageError
from trainer.base.extras import needs
from trainer.base.strict_json import Unsound
from trainer.base.text import printable
from trainer.cli.parts import read_events
from trainer.cli.tracking.reading import TrackedRun, tracked_run
from trainer.control.cloud import Cloud
from trainer.runs.manifest import Manifest, read_manifest
from trainer.runs.receipt import Receipt
from trainer.runs.store import manifest_key, read_record

SECONDS = 1800.0  # for all of a run: 400,000 points take MLflow's server about a minute
NOT_TRACKED = "the run is not tracked in {}"
MOST_WHY = 300  # characters of a library's error
LOGIN = re.compile(r"(?<=://)[^/@\s]+@")  # of an address


@dataclass(frozen=True, kw_only=True)
class Tracked:
    """A run in a tracker: its page or folder, and whether it was complete there before."""

    tracker: str
    where: str
    was_there: bool

    def __str__(self) -> str:
        return f"{'already ' if self.was_there else ''}tracked in {self.tracker}: {self.where}"


def need_trackers(trackers: Iterable[str]) -> None:
    """Raise ConfigError if the library of a tracker is not installed."""
    for tracker in trackers:
        needs(tracker)


def track(cloud: Cloud, receipt: Receipt, tracker: str) -> Tracked:
    """Write a closed run to a tracker, unless it is complete there. Raises a TrainerError that says why it is
    not there.
    """
    what = NOT_TRACKED.format(tracker)
    if receipt["closed_at"] is None:
        raise UsageError(what, why="it has not ended", do="Track it when it has.")
    try:
        record, _ = read_record(cloud.objects, receipt["run_id"])
        manifest, events = _manifest(cloud.objects, record.run_id), read_events(cloud, record.run_id).events
        return write_run(tracked_run(receipt, manifest, events, bucket=record.bucket), tracker)
    except KeyboardInterrupt as error:
        raise Stopped(what, why="Ctrl-C") from error


def write_run(run: TrackedRun, tracker: str) -> Tracked:
    """Have the child write a run, and return where it is. Raises ConfigError if it is not there."""
    what = NOT_TRACKED.format(tracker)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "trainer.cli.tracking.child", tracker],
            input=json.dumps(asdict(run)),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=SECONDS,
            env=environment.for_tracker(source=str(Path(trainer.__file__).parents[1])),
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(what, why=f"it took more than {SECONDS / 60:.0f} minutes") from error
    try:
        answer = json.loads(done.stdout)
        if "error" in answer:
            raise ConfigError(what, why=_line(answer["error"]), do=str(answer["do"]))
        return Tracked(tracker=tracker, where=_line(answer["where"]), was_there=bool(answer["was_there"]))
    except (ValueError, KeyError, TypeError) as error:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise ConfigError(what, why=_line(said)) from error


def _manifest(objects: Objects, run_id: str) -> Manifest | None:
    """Return a run's manifest, None if it can't be read: its versions are left out then."""
    stored = objects.get(key=manifest_key(run_id))
    try:
        return read_manifest(stored.body) if stored is not None else None
    except Unsound:
        return None


def _line(text: object) -> str:
    """Return a text of the child as a line, without a name and password in an address."""
    return " ".join(printable(LOGIN.sub("", str(text))).split())[:MOST_WHY]
