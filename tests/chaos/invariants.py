"""What holds after every schedule, each promise as a function that returns its violations: of machines, money, the run
and its receipt here, of its work in kept.py.

Truth is the world's: when instances ran, which tokens made them, what lies in S3. Claims are the product's: record,
receipt, exit code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise

from tests.chaos.actors import Simulation
from tests.chaos.ending import SLACK, Ending
from tests.chaos.kept import KEPT
from tests.chaos.run import PRICES, RUN
from tests.chaos.schedule import SWEEP_SECONDS
from trainer.base.instants import from_iso
from trainer.runs.observation import FORGOTTEN_AFTER, UNANSWERED
from trainer.runs.outcome import exit_code
from trainer.runs.recovery import MOST_LOST
from trainer.runs.start_file import read_start
from trainer.runs.store import start_key
from trainer.runs.stored_receipt import receipt_from_json

Invariant = Callable[[Ending], Iterator[str]]


def ends_in_time(end: Ending) -> Iterator[str]:
    """No instance lives longer than one interval of a working layer after its deadline."""
    for instance in end.instances:
        bound, (_, ended) = end.bounds[instance.id], end.lived(instance)
        if bound is not None and ended > bound:
            yield f"{instance.id} lived until {end_text(end, ended)}, and a layer had it by {end_text(end, bound)}"
        if instance.shutting_down_at is None:
            yield f"{instance.id} is still alive"


def fleets_are_whole(end: Ending) -> Iterator[str]:
    """A launch that counts as answered names as many instances as an attempt has."""
    for attempt in end.record.attempts if end.record else ():
        for launch in attempt.launches:
            if launch.outcome == "created" and len(launch.instance_ids) != end.sim.schedule.cluster:
                yield f"attempt {attempt.number} works with {launch.instance_ids}"


def partial_fleets_are_ended_first(end: Ending) -> Iterator[str]:
    """No other instance of a run begins while one of a fleet that is not whole is alive, unless AWS hid it."""
    for attempt in end.record.attempts if end.record else ():
        names = [name for launch in attempt.launches if launch.is_partial for name in launch.instance_ids]
        for one in (end.aws.everything[name] for name in names if name in end.aws.everything):
            began, ended = end.lived(one)
            hidden = end.aws.hidden[one.id] > began + UNANSWERED
            after = [other for other in end.instances if began < end.lived(other)[0] < ended]
            if after and not hidden:
                yield f"{after[0].id} began while {one.id} of a partial fleet was alive"


def nothing_of_nodes_is_left(end: Ending) -> Iterator[str]:
    """A closed run leaves no token, and no placement group."""
    if end.record is None or end.record.state != "closed":
        return
    if tokens := [key for key in end.bucket.objects if key.startswith("tokens/")]:
        yield f"tokens are left: {tokens}"
    if end.aws.world.groups:
        yield f"placement groups are left: {end.aws.world.groups}"


def deadlines_are_armed(end: Ending) -> Iterator[str]:
    """No instance begins before its one-time schedule is armed, or loses it while it is alive."""
    for what in end.sim.unarmed:
        if end.record is None or not _unseen(end):
            yield what


def _unseen(end: Ending) -> list[str]:
    """Return the instances that appeared later than anybody looks for one, and that nobody saw until AWS forgot them
    or the receipt was written: that AWS made them is not to be known.
    """
    return [
        one.id
        for one in end.instances
        if end.aws.hidden[one.id] > end.lived(one)[0] + UNANSWERED
        and not (one.id in end.aws.shown and end.aws.shown[one.id] <= end.written_at)
    ]


def _forgotten(end: Ending) -> dict[str, float]:
    """Return what the receipt allows for calls whose instance AWS can have forgotten before anybody looked, in
    dollars, by the instance's id or the token of a call that made none.
    """
    found: dict[str, float] = {}
    for launch in (
        one for attempt in (end.record.attempts if end.record else ()) for one in attempt.launches
    ):
        if not (
            end.record and launch.given_up_at and launch.given_up_at > launch.last_call_at + FORGOTTEN_AFTER
        ):
            continue
        hours = (launch.given_up_at - launch.last_call_at) / timedelta(hours=1)
        usd = hours * end.record.ladder[launch.rung].price_usd_per_hour * end.sim.schedule.cluster
        names = end.aws.tokens.get(launch.token) or (launch.token,)
        found |= dict.fromkeys(names, usd / len(names))
    return found


def one_at_a_time(end: Ending) -> Iterator[str]:
    """No more instances of a run are alive than an attempt has."""
    late = [
        name
        for name, at in end.aws.hidden.items()
        if at > end.lived(end.aws.everything[name])[0] + UNANSWERED
    ]
    if end.sim.most_alive > end.sim.schedule.cluster and not late:
        yield f"{end.sim.most_alive} instances were alive at once"


def one_for_each_intent(end: Ending) -> Iterator[str]:
    """A stored intent makes no more instances than it asks for: as many as its launches may have made."""
    if end.record is None:
        return
    launches = [launch for attempt in end.record.attempts for launch in attempt.launches]
    whole = sum(launch.outcome == "created" or launch.had_no_answer or launch.is_open for launch in launches)
    partial = sum(
        len(launch.instance_ids) for launch in launches if launch.is_partial and not launch.had_no_answer
    )
    may = whole * end.sim.schedule.cluster + partial
    if len(end.instances) > may:
        yield f"{len(end.instances)} instances, and launches that may have made {may}"


def no_instance_is_given_up(end: Ending) -> Iterator[str]:
    """A call without a clear answer whose instance appears within five minutes is not closed as one without any."""
    weather = end.sim.schedule
    if end.record is None or any((weather.outages, weather.errors, weather.kills, weather.stalls, weather.delays,
                                  weather.error_rate, weather.lost, weather.lost_rate)):  # fmt: skip
        return
    for attempt in end.record.attempts:
        for launch in attempt.launches:
            name = next(iter(end.aws.tokens.get(launch.token, ())), "")
            if (
                name
                and launch.had_no_answer
                and end.aws.hidden[name] < launch.last_call_at + UNANSWERED - SLACK * 4
            ):
                yield f"{name} was given up, although it appeared"


def start_files_stay(end: Ending) -> Iterator[str]:
    """A start file says the same for ever, and gains the ids of its instances."""
    for attempt in range(1, 8):
        versions = end.bucket.objects.get(start_key(RUN, attempt), [])
        read = [read_start(one.body, run_id=RUN, attempt=attempt) for one in versions]
        for before, now in pairwise(read):
            same = replace(before, instances=(), addresses=()) == replace(now, instances=(), addresses=())
            if not same or set(before.instances) - set(now.instances):
                yield f"the start file of attempt {attempt} was changed from {before} to {now}"


def waiting_takes_nothing(end: Ending) -> Iterator[str]:
    """A walk over the ladder begins with the time that the run had when its wait began."""
    for attempt in end.record.attempts if end.record else ():
        launch, queue = next(iter(attempt.walk), None), attempt.queue
        if launch is None or queue is None or launch.deadline_cause != "max_duration":
            continue
        due = queue.deadline + (min(launch.intended_at, queue.until) - queue.since)
        if launch.deadline < due - SLACK:
            yield f"attempt {attempt.number} waited, and its deadline is {end_text(end, launch.deadline)}"


def every_run_ends(end: Ending) -> Iterator[str]:
    """Once everything works, the run is closed, has its receipt, and is out of the index; no schedule is left but one
    after a launch without an answer.
    """
    if end.record is None:
        return
    if end.sim.is_open():
        yield f"the run is still {end.record.state}, or in the index"
    if end.record.state == "closed" and not end.receipts:
        yield "the run is closed, and has no receipt"
    if end.receipts and end.record.state != "closed":
        yield "there is a receipt, and the run is not closed"
    if "L3" in end.sim.schedule.off:
        return
    left = [name for _, name in end.aws.world.schedules]
    if left and end.aws.now > end.record.deadline + timedelta(minutes=5):
        yield f"schedules are left: {left}"


def one_receipt(end: Ending) -> Iterator[str]:
    """The receipt is written once, can be read, and is what the record says."""
    if len(end.receipts) > 1:
        yield f"the receipt was written {len(end.receipts)} times"
    if end.receipt is None or end.record is None:
        return
    receipt_from_json(end.receipts[-1].body, RUN)
    said = end.receipt["state"], end.receipt["exit_code"]
    meant = end.record.outcome, exit_code(end.record.outcome, end.record.error) if end.record.outcome else 110
    if said != meant:
        yield f"the receipt says {said}, the record {meant}"
    if (said[0] == "done") != (said[1] == 0) or (said[0] == "done" and end.receipt["error"]):
        yield f"the receipt's state {said[0]} does not fit its exit code {said[1]} and error {end.receipt['error']}"


def terminated_is_true(end: Ending) -> Iterator[str]:
    """A receipt names every instance, and says terminated of none that is not."""
    if end.receipt is None:
        return
    written_at = end.receipts[-1].at
    named = {item["instance_id"]: item for item in end.receipt["instances"]}
    for instance in end.instances:
        began = end.lived(instance)[0]
        if instance.id not in named:
            if began <= written_at and instance.id not in (*_unseen(end), *_forgotten(end)):
                yield f"the receipt does not name {instance.id}"
        elif instance.terminated_at is None or instance.terminated_at > written_at:
            yield f"the receipt says {named[instance.id]['proof']!r} of {instance.id}, which was not terminated"
    for name, item in named.items():
        if not item["proof"] or name not in end.aws.everything:
            yield f"the receipt has {name} without a proof"


def no_launch_after_the_end(end: Ending) -> Iterator[str]:
    """Nothing begins for a run that is closed."""
    if end.receipt is None:
        return
    for instance in end.instances:
        if end.lived(instance)[0] > end.receipts[-1].at:
            yield f"{instance.id} began after the run was closed"


def bill_within_bounds(end: Ending) -> Iterator[str]:
    """What AWS bills lies within the receipt's bounds, which are no further apart than what nobody could see."""
    if end.receipt is None:
        return
    written_at = end.receipts[-1].at
    known = [one for one in end.instances if end.lived(one)[0] <= written_at and one.id not in _unseen(end)]
    true = sum(end.billed(one) / 3600 * end.price(one) for one in known)
    low, high = end.receipt["dollars"]["spent_low"], end.receipt["dollars"]["spent_high"]
    slack = 0.002 + abs(end.sim.schedule.node_skew) / 3600 * PRICES["on_demand"]  # the node's clock counts
    if not low - slack <= true <= high + slack:
        yield f"AWS bills ${true:.4f}, and the receipt says ${low:.4f} to ${high:.4f}"
    most = sum(
        max((written_at - end.lived(one)[0]).total_seconds(), 60) / 3600 * end.price(one) for one in known
    )
    if high > most + sum(_forgotten(end).values()) + 0.002:
        yield f"the receipt says up to ${high:.4f}, and no instance was there for more than ${most:.4f}"


def budget_holds(end: Ending) -> Iterator[str]:
    """What a run costs exceeds its budget by one interval of the sweeper at most, at the list price."""
    budget = end.sim.schedule.budget_usd
    if not budget:
        return
    true = sum(end.billed(one) / 3600 * end.price(one) for one in end.instances)
    late = 0.0
    for one in end.instances:
        bound, deadline = end.bounds[one.id], end.sim.machines[one.id].deadline
        if bound is not None and deadline is not None:
            late += max((bound - deadline).total_seconds(), 0.0)
        elif bound is None:
            return
    most = budget + (SWEEP_SECONDS + late + 60) / 3600 * PRICES["on_demand"]
    if true > most:
        yield f"the run cost ${true:.4f}, with a budget of ${budget}"


def few_attempts(end: Ending) -> Iterator[str]:
    """Machines are lost five times at most, and attempts follow one another."""
    if end.record is None:
        return
    if len(end.record.attempts) > MOST_LOST + 1 or len(end.record.lost) > MOST_LOST:
        yield f"{len(end.record.attempts)} attempts, {len(end.record.lost)} machines lost"
    spans = sorted((end.lived(one), one.id) for one in end.instances)
    for ((_, ended), before), ((began, _), following) in pairwise(spans):
        one, other = end.sim.machines[before], end.sim.machines[following]
        if one.attempt != other.attempt and began < ended:
            yield f"{following} began before {before} had ended"


def times_are_sound(end: Ending) -> Iterator[str]:
    """Phases add up to the total, and closing comes after the creation."""
    if end.receipt is None:
        return
    seconds = end.receipt["seconds"]
    if abs(sum(value for name, value in seconds.items() if name != "total") - seconds["total"]) > 0.01:
        yield f"the phases do not add up: {seconds}"
    if from_iso(end.receipt["closed_at"]) < from_iso(end.receipt["created_at"]) - timedelta(minutes=5):
        yield "the run was closed before it was created"


def no_actor_fails(end: Ending) -> Iterator[str]:
    """No caller meets an exception that is not one of ours."""
    yield from end.sim.problems


def end_is_told(end: Ending) -> Iterator[str]:
    """A desk shows the end, or control sends one message: whoever closed the run, and whoever died."""
    if end.record is None or end.record.state != "closed":
        return
    sent, weather = len(end.sim.messages), end.sim.schedule
    if not sent and not end.sim.shown:
        yield "nobody was told"
    faults = (weather.kills, weather.lost, weather.errors, weather.stalls, weather.delays, weather.outages,
              weather.error_rate, weather.lost_rate)  # fmt: skip
    if sent > 1 and not any(faults):
        yield f"{sent} messages"
    if end.sim.is_untold():
        yield "it is still to be told"


def repeating_changes_nothing(end: Ending) -> Iterator[str]:
    """Every actor is called once more: no object, no instance and no schedule changes."""
    if end.record is None or end.sim.is_open():
        return
    before = end.state()
    end.sim.again()
    if before != end.state():
        yield f"called once more, the actors made {before} into {end.state()}"


INVARIANTS: tuple[Invariant, ...] = (
    ends_in_time,
    deadlines_are_armed,
    one_at_a_time,
    one_for_each_intent,
    fleets_are_whole,
    partial_fleets_are_ended_first,
    nothing_of_nodes_is_left,
    no_instance_is_given_up,
    start_files_stay,
    waiting_takes_nothing,
    every_run_ends,
    one_receipt,
    terminated_is_true,
    no_launch_after_the_end,
    bill_within_bounds,
    budget_holds,
    few_attempts,
    *KEPT,
    times_are_sound,
    no_actor_fails,
    end_is_told,
    repeating_changes_nothing,
)


def violations(sim: Simulation, *, off: frozenset[str] | None = None) -> list[str]:
    """Return what does not hold after a schedule, each with its invariant's name.

    `off`: the layers that are known to be off, if they are not those of the schedule.
    """
    end = Ending(sim, off)
    return [f"{holds.__name__}: {what}" for holds in INVARIANTS for what in holds(end)]


def overrun(sim: Simulation) -> float:
    """Return by how many seconds the schedule's machines lived longer than their deadlines, the worst."""
    late = [
        ((one.shutting_down_at or sim.aws.now) - machine.deadline).total_seconds()
        for name, machine in sim.machines.items()
        if machine.deadline is not None and (one := sim.aws.everything[name])
    ]
    return max(late, default=0.0)


def end_text(end: Ending, instant: datetime) -> str:
    return f"{(instant - end.sim.record.created_at).total_seconds():.0f} s"
