"""Values of a parametrized test of which `make test` has some, which tell the story, and `make nightly` the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def others_nightly(values: Iterable[Any], keep: Callable[[Any], bool]) -> list[Any]:
    """Return the values for `pytest.mark.parametrize`; those that are not kept are marked nightly.

    A tuple is a value of each of several names.
    """
    marked = []
    for value in values:
        parts = value if isinstance(value, tuple) else (value,)
        marked.append(value if keep(value) else pytest.param(*parts, marks=pytest.mark.nightly))
    return marked
