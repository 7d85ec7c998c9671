"""Two drivers of one run, and one that settles it meanwhile. Callers that are killed: tests/chaos."""

from __future__ import annotations

from dataclasses import replace

from trainer.control.drive import drive, step
from trainer.control.settle import settle_run
from trainer.runs.store import read_record, swap_record


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
