"""Each layer of the safety net alone ends a node that hangs: its OS timer, the two one-time schedules, the sweep."""

from __future__ import annotations

import json
import os
import signal
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from trainer.access import Access
from trainer.rehearsal.client import ACCOUNT, REGION
from trainer.runs.record import from_iso, utc_now

GROUP = "mayfly-dev"
STANDING = "standing-sweep"
LAYERS = ("OS timer", "one-time schedule to the sweeper", "one-time schedule to EC2", "standing sweep")


def access_of(home: Path) -> Access:
    """Return access to the embedded AWS that runs at a desk."""
    url = json.loads((home / "server.json").read_text())["url"]
    return Access(region=REGION, endpoint_url=url, access_key=f"AKIA{ACCOUNT}0000", secret_key="rehearsal", rehearsal=True)


def instance_of(ec2: Any, run_id: str) -> dict[str, Any]:
    (reservation,) = ec2.describe_instances(Filters=[{"Name": "tag:run_id", "Values": [run_id]}])["Reservations"]
    return reservation["Instances"][0]


def hang(sandbox: Path, eventually: Any) -> None:
    """Stop the node's process group (user data and agent) once its timer is tightened and it trains."""
    eventually(lambda: (sandbox / "opt/mayfly/work/events/events.jsonl").exists())
    group = json.loads((sandbox / ".mayfly-sandbox").read_text())["process_group"]
    os.killpg(group, signal.SIGSTOP)


def leave_only(layer: str, *, run_id: str, sandbox: Path, scheduler: Any) -> None:
    """Take every layer of a run away but one. The standing sweep is off until it is the one that is looked at."""
    if layer != "OS timer":
        for timer in (sandbox / "run/timers").glob("[!.]*.timer"):
            timer.unlink()
    if layer != "one-time schedule to the sweeper":
        scheduler.delete_schedule(GroupName=GROUP, Name=f"mayfly-{run_id}-sweep")
    if layer != "one-time schedule to EC2":
        scheduler.delete_schedule(GroupName=GROUP, Name=f"mayfly-{run_id}-kill-1")


def set_standing_sweep(scheduler: Any, *, state: str) -> None:
    """Switch the standing sweep on or off; on, it comes every minute, so that the test need not wait for two."""
    schedule = scheduler.get_schedule(GroupName=GROUP, Name=STANDING)
    scheduler.update_schedule(
        GroupName=GROUP,
        Name=STANDING,
        State=state,
        ScheduleExpression="rate(1 minute)",
        FlexibleTimeWindow=schedule["FlexibleTimeWindow"],
        Target=schedule["Target"],
    )


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_each_layer_alone_ends_a_node_that_hangs(desk, candles, eventually):
    runs: dict[str, str] = {}
    deadlines: dict[str, datetime] = {}
    for layer in LAYERS:
        started = desk.launch(
            "--data", str(candles), "--epochs", "100000", "--set", "patience=100000", "--max-duration", "60s", "--detach"
        )
        out, err = started.communicate(timeout=120)
        assert started.returncode == 0, err
        run_id = runs[layer] = json.loads(out)["run_id"]
        access = access_of(desk.home)
        ec2, scheduler = access.client("ec2"), access.client("scheduler")
        if layer == LAYERS[0]:
            set_standing_sweep(scheduler, state="DISABLED")
        instance = instance_of(ec2, run_id)
        deadlines[layer] = from_iso({tag["Key"]: tag["Value"] for tag in instance["Tags"]}["deadline"])
        sandbox = desk.home / "sandbox" / instance["InstanceId"]
        hang(sandbox, eventually)
        leave_only(layer, run_id=run_id, sandbox=sandbox, scheduler=scheduler)
        assert instance_of(ec2, run_id)["State"]["Name"] == "running"

    for layer in LAYERS:
        if layer == "standing sweep":
            assert instance_of(ec2, runs[layer])["State"]["Name"] == "running", "nothing but the sweep may end this one"
            set_standing_sweep(scheduler, state="ENABLED")
        eventually(
            lambda wanted=runs[layer]: instance_of(ec2, wanted)["State"]["Name"] in ("shutting-down", "terminated"), seconds=150
        )
        assert utc_now() >= deadlines[layer], f"{layer}: not before its deadline"
        instance_id = instance_of(ec2, runs[layer])["InstanceId"]
        by_timer = (desk.home / "sandbox" / instance_id / "run/poweroff").exists()
        assert by_timer == (layer == "OS timer")

    # Nobody watched; the next command settles all four, and their receipts tell the truth.
    eventually(lambda: all(instance_of(ec2, run_id)["State"]["Name"] == "terminated" for run_id in runs.values()))
    desk.run("status", "--rehearse")
    for run_id in runs.values():
        receipt = json.loads(desk.run("receipts", run_id, "--rehearse", "--json").stdout)
        assert (receipt["state"], receipt["exit_code"]) == ("expired", 104)
        assert receipt["instances"][0]["state"] == "terminated"
