"""A detached run of a rehearsal is settled by control, with every process of its desk gone."""

from __future__ import annotations

import json

import pytest

from tests.desk import until
from tests.gated_aws import CONTROL
from tests.jobs import sets
from tests.processes import alive
from trainer.rehearsal.home import read_note
from trainer.runs.store import record_key

pytestmark = pytest.mark.nightly
SMALL = ("--symbols", "AAA", "--epochs", "2", *sets("expert.tune=never"))


def detached(desk, candles, *words: str) -> dict:
    """Launch a run and leave it; return what the command says of it."""
    process = desk.launch("--data", str(candles), "--detach", *words)
    out, err = process.communicate(timeout=500)
    assert process.returncode == 0, err
    return json.loads(out)


def test_a_detached_run_is_settled_by_control_with_its_desk_gone(desk, candles):
    run_id = detached(desk, candles, *SMALL)["run_id"]
    note = read_note(desk.home)
    assert note is not None
    # No command of the desk is left, and none comes: only the server, its node and its functions.
    until(lambda: not alive(note.pid))
    stored = desk.stored(f"runs/{run_id}/")
    receipt = json.loads(stored[f"runs/{run_id}/receipt.json"])
    assert receipt["state"] == "done" and len(receipt["models"]) == 1
    record = json.loads(stored[record_key(run_id)])
    assert (record["state"], record["driver"]) == ("closed", "control")
    assert [one["proof"] for one in record["instances"]] == ["described terminated"]
    assert run_id in (desk.home / "lambda/000000000001" / f"{CONTROL}.log").read_text()
    assert not desk.processes()
