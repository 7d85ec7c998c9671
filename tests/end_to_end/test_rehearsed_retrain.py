"""A retrain in a rehearsal, as docs/runs.md has it: declared by a file, published, run now by control."""

from __future__ import annotations

import json
from collections.abc import Callable
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


def test_a_declared_retrain_is_published_and_runs(
    desk: Desk, candles: Path, eventually: Callable[..., Any]
) -> None:
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
    assert (
        mayfly("retrains", "publish", "weekly", "--job", "job.toml", "--rehearse")["retrain"]["state"] == "on"
    )
    run_id = mayfly("retrains", "run", "weekly", "--rehearse")["run_id"]

    def ended() -> Any:
        history = mayfly("retrains", "history", "weekly", "--rehearse")["history"]
        return history and history[0]["state"] in ("done", "failed", "refused", "skipped") and history[0]

    entry = eventually(ended)
    assert (entry["run_id"], entry["state"]) == (run_id, "done")
