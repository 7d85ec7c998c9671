"""Faults that tests ask for: calls that fail, lost answers, refusals of pools, instances that end as they
start. Pure.

An error can end a call before or after it took effect, be part of CreateFleet's answer (HTTP 200), or end an
instance as it starts, which only its StateReason shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, field
from datetime import datetime
from typing import Any

from trainer.rehearsal.world import AwsError, Instance, Pool, World


@dataclass(kw_only=True)
class Fault:
    """One faulty answer."""

    operation: str  # such as "CreateFleet"
    code: str
    status: int = 500
    after: bool = False  # the call takes effect, and only its answer is lost


@dataclass(kw_only=True)
class FaultyWorld(World):
    """A world with pending faults, whose instances can be tagged again."""

    faults: list[Fault] = field(default_factory=list)
    refusals: list[AwsError] = field(default_factory=list)  # of the next pools that a launch tries
    parts: list[int] = field(default_factory=list)  # instances that the next fleets get at most
    full: set[tuple[str, ...]] = field(default_factory=set)  # pools without capacity; "" means any
    # State reasons of the next instances, which end as they start.
    stillborn: list[tuple[str, str]] = field(default_factory=list)

    def fail_next(self, operation: str, code: str, *, status: int = 500, after: bool = False) -> None:
        """Let the next call of an operation fail; with `after`, it takes effect and its answer is lost."""
        self.faults.append(Fault(operation=operation, code=code, status=status, after=after))

    def raise_fault(self, operation: str, *, after: bool) -> None:
        """Raise the fault that is due for this call, once."""
        for fault in self.faults:
            if fault.operation == operation and fault.after == after:
                self.faults.remove(fault)
                raise AwsError(fault.code, f"{fault.code}, as a test asked for", fault.status)

    def refuse_next(self, code: str, message: str = "as a test asked for") -> None:
        """Let the next pool that CreateFleet tries refuse: an error in `Errors` under HTTP 200, which uses up
        the token.
        """
        self.refusals.append(AwsError(code, message))

    def shorten_next(self, count: int) -> None:
        """Let the next fleet get so many instances at most, which AWS rules out for one with a least number."""
        self.parts.append(count)

    def room(self, count: int) -> int:
        """Return how many instances the next fleet gets, of a number that it asks for."""
        return min(self.parts.pop(0), count) if self.parts else count

    def raise_refusal(self) -> None:
        """Raise the refusal that is due for this pool, once."""
        if self.refusals:
            raise self.refusals.pop(0)

    def end_next_start(self, code: str, message: str = "as a test asked for") -> None:
        """Let the next instance end as it starts, for a reason that only its StateReason shows
        (Client.InternalError).
        """
        self.stillborn.append((code, message))

    def fill(self, *, instance_type: str = "", availability_zone: str = "", market: str = "") -> None:
        """Empty the matching pools; an empty argument means any."""
        self.full.add((instance_type, availability_zone, market))

    def is_full(self, pool: Pool) -> bool:
        """Return whether a pool is empty."""
        values = astuple(pool)
        return any(
            all(mine in ("", theirs) for mine, theirs in zip(rule, values, strict=True)) for rule in self.full
        )

    def add(self, description: dict[str, Any], *, now: datetime, **more: Any) -> Instance:
        """Add a machine, which may end at once."""
        instance = super().add(description, now=now, **more)
        if self.stillborn:
            self._shut_down(instance, self.stillborn.pop(0), now)
        return instance

    def tag(self, resource_ids: Iterable[str], tags: Iterable[dict[str, str]]) -> None:
        """Set tags on those of the resources that are instances."""
        for instance in [self.instances[one] for one in resource_ids if one in self.instances]:
            changed = {tag["Key"]: tag for tag in instance.description.get("Tags", [])}
            changed.update({tag["Key"]: {"Key": tag["Key"], "Value": tag.get("Value", "")} for tag in tags})
            instance.description["Tags"] = list(changed.values())

    def untag(self, resource_ids: Iterable[str], tags: Sequence[dict[str, str]]) -> None:
        """Remove tags (a tag with a value only where the value agrees) from those of the resources that are
        instances.
        """
        for instance in [self.instances[one] for one in resource_ids if one in self.instances]:
            kept = instance.description.get("Tags", [])
            for one in tags:
                kept = [tag for tag in kept if {"Value": tag["Value"], **one} != tag]
            instance.description["Tags"] = kept
