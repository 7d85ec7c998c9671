"""The caller is killed before and after every side effect, and another one goes on: one instance, one
receipt, none alive.
"""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone

import pytest

from trainer.base.errors import ConnectionFailed
from trainer.control.drive import drive as drive_run
from trainer.control.fleet import FleetAnswer
from trainer.control.settle import settle_all, settle_run
from trainer.control.stop import StopSignal
from trainer.runs.index import read_index
from trainer.runs.store import read_record
from trainer.runs.stored_receipt import read_receipt

pytestmark = pytest.mark.slow


def drive(cloud, record, **options):
    return drive_run(cloud, record.run_id, poll_seconds=5.0, sleep=cloud.sleep, **options)


# ten minutes after the runs of these tests begin
SOON = datetime(2026, 11, 20, 12, 10, 0, tzinfo=timezone.utc)


def side_effects(make_cloud, prepare) -> int:
    cloud, record = make_cloud(deadline=SOON)
    drive(cloud, record, **prepare(cloud))
    return len(cloud.calls)


def nothing(cloud):
    return {}


def first_zone_full(cloud):
    cloud.full = {"us-east-1a"}
    return {}


def throttled_answer(cloud):
    cloud.errors = ["RequestLimitExceeded"]
    return {}


def lost_answer(cloud):
    cloud.answers = [FleetAnswer(kind="unclear", code="ReadTimeoutError", message="?")]
    return {}


def lost_calls(cloud):
    cloud.lost_calls = 1
    return {}


def hung_node(cloud):
    cloud.node_works = False
    return {}


def stop_in_training(cloud):
    cloud.work = timedelta(minutes=20)
    stop = StopSignal()
    return {
        "stop": stop,
        "on_event": lambda progress: stop.press() if progress.phase == "train" and not stop.presses else None,
    }


@pytest.mark.parametrize(
    ("prepare", "state"),
    [
        (nothing, {"done"}),
        (first_zone_full, {"done"}),
        (throttled_answer, {"done"}),
        (lost_answer, {"done"}),
        (lost_calls, {"done"}),
        (hung_node, {"expired"}),
        (stop_in_training, {"stopped"}),
    ],
)
def test_a_caller_killed_at_any_side_effect_and_resumed_leaves_one_truth(make_cloud, killed, prepare, state):
    for number in range(1, side_effects(make_cloud, prepare) + 1):
        cloud, record = make_cloud(deadline=SOON)
        cloud.kill_at = number
        with pytest.raises(killed):
            drive(cloud, record, **prepare(cloud))
        cloud.kill_at = None
        receipt = drive(cloud, record, **prepare(cloud))
        assert receipt["state"] in state, number
        assert len(cloud.fleets) == 1, number
        assert cloud.alive() == [], number
        # killed before a replay: two lost calls
        kept = [f"mayfly-{record.run_id}-sweep"] if prepare is lost_calls else []
        assert list(cloud.schedules) in ([], kept), number
        assert read_receipt(cloud.objects, record.run_id) == receipt
        assert len(cloud.objects.stored[f"runs/{record.run_id}/receipt.json"]) == 1
        assert read_record(cloud.objects, record.run_id)[0].state == "closed"
        settle_all(cloud)
        assert read_index(cloud.objects).open == {}, number


def test_a_run_that_nobody_resumes_is_settled_truthfully_by_whoever_looks_later(make_cloud, killed):
    """Killed anywhere, then nobody for half an hour, then one look, and one more for what takes time."""
    for number in range(1, side_effects(make_cloud, nothing) + 1):
        cloud, record = make_cloud()
        cloud.kill_at = number
        with pytest.raises(killed):
            drive(cloud, record)
        cloud.kill_at = None
        for _ in range(360):
            cloud.sleep(5)
        settle_run(cloud, record.run_id)
        cloud.sleep(120)
        receipt = settle_run(cloud, record.run_id).receipt
        launched = len(cloud.fleets)
        assert receipt is not None, number
        assert receipt["state"] == ("done" if launched else "interrupted"), number
        assert len(receipt["models"]) == (2 if launched else 0), number
        assert cloud.alive() == []


def test_settling_a_run_that_is_being_launched_starts_nothing_and_changes_nothing(make_cloud):
    cloud, record = make_cloud()
    cloud.sleep(30)
    settled = settle_run(cloud, record.run_id)
    assert settled.receipt is None
    assert cloud.done() == []


def test_two_drivers_at_once_make_one_instance_and_one_receipt(make_cloud):
    from trainer.control.drive import step

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
    from dataclasses import replace

    from trainer.runs.store import swap_record

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
    assert drive(cloud, record)["state"] == "done"
    assert rivals == [0]
    assert len(cloud.fleets) == 1


@pytest.mark.parametrize("seed", range(25))
def test_random_failures_of_every_call_change_nothing_but_the_time_it_takes(make_cloud, seed):
    """One call in five fails before or after it took effect; answers to launches get lost; capacity comes and
    goes.
    """
    cloud, record = make_cloud()
    dice = random.Random(seed)

    def unreliable(operation):
        def call(*arguments, **named):
            if dice.random() < 0.1:
                raise ConnectionFailed("lost before", why="ConnectTimeout")
            answer = operation(*arguments, **named)
            if dice.random() < 0.1:
                raise ConnectionFailed("lost after", why="ReadTimeout")
            return answer

        return call

    def create(*, request):
        if dice.random() < 0.5:
            cloud.full = {"us-east-1a"} if dice.random() < 0.3 else set()
        if dice.random() < 0.2:
            cloud.lost_calls = 2
        if dice.random() < 0.5:
            cloud.answers = [FleetAnswer(kind="unclear", code="ReadTimeoutError", message="?")]
        return real_create(request=request)

    real_create = cloud.create_fleet
    cloud.create_fleet = create
    for name in ("instances", "terminate", "scheduled", "arm_sweep", "arm_kill", "delete_schedule"):
        setattr(cloud, name, unreliable(getattr(cloud, name)))
    for name in ("get", "put", "list"):
        setattr(cloud.objects, name, unreliable(getattr(cloud.objects, name)))
    receipt = None
    while receipt is None:
        try:
            receipt = drive(cloud, record)
        except ConnectionFailed:
            continue  # the very first look failed: the command would say so, and is called again
    assert receipt["state"] == "done"
    assert len(cloud.fleets) == 1
    assert cloud.alive() == []
    # after a token without an answer
    assert not cloud.schedules or list(cloud.schedules) == [f"mayfly-{record.run_id}-sweep"]
