"""The lease: reading a heartbeat, and when silence counts."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from trainer.runs.lease import BOOT_ALLOWANCE, LEASE, SLACK, heartbeat_key, read_heartbeat, silent

NOON = datetime(2026, 11, 20, 12, 0, 0, tzinfo=timezone.utc)


def test_the_key_names_run_attempt_and_node():
    assert heartbeat_key("r", 2) == "live/r/2/0.json"


def test_a_heartbeat_without_a_lease_gets_the_usual_one():
    assert read_heartbeat({"at": "2026-11-20T12:00:00Z"}).lease_until == NOON + LEASE


def test_a_heartbeat_is_read_with_its_phases_in_utc():
    beat = read_heartbeat(
        {
            "at": "2026-11-20T13:00:00+01:00",
            "lease_until": "2026-11-20T12:01:30Z",
            "phases": {"boot": "2026-11-20T11:59:00Z", "train": None},
        }
    )
    assert (beat.at, beat.phases) == (NOON, {"boot": NOON - timedelta(minutes=1)})


@pytest.mark.parametrize("values", [{}, {"at": "yesterday"}, {"at": "2026-11-20T12:00:00"}])
def test_what_no_node_of_ours_wrote_is_refused(values):
    with pytest.raises((KeyError, ValueError)):
        read_heartbeat(values)


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


def test_a_rate_has_a_unit_that_we_know():
    at = {"at": "2026-11-20T12:00:00Z", "rate": 5.0}
    assert [read_heartbeat({**at, "unit": unit}).unit for unit in ("chunks", "windows", "\x1b[31m")] == [
        "chunks",
        "windows",
        "windows",
    ]
