"""The work folder of an agent on the caller's own machine, kept until the work is done; the agent's start.

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
import stat
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from trainer.base import environment
from trainer.base.errors import UsageError
from trainer.base.files import whole_file
from trainer.base.instants import utc_now
from trainer.node.inside import remove_folder
from trainer.node.own_user import agents_user
from trainer.node.shared import COMMAND
from trainer.runs.manifest import ManifestInput

STATE, LOCK, OUTPUT = "here.json", "lock", "agent.out"
# Kept from an earlier run: its inputs, which are checked again by hash, and what a run can resume from.
_KEPT = {LOCK, STATE, "inputs", COMMAND}
_KEPT_OF_A_COMMAND = {"checkpoints", "out"}
UNUSED_SECONDS = 30 * 24 * 3600.0
# A script's temporary files are directly below the system's folder for such: the path of a socket, which
# DataLoader workers open there, has at most 107 bytes. The work folder has a link to theirs, so that the next
# run can remove what a killed agent left.
SCRATCH_PREFIX, SCRATCH_LINK = "mayfly-script-", "tmp"


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

    @property
    def used_at(self) -> float:
        """Return when its last run began, or last wrote what another can resume from."""
        begun = self.path / STATE if (self.path / STATE).exists() else self.path
        kept = (one for name in _KEPT_OF_A_COMMAND for one in (self.path / COMMAND / name).rglob("*"))
        return max(one.lstat().st_mtime for one in (begun, *(one for one in kept if one.is_file())))

    def clear(self) -> int:
        """Remove what no run can resume from and kill the processes that a dead agent left; return their
        number.
        """
        marks = (f"MAYFLY_WORK={self.path}", f"MAYFLY_OUT={self.path / COMMAND / 'out'}")
        left = list(agents_user().processes(*marks))
        agents_user().kill_all(*marks)
        remove_scratch(self.path)
        for place in self.path.iterdir():
            if place.name not in _KEPT:
                _remove(place)
        command = self.path / COMMAND
        for place in command.iterdir() if command.is_dir() else ():
            if place.name not in _KEPT_OF_A_COMMAND:
                _remove(place)
        return len(left)

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
    """Clear the folders that no agent uses; remove those that no run has used for 30 days."""
    for path in root.iterdir() if root.is_dir() else ():
        with suppress(OSError):
            if (lock := _locked(path)) is not None:
                try:
                    work = WorkFolder(path=path, lock=lock)
                    work.clear()
                    if time.time() - work.used_at > UNUSED_SECONDS:
                        _remove(path)
                finally:
                    os.close(lock)


def inputs_here(inputs: Iterable[ManifestInput], places: Mapping[str, Path]) -> list[tuple[Path, str]]:
    """Return (file at the desk, place in the work folder) of the inputs that the desk has, by sha256."""
    return [(places[item.sha256], f"inputs/{item.stored_as}") for item in inputs if item.sha256 in places]


def make_scratch(work: Path) -> Path:
    """Make a script's temporary folder, linked from the work folder, and return its path."""
    folder = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=environment.temporary_folder()))
    (work / SCRATCH_LINK).symlink_to(folder)
    return folder


def remove_scratch(work: Path) -> None:
    """Remove the link, and its folder if that is this user's, directly in the temporary folder and named by
    us.
    """
    link = work / SCRATCH_LINK
    with suppress(OSError):
        folder = link.readlink()
        about = folder.lstat()
        ours = (
            stat.S_ISDIR(about.st_mode)
            and about.st_uid == os.geteuid()
            and folder.name.startswith(SCRATCH_PREFIX)
        )
        if ours and folder.parent == environment.temporary_folder():
            remove_folder(folder)
    with suppress(OSError):
        link.unlink()


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
        remove_folder(place)
    else:
        place.unlink(missing_ok=True)
