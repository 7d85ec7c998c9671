"""Tables of a run that lost its machine: when another attempt begins, when it does not, and who begins it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.records import DEADLINE, at, created, described, intent, make_record, only_store, rung, seen
from trainer.base.errors import TrainingFailed
from trainer.runs.actions import Carry, Close, DeleteSchedule, Store, Terminate, Wait
from trainer.runs.attempts import Attempt, Reached
from trainer.runs.lease import LEASE
from trainer.runs.observation import Observation
from trainer.runs.outcome import LAUNCHER_SILENT
from trainer.runs.reconcile import reconcile
from trainer.runs.record import InstanceSeen, RunRecord
from trainer.runs.record_json import record_from_json, to_json
from trainer.runs.recovery import MOST_LOST
from trainer.runs.reports import Heartbeat, NodeResult
from trainer.runs.start_file import StartFile

TAKEN = "Server.SpotInstanceTermination"
KILL = "mayfly-20261120-120000-crypto-k3v9-kill-1"
SPOT = (rung(market="spot"), rung(market="spot", zone="us-east-1b"), rung())


def lost_attempt(number: int = 1, **changed: Any) -> Attempt:
    """Return an attempt that lost its machine."""
    launch = created(instance_ids=(f"i-{number}",), token=f"t{number}")
    values: dict[str, Any] = {"launches": (launch,), "created_at": at(5), "ended_at": at(60 * number)}
    error = {"code": 105, "what": f"the spot instance i-{number} was taken back", "why": TAKEN, "do": "again"}
    return Attempt(**({"number": number, "cause": "lost", "error": error} | values | changed))


def gone(number: int = 1, **changed: Any) -> InstanceSeen:
    values = {"instance_id": f"i-{number}", "attempt": number, "terminated_at": at(60 * number)}
    return seen(**(values | changed))


def recovering(*attempts: Attempt, **changed: Any) -> RunRecord:
    attempts = attempts or (lost_attempt(),)
    instances = tuple(gone(attempt.number) for attempt in attempts)
    return make_record(**({"state": "recovering", "attempts": attempts, "instances": instances} | changed))


def look(record: RunRecord, **changed: Any) -> Observation:
    """Return a look at a run whose instances have all been described as terminated."""
    machines = tuple(
        described("terminated", instance_id=item.instance_id, attempt=item.attempt)
        for item in record.instances
    )
    return Observation(**({"instances": machines} | changed))


def beat(now: datetime, steps: int = 0, left: int = 2, phase: str = "train") -> Heartbeat:
    training = {"AAA": {"state": "training", "step": steps}}
    return Heartbeat(
        instance_id="i-1", at=now, lease_until=now + LEASE, phase=phase, progress=training, models_total=left
    )


def running(*earlier: Attempt, **changed: Any) -> RunRecord:
    """Return a run whose instance was seen running in the attempt after the earlier ones."""
    number = len(earlier) + 1
    launch = created(instance_ids=(f"i-{number}",), token=f"t{number}", kill_armed_at=at(6))
    now = Attempt(number=number, launches=(launch,), created_at=at(5))
    mine = seen("running", instance_id=f"i-{number}", attempt=number)
    instances = (*(gone(item.number) for item in earlier), mine)
    return make_record(
        **({"state": "running", "attempts": (*earlier, now), "instances": instances} | changed)
    )


def decided(record: RunRecord, observed: Observation, now: datetime) -> tuple[Any, ...]:
    """Return the actions after those that only store what the instances have become."""
    while (first := reconcile(record, observed, now)[0]) and getattr(first, "why", "") == "instances changed":
        record = first.record
    return reconcile(record, observed, now)


def lose(record: RunRecord, now: datetime = at(300), reason: str = TAKEN, **changed: Any) -> RunRecord:
    """Return the record after a look that finds the last attempt's instance ended for a reason."""
    last = record.instances[-1]
    machine = described("shutting-down", instance_id=last.instance_id, attempt=last.attempt, reason=reason)
    observed = Observation(**({"instances": (machine,)} | changed))
    return only_store(decided(record, observed, now))


def test_a_run_that_lost_its_machine_recovers():
    told = replace(beat(at(250), steps=70), retries=2, phases={"boot": at(60), "train": at(90)})
    record = lose(running(), heartbeat=told)
    (lost,) = record.lost
    assert (record.state, record.outcome, record.error) == ("recovering", None, None)
    assert (lost.cause, lost.ended_at, lost.reached) == (
        "lost",
        at(300),
        Reached(phase="train", left=2, steps=70, retries=2),
    )
    assert lost.error["code"] == 105
    assert (record.instances[0].running_seen_at, record.instances[0].signed_at) == (at(60), at(250))
    assert record_from_json(to_json(record)) == record


def test_no_attempt_begins_while_an_instance_may_be_alive():
    record = recovering(instances=(gone(state="running", proof="", terminated_at=None),))
    (action,) = decided(record, Observation(instances=(described(),)), at(90))
    assert isinstance(action, Terminate) and action.instance_ids == ("i-1",)
    (ending,) = decided(record, Observation(instances=(described("shutting-down"),)), at(95))
    (missing,) = decided(record, Observation(), at(200))
    assert isinstance(ending, Wait) and isinstance(missing, Wait)


def test_a_machine_that_reported_may_send_the_end_of_its_log():
    record = replace(recovering(), instances=(gone(terminated_at=None),))
    alive = (described("running", instance_id="i-1", attempt=1),)
    told = Observation(instances=alive, result=NodeResult(state="interrupted"))
    assert isinstance(decided(record, told, at(90))[0], Wait)
    assert isinstance(decided(record, told, at(60 + 46))[0], Terminate)
    assert isinstance(decided(record, Observation(instances=alive), at(61))[0], Terminate)  # no word of it


def test_the_next_attempt_begins_once_all_are_gone():
    record = recovering()
    delete, store = reconcile(record, look(record, schedules={KILL: DEADLINE}), at(120))
    assert delete == DeleteSchedule(name=KILL)
    assert isinstance(store, Store)
    assert (store.record.state, store.record.attempt) == ("starting", Attempt(number=2))
    begun = store.record
    assert reconcile(begun, look(begun, start_missing=True), at(121)) == (Carry(attempt=2),)
    launched = only_store(reconcile(begun, look(begun), at(122)))
    assert launched.last_launch.token != record.last_launch.token
    assert launched.attempt.number == 2


def test_an_earlier_attempts_instance_ends_before_a_launch():
    late = (gone(state="running", proof="", terminated_at=None),)
    record = replace(recovering().with_next_attempt(), instances=late)
    (action,) = decided(record, Observation(instances=(described(),)), at(130))
    assert isinstance(action, Terminate) and action.instance_ids == ("i-1",)


def test_the_pool_that_took_its_spot_machine_is_asked_last():
    record = recovering(ladder=SPOT).with_next_attempt()
    order = []
    for number in range(3):
        record = only_store(reconcile(record, look(record), at(130 + number)))
        launch = record.last_launch
        order.append(launch.rung)
        full = replace(
            launch, outcome="refused", error_code="InsufficientInstanceCapacity", called_at=at(131)
        )
        record = record.with_launch(full, at(131))
    assert order == [1, 2, 0]
    assert only_store(reconcile(record, look(record), at(140))).error["code"] == 101


def test_a_lost_on_demand_machine_leaves_the_order_of_its_pools():
    record = recovering(
        lost_attempt(error={"code": 100, "what": "silent", "why": "", "do": ""})
    ).with_next_attempt()
    assert only_store(reconcile(record, look(record), at(130))).last_launch.rung == 0


def test_money_counts_over_all_attempts():
    """Two dollars for an hour at five: the first attempt took six minutes of them, at most half a dollar."""
    record = recovering(budget_usd=2.0, instances=(gone(terminated_at=at(365)),)).with_next_attempt()
    launch = only_store(reconcile(record, look(record), at(400))).last_launch
    assert (launch.deadline - at(400), launch.deadline_cause) == (timedelta(minutes=18), "budget")


def test_a_default_duration_counts_over_all_attempts():
    ladder = tuple(replace(one, default_seconds=1800.0) for one in make_record().ladder)
    record = recovering(ladder=ladder, instances=(gone(terminated_at=at(605)),)).with_next_attempt()
    launch = only_store(reconcile(record, look(record), at(700))).last_launch
    assert launch.deadline - at(700) == timedelta(minutes=20)


@pytest.mark.parametrize(
    ("changed", "now", "why"),
    [
        ({"budget_usd": 0.45}, at(300), "too little money is left"),
        ({}, DEADLINE - timedelta(seconds=59), "too little time is left"),
    ],
)
def test_a_run_without_time_or_money_ends_with_its_reason(changed, now, why):
    ended = lose(running(**changed), now=now)
    assert (ended.state, ended.outcome, ended.error["code"]) == ("ending", "interrupted", 105)
    assert "was ended from outside" in ended.error["what"] and why in ended.error["why"]
    assert ended.attempt.cause == "lost"


def test_a_run_ends_where_time_runs_out_while_it_waits():
    record = recovering()
    ended = only_store(reconcile(record, look(record), DEADLINE - timedelta(seconds=30)))
    assert (ended.outcome, ended.error["code"]) == ("interrupted", 105)
    assert "too little time" in ended.error["why"]


def test_a_run_loses_so_many_machines_and_no_more():
    earlier = tuple(lost_attempt(number) for number in range(1, MOST_LOST))
    assert lose(running(*earlier[1:2])).state == "recovering"
    ended = lose(running(*earlier), now=at(600))
    assert (ended.outcome, len(ended.lost)) == ("interrupted", MOST_LOST)
    assert f"{MOST_LOST} machines were lost" in ended.error["why"]
    assert "attempt 2 lost its machine: the spot instance i-2 was taken back" in ended.error["why"]


SILENT = {"code": 100, "what": "the node fell silent", "why": "", "do": ""}


@pytest.mark.parametrize(
    ("before", "steps", "left", "state"),
    [
        (Reached(phase="train", left=2, steps=100), 101, 2, "ending"),
        (Reached(phase="train", left=2, steps=100), 60, 2, "ending"),
        (Reached(phase="train", left=2, steps=100), 150, 2, "recovering"),
        (Reached(phase="train", left=2, steps=100), 40, 1, "recovering"),
        (Reached(phase="stage", left=2, steps=0), 0, 2, "recovering"),
        (None, 0, 2, "recovering"),
    ],
)
def test_a_machine_that_dies_twice_at_one_place_is_a_bug(before, steps, left, state):
    record = running(lost_attempt(error=SILENT, reached=before))
    silent = replace(beat(at(100), steps, left), instance_id="i-2")
    alive = Observation(instances=(described("running", instance_id="i-2", attempt=2),), heartbeat=silent)
    stored = only_store(decided(record, alive, at(100) + LEASE + timedelta(seconds=31)))
    assert stored.state == state
    assert stored.attempt.cause == ("bug" if state == "ending" else "lost")
    if state == "ending":
        assert (stored.outcome, stored.error["code"]) == ("failed", 100)
        assert "two machines died at one place, in phase train" in stored.error["why"]


def test_a_node_that_never_reports_is_replaced_once():
    first = running()
    silent = Observation(instances=(described("running"),))
    assert only_store(decided(first, silent, at(910))).state == "recovering"
    second = running(lost_attempt(error=SILENT))
    silent = Observation(instances=(described("running", instance_id="i-2", attempt=2),))
    ended = only_store(decided(second, silent, at(910)))
    assert (ended.state, ended.attempt.cause) == ("ending", "bug")
    assert "before its command began" in ended.error["why"]
    came_further = running(lost_attempt(error=SILENT, reached=Reached(phase="train", left=2, steps=100)))
    assert only_store(decided(came_further, silent, at(910))).state == "recovering"


def test_a_spot_machine_seen_to_be_gone_late_was_taken():
    """EC2 does not date the end: the look comes after the lease."""
    record = lose(running(), heartbeat=beat(at(30)), now=at(900))
    assert record.lost[0].error["code"] == 105


def test_a_machine_that_dies_where_one_was_taken_is_no_bug():
    record = running(lost_attempt(reached=Reached(phase="train", left=2, steps=100)))
    silent = replace(beat(at(100), 90), instance_id="i-2")
    alive = Observation(instances=(described("running", instance_id="i-2", attempt=2),), heartbeat=silent)
    assert only_store(decided(record, alive, at(300))).attempt.cause == "lost"


def test_machines_that_are_taken_at_one_place_are_no_bug():
    record = running(lost_attempt(reached=Reached(phase="train", left=2, steps=100)))
    assert lose(record, heartbeat=replace(beat(at(250), steps=100), instance_id="i-2")).state == "recovering"


@pytest.mark.parametrize(
    ("boot_log", "state"),
    [
        ("bootstrap: powering off, exit code 137", "recovering"),
        (
            "bootstrap: code.whl has sha256 ab, the tag says cd\nbootstrap: powering off, exit code 1",
            "ending",
        ),
        ("", "ending"),
    ],
)
def test_a_power_off_counts_as_a_loss_after_a_signal_alone(boot_log, state):
    record = lose(running(), reason="Client.InstanceInitiatedShutdown", boot_log=boot_log)
    assert record.state == state


@pytest.mark.parametrize(
    ("reported", "state"), [("interrupted", "recovering"), ("stopped", "recovering"), ("failed", "ending")]
)
def test_a_report_of_an_interruption_is_a_loss(reported, state):
    observed = Observation(instances=(described(),), result=NodeResult(state=reported))
    assert only_store(decided(running(), observed, at(300))).state == state


def test_a_node_that_was_slow_and_not_lost_ends_its_run():
    record = recovering()
    ended = only_store(reconcile(record, look(record, result=NodeResult(state="done")), at(120)))
    assert (ended.state, ended.outcome, ended.error) == ("ending", "done", None)


def test_a_run_that_needs_no_other_machine_is_done():
    record = recovering().with_next_attempt()
    finished = tuple({"piece": piece.piece, "key": "k"} for piece in record.pieces)
    some, every = (StartFile(run_id=record.run_id, attempt=2, finished=finished[:count]) for count in (1, 2))
    assert only_store(reconcile(record, look(record, start=some), at(130))).state == "starting"
    done = only_store(reconcile(record, look(record, start=every), at(130)))
    assert (done.state, done.outcome, done.error) == ("ending", "done", None)
    assert isinstance(reconcile(done, look(done, start=every, models=()), at(131))[-1], Close)
    assert record_from_json(to_json(done)) == done


def test_a_run_whose_other_models_failed_needs_no_other_machine():
    record = recovering().with_next_attempt()
    one, other = record.pieces
    failed = ({**other.identity, "reason": "loss is NaN"},)
    start = StartFile(
        run_id=record.run_id, attempt=2, finished=({"piece": one.piece, "key": "k"},), failed=failed
    )
    ended = only_store(reconcile(record, look(record, start=start), at(130)))
    assert (ended.outcome, ended.error["code"]) == ("failed", TrainingFailed.exit_code)
    assert ended.error["what"] == f"training failed for {other.piece}"


def test_a_stop_request_ends_a_run_between_two_machines():
    record = recovering(stop_requested_at=at(70))
    assert only_store(reconcile(record, look(record), at(80))).outcome == "stopped"
    begun = replace(recovering().with_next_attempt(), stop_requested_at=at(70))
    assert only_store(reconcile(begun, look(begun), at(130))).outcome == "stopped"


def begun(record: RunRecord) -> RunRecord:
    return record.with_next_attempt()


def called(record: RunRecord) -> RunRecord:
    return record.with_next_attempt().with_new_launch(intent(token="t2", called_at=at(61), calls=1))


@pytest.mark.parametrize(
    "state", [lambda record: record, begun, called], ids=["recovering", "begun", "called"]
)
def test_control_goes_on_with_a_run_whose_desk_is_gone(state):
    record = state(recovering())
    late = at(61) + LAUNCHER_SILENT + timedelta(seconds=1)
    by_control = look(record, may_start=False, may_take_over=True)
    taken = only_store(reconcile(record, by_control, late))
    assert (taken.driver, taken.state, taken.handed_over_at) == ("control", record.state, late)
    assert not taken.is_scheduled and make_record(driver="control").is_scheduled
    assert isinstance(reconcile(record, by_control, at(100))[0], Wait)
    by_status = look(record, may_start=False)
    assert isinstance(reconcile(record, by_status, late)[0], Wait)


def test_a_machine_that_is_lost_after_hours_has_a_successor():
    """The hour within which a run has to start is that of its first attempt."""
    late, lost = at(3 * 3600), lost_attempt(ended_at=at(3 * 3600 - 60))
    record = begun(recovering(lost, deadline=at(6 * 3600)))
    assert isinstance(reconcile(record, look(record, start_missing=True), late)[0], Carry)
    following = only_store(reconcile(record, look(record), late))
    assert following.state == "starting" and following.last_launch.deadline == at(6 * 3600)


def test_a_desk_that_copies_checkpoints_is_not_dead():
    """Large ones take minutes, in which it writes nothing to the record."""
    record = make_record(parent="20261119-120000-crypto-aaaa", parent_counts="all", deadline=at(6 * 3600))
    by_control = Observation(may_start=False, may_take_over=True)
    assert isinstance(reconcile(record, by_control, at(1200))[0], Wait)
    assert only_store(reconcile(record, by_control, at(3601))).outcome == "interrupted"
    called = record.with_new_launch(intent(called_at=at(61), calls=1))
    assert only_store(reconcile(called, by_control, at(1200))).outcome == "interrupted"


def test_a_first_attempt_without_its_desk_ends_as_before():
    record = make_record()
    by_control = Observation(may_start=False, may_take_over=True)
    assert only_store(reconcile(record, by_control, at(125))).outcome == "interrupted"
