"""What a launch does while all pools are full: it walks its ladder again, and waits in line."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.records import DEADLINE, at, only_store, rung, starting
from tests.trainer.runs.test_launching import G_QUOTA, SWEEP, refused
from tests.trainer.runs.test_launching import ladder as ladder
from trainer.base.strict_json import Unsound
from trainer.runs.actions import Create, Store, Wait
from trainer.runs.capacity import pool_of
from trainer.runs.launching import FIRST_WAIT
from trainer.runs.observation import Observation
from trainer.runs.reconcile import reconcile
from trainer.runs.record_json import record_from_json, to_json
from trainer.runs.recovery import MOST_LOST

FULL = "InsufficientInstanceCapacity"
HOUR = 3600.0


def pools(record, *indices: int) -> frozenset[str]:
    return frozenset(pool_of(record.ladder[index]) for index in indices)


def test_a_pool_that_was_full_is_asked_last():
    record = starting()
    first = only_store(reconcile(record, Observation(full=pools(record, 0)), at(1)))
    assert first.last_launch.rung == 1
    launch = refused(FULL, 1)
    assert (
        only_store(reconcile(starting(launch), Observation(full=pools(record, 0, 1)), at(2))).last_launch.rung
        == 0
    )
    both = starting(launch, refused(FULL, 0))
    assert only_store(reconcile(both, Observation(full=pools(record, 0, 1)), at(3))).state == "ending"


def test_pools_that_are_all_full_are_asked_in_order():
    record = starting()
    assert only_store(reconcile(record, Observation(full=pools(record, 0, 1)), at(1))).last_launch.rung == 0


def test_a_full_ladder_is_walked_again_after_a_pause():
    record = starting(refused(FULL), refused(FULL, 1), queue_seconds=HOUR)
    waiting = only_store(reconcile(record, Observation(), at(10)))
    queue = waiting.attempt.queue
    assert (waiting.state, queue.walks, queue.until) == ("starting", 2, at(10 + HOUR))
    assert at(10) + FIRST_WAIT / 2 <= queue.next_at <= at(10) + FIRST_WAIT
    assert waiting.deadline == DEADLINE + (queue.next_at - at(10))
    (wait,) = reconcile(waiting, Observation(), queue.next_at - timedelta(milliseconds=1))
    assert FULL in wait.why and f"{queue.next_at:%H:%M:%S}" in wait.why and "us-east-1b" in wait.why
    assert reconcile(waiting, Observation(may_start=False), at(11)) == (wait,)
    began = queue.next_at + timedelta(seconds=3)
    again = only_store(reconcile(waiting, Observation(), began))
    assert (again.last_launch.rung, again.last_launch.outcome) == (0, "intended")
    assert again.deadline == DEADLINE + (began - at(10))
    assert again.last_launch.deadline == again.deadline.replace(microsecond=0), "waiting took nothing"
    assert again.last_launch.token not in ("t0", "t1")


def test_a_wait_survives_its_record():
    record = starting(refused(FULL), refused(FULL, 1), queue_seconds=HOUR)
    waiting = only_store(reconcile(record, Observation(), at(10)))
    assert record_from_json(to_json(waiting)) == waiting
    beyond = replace(waiting.attempt.queue, first=3)
    with pytest.raises(Unsound, match="an invalid waiting line"):
        record_from_json(to_json(replace(waiting, attempts=(replace(waiting.attempt, queue=beyond),))))


def test_five_long_waits_over_a_long_ladder_fit_into_a_record():
    """Each try stays in it: a record that is too large could not be read, and its machine not be followed."""
    rungs, queue_seconds = tuple(rung(f"g5.{number}xlarge") for number in range(72)), 12 * HOUR
    walk = [refused(FULL, number, error_message="m" * 300) for number in range(len(rungs))]
    record = starting(*walk, ladder=rungs, queue_seconds=queue_seconds)
    waiting = only_store(reconcile(record, Observation(), at(10)))
    queue = replace(waiting.attempt.queue, walks=9, first=0)  # its pauses are the longest
    record = replace(waiting, attempts=(replace(waiting.attempt, queue=queue),))
    pause = only_store(reconcile(record, Observation(), at(10))).attempt.queue.next_at - at(10)
    walks = int(timedelta(seconds=queue_seconds) / pause) + 2
    every = [
        replace(launch, token=f"{number:035d}{one:05d}")
        for number in range(walks * MOST_LOST)
        for one, launch in enumerate(walk)
    ]
    record_from_json(to_json(starting(*every, ladder=rungs, queue_seconds=queue_seconds)))


def test_a_wait_ends_at_its_timeout_with_pools_and_tries():
    """Every pool stays full for as long as the run may wait; each walk asks each pool once."""
    record, now, last_call = starting(queue_seconds=HOUR), at(0), at(0)
    while record.state == "starting":
        for action in reconcile(record, Observation(schedules={SWEEP: DEADLINE}), now):
            if isinstance(action, Store):
                record = action.record
            if isinstance(action, Create):
                last_call = now
                left = action.launch.deadline - now
                assert timedelta(minutes=59, seconds=50) <= left <= timedelta(hours=1)
                answered = replace(action.launch, outcome="refused", error_code=FULL, error_message="no")
                record = record.with_launch(answered, now)
        now += timedelta(seconds=1)
    queue = record.attempts[0].queue
    launches = record.attempts[0].launches
    assert at(HOUR) <= last_call <= at(HOUR + 10)
    assert [launch.rung for launch in launches] == [0, 1] * queue.walks and queue.walks < 40
    assert len({launch.token for launch in launches}) == len(launches)
    assert (record.outcome, record.error["code"]) == ("failed", 101)
    assert f"in {queue.walks} tries of the whole ladder within 60 min" in record.error["why"]
    assert f"us-east-1a ({queue.walks} times)" in record.error["why"]


@pytest.mark.parametrize(
    "codes", [("UnauthorizedOperation",), ("VcpuLimitExceeded",), ("Unsupported", "SpotMaxPriceTooLow")]
)
def test_only_capacity_is_waited_for(codes):
    record = starting(*(refused(code, rung) for rung, code in enumerate(codes)), queue_seconds=HOUR)
    assert only_store(reconcile(record, Observation(), at(10))).state == "ending"


def test_a_pool_behind_a_quota_is_not_waited_for(ladder):
    rungs = ladder(("g5.12xlarge", 48, G_QUOTA), ("g6.xlarge", 4, G_QUOTA))
    record = starting(refused(FULL), refused("VcpuLimitExceeded", 1), ladder=rungs, queue_seconds=HOUR)
    assert only_store(reconcile(record, Observation(), at(10))).error["code"] == 102


def test_a_pool_not_sold_in_a_zone_is_left_out_later():
    record = starting(refused("Unsupported"), refused(FULL, 1), queue_seconds=HOUR)
    waiting = only_store(reconcile(record, Observation(), at(10)))
    again = only_store(reconcile(waiting, Observation(), waiting.attempt.queue.next_at))
    assert again.last_launch.rung == 1


def test_control_goes_on_in_line_for_a_launcher_that_is_gone():
    record = starting(refused(FULL), refused(FULL, 1), queue_seconds=HOUR)
    waiting = only_store(reconcile(record, Observation(), at(10)))
    queue = replace(waiting.attempt.queue, next_at=at(190))
    waiting = replace(waiting, attempts=(replace(waiting.attempt, queue=queue),))
    by_status = Observation(may_start=False)
    by_control = replace(by_status, may_take_over=True)
    assert isinstance(reconcile(waiting, by_control, at(310))[0], Wait)  # it wrote that it waits until 190
    assert isinstance(
        reconcile(waiting, by_status, at(311))[0], Wait
    )  # who looks starts nothing, ends nothing
    taken = only_store(reconcile(waiting, by_control, at(311)))
    assert (taken.driver, taken.handed_over_at, taken.state) == ("control", at(311), "starting")
    assert only_store(reconcile(taken, Observation(), at(312))).last_launch.outcome == "intended"
    late = only_store(reconcile(waiting, by_status, waiting.deadline))
    assert late.outcome == "expired"
