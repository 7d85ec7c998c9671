"""Settings of a rehearsal's stack by a file; test_docs.py runs the retrain that they declare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.desk import Desk
from tests.retrains import JOB

pytestmark = pytest.mark.slow
SETTINGS = """
config:
  aws:region: us-east-1
  mayfly:retrains:
    - {name: weekly, weekdays: [SUN], hour: 3, budget: 2, budget_month: 10}
"""


def test_settings_of_a_rehearsal_are_refused_or_applied(desk: Desk, candles: Path) -> None:
    (desk.folder / "stack.yaml").write_text(SETTINGS)
    (desk.folder / "bad.yaml").write_text("config: {owner: '?'}")
    (desk.folder / "job.toml").write_text(JOB)

    def mayfly(*words: str) -> Any:
        done = desk.run(*words, "--json")
        return json.loads(done.stdout)

    undeclared = desk.run("retrains", "publish", "weekly", "--job", "job.toml", "--rehearse")
    assert undeclared.returncode == 2 and "mayfly rehearse --settings FILE" in undeclared.stderr
    assert set(mayfly("rehearse", "--settings", "stack.yaml")["settings"]) == {"retrains"}
    assert "Setting 'owner' is '?'" in mayfly("rehearse", "--settings", "bad.yaml")["error"]["why"]
    launch = desk.launch("--data", str(candles), "--detach")
    assert json.loads(launch.communicate()[0])["detached"]
    running = mayfly("rehearse", "--settings", "stack.yaml")["error"]["what"]
    assert running.endswith("of the rehearsal is running")
