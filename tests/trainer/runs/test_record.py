"""The run record: ids that sort by time, tokens that stay the same, JSON that survives."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from tests.records import intent, launched, seen
from trainer.base.instants import from_iso, iso
from trainer.runs.attempts import Attempt
from trainer.runs.deadline import Deadline
from trainer.runs.record import client_token, new_run_id

NOW = datetime(2026, 11, 20, 23, 59, 12, tzinfo=timezone.utc)


def test_run_ids_sort_by_time_across_jobs():
    ids = [new_run_id("zebra", NOW), new_run_id("apple", NOW + timedelta(seconds=1))]
    assert ids == sorted(ids) and ids[0].startswith("20261120-235912-zebra-")
    assert new_run_id("weekly", NOW, suffix="ab12") == "20261120-235912-weekly-ab12"


def test_a_token_is_the_same_for_the_same_intent_only():
    token = client_token("run", 1, 0, 0)
    assert token == client_token("run", 1, 0, 0) and len(token) <= 64
    assert (
        len({token, client_token("run", 2, 0, 0), client_token("run", 1, 1, 0), client_token("run", 1, 0, 1)})
        == 4
    )


def test_instants_keep_their_zone():
    assert iso(NOW) == "2026-11-20T23:59:12Z" and from_iso("2026-11-20T23:59:12Z") == NOW
    with pytest.raises(ValueError, match="no time zone"):
        from_iso("2026-11-20T23:59:12")


def test_what_became_of_an_intent_is_found_by_its_token(make_record):
    intents = tuple(intent(rung) for rung in (0, 1))
    record = make_record(attempts=(Attempt(number=1, launches=intents),))
    record = record.with_launch(replace(intents[1], outcome="created", instance_ids=("i-9",)), NOW)
    assert [launch.outcome for launch in record.attempts[0].launches] == ["intended", "created"]
    assert (record.state, record.attempts[0].created_at) == ("running", NOW)


def test_the_deadline_is_the_last_launchs_unless_it_was_refused(make_record):
    launch = intent(deadline_cause="budget")
    record = make_record(deadline_cause="default_duration")
    assert record.effective_deadline == Deadline(at=record.deadline, cause="default_duration")
    for outcome, cause in (
        ("intended", "budget"),
        ("created", "budget"),
        ("abandoned", "budget"),
        ("refused", "default_duration"),
    ):
        launched = record.with_new_launch(replace(launch, outcome=outcome))
        assert launched.effective_deadline.cause == cause


def test_only_reports_of_the_launchs_instances_count(make_record):
    """The instance of a call that was given up came too late: no caller wrote its id, so it works for nobody."""
    given_up = intent(outcome="refused", error_code="NoClearAnswer")
    record = make_record(attempts=(Attempt(number=1, launches=(given_up,)),), instances=(seen("running"),))
    assert record.working_ids == () and record.nodes == ()
    assert replace(record, attempts=launched()).working_ids == ("i-1",)
