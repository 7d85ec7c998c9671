"""The lease: what is believed, and when silence counts."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pytest

from trainer.base import silence
from trainer.base.silence import FIRST_SECONDS, MOST_SECONDS
from trainer.base.strict_json import Unsound
from trainer.runs import lease as lease_module
from trainer.runs.keys import OWN_PREFIXES, NodeKeys
from trainer.runs.lease import BOOT_ALLOWANCE, LEASE, LONGEST_BOUND, SLACK, read_lease, silent

NOON = datetime(2026, 11, 20, 12, 0, 0, tzinfo=timezone.utc)


def test_every_key_of_a_node_begins_with_its_own_id():
    keys = NodeKeys(role_id="AROA1", instance_id="i-1", run_id="r", attempt=2)
    assert keys.lease == "live/AROA1:i-1/r/2/0.json"
    assert (keys.folder, keys.models) == ("attempts/AROA1:i-1/r/2/0/", "models/experiments/AROA1:i-1/r/2/")
    written = (keys.lease, keys.progress, keys.result, keys.log, keys.models)
    assert all(
        key.removeprefix(prefix).startswith("AROA1:i-1/")
        for key in written
        for prefix in OWN_PREFIXES
        if key.startswith(prefix)
    )


def lease(**fields: object) -> bytes:
    known = {"instance_id": "i-0a1", "at": "2026-11-20T13:00:00+01:00", "lease_until": "2026-11-20T12:02:30Z"}
    return json.dumps({**known, **fields}).encode()


def test_a_lease_is_read_in_utc_and_knows_its_instance():
    read = read_lease(lease(), NOON)
    assert (read.instance_id, read.at, read.lease_until) == ("i-0a1", NOON, NOON + LEASE)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b'{"at": 5}',
        b"[" * 200_000,
        b'{"a":' * 200_000,
        lease(at="yesterday"),
        lease(at="2026-11-20T12:00:00"),
        lease(at="0001-01-01T00:00:00+14:00"),
        lease(lease_until="9999-12-31T23:59:59Z"),
        lease(at="9999-12-31T23:59:59Z", lease_until="9999-12-31T23:59:59Z"),
        lease(at="2026-11-20T12:30:00Z", lease_until="2026-11-20T12:31:00Z"),  # half an hour ahead
        lease(lease_until="2026-11-20T11:59:59Z"),
        lease(instance_id=7),
        lease(instance_id="i-1/../i-2"),
        lease(progress_at="2026-11-20T11:59:00Z"),  # without its bound
        lease(progress_bound=900),
        lease(progress_at="2026-11-20T11:59:00Z", progress_bound=0),
        lease(progress_at="2026-11-20T11:59:00Z", progress_bound=7201),
        lease(progress_at="2026-11-20T11:59:00Z", progress_bound=9.5),
        lease(progress_at="2026-11-20T12:00:01Z", progress_bound=900),  # after the lease itself
        lease(note="x" * 4096),
        lease().replace(b"}", b', "n": NaN}'),
    ],
)
def test_what_no_node_of_ours_wrote_is_one_error(body):
    with pytest.raises(Unsound):
        read_lease(body, NOON)


@pytest.mark.parametrize(
    ("lease_until", "now", "expected"),
    [
        (NOON, NOON + SLACK, False),
        (NOON, NOON + SLACK + timedelta(seconds=1), True),
        (None, NOON + BOOT_ALLOWANCE, False),
        (None, NOON + BOOT_ALLOWANCE + timedelta(seconds=1), True),
    ],
)
def test_silence_counts_after_the_lease_or_the_boot_allowance(lease_until, now, expected):
    assert silent(launched_at=NOON, lease_until=lease_until, now=now) is expected


def test_a_node_whose_s3_failed_for_two_minutes_is_not_silent():
    """Its last lease is from just before; then S3 fails, and its next try may be half a minute away."""
    last = lease(at=NOON.isoformat(), lease_until=(NOON + LEASE).isoformat())
    until = read_lease(last, NOON).lease_until
    for seconds, gone in ((120 + 30, False), (240, True)):
        now = NOON + timedelta(seconds=seconds)
        assert silent(launched_at=NOON, lease_until=until, now=now) is gone


@pytest.mark.parametrize(("minutes", "stalled"), [(30, False), (31, True)])
def test_a_lease_renewed_for_twice_its_bound_is_stalled(minutes, stalled):
    moved_at = NOON - timedelta(minutes=minutes)
    read = read_lease(lease(progress_at=moved_at.isoformat(), progress_bound=900), NOON)
    assert (read.progress_at, read.progress_bound) == (moved_at, timedelta(minutes=15))
    assert read.is_stalled is stalled
    assert not read_lease(lease(), NOON).is_stalled, "it says nothing of progress"


def test_the_longest_bound_of_a_clock_fits_into_a_lease():
    assert (
        timedelta(seconds=MOST_SECONDS) <= LONGEST_BOUND
        and timedelta(seconds=FIRST_SECONDS) == BOOT_ALLOWANCE
    )
    assert silence.TWICE == lease_module.TWICE
