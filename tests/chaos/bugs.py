"""Deliberate bugs: functions of the product, and the wrong ones that replace them."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from trainer.aws.objects import S3Objects
from trainer.control import act as act_module
from trainer.control import carry as carry_module
from trainer.control import drive as drive_module
from trainer.control import fleet as fleet_module
from trainer.control import observe as observe_module
from trainer.control import reported as reported_module
from trainer.control.cloud import AwsCloud
from trainer.control.fleet import FleetAnswer
from trainer.control.functions import control as control_module
from trainer.control.functions import sweep as sweep_module
from trainer.node import snapshots as sender_module
from trainer.runs import attempts as attempts_module
from trainer.runs import index as index_module
from trainer.runs import launching, observation, outcome, receipt, reconcile, recovery, spending
from trainer.runs import record as record_module
from trainer.runs.actions import ArmSweep, DeleteSchedule, Store, sweep_schedule
from trainer.runs.lease import Lease
from trainer.runs.snapshots import SnapshotObject


def no_token() -> Iterable[tuple[Any, str, Any]]:
    right = fleet_module.create_fleet_request

    def request(*arguments: Any) -> dict[str, Any]:
        return {**right(*arguments), "ClientToken": secrets.token_hex(8)}

    yield act_module, "create_fleet_request", request


def token_without_the_try() -> Iterable[tuple[Any, str, Any]]:
    def token(run_id: str, attempt: int, rung: int, launches_before: int) -> str:
        return record_module.client_token(run_id, attempt, rung, 0)

    yield launching, "client_token", token


def untagged_launch() -> Iterable[tuple[Any, str, Any]]:
    right = fleet_module.create_fleet_request

    def request(*arguments: Any) -> dict[str, Any]:
        return {**right(*arguments), "TagSpecifications": []}

    yield act_module, "create_fleet_request", request


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
    right = act_module._close

    def close(cloud: Any, record: Any, etag: str, observed: Any) -> None:
        etag = act_module.swap_record(cloud.objects, record, etag)
        right(cloud, record, etag, observed)

    yield act_module, "_close", close


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
    right = act_module._close

    def close(cloud: Any, record: Any, etag: str, observed: Any) -> None:
        index_module.take_out(cloud.objects, closed=[record.run_id])
        right(cloud, record, etag, observed)

    yield act_module, "_close", close


def ends_that_control_did_not_see_untold() -> Iterable[tuple[Any, str, Any]]:
    """Only what a call of control closed itself is told."""
    right = index_module.RunIndex.without

    def without(self: Any, closed: Iterable[str], unborn: Iterable[str] = ()) -> Any:
        return replace(right(self, closed, unborn), untold=self.untold)

    yield (
        act_module,
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


def listed_files_believed() -> Iterable[tuple[Any, str, Any]]:
    yield outcome, "_files_missing", lambda observed: None
    yield receipt, "_has_its_files", lambda script, observed: True


def models_of_the_dead_forgotten() -> Iterable[tuple[Any, str, Any]]:
    yield observe_module, "models_seen", lambda objects, record, result, nodes: ()


def bill_from_the_first_beat() -> Iterable[tuple[Any, str, Any]]:
    right = spending.billed_seconds

    def billed(record: Any, seen: Any, observed: Any, now: Any) -> tuple[float, float]:
        least, _ = right(record, seen, observed, now)
        return least, least

    yield spending, "billed_seconds", billed
    yield receipt, "billed_seconds", billed


def bill_from_the_launch() -> Iterable[tuple[Any, str, Any]]:
    right = spending.billed_seconds

    def billed(record: Any, seen: Any, observed: Any, now: Any) -> tuple[float, float]:
        _, most = right(record, seen, observed, now)
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
    yield carry_module, "_with_checkpoints", lambda objects, before, earlier, start: start


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
    """The machine that the record saw last counts, whatever its launch names."""

    def working_ids(record: Any) -> tuple[str, ...]:
        return tuple(seen.instance_id for seen in record.instances[-1:])

    yield record_module.RunRecord, "working_ids", property(working_ids)


def manifest_before_its_data() -> Iterable[tuple[Any, str, Any]]:
    """A snapshot's objects are named first, and sent after the manifest that names them."""
    put, send_manifest = sender_module.Snapshots._put, sender_module.Snapshots._send_manifest

    def later(self: Any, body: Any, sha256: str, size: int) -> SnapshotObject:
        self.waiting = [*getattr(self, "waiting", ()), (body, sha256, size)]
        return SnapshotObject(sha256=sha256, size=size, version_id="v-next", slot=900 + len(self.waiting))

    def manifest_first(self: Any, files: Any, at: Any) -> None:
        send_manifest(self, files, at)
        for waiting in self.__dict__.pop("waiting", ()):
            put(self, *waiting)

    yield sender_module.Snapshots, "_put", later
    yield sender_module.Snapshots, "_send_manifest", manifest_first


def manifest_of_other_bytes() -> Iterable[tuple[Any, str, Any]]:
    """Only the first object of each snapshot is sent: the others are taken to be there."""
    right = sender_module.Snapshots._put

    def put(self: Any, body: Any, sha256: str, size: int) -> SnapshotObject:
        if self.counts["objects"] % 3 == 0:
            return right(self, body, sha256, size)
        self.counts["objects"] += 1
        return SnapshotObject(sha256=sha256, size=size, version_id="v1", slot=900 + self.counts["objects"])

    yield sender_module.Snapshots, "_put", put


def attempt_budget_reset() -> Iterable[tuple[Any, str, Any]]:
    """Each attempt counts the machine that was lost last, and no earlier one."""

    def lost(record: Any) -> Any:
        return tuple(attempt for attempt in record.attempts if attempt.ended_at is not None)[-1:]

    yield record_module.RunRecord, "lost", property(lost)


def remembered_ids_trusted() -> Iterable[tuple[Any, str, Any]]:
    """Instances are those that CreateFleet named, whatever carries the run's tag."""
    right = observe_module.observe

    def observe(cloud: Any, record: Any, **more: Any) -> Any:
        seen = right(cloud, record, **more)
        known = {name for item in record.attempts for launch in item.launches for name in launch.instance_ids}
        return replace(seen, instances=tuple(one for one in seen.instances if one.instance_id in known))

    yield drive_module, "observe", observe


def zombies_upload_read() -> Iterable[tuple[Any, str, Any]]:
    """The result of any attempt's machine counts, whenever it was written."""
    right = reported_module._result

    def result(objects: Any, record: Any) -> Any:
        return next(filter(None, (right(objects, keys, record) for keys in record.all_nodes)), None)

    yield reported_module, "node_result", result


def promoted_without_a_condition() -> Iterable[tuple[Any, str, Any]]:
    right = S3Objects.copy

    def copy(self: S3Objects, *, key: str, if_match: str = "", create: bool = False, **more: Any) -> Any:
        if key.startswith("models/production/"):
            if_match, create = "", False
        return right(self, key=key, if_match=if_match, create=create, **more)

    yield S3Objects, "copy", copy


def no_progress_unnoticed() -> Iterable[tuple[Any, str, Any]]:
    yield Lease, "is_stalled", property(lambda lease: False)


def waiting_takes_time_from_the_run() -> Iterable[tuple[Any, str, Any]]:
    yield attempts_module.Queue, "deadline_at", lambda queue, now: queue.deadline


def parent_not_carried() -> Iterable[tuple[Any, str, Any]]:
    yield carry_module, "_continuing", lambda objects, record, start: start


def partial_fleet_left_alive() -> Iterable[tuple[Any, str, Any]]:
    yield reconcile, "_of_partial_fleets", lambda record, now: ()


def part_of_a_fleet_taken_for_all() -> Iterable[tuple[Any, str, Any]]:
    right = AwsCloud.create_fleet

    def create_fleet(self: AwsCloud, *, request: Any) -> FleetAnswer:
        answer = right(self, request=request)
        if answer.kind == "refused" and answer.instance_ids:
            return FleetAnswer(kind="created", instance_ids=answer.instance_ids)
        return answer

    yield AwsCloud, "create_fleet", create_fleet


def budget_of_one_machine() -> Iterable[tuple[Any, str, Any]]:
    right = launching.attempt_deadline

    def deadline(record: Any, rung: Any, now: Any) -> Any:
        return right(replace(record, num_nodes=1), rung, now)

    yield launching, "attempt_deadline", deadline


def placement_group_left() -> Iterable[tuple[Any, str, Any]]:
    yield AwsCloud, "delete_placement_group", lambda self, *, name: None


def tokens_left() -> Iterable[tuple[Any, str, Any]]:
    yield act_module, "delete_tokens", lambda objects, nodes: None
