"""Deliberate bugs: functions of the product replaced by wrong ones, each of which the simulator has to find.

A mutation names the schedules that look for it, most likely ones first; `finds` plays them until an invariant fails.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any
from unittest.mock import patch

from tests.chaos.bugs import (
    attempt_budget_reset,
    attempts_without_a_most,
    bill_from_the_first_beat,
    bill_from_the_launch,
    budget_forgotten,
    budget_of_each_attempt,
    budget_of_one_machine,
    called_before_it_is_stored,
    checkpoints_not_carried,
    closed_before_the_receipt,
    closed_with_an_open_launch,
    deadline_not_armed,
    deadline_tag_an_hour_late,
    ends_that_control_did_not_see_untold,
    expired_exits_with_zero,
    finished_models_not_carried,
    index_left_before_the_record_is_closed,
    instance_of_an_unanswered_call_not_adopted,
    late_instance_not_waited_for,
    later_attempt_replaces_models,
    listed_files_believed,
    manifest_before_its_data,
    manifest_of_other_bytes,
    message_noted_before_it_is_sent,
    missing_pieces_not_named,
    models_of_the_dead_forgotten,
    next_attempt_beside_the_last,
    next_rung_after_an_unclear_answer,
    no_progress_unnoticed,
    no_token,
    not_described_taken_for_gone,
    oldest_snapshot_taken,
    parent_not_carried,
    part_of_a_fleet_taken_for_all,
    partial_fleet_left_alive,
    placement_group_left,
    promoted_without_a_condition,
    receipt_written_over,
    record_swapped_without_a_condition,
    record_written_before_the_index,
    remembered_ids_trusted,
    reported_models_believed,
    schedule_of_an_unanswered_launch_deleted,
    schedules_deleted_as_the_run_ends,
    shutting_down_taken_for_terminated,
    spot_price_in_the_budget,
    start_file_written_over,
    strangers_upload_read,
    sweeper_blind_to_deadlines,
    sweeper_only_says_so,
    token_without_the_try,
    tokens_left,
    untagged_launch,
    waiting_takes_time_from_the_run,
    zombies_upload_read,
)
from tests.chaos.campaign import (
    SEVERAL,
    SITUATIONS,
    check,
    every_crash,
    every_layer,
    every_node_death,
    every_pair,
    every_stall,
    layers_off,
    seeded,
)
from tests.chaos.schedule import LAYERS, NodeLife, Outage, Schedule

Patches = Callable[[], Iterable[tuple[Any, str, Any]]]
MOST_SCHEDULES = 6_000  # within which each has to be found


def finds(bug: Patches, schedules: Iterable[Schedule]) -> tuple[int, Schedule | None, list[str]]:
    """Return after how many schedules a bug was found, by which, and what was violated; (n, None, []) if not."""
    number = 0
    with ExitStack() as stack:
        for target, name, wrong in bug():
            stack.enter_context(patch.object(target, name, wrong))
        for number, schedule in enumerate(schedules, 1):
            if broken := check("mutation", schedule).violations:
                return number, schedule, broken[0][1]
    return number, None, []


def search() -> Iterator[Schedule]:
    """Return the schedules in which every mutation is looked for: no schedule is made for one of them. Each enumeration
    comes in an order of its own, that all of its situations come soon; pairs are too many for that.
    """
    return _in_turns(_enumerated())


@cache
def _enumerated() -> tuple[list[tuple[str, Schedule]], ...]:
    """Return the enumerations, which are made once a process, by the product as it is."""
    mixed = tuple(list(make()) for make in (every_crash, every_node_death, every_layer, every_stall))
    for schedules in mixed:
        random.Random(0).shuffle(schedules)
    return mixed


def _in_turns(mixed: Iterable[list[tuple[str, Schedule]]]) -> Iterator[Schedule]:
    yield from (*SITUATIONS.values(), *SEVERAL.values())
    sources = (*map(iter, mixed), every_pair(), _others())
    while True:
        for source in sources:
            for _, schedule in islice(source, 10):
                yield schedule


def searched(bug: Patches, schedules: Iterator[Schedule]) -> tuple[int, list[str]]:
    """Return after how many schedules a bug was found, and what was violated: nothing is without it."""
    number = 0
    while True:
        more, schedule, broken = finds(bug, schedules)
        number += more
        if schedule is None or not check("without it", schedule).violations:
            return number, broken


def _others() -> Iterator[tuple[str, Schedule]]:
    seeds = range(100_000)
    for seed in seeds:
        yield from seeded([seed])
        yield from layers_off([seed])


_LATE, _LONG = {1: "late:240"}, (NodeLife(work=900.0),)
_UNCLEAR = Schedule(fleet={1: "late:200", 2: "unsent"}, minutes=30.0, nodes=_LONG)
_STOPPED = Schedule(fleet=_LATE, stop_at=3.0, nodes=(NodeLife(work=3000.0),))
_TWO_CLOSERS = tuple(
    Schedule(returns="look", returns_after=20.0, kills=frozenset({("control", n), ("desk", 2)}))
    for n in range(5)
) + tuple(Schedule(kills=frozenset({("control", n)})) for n in range(2, 9))
_COSTLY = Schedule(budget_usd=0.5, nodes=(NodeLife(work=9000.0),))


def _each(schedule: Schedule, **named: Iterable[Any]) -> tuple[Schedule, ...]:
    """Return the schedule with each value of a field."""
    ((name, values),) = named.items()
    return tuple(replace(schedule, **{name: value}) for value in values)


def _abandoned(layer: str) -> tuple[Schedule, ...]:
    """Return runs whose callers are gone, with one layer alone."""
    alone = Schedule(off=frozenset(LAYERS) - {layer}, outages=(Outage("control", 0.0, 3000.0),))
    return _each(alone, kills=[frozenset({("desk", number)}) for number in range(5, 10)])


_LOST = tuple(SITUATIONS[name] for name in ("taken back", "taken back thrice", "silent, then well"))
# Each bug with schedules of which one finds it, so that a test need not search; `make chaos` searches.
BUGS: dict[Patches, tuple[Schedule, ...]] = {
    no_token: (Schedule(fleet=_LATE, nodes=_LONG),),
    token_without_the_try: (Schedule(fleet={1: "refuse:RequestLimitExceeded"}),),
    untagged_launch: (Schedule(),),
    next_rung_after_an_unclear_answer: (_UNCLEAR,),
    schedules_deleted_as_the_run_ends: (SITUATIONS["stays on"],),
    schedule_of_an_unanswered_launch_deleted: (
        replace(SITUATIONS["appears too late"], off=frozenset({"L1", "L2", "L4"})),
    ),
    shutting_down_taken_for_terminated: (Schedule(),),
    not_described_taken_for_gone: (Schedule(fleet=_LATE, nodes=_LONG),),
    record_swapped_without_a_condition: _each(
        Schedule(stop_at=30.0, two_desks=True), stalls=[{("desk", n): 900.0} for n in range(3, 60)]
    ),
    receipt_written_over: (
        Schedule(minutes=12.0, nodes=(NodeLife(fate="dies", work=3000.0),)),
        *_TWO_CLOSERS,
    ),
    closed_before_the_receipt: _TWO_CLOSERS,
    deadline_not_armed: (Schedule(),),
    called_before_it_is_stored: (_STOPPED,),
    deadline_tag_an_hour_late: _abandoned("L2"),
    sweeper_blind_to_deadlines: _abandoned("L3"),
    sweeper_only_says_so: _abandoned("L4"),
    late_instance_not_waited_for: (_UNCLEAR,),
    instance_of_an_unanswered_call_not_adopted: (_UNCLEAR,),
    index_left_before_the_record_is_closed: _TWO_CLOSERS,
    ends_that_control_did_not_see_untold: (
        Schedule(events="never", minutes=8.0, kills=frozenset({("desk", 22)})),
    ),
    message_noted_before_it_is_sent: (
        Schedule(driver="control", detached=True, minutes=8.0, kills=frozenset({("control", 22)})),
    ),
    record_written_before_the_index: (Schedule(kills=frozenset({("desk", 1)})),),
    budget_forgotten: (_COSTLY,),
    spot_price_in_the_budget: (_COSTLY,),
    missing_pieces_not_named: (_STOPPED,),
    reported_models_believed: (Schedule(nodes=(NodeLife(fate="spoils"),)),),
    models_of_the_dead_forgotten: (Schedule(), *_LOST),
    bill_from_the_first_beat: (Schedule(),),
    bill_from_the_launch: (Schedule(),),
    expired_exits_with_zero: (Schedule(minutes=8.0, nodes=(NodeLife(work=9000.0),)),),
    closed_with_an_open_launch: (_STOPPED,),
    attempts_without_a_most: (
        Schedule(markets=("spot", "spot"), nodes=(NodeLife(fate="taken_unseen", at=60.0),), minutes=30.0),
    ),
    budget_of_each_attempt: (
        Schedule(
            markets=("spot", "on_demand"),
            nodes=(NodeLife(fate="taken_unseen", work=9000.0, at=900.0), NodeLife(work=9000.0)),
            minutes=60.0,
            budget_usd=1.5,
        ),
    ),
    next_attempt_beside_the_last: _LOST,
    finished_models_not_carried: _LOST,
    checkpoints_not_carried: _LOST,
    oldest_snapshot_taken: _LOST,
    start_file_written_over: _each(
        Schedule(two_desks=True), stalls=[{("desk", number): 9.0} for number in range(1, 40)]
    ),
    later_attempt_replaces_models: _LOST,
    manifest_before_its_data: (Schedule(),),
    manifest_of_other_bytes: (SITUATIONS["ranks"],),
    attempt_budget_reset: (
        Schedule(markets=("spot", "spot"), nodes=(NodeLife(fate="taken_unseen", at=60.0),), minutes=30.0),
    ),
    remembered_ids_trusted: (_UNCLEAR,),
    zombies_upload_read: (SITUATIONS["late words"],),
    promoted_without_a_condition: (Schedule(promotes=True),),
    no_progress_unnoticed: (SITUATIONS["no progress"],),
    waiting_takes_time_from_the_run: (SITUATIONS["waits, then has room"],),
    parent_not_carried: (SITUATIONS["continues"],),
    strangers_upload_read: (SITUATIONS["too late, and works unbidden"],),
    listed_files_believed: (SITUATIONS["spoilt file"],),
    partial_fleet_left_alive: (SEVERAL["two of three"],),
    part_of_a_fleet_taken_for_all: (SEVERAL["two of three"],),
    budget_of_one_machine: (SEVERAL["three, budget"],),
    placement_group_left: (SEVERAL["two of three for one model"],),
    tokens_left: (SEVERAL["three machines"],),
}
