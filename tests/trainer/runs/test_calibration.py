"""Predicted against actual seconds: kept strictly, and followed from three runs of a case on."""

from __future__ import annotations

import statistics
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.jobs import job_of
from tests.planned import offers_of, plan_of
from trainer.aws.place import ACCOUNT, REHEARSAL, Place
from trainer.launch.plan import LaunchPlan
from trainer.machines.planner import workload
from trainer.machines.rates import Rate
from trainer.runs.calibration import (
    MOST_RUNS,
    NEWEST,
    Calibrated,
    TimedRun,
    calibrated,
    case_of,
    runs_from,
    to_bytes,
    with_run,
)

CASE = case_of("account", "g6.xlarge", "model=lstm")
RUN = TimedRun(
    run_id="20261126-120000-a-0000",
    case=CASE,
    visits=1e6,
    predicted=(150.0, 1.0, 100.0, 30.0),
    actual=(120.0, 2.0, 50.0, 20.0),
)
JOB = job_of(instance=("g6.xlarge",))


def test_what_is_stored_is_read_again():
    assert runs_from(to_bytes([RUN])) == (RUN,)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        to_bytes([RUN])[:-9],
        to_bytes([RUN]).replace(b"50.0", b"-1"),
        to_bytes([RUN]).replace(b'"format": 1', b'"format": 2'),
        to_bytes([replace(RUN, actual=(1.0, 2.0))]),
        to_bytes([replace(RUN, case="x" * 1_000)]),
    ],
)
def test_a_damaged_object_counts_as_empty(body):
    assert runs_from(body) == ()


def test_a_run_is_kept_once_and_the_oldest_go():
    assert with_run(with_run((), RUN), RUN) == (RUN,)
    many = tuple(replace(RUN, run_id=str(number)) for number in range(MOST_RUNS))
    assert with_run(many, RUN) == (*many[1:], RUN)


def test_from_three_runs_on_a_case_follows_the_newest_median():
    def took(*seconds: float) -> list[TimedRun]:
        return [replace(RUN, run_id=str(one), actual=(120.0, 2.0, one, 20.0)) for one in seconds]

    assert calibrated(took(50, 60), CASE) is None
    assert calibrated(took(50, 60, 70), "another") is None
    three = calibrated(took(50, 60, 70), CASE)
    assert three == Calibrated(boot=120.0, stage=2.0, visits_per_second=1e6 / 60, upload=20.0, runs=3)
    newest = calibrated(took(*[500] * 9, *[50] * NEWEST), CASE)
    assert newest is not None and newest.visits_per_second == 1e6 / 50


def planned(runs: Calibrated | None = None, *, place: Place = ACCOUNT, **rate: float) -> LaunchPlan:
    known = {"g6.xlarge": Rate(basis="estimate", **rate)} if rate else None
    found = {"g6.xlarge": runs} if runs else None
    return plan_of(
        JOB,
        workload(JOB, {"BTC-USD": 3_700_000}),
        offers_of("g6.xlarge"),
        rates=known,
        runs=found,
        place=place,
        cap=timedelta(days=2),
    )


@pytest.mark.parametrize("faster", [2.5, 1 / 2.5])
def test_after_three_runs_plans_are_within_15_percent(faster):
    """A chip that is so many times as fast as its formula, whose runs scatter by a tenth."""
    runs: tuple[TimedRun, ...] = ()
    errors, plans = [], []
    for number, scatter in enumerate((1.0, 1.1, 0.9, 0.95, 1.1, 1.02, 0.92, 1.05)):
        made = planned(calibrated(runs, CASE))
        (rung, *_) = made.ladder
        formula = planned().first.time.phases
        took = (110.0 * scatter, 3.0, formula.training / faster * scatter, 25.0)
        run = replace(RUN, run_id=str(number), visits=rung.visits, predicted=rung.predicted, actual=took)
        runs, errors, plans = with_run(runs, run), [*errors, run.error], [*plans, made]
    assert statistics.median(errors[:3]) > 0.4  # by the formula
    assert statistics.median(errors[3:]) <= 0.15 and max(errors[3:]) <= 0.25
    assert plans[3].times_are == "what its last 3 runs took for g6.xlarge"
    assert plans[3].to_dict()["candidates"][0]["source"] == "measured here"
    for later in plans[3:]:  # no run that was fast shortens a deadline
        assert later.hard_stop.duration >= plans[0].hard_stop.duration
        assert later.ladder[0].estimate_seconds >= plans[0].ladder[0].estimate_seconds


def test_a_rehearsals_runs_move_the_time_of_this_desk_alone():
    runs = Calibrated(boot=20.0, stage=1.0, visits_per_second=400.0, upload=9.0, runs=3)
    before, after = planned(place=REHEARSAL), planned(runs, place=REHEARSAL)
    assert before.first.here is not None and after.first.here is not None
    assert after.first.time == before.first.time and after.budget_usd == before.budget_usd
    assert after.first.here.phases.training == before.first.here.visits / 400.0
    assert after.hard_stop.duration >= before.hard_stop.duration
