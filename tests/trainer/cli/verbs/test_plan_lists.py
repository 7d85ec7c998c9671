"""`mayfly plan` in another region, of types without a price, and by old lists."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

import pytest

from tests.trainer.cli.verbs.test_plan_verb import NUMBERS, no_account, planned, refused
from trainer.machines import instances
from trainer.machines.instances import catalogue

__all__ = ["no_account"]  # a fixture of every test here


def test_another_region_has_no_reserved_price_and_no_quote(capsys, monkeypatch):
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    document = planned(capsys, "--instance", "g5.xlarge")
    pay = document["pay"]
    assert not any(way["way"].startswith(("reserved", "SageMaker")) for way in pay["ways"])
    assert pay["missing"][0].endswith("reserved, savings plans, SageMaker")
    assert {one["sagemaker_dollars"] for one in document["candidates"]} == {None}
    assert not any("SageMaker" in sentence for sentence in pay["sentences"])


def test_a_type_that_its_region_lacks_is_out_with_the_region(capsys):
    document = planned(capsys, "--instance", "p5e.48xlarge", "--instance", "g6.xlarge")
    assert document["candidates"][0]["refused"] == "not offered in us-east-1"
    code, words = refused(capsys, *NUMBERS[1:], "--instance", "p5e.48xlarge")
    assert code == 103 and "no instance type to launch in us-east-1 (p5e.48xlarge: not offered" in words


def test_another_region_has_assumed_prices_and_says_so(capsys, monkeypatch):
    home = planned(capsys)
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    away = planned(capsys)
    assert "2 x the list prices of us-east-1, since those of eu-west-1 are unknown" in away["prices_are"]
    prices = [
        {line["instance_type"]: line["price_usd_per_hour"] for line in one["candidates"]}
        for one in (home, away)
    ]
    assert prices[1]["g6.xlarge"] == pytest.approx(2 * prices[0]["g6.xlarge"])


@pytest.mark.parametrize("price", [None, 0.0])
def test_a_type_without_a_price_is_out(capsys, monkeypatch, price):
    known = catalogue()
    changed = {**known, "g6.xlarge": replace(known["g6.xlarge"], price_usd_per_hour=price)}
    monkeypatch.setattr(instances, "catalogue", lambda: changed)
    document = planned(capsys, "--instance", "g6.xlarge", "--instance", "g5.xlarge")
    lines = [line for line in document["candidates"] if line["instance_type"] == "g6.xlarge"]
    assert {line["refused"] for line in lines} == {"no list price known, so no deadline can be made"}
    code, words = refused(capsys, *NUMBERS[1:], "--instance", "g6.xlarge")
    assert code == 103 and "g6.xlarge: no list price known" in words and words.count("error:") == 1


def test_old_lists_are_one_note_each(capsys, monkeypatch):
    assert len(planned(capsys)["notes"]) == 2  # the lists of spot and of reserved prices are of 2025
    monkeypatch.setattr("trainer.cli.verbs.plan.utc_now", lambda: datetime(2027, 6, 1, tzinfo=timezone.utc))
    notes = planned(capsys)["notes"]
    assert notes[0] == ("the list prices are of 2026-07-20, 316 days old. mayfly plan --stack NAME asks AWS.")
    assert [note.split(" are of ")[0] for note in notes[1:]] == [
        "the typical spot prices",
        "the prices outside AWS",
        "the reserved prices",
    ]
    assert not notes[2].endswith(" asks AWS.")  # which does not know what others charge


def test_a_clock_before_the_lists_is_one_note(capsys, monkeypatch):
    monkeypatch.setattr("trainer.cli.verbs.plan.utc_now", lambda: datetime(1970, 1, 1, tzinfo=timezone.utc))
    (note,) = planned(capsys)["notes"]
    assert note.startswith("this machine's clock says 1970-01-01, before its price list of 2026-11-09")


def test_a_clock_that_is_years_ahead_makes_every_list_old(capsys, monkeypatch):
    monkeypatch.setattr("trainer.cli.verbs.plan.utc_now", lambda: datetime(2036, 1, 1, tzinfo=timezone.utc))
    notes = planned(capsys)["notes"]
    assert len(notes) == 4 and all("days old" in note for note in notes)
