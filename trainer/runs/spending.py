"""The cost of a run's instances, as a low and a high bound. Pure.

AWS shows neither the instant at which `running` began nor the one at which an OS power-off ended it. Low runs
from the first sign of life to the last, high from the launch to the first look that found the instance ended;
both are at least the 60 seconds that a start costs. A first hour on spot that AWS itself interrupted may cost
nothing (`runs.spot_saving`). A call without an answer for which nobody looked in time widens the high bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from trainer.runs.attempts import Rung
from trainer.runs.observation import FORGOTTEN_AFTER, Observation
from trainer.runs.record import InstanceSeen, RunRecord
from trainer.runs.reports import CHECKPOINT_COUNTS, MOST_SENT
from trainer.runs.snapshots import snapshot_usd
from trainer.runs.spot_saving import SpotBill, saved_usd

# after a deadline, until a layer has ended the machine: the sweeper comes every two minutes, a one-time
# schedule within the minute after the next full one
LATEST_END = timedelta(minutes=3)
SHORTEST_BILL_SECONDS = 60.0  # per second, 60 s minimum each start (EC2 user guide, looked up 2026-11-20)


def spent(record: RunRecord, observed: Observation, now: datetime | None) -> tuple[float, float]:
    """Return the low and the high bound, in dollars, of what the run's instances cost until `now`."""
    low = high = 0.0
    for seen in record.instances:
        price = price_of(record, seen)
        least, most = billed_seconds(record, seen, observed, now)
        low += 0.0 if _spot_bill(record, seen, (least, most)).may_be_free else least / 3600 * price
        high += most / 3600 * price
    return low, high + sum(seconds / 3600 * rung.price_usd_per_hour for rung, seconds in _unseen(record))


def _unseen(record: RunRecord) -> Iterator[tuple[Rung, float]]:
    """Yield rung and seconds (of all nodes) of instances that may have lived unseen: of unanswered calls that
    were given up only after AWS may have forgotten an ended instance.
    """
    for launch in (one for attempt in record.attempts for one in attempt.launches):
        if launch.given_up_at is not None and launch.given_up_at > launch.last_call_at + FORGOTTEN_AFTER:
            until = min(launch.given_up_at, launch.deadline + LATEST_END)
            seconds = (until - launch.last_call_at).total_seconds()
            yield record.ladder[launch.rung], seconds * record.num_nodes


def checkpoints_sent(observed: Observation, *, most_usd: float) -> dict[str, Any]:
    """Return how much the nodes of all attempts sent of their CHECKPOINTS, and the dollars of requests and
    storage, which are in no bound of `spent`; {} for nothing.

    Nobody but the nodes has counted it, so no word of theirs makes it more than the machines cost.
    """
    own: Mapping[str, Any] = {}
    if observed.result is not None and observed.result.checkpoints:
        own = observed.result.checkpoints
    elif observed.heartbeat is not None:
        own = observed.heartbeat.durable
    earlier = observed.start.sent if observed.start else {}
    counts = {name: min(earlier.get(name, 0) + own.get(name, 0), MOST_SENT) for name in CHECKPOINT_COUNTS}
    if not counts["snapshots"]:
        return {}
    usd = snapshot_usd(puts=counts["snapshots"] + counts["objects"], size=counts["bytes"])
    return {**counts, "usd": round(min(usd, most_usd), 6)}


def spot_saved(record: RunRecord, observed: Observation, now: datetime | None) -> tuple[float, float]:
    """Return the bounds, in dollars, of what spot saved against on-demand machines; (0, 0) for a run that had
    none. What its lost attempts had computed since their last checkpoint was computed twice.
    """
    on_spot = [seen for seen in record.instances if seen.market == "spot"]
    bills = {seen: _spot_bill(record, seen, billed_seconds(record, seen, observed, now)) for seen in on_spot}
    lost = {attempt.number for attempt in record.attempts if attempt.cause}
    twice = sum(
        min(bill.seconds_high, _lost_seconds(record, seen) or bill.seconds_high)
        for seen, bill in bills.items()
        if seen.attempt in lost
    )
    return saved_usd(bills.values(), twice_seconds=twice)


def budget_left(record: RunRecord, now: datetime) -> float:
    """Return what is left of the budget after every instance so far, each at its on-demand price until it was
    seen to end, and those that can have lived unseen. 0 or less: nothing is left.
    """
    used = sum(
        billed_seconds(record, seen, Observation(), now)[1] / 3600 * _worst_price(record, seen)
        for seen in record.instances
    )
    unseen = sum(seconds / 3600 * rung.on_demand_usd_per_hour for rung, seconds in _unseen(record))
    return record.budget_usd - used - unseen


def worked_seconds(record: RunRecord, now: datetime) -> float:
    """Return the longest that the run can have worked: its instances' seconds, of several nodes their
    mean.
    """
    billed = sum(billed_seconds(record, seen, Observation(), now)[1] for seen in record.instances)
    return billed / record.num_nodes


def billed_seconds(
    record: RunRecord, seen: InstanceSeen, observed: Observation, now: datetime | None
) -> tuple[float, float]:
    """Return the fewest and the most seconds that an instance was billed for until `now`."""
    ended = seen.terminated_at or now or seen.launched_at
    most = max((ended - seen.launched_at).total_seconds(), SHORTEST_BILL_SECONDS)
    signs = [
        instant for instant in _signs_of_life(record, seen, observed) if seen.launched_at <= instant <= ended
    ]
    if not signs:
        return 0.0, most  # never seen running: perhaps it never billed
    if seen.terminated_at is None and seen.running_seen_at is not None:
        signs.append(ended)  # it runs at this moment
    least = max((max(signs) - min(signs)).total_seconds(), SHORTEST_BILL_SECONDS)
    return least, max(least, most)


def _signs_of_life(record: RunRecord, seen: InstanceSeen, observed: Observation) -> list[datetime]:
    signs = [sign for sign in (seen.running_seen_at, seen.signed_at) if sign]
    launches = [launch for attempt in record.attempts for launch in attempt.launches]
    if not any(seen.instance_id in launch.instance_ids for launch in launches):
        return signs  # it has no word
    heartbeat, result = observed.heartbeat, observed.result
    if observed.nodes:
        mine = [node for node in observed.nodes if node.instance_id == seen.instance_id]
        heartbeat, result = (mine[0].heartbeat, mine[0].result) if mine else (None, None)
    if heartbeat is not None and heartbeat.instance_id in ("", seen.instance_id):
        signs += [heartbeat.at, *heartbeat.phases.values()]
    return [*signs, *(result.phases.values() if result else ())]


def _lost_seconds(record: RunRecord, seen: InstanceSeen) -> float:
    """Return the seconds of work that went with an instance, at most; 0: all."""
    rung = _rung_of(record, seen)
    return rung.lost_seconds if rung else 0.0


def _rung_of(record: RunRecord, seen: InstanceSeen) -> Rung | None:
    pool = (seen.instance_type, seen.market, seen.availability_zone)
    rungs = (one for one in record.ladder if (one.instance_type, one.market, one.availability_zone) == pool)
    return next(rungs, None)


def price_of(record: RunRecord, seen: InstanceSeen) -> float:
    """Return an instance's expected dollars an hour; the highest price of the ladder for one of no rung."""
    if rung := _rung_of(record, seen):
        return rung.price_usd_per_hour
    return max((rung.on_demand_usd_per_hour for rung in record.ladder), default=0.0)


def _spot_bill(record: RunRecord, seen: InstanceSeen, bounds: tuple[float, float]) -> SpotBill:
    return SpotBill(
        seconds_low=bounds[0],
        seconds_high=bounds[1],
        usd_per_hour=price_of(record, seen),
        on_demand_usd_per_hour=_worst_price(record, seen),
        taken=seen.market == "spot" and seen.reason.startswith("Server.SpotInstance"),
    )


def _worst_price(record: RunRecord, seen: InstanceSeen) -> float:
    prices = {rung.instance_type: rung.on_demand_usd_per_hour for rung in record.ladder}
    return prices.get(seen.instance_type, max(prices.values(), default=0.0))
