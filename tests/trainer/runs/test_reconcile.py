"""Tables of (record, observed, now) -> actions. Whole runs are in tests/trainer/control."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests import records
from tests.pieces import named
from tests.records import DEADLINE, at, intent, only_store, starting
from tests.records import described as instance
from trainer.runs.actions import ArmKill, Close, DeleteSchedule, Store, Terminate, Wait, WriteIds, WriteStop
from trainer.runs.attempts import Attempt, Launch
from trainer.runs.lease import BOOT_ALLOWANCE, LEASE, SLACK
from trainer.runs.observation import ModelSeen, Observation
from trainer.runs.reconcile import reconcile
from trainer.runs.record import RunRecord
from trainer.runs.reports import Heartbeat, NodeResult

SWEEP, KILL = "mayfly-20261120-120000-crypto-k3v9-sweep", "mayfly-20261120-120000-crypto-k3v9-kill-1"


def heartbeat(seconds: float, phase: str = "train") -> Heartbeat:
    return Heartbeat(instance_id="i-1", at=at(seconds), lease_until=at(seconds) + LEASE, phase=phase)


def created(**fields: Any) -> Launch:
    return records.created(**({"kill_armed_at": at(6)} | fields))


@pytest.fixture
def running(make_record):
    """A run whose instance has been seen running, with both schedules armed."""

    def build(state: str = "running", launch: Launch | None = None, **fields: Any) -> RunRecord:
        record = make_record(
            state=state,
            attempts=(Attempt(number=1, launches=(launch or created(),), created_at=at(5)),),
            **fields,
        )
        if "instances" in fields:
            return record
        # the instance is seen
        return only_store(reconcile(record, Observation(instances=(instance(),)), at(30)))

    return build


def settle(record: RunRecord, observed: Observation, now: datetime) -> RunRecord:
    """Apply the stores that reconcile asks for, as long as it asks for nothing else."""
    while len(actions := reconcile(record, observed, now)) == 1 and isinstance(actions[0], Store):
        record = actions[0].record
    return record


def test_an_instance_found_by_tag_answers_an_open_intent():
    record = starting(intent())
    observed = Observation(instances=(instance("pending"),))
    record = settle(record, observed, at(3))
    assert (record.state, record.attempts[0].launches[0].outcome) == ("running", "created")
    assert record.attempts[0].launches[0].instance_ids == ("i-1",)


def test_an_instance_runs_from_the_first_look_that_shows_it():
    record = settle(starting(intent()), Observation(instances=(instance("pending"),)), at(3))
    assert record.instances[0].running_seen_at is None
    for now in (at(30), at(60)):
        record = settle(record, Observation(instances=(instance(),)), now)
        assert record.instances[0].running_seen_at == at(30)


def test_the_second_schedule_is_armed_with_the_ids(running):
    record = running(launch=created(kill_armed_at=None))
    kill, ids, store = reconcile(record, Observation(instances=(instance(),)), at(30))
    assert ids == WriteIds(attempt=1, instance_ids=("i-1",))
    assert kill == ArmKill(attempt=1, instance_ids=("i-1",), at=DEADLINE)
    assert store.record.attempts[0].launches[0].kill_armed_at == at(30)


def test_a_working_node_is_left_alone(running):
    observed = Observation(instances=(instance(),), heartbeat=heartbeat(95))
    assert [type(action) for action in reconcile(running(), observed, at(100))] == [Wait]


def test_a_stop_is_passed_on_to_a_node_that_speaks(running):
    record = running(stop_requested_at=at(99))
    observed = Observation(instances=(instance(),), heartbeat=heartbeat(95))
    assert reconcile(record, observed, at(100)) == (WriteStop(attempt=1, requested_at=at(99)),)
    assert [type(action) for action in reconcile(record, replace(observed, stop_written=True), at(110))] == [
        Wait
    ]


def test_a_stop_ends_a_node_that_never_spoke_at_once(running):
    record = running(stop_requested_at=at(50), state="running")
    record = settle(record, Observation(instances=(instance(),)), at(51))
    assert (record.state, record.outcome) == ("ending", "stopped")
    assert reconcile(record, Observation(instances=(instance(),)), at(51))[0].instance_ids == ("i-1",)


def test_a_stop_ends_a_node_that_still_boots_at_once(running):
    # the bootstrap's lease
    booting = Observation(instances=(instance(),), heartbeat=replace(heartbeat(48), phase=""))
    record = settle(running(stop_requested_at=at(50), state="running"), booting, at(51))
    assert (record.state, record.outcome) == ("ending", "stopped")


@pytest.mark.parametrize(
    ("now", "observed", "outcome", "code"),
    [
        (at(3600), Observation(instances=(instance(),), heartbeat=heartbeat(3598)), "expired", 104),
        (at(300), Observation(instances=(instance(),), heartbeat=heartbeat(100)), "lost", 100),
        (at(6) + BOOT_ALLOWANCE, Observation(instances=(instance(),)), "lost", 100),
        (
            at(300),
            Observation(instances=(instance("shutting-down", reason="Client.InstanceInitiatedShutdown"),)),
            "failed",
            100,
        ),
        (
            at(300),
            Observation(instances=(instance("terminated", reason="Client.UserInitiatedShutdown"),)),
            "lost",
            105,
        ),
        (
            at(300),
            Observation(instances=(instance("terminated", reason="Server.InternalError"),)),
            "lost",
            105,
        ),
        (
            at(300),
            Observation(
                instances=(instance("terminated", market="spot", reason="Server.SpotInstanceTermination"),)
            ),
            "lost",
            105,
        ),
        (
            at(3597),
            Observation(instances=(instance("terminated", reason="Client.UserInitiatedShutdown"),)),
            "expired",
            104,
        ),
        (at(300), Observation(instances=(instance(),), result=NodeResult(state="done")), "done", None),
        (
            at(300),
            Observation(instances=(instance(),), result=NodeResult(state="failed", exit_code=100)),
            "failed",
            100,
        ),
        (at(300), Observation(instances=(instance(),), result=NodeResult(state="expired")), "expired", 104),
        (
            at(300),
            Observation(instances=(instance(),), result=NodeResult(state="stopped")),
            "lost",
            105,
        ),
        (
            at(300),
            Observation(
                instances=(instance(),), result=NodeResult(state="stopped", phases={"end": DEADLINE})
            ),
            "expired",
            104,
        ),
    ],
)
def test_every_way_to_end_has_its_outcome(running, now, observed, outcome, code):
    record = settle(running(), observed, now)
    if outcome == "lost":  # and the run goes on
        assert (record.lost[0].cause, record.lost[0].error["code"], record.outcome) == ("lost", code, None)
        return
    assert (record.state, record.outcome) == ("ending", outcome)
    assert (record.error or {}).get("code") == code


def test_a_type_that_boots_slowly_has_its_own_allowance(running):
    record = running()
    record = replace(record, ladder=tuple(replace(rung, boot_seconds=1800) for rung in record.ladder))
    booting = Observation(instances=(instance(),))
    assert settle(record, booting, at(1800)).state == "running"
    assert settle(record, booting, at(1811)).state == "recovering"


def test_a_silent_node_is_judged_by_its_lease_and_not_before(running):
    observed = Observation(instances=(instance(),), heartbeat=heartbeat(100))
    last = at(100) + LEASE + SLACK
    assert isinstance(reconcile(running(), observed, last)[0], Wait)
    assert settle(running(), observed, last + timedelta(seconds=1)).state == "recovering"


def test_a_node_that_reported_may_power_itself_off(running):
    record = running(state="ending", outcome="done", ending_at=at(300))
    observed = Observation(instances=(instance(),), result=NodeResult(state="done"))
    assert isinstance(reconcile(record, observed, at(320))[0], Wait)
    assert reconcile(record, observed, at(400))[0].instance_ids == ("i-1",)


def test_a_run_stays_open_while_an_instance_is_shutting_down(running):
    record = running(state="ending", outcome="expired", ending_at=at(3600))
    observed = Observation(instances=(instance("shutting-down"),), models=())
    assert isinstance(reconcile(settle(record, observed, at(3610)), observed, at(3610))[-1], Wait)


def test_a_run_closes_once_every_instance_is_proven_gone(running):
    record = running(state="ending", outcome="expired", ending_at=at(3600))
    observed = Observation(
        instances=(instance("terminated"),), models=(), schedules={SWEEP: DEADLINE, KILL: DEADLINE}
    )
    record = settle(record, observed, at(3700))
    *deletes, close = reconcile(record, observed, at(3700))
    assert deletes == [DeleteSchedule(name=KILL), DeleteSchedule(name=SWEEP)]
    assert isinstance(close, Close)
    assert (close.record.state, close.record.closed_at) == ("closed", at(3700))


def test_a_missing_instance_is_gone_an_hour_after_its_deadline(running):
    record = running(state="ending", outcome="expired", ending_at=at(3600))
    observed = Observation(models=())
    assert isinstance(reconcile(record, observed, DEADLINE + timedelta(minutes=59))[0], Wait)
    record = settle(record, observed, DEADLINE + timedelta(minutes=61))
    assert record.instances[0].state == "gone"
    assert record.instances[0].terminated_at == DEADLINE + timedelta(minutes=61)
    assert record.instances[0].proof == "not found, deadline an hour past"
    assert isinstance(reconcile(record, observed, DEADLINE + timedelta(minutes=61))[-1], Close)


def test_an_announced_instance_keeps_the_run_open(make_record):
    record = make_record(
        state="ending",
        outcome="stopped",
        ending_at=at(9),
        attempts=(Attempt(number=1, launches=(created(),), created_at=at(5)),),
    )
    record = settle(record, Observation(models=()), at(10))
    assert record.instances[0].instance_id == "i-1"
    assert isinstance(reconcile(record, Observation(models=()), at(600))[0], Wait)


UNANSWERED = [
    intent(called_at=at(1), calls=1),
    intent(called_at=at(1), calls=2, outcome="refused", unanswered=True),
]


@pytest.mark.parametrize("launch", UNANSWERED, ids=["no answer", "refused after no answer"])
def test_an_unanswered_launch_keeps_an_ending_run_open(launch):
    record = starting(launch, state="ending", outcome="stopped", ending_at=at(2))
    observed = Observation(models=(), schedules={SWEEP: DEADLINE, KILL: DEADLINE})
    assert reconcile(record, observed, at(300))[0] == Wait(
        why="an unanswered launch may still bring an instance"
    )
    stored = only_store(reconcile(record, observed, at(301)))
    abandoned = stored.attempts[0].launches[0]
    assert (abandoned.outcome, abandoned.given_up_at) == ("abandoned", at(301))
    delete, close = reconcile(stored, observed, at(302))
    assert (delete, type(close)) == (DeleteSchedule(name=KILL), Close)


@pytest.mark.parametrize("launch", UNANSWERED, ids=["no answer", "refused after no answer"])
def test_an_instance_that_appears_at_the_end_is_terminated(launch):
    record = starting(launch, state="ending", outcome="stopped", ending_at=at(2))
    observed = Observation(instances=(instance("pending"),), models=())
    record = settle(record, observed, at(200))
    assert record.state == "ending"
    assert record.last_launch.outcome == "created"
    assert record.last_launch.instance_ids == ("i-1",)
    assert reconcile(record, observed, at(200))[0].instance_ids == ("i-1",)


@pytest.mark.parametrize("launch", UNANSWERED, ids=["no answer", "refused after no answer"])
def test_an_instance_that_appears_at_the_start_is_adopted(launch):
    record = settle(starting(launch), Observation(instances=(instance("pending"),)), at(200))
    assert record.state == "running"
    assert record.last_launch.outcome == "created"
    assert record.last_launch.instance_ids == ("i-1",)


NO_ANSWER = intent(called_at=at(1), calls=2, outcome="refused", error_code="NoClearAnswer")


def test_an_unanswered_launch_leaves_its_schedule():
    launches = (
        NO_ANSWER,
        intent(1, called_at=at(400), calls=1, outcome="refused", error_code="UnauthorizedOperation"),
    )
    record = starting(*launches, state="ending", outcome="failed", ending_at=at(401))
    delete, close = reconcile(
        record, Observation(models=(), schedules={SWEEP: DEADLINE, KILL: DEADLINE}), at(402)
    )
    assert (delete, type(close)) == (DeleteSchedule(name=KILL), Close)


def test_an_instance_before_the_next_call_is_adopted():
    record = settle(
        starting(NO_ANSWER, intent(1, intended_at=at(301))), Observation(instances=(instance(),)), at(302)
    )
    assert (record.state, record.last_launch.instance_ids) == ("running", ("i-1",))


def test_of_two_instances_the_other_one_is_terminated():
    """A call without an answer made a machine that showed itself only after another token had made
    one, too.
    """
    second = created(rung=1, token="t1", instance_ids=("i-2",))
    record = starting(NO_ANSWER, second, state="running")
    both = Observation(instances=(instance(), instance(instance_id="i-2", launched_at=at(310))))
    record = settle(record, both, at(400))
    assert reconcile(record, both, at(400)) == (
        Terminate(instance_ids=("i-1",), why="another instance does the run's work"),
    )
    assert [keys.instance_id for keys in record.nodes] == ["i-2"]
    ended = Observation(instances=(instance("terminated"), both.instances[1]))
    record = settle(record, ended, at(460))
    assert (record.state, isinstance(reconcile(record, ended, at(460))[0], Wait)) == ("running", True)


def test_of_two_unanswered_instances_the_first_alive_is_adopted():
    both = (instance("terminated"), instance(instance_id="i-2"), instance(instance_id="i-3"))
    record = settle(
        starting(NO_ANSWER, intent(1, called_at=at(302), calls=1)), Observation(instances=both), at(303)
    )
    assert record.last_launch.instance_ids == ("i-2",)


def test_an_intent_that_was_never_called_keeps_nothing_open():
    record = starting(intent(), state="ending", outcome="stopped", ending_at=at(2))
    observed = Observation(models=(), schedules={SWEEP: DEADLINE})
    *deletes, close = reconcile(settle(record, observed, at(3)), observed, at(3))
    assert (deletes, type(close)) == ([DeleteSchedule(name=SWEEP)], Close)


def test_an_instance_after_the_close_is_terminated(running):
    record = replace(running(), state="closed", outcome="stopped")
    assert reconcile(record, Observation(instances=(instance("pending"),)), at(500)) == (
        Terminate(instance_ids=("i-1",), why="the run is closed"),
    )
    assert reconcile(record, Observation(instances=(instance("terminated"),)), at(500)) == ()


def test_other_models_than_reported_make_the_run_failed(running):
    model = {**named("BTC-USD"), "family": "lstm", "key": "k", "version_id": "v1", "sha256": "abc"}
    record = running(state="ending", outcome="done", ending_at=at(300))
    observed = Observation(
        instances=(instance("terminated"),), result=NodeResult(state="done", models=(model,))
    )
    for models in ((), (ModelSeen(key="k", version_id="v1", sha256="other"),)):
        ended = settle(record, replace(observed, models=models), at(400))
        assert (ended.outcome, ended.error["code"]) == ("failed", 103)
    ended = settle(
        record, replace(observed, models=(ModelSeen(key="k", version_id="v1", sha256="abc"),)), at(400)
    )
    assert ended.outcome == "done"


def test_work_that_was_done_at_the_last_moment_counts_as_done(running):
    record = running(state="ending", outcome="expired", ending_at=DEADLINE)
    observed = Observation(instances=(instance("terminated"),), result=NodeResult(state="done"), models=())
    assert settle(record, observed, DEADLINE + timedelta(seconds=30)).outcome == "done"


def test_a_look_that_may_not_start_ends_a_dead_launchers_run():
    observed = Observation(may_start=False)
    assert [type(action) for action in reconcile(starting(), observed, at(60))] == [Wait]
    assert [type(action) for action in reconcile(starting(intent()), observed, at(60))] == [Wait]
    assert only_store(reconcile(starting(intent()), observed, at(122))).outcome == "interrupted"
