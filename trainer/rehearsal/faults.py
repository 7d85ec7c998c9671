"""Faults of the embedded AWS that tests ask for: calls that fail, pools without capacity, refusals. Pure.

The base of `world.World`. An error can end a call before or after it took effect, be part of CreateFleet's
answer (HTTP 200), or end an instance as it starts, which only its StateReason shows.
"""

from __future__ import annotations

from dataclasses import dataclass, field


class AwsError(Exception):
    """An error as AWS answers it."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code, self.message, self.status = code, message, status


@dataclass(frozen=True, kw_only=True)
class Pool:
    """A capacity pool. In a rule, an empty field means any."""

    instance_type: str = ""
    availability_zone: str = ""
    market: str = ""  # "on-demand" or "spot"

    def covers(self, other: Pool) -> bool:
        """Return whether a rule applies to that pool."""
        return (
            self.instance_type in ("", other.instance_type)
            and self.availability_zone in ("", other.availability_zone)
            and self.market in ("", other.market)
        )


@dataclass(kw_only=True)
class Fault:
    """One faulty answer."""

    operation: str  # such as "CreateFleet"
    code: str
    status: int = 500
    after: bool = False  # the call takes effect, and only its answer is lost


@dataclass(kw_only=True)
class Faults:
    """Pending faults of one account."""

    full: set[Pool] = field(default_factory=set)
    faults: list[Fault] = field(default_factory=list)
    refusals: list[AwsError] = field(default_factory=list)  # of the next pools that CreateFleet tries
    stillborn: list[tuple[str, str]] = field(
        default_factory=list
    )  # state reasons of the next instances, which end as they start

    def fill(self, *, instance_type: str = "", availability_zone: str = "", market: str = "") -> None:
        """Empty the matching pools; an empty argument means any."""
        self.full.add(Pool(instance_type=instance_type, availability_zone=availability_zone, market=market))

    def is_full(self, pool: Pool) -> bool:
        """Return whether a pool is empty."""
        return any(rule.covers(pool) for rule in self.full)

    def fail_next(self, operation: str, code: str, *, status: int = 500, after: bool = False) -> None:
        """Let the next call of an operation fail; with `after`, it takes effect and its answer is lost."""
        self.faults.append(Fault(operation=operation, code=code, status=status, after=after))

    def take_fault(self, operation: str, *, after: bool) -> AwsError | None:
        """Return the fault that is due for this call, once."""
        for fault in self.faults:
            if fault.operation == operation and fault.after == after:
                self.faults.remove(fault)
                return AwsError(fault.code, f"{fault.code}, as a test asked for", fault.status)
        return None

    def refuse_next(self, code: str, message: str = "as a test asked for") -> None:
        """Let the next pool that CreateFleet tries refuse: an error in `Errors` under HTTP 200, which uses up
        the token.
        """
        self.refusals.append(AwsError(code, message))

    def take_refusal(self) -> AwsError | None:
        """Return the refusal that is due for this pool, once."""
        return self.refusals.pop(0) if self.refusals else None

    def end_next_start(self, code: str, message: str = "as a test asked for") -> None:
        """Let the next instance end as it starts, for a reason that only its StateReason shows
        (Client.InternalError).
        """
        self.stillborn.append((code, f"{code}: {message}"))
