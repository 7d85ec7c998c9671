"""Deliberate bugs: functions of the product replaced by wrong ones, each of which the simulator has to find.

A mutation names the schedules that look for it, most likely ones first; `finds` plays them until an invariant fails.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from itertools import islice
from typing import Any
from unittest.mock import patch

from tests.chaos.campaign import (
    SITUATIONS,
    check,
    every_crash,
    every_layer,
    every_pair,
    every_stall,
    layers_off,
    seeded,
)
from tests.chaos.schedule import LAYERS, NodeLife, Outage, Schedule
from trainer.control import carry as carry_module
from trainer.control import drive as drive_module
from trainer.control import fleet as fleet_module
from trainer.control import observe as observe_module
from trainer.control.cloud import AwsCloud
from trainer.control.fleet import FleetAnswer
from trainer.control.functions import control as control_module
from trainer.control.functions import sweep as sweep_module
from trainer.runs import index as index_module
from trainer.runs import launching, observation, outcome, receipt, reconcile, recovery, spending
from trainer.runs import record as record_module
from trainer.runs.actions import ArmSweep, DeleteSchedule, Store, sweep_schedule
from trainer.runs.store import S3Objects

Patches = Callable[[], Iterable[tuple[Any, str, Any]]]
MOST_SCHEDULES = 1_500  # within which each has to be found


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
    """Yield the schedules in which every mutation is looked for: no schedule is made for one of them."""
    yield from SITUATIONS.values()
    sources = every_crash(), every_layer(), every_stall(), every_pair(), _others()
    while True:
        for source in sources:
            for _, schedule in islice(source, 10):
                yield schedule


def _others() -> Iterator[tuple[str, Schedule]]:
    seeds = range(100_000)
    for seed in seeds:
        yield from seeded([seed])
        yield from layers_off([seed])


# the bugs
# ------------------------------------------------------------------------------------------------------------


def no_token() -> Iterable[tuple[Any, str, Any]]:
    right = fleet_module.create_fleet_request

    def request(*arguments: Any) -> dict[str, Any]:
        return {**right(*arguments), "ClientToken": secrets.token_hex(8)}

    yield drive_module, "create_fleet_request", request


def token_without_the_try() -> Iterable[tuple[Any, str, Any]]:
    def token(run_id: str, attempt: int, rung: int, launches_before: int) -> str:
        return record_module.client_token(run_id, attempt, rung, 0)

    yield launching, "client_token", token


def untagged_launch() -> Iterable[tuple[Any, str, Any]]:
    right = fleet_module.create_fleet_request

    def request(*arguments: Any) -> dict[str, Any]:
        return {**right(*arguments), "TagSpecifications": []}

    yield drive_module, "create_fleet_request", request


def next_rung_after_an_unclear_answer() -> Iterable[tuple[Any, str, Any]]:
    right = AwsCloud.create_fleet

    def create_fleet(self: AwsCloud, *, request: Any) -> FleetAnswer:
        answer = right(self, request=request)
        if answer.kind == "unclear":
            return FleetAnswer(kind="refused", code="InsufficientInstanceCapacity", message="")
        return answer

    yield AwsCloud, "create_fleet", create_fleet


def schedules_deleted_as_the_run_ends() -> Iterable[tuple[Any, str, Any]]:
    right = reconcile._finish

    def finish(record: Any, observed: Any, now: Any) -> Any:
        return (DeleteSchedule(name=sweep_schedule(record.run_id)), *right(record, observed, now))

    yield reconcile, "_finish", finish


def schedule_of_an_unanswered_launch_deleted() -> Iterable[tuple[Any, str, Any]]:
    yield reconcile, "_kept", lambda record: ()


def shutting_down_taken_for_terminated() -> Iterable[tuple[Any, str, Any]]:
    right = observation._update

    def update(seen: Any, instance: Any, now: Any) -> Any:
        updated = right(seen, instance, now)
        return (
            replace(updated, proof=observation.DESCRIBED) if instance.state in observation.ENDED else updated
        )

    yield observation, "_update", update


def not_described_taken_for_gone() -> Iterable[tuple[Any, str, Any]]:
    def missing(seen: Any, record: Any, observed: Any, now: Any) -> Any:
        if seen.proof or observed.alive:
            return seen
        return replace(seen, state="gone", terminated_at=now, proof=observation.MISSING)

    yield observation, "_missing", missing


def record_swapped_without_a_condition() -> Iterable[tuple[Any, str, Any]]:
    right = S3Objects.put

    def put(self: S3Objects, *, key: str, body: bytes, if_match: str = "", create: bool = False) -> str:
        return right(
            self, key=key, body=body, create=create, if_match="" if key.endswith("run.json") else if_match
        )

    yield S3Objects, "put", put


def receipt_written_over() -> Iterable[tuple[Any, str, Any]]:
    right = S3Objects.put

    def put(self: S3Objects, *, key: str, body: bytes, if_match: str = "", create: bool = False) -> str:
        return right(self, key=key, body=body, if_match=if_match, create=create and "receipt" not in key)

    yield S3Objects, "put", put


def closed_before_the_receipt() -> Iterable[tuple[Any, str, Any]]:
    right = drive_module._close

    def close(cloud: Any, record: Any, etag: str, observed: Any) -> None:
        etag = drive_module.swap_record(cloud.objects, record, etag)
        right(cloud, record, etag, observed)

    yield drive_module, "_close", close


def deadline_not_armed() -> Iterable[tuple[Any, str, Any]]:
    right = launching._call

    def call(*arguments: Any) -> Any:
        return tuple(action for action in right(*arguments) if not isinstance(action, ArmSweep))

    yield launching, "_call", call


def called_before_it_is_stored() -> Iterable[tuple[Any, str, Any]]:
    right = launching._call

    def call(*arguments: Any) -> Any:
        actions = right(*arguments)
        return tuple(sorted(actions, key=lambda action: isinstance(action, Store)))

    yield launching, "_call", call


def deadline_tag_an_hour_late() -> Iterable[tuple[Any, str, Any]]:
    right = fleet_module.instance_tags

    def tags(record: Any, launch: Any) -> dict[str, str]:
        return right(record, replace(launch, deadline=launch.deadline + timedelta(hours=1)))

    yield fleet_module, "instance_tags", tags


def sweeper_blind_to_deadlines() -> Iterable[tuple[Any, str, Any]]:
    yield sweep_module, "overdue", lambda tags, launched_at, now: ""


def sweeper_only_says_so() -> Iterable[tuple[Any, str, Any]]:
    """It only says that it ended them."""

    def terminate(self: Any, instance_id: str, why: str) -> None:
        self.summary.terminated[instance_id] = why

    yield sweep_module.Sweep, "_terminate", terminate


def late_instance_not_waited_for() -> Iterable[tuple[Any, str, Any]]:
    yield reconcile, "may_still_appear", lambda launch, now: False
    yield launching, "may_still_appear", lambda launch, now: False


def instance_of_an_unanswered_call_not_adopted() -> Iterable[tuple[Any, str, Any]]:
    yield reconcile, "_answered_by_tag", lambda record, observed, now: None


def index_left_before_the_record_is_closed() -> Iterable[tuple[Any, str, Any]]:
    right = drive_module._close

    def close(cloud: Any, record: Any, etag: str, observed: Any) -> None:
        index_module.take_out(cloud.objects, closed=[record.run_id])
        right(cloud, record, etag, observed)

    yield drive_module, "_close", close


def ends_that_control_did_not_see_untold() -> Iterable[tuple[Any, str, Any]]:
    """Only what a call of control closed itself is told."""
    right = index_module.RunIndex.without

    def without(self: Any, closed: Iterable[str], unborn: Iterable[str] = ()) -> Any:
        return replace(right(self, closed, unborn), untold=self.untold)

    yield (
        drive_module,
        "take_out",
        lambda objects, closed: index_module._change(objects, lambda index: without(index, closed)),
    )


def message_noted_before_it_is_sent() -> Iterable[tuple[Any, str, Any]]:
    right = control_module.claim_messages

    def claim(objects: Any, run_ids: Any, now: Any) -> tuple[str, ...]:
        mine = right(objects, run_ids, now)
        index_module.note_told(objects, mine)
        return mine

    yield control_module, "claim_messages", claim


def record_written_before_the_index() -> Iterable[tuple[Any, str, Any]]:
    from tests.chaos import actors

    def begin(objects: Any, record: Any) -> None:
        index_module.create_record(objects, record)
        index_module._change(objects, lambda index: index.with_open(record.run_id, record.created_at))

    yield actors, "begin_run", begin


def budget_forgotten() -> Iterable[tuple[Any, str, Any]]:
    right = launching.attempt_deadline

    def deadline(record: Any, rung: Any, now: Any) -> Any:
        return right(replace(record, budget_usd=0.0), rung, now)

    yield launching, "attempt_deadline", deadline


def spot_price_in_the_budget() -> Iterable[tuple[Any, str, Any]]:
    right = launching.attempt_deadline

    def deadline(record: Any, rung: Any, now: Any) -> Any:
        return right(record, replace(rung, on_demand_usd_per_hour=rung.price_usd_per_hour / 2), now)

    yield launching, "attempt_deadline", deadline


def missing_pieces_not_named() -> Iterable[tuple[Any, str, Any]]:
    yield receipt, "_failed", lambda record, observed, models, state: []


def reported_models_believed() -> Iterable[tuple[Any, str, Any]]:
    yield outcome, "_models_spoiled", lambda result, observed: None


def models_of_the_dead_forgotten() -> Iterable[tuple[Any, str, Any]]:
    yield observe_module, "models_seen", lambda objects, record, result: ()


def bill_from_the_first_beat() -> Iterable[tuple[Any, str, Any]]:
    right = spending.billed_seconds

    def billed(seen: Any, observed: Any, now: Any) -> tuple[float, float]:
        least, _ = right(seen, observed, now)
        return least, least

    yield spending, "billed_seconds", billed
    yield receipt, "billed_seconds", billed


def bill_from_the_launch() -> Iterable[tuple[Any, str, Any]]:
    right = spending.billed_seconds

    def billed(seen: Any, observed: Any, now: Any) -> tuple[float, float]:
        _, most = right(seen, observed, now)
        return most, most

    yield spending, "billed_seconds", billed
    yield receipt, "billed_seconds", billed


def expired_exits_with_zero() -> Iterable[tuple[Any, str, Any]]:
    yield (
        receipt,
        "exit_code",
        lambda state, error: 0 if state == "expired" else outcome.exit_code(state, error),
    )


def closed_with_an_open_launch() -> Iterable[tuple[Any, str, Any]]:
    right = reconcile._finish

    def finish(record: Any, observed: Any, now: Any) -> Any:
        launch = record.last_launch
        if launch is not None and launch.outcome == "intended":
            record = record.with_launch(replace(launch, outcome="abandoned"), now)
        return right(record, observed, now)

    yield reconcile, "_finish", finish


def attempts_without_a_most() -> Iterable[tuple[Any, str, Any]]:
    yield recovery, "MOST_LOST", 1_000


def budget_of_each_attempt() -> Iterable[tuple[Any, str, Any]]:
    yield launching, "budget_left", lambda record, now: record.budget_usd


def next_attempt_beside_the_last() -> Iterable[tuple[Any, str, Any]]:
    yield recovery, "all_gone", lambda record, observed: True
    right = recovery.recover

    def recover(record: Any, observed: Any, now: Any) -> Any:
        return right(record, replace(observed, instances=()), now)

    yield reconcile, "recover", recover
    yield reconcile, "_start", launching.next_launch


def finished_models_not_carried() -> Iterable[tuple[Any, str, Any]]:
    yield carry_module, "models_of", lambda record, observed: []


def checkpoints_not_carried() -> Iterable[tuple[Any, str, Any]]:
    yield carry_module, "_checkpoints", lambda *_: ((), ())


def oldest_snapshot_taken() -> Iterable[tuple[Any, str, Any]]:
    right = carry_module.snapshot_numbers
    yield carry_module, "snapshot_numbers", lambda names: right(names)[::-1]


def start_file_written_over() -> Iterable[tuple[Any, str, Any]]:
    right = S3Objects.put

    def put(self: S3Objects, *, key: str, body: bytes, if_match: str = "", create: bool = False) -> str:
        return right(self, key=key, body=body, if_match=if_match, create=create and "start" not in key)

    yield S3Objects, "put", put


def later_attempt_replaces_models() -> Iterable[tuple[Any, str, Any]]:
    right = receipt.models_of

    def models(record: Any, observed: Any) -> Any:
        return right(record, replace(observed, start=None))

    yield receipt, "models_of", models
    yield carry_module, "models_of", models


def strangers_upload_read() -> Iterable[tuple[Any, str, Any]]:
    """Every machine that the record has seen counts, not only the one that its launch names."""

    def working_ids(record: Any) -> tuple[str, ...]:
        return tuple(seen.instance_id for seen in record.instances)

    yield record_module.RunRecord, "working_ids", property(working_ids)


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
        Schedule(events="never", minutes=8.0, kills=frozenset({("desk", 21)})),
    ),
    message_noted_before_it_is_sent: (
        Schedule(driver="control", detached=True, minutes=8.0, kills=frozenset({("control", 21)})),
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
        Schedule(markets=("spot", "spot"), nodes=(NodeLife(fate="taken_unseen", at=80.0),), minutes=60.0),
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
    strangers_upload_read: (
        Schedule(
            fleet={1: "late:400", 2: "unsent"},
            nodes=(NodeLife(fate="forges", boot=15.0), NodeLife(work=900.0)),
            minutes=40.0,
        ),
    ),
}
