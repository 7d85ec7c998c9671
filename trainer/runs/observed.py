"""What has been seen of a run's instances so far: merging a new look into the record, and the two proofs that one is gone.

Pure. "Terminated" is observed, never assumed: an instance counts as gone when DescribeInstances says so, or when it is not
found any more, nothing alive carries the run's tag and its deadline is an hour past (AWS forgets ids after about an hour).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from trainer.runs.record import InstanceSeen, Launch, Rung, RunRecord
from trainer.runs.world import ENDED, Instance, World

DESCRIBED = "described terminated"
NOT_FOUND = "not found, deadline an hour past"
FORGOTTEN_AFTER = timedelta(hours=1)


def merge(record: RunRecord, world: World, now: datetime) -> tuple[InstanceSeen, ...]:
    """Return the record's instances with what was just seen of them, and of new ones, in the order of their first sight."""
    before = {seen.instance_id: seen for seen in record.instances}
    found = {instance.instance_id: instance for instance in world.instances}
    for attempt in record.attempts:  # an instance that CreateFleet named but no description has shown yet
        for launch in attempt.launches:
            for instance_id in launch.instance_ids:
                if instance_id not in before:
                    rung = record.ladder[launch.rung]
                    before[instance_id] = _announced(instance_id, attempt.number, launch, rung)
    merged = {
        instance_id: _update(seen, found[instance_id], now) if instance_id in found else _missing(seen, record, world, now)
        for instance_id, seen in before.items()
    }
    merged |= {
        instance_id: _update(None, instance, now) for instance_id, instance in found.items() if instance_id not in merged
    }
    return tuple(merged.values())


def all_gone(record: RunRecord, world: World) -> bool:
    """Tell whether every instance that the run is known to have had is proven gone, by the record and this look."""
    return not world.alive and all(seen.proof for seen in record.instances)


def last_deadline(record: RunRecord) -> datetime:
    """Return the deadline that the youngest intent carries: the instance's tag, OS timer and schedules hold this one."""
    launches = [launch for attempt in record.attempts for launch in attempt.launches]
    return launches[-1].deadline if launches else record.deadline


def _announced(instance_id: str, attempt: int, launch: Launch, rung: Rung) -> InstanceSeen:
    return InstanceSeen(
        instance_id=instance_id,
        attempt=attempt,
        instance_type=rung.instance_type,
        market=rung.market,
        availability_zone=rung.availability_zone,
        state="announced",
        launched_at=launch.intended_at,
    )


def _update(seen: InstanceSeen | None, instance: Instance, now: datetime) -> InstanceSeen:
    if seen is not None and seen.proof == DESCRIBED:
        return seen
    ended = instance.state in ENDED
    return InstanceSeen(
        instance_id=instance.instance_id,
        attempt=instance.attempt,
        instance_type=instance.instance_type,
        market=instance.market,
        availability_zone=instance.availability_zone,
        state=instance.state,
        launched_at=instance.launched_at,
        running_seen_at=(seen.running_seen_at if seen else None) or (now if instance.state == "running" else None),
        terminated_at=((seen.terminated_at if seen else None) or instance.ended_at or now) if ended else None,
        proof=DESCRIBED if instance.state == "terminated" else "",
        reason=instance.reason if ended else "",
    )


def _missing(seen: InstanceSeen, record: RunRecord, world: World, now: datetime) -> InstanceSeen:
    """Leave an instance that AWS does not show as it was, until its absence itself is proof."""
    if seen.proof or world.alive or now < last_deadline(record) + FORGOTTEN_AFTER:
        return seen
    return replace(seen, state="gone", terminated_at=seen.terminated_at or now, proof=NOT_FOUND)
