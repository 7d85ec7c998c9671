"""Tables of (record, world, now) -> actions. What a whole run makes of them is in tests/trainer/control."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from trainer.runs.lease import BOOT_ALLOWANCE, LEASE, SLACK, Heartbeat
from trainer.runs.reconcile import (
    ArmKill,
    ArmSweep,
    Close,
    Create,
    DeleteSchedule,
    Store,
    Terminate,
    Wait,
    WriteStop,
    attempt_deadline,
    reconcile,
    with_launch,
)
from trainer.runs.record import Attempt, Launch, RunRecord
from trainer.runs.world import Instance, ModelSeen, NodeResult, World

NOON = datetime(2026, 11, 20, 12, 0, 0, tzinfo=timezone.utc)
DEADLINE = NOON + timedelta(hours=1)
SWEEP, KILL = "mayfly-20261120-120000-crypto-k3v9-sweep", "mayfly-20261120-120000-crypto-k3v9-kill-1"


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def instance(state: str = "running", **fields: Any) -> Instance:
    values = {
        "instance_id": "i-1",
        "attempt": 1,
        "instance_type": "g5.12xlarge",
        "market": "on_demand",
        "availability_zone": "us-east-1a",
        "state": state,
        "launched_at": at(5),
    }
    return Instance(**(values | fields))


def heartbeat(seconds: float, phase: str = "train") -> Heartbeat:
    return Heartbeat(instance_id="i-1", at=at(seconds), lease_until=at(seconds) + LEASE, phase=phase)


def intent(rung: int = 0, **fields: Any) -> Launch:
    return Launch(**({"rung": rung, "token": f"t{rung}", "deadline": DEADLINE, "intended_at": at(1)} | fields))


def created(**fields: Any) -> Launch:
    return intent(**({"outcome": "created", "instance_ids": ("i-1",), "kill_armed_at": at(6)} | fields))


@pytest.fixture
def starting(make_record):
    return lambda *launches, **fields: make_record(
        attempts=(Attempt(number=1, launches=launches),) if launches else (), **fields
    )


@pytest.fixture
def running(make_record):
    """A run whose instance has been seen running, with both schedules armed."""

    def build(state: str = "running", launch: Launch | None = None, **fields: Any) -> RunRecord:
        record = make_record(
            state=state, attempts=(Attempt(number=1, launches=(launch or created(),), created_at=at(5)),), **fields
        )
        if "instances" in fields:
            return record
        return only_store(reconcile(record, World(instances=(instance(),)), at(30)))  # the instance is seen

    return build


def settle(record: RunRecord, world: World, now: datetime) -> RunRecord:
    """Apply the stores that reconcile asks for, as long as it asks for nothing else."""
    while len(actions := reconcile(record, world, now)) == 1 and isinstance(actions[0], Store):
        record = actions[0].record
    return record


def only_store(actions: tuple[Any, ...]) -> RunRecord:
    assert len(actions) == 1 and isinstance(actions[0], Store), actions
    return actions[0].record


def test_a_new_run_stores_its_intent_before_anything_else(starting):
    launch = only_store(reconcile(starting(), World(), at(1))).attempts[0].launches[0]
    assert (launch.rung, launch.outcome, launch.deadline) == (0, "intended", DEADLINE)


def test_an_intent_is_armed_and_then_created(starting):
    launch = intent()
    assert reconcile(starting(launch), World(), at(2)) == (ArmSweep(at=DEADLINE), Create(launch=launch))


def test_an_armed_intent_is_created_with_the_same_launch(starting):
    launch = intent()
    assert reconcile(starting(launch), World(schedules={SWEEP: DEADLINE}), at(2)) == (Create(launch=launch),)


def test_a_schedule_of_another_deadline_is_moved_first(starting):
    world = World(schedules={SWEEP: DEADLINE - timedelta(minutes=1)})
    assert reconcile(starting(intent()), world, at(2))[0] == ArmSweep(at=DEADLINE)


def test_each_rung_has_a_token_of_its_own(starting):
    refused = intent(outcome="refused", error_class="capacity")
    first = only_store(reconcile(starting(), World(), at(1))).attempts[0].launches[0]
    second = only_store(reconcile(starting(refused), World(), at(2))).attempts[0].launches[1]
    assert second.rung == 1
    assert first.token != second.token


@pytest.mark.parametrize(
    ("error_class", "code", "goes_on"),
    [
        ("capacity", 101, True),
        ("type", 103, True),
        ("quota", 102, False),
        ("permission", 103, False),
        ("config", 103, False),
        ("unknown", 103, False),
        ("idempotency", 103, False),
    ],
)
def test_only_refusals_of_capacity_and_type_lead_to_the_next_rung(starting, error_class, code, goes_on):
    error = {"code": code, "what": "refused", "why": "", "do": ""}
    first = intent(0, outcome="refused", error_class=error_class, error=error)
    stored = only_store(reconcile(starting(first), World(), at(2)))
    if goes_on:
        assert stored.attempts[0].launches[1].rung == 1
        second = intent(1, outcome="refused", error_class=error_class, error=error)
        stored = only_store(reconcile(starting(first, second), World(), at(3)))
    assert (stored.state, stored.outcome, stored.error["code"]) == ("ending", "failed", code)


def test_an_instance_found_by_tag_answers_an_open_intent(starting):
    record = starting(intent())
    world = World(instances=(instance("pending"),))
    record = settle(record, world, at(3))
    assert (record.state, record.attempts[0].launches[0].outcome) == ("running", "created")
    assert record.attempts[0].launches[0].instance_ids == ("i-1",)


def test_the_second_schedule_is_armed_as_soon_as_the_ids_are_known(running):
    record = running(launch=created(kill_armed_at=None))
    kill, store = reconcile(record, World(instances=(instance(),)), at(30))
    assert kill == ArmKill(attempt=1, instance_ids=("i-1",), at=DEADLINE)
    assert store.record.attempts[0].launches[0].kill_armed_at == at(30)


def test_a_working_node_is_left_alone(running):
    world = World(instances=(instance(),), heartbeat=heartbeat(95))
    assert [type(action) for action in reconcile(running(), world, at(100))] == [Wait]


def test_a_stop_is_passed_on_to_a_node_that_speaks(running):
    record = running(stop_requested_at=at(99))
    world = World(instances=(instance(),), heartbeat=heartbeat(95))
    assert reconcile(record, world, at(100)) == (WriteStop(attempt=1, requested_at=at(99)),)
    assert [type(action) for action in reconcile(record, replace(world, stop_written=True), at(110))] == [Wait]


def test_a_stop_ends_a_node_that_never_spoke_at_once(running):
    record = running(stop_requested_at=at(50), state="running")
    record = settle(record, World(instances=(instance(),)), at(51))
    assert (record.state, record.outcome) == ("ending", "stopped")
    assert reconcile(record, World(instances=(instance(),)), at(51))[0].instance_ids == ("i-1",)


@pytest.mark.parametrize(
    ("now", "world", "outcome", "code"),
    [
        (at(3600), World(instances=(instance(),), heartbeat=heartbeat(3598)), "expired", 104),
        (at(300), World(instances=(instance(),), heartbeat=heartbeat(100)), "failed", 100),
        (at(6) + BOOT_ALLOWANCE, World(instances=(instance(),)), "failed", 100),
        (at(300), World(instances=(instance("shutting-down", reason="Client.InstanceInitiatedShutdown"),)), "failed", 100),
        (at(300), World(instances=(instance("terminated", reason="Client.UserInitiatedShutdown"),)), "interrupted", 105),
        (at(300), World(instances=(instance("terminated", reason="Server.InternalError"),)), "interrupted", 105),
        (
            at(300),
            World(instances=(instance("terminated", market="spot", reason="Server.SpotInstanceTermination"),)),
            "interrupted",
            105,
        ),
        (at(3597), World(instances=(instance("terminated", reason="Client.UserInitiatedShutdown"),)), "expired", 104),
        (at(300), World(instances=(instance(),), result=NodeResult(state="done")), "done", None),
        (at(300), World(instances=(instance(),), result=NodeResult(state="failed", exit_code=100)), "failed", 100),
        (at(300), World(instances=(instance(),), result=NodeResult(state="expired")), "expired", 104),
        (at(300), World(instances=(instance(),), result=NodeResult(state="stopped")), "interrupted", 105),
        (at(300), World(instances=(instance(),), result=NodeResult(state="stopped", phases={"end": DEADLINE})), "expired", 104),
    ],
)
def test_every_way_to_end_has_its_outcome(running, now, world, outcome, code):
    record = settle(running(), world, now)
    assert (record.state, record.outcome) == ("ending", outcome)
    assert (record.error or {}).get("code") == code


def test_a_silent_node_is_judged_by_its_lease_and_not_before(running):
    world = World(instances=(instance(),), heartbeat=heartbeat(100))
    last = at(100) + LEASE + SLACK
    assert isinstance(reconcile(running(), world, last)[0], Wait)
    assert settle(running(), world, last + timedelta(seconds=1)).outcome == "failed"


def test_a_node_that_reported_may_power_itself_off(running):
    record = running(state="ending", outcome="done", ending_at=at(300))
    world = World(instances=(instance(),), result=NodeResult(state="done"))
    assert isinstance(reconcile(record, world, at(320))[0], Wait)
    assert reconcile(record, world, at(400))[0].instance_ids == ("i-1",)


def test_a_run_does_not_close_while_an_instance_is_only_shutting_down(running):
    record = running(state="ending", outcome="expired", ending_at=at(3600))
    world = World(instances=(instance("shutting-down"),), models=())
    assert isinstance(reconcile(settle(record, world, at(3610)), world, at(3610))[-1], Wait)


def test_a_run_closes_once_every_instance_is_proven_gone(running):
    record = running(state="ending", outcome="expired", ending_at=at(3600))
    world = World(instances=(instance("terminated"),), models=(), schedules={SWEEP: DEADLINE, KILL: DEADLINE})
    record = settle(record, world, at(3700))
    *deletes, close = reconcile(record, world, at(3700))
    assert deletes == [DeleteSchedule(name=KILL), DeleteSchedule(name=SWEEP)]
    assert isinstance(close, Close)
    assert (close.record.state, close.record.closed_at) == ("closed", at(3700))


def test_an_instance_that_is_not_found_is_gone_only_an_hour_after_its_deadline(running):
    record = running(state="ending", outcome="expired", ending_at=at(3600))
    world = World(models=())
    assert isinstance(reconcile(record, world, DEADLINE + timedelta(minutes=59))[0], Wait)
    record = settle(record, world, DEADLINE + timedelta(minutes=61))
    assert (record.instances[0].state, record.instances[0].proof) == ("gone", "not found, deadline an hour past")
    assert isinstance(reconcile(record, world, DEADLINE + timedelta(minutes=61))[-1], Close)


def test_an_instance_that_was_announced_and_never_described_keeps_the_run_open(make_record):
    record = make_record(
        state="ending",
        outcome="stopped",
        ending_at=at(9),
        attempts=(Attempt(number=1, launches=(created(),), created_at=at(5)),),
    )
    record = settle(record, World(models=()), at(10))
    assert record.instances[0].instance_id == "i-1"
    assert isinstance(reconcile(record, World(models=()), at(600))[0], Wait)


def test_an_unanswered_launch_keeps_a_stopped_run_open_until_no_call_can_be_under_way(starting):
    record = starting(intent(), state="ending", outcome="stopped", ending_at=at(2))
    assert isinstance(reconcile(record, World(models=()), at(30))[0], Wait)
    stored = only_store(reconcile(record, World(models=()), at(62)))
    assert stored.attempts[0].launches[0].outcome == "refused"


def test_an_instance_that_appears_after_the_run_closed_is_terminated(running):
    record = replace(running(), state="closed", outcome="stopped")
    assert reconcile(record, World(instances=(instance("pending"),)), at(500)) == (
        Terminate(instance_ids=("i-1",), why="the run is closed"),
    )
    assert reconcile(record, World(instances=(instance("terminated"),)), at(500)) == ()


def test_models_that_are_not_what_the_node_reported_make_the_run_failed(running):
    model = {"symbol": "BTC-USD", "family": "lstm", "key": "k", "version_id": "v1", "sha256": "abc"}
    record = running(state="ending", outcome="done", ending_at=at(300))
    world = World(instances=(instance("terminated"),), result=NodeResult(state="done", models=(model,)))
    for models in ((), (ModelSeen(key="k", version_id="v1", sha256="other"),)):
        ended = settle(record, replace(world, models=models), at(400))
        assert (ended.outcome, ended.error["code"]) == ("failed", 103)
    ended = settle(record, replace(world, models=(ModelSeen(key="k", version_id="v1", sha256="abc"),)), at(400))
    assert ended.outcome == "done"


def test_work_that_was_done_at_the_last_moment_counts_as_done(running):
    record = running(state="ending", outcome="expired", ending_at=DEADLINE)
    world = World(instances=(instance("terminated"),), result=NodeResult(state="done"), models=())
    assert settle(record, world, DEADLINE + timedelta(seconds=30)).outcome == "done"


def test_whoever_may_not_start_waits_and_then_calls_a_dead_launcher_dead(starting):
    world = World(may_start=False)
    assert [type(action) for action in reconcile(starting(), world, at(60))] == [Wait]
    assert [type(action) for action in reconcile(starting(intent()), world, at(60))] == [Wait]
    assert only_store(reconcile(starting(intent()), world, at(122))).outcome == "interrupted"


def test_the_attempts_deadline_is_the_runs_or_what_the_budget_buys(make_record):
    record = make_record()
    assert attempt_deadline(record, record.ladder[0], at(0)) == DEADLINE
    assert attempt_deadline(replace(record, budget_usd=1.0), record.ladder[0], at(0)) == NOON + timedelta(minutes=12)


def test_no_time_left_ends_the_run_before_anything_is_launched(starting):
    stored = only_store(reconcile(starting(budget_usd=0.001), World(), at(1)))
    assert (stored.state, stored.outcome, stored.error["code"]) == ("ending", "expired", 104)
    assert only_store(reconcile(starting(), World(), DEADLINE)).outcome == "expired"


def test_what_became_of_an_intent_is_found_by_its_token(starting):
    record = starting(intent(0, outcome="refused"), intent(1))
    record = with_launch(record, intent(1, outcome="created", instance_ids=("i-9",)), at(5))
    assert [launch.outcome for launch in record.attempts[0].launches] == ["refused", "created"]
    assert record.state == "running"
