"""The receipt: its sums, its bounds, and that what is documented is what is produced."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.pieces import named
from tests.records import at, created, launched, piece, seen
from trainer.base.errors import UsageError
from trainer.base.strict_json import Unsound
from trainer.cli.views.drawing import drawn
from trainer.cli.views.receipt import receipt_view
from trainer.runs.attempts import Reached
from trainer.runs.observation import ModelSeen, Observation
from trainer.runs.outcome import EXIT_CODES, exit_code
from trainer.runs.receipt import PHASES, make_receipt, ranked, scripts_of, seconds, spent, winner
from trainer.runs.record import RunPiece
from trainer.runs.reports import INPUT_COUNTS, MOST_KEPT, MOST_OUTPUTS, Heartbeat, NodeResult
from trainer.runs.start_file import StartFile, read_start, start_to_json
from trainer.runs.stored_receipt import receipt_from_json

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference.md"


@pytest.fixture
def ended(make_record):
    """A run that was launched at 10 s, seen running at 40 s and ended at 400 s."""
    instance = seen(launched_at=at(10), running_seen_at=at(40), terminated_at=at(400))
    return make_record(
        state="closed",
        outcome="done",
        attempts=(replace(launched()[0], created_at=at(10)),),
        instances=(instance,),
        ending_at=at(390),
        closed_at=at(450),
    )


def result(**fields: Any) -> NodeResult:
    phases = {"boot": at(60), "stage": at(70), "train": at(100.5), "upload": at(370.25), "end": at(380)}
    model = {
        **named("BTC-USD"),
        "family": "lstm",
        "target": "direction",
        "key": "k/lstm_BTC-USD_1m.safetensors",
        "version_id": "v",
        "sha256": "s",
        "metrics": {},
    }
    data = {"files": [{"file": "a.parquet", "bars": 5}], "bars": 5, "holes": 1, "synthetic": True}
    return NodeResult(**({"state": "done", "models": (model,), "phases": phases, "data": data} | fields))


def test_the_phases_sum_to_the_total(ended):
    told = seconds(ended, Observation(result=result()))
    assert told == {
        "preflight": 5.0,
        "capacity": 10.0,
        "lost": 0.0,
        "boot": 60.0,
        "stage": 30.5,
        "train": 269.75,
        "upload": 9.75,
        "terminate": 20.0,
        "total": 405.0,
    }
    assert sum(told[phase] for phase in PHASES) == pytest.approx(told["total"], abs=1e-9)


@pytest.mark.parametrize(
    "phases", [{}, {"stage": at(70)}, {"train": at(50), "upload": at(40), "end": at(9999)}]
)
def test_the_phases_sum_to_the_total_whatever_the_node_reports(ended, phases):
    told = seconds(ended, Observation(result=result(phases=phases)))
    assert sum(told[phase] for phase in PHASES) == pytest.approx(told["total"], abs=1e-9)
    assert all(value >= 0 for value in told.values())
    assert told["total"] == 405.0


def test_without_a_result_the_last_heartbeat_tells_the_phases(ended):
    beat = Heartbeat(
        instance_id="i-1", at=at(300), lease_until=at(390), phase="train", phases={"train": at(100)}
    )
    assert seconds(ended, Observation(heartbeat=beat))["train"] == 290.0


def test_without_a_result_the_last_heartbeat_counts_the_data(ended):
    read = {"files": [], "bars": 900, "holes": 2, "synthetic": True}
    beat = Heartbeat(instance_id="i-1", at=at(300), lease_until=at(390), phase="train", data=read)
    assert make_receipt(ended, Observation(heartbeat=beat))["data"] == read
    assert make_receipt(ended, Observation(heartbeat=beat, result=result()))["data"]["bars"] == 5


def test_a_run_without_an_instance_spent_its_time_on_capacity(make_record):
    record = make_record(state="closed", outcome="failed", ending_at=at(20), closed_at=at(20))
    told = seconds(record, Observation())
    assert (told["capacity"], told["terminate"], told["total"]) == (20.0, 0.0, 25.0)


def test_the_bill_lies_between_signs_of_life_and_launch_to_end(ended):
    low, high = spent(ended, Observation(result=result()), ended.closed_at)
    assert low == pytest.approx((380 - 40) / 3600 * 5.0)
    assert high == pytest.approx((400 - 10) / 3600 * 5.0)


def test_the_shortest_bill_is_a_minute(ended, make_record):
    short = replace(ended.instances[0], running_seen_at=at(12), terminated_at=at(20))
    low, high = spent(replace(ended, instances=(short,)), Observation(), ended.closed_at)
    assert low == high == pytest.approx(60 / 3600 * 5.0)


def test_an_instance_never_seen_running_may_have_cost_nothing(ended):
    unseen = replace(ended.instances[0], running_seen_at=None)
    low, high = spent(replace(ended, instances=(unseen,)), Observation(), ended.closed_at)
    assert low == 0 and high > 0


def test_a_symbol_without_a_piece_is_in_the_receipt(ended):
    reasons = ("b.csv: high is not above zero in a bar of B",)
    receipt = make_receipt(replace(ended, left_out=reasons), Observation())
    assert receipt["left_out"] == list(reasons)
    assert receipt_from_json(json.dumps(receipt).encode(), ended.run_id)["left_out"] == list(reasons)


def on_spot(ended, *, reason: str = "", cause: str = "", lost_seconds: float = 0.0):
    """Return the run on spot, at $2 an hour instead of $5."""
    instance = replace(ended.instances[0], market="spot", reason=reason, attempt=1)
    rung = replace(ended.ladder[0], market="spot", price_usd_per_hour=2.0, lost_seconds=lost_seconds)
    attempt = replace(ended.attempts[0], cause=cause)
    return replace(ended, instances=(instance,), ladder=(rung,), attempts=(attempt,))


def dollars_of(record) -> dict[str, float]:
    return make_receipt(record, Observation(result=result()))["dollars"]


def test_spot_saves_the_difference_to_on_demand(ended):
    told = dollars_of(on_spot(ended))
    assert told["spot_saved_low"] == pytest.approx(340 / 3600 * 3, abs=1e-6)
    assert told["spot_saved_high"] == pytest.approx(390 / 3600 * 3, abs=1e-6)
    assert (dollars_of(ended)["spot_saved_low"], dollars_of(ended)["spot_saved_high"]) == (0, 0)


@pytest.mark.parametrize(("lost_seconds", "twice"), [(120.0, 120), (240.0, 240), (0.0, 390), (1e4, 390)])
def test_what_a_lost_machine_computed_twice_was_not_saved(ended, lost_seconds, twice):
    told = dollars_of(on_spot(ended, cause="lost", lost_seconds=lost_seconds))
    assert told["spot_saved_low"] == pytest.approx((340 * 3 - twice * 5) / 3600, abs=1e-6)
    assert told["spot_saved_high"] == pytest.approx(390 / 3600 * 3, abs=1e-6)


def test_a_first_hour_that_aws_interrupted_may_be_free(ended):
    told = dollars_of(on_spot(ended, reason="Server.SpotInstanceTermination"))
    assert (told["spent_low"], told["spent_high"]) == (0, pytest.approx(390 / 3600 * 2, abs=1e-6))
    assert told["spot_saved_high"] == pytest.approx(390 / 3600 * 5, abs=1e-6)
    by_itself = dollars_of(on_spot(ended, reason="Client.InstanceInitiatedShutdown"))
    assert by_itself["spent_low"] == pytest.approx(340 / 3600 * 2, abs=1e-6)


def test_without_a_result_models_are_those_in_the_bucket(ended):
    key = "models/experiments/r/1/lstm_BTC-USD_1m.safetensors"
    receipt = make_receipt(
        ended, Observation(models=(ModelSeen(key=key, version_id="v", sha256="s", metrics={"test": {}}),))
    )
    assert [(model["piece"], model["family"]) for model in receipt["models"]] == [("BTC-USD", "lstm")]
    assert [item["piece"] for item in receipt["failed"]] == ["ETH-USD"]


def test_every_fold_and_seed_is_a_model_made_or_missing(ended):
    numbers = [(1, 3), (1, 4), (2, 3), (2, 4)]
    pieces = tuple(
        piece("BTC-USD", model=f"lstm_BTC-USD_1m_f{f}_s{s}", piece=f"BTC-USD f{f} s{s}", fold=f, seed=s)
        for f, s in numbers
    )
    made = [
        ModelSeen(key=f"models/experiments/r/1/{one.model}.safetensors", version_id="v", sha256="s")
        for one in (pieces[0], pieces[3])
    ]
    receipt = make_receipt(replace(ended, pieces=pieces), Observation(models=tuple(made)))
    assert [(model["piece"], model["fold"], model["seed"]) for model in receipt["models"]] == [
        ("BTC-USD f1 s3", 1, 3),
        ("BTC-USD f2 s4", 2, 4),
    ]
    assert [(item["piece"], item["fold"], item["seed"]) for item in receipt["failed"]] == [
        ("BTC-USD f1 s4", 1, 4),
        ("BTC-USD f2 s3", 2, 3),
    ]


def test_a_piece_is_found_by_its_models_name(ended):
    pool = piece("both", model="lstm-direction_both_1m", kind="pooled", series=("A", "B"), seed=7)
    lost = replace(pool, model="lstm-direction_lost_1m", piece="lost")
    key = "models/experiments/r/1/lstm-direction_both_1m.safetensors"
    in_bucket = Observation(models=(ModelSeen(key=key, version_id="v", sha256="s"),))
    receipt = make_receipt(replace(ended, pieces=(pool, lost)), in_bucket)
    assert (
        receipt["models"][0] | {"piece": "both", "kind": "pooled", "series": ["A", "B"], "seed": 7}
        == receipt["models"][0]
    )
    assert receipt["failed"] == [lost.identity | {"reason": "not finished when the run ended (done)"}]
    # A node's own words for it count for nothing.
    reported = {
        **named("ETH-USD"),
        "family": "lstm",
        "key": key,
        "version_id": "v",
        "sha256": "s",
        "metrics": {},
    }
    told = make_receipt(replace(ended, pieces=(pool, lost)), Observation(result=result(models=(reported,))))
    assert told["models"][0] | {"piece": "both", "series": ["A", "B"]} == told["models"][0]


@pytest.mark.parametrize(
    ("outcome", "error", "code"),
    [
        *((outcome, None, code) for outcome, code in EXIT_CODES.items()),
        *(("failed", {"code": code}, code) for code in (100, 101, 102, 103)),
        ("failed", {"code": 2}, 100),
    ],
)
def test_every_state_has_its_exit_code(outcome, error, code):
    assert exit_code(outcome, error) == code


def test_the_documented_receipt_is_the_produced_one(ended):
    ended = replace(ended, left_out=("b.csv: high is not above zero in a bar of B",), ancestors=("r0",))
    failed = make_receipt(ended, Observation(result=result(failed=({**named("ETH-USD"), "reason": "why"},))))
    assert {*paths(failed), "files", "scripts", "trials", "nodes"} == set(
        documented("field", after="## Fields of the receipt")
    )


def value(piece: str, score: float | None, *, better: str = "min", **fields: Any) -> dict[str, Any]:
    """Return the end of a script for one of its values."""
    best = {} if score is None else {"metric": fields.pop("metric", "mse"), "value": score, "better": better}
    return {"piece": piece, "done": True, "best": best, **fields}


def test_retries_count_over_all_machines(ended):
    reached = Reached(phase="train", left=1, steps=9, retries=2)
    first = replace(ended.attempts[0], ended_at=at(200), cause="lost", reached=reached)
    second = replace(ended, attempts=(first, replace(ended.attempts[0], number=2)))
    told = [
        make_receipt(record, Observation(result=one))["retries"]
        for record, one in (
            (ended, result(retries=3)),
            (second, result(retries=3)),
            (second, None),
            (replace(ended, attempts=(first,)), result(state="interrupted", retries=2)),  # told twice
        )
    ]
    assert told == [3, 5, 2, 2]


def test_values_are_sorted_by_their_score_and_the_best_wins():
    of = [
        value("b", 0.3),
        value("failed", 0.1, done=False),
        value("a", 0.2),
        value("none", None),
        value("other", 0.0, metric="mae"),
    ]
    assert [item["piece"] for item in ranked(of)] == ["a", "b", "none", "other", "failed"]
    assert winner(of) == of[2]
    most = [value(name, score, better="max") for name, score in (("x", 0.1), ("y", 0.9))]
    assert [item["piece"] for item in ranked(most)] == ["y", "x"] and winner(most) == most[1]
    for alone in ([], [of[0]], [of[0], of[1], of[3]], [value("x", None), value("y", None)]):
        assert winner(alone) is None


def test_a_trial_beside_other_ends_closes_its_run(ended):
    """A node may report anything, ends of both kinds too: the run gets its receipt, which is read and shown."""
    other = {**named("a"), **value("a", 0.3), "values": {}, "exit_code": 0, "starts": 1, "seconds": 1.0}
    trial = {**other, **named("b 1"), "trial": 1, "end": "failed", "epochs": 1, "done": False}
    for scripts in ((trial, other), (other, trial)):
        observed = Observation(result=NodeResult(state="done", scripts=scripts))
        receipt = make_receipt(replace(ended, work="script", leaves="files"), observed)
        shown = drawn(receipt_view(receipt_from_json(json.dumps(receipt).encode(), ended.run_id), 0))
        assert "2 trials: 1 failed" in shown


def test_a_scripts_receipt_has_its_end_and_its_files(ended):
    prefix, sha256 = f"models/experiments/AROA:i-1/{ended.run_id}/1/out/", "0" * 64
    file = {"file": "a/m.pt", "key": f"{prefix}{sha256}", "version_id": "v", "sha256": sha256, "bytes": 3}
    of_script = {"piece": "s", "kind": "script", "series": [], "fold": 1, "seed": 0}
    run = replace(
        ended,
        work="script",
        leaves="files",
        job={"name": "s"},
        pieces=(RunPiece(model="script_s", **{**of_script, "series": ()}),),
    )
    end = {
        **of_script,
        "sha256": "",
        "done": False,
        "best": {},
        "exit_code": -9,
        "starts": 2,
        "seconds": 1.5,
        "last_lines": ["a", "\x1b[2J"],
        "notes": ["empty"],
    }
    done = make_receipt(run, Observation(result=result(models=(), scripts=(end,)), outputs=(file,)))
    assert (done["work"], done["scripts"], done["files"], done["failed"]) == ("script", [end], [file], [])
    assert receipt_from_json(json.dumps(done).encode(), ended.run_id)["files"] == [file]
    lost = make_receipt(replace(run, outcome="interrupted"), Observation(outputs=(file,)))
    assert (lost["files"], lost["scripts"]) == ([file], [])
    assert lost["failed"] == [{**of_script, "reason": "not finished when the run ended (interrupted)"}]
    for wrong in (
        {"key": f"models/production/{sha256}"},
        {"file": "../x"},
        {"key": f"{prefix.replace('/out/', '/')}{sha256}"},
    ):
        with pytest.raises(Unsound):
            receipt_from_json(json.dumps({**done, "files": [{**file, **wrong}]}).encode(), ended.run_id)


@pytest.mark.parametrize(
    ("missing", "done"),
    [
        ((), [True, True]),
        (("a/m.pt",), [False, True]),
        (("ab/m.pt",), [True, True]),  # of a value of that name
        (("",), [False, False]),  # a node's list can't be read
    ],
)
def test_a_value_is_done_if_s3_holds_its_files(missing, done):
    ends = tuple({**value(name, 0.1), "values": {"v": name}} for name in ("a", "b"))
    told = scripts_of(Observation(result=NodeResult(state="done", scripts=ends), missing=missing))
    assert [one["done"] for one in told] == done
    alone = NodeResult(state="done", scripts=(value("s", 0.1),))  # all files are of its one end
    assert scripts_of(Observation(result=alone, missing=missing))[0]["done"] == (missing == ())


def test_files_of_several_attempts_are_read_and_bounded(ended):
    """Each node of each attempt may list 10,000 of them."""
    sha256 = "0" * 64

    def files(attempt: int, number: int) -> tuple[dict[str, Any], ...]:
        key = f"models/experiments/AROA:i-1/{ended.run_id}/{attempt}/out/{sha256}"
        entry = {"key": key, "version_id": "v", "sha256": sha256, "bytes": 3}
        return tuple({"file": f"{attempt}/{place}.csv", **entry} for place in range(number))

    start = StartFile(run_id=ended.run_id, attempt=2, outputs=files(1, MOST_OUTPUTS + 20_000))
    assert read_start(start_to_json(start), run_id=ended.run_id, attempt=2) == start
    run = replace(ended, work="script", leaves="files", pieces=())
    receipt = make_receipt(run, Observation(start=start, outputs=files(2, MOST_OUTPUTS)))
    read = receipt_from_json(json.dumps(receipt).encode(), ended.run_id)
    assert len(read["files"]) == 2 * MOST_OUTPUTS + 20_000
    more = make_receipt(run, Observation(start=start, outputs=files(2, MOST_KEPT)))
    assert len(receipt_from_json(json.dumps(more).encode(), ended.run_id)["files"]) == MOST_KEPT
    assert [item for item in more["files"] if item["file"].startswith("1/")] == sorted(
        start.outputs, key=lambda item: str(item["file"])
    )


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"format": 4}, "has format 4, this version reads 5"),
        ({"run_id": "another"}, "is that of run 'another'"),
        ({"job": {}}, "has no job"),
        ({"place": None}, "has no place"),
        ({"deadline_cause": None}, "has no deadline_cause"),
        ({"parent": "../r1"}, "parent is '../r1'"),
        ({"models": 5}, "models is not a list"),
        ({"instances": [{}]}, "has no instance_id"),
    ],
)
def test_a_foreign_or_damaged_receipt_is_refused(ended, changed, why):
    receipt = make_receipt(ended, Observation(models=()))
    assert receipt_from_json(json.dumps(receipt).encode(), ended.run_id)["place"] == ended.place
    with pytest.raises(Unsound, match=why):
        receipt_from_json(json.dumps(receipt | changed).encode(), ended.run_id)


@pytest.mark.parametrize("folder", ["models/experiments/AROA:i-1/another/1", "models/production", "{run}/1"])
def test_a_receipts_model_lies_in_its_runs_folder(ended, folder):
    for here, sound in ((folder, False), ("models/experiments/AROA:i-1/{run}/1", True)):
        key = f"{here.format(run=ended.run_id)}/lstm_BTC-USD_1m.safetensors"
        model = ModelSeen(key=key, version_id="v", sha256="0" * 64)
        body = json.dumps(make_receipt(ended, Observation(models=(model,)))).encode()
        with nullcontext() if sound else pytest.raises(Unsound, match="not a model of the run"):
            receipt_from_json(body, ended.run_id)


@pytest.mark.parametrize(
    ("folder", "sound"),
    [
        ("models/experiments/AROA:i-1/second/1", True),
        ("models/experiments/AROA:i-1/first/2", True),
        ("models/experiments/AROA:i-1/another/1", False),
        ("models/production", False),
    ],
)
def test_a_receipt_names_models_of_the_runs_it_continues_alone(ended, folder, sound):
    continuing = replace(ended, parent="second", parent_counts="all", ancestors=("first",))
    key = f"{folder}/lstm_BTC-USD_1m.safetensors"
    receipt = make_receipt(
        continuing, Observation(models=(ModelSeen(key=key, version_id="v", sha256="0" * 64),))
    )
    with nullcontext() if sound else pytest.raises(Unsound, match="not a model of the run"):
        assert receipt_from_json(json.dumps(receipt).encode(), ended.run_id)["ancestors"] == ["first"]


def test_the_documented_states_are_those_of_the_code():
    table = {row[0]: row[1] for row in rows("state")}
    assert table == {
        state: str(code) if state != "failed" else "100 to 103" for state, code in EXIT_CODES.items()
    }


def test_the_documented_error_is_the_produced_one():
    assert set(documented("field", after="## The error")) == {
        f"error.{key}" for key in UsageError("x").as_dict()
    }


# documented as a whole
OPEN = {"checkpoints", "error", "job", "boot", "inputs", "devices", "data.files", "files", "models[].metrics"}


def paths(value: Any, path: str = "") -> set[str]:
    if path in OPEN or not isinstance(value, (dict, list)):
        return {path}
    if isinstance(value, list):
        return set().union(*(paths(item, f"{path}[]") for item in value))
    return set().union(*(paths(item, f"{path}.{key}" if path else key) for key, item in value.items()))


def rows(first_header: str, after: str = "## Fields of the receipt") -> list[list[str]]:
    text = DOCUMENT.read_text(encoding="utf-8").split(after, 1)[1]
    table = re.search(rf"\| {first_header} \|.*\n\|[ -|]*\n((?:\|.*\n)+)", text)
    assert table is not None
    return [
        [cell.strip().strip("`") for cell in line.strip("|\n ").split("|")] for line in table[1].splitlines()
    ]


def documented(first_header: str, after: str) -> list[str]:
    return [row[0] for row in rows(first_header, after)]


def test_an_open_run_counts_on_after_a_lost_machine(make_record):
    lost = replace(launched()[0], ended_at=at(1_800), cause="lost", error={"code": 105, "what": "w"})
    again = created(token="t9", instance_ids=("i-2",))
    second = replace(launched(again)[0], number=2, created_at=at(2_000))
    machines = (
        seen(terminated_at=at(1_900)),
        seen("running", instance_id="i-2", attempt=2, launched_at=at(2_000)),
    )
    record = make_record(state="running", attempts=(lost, second), instances=machines)
    told = seconds(record, Observation(), at(3_000))
    assert (told["lost"], told["boot"], told["total"]) == (1_995.0, 1_000.0, 3_005.0)
    waits = replace(record, state="starting", attempts=(lost, replace(second, launches=(), created_at=None)))
    assert seconds(replace(waits, instances=machines[:1]), Observation(), at(3_000))["lost"] == 2_995.0


def test_a_receipt_cuts_an_error_to_what_its_reader_takes(ended):
    """A ladder of 120 full pools names each of them."""
    error = {"code": 101, "what": "no capacity", "why": "tried " + "x" * 5_000, "do": "Launch later."}
    lost = replace(ended.attempts[0], ended_at=at(400), cause="lost", error=error)
    record = replace(ended, outcome="failed", error=error, attempts=(lost,))
    receipt = make_receipt(record, Observation(models=()))
    read = receipt_from_json(json.dumps(receipt).encode(), record.run_id)
    assert read["error"]["why"].startswith("tried xxx") and read["error"]["why"].endswith("x ...")
    assert read["attempts"][0]["error"] == read["error"] and read["exit_code"] == 101


@pytest.mark.parametrize(("gain", "error"), [(1e18, 1e17), (1e-300, 1.0), (-9e17, 9e17), (1e18, 1e-300)])
def test_a_receipt_with_any_gain_of_a_node_is_read_again(ended, gain, error):
    scores = {"gain": gain, "error": error, "freedom": 1}
    about = {
        "headline": "mse",
        "proper": ["mse"],
        "metrics": {"mse": {"title": "MSE", "better": "lower", "unit": ""}},
        "table": [],
    }
    metrics = {"about": about, "test": {"n": 900, "cells": 90, "better": {"mean": {"mse": scores}}}}
    key = f"models/experiments/AROA:i-1/{ended.run_id}/1/lstm_BTC-USD_1m.safetensors"
    model = ModelSeen(key=key, version_id="v", sha256="0" * 64, metrics=metrics)
    receipt = make_receipt(ended, Observation(models=(model,)))
    assert receipt["models"][0]["judgement"]["mark"]
    assert receipt_from_json(json.dumps(receipt).encode(), ended.run_id)["models"] == receipt["models"]


def test_inputs_of_many_machines_are_read_again(ended):
    """Each of 64 may fetch terabytes, and a receipt has their sum."""
    inputs = dict.fromkeys(INPUT_COUNTS, 0) | {"s3_bytes": 64 * 10**13, "cache_failed": ""}
    receipt = make_receipt(ended, Observation(result=result(models=(), inputs=inputs)))
    assert receipt_from_json(json.dumps(receipt).encode(), ended.run_id)["inputs"] == inputs
