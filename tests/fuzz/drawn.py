"""Values that hypothesis draws: those that no writer of ours makes, and good documents changed in a few places."""

from __future__ import annotations

import copy
import json
import unicodedata
from typing import Any

from hypothesis import strategies as st

from trainer.cli.output import one_line

TEXTS = ("", "..", "/etc/passwd", ".bashrc", "\x1b[31m", "a\x00b", "\u202e", "\ud800", "x" * 5000)
OF_JSON = ("-1", "NaN", "1e999", "\n", "{}")
TIMES = ("9999-12-31T23:59:59Z", "0001-01-01T00:00:00+14:00", "2026-11-20T12:00:00", "2026-13-45T99:99:99Z")
WHOLE = (0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**26, 10**4000)
REAL = (0.5, -0.0, 5e-324, 1e-300, 1e18, 1e308, float("nan"), float("inf"), float("-inf"))
EMPTY = (None, True, False, [], {}, [[]], {"": {}})
ABOUT = ({"about": {}}, {"about": {"headline": 1, "metrics": 2, "table": 3}})
NASTY = (*TEXTS, *OF_JSON, *TIMES, *WHOLE, *REAL, *EMPTY, *ABOUT)
VALUES = st.one_of(
    st.sampled_from(NASTY),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
        max_leaves=12,
    ),
)


def changed(document: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return documents that differ from a good one in a few places: another value, a key more, a key less."""
    change = st.tuples(st.randoms(use_true_random=False), VALUES, st.sampled_from("=-+"))
    return st.lists(change, max_size=4).map(lambda changes: _change(copy.deepcopy(document), changes))


def is_shown(line: str) -> bool:
    """Return whether a terminal only shows a text, once it is printed as `cli.output` does, and on
    one line.
    """
    printed = one_line(line).replace("\t", "")
    return not any(unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") for letter in printed)


def _change(document: dict[str, Any], changes: list[Any]) -> dict[str, Any]:
    for random, drawn, how in changes:
        value = copy.deepcopy(drawn)
        places = list(_places(document))
        if not places:
            break
        parent, key = random.choice(places)
        if how == "-" and isinstance(parent, dict):
            del parent[key]
        elif how == "+" and isinstance(parent, dict):
            parent[str(value)[:40]] = value
        else:
            parent[key] = value
    return document


def _places(value: Any) -> Any:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(pairs):
        yield value, key
        yield from _places(item)


def bodies(document: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """Return what may lie in the place of a document: it, changed; any JSON; any bytes; brackets
    without end.
    """
    written = (changed(document) | VALUES).map(lambda value: json.dumps(value).encode())
    brackets = st.integers(1, 100_000).map(lambda count: b'{"a":' * count)
    return st.one_of(written, written, st.binary(max_size=200), brackets)
