"""Two drivers of one run, one that settles it meanwhile, and one that is killed in line. Callers that are killed elsewhere:
tests/chaos.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from trainer.control.drive import drive, step
from trainer.control.settle import settle_run
from trainer.runs.store import read_record, swap_record
from trainer.runs.stored_receipt import read_receipt

# two hours and ten minutes after the runs of these tests begin
LATE = datetime(2026, 11, 20, 14, 10, 0, tzinfo=timezone.utc)


def test_settling_a_run_that_is_being_launched_changes_nothing(make_cloud):
    cloud, record = make_cloud()
    cloud.sleep(30)
    settled = settle_run(cloud, record.run_id)
    assert settled.receipt is None
    assert cloud.done() == []


def test_two_drivers_at_once_make_one_instance_and_one_receipt(make_cloud):
    cloud, record = make_cloud()
    while True:
        looks = [step(cloud, record.run_id), step(cloud, record.run_id)]
        if all(look.record.state == "closed" for look in looks):
            break
        if not any(look.moved for look in looks):
            cloud.sleep(5)
    assert len(cloud.fleets) == 1
    assert len(cloud.objects.stored[f"runs/{record.run_id}/receipt.json"]) == 1


def test_a_driver_that_loses_the_race_for_the_record_reads_again(make_cloud):
    """Another driver writes between this one's look and its write, each time for the first writes."""
    cloud, record = make_cloud()
    real_put, rivals = cloud.objects.put, [3]

    def put(*, key, body, if_match="", create=False):
        if key.endswith("run.json") and rivals[0] and if_match:
            rivals[0] -= 1
            current, etag = read_record(cloud.objects, record.run_id)
            cloud.objects.put = real_put
            swap_record(cloud.objects, replace(current, owner=f"rival {rivals[0]}"), etag)
            cloud.objects.put = put
        return real_put(key=key, body=body, if_match=if_match, create=create)

    cloud.objects.put = put
    assert drive(cloud, record.run_id, poll_seconds=5.0, sleep=cloud.sleep)["state"] == "done"
    assert rivals == [0]
    assert len(cloud.fleets) == 1


def in_line(make_cloud):
    """A run that finds every pool full for its first four minutes, and what opens them."""
    cloud, record = make_cloud(deadline=LATE, queue_seconds=600.0)
    cloud.full = {"us-east-1a", "us-east-1b"}
    opens = cloud.clock + timedelta(minutes=4)

    def on_event(progress):
        if cloud.clock > opens:
            cloud.full.clear()

    return cloud, record, on_event


def test_control_goes_on_in_line_where_a_desk_was_killed(make_cloud, killed):
    """The desk is killed anywhere; before it waits in line nothing has begun, after that control goes on."""
    cloud, record, on_event = in_line(make_cloud)
    drive(cloud, record.run_id, poll_seconds=5.0, sleep=cloud.sleep, on_event=on_event)
    waited = 0
    for number in range(1, cloud.calls.index("arm_kill") + 1, 3):
        cloud, record, on_event = in_line(make_cloud)
        cloud.kill_at = number
        with pytest.raises(killed):
            drive(cloud, record.run_id, poll_seconds=5.0, sleep=cloud.sleep, on_event=on_event)
        cloud.kill_at, cloud.full = None, set()
        waits = read_record(cloud.objects, record.run_id)[0].outlives_its_desk
        waited += waits and not cloud.fleets
        goes_on = waits or bool(cloud.fleets)
        for _ in range(90):
            if settle_run(cloud, record.run_id, starts="control").receipt:
                break
            cloud.sleep(60)
        receipt = read_receipt(cloud.objects, record.run_id)
        assert receipt is not None and cloud.alive() == [], number
        assert (receipt["state"], len(cloud.fleets)) == (("done", 1) if goes_on else ("interrupted", 0)), (
            number
        )
    assert waited > 2
