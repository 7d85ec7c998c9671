"""Features of the user's own: functions in a Python file. Docs: docs/data.md.

    [data]
    features = ["auto", "my_features.py:slope", "my_features.py:spread"]

A function takes the bars (`Candles`: numpy arrays) and returns a number for each, and has an attribute
`lookback`: row t may depend on bars t - lookback to t. `own_values` computes them. Standard library only.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Self

from trainer.base.errors import UsageError, nearest
from trainer.base.own_file import OwnFile, digest_of, load_module
from trainer.base.settings import bad_value

if TYPE_CHECKING:
    from trainer.data.read.candles import Candles

DO = "See docs/data.md."
MOST_LOOKBACK = 1_000_000
_AND = ", "  # between names, in `class_name`


@dataclass(frozen=True, kw_only=True)
class MeasuredFeatures:
    """Measurements of a user's features."""

    of: str  # digest of the file and the names
    lookback: int  # the largest of them, in bars


@dataclass(frozen=True, kw_only=True)
class OwnFeatures(OwnFile):
    """A user's file of features, and the functions of it that a job takes: `class_name` has their names."""

    part = "data"
    measured_as = MeasuredFeatures

    def __post_init__(self) -> None:
        for name in self.names:
            if not name.isidentifier() or keyword.iskeyword(name) or len(name) > 100:
                raise bad_value("data.features", f"{self.base_name}:{name}", "FILE.py:FUNCTION")
        self.check_file_name("data.features")

    @classmethod
    def of_names(cls, file: str, names: Sequence[str]) -> Self:
        """Return the settings of these functions of a file."""
        return cls(file=file, class_name=_AND.join(names))

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the functions, which are those of the features."""
        return tuple(self.class_name.split(_AND))

    @property
    def code(self) -> str:
        """Return a digest of everything but the bars that they depend on."""
        return digest_of(self.sha256, self.class_name)

    @property
    def lookback(self) -> int:
        """Return how many bars they look back; 0 until they were tried."""
        return self.measured.lookback if self.is_tried else 0

    def loaded(self) -> Self:
        """Return the settings with the lookback that the file says. Runs the file; raises UsageError."""
        lookback = max(lookback_of(name, one) for name, one in functions_of(self).items())
        return replace(self, measured=MeasuredFeatures(of=self.code, lookback=lookback))


def own_item(item: str) -> tuple[str, str] | None:
    """Return (file, function) of `my_features.py:slope`; None for any other value of data.features."""
    file, _, name = item.rpartition(":")
    if file.endswith(".py"):
        return file, name
    if item.endswith(".py"):
        raise UsageError(f"'{item}' names no function", do=f"Write {item}:NAME, with the function in it.")
    return None


@cache
def functions_of(own: OwnFeatures) -> dict[str, Callable[[Candles], Any]]:
    """Return the user's functions by name; the file runs once a process. Raises UsageError."""
    module = load_module(own.file, sha256=own.sha256)
    functions = {}
    for name in own.names:
        function = module.__dict__.get(name)
        if not callable(function):
            its = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
            do = nearest(name, its) or "Check the name."
            raise UsageError(f"{own.base_name} has no function {name}", do=do)
        functions[name] = function
    return functions


def lookback_of(name: str, function: Any) -> int:
    """Return the bars that a user's function says it looks back. Raises UsageError."""
    lookback = getattr(function, "lookback", None)
    if type(lookback) is not int or not 0 <= lookback <= MOST_LOOKBACK:
        why = f"{name}.lookback is {lookback!r}, not a number of bars up to {MOST_LOOKBACK:,}"
        raise UsageError(
            f"{name} does not say how far it looks back", why=why, do=f"Set {name}.lookback = 60, say."
        )
    return lookback
