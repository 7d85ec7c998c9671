"""The data of a report, and its page: what they show, and that a page's data comes back from it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.pieces import named
from tests.records import RUN, at, created, launched, make_record, seen
from tests.reports import planted_cards, planted_models, planted_receipt, planted_record, planted_report
from trainer.base.html import embedded_json
from trainer.base.strict_json import Unsound
from trainer.runs.observation import NodeSeen, Observation
from trainer.runs.report import page as pages
from trainer.runs.report.data import MOST_TEXT, Seen, report_data
from trainer.runs.report.lanes import lanes
from trainer.runs.report.page import data_of, page
from trainer.runs.reports import Heartbeat, NodeResult


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return planted_report(3, epochs=5)


def test_the_best_model_is_first_with_scores_trades_and_its_card(report):
    rows = report["models"]["rows"]
    marks = ["better", "too little to tell", "no different", "worse"]
    assert [marks.index(row["mark"]) for row in rows] == sorted(marks.index(row["mark"]) for row in rows)
    first = rows[0]
    assert first["baseline"] == "logistic" and first["score"][1] == pytest.approx(first["score"][0] + 0.001)
    assert first["scores"]["baselines"] == ["logistic", "persistence"]
    assert [row["title"] for row in first["scores"]["rows"]] == ["AUC", "log loss", "Brier"]
    assert first["traded"]["hold"] == 0.05 and len(first["equity"]["made"]) == 31
    assert first["equity"]["made"][0] == 0.0 and first["equity"]["at"][-1] == at(86_400 * 30).timestamp()
    assert list(first["reliability"]) == ["up"]
    assert [row["piece"] for row in rows if "production" in row] == ["SYM0000-USD"]


def test_lanes_have_the_phases_of_each_attempt_and_why_it_ended(report):
    first, second = report["lanes"]
    assert [name for name, *_ in first["segments"]] == ["preflight", "capacity", "boot", "stage", "train"]
    assert [name for name, *_ in second["segments"]] == [
        "capacity",
        "boot",
        "stage",
        "train",
        "upload",
        "terminate",
    ]
    assert (first["lost"], second["lost"]) == (True, False) and "taken back" in first["why"]
    for lane in (first, second):
        ends, begins = [one[2] for one in lane["segments"][:-1]], [one[1] for one in lane["segments"][1:]]
        assert ends == begins
    assert first["segments"][-1][2] == at(2_000).timestamp()


def test_of_too_many_lanes_the_newest_are_drawn(monkeypatch, report):
    assert report["lanes_left_out"] == 0
    monkeypatch.setattr("trainer.runs.report.lanes.MOST_LANES", 1)
    data = report_data(planted_receipt([]), planted_record([]), Seen())
    assert [lane["title"] for lane in data["lanes"]] == ["attempt 2"] and data["lanes_left_out"] == 1


def test_predicted_seconds_stand_beside_the_actual_ones(report):
    assert report["predicted"] == {
        "boot": 150.0,
        "stage": 60.0,
        "train": 4_800.0,
        "upload": 30.0,
        "slow": 6_000.0,
    }
    assert report["seconds"]["train"] > 0 and report["dollars"]["estimated"] == 7.5


def test_what_could_not_be_had_is_left_out_with_the_reason():
    receipt = planted_receipt([])
    data = report_data(receipt, planted_record([]), Seen(missing={"curves": "Not shown: no answer"}))
    assert (data["curves"], data["missing"]) == (None, {"curves": "Not shown: no answer"})
    assert data["models"]["rows"] == [] and data["lanes"] and page(data)


def test_texts_are_short_and_environments_are_left_out():
    receipt = planted_receipt([])
    receipt["job"] = {"name": "n" * 5_000, "script": {"file": "a.py", "env": {"TOKEN": "secret"}}}
    body = page(report_data(receipt, planted_record([]), Seen())).decode()
    assert "n" * MOST_TEXT in body and "n" * (MOST_TEXT + 1) not in body and "secret" not in body


def test_trials_stand_where_a_scripts_values_do():
    ends = [("done", 0.5), ("pruned", 0.1), ("failed", None), ("done", 0.4)]
    trials = [
        {
            **named("A", title=f"A t{number}"),
            "values": {"train.ema": "0.9"}, "done": True, "exit_code": 0, "starts": 1, "seconds": 0.0,
            "best": {"metric": "validation_loss", "value": score, "better": "min"} if score else {},
            "trial": number, "end": end, "epochs": 3,
        }
        for number, (end, score) in enumerate(ends, 1)
    ]  # fmt: skip
    receipt = {**planted_receipt([]), "trials": trials}
    values = report_data(receipt, planted_record([]), Seen())["values"]
    assert [row["piece"] for row in values["rows"]] == ["A t4", "A t1", "A t2", "A t3"]
    assert {row["study"] for row in values["rows"]} == {"A"} and values["rows"][2]["end"] == "pruned"
    of_script = [{**one, "piece": f"t{one['trial']}", "kind": "script"} for one in trials]
    shown = report_data({**planted_receipt([]), "scripts": of_script}, planted_record([]), Seen())["values"][
        "rows"
    ]
    assert [(row["piece"], row["study"], row["length"]) for row in shown][:2] == [
        *(("t4", "script", "scores"), ("t1", "script", "scores")),
    ]


def test_values_are_counted_beyond_those_that_are_shown():
    value = {**named("A"), "values": {"lr": "1"}, "exit_code": 0, "starts": 1, "seconds": 0.0, "best": {}}
    scripts = [{**value, "piece": f"v{place}", "done": place < 1_400} for place in range(1_500)]
    values = report_data({**planted_receipt([]), "scripts": scripts}, planted_record([]), Seen())["values"]
    assert (values["total"], values["done"], len(values["rows"])) == (1_500, 1_400, 1_000)


def test_metrics_that_are_no_numbers_are_no_scores():
    models = planted_models(1)
    models[0]["metrics"]["test"] |= {"auc": "high", "n": float("inf"), "baselines": [1], "intervals": 3}
    (row,) = report_data(planted_receipt(models), planted_record(["SYM0000-USD"]), Seen())["models"]["rows"]
    assert (
        row["bars"] is None and row["scores"]["rows"][0]["test"] is None and row["scores"]["baselines"] == []
    )


def test_scores_keep_the_four_decimals_that_the_page_shows():
    models = planted_models(1)
    models[0]["metrics"]["test"]["auc"] = -139.505617
    (row,) = report_data(planted_receipt(models), planted_record(["SYM0000-USD"]), Seen())["models"]["rows"]
    assert f"{row['scores']['rows'][0]['test']:.4f}" == "-139.5056"


def test_an_equity_of_many_cells_keeps_its_last():
    models = planted_models(1)
    card = planted_cards(models)[models[0]["key"]]
    many = type(card)(begins=list(range(10_000)), net=[0.001] * 10_000)
    seen = Seen(cards={models[0]["key"]: many})
    (row,) = report_data(planted_receipt(models), planted_record(["SYM0000-USD"]), seen)["models"]["rows"]
    assert len(row["equity"]["made"]) <= 241 and row["equity"]["made"][-1] == pytest.approx(10.0)


def test_the_data_of_a_page_comes_back_and_draws_the_same_page(report):
    made = page(report)
    assert page(data_of(made, RUN)) == made and len(made) < 200_000
    assert data_of(made, RUN)["models"] == json.loads(json.dumps(report["models"]))


@pytest.mark.parametrize("stored", [b"", b"<html>", b'<script type="application/json" id="data">{]</script>'])
def test_a_stored_file_that_is_no_report_is_unsound(stored):
    with pytest.raises(Unsound):
        data_of(stored, RUN)


def test_a_report_of_another_run_or_format_is_unsound(report):
    with pytest.raises(Unsound, match="not one of"):
        data_of(page(report), "20261120-120000-other-aaaa")
    with pytest.raises(Unsound, match="format"):
        data_of(page({**report, "format": 2}), RUN)


def test_a_page_that_is_too_large_leaves_its_curves_out(report, monkeypatch):
    monkeypatch.setattr(pages, "MOST_PAGE_BYTES", len(page(report)) - 1)
    told = json.loads(embedded_json(page(report)))
    assert told["curves"] is None and "too large" in told["missing"]["curves"]
    monkeypatch.setattr(pages, "MOST_PAGE_BYTES", 1_000)
    with pytest.raises(Unsound, match="bytes"):
        page(report)


def test_the_lane_of_a_lost_node_ends_with_its_machine():
    launch = created(instance_ids=("i-1", "i-2"))
    machines = (
        seen(terminated_at=at(3_600)),
        seen(
            instance_id="i-2", terminated_at=at(600), market="spot", reason="Server.SpotInstanceTermination"
        ),
    )
    record = make_record(
        num_nodes=2, attempts=launched(launch), instances=machines, state="closed", outcome="done",
        ending_at=at(3_500), closed_at=at(3_700),
    )  # fmt: skip
    nodes = tuple(
        NodeSeen(
            instance_id=name,
            heard_at=at(until),
            heartbeat=Heartbeat(
                instance_id=name,
                at=at(until),
                lease_until=at(until + 90),
                phase="train",
                phases={"train": at(60)},
            ),
            result=NodeResult(state="done", phases={"train": at(60), "end": at(3_500)})
            if name == "i-1"
            else None,
        )
        for name, until in (("i-1", 3_500), ("i-2", 590))
    )
    head, other = lanes(record, {1: Observation(nodes=nodes)})["lanes"]
    assert [name for name, *_ in other["segments"]] == ["preflight", "capacity", "boot", "train"]
    assert (other["segments"][-1][2], head["segments"][-1][2]) == (at(600).timestamp(), at(3_600).timestamp())
    assert (other["lost"], head["lost"]) == (True, False)
    assert other["why"] == "the spot instance i-2 was taken back" and head["why"] == ""
