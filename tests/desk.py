"""A desk: commands as a user types them, in a folder and against an embedded AWS of their own, and nothing
left afterwards.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.forks import made_once
from tests.jobs import sets
from tests.network import HOOK
from trainer.aws.access import Access
from trainer.rehearsal.client import Server
from trainer.rehearsal.home import read_note

ROOT = Path(__file__).resolve().parents[1]
CLIENT = ROOT / "trainer" / "rehearsal" / "fork_client.py"
QUICK = sets("model.hidden=8", "model.lookback=20", "train.batch=128")


@dataclass(frozen=True, kw_only=True)
class Desk:
    """A folder to type commands in. `checkout` is where trainer and infra are imported from."""

    folder: Path
    checkout: Path
    shared: dict[str, str]  # variables that let its embedded AWS share with those of other tests
    python: Path = Path(sys.executable)  # of its forked commands

    @property
    def home(self) -> Path:
        """Return the embedded AWS's folder."""
        return self.folder / ".mayfly"

    def environment(self) -> dict[str, str]:
        """Return what a command gets: no credentials and no region but what a rehearsal gives, and no
        network.
        """
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "MAYFLY_"))}
        paths = os.pathsep.join([str(HOOK), str(self.checkout)])
        return (
            kept
            | {"PYTHONPATH": paths, "MAYFLY_HOME": str(self.home), "HOME": str(self.folder)}
            | self.shared
        )

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start `python -m trainer.cli.main WORDS`, as a fork where the desk shares a fork server."""
        python = [sys.executable]
        if server := self.shared.get("MAYFLY_FORK_SERVER"):
            python = [*python, "-I", "-S", str(CLIENT), server, str(self.python)]
        return subprocess.Popen(
            [*python, "-m", "trainer.cli.main", *words],
            cwd=self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, timeout_seconds: float = 500) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        process = self.start(*words)
        out, err = process.communicate(timeout=timeout_seconds)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def launch(self, *words: str) -> subprocess.Popen[str]:
        """Start a rehearsal of small models."""
        return self.start("launch", "--rehearse", "--instance", "p3.8xlarge", "--json", *QUICK, *words)

    def type(self, *words: str) -> Typed:
        """Start a command at a terminal of 100 columns."""
        terminal, end = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "trainer.cli.main", *words],
            cwd=self.folder,
            env=self.environment() | {"TERM": "xterm", "COLUMNS": "100", "LINES": "40"},
            stdin=end,
            stdout=end,
            stderr=end,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(end)
        return Typed(process=process, terminal=terminal)

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the trainer's events of that name so far, of every node of this desk."""
        found = []
        for file in self.home.glob("sandbox/*/opt/mayfly/work/events/events.jsonl"):
            lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
            found += [json.loads(line) for line in lines if line.endswith("\n")]
        return [event for event in found if event["event"] == name]

    def stored(self, prefix: str) -> dict[str, bytes]:
        """Return the newest version of each object of the embedded S3 whose key begins so, without a command."""
        newest = {}
        for note in sorted(self.home.glob("s3/**/*.json")):  # by their numbers
            with suppress(FileNotFoundError):  # a version that was just deleted
                if (key := json.loads(note.read_text())["key"]).startswith(prefix):
                    newest[key] = note.with_suffix("").read_bytes()
        return newest

    def access(self) -> Access:
        """Return access to the embedded AWS that runs here."""
        note = read_note(self.home)
        assert note is not None
        return Server(note=note, lease="").access()

    def processes(self) -> list[int]:
        """Return what still runs for this desk: its server, its functions, its nodes."""
        return processes_that_mention(str(self.folder))


def _take_terminal() -> None:
    """Let the terminal on stdin be the process's own, so that Ctrl-C reaches it."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@dataclass(frozen=True, kw_only=True)
class Typed:
    """A command at a terminal: keys go in, and what it showed comes out, without colours."""

    process: subprocess.Popen[bytes]
    terminal: int
    _read: bytearray = field(default_factory=bytearray)

    def press(self, keys: str) -> None:
        """Press keys; `\\x03` is Ctrl-C."""
        os.write(self.terminal, keys.encode())

    def shown(self) -> str:
        """Return what the terminal was sent so far, as text."""
        with suppress(OSError):  # the other end is closed
            while _is_ready(self.terminal, 0) and (block := os.read(self.terminal, 65536)):
                self._read.extend(block)
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._read.decode(errors="replace"))

    def ends(self) -> int:
        """Wait for the end and return the exit code."""
        until(lambda: self.shown() and self.process.poll() is not None)
        self.shown()
        os.close(self.terminal)
        return self.process.returncode


def processes_that_mention(text: str) -> list[int]:
    """Return the ids of the processes whose command line, environment or folder holds a text, this one
    excepted.
    """
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            said = (
                (entry / "cmdline").read_bytes()
                + (entry / "environ").read_bytes()
                + bytes((entry / "cwd").readlink())
            )
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if text.encode() in said and state != "Z":
            found.append(int(entry.name))
    return found


def until(true: Callable[[], Any], *, seconds: float = 500.0) -> Any:
    """Look ten times a second until something holds, and return it; fail when time is up."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := true():
            return value
        time.sleep(0.1)
    raise AssertionError(f"still not so after {seconds:.0f} s")


@pytest.fixture
def eventually() -> Callable[..., Any]:
    """Wait for something that other processes do."""
    return until


@pytest.fixture(scope="session")
def candles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seeded candles of three symbols."""

    def make(folder: Path) -> None:
        words = ["--out", str(folder), "--symbols", "AAA,BBB,CCC", "--bars", "2500", "--seed", "7"]
        command = [sys.executable, "-m", "trainer.data.synthetic", *words, "--timeframe", "1m"]
        subprocess.run(command, check=True, capture_output=True)

    return made_once(tmp_path_factory, "candles-of-desks", make)


@pytest.fixture(scope="session")
def shared(programs: Path, fork_server: Path) -> dict[str, str]:
    """Return what desks share: how the Pulumi program is applied, and the server that their nodes are forked
    from.
    """
    return {"MAYFLY_PROGRAMS": str(programs), "MAYFLY_FORK_SERVER": str(fork_server)}


@pytest.fixture
def desk(tmp_path: Path, shared: dict[str, str], desk_python: Path) -> Iterator[Desk]:
    """A desk whose commands come from this checkout."""
    yield from _desk(Desk(folder=tmp_path, checkout=ROOT, shared=shared, python=desk_python))


@pytest.fixture
def desk_with_own_checkout(tmp_path: Path, programs: Path) -> Iterator[Desk]:
    """A desk with a copy of the checkout, which a test may break; its nodes start every Python anew."""
    copy = tmp_path / "checkout"
    for name in ("trainer", "infra", "ami"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Pulumi.yaml", "Pulumi.dev.yaml", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, copy / name)
    fresh = {"MAYFLY_PROGRAMS": str(programs), "MAYFLY_REHEARSAL_NODES": "fresh"}
    yield from _desk(Desk(folder=tmp_path, checkout=copy, shared=fresh))


def _desk(desk: Desk) -> Iterator[Desk]:
    yield desk
    subprocess.run(
        [sys.executable, "-m", "trainer.cli.main", "rehearse", "--stop"],
        cwd=desk.folder,
        env={**desk.environment(), "PYTHONPATH": os.pathsep.join([str(HOOK), str(ROOT)])},
        capture_output=True,
        timeout=500,
        check=False,
    )
    for process in desk.processes():  # what was just told to end may still be at it
        _wait_for(process)
    left = desk.processes()
    told = {process: _command_of(process) for process in left}
    for process in left:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    assert not left, f"processes outlived the test: {told}"


def _wait_for(process: int) -> None:
    """Wait for the end of a process that is no child of ours."""
    with suppress(ProcessLookupError):
        end = os.pidfd_open(process)
        _is_ready(end, 500)
        os.close(end)


def _is_ready(descriptor: int, seconds: float) -> bool:
    """Wait until a descriptor can be read. `select` refuses those from 1,024 on, which a long session has."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def _command_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "gone by now"
