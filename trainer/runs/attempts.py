"""Attempts of a run, in its record: the ladder's rungs, the launches of instances, the line for capacity.

Frozen values; `record` has those of the whole run. Instants are UTC.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from trainer.aws.error_codes import NO_CLEAR_ANSWER, Meaning, meaning
from trainer.runs.deadline import Cause

AttemptEnd = Literal["", "lost", "bug"]
LaunchOutcome = Literal["intended", "created", "refused", "abandoned"]


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One step of the capacity ladder: type x zone x market, with the settings of a request for it."""

    instance_type: str
    availability_zone: str
    subnet_id: str
    market: str  # "on_demand" or "spot"
    price_usd_per_hour: float  # what this rung is expected to cost
    on_demand_usd_per_hour: float  # the worst it can cost; deadlines are computed from this one
    launch_template_id: str
    image_id: str
    vcpus: int  # of the type, which quotas count
    quota_code: str  # Service Quotas code that this type and market count against
    boot_seconds: int  # boot allowance of the type
    default_seconds: float = 0.0  # min(12 h, max(30 min, 3 x P90)) on this type; 0: the job names a duration
    estimate_seconds: float = (
        0.0  # max(30 min, 3 x P90) where the job names one and the rate is measured; else 0
    )
    p90_seconds: float = 0.0  # of an attempt on this type; 0: not estimated
    visits: float = 0.0  # windows (or bars of chunks) of one of its devices; 0: not estimated
    predicted: tuple[float, ...] = ()  # seconds of calibration.PHASES by the plan; (): not estimated
    lost_seconds: float = 0.0  # of work, at most, with a lost machine; 0: all of it, without checkpoints


@dataclass(frozen=True, kw_only=True)
class Launch:
    """An intent to create one set of instances, stored before the call, and its result."""

    rung: int  # index into the record's ladder
    token: str  # ClientToken = hash(run, attempt, rung, launches before)
    deadline: datetime  # the attempt's: tag, OS timer and one-time schedules carry it
    deadline_cause: Cause
    intended_at: datetime
    called_at: datetime | None = None  # of the last CreateFleet call under this token, stored right before it
    calls: int = 0
    outcome: LaunchOutcome = "intended"  # abandoned: the run ended before AWS gave a clear answer
    # in the answer's order, which is that of the nodes; of a refusal those of a fleet that is not whole
    instance_ids: tuple[str, ...] = ()
    error_code: str = ""  # AWS's, of a refusal
    error_message: str = ""
    unanswered: bool = (
        False  # refused by an exception, after a call under this token that had no clear answer
    )
    given_up_at: datetime | None = None  # when a call without a clear answer was no longer waited for
    kill_armed_at: datetime | None = (
        None  # the second schedule, which names the ids and needs no code of ours
    )

    @property
    def last_call_at(self) -> datetime:
        """Return the instant of the last call, or of the intent before the first."""
        return self.called_at or self.intended_at

    @property
    def is_open(self) -> bool:
        """Return whether a call under this token has no clear answer: an instance of it may still appear."""
        return self.called_at is not None and (self.outcome == "intended" or self.unanswered)

    @property
    def had_no_answer(self) -> bool:
        """Return whether it was given up without a clear answer: an instance of it would appear late."""
        return self.error_code == NO_CLEAR_ANSWER or (
            self.outcome == "abandoned" and self.called_at is not None
        )

    @property
    def is_partial(self) -> bool:
        """Return whether it made fewer instances than were asked for: all of them are ended."""
        return self.outcome == "refused" and bool(self.instance_ids)

    @property
    def refusal(self) -> Meaning:
        """Return the meaning of the error with which AWS refused it: its class, and the next step of
        the run.
        """
        return meaning(self.error_code, self.error_message)


@dataclass(frozen=True, kw_only=True)
class Queue:
    """The waiting line of an attempt that found every pool full: until when it waits, and its next walk over
    the ladder.
    """

    since: datetime
    until: datetime  # then the last walk begins
    deadline: datetime  # the run's when the wait began: waiting takes nothing from it
    next_at: datetime  # of the next walk, or of the one under way
    first: int  # launches of the attempt before that walk
    walks: int  # with that one

    def deadline_at(self, now: datetime) -> datetime:
        """Return the run's deadline if its waiting ends now: later by the wait, of `until` at most."""
        return self.deadline + (min(now, self.until) - self.since)


@dataclass(frozen=True, kw_only=True)
class Reached:
    """The progress of an attempt by its last report. Two attempts that died without progress between them
    count as a fault of the job.
    """

    phase: str
    left: int  # models that it had not finished
    steps: int  # of the pieces at work, in all
    retries: int = 0  # of models whose worker died


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One set of instances within a run; losing its machine ends an attempt, not the run."""

    number: int  # from 1
    launches: tuple[Launch, ...] = ()
    created_at: datetime | None = None
    queue: Queue | None = None  # once no pool had capacity, and the job may wait
    ended_at: datetime | None = None  # when it was found to have lost its machine
    cause: AttemptEnd = ""  # of that end; a bug is a machine lost twice at one place
    error: dict[str, Any] | None = None  # as the run's would be
    reached: Reached | None = None  # by its last report before that; None: it reported nothing

    @property
    def walk(self) -> tuple[Launch, ...]:
        """Return the launches of the current walk over the ladder."""
        return self.launches[self.queue.first :] if self.queue else self.launches

    @property
    def waits(self) -> bool:
        """Return whether it waits for its next walk."""
        return self.queue is not None and not self.walk
