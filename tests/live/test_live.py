"""The first day on the embedded AWS: every check that can run there, and what holds the day together."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.aws.server import CheckedAws
from tests.live.__main__ import Diary, embedded_live, run
from tests.live.checks import CHECKS
from tests.live.context import Live
from tests.retrains import CONFIG
from trainer.rehearsal.world import Delays

by_name = {check.name: check for check in CHECKS}
# Those without a run, whose waits end when the embedded AWS's clock is moved.
WITHOUT_RUNS = (
    *("identity", "quotas", "bucket", "sweeper", "policies", "dry-run", "doctor"),
    *("fleet", "hung-boot", "layers"),
)
WITH_RUNS = tuple(check.name for check in CHECKS if not check.not_embedded and check.name not in WITHOUT_RUNS)


@pytest.fixture(scope="module")
def aws(programs: Path, fork_server: Path) -> Iterator[CheckedAws]:
    """An embedded AWS whose machines run, as forks."""
    own = {"programs": programs, "fork_server": lambda: fork_server}
    with CheckedAws(fork_nodes=True, grace_seconds=120, **own) as server:
        yield server


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def embedded(aws: CheckedAws, python: list[str], tmp_path: Path, lines: list[str]) -> Live:
    """An account with the stack that has every option."""
    access = aws.account()
    aws.apply_program(access, CONFIG)
    return embedded_live(access, folder=tmp_path, say=lines.append, python=tuple(python))


def all_pass(names: tuple[str, ...], live: Live, lines: list[str], folder: Path) -> Diary:
    diary = Diary(folder / "seen.json")
    code = run([by_name[name] for name in names], live, diary, cap_usd=0)
    assert code == 0, "\n".join(lines)
    assert tuple(diary.seen) == names
    assert all(entry["passed"] and entry["dollars"] == 0 for entry in diary.seen.values())
    return diary


def test_checks_without_a_run_pass(aws: CheckedAws, embedded: Live, lines: list[str], tmp_path: Path) -> None:
    cloud = aws.cloud(embedded.access)

    # A machine is pending until the clock is moved, so that it is looked at before its work begins.
    cloud.world.delays = Delays(pending_seconds=30, shutting_down_seconds=0)

    def pause(seconds: float) -> None:
        """Move the clock, unless something is under way that ends by itself."""
        working = any(one.occupied for one in cloud.world.instances.values())
        called = any(thread.is_alive() for thread in [*cloud.in_flight, *cloud.invocations])
        time.sleep(0.1) if working or called else cloud.advance(seconds)

    live = replace(embedded, now=cloud.clock.now, pause=pause)
    diary = all_pass(WITHOUT_RUNS, live, lines, tmp_path)
    print("\n".join(lines))
    said = "\n".join(lines)
    ends = ("its own power-off", "the standing sweep", "the kill schedule", "the sweep schedule")
    assert all(f"by {end}" in said for end in ends)
    again = Diary(tmp_path / "seen.json")
    assert run([by_name[name] for name in WITHOUT_RUNS], live, again, cap_usd=0) == 0
    assert lines[-1] == f"== layers: seen {diary.seen['layers']['at']}"


def test_checks_with_runs_pass(embedded: Live, lines: list[str], tmp_path: Path) -> None:
    try:
        all_pass(WITH_RUNS, embedded, lines, tmp_path)
    finally:
        print("\n".join(lines))
