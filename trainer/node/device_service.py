"""Take broken devices out of service while a script runs over many values. Pure.

A broken GPU fails each value within seconds, and would drain the queue. A device on which IN_A_ROW values in
a row failed within QUICK_SECONDS each is suspect: it gets no value while another device is at work. It is
taken out of service once another device passes a value, or runs one for longer than QUICK_SECONDS. Its failed
values are tried once more elsewhere; if one fails there too, the device is put back in service.

A device that can be tested is so after KILLS values in a row: one that fails its test is out of service at
once, for good, even if no other is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

QUICK_SECONDS = 30.0
IN_A_ROW = 3
KILLS = 2  # quick failures in a row before a device is tested
FIRST = 10  # quick failures, at least, before a run without any other outcome gives up

Devices = tuple[int, ...]


@dataclass(kw_only=True)
class _Row:
    """Values that failed quickly in a row on a device, and whether another device passed one meanwhile."""

    values: list[str] = field(default_factory=list)
    witnessed: bool = False
    is_tested: bool = False


class DeviceService:
    """The service state of devices. Arguments named `at_work`: devices at work -> seconds since their oldest
    value began.
    """

    def __init__(self, devices: Iterable[Devices]) -> None:
        self._rows = {one: _Row() for one in devices}
        self._out: set[Devices] = set()
        self._again: dict[str, Devices] = {}  # value -> where it failed first
        self._failed_quickly = 0
        self._sound = False  # whether any value passed, or ran for longer than QUICK_SECONDS

    def ended(self, devices: Devices, value: str, *, passed: bool, seconds: float) -> Devices | None:
        """Record the end of a value; return the devices that it puts back in service, since their value
        failed here too.
        """
        first, row = self._again.get(value), self._rows[devices]
        if passed or seconds > QUICK_SECONDS:
            self._sound = True
            self._rows[devices] = _Row()
        elif first is None:  # a value that fails twice is itself at fault
            row.values.append(value)
            self._failed_quickly += 1
        if passed:
            for other in self._rows.keys() - {devices}:
                self._rows[other].witnessed |= bool(self._rows[other].values)
        elif first in self._out:
            self._out.remove(first)
            self._rows[first] = _Row()
            return first
        return None

    def may_begin(self, devices: Devices, at_work: Mapping[Devices, float]) -> bool:
        """Return whether a value may begin on a device."""
        if devices in self._out:
            return False
        return not (
            self._is_suspect(devices) and any(other not in self._out for other in at_work if other != devices)
        )

    def taken_out(self, at_work: Mapping[Devices, float]) -> dict[Devices, list[str]]:
        """Take broken devices out of service; return each with its values, which are to be tried
        elsewhere.
        """
        taken: dict[Devices, list[str]] = {}
        for devices, row in self._rows.items():
            others = self._rows.keys() - self._out - {devices}
            longest = max((seconds for other, seconds in at_work.items() if other in others), default=0.0)
            if devices in self._out or not others or not self._is_suspect(devices):
                continue
            if row.witnessed or longest > QUICK_SECONDS:
                self._out.add(devices)
                taken[devices] = list(row.values)
                self._again |= dict.fromkeys(row.values, devices)
        return taken

    def to_test(self) -> list[Devices]:
        """Return the devices in service that have failed KILLS values and were not tested since then."""
        rows = [(one, row) for one, row in self._rows.items() if one not in self._out and not row.is_tested]
        return [one for one, row in rows if len(row.values) >= KILLS]

    def tested(self, devices: Devices, *, passed: bool) -> list[str]:
        """Record a test; return the values to be tried elsewhere, of a device that failed it."""
        row = self._rows[devices]
        row.is_tested = True
        if passed:
            return []
        self._out.add(devices)
        return list(row.values)

    @property
    def none_left(self) -> bool:
        """Return whether every device is out of service."""
        return self._out == self._rows.keys()

    def is_hopeless(self, at_work: Mapping[Devices, float]) -> bool:
        """Return whether every value so far failed quickly, so that the script itself must be at fault."""
        enough = max(FIRST, IN_A_ROW * len(self._rows))
        return (
            not self._sound
            and self._failed_quickly >= enough
            and max(at_work.values(), default=0.0) <= QUICK_SECONDS
        )

    def _is_suspect(self, devices: Devices) -> bool:
        return len(self._rows[devices].values) >= IN_A_ROW
