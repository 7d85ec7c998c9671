"""Shared by the processes of a test run: a fork server, whose forks are nodes and trainers, the applied
program, and folders that one of them makes.
"""

from __future__ import annotations

import fcntl
import multiprocessing.spawn
import os
import shlex
import shutil
import site
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from trainer.rehearsal.forks import ForkServerProcess

ROOT = Path(__file__).resolve().parents[1]
WARM_MOTO = Path(__file__).with_name("warm_moto.py")


def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a temporary folder that all processes of this test run share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def made_once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder of this test run, which the first process that wants it has filled. Nobody may change
    it.
    """
    folder = shared_folder(tmp_path_factory) / name
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            new = folder.with_suffix(".new")
            shutil.rmtree(new, ignore_errors=True)  # of a process that failed to fill it
            new.mkdir()
            make(new)
            new.rename(folder)
    return folder


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The socket of a fork server that ends with the test run; its libraries may still be loading."""
    return started_fork_server(tmp_path_factory)


def started_fork_server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the socket of the test run's fork server, which the first caller starts."""
    from trainer.rehearsal.forks import ForkServerProcess  # late: most tests need none

    note = shared_folder(tmp_path_factory) / "fork-server"
    with note.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not note.exists():
            run = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
            note.write_text(
                str(ForkServerProcess(until_ends=run, more_libraries=(str(WARM_MOTO), "torch._dynamo")).path)
            )
    return Path(note.read_text())


@pytest.fixture(scope="session")
def node_forks(fork_server: Path) -> Iterator[ForkServerProcess]:
    """A fork server for nodes, as an embedded AWS has one: itself a fork of the test run's."""
    from trainer.rehearsal.forks import ForkServerProcess  # late: most tests need none

    server = ForkServerProcess(fork_server)
    yield server
    server.close()


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which this test run stores what applied the Pulumi program: it is applied once."""
    return shared_folder(tmp_path_factory) / "programs"


def _environment(folder: Path, python: str) -> Path:
    """Make an environment with this one's packages whose `python` is a script, and return the script."""
    (packages := folder / "lib" / "python3" / "site-packages").mkdir(parents=True)
    (packages / "beside.pth").write_text("\n".join([*site.getsitepackages(), str(ROOT)]))
    script = folder / "bin" / "python"
    script.parent.mkdir()
    script.write_text(python)
    script.chmod(0o755)
    return script


@pytest.fixture(scope="session")
def forking_python(fork_server: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Python whose process is a fork, with the lock's libraries loaded."""
    from trainer.rehearsal.instance import FORK_CLIENT, FORKING_PYTHON

    forking = _environment(tmp_path_factory.mktemp("forking") / "venv", FORKING_PYTHON.read_text())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MAYFLY_REAL_PYTHON", sys.executable)
        patch.setenv("MAYFLY_FORK_SOCKET", str(fork_server))
        patch.setenv("MAYFLY_FORK_CLIENT", str(FORK_CLIENT))
        yield forking


@pytest.fixture(scope="session")
def python(fork_server: Path, forking_python: Path) -> list[str]:
    """The beginning of a command line of Python whose process is a fork, and so is what multiprocessing
    starts below it.
    """
    from trainer.rehearsal.instance import FORK_CLIENT

    return [sys.executable, "-I", "-S", str(FORK_CLIENT), str(fork_server), str(forking_python)]


@pytest.fixture
def forked_children(forking_python: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let what this process starts be forks that have torch loaded: `sys.executable -m trainer...`, and
    multiprocessing's.
    """
    before = multiprocessing.spawn.get_executable()
    monkeypatch.setattr(sys, "executable", str(forking_python))
    multiprocessing.spawn.set_executable(str(forking_python))
    yield
    multiprocessing.spawn.set_executable(before)


CHECKS = (
    "trainer.bars.check",
    "trainer.train.own.probe",
)  # what a desk starts to look at data and at a user's own files


@pytest.fixture(scope="session")
def desk_python(fork_server: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A desk's Python: its checks and what multiprocessing starts are forks, which have pyarrow and torch
    loaded, and all else is this Python.
    """
    from trainer.rehearsal.instance import FORK_CLIENT

    fork = shlex.join([sys.executable, "-I", "-S", str(FORK_CLIENT), str(fork_server), sys.executable])
    checks = "|".join((*(f'"-m {module}"' for module in CHECKS), '"-c from multiprocessing."*'))
    script = (
        f'#!/bin/bash\ncase "$1 $2" in {checks}) exec {fork} "$@" ;; esac\nexec {shlex.quote(sys.executable)}'
        ' "$@"\n'
    )
    python = _environment(tmp_path_factory.mktemp("desk") / "venv", script)
    python.with_name("mayfly").symlink_to(
        Path(sys.executable).with_name("mayfly")
    )  # which commands name beside theirs
    return python
