"""Fixtures that the whole suite shares: one embedded AWS for the session, and an account of it for each test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from trainer.access import Access
    from trainer.rehearsal.server import EmbeddedAws


@pytest.fixture(scope="session")
def aws_server() -> Iterator[EmbeddedAws]:
    """The embedded AWS of the session: in memory; no user data runs and no schedule fires unless a test switches it on
    (`aws_server.cloud(access).run_nodes = True`, `.fire_schedules = True`)."""
    from trainer.rehearsal.server import EmbeddedAws  # late: moto takes a second, and many tests need none

    with EmbeddedAws(run_nodes=False, fire_schedules=False) as server:
        yield server


@pytest.fixture
def access(aws_server: EmbeddedAws) -> Access:
    """A fresh account, with nothing in it."""
    return aws_server.account()
