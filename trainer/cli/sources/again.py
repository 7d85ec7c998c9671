"""The command of a past run, run again by an agent in a folder of this machine: inputs by version and hash,
the run's own code, and a bucket that is a folder. Nothing of the run's bucket is written.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.aws.access import Access
from trainer.aws.objects import open_objects
from trainer.aws.place import HERE
from trainer.aws.transfer import several_at_once
from trainer.base import environment
from trainer.base.errors import TrainingFailed
from trainer.base.instants import iso, utc_now
from trainer.cli.terminal import Console
from trainer.cli.views.transfer import TransferProgress
from trainer.launch.data_sets import fetch_version
from trainer.runs.keys import LOCAL_USER
from trainer.runs.store import manifest_key
from trainer.store.lineage import PastRun

if TYPE_CHECKING:
    from trainer.node.work_folder import WorkFolder

LONGEST = timedelta(days=30)  # after which the agent ends it
LOOK_SECONDS = 0.2
ENDS_SECONDS = 60.0  # that an agent has to end after it was asked to


@dataclass(frozen=True, kw_only=True)
class AgainHere:
    """The folder in which a past run's command runs again, with its inputs and its code."""

    past: PastRun
    code: bytes
    work: WorkFolder

    @property
    def out(self) -> Path:
        """Return the folder of what the command leaves."""
        return self.work.path / "command" / "out"

    def run(
        self,
        manifest: Mapping[str, Any],
        *,
        variables: Mapping[str, str],
        heard: Callable[[dict[str, Any]], bool] = lambda event: False,
    ) -> None:
        """Run a manifest's command to its end, or until `heard` returns True for an event of it. Raises
        TrainingFailed if the agent fails, not for models that do.
        """
        from trainer.node.events import CommandEvents  # late, like all of a node

        work = self.work
        work.clear()
        shutil.rmtree(work.path / "command", ignore_errors=True)  # nothing is resumed
        bucket = work.path / "bucket"
        bucket.mkdir()
        key = manifest_key(self.past.run_id)
        body = json.dumps(manifest).encode()
        open_objects(Access(folder=bucket, place=HERE), str(bucket)).put(key=key, body=body, create=True)
        state = {"run_id": self.past.run_id, "user_id": LOCAL_USER, "deadline": iso(utc_now() + LONGEST)}
        work.lay_out(self.code, state, ())
        own = {"MAYFLY_BUCKET": str(bucket), "MAYFLY_FOLDER": str(bucket), "AWS_REGION": "local"}
        agent = work.start({**own, **variables})
        events = CommandEvents(work.path / "events" / "events.jsonl", tells="events")
        try:
            while True:
                has_ended = agent.poll() is not None
                if any(heard(event) for event in events.new()):
                    return
                if has_ended and not events.has_more:
                    break
                time.sleep(0 if events.has_more else LOOK_SECONDS)
        finally:
            _end(agent)
        if agent.returncode and not any(self.out.iterdir() if self.out.is_dir() else ()):
            do = f"Read {work.path / 'node.log'}."
            raise TrainingFailed("it can't be run again here", why=work.last_line(), do=do)


@contextmanager
def folder_for(name: str, past: PastRun) -> Iterator[WorkFolder]:
    """Open the folder for what a name means of a past run. Raises UsageError if another command is at it."""
    from trainer.node.work_folder import open_work, prune  # late: Linux alone has its lock

    root = environment.here_folder()
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    work = open_work(root, hashlib.sha256(f"reproduce {past.run_id} {name}".encode()).hexdigest())
    try:
        prune(root)  # the others
        yield work
    finally:
        work.release()


def fetch_inputs(
    past: PastRun, access: Access, bucket: str, work: WorkFolder, console: Console, *, quiet: bool
) -> None:
    """Download what a run read, in the versions that it read, each checked by its hash. Raises a
    TrainerError.
    """
    folder = work.path / "inputs"
    folder.mkdir(exist_ok=True)
    inputs = {item.stored_as: item for item in past.manifest.inputs}  # one may lie in several places
    left = [item for name, item in inputs.items() if not _lies_there(folder / name, item.sha256)]
    total = sum(item.bytes for item in left)
    moved = (lambda count: None) if quiet else TransferProgress(console, "fetching", total)
    one = partial(fetch_version, access, open_objects(access, bucket), bucket)
    several_at_once([partial(one, item, folder / item.stored_as) for item in left], moved=moved)


def _lies_there(path: Path, sha256: str) -> bool:
    if not sha256 or path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == sha256


def _end(agent: subprocess.Popen[bytes]) -> None:
    """End an agent that is still at work: ask it, and kill it if it does not."""
    if agent.poll() is not None:
        return
    agent.terminate()
    try:
        agent.wait(ENDS_SECONDS)
    except subprocess.TimeoutExpired:
        agent.kill()
        agent.wait()
