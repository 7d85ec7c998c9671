"""A small share of `make chaos`: crash points, pairs and seeds, each with every invariant; and layers switched off."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import timedelta
from itertools import islice

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.chaos.actors import play
from tests.chaos.campaign import (
    SEVERAL,
    SITUATIONS,
    all_off,
    check,
    check_all,
    every_code,
    every_crash,
    every_layer,
    every_lock,
    every_node_death,
    every_outage,
    every_pair,
    every_stall,
    layers_off,
    seeded,
    side_effects,
)
from tests.chaos.ending import Ending
from tests.chaos.invariants import overrun, violations
from tests.chaos.machine import Weather
from tests.chaos.mutations import BUGS, finds
from tests.chaos.run import PARENT, RUN, WORKS
from tests.chaos.schedule import FATES, OUT_OF_ORDER, START, NodeLife, Outage, Schedule, from_seed
from tests.nightly import others_nightly
from trainer.base.errors import CapacityError
from trainer.runs.record_json import record_from_json, to_json

pytestmark = pytest.mark.slow


def holds(work):
    table = check_all(work)
    assert not table.violations, table.text()
    return table


def test_every_situation_holds_without_a_death():
    table = holds(("situation", situation) for situation in SITUATIONS.values())
    assert sum(table.schedules.values()) == len(SITUATIONS)


# One of each kind; the others, and every crash point of them, in `make nightly`.
OF_SEVERAL = ("two of three", "three, lost answer", "three, a peer dies", "one model, taken")


def test_runs_of_three_machines_hold_without_a_death():
    holds((name, SEVERAL[name]) for name in OF_SEVERAL)


@pytest.mark.nightly
def test_every_situation_of_three_machines_holds_and_ends():
    holds(("situation", situation) for situation in SEVERAL.values())
    ends = {name: Ending(play(situation)).receipt["state"] for name, situation in SEVERAL.items()}
    odd = {"three, stopped": "stopped", "three, budget": "expired", "three never report": "failed"}
    assert ends == dict.fromkeys(SEVERAL, "done") | odd


def test_two_of_three_are_ended_and_the_next_pool_has_all():
    end = Ending(play(SEVERAL["two of three"]))
    first, second = end.record.attempts[0].launches
    assert (first.error_code, len(first.instance_ids)) == ("InsufficientInstanceCapacity", 2)
    assert second.rung == 1 and end.receipt["state"] == "done" and len(end.receipt["instances"]) == 5


def test_callers_of_three_machines_may_die_anywhere():
    holds(islice(every_crash([SEVERAL["two of three"]]), 0, None, 45))


@pytest.mark.nightly
def test_callers_of_three_machines_may_die_anywhere_at_length():
    holds(islice(every_crash(SEVERAL.values()), 0, None, 7))
    holds(islice(every_layer(SEVERAL.values()), 0, None, 29))
    holds(islice(every_stall(SEVERAL.values()), 0, None, 31))


ENDS = {
    "no progress": "done", "late words": "done", "waits, then has room": "done", "control waits": "done",
    "waits in vain": "failed", "a script": "done", "a prepare run": "done", "a score run": "done",
    "ranks": "done", "continues": "done",
    "continues from checkpoints": "done",
}  # fmt: skip


def test_situations_end_as_they_should():
    for name, state in ENDS.items():
        end = Ending(play(SITUATIONS[name]))
        assert end.receipt is not None and end.receipt["state"] == state, name
    assert end.receipt["parent"] == PARENT


def test_a_run_waits_for_room_until_its_line_ends():
    end = Ending(play(SITUATIONS["waits in vain"]))
    assert end.receipt["exit_code"] == CapacityError.exit_code
    (attempt,) = end.record.attempts
    assert attempt.launches[-1].intended_at >= START + timedelta(seconds=420)
    assert not end.instances


def test_a_machine_may_be_lost_at_any_write():
    table = holds(islice(every_node_death(), 0, None, 7))
    assert sum(table.schedules.values()) > 8


def test_any_object_of_a_node_may_be_unreadable():
    holds(islice(every_lock(), 0, None, 19))


def test_any_error_code_may_answer_a_launch():
    holds(islice(every_code(), 0, None, 43))


def test_anything_may_be_out_of_order_for_a_while():
    holds(islice(every_outage(), 0, None, 41))


def test_a_seed_may_draw_everything():
    drawn = [from_seed(seed) for seed in range(400)]
    lives = [life for one in drawn for life in one.nodes]
    assert {life.fate for life in lives} == set(FATES) and any(life.writes for life in lives)
    assert {outage.what for one in drawn for outage in one.outages} == set(OUT_OF_ORDER)
    assert {one.work for one in drawn} == set(WORKS)
    assert {one.parent for one in drawn} == {"", "all", "checkpoints"}
    assert {one.events for one in drawn} == {"once", "never", "late", "twice"}
    words = {word.partition(":")[0] for one in drawn for word in one.fleet.values()}
    assert words == {"refuse", "raise", "empty", "both", "lost", "unsent", "failed", "late", "part"}
    usual = Schedule()
    for name in (item.name for item in fields(Schedule) if item.name not in ("off", "codes")):
        assert any(getattr(one, name) != getattr(usual, name) for one in drawn), name


def test_a_record_is_read_back_as_it_was_written():
    sim = play(SITUATIONS["taken back"])
    for version in sim.aws.bucket.objects[f"runs/{RUN}/run.json"]:
        record = sim.records.read(version.body)
        assert record_from_json(to_json(record)) == record


def test_a_caller_may_die_at_any_side_effect():
    table = holds(islice(every_crash(), 0, None, 244))
    assert table.crash_points > 12


@pytest.mark.nightly
def test_callers_may_die_at_any_two_side_effects():
    assert holds(islice(every_pair(), 0, 600, 10)).crash_points > 80


def test_seeded_schedules_hold():
    table = holds(seeded(range(60)))
    assert set(table.faults) == {"error", "fleet", "kill", "lost answer", "outage", "stall"}


def test_no_instance_outlives_the_layers_that_are_left():
    holds(layers_off(range(12)))


def test_with_all_layers_off_instances_live_on():
    for _, schedule in all_off(range(len(FATES))):
        sim = play(schedule)
        found = violations(sim, off=frozenset())
        assert any(what.startswith("ends_in_time") for what in found), schedule
        assert overrun(sim) > 600


@pytest.mark.parametrize(
    "bug", others_nightly(BUGS, lambda bug: [*BUGS].index(bug) % 5 == 0), ids=lambda bug: bug.__name__
)
def test_a_deliberate_bug_is_found(bug):
    _, schedule, broken = finds(bug, BUGS[bug])
    assert schedule is not None and broken
    assert not check("without it", schedule).violations


def test_a_desk_that_slept_before_its_call_calls_nothing():
    """Others closed the run, or its deadline passed: no machine may begin for it."""
    holds(("slept", replace(SITUATIONS["deadline"], stalls={("desk", n): 900.0})) for n in range(8, 18))


def test_a_lost_machines_models_stay_without_another_launch():
    """Its caller died after it began the next attempt and before that attempt's start file."""
    killed = {"kills": frozenset({("desk", 18)}), "outages": (Outage("control", 0.0, 3600.0),)}
    lost = replace(SITUATIONS["silent, then well"], off=frozenset({"L1", "L2", "L3"}), **killed)
    holds([("nobody goes on", lost)])


def test_a_machine_that_nobody_saw_may_have_cost_its_whole_time():
    """The answer was lost with its caller, and AWS had forgotten the machine when the next one looked."""
    killed = {"kills": frozenset({("desk", 7)}), "outages": (Outage("control", 0.0, 4200.0),)}
    lost = replace(SITUATIONS["taken back thrice"], off=frozenset({"L1", "L2", "L3"}), **killed)
    holds([("nobody saw it", lost)])


ONCE_BROKEN = {
    "a parent's model that S3 failed to describe": Schedule(parent="all", errors={("desk", 16): "InvalidAMIID.Malformed"}),
    "a parent's file that S3 failed to describe": Schedule(
        parent="all", errors={("desk", 14): "InvalidInstanceID.NotFound"}
    ),
    "a parent's checkpoint that S3 failed to describe": Schedule(
        parent="all", errors={("desk", 21): "InvalidUserData.Malformed"}
    ),
    "a model under a key of its node's own": Schedule(
        markets=("spot", "on_demand"), nodes=(NodeLife(fate="taken_unseen", writes=4, locked=4), NodeLife())
    ),
    "a schedule whose deletion timed out": Schedule(
        nodes=(NodeLife(work=3000.0),), lost=frozenset({("sweeper", 2)}), off=frozenset({"L2", "L3"}),
        poll=53.36335487566097, shutting_down_seconds=240.0,
    ),
    "a schedule that only the sweeper would delete": Schedule(
        seed=197, driver="control", poll=34.230449816576964, two_desks=True, stalls={("desk", 26): 900.0},
        error_rate=0.02, lost_rate=0.05, off=frozenset({"L3", "L4"}), pending_seconds=40.0, shown_after=5.0,
    ),
    "a machine that nobody saw, and that ended after its deadline": replace(
        SITUATIONS["budget, taken back"], kills=frozenset({("desk", 23)}), off=frozenset({"L1", "L2", "L4"}),
        outages=(Outage("control", 0.0, 5400.0),),
    ),
    "late words of a machine that AWS forgot": Schedule(
        nodes=(NodeLife(boot=40.0, work=200.0, fate="zombie"),), kills=frozenset({("desk", 15)}),
        outages=(Outage("control", 0.0, 4200.0),),
    ),
}  # fmt: skip


def test_schedules_that_once_broke_an_invariant_hold():
    holds(ONCE_BROKEN.items())


def test_a_machine_that_appears_too_late_counts_for_nothing():
    """Its desk died before it launched another one: the receipt has no work of it, and its cost."""
    late = SITUATIONS["too late, and works unbidden"]
    end = Ending(play(replace(late, kills=frozenset({("desk", 8)}))))
    assert end.sim.machines["i-00000001"].uploaded and not end.receipt["models"]
    assert end.receipt["state"] != "done" and end.receipt["dollars"]["spent_high"] > 0
    killed = [frozenset({("desk", number)}) for number in (8, 11, 18)]
    holds(work for work in every_layer([late]) if work[0].endswith("L4 alone") and work[1].kills in killed)


@pytest.mark.nightly
def test_no_sequence_of_steps_breaks_an_invariant():
    steps = settings(
        max_examples=25, stateful_step_count=12, deadline=None, database=None, derandomize=True,
        suppress_health_check=list(HealthCheck), print_blob=True,
    )  # fmt: skip
    run_state_machine_as_test(Weather, settings=steps)


def test_a_schedule_is_played_the_same_again():
    first, second = (play(schedule) for _, schedule in (*seeded([7]), *seeded([7])))
    assert first.aws.log == second.aws.log


def test_a_run_has_these_side_effects():
    assert side_effects(Schedule(events="never", minutes=8.0))["desk"] == 23


def test_a_violation_says_how_to_replay_it():
    schedule = Schedule(seed=3, kills=frozenset({("desk", 4)}))
    assert eval(str(schedule)) == schedule
