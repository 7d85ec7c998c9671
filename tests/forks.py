"""What the processes of a test run share: a fork server, whose forks are nodes and trainers, and the applied program."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

WARM_MOTO = Path(__file__).with_name("warm_moto.py")


def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a temporary folder that all processes of this test run share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The socket of a fork server that ends with the test run; its libraries may still be loading."""
    from trainer.rehearsal.forks import ForkServerProcess  # late: most tests need none

    note = shared_folder(tmp_path_factory) / "fork-server"
    with note.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not note.exists():
            run = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
            note.write_text(str(ForkServerProcess(until_ends=run, more_libraries=(str(WARM_MOTO),)).path))
    return Path(note.read_text())


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which this test run stores what applied the Pulumi program: it is applied once."""
    return shared_folder(tmp_path_factory) / "programs"
