"""The run record: ids that sort by time, tokens that stay the same, JSON that survives."""

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from trainer.runs.deadline import Deadline
from trainer.runs.record import (
    Attempt,
    Launch,
    Rung,
    RunRecord,
    client_token,
    from_iso,
    iso,
    new_run_id,
    record_from_json,
    to_json,
)

NOW = datetime(2026, 11, 20, 23, 59, 12, tzinfo=timezone.utc)
RUNG = Rung(
    instance_type="g5.12xlarge",
    availability_zone="us-east-1a",
    subnet_id="subnet-1",
    market="spot",
    price_usd_per_hour=2.0,
    on_demand_usd_per_hour=5.672,
    gpu_count=4,
    launch_template_id="lt-1",
    image_id="ami-1",
)


def test_run_ids_sort_by_time_across_jobs():
    ids = [new_run_id("zebra", NOW), new_run_id("apple", NOW + timedelta(seconds=1))]
    assert ids == sorted(ids) and ids[0].startswith("20261120-235912-zebra-")
    assert new_run_id("weekly", NOW, suffix="ab12") == "20261120-235912-weekly-ab12"


def test_a_token_is_the_same_for_the_same_intent_only():
    token = client_token("run", 1, 0, 0)
    assert token == client_token("run", 1, 0, 0) and len(token) <= 64
    assert len({token, client_token("run", 2, 0, 0), client_token("run", 1, 1, 0), client_token("run", 1, 0, 1)}) == 4


def test_instants_keep_their_zone():
    assert iso(NOW) == "2026-11-20T23:59:12Z" and from_iso("2026-11-20T23:59:12Z") == NOW
    with pytest.raises(ValueError, match="no time zone"):
        from_iso("2026-11-20T23:59:12")


def test_a_record_survives_json_and_ignores_what_a_newer_writer_added():
    record = RunRecord(
        run_id="r",
        project="mayfly",
        stack="dev",
        owner="me",
        rehearsal=True,
        bucket="b",
        job={"epochs": 1},
        ladder=(RUNG,),
        bundle_key="code/x.whl",
        bundle_sha256="x",
        budget_usd=0.0,
        estimated_usd=1.0,
        preflight_at=NOW,
        created_at=NOW,
        deadline=NOW + timedelta(hours=1),
        attempts=(
            Attempt(number=1, launches=(Launch(rung=0, token="t", deadline=NOW, intended_at=NOW, instance_ids=("i-1",)),)),
        ),
    )
    text = to_json(record)
    assert record_from_json(text) == record
    assert record_from_json(text.replace('"owner": "me",', '"owner": "me", "later": 1,')) == record
    with pytest.raises(ValueError, match="format 9, this version reads 1, 2, 3, 4, 5, 6"):
        record_from_json(text.replace('"format": 6,', '"format": 9,', 1))


def test_a_record_of_format_1_is_read_with_unknown_causes_and_keeps_its_format(make_record):
    launch = Launch(rung=0, token="t", deadline=NOW, intended_at=NOW, outcome="refused", error_code="Unsupported")
    values = json.loads(to_json(make_record(attempts=(Attempt(number=1, launches=(launch,)),))))
    values["format"] = 1
    del values["deadline_cause"]
    for rung in values["ladder"]:
        del rung["vcpus"], rung["quota_code"], rung["default_seconds"]
    old = values["attempts"][0]
    old["ended_at"] = None
    for name in ("deadline_cause", "called_at", "calls"):
        del old["launches"][0][name]
    old["launches"][0] |= {"error_class": "type", "error": {"code": 103, "what": "x", "why": "", "do": ""}}
    record = record_from_json(json.dumps(values))
    assert (record.format, record.deadline_cause, record.attempts[0].launches[0]) == (1, "unknown", launch)
    assert json.loads(to_json(record))["format"] == 1


def test_what_became_of_an_intent_is_found_by_its_token(make_record):
    intents = tuple(Launch(rung=rung, token=f"t{rung}", deadline=NOW, intended_at=NOW) for rung in (0, 1))
    record = make_record(attempts=(Attempt(number=1, launches=intents),))
    record = record.with_launch(replace(intents[1], outcome="created", instance_ids=("i-9",)), NOW)
    assert [launch.outcome for launch in record.attempts[0].launches] == ["intended", "created"]
    assert (record.state, record.attempts[0].created_at) == ("running", NOW)


def test_the_deadline_that_holds_is_the_last_launchs_unless_it_was_refused(make_record):
    launch = Launch(rung=0, token="t", deadline=NOW, deadline_cause="budget", intended_at=NOW)
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
