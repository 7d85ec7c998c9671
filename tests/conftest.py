"""Fixtures that the whole suite shares: one embedded AWS for the session, and an account of it for each test."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest_plugins = ["tests.network", "tests.desk"]

ROOT = Path(__file__).resolve().parents[1]
if TYPE_CHECKING:
    from trainer.access import Access
    from trainer.rehearsal.server import EmbeddedAws
    from trainer.stack_outputs import StackOutputs


# What `make quick` leaves out by itself: folders, and fixtures by where they are defined (several are called desk or start).
# A test that takes longer than a second for another reason says `pytest.mark.slow`.
SLOW_FOLDERS = ("end_to_end", "benchmarks")
SLOW_FIXTURES = {
    "tests/desk.py": {"desk", "desk_with_own_checkout"},
    "tests/conftest.py": {"stack"},
    "tests/trainer/conftest.py": {"applied"},
    "tests/trainer/node/conftest.py": {"machine"},
    "tests/trainer/train/conftest.py": {"start", "planted"},
    "tests/trainer/rehearsal/test_layers.py": {"net"},
    "tests/trainer/rehearsal/test_server.py": {"root"},
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what our scripts ask for."""
    parser.addoption("--random-order", type=int, metavar="SEED", help="run the tests in an order of chance")
    parser.addoption("--renew-golden", action="store_true", help="write tests/golden anew (scripts/golden)")


def slow_fixtures(item: pytest.Item) -> set[str]:
    """Return the fixtures of a test that begin a run, a training or a stack."""
    definitions = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    places = {name: Path(found[-1].func.__code__.co_filename) for name, found in definitions.items()}
    return {name for name, path in places.items() if name in SLOW_FIXTURES.get(_relative(path), ())}


def _relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""


@pytest.hookimpl(tryfirst=True)  # before -m looks at the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is slow, and deal whole runs out over the list: if they all came at once the cores would wait."""
    for item in items:
        if item.path.parent.name in SLOW_FOLDERS or slow_fixtures(item):
            item.add_marker(pytest.mark.slow)
    seed = config.getoption("--random-order")
    if seed is not None:
        random.Random(seed).shuffle(items)
        return
    whole = [item for item in items if item.path.parent.name == "end_to_end"]
    others = [item for item in items if item.path.parent.name != "end_to_end"]
    for number, item in enumerate(reversed(whole), start=1):
        others.insert(len(others) - number * len(others) // len(whole), item)
    items[:] = others


@pytest.fixture(scope="session", autouse=True)
def no_gpu_profiles_of_the_users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What stands or was measured in somebody's home changes no test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MAYFLY_PROFILES", str(tmp_path_factory.getbasetemp() / "no" / "gpu_profiles.toml"))
        patch.delenv("GPU_PROFILE", raising=False)
        yield


@pytest.fixture(scope="session")
def aws_server() -> Iterator[EmbeddedAws]:
    """The embedded AWS of the session: in memory; no user data runs and no schedule fires unless a test switches it on
    (`aws_server.cloud(access).run_nodes = True`, `.fire_schedules = True`)."""
    from trainer.rehearsal.server import EmbeddedAws  # late: moto takes a second, and many tests need none

    with EmbeddedAws(run_nodes=False, fire_schedules=False, grace_seconds=120) as server:
        yield server


@pytest.fixture
def access(aws_server: EmbeddedAws) -> Access:
    """A fresh account, with nothing in it."""
    return aws_server.account()


@pytest.fixture
def stack(aws_server: EmbeddedAws, access: Access) -> tuple[Access, StackOutputs]:
    """A fresh account with the Pulumi program applied, and what the program says of it; four seconds."""
    from trainer.stack_outputs import StackOutputs, parameter_name

    aws_server.apply_program(access)
    parameter = access.client("ssm").get_parameter(Name=parameter_name("mayfly", "dev"))["Parameter"]
    return access, StackOutputs.from_json(parameter["Value"])
