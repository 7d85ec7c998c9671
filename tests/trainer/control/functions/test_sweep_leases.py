"""The sweeper and the leases that it reads: silent nodes end, and one spoiled lease spoils no other."""

from __future__ import annotations

import json
from datetime import timedelta
from io import BytesIO
from typing import Any

import pytest
from botocore.response import StreamingBody

from trainer.runs.lease import BOOT_ALLOWANCE, MOST_LEASE_BYTES, boot_allowance


def test_a_node_that_only_renews_its_lease_ends_at_two_bounds(account):
    slow, stuck, known = (account.launch(deadline=timedelta(hours=5)) for _ in range(3))
    account.beat(slow, account.now, still=timedelta(seconds=1200))
    account.beat(stuck, account.now, still=timedelta(seconds=1201))
    account.beat(known, account.now)
    summary = account.sweep()
    assert [account.state(one) for one in (slow, stuck, known)] == ["alive", "ended", "alive"]
    assert (
        summary.terminated[stuck].startswith("no progress since 20") and "600 s" in summary.terminated[stuck]
    )
    assert not summary.spoiled


def test_a_node_silent_past_its_lease_ends(account):
    hung = account.launch()
    account.beat(hung, account.now)
    account.sweep(later=timedelta(seconds=60))
    assert account.state(hung) == "alive"
    summary = account.sweep(later=timedelta(minutes=4))
    assert account.state(hung) == "ended"
    assert "silent" in summary.terminated[hung]


def test_half_a_lease_is_a_failure_of_s3_and_ends_no_machine(account):
    healthy, later = account.launch(), timedelta(minutes=20)
    account.beat(healthy, account.now + later)

    def cut(parsed: dict[str, Any], **_: Any) -> None:
        """Break the connection off in the middle of the body."""
        body, size = parsed["Body"].read(), parsed["ContentLength"]
        parsed["Body"] = StreamingBody(BytesIO(body[: size // 2]), size)

    account.s3.meta.events.register("after-call.s3.GetObject", cut, unique_id="cut")
    try:
        summary = account.sweep(later=later)
    finally:
        account.s3.meta.events.unregister("after-call.s3.GetObject", unique_id="cut")
    assert account.state(healthy) == "alive"
    assert (summary.terminated, summary.spoiled, summary.failed) == ({}, {}, {})
    assert summary.lease_check.startswith("skipped, S3 fails: ")
    assert account.sweep(later=later).lease_check == "done" and account.state(healthy) == "alive"


@pytest.mark.parametrize("body", [b"", b"{}", b"x" * 2 * MOST_LEASE_BYTES])
def test_a_lease_of_any_size_that_is_none_counts_as_none(account, body):
    mute = account.launch()
    account.s3.put_object(Bucket=account.settings.bucket, Key=account.lease(mute), Body=body)
    summary = account.sweep(later=timedelta(minutes=20))
    assert (list(summary.terminated), list(summary.spoiled)) == ([mute], [mute])


@pytest.mark.parametrize("tag", ["run_id", "role_id"])
def test_an_instance_without_a_lease_ends_at_its_deadline_alone(account, tag):
    """It fails no sweep: that would sound the alarm every two minutes."""
    by_hand = account.launch(deadline=timedelta(hours=2), **{tag: None})
    summary = account.sweep(later=timedelta(hours=1))
    assert (summary.terminated, summary.failed) == ({}, {})
    assert list(account.sweep(later=timedelta(hours=2)).terminated) == [by_hand]


def test_another_instance_can_not_renew_a_lease(account):
    hung, other = account.launch(), account.launch()
    account.beat(hung, account.now)
    account.s3.put_object(  # as far as a hostile instance's role lets it write: under its own id
        Bucket=account.settings.bucket,
        Key=account.lease(other),
        Body=json.dumps(
            {
                "instance_id": hung,
                "at": (account.now + timedelta(minutes=4)).isoformat(),
                "lease_until": (account.now + timedelta(minutes=4)).isoformat(),
            }
        ).encode(),
    )
    assert list(account.sweep(later=timedelta(minutes=4)).terminated) == [hung]


@pytest.mark.parametrize("tag", ["attempt", "node"])
@pytest.mark.parametrize("text", ["\u00b2", "-1", "", "one"])
def test_a_tag_that_is_no_number_counts_as_the_first_of_its_kind(account, tag, text):
    hung = account.launch(**{tag: text})
    account.beat(hung, account.now)
    summary = account.sweep(later=timedelta(minutes=4))
    assert (list(summary.terminated), summary.failed) == ([hung], {})


def test_a_node_that_never_spoke_has_time_to_boot(account):
    mute = account.launch()
    account.sweep(later=timedelta(minutes=14))
    assert account.state(mute) == "alive"
    account.sweep(later=timedelta(minutes=16))
    assert account.state(mute) == "ended"


@pytest.mark.parametrize("tag", ["0", "-5", "1e9", "99999999999999999999", "", "soon", "\u0661\u0662"])
def test_a_boot_allowance_of_another_kind_is_the_default(tag):
    assert boot_allowance(tag) == BOOT_ALLOWANCE


def test_a_type_that_boots_slowly_has_the_time_of_its_tag(account):
    slow, other = (
        account.launch(deadline=timedelta(days=1), boot_seconds="1800"),
        account.launch(deadline=timedelta(days=1)),
    )
    account.sweep(later=timedelta(minutes=29))
    assert (account.state(slow), account.state(other)) == ("alive", "ended")
    account.sweep(later=timedelta(minutes=31))
    assert account.state(slow) == "ended"
