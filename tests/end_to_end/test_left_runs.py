"""Runs that nobody attends: a detached one in a rehearsal is settled by control with every process of its desk
gone, a killed node is replaced, and with sweeper and control broken an instance ends all the same.
"""

from __future__ import annotations

import json
import os
import signal
from datetime import timedelta

import pytest

from tests.desk import until
from tests.gated_aws import CONTROL, SWEEPER, gated_aws
from tests.jobs import sets
from tests.processes import alive
from trainer.rehearsal.home import read_note
from trainer.runs.store import record_key

pytestmark = pytest.mark.nightly
SMALL = ("--symbols", "AAA", "--epochs", "2", *sets("expert.tune=never"))
LONG = ("--symbols", "AAA", "--epochs", "5000", *sets("train.patience=5000", "expert.tune=never"))


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


def test_a_killed_node_is_replaced_by_the_next_attempt(desk, candles):
    """Nothing powers its machine off: its silence is noticed, and its lease is a minute and a half."""
    run = desk.launch("--data", str(candles), *SMALL[:2], "--epochs", "40", *sets("train.patience=40"))
    until(lambda: desk.events("epoch"))
    (marker,) = desk.home.glob("sandbox/*/.mayfly-sandbox")
    os.killpg(json.loads(marker.read_text())["process_group"], signal.SIGKILL)
    for event in desk.events("model_started"):
        os.kill(event["pid"], signal.SIGKILL)  # in a session of its own
    out, err = run.communicate(timeout=500)
    receipt = json.loads(out)
    assert receipt["state"] == "done", f"{receipt['error']} {err[-2000:]}"
    assert [one["cause"] for one in receipt["attempts"]] == ["lost", ""]
    assert "the node fell silent" in receipt["attempts"][0]["error"]["what"]
    assert all(one["state"] == "terminated" for one in receipt["instances"])


@pytest.mark.parametrize("broken", [(SWEEPER, CONTROL), (CONTROL,)], ids=["both", "control"])
def test_an_instance_ends_although_functions_are_broken(desk, candles, programs, fork_server, broken):
    """Its node is dead, its timer gone: the schedule that calls EC2 ends it, or the sweeper does."""
    with gated_aws(desk.home, programs=programs, fork_server=fork_server) as aws:
        run_id = detached(desk, candles, *LONG, "--max-duration", "10m")["run_id"]
        until(lambda: desk.events("model_started"))
        for name in broken:
            aws.break_function(name)
        cloud, (machine,) = aws.own, aws.machines(run_id)
        home = desk.home / "sandbox" / machine.id
        os.killpg(json.loads((home / ".mayfly-sandbox").read_text())["process_group"], signal.SIGKILL)
        for timer in (home / "run/timers").glob("[!.]*.timer"):
            timer.unlink()
        if SWEEPER not in broken:  # it alone is left
            cloud.world.delete_schedule("mayfly-dev", f"mayfly-{run_id}-kill-1")
        deadline = aws.record(run_id).effective_deadline.at
        past = deadline + timedelta(minutes=1) - cloud.clock.now()
        cloud.clock.advance(past.total_seconds())
        until(lambda: machine.terminated_at is not None)
        assert machine.reason[0] == "Client.UserInitiatedShutdown"
        aws.settle_down()
        assert aws.record(run_id).state == "running", "control could not settle it"
        told = json.loads(desk.run("receipts", run_id, "--rehearse", "--json").stdout)
        assert (told["state"], told["exit_code"]) == ("expired", 104)
