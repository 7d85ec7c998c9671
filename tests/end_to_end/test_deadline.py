"""A run that is left at its terminal, and its one budget from the flag to the OS timer: plan, tag, schedules,
timer and receipt agree.
"""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.desk import QUICK
from tests.jobs import sets
from trainer.base.instants import from_iso
from trainer.runs.deadline import armed_for
from trainer.runs.record_json import record_from_json

GROUP = "mayfly-dev"
LONG = ("--epochs", "10000", *sets("train.patience=10000", "expert.tune=never"))  # tuning: test_tuned.py
BUDGET = "1.5"  # 439 seconds of a p3.8xlarge with its disk, far below the default of half an hour


def timer_instant(sandbox: Path) -> datetime | None:
    """Return the instant at which the node's OS timer fires, or None before there is one."""
    unit = sandbox / "etc/systemd/system/mayfly-deadline.timer"
    found = re.search(r"OnCalendar=(\S+ \S+) UTC", unit.read_text()) if unit.exists() else None
    return datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=timezone.utc) if found else None


def scheduled(scheduler: Any, name: str) -> datetime:
    expression = scheduler.get_schedule(GroupName=GROUP, Name=name)["ScheduleExpression"]
    return datetime.strptime(expression, "at(%Y-%m-%dT%H:%M:%S)").replace(tzinfo=timezone.utc)


@pytest.mark.nightly
@pytest.mark.slow
def test_ctrl_c_asks_and_a_left_run_has_one_deadline(desk, candles, eventually):
    words = ("--data", str(candles), "--symbols", "AAA", *LONG, "--budget", BUDGET)
    # The plan's hard stop counts from the launch; the record keeps the instant of the launch.
    planned = desk.launch(*words, "--dry-run")
    out, err = planned.communicate(timeout=500)
    assert planned.returncode == 0, err
    plan = json.loads(out)["hard_stop"]
    assert (plan["seconds"], plan["cause"]) == (439, "budget")

    typed = desk.type("launch", "--rehearse", "--instance", "p3.8xlarge", *QUICK, *words)
    eventually(lambda: desk.events("model_started"))
    typed.press("\x03")
    eventually(lambda: "leave it running (l)" in typed.shown())
    typed.press("g\n")
    eventually(lambda: "epoch" in typed.shown().rpartition("leave it running (l)")[2])  # the picture goes on
    typed.press("\x03")
    eventually(lambda: typed.shown().count("leave it running (l)") == 2)
    typed.press("l\n")
    assert typed.ends() == 0, typed.shown()
    assert "continues, and ends by" in typed.shown()
    (left,) = json.loads(desk.run("status", "--rehearse", "--json").stdout)["runs"]
    assert left["state"] == "running", "no stop was requested"
    run_id, deadline = left["run_id"], from_iso(left["deadline"])
    assert left["deadline_cause"] == "budget"

    access = desk.access()
    ec2, scheduler, s3 = (access.client(name) for name in ("ec2", "scheduler", "s3"))
    (bucket,) = (entry["Name"] for entry in s3.list_buckets()["Buckets"])
    record = record_from_json(s3.get_object(Bucket=bucket, Key=f"runs/{run_id}/run.json")["Body"].read())
    (launch,) = record.attempts[0].launches
    assert (launch.deadline, launch.deadline_cause) == (deadline, "budget")
    assert (launch.intended_at + timedelta(seconds=plan["seconds"])).replace(microsecond=0) == deadline

    (instance_id,) = [one["instance_id"] for one in left["instances"]]
    (reservation,) = ec2.describe_instances(InstanceIds=[instance_id])["Reservations"]
    tags = {tag["Key"]: tag["Value"] for tag in reservation["Instances"][0]["Tags"]}
    assert from_iso(tags["deadline"]) == deadline
    assert scheduled(scheduler, f"mayfly-{run_id}-sweep") == armed_for(deadline)
    assert scheduled(scheduler, f"mayfly-{run_id}-kill-1") == armed_for(deadline)
    sandbox = desk.home / "sandbox" / instance_id
    # The cap of the template comes first, then the tag
    eventually(lambda: timer_instant(sandbox) == deadline)

    stopped = desk.run("stop", run_id, "--rehearse", "--json")
    receipt = json.loads(stopped.stdout)
    assert receipt["state"] == "stopped"
    assert (from_iso(receipt["deadline"]), receipt["deadline_cause"]) == (deadline, "budget")
