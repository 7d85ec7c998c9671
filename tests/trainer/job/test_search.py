"""The table [search]: what it takes, and the trials that it makes."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.jobs import job_of
from trainer.base.errors import UsageError
from trainer.base.strict_json import Fields, Unsound
from trainer.job.job import Job
from trainer.job.pieces import check_machines, pieces_of
from trainer.job.pieces.piece import SeriesWork
from trainer.job.reading import job_from, job_from_json, parse_job
from trainer.job.search import SearchSettings, dearest, values_in
from trainer.job.search import job_of as job_of_trial
from trainer.job.trials import TrialEnd, read_end

RATES = {"low": 1e-4, "high": 1e-1, "log": True}
SIZES = [16, 64]


def searching(over: Any, **keys: Any) -> Job:
    own = {key if "." in key else f"search.{key}": value for key, value in keys.items()}
    return parse_job({}, {"search.over": over, **own})


def search(over: Any, **keys: Any) -> SearchSettings:
    return SearchSettings(over=over, **keys)


def test_a_grid_has_every_combination_in_order():
    made = search({"model": {"hidden": SIZES}, "train.ema": [0.0, 0.9]}, method="grid").trial_values
    assert [tuple(value for _, value in one) for one in made] == [(16, 0.0), (16, 0.9), (64, 0.0), (64, 0.9)]
    assert [key for key, _ in made[0]] == ["model.hidden", "train.ema"]


def test_random_trials_follow_the_seed_and_never_repeat():
    choices = {"model.hidden": list(range(1, 8)), "train.ema": [0.0, 0.9]}
    made = search(choices, trials=14).trial_values
    assert len(set(made)) == 14 and search(choices, trials=14).trial_values == made
    assert search(choices, trials=14, seed=1).trial_values != made
    assert search(choices).num_trials == 14, "no more than there are"


def test_ranges_are_drawn_within_their_ends():
    over = {"train.learning_rate": RATES, "train.warmup_steps": {"low": 1, "high": 3}}
    made = [dict(values) for values in search(over, trials=200).trial_values]
    rates = sorted(one["train.learning_rate"] for one in made)
    assert rates[0] >= 1e-4 and rates[-1] <= 1e-1 and 1e-3 < rates[100] < 1e-2, "uniform in the logarithm"
    assert {one["train.warmup_steps"] for one in made} == {1, 2, 3}


def test_each_whole_number_below_zero_is_drawn_as_often():
    made = search({"shift": {"low": -2, "high": 1}}, trials=400).trial_values
    counts = Counter(value for ((_, value),) in made)
    assert counts.keys() == {-2, -1, 0, 1} and max(counts.values()) < 130


def test_a_whole_number_beyond_a_floats_digits_is_in_its_range():
    (((_, value),),) = search({"seed": {"low": 10**17 + 1, "high": 10**17 + 2}}, trials=1).trial_values
    assert value in (10**17 + 1, 10**17 + 2)


def test_a_trial_is_the_job_with_its_values():
    job = searching({"train.learning_rate": RATES, "model.hidden": SIZES}, trials=3)
    for values in job.search.trial_values:
        made, known = job_of_trial(job, values), dict(values)
        assert (made.train.learning_rate, made.model.hidden) == tuple(known.values())
        assert made.with_train(learning_rate=job.train.learning_rate) == replace(
            job, search=SearchSettings(), model=made.model
        )
        assert values_in(job.search, {key: str(value) for key, value in values}) == values
    assert dict(dearest(job))["model.hidden"] == 64
    assert job_from_json(json.dumps(job.to_dict())) == job
    assert "search" not in job_of().to_dict()


@pytest.mark.parametrize(
    ("over", "keys", "what"),
    [
        ({"model.lookback": [30, 60]}, {}, "search.over has model.lookback"),
        ({"data.folds": [2]}, {}, "search.over has data.folds"),
        ({"train.seeds": [2]}, {}, "search.over has train.seeds"),
        ({"train.learning_rate": [0.0]}, {}, "train.learning_rate"),
        ({"train.learning_rate": {"low": 1, "high": 0}}, {}, "low must be below high"),
        ({"train.learning_rate": {"low": 0, "high": 1, "log": True}}, {}, "above 0 with log"),
        ({"train.learning_rate": {"low": 0.1, "top": 1}}, {}, "a range has low, high and log"),
        ({"model.hidden": [16, 16]}, {}, "twice"),
        ({"model.hidden": ["big"]}, {}, "a whole number"),
        ({"model.hidden": {"low": 8, "high": 64}}, {"method": "grid"}, "a grid has choices only"),
        ({"model.hidden": SIZES}, {"method": "grid", "trials": 1}, "2 combinations"),
        ({"model.hidden": SIZES}, {"score": "loss:min"}, "search.score without a script"),
        ({"model.hidden": SIZES}, {"train.distributed": "always"}, "all devices"),
        ({"model.hidden": SIZES}, {"train.init": "a.safetensors"}, "start from one model"),
        ({"model.hidden": SIZES}, {"model.file": "a.py", "model.class": "Net"}, "with one set of its keys"),
        ({"model.width": SIZES}, {}, "lstm has no such key"),
        ({"agent.discount": [0.9]}, {"target.name": "position"}, "keys of [model] and [train]"),
        ({"train.epochs": [3, 9]}, {}, "sizes and rates alone"),
        ({"train.warmup_steps": [5], "train.warmup_epochs": [1.0]}, {}, "trial 1"),
        ({"model.hidden": SIZES}, {"within": "soon"}, "not a duration"),
        ([1], {}, "must be a table"),
        (0, {}, "must be a table"),
        ({}, {}, "search.over has 0 keys"),
        ({"train.patience": {"low": 1, "high": 10**400}}, {}, "numbers of at most 18 digits"),
        ("", {"trials": 3}, "without over"),
        ({"model.hidden": []}, {}, "1 to 1,000 choices"),
        (
            {"model.hidden": list(range(1, 1000)), "train.patience": list(range(1, 9))},
            {"method": "grid"},
            "7,992",
        ),
    ],
)
def test_a_search_that_makes_no_sense_is_refused(over, keys, what):
    with pytest.raises(UsageError) as refused:
        searching(over, **keys)
    assert what in str(refused.value) and refused.value.do


@pytest.mark.parametrize(
    "more",
    [
        {"train.refit": True},
        {"train.seeds": 3, "train.ensemble": True, "train.refit": True},
        {"data.split": "kfold", "data.folds": 2},
        {"train.init": "a.safetensors"},
        {"target.name": "position", "model.name": "mlp"},
        {"model.file": "a.py", "model.class": "Net"},
        {"machine.nodes": 2},
    ],
    ids=str,
)
def test_rates_are_searched_with_whatever_else_a_job_has(more):
    job = searching({"train.learning_rate": RATES}, trials=4, **more)
    trials = [one for one in _pieces(job).values() if one.trial]
    assert len(trials) == 4 * job.data.folds
    assert {(one.members, one.refit) for one in trials} == {(1, False)}


def test_a_machine_needs_a_model_of_its_own():
    two: Any = {"train.seeds": 2, "machine.nodes": 2}
    check_machines(job := searching({"train.learning_rate": RATES}, **two), [*_pieces(job).values()])
    job = searching({"train.learning_rate": RATES}, **two | {"machine.nodes": 3})
    with pytest.raises(UsageError) as refused:
        check_machines(job, [*_pieces(job).values()])
    assert str(refused.value) == (
        "3 machines for 2 models (the trials of a model are compared on one machine). Set machine.nodes = 2."
    )
    plain = parse_job({}, {"machine.nodes": 3})
    check_machines(plain, [*_pieces(plain).values()])


def test_values_of_a_report_must_be_of_the_search():
    one = search({"train.learning_rate": RATES, "train.schedule": ["constant", "cosine"]})
    sound = {"train.learning_rate": "0.001", "train.schedule": "cosine"}
    assert values_in(one, sound) == (("train.learning_rate", 0.001), ("train.schedule", "cosine"))
    for wrong in ({"train.learning_rate": "1"}, {"train.learning_rate": "nan"}, {"train.schedule": "x"}):
        with pytest.raises(UsageError):
            values_in(one, {**sound, **wrong})
    with pytest.raises(UsageError):
        values_in(one, {"train.learning_rate": "0.001"})


def test_a_trial_that_was_left_out_may_have_no_values():
    one = search({"train.learning_rate": RATES}, method="tpe")
    left = {"trial": 2, "values": {}, "end": "left_out", "score": None, "epochs": 0}
    assert read_end(Fields(left, "it"), one) == TrialEnd(trial=2, values=(), end="left_out")
    with pytest.raises(Unsound):
        read_end(Fields({**left, "end": "done"}, "it"), one)


def test_the_end_of_a_trial_survives_its_report():
    one = search({"train.learning_rate": RATES}, method="tpe")
    end = TrialEnd(trial=1, values=(("train.learning_rate", 1e-3),), end="done", score=0.5, epochs=3)
    assert read_end(Fields(end.to_dict(), "it"), one) == end
    for wrong in ({"trial": 0}, {"epochs": -1}, {"end": "won"}, {"score": "low"}):
        with pytest.raises(Unsound):
            read_end(Fields({**end.to_dict(), **wrong}, "it"), one)


def test_trials_without_a_loss_rank_last():
    """A training that diverged is done, and has none."""
    trials = [
        TrialEnd(trial=number, values=(), end=end, score=score)
        for number, (end, score) in enumerate(
            (("failed", None), ("done", math.inf), ("pruned", 0.1), ("done", 0.7), ("done", 0.5)), 1
        )
    ]
    assert [one.trial for one in sorted(trials, key=lambda one: one.rank)] == [5, 4, 3, 1, 2]


def _pieces(job: Job) -> Mapping[str, Any]:
    work = SeriesWork(symbol="A", bars=100, windows=(50, 60), visits=(60.0, 70.0))
    return {piece.title: piece for piece in pieces_of(job, [work], timeframe="1m")}


def test_a_model_has_its_trials_before_it():
    job = searching({"train.learning_rate": RATES}, trials=2, **{"train.seeds": 3, "train.ensemble": True})
    pieces = _pieces(job)
    assert list(pieces) == ["A", "A t1", "A t2"]
    model, first, second = pieces.values()
    assert (model.members, first.members, first.estimate * 3) == (3, 1, model.estimate)
    assert first.study == second.study == model.study == model.name and (first.trial, second.trial) == (1, 2)
    assert (first.seed, first.draws) == (model.seed, model.draws) and first.name == f"{model.name}_t1"
    assert model.tried == 2 and model.values == () != first.values


SCRIPT = {"script": {"command": "python t.py $MAYFLY_VALUE_LR"}, "machine": {"max_duration": "1h"}}
OF_A_SCRIPT = {"over": {"lr": RATES}, "trials": 3, "score": "mse:min"}


def test_pieces_of_a_scripts_search_are_its_trials():
    job = parse_job({**SCRIPT, "search": OF_A_SCRIPT}, {})
    made = pieces_of(job, (), timeframe="")
    assert [(one.title, one.name, one.trial, one.study) for one in made] == [
        (f"t{number}", f"script_mayfly_t{number}", number, "") for number in (1, 2, 3)
    ]
    assert [one.values for one in made] == job.search.trial_values and job.columns == ["lr"]
    assert (job.search.metrics, job.search.better, job.search.prunes) == ({"mse": "min"}, "min", False)
    assert (
        job.gpus_each == 1.0 and job_from(job.to_dict()) == job and job_of_trial(job, made[0].values) == job
    )
    bounds = {"method": "tpe", "prune": "halving", "within": "1h", "dollars": 2.0, "score": "auc:max"}
    tpe = parse_job({**SCRIPT, "search": {**OF_A_SCRIPT, **bounds}}, {})
    assert [one.values for one in pieces_of(tpe, (), timeframe="")] == [()] * 3
    assert (tpe.search.better, tpe.search.prunes) == ("max", True)


@pytest.mark.parametrize(
    ("script", "keys", "what"),
    [
        ({}, {"score": ""}, "a script's [search] without score (nothing says which trial is best)"),
        ({}, {"score": "mse"}, "job key 'search.score' is 'mse' (it must be a metric with min or max"),
        ({"over": {"lr": [1]}}, {}, "script.over with [search]"),
        ({"best": "mse:max"}, {}, "script.best and search.score differ"),
        ({"ray": True}, {}, "script.ray with search.over"),
        ({}, {"over": {"lr": RATES, "api_key": [1]}}, "search.over makes MAYFLY_VALUE_API_KEY"),
        ({}, {"over": {"lr": [" x"]}}, "search.over.lr has ' x' (a value is a number or 1 to 200 bytes"),
        ({}, {"over": {"lr": RATES, "l-r": [1]}}, "search.over has a column 'l-r'"),
        ({}, {"over": {"rate": RATES}}, "script.command uses $MAYFLY_VALUE_LR (no such variable)"),
        ({"nodes": 2}, {"method": "tpe"}, "search.method = tpe of a script on several machines"),
        ({"nodes": 2}, {"prune": "halving"}, "search.prune = halving of a script on several machines"),
        ({"nodes": 2}, {"within": "1h"}, "search.within of a script on several machines"),
        ({"nodes": 2}, {"dollars": 3.0}, "search.dollars of a script on several machines"),
    ],
)
def test_a_scripts_search_that_makes_no_sense_is_one_line(script, keys, what):
    script, nodes = dict(script), {"nodes": script.get("nodes", 1)}
    script.pop("nodes", None)
    tables = {
        "script": {**SCRIPT["script"], **script},
        "machine": {**SCRIPT["machine"], **nodes},
        "search": {**OF_A_SCRIPT, **keys},
    }
    with pytest.raises(UsageError) as refused:
        parse_job(tables, {})
    assert what in str(refused.value) and refused.value.do and "\n" not in str(refused.value)
