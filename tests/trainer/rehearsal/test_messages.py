"""The event bus of the embedded AWS: control settles a run whose desk is gone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from trainer.aws.access import Access
from trainer.aws.objects import open_objects
from trainer.aws.stack_outputs import StackOutputs
from trainer.base.instants import utc_now
from trainer.control.cloud import AwsCloud
from trainer.control.drive import start
from trainer.rehearsal.scheduling import wait_for_deliveries
from trainer.rehearsal.server import EmbeddedAws
from trainer.runs.index import begin_run
from trainer.runs.record import new_run_id
from trainer.runs.stored_receipt import read_receipt


def test_a_run_without_a_desk_gets_its_receipt_from_control(
    aws_server: EmbeddedAws,
    stack: tuple[Access, StackOutputs],
    make_record: Callable[..., Any],
    rungs_of: Callable[..., Any],
    wait_until: Callable[..., None],
) -> None:
    """Its function runs from its zip, under its role's policy, called by EC2's event."""
    access, outputs = stack
    cloud, objects, now = aws_server.cloud(access), open_objects(access, outputs.bucket), utc_now()
    record = make_record(
        run_id=new_run_id("crypto", now),
        bucket=outputs.bucket,
        instance_role_id=outputs.instance_role_id,
        ladder=rungs_of(access, outputs),
        preflight_at=now,
        created_at=now,
        deadline=now + timedelta(seconds=50),  # too little for another attempt
        place="rehearsal",
    )
    begin_run(objects, record)
    left = start(AwsCloud(access, outputs), record.run_id, poll_seconds=access.place.poll_seconds)
    assert left.last_launch is not None
    access.client("ec2").terminate_instances(InstanceIds=list(left.last_launch.instance_ids))
    cloud.fire_schedules = True
    wait_until(lambda: read_receipt(objects, record.run_id) is not None)
    cloud.fire_schedules = False
    wait_for_deliveries(cloud)
    receipt = read_receipt(objects, record.run_id)
    assert receipt is not None and receipt["state"] == "interrupted"
