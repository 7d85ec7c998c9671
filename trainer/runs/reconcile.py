"""`reconcile(record, world, now) -> actions`: the one pure function that decides everything that happens to a run.

It does no I/O. The attached command, whoever settles a run that nobody watches, and the tests all call it; `control.act`
carries the actions out. Calling it twice, or from two places at once, gives the same outcome: the record changes by
compare-and-swap, a launch has a token of its own, and every other action may be repeated.

The order that makes it safe: intent stored, deadline armed, instance created, second schedule armed; at the end every
instance proven gone, schedules deleted, receipt written, record closed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from trainer.errors import BudgetError
from trainer.runs.observed import all_gone, last_deadline, merge
from trainer.runs.record import Attempt, Launch, Rung, RunRecord, client_token, iso
from trainer.runs.verdict import Verdict, models_spoiled, refused, verdict
from trainer.runs.world import World

POWER_OFF_GRACE = timedelta(seconds=45)  # for a node that reported to power itself off, before it is terminated
CALL_LIMIT = timedelta(seconds=60)  # a CreateFleet call lasts no longer: connect 10 s, read 30 s, no retry inside
SHORTEST_ATTEMPT = timedelta(seconds=5)
NEXT_RUNG = ("capacity", "type")  # refusals that another rung may not meet; every other one ends the run


@dataclass(frozen=True, kw_only=True)
class Store:
    """Replace the record that was decided on, by compare-and-swap."""

    record: RunRecord
    why: str


@dataclass(frozen=True, kw_only=True)
class ArmSweep:
    """Create, or move, the one-time schedule whose target is the sweeper: before the instance, keyed by run id."""

    at: datetime


@dataclass(frozen=True, kw_only=True)
class ArmKill:
    """Create the one-time schedule whose target is ec2:terminateInstances itself, once the ids are known."""

    attempt: int
    instance_ids: tuple[str, ...]
    at: datetime


@dataclass(frozen=True, kw_only=True)
class Create:
    """Call CreateFleet for a stored intent; the same token however often it is called."""

    launch: Launch


@dataclass(frozen=True, kw_only=True)
class WriteStop:
    """Tell the node to end: it looks for this object with each heartbeat."""

    attempt: int
    requested_at: datetime


@dataclass(frozen=True, kw_only=True)
class Terminate:
    """Terminate instances; each on its own, one that is not found any more is a success."""

    instance_ids: tuple[str, ...]
    why: str


@dataclass(frozen=True, kw_only=True)
class DeleteSchedule:
    """Delete a one-time schedule of a run whose instances are gone."""

    name: str


@dataclass(frozen=True, kw_only=True)
class Close:
    """Write the receipt, once, and then the closed record."""

    record: RunRecord


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Do nothing for now."""

    why: str


Action = Store | ArmSweep | ArmKill | Create | WriteStop | Terminate | DeleteSchedule | Close | Wait


def sweep_schedule(run_id: str) -> str:
    """Return the name of the run's one-time schedule towards the sweeper."""
    return f"mayfly-{run_id}-sweep"


def kill_schedule(run_id: str, attempt: int) -> str:
    """Return the name of an attempt's one-time schedule towards ec2:terminateInstances."""
    return f"mayfly-{run_id}-kill-{attempt}"


def reconcile(record: RunRecord, world: World, now: datetime) -> tuple[Action, ...]:
    """Return what to do next, in order. After a Store the caller looks again; `(Wait,)` means nothing is due."""
    if record.state == "closed":
        return _terminate(world, "the run is closed") if world.alive else ()
    seen = merge(record, world, now)
    if seen != record.instances:
        return (Store(record=replace(record, instances=seen), why="instances changed"),)
    if found := _found_by_tag(record, world, now):
        return (Store(record=found, why="the instance of an unanswered call was found by its tag"),)
    if record.state == "ending":
        return _finish(record, world, now)
    if ended := verdict(record, world, now):
        return (Store(record=ending(record, ended, now), why=f"the run ends: {ended.outcome}"),)
    if record.state == "starting":
        return _start(record, world, now)
    return _watch(record, world, now)


def ending(record: RunRecord, ended: Verdict, now: datetime) -> RunRecord:
    """Return the record of a run whose end is decided and whose instances are still to be seen to go."""
    return replace(record, state="ending", outcome=ended.outcome, error=ended.error, ending_at=record.ending_at or now)


def with_launch(record: RunRecord, launch: Launch, now: datetime) -> RunRecord:
    """Return the record with the last attempt's launch of the same token replaced: what became of an intent."""
    assert record.attempt is not None
    launches = tuple(launch if known.token == launch.token else known for known in record.attempt.launches)
    attempt = replace(record.attempt, launches=launches)
    state = record.state
    if launch.outcome == "created":
        attempt = replace(attempt, created_at=attempt.created_at or now)
        state = "running" if record.state == "starting" else record.state
    return replace(record, state=state, attempts=(*record.attempts[:-1], attempt))


def attempt_deadline(record: RunRecord, rung: Rung, now: datetime) -> datetime:
    """Return min(run deadline, now + budget left / worst on-demand price of the rung), to the second: tags carry no more."""
    deadline = record.deadline
    if record.budget_usd > 0:  # nothing is spent before the first instance, and there is one attempt
        deadline = min(deadline, now + timedelta(hours=record.budget_usd / rung.on_demand_usd_per_hour))
    return deadline.replace(microsecond=0)


def _start(record: RunRecord, world: World, now: datetime) -> tuple[Action, ...]:
    launches = record.attempt.launches if record.attempt else ()
    launch = launches[-1] if launches else None
    if not world.may_start:
        return (Wait(why="starting; whoever launched it goes on"),)
    if launch is None:
        return (_intend(record, 0, now),)
    if launch.outcome == "intended":
        if world.schedules.get(sweep_schedule(record.run_id)) != launch.deadline:
            return (ArmSweep(at=launch.deadline), Create(launch=launch))
        return (Create(launch=launch),)
    if launch.error_class in NEXT_RUNG and launch.rung + 1 < len(record.ladder):
        return (_intend(record, launch.rung + 1, now),)
    ended = refused(_summed_up(record, launch))
    return (Store(record=ending(record, ended, now), why="no rung is left"),)


def _intend(record: RunRecord, rung_index: int, now: datetime) -> Store:
    """Store an intent on a rung, or the end of a run for which no time is left there."""
    rung = record.ladder[rung_index]
    deadline = attempt_deadline(record, rung, now)
    if deadline < now + SHORTEST_ATTEMPT:
        why = f"the deadline on {rung.instance_type} would be {iso(deadline)}"
        error = BudgetError("no time is left to start an instance", why=why, do="Raise --max-duration or --budget.")
        return Store(record=ending(record, refused(error.as_dict()), now), why="no time is left")
    attempt = record.attempt or Attempt(number=1)
    launch = Launch(
        rung=rung_index,
        token=client_token(record.run_id, attempt.number, rung_index, len(attempt.launches)),
        deadline=deadline,
        intended_at=now,
    )
    attempt = replace(attempt, launches=(*attempt.launches, launch))
    where = f"{rung.instance_type} {rung.market} in {rung.availability_zone}"
    return Store(record=replace(record, attempts=(*record.attempts[:-1], attempt)), why=f"intend {where}")


def _summed_up(record: RunRecord, last: Launch) -> dict[str, object]:
    """Return the error of a ladder that ran out: the last refusal's, naming every rung that was tried."""
    error = dict(last.error or {"code": 103, "what": f"AWS refused the launch ({last.error_code})", "why": "", "do": ""})
    launches = record.attempt.launches if record.attempt else ()
    if len(launches) > 1 and last.error_class in NEXT_RUNG:
        tried = (
            f"{record.ladder[item.rung].instance_type} in {record.ladder[item.rung].availability_zone}" for item in launches
        )
        error["why"] = f"{error.get('why', '')}; tried {', '.join(tried)}"
    return error


def _found_by_tag(record: RunRecord, world: World, now: datetime) -> RunRecord | None:
    """Resolve an unanswered intent whose instance carries the run's tag already."""
    attempt = record.attempt
    if attempt is None or not attempt.launches or attempt.launches[-1].outcome != "intended":
        return None
    ids = tuple(instance.instance_id for instance in world.instances if instance.attempt == attempt.number)
    if not ids:
        return None
    return with_launch(record, replace(attempt.launches[-1], outcome="created", instance_ids=ids), now)


def _watch(record: RunRecord, world: World, now: datetime) -> tuple[Action, ...]:
    """Look after a run whose instance exists: pass a stop request on, arm the second schedule."""
    attempt = record.attempt
    assert attempt is not None and attempt.launches
    launch = attempt.launches[-1]
    if record.stop_requested_at is not None and not world.stop_written:
        return (WriteStop(attempt=attempt.number, requested_at=record.stop_requested_at),)
    if launch.kill_armed_at is None:
        armed = with_launch(record, replace(launch, kill_armed_at=now), now)
        kill = ArmKill(attempt=attempt.number, instance_ids=launch.instance_ids, at=launch.deadline)
        return kill, Store(record=armed, why="second schedule armed")
    return (Wait(why="waiting for the node to stop" if record.stop_requested_at else "the node works"),)


def _finish(record: RunRecord, world: World, now: datetime) -> tuple[Action, ...]:
    """See every instance go, then delete the schedules and close."""
    if world.alive:
        powers_off = world.result is not None and record.ending_at is not None and now < record.ending_at + POWER_OFF_GRACE
        if powers_off and now < last_deadline(record):
            return (Wait(why="the node powers itself off"),)
        return _terminate(world, f"the run ends: {record.outcome}")
    launch = record.attempt.launches[-1] if record.attempt and record.attempt.launches else None
    if launch is not None and launch.outcome == "intended":  # a call may still be under way somewhere
        if now < launch.intended_at + CALL_LIMIT:
            return (Wait(why="an unanswered launch may still bring an instance"),)
        abandoned = with_launch(record, replace(launch, outcome="refused", error_code="Abandoned"), now)
        return (Store(record=abandoned, why="the unanswered launch brought no instance"),)
    if not all_gone(record, world):
        return (Wait(why="waiting to see every instance terminated"),)
    if world.models is None:
        return (Wait(why="looking at the models"),)
    if changed := _corrected(record, world, now):
        return (Store(record=changed, why=f"the run ended {changed.outcome}"),)
    deletes = tuple(DeleteSchedule(name=name) for name in sorted(world.schedules))
    return (*deletes, Close(record=replace(record, state="closed", closed_at=now)))


def _corrected(record: RunRecord, world: World, now: datetime) -> RunRecord | None:
    """Correct an outcome by the node's last word: work that was done counts as done, and models must be what it says."""
    if world.result is None:
        return None
    spoiled = models_spoiled(world.result, world)
    if spoiled is not None:
        return ending(record, spoiled, now) if record.error != spoiled.error else None
    done = Verdict(outcome="done")
    return ending(record, done, now) if world.result.state == "done" and record.outcome != "done" else None


def _terminate(world: World, why: str) -> tuple[Action, ...]:
    return (Terminate(instance_ids=tuple(instance.instance_id for instance in world.alive), why=why),)
