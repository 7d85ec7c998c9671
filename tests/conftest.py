"""Fixtures that the whole suite shares: one embedded AWS for the session, and an account of it for
each test.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trainer.aws.checksums import without_runtime

with suppress(ImportError), without_runtime():  # whatever a test imports first; a GPU day needs no AWS
    import botocore.compat  # noqa: F401

pytest_plugins = ["tests.network", "tests.selection", "tests.forks", "tests.desk"]

if TYPE_CHECKING:
    from tests.aws.server import CheckedAws
    from trainer.aws.access import Access
    from trainer.aws.stack_outputs import StackOutputs


@pytest.fixture(scope="session", autouse=True)
def no_folders_of_the_users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Files and measurements in somebody's home change no test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MAYFLY_PROFILES", str(tmp_path_factory.getbasetemp() / "no" / "gpu_profiles.toml"))
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "no"))
        patch.delenv("GPU_PROFILE", raising=False)
        patch.delenv("MAYFLY_LOCAL", raising=False)
        patch.delenv("MAYFLY_REHEARSE", raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_workers_before_they_are_needed() -> Iterator[None]:
    """A training of this process that ends with one line loads no torch for its workers, in five
    core-seconds.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "multiprocessing.forkserver.ensure_running", lambda: None
        )  # `Process.start` calls it on the server
        yield


@pytest.fixture(autouse=True)
def signals_as_they_were() -> Iterator[None]:
    """Commands catch signals for their process; here that is the one of all tests."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def aws_server(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CheckedAws]:
    """The embedded AWS of the session, with all rules of `tests/aws`: in memory; no user data runs and no
    schedule fires unless a test switches it on (`aws_server.cloud(access).run_nodes = True`, `.fire_schedules = True`).
    """
    from tests.aws.server import CheckedAws  # late: moto takes a second, and many tests need none
    from tests.forks import started_fork_server  # late: pytest has to load its plugins first

    own = {"programs": programs, "fork_server": partial(started_fork_server, tmp_path_factory)}
    with CheckedAws(run_nodes=False, fire_schedules=False, grace_seconds=120, **own) as server:
        yield server


@pytest.fixture
def access(aws_server: CheckedAws) -> Access:
    """A fresh account, with nothing in it."""
    return aws_server.account()


@pytest.fixture
def stack(aws_server: CheckedAws, access: Access) -> tuple[Access, StackOutputs]:
    """A fresh account with the Pulumi program applied, and what the program says of it."""
    from trainer.aws.stack_outputs import StackOutputs, parameter_name

    aws_server.apply_program(access)
    named = {"Name": parameter_name("mayfly", "dev")}
    parameter = aws_server.call(aws_server.cloud(access).account, "ssm", "GetParameter", named)["Parameter"]
    return access, StackOutputs.from_json(parameter["Value"])
