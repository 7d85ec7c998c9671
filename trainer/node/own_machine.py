"""The agent on the caller's own machine: its process, and its work folder, which is kept until the work is
done.

    <MAYFLY_HOME>/here/<hash of the work>/   lock (held by the agent), here.json (its run), agent.out, code/,
                                             inputs/ (checked by hash), command/

The same work has the same folder, so that a run resumes from the checkpoints and finished models of the one
before. The next start of any agent removes what a killed one left, and ends its processes. Linux only, like
the rest of a node.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from trainer.base import environment
from trainer.base.errors import UsageError
from trainer.base.files import whole_file
from trainer.node.scratch import remove_scratch
from trainer.node.shared import COMMAND
from trainer.runs.manifest import ManifestInput
from trainer.runs.record import utc_now

STATE, LOCK, OUTPUT = "here.json", "lock", "agent.out"
# Kept from an earlier run: its inputs, which are checked again by hash, and what a run can resume from.
_KEPT = {LOCK, STATE, "inputs", COMMAND}
_KEPT_OF_A_COMMAND = {"checkpoints", "out"}
UNUSED_SECONDS = 30 * 24 * 3600.0
KILL_SECONDS = 10.0  # a process that waits for a disk can't be killed


@dataclass(frozen=True, kw_only=True)
class WorkFolder:
    """The folder of one job's work, locked by this process, and by the agent once it is started."""

    path: Path
    lock: int  # descriptor

    @property
    def last_run(self) -> str:
        """Return the id of the run that worked here last, '' if there was none."""
        try:
            return str(json.loads((self.path / STATE).read_text())["run_id"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    @property
    def resumable(self) -> bool:
        """Return whether an earlier run left something to resume from."""
        checkpoints, out = (self.path / COMMAND / name for name in ("checkpoints", "out"))
        return any(path.is_file() for path in checkpoints.rglob("*")) or any(out.glob("*.safetensors"))

    def clear(self) -> int:
        """Remove what no run can resume from and kill the processes that a dead agent left; return their
        number.
        """
        killed = _kill_left(self.path)
        remove_scratch(self.path)
        for place in self.path.iterdir():
            if place.name not in _KEPT:
                _remove(place)
        command = self.path / COMMAND
        for place in command.iterdir() if command.is_dir() else ():
            if place.name not in _KEPT_OF_A_COMMAND:
                _remove(place)
        return killed

    def lay_out(self, bundle: bytes, state: Mapping[str, str], files: Iterable[tuple[Path, str]]) -> None:
        """Prepare the cleared folder for a new run: code, identity, and copies of the desk's files, which are
        checked there.
        """
        with zipfile.ZipFile(BytesIO(bundle)) as archive:  # we have just made it
            archive.extractall(self.path / "code")
        for source, name in files:
            if not (target := self.path / name).exists():
                with whole_file(target) as partial:
                    shutil.copyfile(source, partial)
        with whole_file(self.path / STATE) as partial:
            partial.write_text(json.dumps(dict(state)))

    def start(self, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start the agent in a session of its own, so that neither Ctrl-C nor a closed terminal ends it."""
        own = {
            "MAYFLY_HERE": str(self.path / STATE),
            "MAYFLY_WORK": str(self.path),
            "MAYFLY_BOOTED_AT": str(utc_now().timestamp()),
        }
        with (self.path / OUTPUT).open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "trainer.node.agent"],
                cwd=self.path,
                env=environment.for_agent({**variables, **own}, code=self.path / "code"),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=[self.lock],
            )

    def last_line(self) -> str:
        """Return the last line that the agent printed."""
        with suppress(OSError):
            lines = (self.path / OUTPUT).read_text(errors="replace").strip().splitlines()
            return lines[-1][:300] if lines else ""
        return ""

    def remove(self) -> None:
        """Remove the folder, once its results are in the bucket."""
        _remove(self.path)

    def release(self) -> None:
        """Close the lock; an agent that still runs keeps it."""
        os.close(self.lock)


def open_work(root: Path, sha256: str) -> WorkFolder:
    """Open and lock the folder of the work with this hash. Raises UsageError if an agent works there
    already.
    """
    path = root / sha256[:16]
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = _locked(path)
    if lock is None:
        run_id = WorkFolder(path=path, lock=-1).last_run
        if not run_id:
            raise UsageError(
                "another command starts this job on this machine", do="Look at it with mayfly status."
            )
        do = f"mayfly logs {run_id} -f follows it, mayfly stop {run_id} ends it."
        raise UsageError(f"this job runs on this machine already, as {run_id}", do=do)
    return WorkFolder(path=path, lock=lock)


def prune(root: Path) -> None:
    """Clear the folders that no agent uses; remove those whose last run began more than 30 days ago."""
    for path in root.iterdir() if root.is_dir() else ():
        with suppress(OSError):
            if (lock := _locked(path)) is not None:
                try:
                    WorkFolder(path=path, lock=lock).clear()
                    begun = path / STATE if (path / STATE).exists() else path
                    if time.time() - begun.stat().st_mtime > UNUSED_SECONDS:
                        _remove(path)
                finally:
                    os.close(lock)


def _kill_left(work: Path) -> int:
    """Kill the processes that a dead agent left in a work folder; return their number. The caller holds the
    folder's lock.
    """
    killed: set[int] = set()
    ends = time.monotonic() + KILL_SECONDS
    while time.monotonic() < ends and (left := list(_processes_of(work))):
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed.update(left)
        time.sleep(0.02)  # killed processes take a moment to end
    return len(killed)


def _processes_of(work: Path) -> Iterator[int]:
    """Yield the ids of processes that have a path in the work folder in one of their MAYFLY_ variables."""
    folder = str(work).encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with suppress(OSError):  # another user's, or it has just ended
                variables = (entry / "environ").read_bytes().split(b"\0")
                values = [one.partition(b"=")[2] for one in variables if one.startswith(b"MAYFLY_")]
                # A name is cut after 15 bytes, maybe in the middle of a letter.
                state = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
                if state not in "ZX" and any(
                    value == folder or value.startswith(folder + b"/") for value in values
                ):
                    yield int(entry.name)


def _locked(path: Path) -> int | None:
    lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


def _remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place, ignore_errors=True)
    else:
        place.unlink(missing_ok=True)


def inputs_here(inputs: Iterable[ManifestInput], places: Mapping[str, Path]) -> list[tuple[Path, str]]:
    """Return (file at the desk, place in the work folder) of the inputs that the desk has, by sha256."""
    return [(places[item.sha256], f"inputs/{item.stored_as}") for item in inputs if item.sha256 in places]
