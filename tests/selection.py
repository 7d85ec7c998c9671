"""The choice and order of tests: those that `make quick` and other systems than Linux leave out, a random order,
files kept together.
"""

from __future__ import annotations

import gc
import random
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
# What `make quick` leaves out by itself: folders, and fixtures by where they are defined (several are called
# desk or start). A test that takes longer than a second for another reason says `pytest.mark.slow`.
SLOW_FOLDERS = ("end_to_end", "benchmarks", "rehearsal", "aws", "fuzz", "live", "chaos")
SLOW_FIXTURES = {
    "tests/desk.py": {"desk", "desk_with_own_checkout"},
    "tests/forks.py": {"fork_server"},
    "tests/conftest.py": {"stack"},
    "tests/trainer/conftest.py": {"applied"},
    "tests/trainer/node/conftest.py": {"machine"},
    "tests/trainer/train/conftest.py": {"start", "planted"},
    "tests/trainer/rehearsal/test_instance.py": {"start", "forking_node"},
    "tests/trainer/rehearsal/test_layers.py": {"net"},
    "tests/trainer/rehearsal/conftest.py": {"root"},
    "tests/trainer/rehearsal/test_pulumi_apply.py": {"application"},
    "tests/trainer/control/test_cloud.py": {"applied"},
    "tests/trainer/train/workers/test_supervisor.py": {"whole"},
}
# Rehearsals and nodes need Linux: /proc, os.pidfd_open, prctl.
LINUX_FOLDERS = ("tests/end_to_end/", "tests/trainer/node/", "tests/trainer/rehearsal/")
LINUX_FIXTURES = {"aws_server", "fork_server"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what our scripts ask for."""
    parser.addoption("--random-order", type=int, metavar="SEED", help="run the tests in an order of chance")
    parser.addoption("--renew-golden", action="store_true", help="write tests/golden anew (scripts/golden)")


def slow_fixtures(item: pytest.Item) -> set[str]:
    """Return the fixtures of a test that begin a run, a training or a stack."""
    definitions = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    places = {name: found[-1].func.__code__.co_filename for name, found in definitions.items()}
    return {name for name, place in places.items() if name in SLOW_FIXTURES.get(_relative(place), ())}


def needs_linux(item: pytest.Item) -> bool:
    """Return whether a test starts the embedded AWS, or what runs on a node."""
    fixtures = LINUX_FIXTURES & set(getattr(item, "fixturenames", ()))
    return bool(fixtures) or _relative(str(item.path)).startswith(LINUX_FOLDERS)


@cache  # a few files hold all fixtures, which thousands of tests use
def _relative(place: str) -> str:
    path = Path(place)
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each test to the next free process, but all of a file to one where they share what is made once
    for the file, and all of the Pulumi program's to one: to load Pulumi takes two core-seconds.

    xdist has groups for this (`--dist loadgroup`), which do nothing with pytest 9.2 (xdist 3.8.0, looked up
    2026-11-22).
    """
    from xdist.scheduler import LoadScopeScheduling  # late: only the process that hands out tests needs it

    together = {
        _relative(str(path))
        for path in Path(__file__).parent.rglob("test_*.py")
        if 'scope="module"' in path.read_text()
    }

    class FilesTogether(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            if path.startswith("tests/infra/"):
                return "tests/infra"
            return path if path in together else nodeid

    return FilesTogether(config, log)


def pytest_collection() -> None:
    """Import libraries without garbage collections: next to nothing of what they make is garbage. And let
    hypothesis read no constants out of our sources: a core-second in each process, for a few properties.
    """
    gc.disable()
    from hypothesis.internal.conjecture import providers  # late, as above

    providers._get_local_constants = lambda: providers._local_constants  # type: ignore[assignment]


def pytest_collection_finish() -> None:
    """Spare the garbage collector what was imported, torch and moto among it: it took a fifth of the tests'
    time.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # before -m looks at the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only `make nightly` runs, mark what is slow or needs Linux, and deal whole runs out over
    the list: if they all came at once the cores would wait.
    """
    if "nightly" not in config.option.markexpr:
        left_out = [item for item in items if item.get_closest_marker("nightly")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    for item in items:
        if item.path.parent.name in SLOW_FOLDERS or slow_fixtures(item):
            item.add_marker(pytest.mark.slow)
        if sys.platform != "linux" and needs_linux(item):
            item.add_marker(pytest.mark.skip(reason="rehearsals and nodes need Linux"))
    seed = config.getoption("--random-order")
    if seed is not None:
        random.Random(seed).shuffle(items)
        return
    whole = [item for item in items if item.path.parent.name == "end_to_end"]
    others = [item for item in items if item.path.parent.name != "end_to_end"]
    for number, item in enumerate(reversed(whole), start=1):
        others.insert(len(others) - number * len(others) // len(whole), item)
    items[:] = others
