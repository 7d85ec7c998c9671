"""`reconcile(record, observed, now) -> actions`: the pure function that decides everything that happens to a
run.

It does no I/O. The attached command, every command that settles a run, and the tests call it; `control.drive`
carries the actions out. Calling it twice, or from two places at once, gives the same outcome: the record
changes by compare-and-swap, a launch has a token of its own, and every other action may be repeated.

The life of a run, in the order of this file: it starts (`launching`: start file written, intent stored,
deadline armed, instance created), it is watched (second schedule armed, stop requests passed on), it loses
its machine and starts again (`recovery`) or ends (`outcome`), and it is finished: every instance proven gone,
schedules deleted (after an unanswered launch one stays until its time), receipt written, record closed. A run
on a machine of the caller's own has a shorter one (`here`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from trainer.runs.actions import (
    Action,
    ArmKill,
    Close,
    DeletePlacementGroup,
    DeleteSchedule,
    Store,
    Terminate,
    Wait,
    WriteIds,
    WriteStop,
    sweep_schedule,
)
from trainer.runs.here import next_of_here
from trainer.runs.launching import next_launch
from trainer.runs.node_ends import ending_of_nodes
from trainer.runs.nodes import addresses_of, tokens_of
from trainer.runs.observation import (
    ANNOUNCED,
    ENDED,
    UNANSWERED,
    DescribedInstance,
    Observation,
    all_gone,
    may_still_appear,
    merge,
    unnamed,
)
from trainer.runs.outcome import correction
from trainer.runs.record import RunRecord
from trainer.runs.recovery import after, powers_itself_off, recover, taken_over, without_a_machine

# For which a run's end waits for AWS to free its placement group, which costs nothing. Instances that are
# terminated may count as its members for a while.
LONGEST_IN_USE = timedelta(minutes=30)


def reconcile(record: RunRecord, observed: Observation, now: datetime) -> tuple[Action, ...]:
    """Return the next actions, in order. `(Wait,)` means that nothing is due."""
    if record.state == "closed":
        return _terminate(observed, "the run is closed") if observed.alive else ()
    if not record.has_instances:
        return next_of_here(record, observed, now)
    instances = merge(record, observed, now)
    if instances != record.instances:
        seen = replace(record, instances=instances)
        return (Store(record=seen, why="instances changed"), *_kill_the_rest(record, seen))
    if answered := _answered_by_tag(record, observed, now):
        return (Store(record=answered, why="the instance of an unanswered call was found by its tag"),)
    if record.state == "ending":
        return _finish(record, observed, now)
    if record.state == "recovering":
        return recover(record, observed, now)
    if ending := ending_of_nodes(record, observed, now):
        return (after(record, observed, ending, now),)
    if record.state == "starting":
        return _start(record, observed, now)
    return _watch(record, observed, now)


def _kill_the_rest(before: RunRecord, record: RunRecord) -> tuple[ArmKill, ...]:
    """Arm the second schedule of several nodes for those that are left, once one has ended: AWS forgets its
    id within an hour, and one id that it does not know fails the schedule's call for all.

    After the record's Store: if it fails, the other layers end the nodes.
    """
    attempt, launch = record.attempt, record.last_launch
    if record.num_nodes == 1 or record.state != "running" or attempt is None or launch is None:
        return ()

    def left(record: RunRecord) -> tuple[str, ...]:
        ended = {seen.instance_id for seen in record.instances if seen.state in (*ENDED, "gone")}
        return tuple(one for one in record.working_ids if one not in ended)

    if launch.kill_armed_at is None or not left(record) or left(record) == left(before):
        return ()
    return (ArmKill(attempt=attempt.number, instance_ids=left(record), at=launch.deadline),)


def _answered_by_tag(record: RunRecord, observed: Observation, now: datetime) -> RunRecord | None:
    """Return the record with an unanswered launch marked as created if its instances, as many as were asked
    for, carry the run's tag, else None.

    If tokens without an answer made more, the first that are alive are adopted; `_watch` ends the others.
    """
    attempt, launch = record.attempt, record.last_launch
    if attempt is None or launch is None or not (launch.outcome == "intended" or launch.is_open):
        return None
    ids = _of_one_fleet(record, unnamed(record, observed))
    if not ids:
        return None
    return record.with_launch(replace(launch, outcome="created", unanswered=False, instance_ids=ids), now)


def _of_one_fleet(record: RunRecord, instances: Iterable[DescribedInstance]) -> tuple[str, ...]:
    """Return the ids of the first instances, as many as the run has nodes, that one fleet made; () without.

    Nodes work together, so instances of two fleets never make one set: they may lie in two zones.
    """
    fleets: dict[str, list[str]] = {}
    for item in instances:
        fleets.setdefault(item.fleet if record.num_nodes > 1 else "", []).append(item.instance_id)
    whole = (ids for ids in fleets.values() if len(ids) >= record.num_nodes)
    return tuple(next(whole, ())[: record.num_nodes])


def _start(record: RunRecord, observed: Observation, now: datetime) -> tuple[Action, ...]:
    """Launch an attempt's instances, never beside one of an earlier attempt, or of a fleet that is not
    whole.
    """
    number = record.next_number
    late = tuple(item.instance_id for item in observed.alive if item.attempt < number)
    if late:
        return (Terminate(instance_ids=late, why=f"attempt {number} does the run's work"),)
    if partial := _of_partial_fleets(record, now):
        return (Terminate(instance_ids=partial, why="the fleet is not whole"),)
    if taken := taken_over(record, observed, now):
        return (taken,)
    if ending := without_a_machine(record, observed):
        return (ending.stored(record, now),)
    return next_launch(record, observed, now)


def _of_partial_fleets(record: RunRecord, now: datetime) -> tuple[str, ...]:
    """Return the instances of fleets that are not whole, until each is seen to end. AWS may show one late: so
    long, five minutes at most, it is ended again by its id.
    """
    states = {seen.instance_id: seen.state for seen in record.instances}
    launches = [launch for launch in record.attempt.launches if launch.is_partial] if record.attempt else []
    return tuple(
        instance_id
        for launch in launches
        for instance_id in launch.instance_ids
        if states.get(instance_id) not in (*ENDED, "gone")
        and (states.get(instance_id) != ANNOUNCED or now < launch.last_call_at + UNANSWERED)
    )


def _watch(record: RunRecord, observed: Observation, now: datetime) -> tuple[Action, ...]:
    """Watch a run that has its instance: pass a stop request on, arm the second schedule, end any other
    instance.
    """
    attempt, launch = record.attempt, record.last_launch
    assert attempt is not None and launch is not None
    if record.stop_requested_at is not None and not observed.stop_written:
        return (WriteStop(attempt=attempt.number, requested_at=record.stop_requested_at),)
    if launch.kill_armed_at is None:
        armed = record.with_launch(replace(launch, kill_armed_at=now), now)
        kill = ArmKill(attempt=attempt.number, instance_ids=launch.instance_ids, at=launch.deadline)
        addresses = addresses_of(launch, observed)
        if addresses is None:
            return kill, Wait(why="waiting to see the private addresses of its nodes")
        ids = WriteIds(attempt=attempt.number, instance_ids=launch.instance_ids, addresses=addresses)
        return kill, ids, Store(record=armed, why="second schedule armed, and its ids written")
    others = tuple(item.instance_id for item in observed.alive if item.instance_id not in launch.instance_ids)
    if others:  # of a token that was given up without an answer
        return (Terminate(instance_ids=others, why="another instance does the run's work"),)
    return (Wait(why="waiting for the node to stop" if record.stop_requested_at else ""),)


def _finish(record: RunRecord, observed: Observation, now: datetime) -> tuple[Action, ...]:
    """See every instance go, then delete the schedules and close."""
    if observed.alive:
        if powers_itself_off(record, observed, record.ending_at, now):
            return (Wait(why="the node powers itself off"),)
        return _terminate(observed, f"the run ends: {record.outcome}")
    launch = record.last_launch
    if launch is not None and (launch.outcome == "intended" or launch.is_open):
        if may_still_appear(launch, now):
            return (Wait(why="an unanswered launch may still bring an instance"),)
        abandoned = record.with_launch(
            replace(launch, outcome="abandoned", unanswered=False, given_up_at=now), now
        )
        return (Store(record=abandoned, why="the unanswered launch brought no instance"),)
    if not all_gone(record, observed):
        return (Wait(why="waiting to see every instance terminated"),)
    if observed.models is None:
        return (Wait(why="looking at the models"),)
    if ending := correction(record, observed):
        return (ending.stored(record, now),)
    deletes: tuple[Action, ...] = tuple(
        DeleteSchedule(name=name) for name in sorted(observed.schedules) if name not in _kept(record)
    )
    group, tokens = record.placement_group, tokens_of(record.all_nodes)
    in_time = now < (record.ending_at or now) + LONGEST_IN_USE
    groups = (DeletePlacementGroup(name=group, waits=in_time),) if group else ()
    return (*deletes, *tokens, *groups, Close(record=replace(record, state="closed", closed_at=now)))


def _kept(record: RunRecord) -> tuple[str, ...]:
    """Return the schedules that outlive the run: after an unanswered launch, the one that would end a late
    instance.
    """
    unanswered = any(launch.had_no_answer for attempt in record.attempts for launch in attempt.launches)
    return (sweep_schedule(record.run_id),) if unanswered else ()


def _terminate(observed: Observation, why: str) -> tuple[Action, ...]:
    return (Terminate(instance_ids=tuple(instance.instance_id for instance in observed.alive), why=why),)
