from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.jobs import job_of, with_settings
from trainer.aws.place import ACCOUNT, REHEARSAL
from trainer.machines.chips import packaged
from trainer.machines.instances import catalogue, instance_type
from trainer.machines.planner import (
    SCORING_SHARE,
    Workload,
    around,
    cpu_windows_per_second,
    default_max_duration,
    dollars,
    estimate,
    longest_first,
    three_times_slow,
    windows_per_second,
    with_bytes,
    workload,
)
from trainer.machines.rates import Rate, visits_per_second

JOB = job_of(epochs=2, validation_fraction=0.2, test_fraction=0.3, lookback=60)


def windows(work: Workload) -> dict[str, int]:
    return {piece.title: piece.windows for piece in work.pieces}


def test_longest_first_gives_the_long_job_a_lane_of_its_own():
    assert longest_first([1, 1, 1, 3], 2) == 3
    assert longest_first([5, 4, 3], 1) == 12
    assert longest_first([], 4) == 0


def test_work_counts_the_windows_of_the_training_span():
    work = workload(JOB, {"A": 10_060, "B": 500_000})
    assert windows(work) == {"A": 4_970, "B": 249_940}
    few = workload(job_of(bars=10_060, validation_fraction=0.2, test_fraction=0.3), {"B": 500_000})
    assert windows(few) == {"B": 4_970}


def test_a_tcns_cost_follows_weights_and_receptive_field():
    small = workload(job_of(model="tcn", blocks=1, width=512), {"A": 100_000})
    double = workload(job_of(model="tcn", blocks=1, width=1024), {"A": 100_000})
    assert double.window_cost_cpu == pytest.approx(4 * small.window_cost_cpu)
    long, short = (workload(job_of(model="tcn", chunk=chunk), {"A": 100_000}) for chunk in (1 << 20, 1024))
    assert 1.4 < short.window_cost_cpu / long.window_cost_cpu < 1.7
    # The full size was measured at 1,100 bars a second on a core.
    assert 800 < cpu_windows_per_second() / short.window_cost_cpu < 1400


def test_every_fold_and_seed_is_work_less_for_older_folds():
    work = workload(with_settings(JOB, folds=2, seeds=2, epochs=15), {"A": 10_000})
    assert windows(work) == {"A f1 s0": 1_940, "A f1 s1": 1_940, "A f2 s0": 4_940, "A f2 s1": 4_940}
    assert work.pieces[0].estimate == pytest.approx(15 * (1_940 + SCORING_SHARE * 2_000))


def test_an_epoch_of_steps_is_as_much_work_as_they_visit():
    whole = workload(job_of(epochs=10, batch=100), {"A": 10_000}).pieces[0].estimate
    scored = SCORING_SHARE * 1_500
    part = workload(job_of(epochs=10, batch=100, steps_per_epoch=30), {"A": 10_000}).pieces[0].estimate
    assert part == pytest.approx(10 * (3_000 + scored)) and part < whole
    assert (
        workload(job_of(epochs=10, batch=100, steps_per_epoch=999), {"A": 10_000}).pieces[0].estimate == whole
    )
    chunks = workload(job_of(model="tcn", chunk=100, epochs=1, batch=2, steps_per_epoch=5), {"A": 10_000})
    assert chunks.pieces[0].estimate == pytest.approx(1_000 + scored)


def test_a_rehearsal_is_bound_by_the_cores_of_this_machine():
    work = workload(JOB, {"A": 100_000, "B": 100_000, "C": 100_000, "D": 100_000})
    one = work.pieces[0].estimate / cpu_windows_per_second()
    extra = sum(around(instance_type("g6.xlarge"), place=REHEARSAL))
    two_cores = estimate(work, instance_type("p3.8xlarge"), place=REHEARSAL, cores=2)
    assert two_cores.seconds_p50 == pytest.approx(extra + 2 * one)
    one_gpu = estimate(work, instance_type("p3.2xlarge"), place=REHEARSAL, cores=2)
    assert one_gpu.seconds_p50 == pytest.approx(extra + 4 * one)


def test_on_aws_four_gpus_take_four_symbols_at_once():
    work = workload(JOB, dict.fromkeys("ABCD", 4_000_000))
    extra = sum(around(instance_type("g6.xlarge"), place=ACCOUNT))
    four = estimate(work, instance_type("g6.12xlarge"), place=ACCOUNT).seconds_p50 - extra
    one = estimate(work, instance_type("g6.xlarge"), place=ACCOUNT).seconds_p50 - extra
    assert one == pytest.approx(4 * four)


def test_a_rate_is_that_of_one_device():
    work = workload(JOB, dict.fromkeys("ABCD", 4_000_000))
    extra = sum(around(instance_type("g6.xlarge"), place=ACCOUNT))
    one = work.pieces[0].estimate
    rate = Rate(per_second=50_000.0, basis="yours")

    def seconds(name: str, rate: Rate) -> float:
        return estimate(work, instance_type(name), place=ACCOUNT, rate=rate).seconds_p50 - extra

    assert seconds("g6.xlarge", rate) == pytest.approx(4 * one / 50_000)
    assert seconds("g6.12xlarge", rate) == pytest.approx(one / 50_000)


def test_a_rehearsals_rate_is_that_of_a_core():
    work = workload(JOB, dict.fromkeys("ABCD", 100_000))
    extra = sum(around(instance_type("p3.8xlarge"), place=REHEARSAL))
    one = work.pieces[0].estimate
    rate = Rate(per_second=4_000.0, basis="")
    two_cores = estimate(work, instance_type("p3.8xlarge"), place=REHEARSAL, cores=2, rate=rate)
    assert two_cores.seconds_p50 - extra == pytest.approx(2 * one / 4_000)


def test_the_slow_estimate_is_above_the_middle_one():
    time = estimate(workload(JOB, {"A": 100_000}), instance_type("g6.xlarge"), place=ACCOUNT)
    assert time.seconds_p90 > time.seconds_p50 > sum(around(instance_type("g6.xlarge"), place=ACCOUNT))


def test_every_chip_of_the_catalogue_has_a_rate():
    rates = {machine.name: windows_per_second(machine) for machine in catalogue().values()}
    assert all(rate > 0 for rate in rates.values())
    assert rates["g6f.large"] == rates["g6.xlarge"] / 8
    assert rates["g6e.xlarge"] > rates["g6.xlarge"] > rates["g4dn.xlarge"]


def test_dollars_are_by_the_second_and_sixty_at_least():
    assert dollars(3600, 12.24) == pytest.approx(12.24)
    assert dollars(1, 12.24) == dollars(60, 12.24) == pytest.approx(0.204)


@pytest.mark.parametrize(
    ("name", "seconds_p90", "expected"),
    [
        ("g6.xlarge", 60, timedelta(minutes=30)),
        ("g6.xlarge", 1200, timedelta(hours=1)),
        ("g6.xlarge", 100_000, timedelta(hours=12)),
        # One that boots as slowly as it may has 15 minutes for its work
        ("p5.48xlarge", 60, timedelta(minutes=45)),
    ],
)
def test_the_longest_run_is_three_times_the_slow_estimate(name, seconds_p90, expected):
    assert default_max_duration(seconds_p90, instance_type(name)) == expected
    # 12 hours are for jobs that name no duration.
    uncapped = max(expected, timedelta(seconds=3 * seconds_p90))
    assert three_times_slow(seconds_p90, instance_type(name)) == uncapped


def test_no_type_has_less_than_half_an_hour():
    machine = instance_type("g6.xlarge")
    fast = replace(machine, boot=replace(machine.boot, allowance_seconds=300))
    assert three_times_slow(1, fast) == timedelta(minutes=30)


def test_rates_that_an_h200_measured_are_those_of_the_formulas():
    """docs/benchmarks.md, 2026-11-27."""
    h200 = packaged()["h200"]
    tcn = visits_per_second(h200, job_of(model="tcn", batch=64))
    assert tcn == pytest.approx(1_022 * 1024, rel=0.05)  # bars of 1,022 chunks
    for windows, measured in ((1_024, 17_247), (64, 8_001)):
        large = job_of(model="transformer", preset="large", batch=windows)
        assert visits_per_second(h200, large) == pytest.approx(measured, rel=0.1), windows


def test_data_and_models_move_at_the_types_network_rate():
    work = with_bytes(workload(JOB, {"A": 100_000}), JOB, input_bytes=6_000_000_000)
    fast, slow = (
        estimate(work, instance_type(name), place=ACCOUNT) for name in ("g6e.12xlarge", "g6.xlarge")
    )
    assert (fast.stage, slow.stage) == (pytest.approx(10.0), pytest.approx(6e9 / (2.5e9 / 8)))
    plain = estimate(workload(JOB, {"A": 100_000}), instance_type("g6.xlarge"), place=ACCOUNT)
    assert plain.stage == 0 and slow.upload > plain.upload
    assert slow.seconds_p50 == pytest.approx(slow.boot + slow.stage + slow.training + slow.upload)
