"""The entries of `data.columns`: names of further columns, and what the user tells about those of a bar.
Standard library only.

An entry `FIELD=COLUMN` says which column of the files is a part of the bar, and `FIELD=COLUMN:UNIT` in which
unit: `close=last_price`, `time=ts:ms`, `date=Day:dmy`, `volume=vol:k`. `volume=`, `adjusted=`, `symbol=` and
`date=` say that there is none. `index=A/B/C` names the symbols of the index that side series read. Any other
entry is the name of a further column, whatever signs it has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from trainer.base.errors import UsageError, nearest
from trainer.base.symbols import RULE, flaw, quoted, tidy

TIME_UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}  # ns of each
DATE_ORDERS = ("dmy", "mdy")
VOLUME_UNITS = {"k": 1e3, "M": 1e6, "B": 1e9}
PARTS = ("time", "date", "open", "high", "low", "close", "volume", "symbol", "adjusted")
OPTIONAL = ("date", "volume", "symbol", "adjusted")
INDEX = "index"
_KEY = "data.columns"


@dataclass(frozen=True, kw_only=True)
class Told:
    """The parts of a bar that a user tells: their columns ('' for none), the unit of epoch numbers, the order
    of dates, and what a volume is multiplied by; and the symbols of the index (() for all).
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    time_unit: str = ""
    date_order: str = ""
    volume_times: float = 1.0
    index: tuple[str, ...] = ()


def told_of(entries: Iterable[str]) -> tuple[Told, tuple[str, ...]]:
    """Return what the entries tell, and the names of further columns. Raises UsageError for a part twice, one
    without a column, and an unknown unit.
    """
    columns: dict[str, str] = {}
    units: dict[str, str] = {}
    further = []
    index: tuple[str, ...] = ()
    for entry in entries:
        part, mark, column = entry.partition("=")
        if mark and part == INDEX:
            if index:
                raise UsageError(f"job key '{_KEY}' tells the index twice", do="Leave one out.")
            index = _members(entry, column)
            continue
        if not mark or part not in PARTS:
            further.append(entry)
            continue
        if part in columns:
            raise UsageError(f"job key '{_KEY}' tells the {part} twice", do="Leave one out.")
        columns[part], units[part] = _with_unit(entry, part, column)
    twice = next((one for one in columns.values() if one and list(columns.values()).count(one) > 1), "")
    if twice:
        raise UsageError(f"job key '{_KEY}' takes {quoted(twice)} for two parts", do="Leave one out.")
    unit = units.get("time", "")
    order = units.get("date", "") or (unit if unit in DATE_ORDERS else "")
    return (
        Told(
            columns=columns,
            time_unit=unit if unit in TIME_UNITS else "",
            date_order=order,
            volume_times=_times(units.get("volume", "")) or 1.0,
            index=index,
        ),
        tuple(further),
    )


def told_parts(entries: Iterable[str]) -> tuple[str, ...]:
    """Return the entries that tell about the parts of a bar, in one order: by them a file's bars are read."""
    entries = tuple(entries)
    own = {*told_of(entries)[1]}
    return tuple(sorted(one for one in entries if one not in own and not one.startswith(f"{INDEX}=")))


def told_index(members: Iterable[str]) -> str:
    """Return the entry that names the symbols of the index."""
    return f"{INDEX}={'/'.join(members)}"


def _members(entry: str, text: str) -> tuple[str, ...]:
    """Return the symbols of the index. Raises UsageError for none, one twice, and a text that is none."""
    members = tuple(tidy(one.strip()) for one in text.split("/"))
    if why := next(filter(None, map(flaw, members)), ""):
        raise UsageError(f"job key '{_KEY}' has {quoted(entry)}", why=why, do=f"The rule: {RULE}.")
    if len(set(members)) < len(members):
        raise UsageError(
            f"job key '{_KEY}' has {quoted(entry)}", why="it names a symbol twice", do="Drop one."
        )
    return members


def _with_unit(entry: str, part: str, column: str) -> tuple[str, str]:
    """Return the column and the unit of an entry. Raises UsageError."""
    name, mark, unit = column.rpartition(":") if part in ("time", "date", "volume") else (column, "", "")
    if not mark:
        name, unit = column, ""
    if not name and (part not in OPTIONAL or mark):
        do = f"Name one, such as {part}=COLUMN."
        raise UsageError(f"job key '{_KEY}' has {quoted(entry)}", why="it names no column", do=do)
    known = {
        "time": (*TIME_UNITS, *DATE_ORDERS),
        "date": DATE_ORDERS,
        "volume": (*VOLUME_UNITS, "a number"),
    }.get(part, ())
    if mark and unit not in known and not (part == "volume" and _times(unit)):
        why = f"a unit of the {part} is {', '.join(known[:-1])} or {known[-1]}"
        do = nearest(unit, known) or f"Such as {part}={name or 'COLUMN'}:{known[0]}."
        raise UsageError(f"job key '{_KEY}' has {quoted(entry)}", why=why, do=do)
    return name, unit


def _times(unit: str) -> float:
    """Return what a unit of volume is multiplied by, 0 if it is none."""
    if unit in VOLUME_UNITS:
        return VOLUME_UNITS[unit]
    try:
        number = float(unit)
    except ValueError:
        return 0.0
    return number if 0 < number < math.inf else 0.0
