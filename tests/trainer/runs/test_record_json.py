"""A record is read into what it was written from, or refused in one line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.records import created, launched, make_record, seen
from trainer.base.strict_json import Unsound
from trainer.runs.record_json import record_from_json, to_json

RECORD = make_record(state="running", attempts=launched(), instances=(seen("running"),))


def test_a_record_survives_json() -> None:
    assert record_from_json(to_json(RECORD)) == RECORD


@pytest.mark.parametrize(
    ("written", "other", "why"),
    [
        (b'"format": 12', b'"format": 9', "has format 9, this version reads 12"),
        (b'"owner": "someone",', b'"owner": "someone", "later": 1,', "has an unknown field 'later'"),
        (b'"vcpus": 48,', b"", "has no field 'vcpus'"),
    ],
)
def test_a_record_of_another_version_is_refused(written: bytes, other: bytes, why: str) -> None:
    with pytest.raises(Unsound, match=why):
        record_from_json(to_json(RECORD).replace(written, other))


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"ladder": ()}, "no rung"),
        ({"attempts": launched(created(rung=2))}, "a launch on a rung that is not on its ladder"),
        ({"attempts": ()}, "no instance although it is running"),
        ({"state": "ending"}, "no outcome although it has ended"),
        ({"work": "../train"}, "an invalid kind of work"),
        ({"parent": "r1"}, "an invalid parent"),
        ({"parent": "../r1", "parent_counts": "all"}, "an invalid parent"),
        ({"parent": RECORD.run_id, "parent_counts": "all"}, "an invalid parent"),
        ({"ancestors": ["r0"]}, "an invalid parent"),
        ({"parent": "r1", "parent_counts": "all", "ancestors": ["r1"]}, "an invalid parent"),
        ({"parent": "r1", "parent_counts": "all", "ancestors": ["../r0"]}, "an invalid parent"),
        ({"place": ""}, "no place that this version knows"),
        ({"pieces": RECORD.pieces[:1] * 2}, "two pieces of one name"),
    ],
)
def test_a_record_of_parts_that_do_not_fit_is_refused(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(Unsound, match=f"the run record has {why}"):
        record_from_json(to_json(replace(RECORD, **changed)))
