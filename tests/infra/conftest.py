"""The program run once, with the defaults of Pulumi.yaml."""

from __future__ import annotations

import pytest

from tests.infra.program import Recorded, run_program


@pytest.fixture(scope="session")
def program() -> Recorded:
    """The program with the defaults of Pulumi.yaml."""
    return run_program()
