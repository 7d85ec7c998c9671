from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.jobs import job_of
from tests.planned import ZONES, offers_of, plan_of
from trainer.aws.place import ACCOUNT, REHEARSAL, Place
from trainer.base.errors import BudgetError, ConfigError, UsageError
from trainer.cli.views.drawing import drawn
from trainer.cli.views.plan import plan_view
from trainer.job.job import Job
from trainer.launch.inputs import ChosenCandles
from trainer.launch.machines import DEFAULT_TYPES
from trainer.launch.plan import LaunchPlan
from trainer.launch.spot import refuse_without_checkpoints
from trainer.machines.planner import workload
from trainer.machines.rates import Rate
from trainer.runs.calibration import Calibrated
from trainer.runs.deadline import TimeLimit


def plan(
    job: Job,
    *,
    zones: dict[str, tuple[str, ...]] | None = None,
    spot: dict[tuple[str, str], float] | None = None,
    place: Place = ACCOUNT,
    cap: timedelta = timedelta(hours=12),
    rates: dict[str, Rate] | None = None,
    runs: dict[str, Calibrated] | None = None,
    bars: dict[str, int] | None = None,
    elsewhere: dict[str, tuple[str, ...]] | None = None,
    keeps_checkpoints: bool = True,
) -> LaunchPlan:
    names = job.machine.instance or DEFAULT_TYPES
    changed = {"zones": zones} if zones is not None else {}
    offers = offers_of(*names, elsewhere=elsewhere or {}, spot_usd_per_hour=spot or {}, **changed)
    work = workload(job, bars or {"BTC-USD": 3_700_000})
    known = {"rates": rates, "runs": runs, "keeps_checkpoints": keeps_checkpoints}
    return plan_of(job, work, offers, place=place, cap=cap, **known)


def test_the_users_first_type_is_asked_first_whatever_it_costs():
    made = plan(job_of(instance=("g5.12xlarge", "g6.xlarge")))
    assert made.first.machine.name == "g5.12xlarge"
    assert [rung.instance_type for rung in made.ladder] == ["g5.12xlarge"] * 2 + ["g6.xlarge"] * 2


def test_prices_order_the_zones_of_one_type_only():
    spot = {("g5.12xlarge", "us-east-1a"): 2.0, ("g5.12xlarge", "us-east-1b"): 1.5}
    spot |= {("g6.12xlarge", zone): 0.1 for zone in ZONES}
    ladder = plan(job_of(instance=("g5.12xlarge", "g6.12xlarge"), market="spot"), spot=spot).ladder
    assert [(rung.instance_type, rung.availability_zone) for rung in ladder] == [
        ("g5.12xlarge", "us-east-1b"),
        ("g5.12xlarge", "us-east-1a"),
        ("g6.12xlarge", "us-east-1a"),
        ("g6.12xlarge", "us-east-1b"),
    ]
    first = ladder[0]
    assert (first.subnet_id, first.launch_template_id, first.image_id) == ("subnet-b", "lt-1", "ami-1")
    assert (first.market, first.price_usd_per_hour, first.on_demand_usd_per_hour) == ("spot", 1.5, 5.672)


def test_the_ladder_is_zone_then_type_then_market():
    spot = {("g5.12xlarge", zone): 2.0 for zone in ZONES} | {("g6.12xlarge", zone): 0.1 for zone in ZONES}
    types = ("g5.12xlarge", "g6.12xlarge")
    made = plan(job_of(instance=types, market=("spot", "on_demand")), spot=spot)
    assert [(rung.market, rung.instance_type, rung.availability_zone[-1]) for rung in made.ladder] == [
        (market, name, zone) for market in ("spot", "on_demand") for name in types for zone in "ab"
    ]
    assert [rung.price_usd_per_hour for rung in made.ladder[::2]] == [2.0, 0.1, 5.672, 4.6016]
    assert {rung.quota_code for rung in made.ladder} == {"L-3819A6DF", "L-DB2E81BA"}
    assert [candidate.market for candidate in made.candidates] == ["spot", "spot", "on_demand", "on_demand"]


def test_a_second_market_of_unnamed_types_comes_after_the_first():
    spot = {(name, zone): 0.1 for name in DEFAULT_TYPES for zone in ZONES}
    made = plan(job_of(market=("on_demand", "spot")), spot=spot)
    assert [rung.market for rung in made.ladder] == ["on_demand"] * 10 + ["spot"] * 10


def test_without_a_named_type_the_cheapest_plan_is_asked_first():
    made = plan(Job())
    costs = [candidate.dollars_p50 for candidate in made.candidates]
    assert costs == sorted(costs)


def test_a_type_that_no_zone_offers_is_shown_and_not_asked():
    made = plan(job_of(instance=("p5.4xlarge", "g6.xlarge")), zones={"g6.xlarge": ZONES})
    assert made.candidates[0].refused == "not offered in a zone of the stack"
    made = plan(
        job_of(instance=("g5.xlarge", "g6.xlarge")),
        zones={"g6.xlarge": ZONES},
        elsewhere={"g5.xlarge": ("us-east-1f",)},
    )
    assert made.candidates[0].refused == "offered only in us-east-1f, where the stack has no subnet"
    assert {rung.instance_type for rung in made.ladder} == {"g6.xlarge"}


def test_nothing_offered_is_an_error_of_settings():
    with pytest.raises(
        ConfigError, match=r"no instance type to launch in us-east-1 \(g6.xlarge: not offered"
    ):
        plan(job_of(instance=("g6.xlarge",)), zones={})


def test_a_budget_below_the_cheapest_plan_is_refused():
    with pytest.raises(
        BudgetError, match=r"a budget of \$0.001 is too small \(the cheapest plan, g6.xlarge, is estimated at"
    ):
        plan(job_of(instance=("g6.12xlarge", "g6.xlarge"), budget=0.001))


def test_a_candidate_above_the_budget_is_not_asked():
    dear, cheap = plan(job_of(instance=("g6e.12xlarge", "g6.xlarge"))).candidates
    made = plan(
        job_of(instance=("g6e.12xlarge", "g6.xlarge"), budget=(dear.dollars_p50 + cheap.dollars_p50) / 2)
    )
    assert [candidate.refused for candidate in made.candidates] == ["over the budget", ""]


def test_the_hard_stop_is_the_earlier_of_deadline_and_budget():
    by_time = plan(job_of(instance=("g6.xlarge",), max_duration="20m", budget=100))
    assert (
        by_time.hard_stop
        == by_time.run_limit
        == TimeLimit(duration=timedelta(minutes=20), cause="max_duration")
    )
    by_money = plan(job_of(instance=("g6.xlarge",), max_duration="10h", budget=0.8048))
    assert by_money.hard_stop == TimeLimit(duration=timedelta(hours=1), cause="budget")
    assert by_money.hard_stop_usd == pytest.approx(0.8048)


def test_spot_is_priced_by_zone_and_stopped_by_on_demand_price():
    job = job_of(instance=("g6.xlarge",), market="spot", budget=0.8048, max_duration="10h")
    made = plan(job, spot={("g6.xlarge", "us-east-1a"): 0.4, ("g6.xlarge", "us-east-1b"): 0.2})
    assert made.first.price_usd_per_hour == 0.2
    assert [rung.availability_zone for rung in made.ladder] == ["us-east-1b", "us-east-1a"]
    assert made.hard_stop == TimeLimit(duration=timedelta(hours=1), cause="budget")


def test_a_spot_price_as_high_as_on_demand_is_known():
    job = job_of(instance=("g6.xlarge",), market="spot", max_duration="10h")
    assert plan(job, spot={("g6.xlarge", "us-east-1a"): 0.8048}).first.note == ""
    assert plan(job).first.note == "no spot price known: the list price"


def long_job(limit: str, **machine: object) -> Job:
    """A job of 2.7 hours on a g6.xlarge."""
    job = job_of(instance=("g6.xlarge",), market="spot", max_duration=limit, **machine)
    return replace(job, train=replace(job.train, epochs=500))


def test_spot_unlikely_to_end_in_time_is_refused():
    with pytest.raises(BudgetError) as refused:
        plan(long_job("160m"))
    text = " ".join(str(refused.value).split())
    assert "no spot plan is likely to end before its hard stop of 2.7 h, set by machine.max_duration" in text
    assert "g6.xlarge needs 2.6 h, and its chance to end in time is 77%, below 80%." in text
    assert "The chance assumes 10% interruptions an hour, each of which costs " in text
    assert "Launch with --on-demand." in text
    plan(long_job("3h"))  # one interruption fits
    plan(replace(long_job("160m"), machine=replace(long_job("160m").machine, market=("on_demand",))))
    plan(long_job("160m"), place=REHEARSAL)  # whose times are this desk's


def test_where_spot_is_unlikely_on_demand_is_left():
    job = long_job("160m")
    both = replace(job, machine=replace(job.machine, market=("spot", "on_demand")))
    made = plan(both)
    assert {rung.market for rung in made.ladder} == {"on_demand"}
    assert made.candidates[0].refused == "ends in time with a chance of 77% on spot"


def test_spot_without_checkpoints_needs_time_to_start_over():
    job = long_job("5h")
    assert plan(job).first.market == "spot"
    with pytest.raises(BudgetError, match="each of which costs all work so far"):
        plan(job, keeps_checkpoints=False)
    plan(long_job("7h"), keeps_checkpoints=False)


@pytest.mark.parametrize(
    ("changed", "keeps", "refused"),
    [
        ({}, True, False),
        ({}, False, True),
        ({"market": ("spot", "on_demand")}, False, True),
        ({"market": ("on_demand",)}, False, False),
        ({"spot_without_checkpoints": True}, False, False),
    ],
)
def test_spot_needs_checkpoints_or_the_jobs_word(changed, keeps, refused):
    job = job_of(**{"market": ("spot",), **changed})
    if not refused:
        refuse_without_checkpoints(job, keeps_checkpoints=keeps)
        return
    with pytest.raises(UsageError, match=r"train.checkpoint_seconds is 0.*spot_without_checkpoints=true"):
        refuse_without_checkpoints(job, keeps_checkpoints=keeps)


def test_without_a_duration_estimate_or_cap_is_the_limit():
    assert plan(job_of(instance=("g6.xlarge",))).hard_stop.cause == "default_duration"
    capped = plan(job_of(instance=("g6.xlarge",)), cap=timedelta(minutes=10))
    assert capped.hard_stop == TimeLimit(duration=timedelta(minutes=10), cause="cap")


def test_the_hard_stop_is_the_first_rungs():
    made = plan(job_of(instance=("g6.xlarge", "g6.12xlarge"), max_duration="2h", budget=4.6))
    assert made.hard_stop == TimeLimit(duration=timedelta(hours=2), cause="max_duration")
    assert made.hard_stop_usd == pytest.approx(4.6, rel=0.001)
    assert made.to_dict()["hard_stop"] == {
        "seconds": 7200.0,
        "cause": "max_duration",
        "dollars": pytest.approx(4.6, rel=0.001),
    }


def test_rungs_carry_need_quota_and_limit_of_their_type():
    made = plan(job_of(instance=("g6.xlarge", "g6.12xlarge")))
    slow, fast = made.ladder[0], made.ladder[-1]
    assert (slow.vcpus, slow.quota_code, fast.vcpus) == (4, "L-DB2E81BA", 48)
    assert slow.default_seconds >= fast.default_seconds >= 1800
    assert plan(job_of(instance=("g6.xlarge",), market="spot")).ladder[0].quota_code == "L-3819A6DF"
    assert plan(job_of(instance=("g6.xlarge",), max_duration="1h")).ladder[0].default_seconds == 0


def test_a_longer_run_than_the_template_allows_is_refused():
    with pytest.raises(UsageError, match="its launch template ends every instance after 60 minutes"):
        plan(job_of(instance=("g6.xlarge",), max_duration="2h"), cap=timedelta(hours=1))


def test_a_plan_says_where_rows_are_too_large_for_memory():
    tcn, bars = job_of(model="tcn", instance=("g6.xlarge", "g6.12xlarge")), {"BTC-USD": 50_000_000}
    small, large = plan(tcn, bars=bars, cap=timedelta(days=30)).candidates[:2]
    assert small.machine.memory_gib == 16 and large.machine.memory_gib == 192
    assert "rows stay on its disk, up to 6.9 GiB a model" in small.note and "disk" not in large.note


def test_a_rehearsal_runs_a_retired_type_and_says_so():
    made = plan(job_of(instance=("p3.8xlarge",)), place=REHEARSAL)
    assert made.first.note == "retired by AWS in 2026: rehearsals only; 3 of 4 GPUs idle"


def took(made: LaunchPlan, factor: float) -> Calibrated:
    """Return what runs took that were so many times as fast as a plan's first candidate by its formula."""
    time = made.first.time
    rate = factor * time.visits / time.phases.training
    return Calibrated(
        boot=time.phases.boot, stage=0.0, visits_per_second=rate, upload=time.phases.upload, runs=3
    )


def test_what_runs_took_wins_over_the_formula():
    both = job_of(instance=("g6.xlarge", "g5.xlarge"))
    before = plan(both)
    assert before.times_are == "an estimate, not measured"
    made = plan(both, runs={"g6.xlarge": took(before, 0.1)})
    assert made.times_are == "what its last 3 runs took for g6.xlarge, else an estimate"
    assert made.candidates[0].seconds_p50 > 5 * before.candidates[0].seconds_p50
    assert made.candidates[1] == before.candidates[1]
    rows = made.to_dict()["candidates"]
    assert [row["source"] for row in rows] == ["measured here", "formula"]
    assert rows[1]["rate"]["basis"] == "estimate"


@pytest.mark.parametrize("symbols", [4, 8, 16])
def test_what_few_models_took_holds_for_more_on_the_same_gpus(symbols):
    job = job_of(instance=("g6.48xlarge",), model="tcn", max_duration="12h")  # eight GPUs
    few, more = ({f"S{number}": 500_000 for number in range(count)} for count in (4, symbols))
    learned = {"g6.48xlarge": took(plan(job, bars=few), 1.0)}  # just what was predicted
    after, before = (plan(job, bars=more, runs=runs).first.time.phases for runs in (learned, None))
    assert after.training == pytest.approx(before.training)


def test_a_high_rate_leaves_the_shortest_deadline():
    made = plan(job_of(instance=("g6.xlarge",)), rates={"g6.xlarge": Rate(per_second=1e9, basis="yours")})
    assert made.run_limit.duration == timedelta(minutes=30)


def words_of(made: LaunchPlan, job: Job) -> str:
    candles = ChosenCandles(timeframe="1m", bars={"BTC-USD": 3_700_000}, synthetic=False)
    return " ".join(drawn(plan_view(made, job, candles)).split())


@pytest.mark.parametrize("basis", ["estimate", "yours"])
def test_no_guess_shortens_the_duration_that_a_job_names(basis):
    job = job_of(instance=("g6.xlarge",), max_duration="2h")
    made = plan(job, rates={"g6.xlarge": Rate(per_second=1e9, basis=basis)})
    assert made.run_limit == TimeLimit(duration=timedelta(hours=2), cause="max_duration")
    assert (made.hard_stop.duration, made.hard_stop.cause) == (timedelta(hours=2), "max_duration")
    assert {rung.default_seconds for rung in made.ladder} == {0.0}
    assert "Set by machine.max_duration alone: no run has measured it on this chip." in words_of(made, job)


def test_an_attempt_may_take_three_times_what_runs_took():
    job = job_of(instance=("g6.xlarge",), max_duration="2h")
    before = plan(job, rates={"g6.xlarge": Rate(per_second=1e6, basis="estimate")})
    made = plan(
        job,
        rates={"g6.xlarge": Rate(per_second=1e6, basis="estimate")},
        runs={"g6.xlarge": took(before, 1.0)},
    )
    assert made.run_limit.duration == timedelta(hours=2)
    assert (made.hard_stop.cause, made.hard_stop.duration < timedelta(hours=1)) == ("estimate", True)
    assert "Set by three times the slow estimate." in words_of(made, job)


@pytest.mark.parametrize("max_duration", ["", "2d"])
def test_fast_runs_alone_shorten_no_deadline(max_duration):
    job = job_of(instance=("g6.xlarge",), max_duration=max_duration)
    rates = {"g6.xlarge": Rate(per_second=5_000.0, basis="estimate")}

    def planned(runs: dict[str, Calibrated] | None = None) -> LaunchPlan:
        return plan(job, rates=rates, runs=runs, cap=timedelta(days=3))

    estimated = planned()
    learned = planned({"g6.xlarge": took(estimated, 100)})
    assert learned.first.seconds_p50 < estimated.first.seconds_p50 / 10  # times and dollars follow it
    assert learned.first.time.seconds_slow == estimated.first.seconds_p90
    least = timedelta(seconds=round(3 * estimated.first.seconds_p90))
    assert least > timedelta(hours=1)  # above the half hour that any attempt has
    assert learned.hard_stop.duration == min(least, estimated.hard_stop.duration)
    assert planned({"g6.xlarge": took(estimated, 0.5)}).hard_stop.duration > least, "slower ones lengthen it"


def test_the_visits_of_a_type_do_not_depend_on_its_rate():
    job = job_of(instance=("g6.xlarge",))
    rates = (Rate(per_second=5_000.0, basis="estimate"), Rate(per_second=90_000.0, basis="yours"))
    one, other = (plan(job, rates={"g6.xlarge": rate}).ladder[0].visits for rate in rates)
    assert one == pytest.approx(other) and one > 0


def test_each_rung_has_its_own_estimates_limit():
    job = job_of(instance=("g6.xlarge", "g5.xlarge"), max_duration="2d")
    rates = {"g6.xlarge": Rate(per_second=2_500.0, basis="estimate")}
    before = plan(job, rates=rates, cap=timedelta(days=3))
    made = plan(job, rates=rates, runs={"g6.xlarge": took(before, 1.0)}, cap=timedelta(days=3))
    slow, unmeasured = made.ladder[0], made.ladder[-1]
    assert slow.estimate_seconds == pytest.approx(3 * made.first.time.seconds_slow, abs=1)
    assert slow.estimate_seconds > timedelta(hours=12).total_seconds()
    assert unmeasured.estimate_seconds == 0
    assert made.hard_stop.cause == "estimate"


def test_a_plan_beyond_its_hard_stop_is_refused_with_numbers():
    with pytest.raises(
        BudgetError,
        match=r"no plan ends before its hard stop of 12\.0 h.*g6\.xlarge, is estimated at \d+\.\d h",
    ):
        plan(job_of(instance=("g6.xlarge",), epochs=200), bars=dict.fromkeys(map(str, range(40)), 3_700_000))


def test_a_type_too_slow_for_the_duration_is_not_asked():
    slow, fast = plan(
        job_of(instance=("g4dn.xlarge", "p5.4xlarge"), epochs=100, max_duration="12h")
    ).candidates
    between = f"{int((slow.seconds_p50 + fast.seconds_p50) / 2)}s"
    made = plan(job_of(instance=("g4dn.xlarge", "p5.4xlarge"), epochs=100, max_duration=between))
    assert re.fullmatch(r"needs \S+ \w+, stopped after \S+ \w+", made.candidates[0].refused)
    assert {rung.instance_type for rung in made.ladder} == {"p5.4xlarge"}


def test_a_rehearsal_shows_what_happens_at_the_hard_stop():
    made = plan(job_of(instance=("g6.xlarge",), epochs=200, max_duration="1m"), place=REHEARSAL)
    assert made.first.seconds_p50 > made.hard_stop.duration.total_seconds()


def test_a_rehearsals_plan_has_what_aws_takes_beside_this_desk():
    job = job_of(instance=("g6.xlarge",))
    on_aws, here = plan(job).first, plan(job, place=REHEARSAL)
    assert here.first.time == on_aws.time and here.first.dollars_p50 == on_aws.dollars_p50
    assert here.first.here is not None and here.first.here.phases.training > 20 * on_aws.time.phases.training
    # Its record and its deadlines are about the run, which happens here.
    (rung, *_) = here.ladder
    assert rung.p90_seconds == here.first.here.phases.seconds_p90
    assert here.estimated_usd > 10 * plan(job).estimated_usd
    candles = ChosenCandles(timeframe="1m", bars={"BTC-USD": 3_700_000}, synthetic=False)
    assert "this desk" in drawn(plan_view(here, job, candles))


def test_a_rehearsal_compares_its_budget_with_the_dollars_of_aws():
    usd = plan(job_of(instance=("g6.xlarge",))).first.dollars_p50
    enough = job_of(instance=("g6.xlarge",), budget=round(usd + 0.01, 2))
    assert plan(enough, place=REHEARSAL).estimated_usd > enough.machine.budget  # CPU seconds, at that price
    with pytest.raises(BudgetError, match="is too small"):
        plan(job_of(instance=("g6.xlarge",), budget=0.01), place=REHEARSAL)


def test_spot_is_priced_with_what_interruptions_cost():
    spot = {("g6.xlarge", zone): 0.4 for zone in ZONES}
    made = plan(job_of(instance=("g6.xlarge",), market="spot"), spot=spot).first
    plain, boot = made.time.phases.seconds_p50, made.machine.boot.expected_seconds
    lost = 0.10 * plain / 3600 * (boot + 120 + 120)
    assert made.lost_seconds == pytest.approx(lost) and made.seconds_p50 == pytest.approx(plain + lost)
    assert made.dollars_p50 == pytest.approx((plain + lost) * 0.4 / 3600)
    none = job_of(instance=("g6.xlarge",), market="spot", checkpoint_seconds=0, spot_without_checkpoints=True)
    whole = plan(none, spot=spot, keeps_checkpoints=False).first
    half = 0.10 * plain / 3600 * (plain / 2 + boot + 120)  # of the work is lost, on average
    assert whole.lost_seconds == pytest.approx(half, rel=0.02)
