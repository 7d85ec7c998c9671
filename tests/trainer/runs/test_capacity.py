"""The memory of full pools: three minutes long, bounded, and empty where it is damaged."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.records import NOON, rung
from trainer.runs.capacity import AHEAD, FULL_FOR, MOST_POOLS, full_from, pool_of, to_bytes, with_full

SPOT = rung(market="spot")


def test_a_full_pool_is_remembered_for_three_minutes():
    stored = to_bytes(with_full({}, SPOT, NOON))
    assert full_from(stored, NOON) == {"g5.12xlarge spot us-east-1a": NOON}
    assert pool_of(SPOT) in full_from(stored, NOON + FULL_FOR - timedelta(seconds=1))
    assert full_from(stored, NOON + FULL_FOR) == {}


def test_a_clock_that_is_ahead_is_not_believed_for_long():
    stored = to_bytes(with_full({}, SPOT, NOON + AHEAD + timedelta(seconds=1)))
    assert full_from(stored, NOON) == {}
    assert pool_of(SPOT) in full_from(stored, NOON + timedelta(seconds=1))


def test_the_memory_keeps_the_newest_pools_only():
    known = {f"p{number} spot a": NOON for number in range(MOST_POOLS)}
    known["g6.xlarge spot a"] = NOON - timedelta(seconds=1)
    kept = with_full(known, SPOT, NOON + timedelta(seconds=1))
    assert len(kept) == MOST_POOLS and pool_of(SPOT) in kept and "g6.xlarge spot a" not in kept
    assert full_from(to_bytes(kept), NOON + timedelta(seconds=1)) == kept


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"format": 2, "pools": {}}',
        b'{"pools": {}}',
        b'{"format": 1, "pools": []}',
        b'{"format": 1, "pools": {"a": 5}}',
        b'{"format": 1, "pools": {"a": "soon"}}',
        b'{"format": 1, "pools": {' + b",".join(b'"%d": ""' % n for n in range(MOST_POOLS + 1)) + b"}}",
    ],
    ids=range(8),
)
def test_a_damaged_memory_is_empty(body):
    assert full_from(body, NOON) == {}
