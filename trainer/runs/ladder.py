"""The next rung of a run's ladder, by what the attempt's launches were told. Pure.

A walk asks each rung once, in the user's order; `launching` begins another one where an attempt waits for
capacity.
"""

from __future__ import annotations

from collections.abc import Container

from trainer.base.errors import CapacityError
from trainer.runs.attempts import Launch, Rung
from trainer.runs.capacity import pool_of
from trainer.runs.record import RunRecord


def next_rung(record: RunRecord, full: Container[str] = ()) -> int | None:
    """Return the first rung that this walk has not asked and that no refusal rules out; None if none is left.

    One of a pool in `full`, which was full a moment ago, only if there is no other.
    """
    attempt = record.attempt
    asked = {launch.rung for launch in attempt.walk} if attempt else set()
    refused = [launch for launch in attempt.launches if launch.outcome == "refused"] if attempt else []
    left = [
        index
        for index in ladder_order(record)
        if index not in asked and not any(_rules_out(record, launch, index) for launch in refused)
    ]
    fresh = [index for index in left if pool_of(record.ladder[index]) not in full]
    return next(iter(fresh or left), None)


def ladder_order(record: RunRecord) -> tuple[int, ...]:
    """Return the order in which an attempt asks the rungs: the ladder's, the pool that just lost a spot
    machine, or had no room for it, last.
    """
    lost = record.lost[-1] if record.lost else None
    taken = record.ladder[lost.launches[-1].rung] if lost and lost.launches else None
    out_of_room = lost is not None and (lost.error or {}).get("code") == CapacityError.exit_code
    if taken is None or not (taken.market == "spot" or out_of_room):
        return tuple(range(len(record.ladder)))
    return tuple(
        sorted(range(len(record.ladder)), key=lambda index: pool_of(record.ladder[index]) == pool_of(taken))
    )


def _rules_out(record: RunRecord, launch: Launch, index: int) -> bool:
    """Return whether a refusal holds for a rung as well: its type is not sold there, or it needs as much of a
    quota.
    """
    if launch.refusal.error_class == "type":
        return launch.rung == index
    over = launch.refusal.next_step == "other_quota"
    return over and _needs_it_too(record.ladder[index], record.ladder[launch.rung])


def _needs_it_too(rung: Rung, over_quota: Rung) -> bool:
    """Return whether a rung needs at least as much of the quota that refused another one; a quota without a
    code counts as the same.
    """
    if not (rung.quota_code and over_quota.quota_code):
        return True
    return rung.quota_code == over_quota.quota_code and rung.vcpus >= over_quota.vcpus
