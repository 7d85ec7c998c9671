"""Schedule and budget of a retrain: an entry of the stack's setting `retrains`. Standard library only.

Pulumi checks it (infra/stack_settings.py) and hands it on in the stack's outputs; control and the desk read
it there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any

from trainer.base.errors import nearest
from trainer.retrains.recurrence import Recurrence, cron_refusal
from trainer.targets.gate import GateRule
from trainer.targets.inference import FEWEST_CELLS

# Of retrains/<name>.json; also one of the stack's outputs: what the deployed control reads.
PUBLISHED_FORMAT = 2
MOST_RETRAINS = 8  # of a stack: its parameter, which holds 4 KB, lists them
OVERLAPS = ("skip", "wait")
MOST_CELLS = 10_000
GATE_KEYS = ("gate", "margin", "least_cells")
BETTER = "better"
PROMOTIONS = ("never", BETTER)
SHADOW = "shadow"
GATES = ("test", SHADOW)
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,22}[a-z0-9])?")  # run ids contain it, instead of a job's name


@dataclass(frozen=True, kw_only=True)
class RetrainSchedule(Recurrence):
    """One retrain's schedule. Raises ValueError for a value that makes no sense."""

    name: str
    budget: float  # dollars that one run may cost at most
    budget_month: float  # dollars that its runs of one calendar month may cost together
    promote: str = "never"  # models to production: none, or those that are better than the champion
    # windows on which they are scored: the test span, or bars that came after both models were made
    gate: str = "test"
    margin: float = 0.0  # of the deciding score, by which they have to be better
    least_cells: int = GateRule.least_cells  # that a decision takes
    # while the run before has not ended: skip this one, or wait until the next scheduled time at most
    overlap: str = "skip"

    def __post_init__(self) -> None:
        for key in ("name", "time_zone", "overlap", "promote", "gate"):
            if not isinstance(getattr(self, key), str):
                raise ValueError(f"{key} must be text.")
        if not is_name(self.name):
            raise ValueError(f"name {self.name!r} must be at most 24 lower case letters, digits and dashes.")
        super().__post_init__()
        for key in ("budget", "budget_month"):
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1e6:
                raise ValueError(f"{key} {value!r} must be dollars above 0.")
        if self.promote not in PROMOTIONS:
            raise ValueError(f"promote {self.promote!r} must be {' or '.join(PROMOTIONS)}.")
        if self.gate not in GATES:
            raise ValueError(f"gate {self.gate!r} must be {' or '.join(GATES)}.")
        if (
            isinstance(self.margin, bool)
            or not isinstance(self.margin, (int, float))
            or not 0 <= self.margin < 1e6
        ):
            raise ValueError(f"margin {self.margin!r} must be a number of 0 or more.")
        if type(self.least_cells) is not int or not FEWEST_CELLS <= self.least_cells <= MOST_CELLS:
            raise ValueError(f"least_cells {self.least_cells!r} must be {FEWEST_CELLS} to {MOST_CELLS:,}.")
        if self.overlap not in OVERLAPS:
            raise ValueError(f"overlap {self.overlap!r} must be {' or '.join(OVERLAPS)}.")

    @property
    def rule(self) -> GateRule:
        """Return what a challenger has to show."""
        return GateRule(margin=float(self.margin), least_cells=self.least_cells)

    def local(self, moment: datetime) -> datetime:
        """Return an instant in the schedule's time zone."""
        return moment.astimezone(self.zone)

    def same_month(self, one: datetime, other: datetime) -> bool:
        """Return whether two instants are in the same calendar month of the schedule's time zone."""
        first, second = self.local(one), self.local(other)
        return (first.year, first.month) == (second.year, second.month)

    def month_start(self, moment: datetime) -> datetime:
        """Return the first instant of an instant's calendar month in the schedule's time zone."""
        return self.local(moment).replace(day=1, hour=0, minute=0, second=0, microsecond=0, fold=0)

    def to_dict(self) -> dict[str, Any]:
        """Return it as in the stack's outputs, which hold 4 KB: with weekdays or day_of_month, and without
        the gate's defaults.
        """
        values = {"name": self.name, **asdict(self), "weekdays": list(self.weekdays)}
        defaults = {item.name: item.default for item in fields(self) if item.name in GATE_KEYS}
        return {
            key: value
            for key, value in values.items()
            if value not in ([], None) and (key not in defaults or value != defaults[key])
        }


def is_name(text: str) -> bool:
    """Return whether a text can be the name of a retrain."""
    return _NAME.fullmatch(text) is not None


def read_schedules(entries: Iterable[Mapping[str, Any]]) -> tuple[RetrainSchedule, ...]:
    """Read the setting `retrains`. Raises ValueError for the first entry that makes no sense, by its number
    from 1.
    """
    schedules = []
    for number, entry in enumerate(entries, start=1):
        try:
            schedules.append(RetrainSchedule(**_values(entry)))
        except TypeError as error:  # a key that is missing
            raise ValueError(f"retrain {number}: {str(error).partition('missing ')[2] or error}.") from error
        except ValueError as error:
            raise ValueError(f"retrain {number}: {error}") from error
    names = [schedule.name for schedule in schedules]
    if len(set(names)) < len(names):
        raise ValueError("two retrains have the same name.")
    if len(names) > MOST_RETRAINS:
        raise ValueError(f"there are {len(names)} retrains; a stack has {MOST_RETRAINS} at most.")
    return tuple(schedules)


def _values(entry: Any) -> dict[str, Any]:
    """Return the values of an entry by field. A key without a value counts as left out."""
    if not isinstance(entry, Mapping):
        raise ValueError("it must be a table of name, weekdays, hour, budget and budget_month.")
    if "cron" in entry:
        raise cron_refusal(str(entry["cron"]))
    known = {item.name for item in fields(RetrainSchedule)}
    if unknown := sorted(map(str, entry.keys() - known)):
        raise ValueError(f"unknown key {', '.join(unknown)}. {nearest(unknown[0], known)}".rstrip())
    return {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in entry.items()
        if value is not None
    }
