"""The caller is killed before and after every side effect, and another one goes on: one instance, one
receipt, none alive.
"""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone

import pytest

from trainer.base.errors import ConnectionFailed
from trainer.control.drive import drive as drive_run
from trainer.control.drive import step
from trainer.control.fleet import FleetAnswer
from trainer.control.settle import settle_all, settle_run
from trainer.control.stop import StopSignal
from trainer.runs.index import read_index
from trainer.runs.keys import of_experiment
from trainer.runs.store import read_record
from trainer.runs.stored_receipt import read_receipt

pytestmark = pytest.mark.slow


def drive(cloud, record, **options):
    return drive_run(cloud, record.run_id, poll_seconds=5.0, sleep=cloud.sleep, **options)


# ten minutes after the runs of these tests begin
SOON = datetime(2026, 11, 20, 12, 10, 0, tzinfo=timezone.utc)
LATE = SOON + timedelta(hours=2)
SPOT_TAKEN = "Server.SpotInstanceTermination"


def side_effects(make_cloud, prepare, deadline: datetime = SOON) -> int:
    cloud, record = make_cloud(deadline=deadline)
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


def one_lost(cloud):
    """The first machine is taken after its first model and its first snapshot."""
    cloud.early, cloud.losses = timedelta(seconds=60), {1: (timedelta(seconds=90), SPOT_TAKEN)}
    return {}


def two_lost(cloud):
    """The second one as well, before it has a snapshot of its own."""
    cloud.early = timedelta(seconds=60)
    cloud.losses = {
        1: (timedelta(seconds=90), SPOT_TAKEN),
        2: (timedelta(seconds=30), "Server.InternalError"),
    }
    return {}


def lost_with_an_unclear_answer(cloud):
    """A machine is lost, and the answer to the call for the next one, too."""
    one_lost(cloud)
    cloud.answers = [None, FleetAnswer(kind="unclear", code="ReadTimeoutError", message="?")]
    return {}


def stop_in_training(cloud):
    cloud.work = timedelta(minutes=20)
    stop = StopSignal()
    return {
        "stop": stop,
        "on_event": lambda progress: stop.press() if progress.phase == "train" and not stop.presses else None,
    }


@pytest.mark.parametrize(
    ("prepare", "state", "machines"),
    [
        (nothing, {"done"}, 1),
        (first_zone_full, {"done"}, 1),
        (throttled_answer, {"done"}, 1),
        (lost_answer, {"done"}, 1),
        (lost_calls, {"done"}, 1),
        (hung_node, {"expired"}, 1),
        (stop_in_training, {"stopped"}, 1),
        (one_lost, {"done"}, 2),
        (lost_with_an_unclear_answer, {"done"}, 2),
    ],
)
def test_a_caller_killed_at_any_side_effect_leaves_one_truth(make_cloud, killed, prepare, state, machines):
    for number in range(1, side_effects(make_cloud, prepare) + 1):
        cloud, record = make_cloud(deadline=SOON)
        cloud.kill_at = number
        with pytest.raises(killed):
            drive(cloud, record, **prepare(cloud))
        cloud.kill_at = None
        receipt = drive(cloud, record, **prepare(cloud))
        assert receipt["state"] in state, number
        assert len(cloud.fleets) == machines, number
        assert cloud.alive() == [], number
        if machines > 1:  # what the first one finished is kept, and nothing is trained twice
            assert made(receipt) == [("BTC-USD", 1), ("ETH-USD", machines)], number
            assert start_versions(cloud) == [2] * machines, number  # without the ids, and with them
        # killed before a replay: two lost calls
        kept = [f"mayfly-{record.run_id}-sweep"] if prepare is lost_calls else []
        assert list(cloud.schedules) in ([], kept), number
        assert read_receipt(cloud.objects, record.run_id) == receipt
        assert len(cloud.objects.stored[f"runs/{record.run_id}/receipt.json"]) == 1
        assert read_record(cloud.objects, record.run_id)[0].state == "closed"
        settle_all(cloud)
        assert read_index(cloud.objects).open == {}, number


def made(receipt) -> list[tuple[str, int]]:
    """Return each model with the attempt that made it."""
    return [(model["piece"], of_experiment(model["key"])[1]) for model in receipt["models"]]


def start_versions(cloud) -> list[int]:
    return [len(versions) for key, versions in cloud.objects.stored.items() if key.endswith("/start.json")]


@pytest.mark.parametrize("prepare", [one_lost, two_lost])
def test_control_goes_on_where_a_desk_was_killed(make_cloud, killed, prepare):
    """The desk is killed anywhere after its first launch; then control alone comes, every five minutes."""
    for number in range(1, side_effects(make_cloud, prepare, deadline=LATE) + 1):
        cloud, record = make_cloud(deadline=LATE)
        prepare(cloud)
        cloud.kill_at = number
        with pytest.raises(killed):
            drive(cloud, record)
        cloud.kill_at = None
        receipt, launched = None, len(cloud.fleets)
        while receipt is None and cloud.clock < LATE:
            receipt = settle_run(cloud, record.run_id, starts="control").receipt
            cloud.sleep(300)
        assert receipt is not None, number
        assert cloud.alive() == [], number
        assert receipt["state"] == ("done" if launched else "interrupted"), number
        if launched:
            assert len(cloud.fleets) == len(cloud.losses) + 1, number
            assert [piece for piece, _ in made(receipt)] == ["BTC-USD", "ETH-USD"], number


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
    drive(cloud, record, on_event=on_event)
    waited = 0
    for number in range(1, cloud.calls.index("arm_kill") + 1):
        cloud, record, on_event = in_line(make_cloud)
        cloud.kill_at = number
        with pytest.raises(killed):
            drive(cloud, record, on_event=on_event)
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
    assert waited > 8


@pytest.mark.parametrize("prepare", [one_lost, two_lost])
def test_desk_and_control_at_once_make_one_instance_an_attempt(make_cloud, prepare):
    cloud, record = make_cloud()
    prepare(cloud)
    while True:
        looks = [step(cloud, record.run_id), step(cloud, record.run_id, starts="control")]
        if all(look.record.state == "closed" for look in looks):
            break
        if not any(look.moved for look in looks):
            cloud.sleep(5)
    machines = len(cloud.losses) + 1
    assert len(cloud.fleets) == machines
    receipt = read_receipt(cloud.objects, record.run_id)
    assert made(receipt) == [("BTC-USD", 1), ("ETH-USD", machines)]
    assert [item["cause"] for item in receipt["attempts"]] == ["lost"] * (machines - 1) + [""]
    assert start_versions(cloud) == [2] * machines


def test_a_run_that_nobody_resumes_is_ended_by_control_later(make_cloud, killed):
    """Killed anywhere, then nobody for half an hour, then control at its calls, which replaces a machine that
    nobody told its run.
    """
    for number in range(1, side_effects(make_cloud, nothing) + 1):
        cloud, record = make_cloud()
        cloud.kill_at = number
        with pytest.raises(killed):
            drive(cloud, record)
        cloud.kill_at = None
        for _ in range(360):
            cloud.sleep(5)
        for _ in range(60):
            if step(cloud, record.run_id, starts="control").record.state == "closed":
                break
            cloud.sleep(20)
        receipt = read_receipt(cloud.objects, record.run_id)
        launched = len(cloud.fleets)
        assert receipt is not None, number
        assert receipt["state"] == ("done" if launched else "interrupted"), number
        assert len(receipt["models"]) == (2 if launched else 0), number
        assert cloud.alive() == []


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
def test_random_failures_of_every_call_only_take_time(make_cloud, seed):
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
