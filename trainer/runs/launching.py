"""Decide the next step towards an instance: rung, token, number of tries, and when to give up. Pure.

One step at a time, each from the record alone: store an intent, arm its deadline, store the instant of the
call, call, store the answer. An unclear answer repeats the call once under the same token while the run may
start. If that is unclear as well, an instance is looked for by its tag for five minutes, as a run that ends
does (`reconcile` adopts it or ends it); if none appears, the launch is closed as refused with a code of ours.
A refusal has consumed the token, and `trainer.aws.error_codes` names the next step: the next rung, a rung of
another quota, the same rung under a new token, or the end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from trainer.aws.error_codes import NO_CLEAR_ANSWER, QUOTA, ErrorClass, meaning
from trainer.base.errors import BudgetError, TrainerError
from trainer.base.instants import iso
from trainer.runs.actions import (
    Action,
    ArmSweep,
    Carry,
    Create,
    Store,
    Wait,
    sweep_schedule,
)
from trainer.runs.attempts import Launch, Queue, Rung
from trainer.runs.capacity import FULL_FOR
from trainer.runs.deadline import (
    REMEDIES,
    Deadline,
    TimeLimit,
    armed_for,
    deadline_from,
    time_limit,
)
from trainer.runs.ladder import next_rung
from trainer.runs.observation import UNANSWERED, Observation, may_still_appear, unnamed
from trainer.runs.record import RunRecord, client_token
from trainer.runs.spending import budget_left, worked_seconds

SHORTEST_ATTEMPT = timedelta(seconds=5)
FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=4), timedelta(seconds=30)
# Between two walks over a full ladder. Longer than the memory of full pools would waste what it forgot.
FIRST_WAIT, LONGEST_WAIT = timedelta(seconds=30), FULL_FOR
# Calls of an attempt that waits, about: the record keeps each in 800 bytes, is written anew with each, and
# has room for five such attempts. Walks over a long ladder are further apart where the wait is long.
MOST_TRIES = 3_000
_NOTHING = 1e-9  # of a budget or a default that is used up: 0 would mean that there is none
MOST_CALLS = 2  # under one token: the call and, after an unclear answer, its replay
# How long one rung is asked again under new tokens. Roles arrive within a minute (AWS reference 3.3,
# 2026-08). A token without an answer takes five minutes itself, and is followed by one more.
PATIENCE: dict[ErrorClass, timedelta] = {
    "consistency": timedelta(seconds=60),
    "throttling": timedelta(minutes=5),
    "unclear": UNANSWERED + timedelta(minutes=5),
}
# AWS itself is busy or failing: waiting may help, or another rung
BUSY: tuple[ErrorClass, ...] = ("throttling", "unclear")
# Control's policy alone has this condition (infra/launcher.py).
_CONDITION = (
    "Control may launch from the stack's templates alone (IAM's condition ec2:LaunchTemplate), and no account"
    " has shown yet that the launch of a fleet meets it. If this is the cause: pulumi config set"
    " template_condition false, then pulumi up. If it is not:"
)
QUOTA_CONSOLE = "https://console.aws.amazon.com/servicequotas/home/services/ec2/quotas"


def next_launch(record: RunRecord, observed: Observation, now: datetime) -> tuple[Action, ...]:
    """Return the next step of a run that has no instance yet."""
    launch = record.last_launch
    if not observed.may_start:
        return (Wait(why=waiting_words(record) or "starting; its driver continues"),)
    if observed.start_missing:
        return (Carry(attempt=record.next_number),)
    attempt = record.attempt
    if launch is None or attempt is None:
        return (_intend(record, next_rung(record, observed.full) or 0, now),)
    if attempt.waits:
        return (_walk_again(record, observed, now),)
    if launch.outcome == "intended":
        return _call(record, launch, observed, now)
    step = launch.refusal.next_step
    if launch.is_open and step != "stop":
        return (_look(record, launch, observed, now),)
    if step == "new_token":
        return (_same_rung(record, launch, observed, now),)
    if step not in ("next_rung", "other_quota"):
        return (_give_up(record, launch, now),)
    rung = next_rung(record, observed.full)
    return (_after_walk(record, launch, now) if rung is None else _intend(record, rung, now),)


def waiting_words(record: RunRecord) -> str:
    """Return what an attempt waits for, with the last refusal, the next try and the end of the wait; '' if it
    does not wait.
    """
    attempt, launch = record.attempt, record.last_launch
    if attempt is None or attempt.queue is None or launch is None or not attempt.waits:
        return ""
    queue, pool = attempt.queue, pool_name(record.ladder[launch.rung])
    return (
        f"waiting for capacity since {queue.since:%H:%M:%S} UTC: {pool} was refused last"
        f" ({launch.error_code}); try {queue.walks} at {queue.next_at:%H:%M:%S}, the last one at"
        f" {queue.until:%H:%M:%S}"
    )


def attempt_deadline(record: RunRecord, rung: Rung, now: datetime) -> Deadline:
    """Return the deadline of an attempt that begins now on a rung: money and time count over all attempts."""
    worked = worked_seconds(record, now)
    limit = time_limit(
        run=TimeLimit(duration=record.deadline - now, cause=record.deadline_cause),
        budget_usd=max(budget_left(record, now), _NOTHING) if record.budget_usd else 0.0,
        on_demand_usd_per_hour=rung.on_demand_usd_per_hour * record.num_nodes,
        default_seconds=max(rung.default_seconds - worked, _NOTHING) if rung.default_seconds else 0.0,
        estimate_seconds=max(rung.estimate_seconds - worked, _NOTHING) if rung.estimate_seconds else 0.0,
    )
    return deadline_from(now, limit)


def latest_start(record: RunRecord, rung: Rung) -> datetime:
    """Return the last instant at which an attempt on a rung has its P90 left; without an estimate, half of
    the run's time.
    """
    queue = record.attempt.queue if record.attempt else None
    half = ((queue.deadline if queue else record.deadline) - record.created_at) / 2
    return record.deadline - (timedelta(seconds=rung.p90_seconds) if rung.p90_seconds else half)


def pause_after(
    calls: int, token: str, *, first: timedelta = FIRST_PAUSE, longest: timedelta = LONGEST_PAUSE
) -> timedelta:
    """Return the pause after `calls` calls: doubled each time, half to all of it, by a jitter that follows
    from the token.
    """
    longest = min(first * 2 ** min(calls - 1, 10), longest)
    digest = hashlib.sha256(f"{token}/{calls}".encode()).digest()
    return longest * (0.5 + digest[0] / 510)


def pool_name(rung: Rung) -> str:
    """Return a rung's name in errors: `g5.12xlarge on-demand in us-east-1a`."""
    return f"{rung.instance_type} {rung.market.replace('_', '-')} in {rung.availability_zone}"


def refusal(rung: Rung, code: str, message: str, *, num_nodes: int = 1) -> TrainerError:
    """Return the error of a rung that AWS refused, for so many instances."""
    known = meaning(code, message)
    pool = pool_name(rung) if num_nodes == 1 else f"{num_nodes} machines of {pool_name(rung)}"
    why = f"{code}: {message}" if message else code
    if known.error_class == "capacity":
        why = code if num_nodes == 1 else why  # how many it made
        return known.error(f"no capacity for {pool}", why=why, do=known.remedy)
    if known.error_class == "quota":
        need = f" It needs {num_nodes * rung.vcpus} vCPUs of this quota: {QUOTA_CONSOLE}/{rung.quota_code}."
        named = known is QUOTA and rung.quota_code
        return known.error(
            f"the account's quota does not allow {pool}", why=why, do=known.remedy + (need if named else "")
        )
    if known.error_class == "unclear":
        return known.error(f"no clear answer from CreateFleet for {pool}", why=why, do=known.remedy)
    if known.error_class == "permission":
        return known.error(f"not allowed to launch {pool}", why=why, do=known.remedy)
    return known.error(f"AWS refused {pool}", why=why, do=known.remedy)


def _intend(record: RunRecord, rung_index: int, now: datetime) -> Store:
    """Store an intent on a rung, or the end of a run without enough time for it."""
    rung = record.ladder[rung_index]
    deadline = attempt_deadline(record, rung, now)
    if deadline.at < now + SHORTEST_ATTEMPT:
        why = f"the deadline on {rung.instance_type} would be {iso(deadline.at)}"
        error = BudgetError("no time is left to start an instance", why=why, do=REMEDIES[deadline.cause])
        return Store(record=record.ended("expired", error.as_dict(), now), why="no time is left")
    number, launches = record.next_number, len(record.attempt.launches) if record.attempt else 0
    launch = Launch(
        rung=rung_index,
        token=client_token(record.run_id, number, rung_index, launches),
        deadline=deadline.at,
        deadline_cause=deadline.cause,
        intended_at=now,
    )
    where = f"{rung.instance_type} {rung.market} in {rung.availability_zone}"
    return Store(record=record.with_new_launch(launch), why=f"intend {where}")


def _call(record: RunRecord, launch: Launch, observed: Observation, now: datetime) -> tuple[Action, ...]:
    """Call CreateFleet for an intent, or repeat the call once under the same token after a pause; then look
    for its instance.

    The instant is stored before each call, so that an ending run waits as long as an instance may still
    appear. The call is not repeated once the job could not finish any more: it would buy a machine for
    nothing.
    """
    too_late = now >= max(
        launch.intended_at + PATIENCE["throttling"], latest_start(record, record.ladder[launch.rung])
    )
    if launch.calls >= MOST_CALLS or (launch.calls and too_late):
        return (_look(record, launch, observed, now),)
    if launch.called_at is not None and now < launch.called_at + pause_after(launch.calls, launch.token):
        return (Wait(why="CreateFleet gave no clear answer; it is called once more under the same token"),)
    called = replace(launch, called_at=now, calls=launch.calls + 1)
    armed = observed.schedules.get(sweep_schedule(record.run_id)) == armed_for(launch.deadline)
    arm: tuple[Action, ...] = () if armed else (ArmSweep(at=launch.deadline),)
    return (
        *arm,
        Store(record=record.with_launch(called, now), why="CreateFleet is called"),
        Create(launch=called),
    )


def _look(record: RunRecord, launch: Launch, observed: Observation, now: datetime) -> Action:
    """Wait for an instance of an unanswered launch, which `reconcile` adopts; if none appears in time, close
    the launch. Of several nodes all have to appear: fewer are a fleet that is not whole.

    Only then may another token be used: it could make a second instance.
    """
    if may_still_appear(launch, now):
        return Wait(why="CreateFleet gave no clear answer; looking for an instance with the run's tag")
    calls = "1 call" if launch.calls == 1 else f"{launch.calls} calls"
    appeared = tuple(item.instance_id for item in unnamed(record, observed))
    brought = f"{len(appeared)} of {record.num_nodes} instances" if appeared else "no instance"
    message = f"{calls} brought {brought} within {UNANSWERED // timedelta(minutes=1)} minutes"
    closed = replace(
        launch,
        outcome="refused",
        unanswered=False,
        instance_ids=appeared,
        error_code=NO_CLEAR_ANSWER,
        error_message=message,
        given_up_at=now,
    )
    return Store(record=record.with_launch(closed, now), why=f"no clear answer, and {brought}")


def _same_rung(record: RunRecord, launch: Launch, observed: Observation, now: datetime) -> Action:
    """Ask the same rung under a new token after a pause, up to this error's time limit; then the next rung.

    While AWS itself is busy or failing, rungs are asked as long as the job could still finish on them.
    """
    tries, error_class = list(_tries_on_rung(record)), launch.refusal.error_class
    over = tries[-1].intended_at + PATIENCE.get(error_class, timedelta(0))
    following = next_rung(record, observed.full) if error_class in BUSY else None
    if following is not None and over <= now < latest_start(record, record.ladder[following]):
        return _intend(record, following, now)
    if now >= (max(over, latest_start(record, record.ladder[launch.rung])) if error_class in BUSY else over):
        return _give_up(record, launch, now)
    if now < launch.last_call_at + pause_after(len(tries), launch.token):
        return Wait(why=f"AWS answered {launch.error_code}; the same pool is asked again under a new token")
    return _intend(record, launch.rung, now)


def _tries_on_rung(record: RunRecord) -> Iterator[Launch]:
    """Yield the launches on the last rung, newest first, back to the first with a temporary refusal."""
    launches = record.attempt.walk if record.attempt else ()
    for launch in reversed(launches):
        step = launch.refusal.next_step
        if launch.rung != launches[-1].rung or step != "new_token":
            return
        yield launch


def _after_walk(record: RunRecord, last: Launch, now: datetime) -> Store:
    """Store the wait for the next walk after the last rung's refusal, or the end of the run."""
    waiting = _queued(record, last, now)
    if waiting is None:
        return _give_up(record, last, now)
    return Store(record=waiting, why=waiting_words(waiting))


def _queued(record: RunRecord, last: Launch, now: datetime) -> RunRecord | None:
    """Return the record of a run that waits for capacity after a walk; None if it may not wait, or no longer,
    or if waiting helps nothing.

    The run's deadline is moved by the wait, so that the time left for its work stays the same.
    """
    attempt = record.attempt
    assert attempt is not None
    full = any(launch.refusal.error_class == "capacity" for launch in attempt.walk)
    queue = attempt.queue or Queue(
        since=now,
        until=now + timedelta(seconds=record.queue_seconds),
        deadline=record.deadline,
        next_at=now,
        first=0,
        walks=1,
    )
    if not full or now >= queue.until:
        return None
    pause = pause_after(queue.walks, last.token, first=FIRST_WAIT, longest=LONGEST_WAIT)
    least = timedelta(seconds=record.queue_seconds * len(record.ladder) / MOST_TRIES)
    next_at = min(now + max(pause, least), queue.until)
    following = replace(queue, next_at=next_at, first=len(attempt.launches), walks=queue.walks + 1)
    waiting = replace(
        record,
        deadline=queue.deadline_at(next_at),
        attempts=(*record.attempts[:-1], replace(attempt, queue=following)),
    )
    return waiting if next_rung(waiting) is not None else None


def _walk_again(record: RunRecord, observed: Observation, now: datetime) -> Action:
    """Wait for the next walk, or begin it with its first rung."""
    attempt, last, rung = record.attempt, record.last_launch, next_rung(record, observed.full)
    assert attempt is not None and attempt.queue is not None and last is not None
    if now < attempt.queue.next_at:
        return Wait(why=waiting_words(record))
    if rung is None:
        return _give_up(record, last, now)
    return _intend(replace(record, deadline=attempt.queue.deadline_at(now)), rung, now)


def _tried(rung: Rung, code: str, last_code: str) -> str:
    """Return a pool for the error's list of tried pools, with its code if it differs from the last one's."""
    pool = pool_name(rung)
    return pool if code == last_code else f"{pool}: {code}"


def _give_up(record: RunRecord, last: Launch, now: datetime) -> Store:
    """End the run with the last refusal's error, which names every pool that was asked."""
    launches, queue = (record.attempt.launches, record.attempt.queue) if record.attempt else ((), None)
    if queue is not None and last.refusal.next_step in ("next_rung", "other_quota"):  # it waited for capacity
        last = next(one for one in reversed(launches) if one.refusal.error_class == "capacity")
    rung, num_nodes = record.ladder[last.rung], record.num_nodes
    error = refusal(rung, last.error_code, last.error_message, num_nodes=num_nodes).as_dict()
    if queue is not None:
        minutes = (now - queue.since) / timedelta(minutes=1)
        error["why"] = f"{error['why']}, in {queue.walks} tries of the whole ladder within {minutes:.0f} min"
    refused = last.refusal is meaning("UnauthorizedOperation") and "ec2:CreateFleet" not in last.error_message
    if record.driver == "control" and refused:  # of what the fleet asked for: its Errors, in an HTTP 200
        error["do"] = f"{_CONDITION} {error['do']}"
    tried = [_tried(record.ladder[item.rung], item.error_code, last.error_code) for item in launches]
    if len(tried) > 1:
        counted = [
            f"{pool} ({tried.count(pool)} times)" if tried.count(pool) > 1 else pool
            for pool in dict.fromkeys(tried)
        ]
        error["why"] = f"{error['why']}; tried {', '.join(counted)}"
    return Store(record=record.ended("failed", error, now), why="no rung is left")
