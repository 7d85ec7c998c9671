"""Tables of (record, observed, now) -> the next step towards an instance."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.records import DEADLINE, NOON, at, intent, only_store, starting
from trainer.runs.actions import ArmSweep, Create, Store, Wait
from trainer.runs.attempts import Launch, Rung
from trainer.runs.launching import LONGEST_PAUSE, PATIENCE, attempt_deadline, pause_after, refusal
from trainer.runs.observation import UNANSWERED, Observation
from trainer.runs.reconcile import reconcile

SWEEP = "mayfly-20261120-120000-crypto-k3v9-sweep"
G_QUOTA, P_QUOTA = "L-DB2E81BA", "L-417A185B"


def refused(code: str, rung: int = 0, **fields: Any) -> Launch:
    values = {"outcome": "refused", "error_code": code, "error_message": "no", "called_at": at(1), "calls": 1}
    return intent(rung, **(values | fields))


@pytest.fixture
def ladder(make_record):
    """Return a ladder of (type, vCPUs, quota code) in one zone."""

    def build(*types: tuple[str, int, str]) -> tuple[Rung, ...]:
        rung = make_record().ladder[0]
        return tuple(
            replace(rung, instance_type=name, vcpus=vcpus, quota_code=code) for name, vcpus, code in types
        )

    return build


def test_a_new_run_stores_its_intent_before_anything_else():
    launch = only_store(reconcile(starting(deadline_cause="max_duration"), Observation(), at(1))).last_launch
    assert launch.rung == 0
    assert launch.outcome == "intended"
    assert launch.deadline == DEADLINE
    assert launch.deadline_cause == "max_duration"
    assert launch.called_at is None


def test_an_intent_is_armed_then_stored_as_called_then_called():
    launch = intent()
    arm, store, create = reconcile(starting(launch), Observation(), at(2))
    called = replace(launch, called_at=at(2), calls=1)
    assert (arm, create) == (ArmSweep(at=DEADLINE), Create(launch=called))
    assert store.record.last_launch == called


def test_an_armed_intent_is_not_armed_again():
    actions = reconcile(starting(intent()), Observation(schedules={SWEEP: DEADLINE}), at(2))
    assert [type(action) for action in actions] == [Store, Create]


def test_a_schedule_of_a_later_full_minute_is_not_armed_again():
    launch = replace(intent(), deadline=DEADLINE - timedelta(seconds=13))
    actions = reconcile(starting(launch), Observation(schedules={SWEEP: DEADLINE}), at(2))
    assert [type(action) for action in actions] == [Store, Create]


def test_a_schedule_of_another_deadline_is_moved_first():
    observed = Observation(schedules={SWEEP: DEADLINE - timedelta(minutes=1)})
    assert reconcile(starting(intent()), observed, at(2))[0] == ArmSweep(at=DEADLINE)


def test_an_unclear_answer_is_replayed_once_after_a_pause():
    observed, record = Observation(schedules={SWEEP: DEADLINE}), starting(intent(called_at=at(10), calls=1))
    due = at(10) + pause_after(1, "t0")
    assert isinstance(reconcile(record, observed, due - timedelta(milliseconds=1))[0], Wait)
    store, create = reconcile(record, observed, due)
    assert (create.launch.token, create.launch.called_at, create.launch.calls) == ("t0", due, 2)
    assert store.record.last_launch == create.launch


UNCLEAR_TWICE = {"called_at": at(10), "calls": 2}
CLOSED = {"code": "NoClearAnswer", "message": "2 calls brought no instance within 5 minutes"}


@pytest.mark.parametrize(
    "launch",
    [
        intent(**UNCLEAR_TWICE),
        refused(
            "RequestLimitExceeded", unanswered=True, **UNCLEAR_TWICE
        ),  # it says nothing of the first call
        refused("InsufficientInstanceCapacity", unanswered=True, **UNCLEAR_TWICE),
        refused("VcpuLimitExceeded", unanswered=True, **UNCLEAR_TWICE),
    ],
    ids=["unclear again", "throttled", "no capacity", "over the quota"],
)
def test_after_an_unclear_replay_an_instance_is_looked_for(launch):
    record, over = starting(launch), at(10) + UNANSWERED
    for now in (at(11), at(60), over - timedelta(milliseconds=1)):
        assert [type(action) for action in reconcile(record, Observation(), now)] == [Wait]
    closed = only_store(reconcile(record, Observation(), over))
    assert closed.state == "starting"
    assert closed.last_launch.outcome == "refused"
    assert closed.last_launch.is_open is False
    assert {"code": closed.last_launch.error_code, "message": closed.last_launch.error_message} == CLOSED
    again = only_store(reconcile(closed, Observation(), over)).last_launch
    assert (again.rung, again.outcome, again.calls) == (0, "intended", 0)
    assert again.token != launch.token


def test_an_unclear_call_is_not_replayed_when_time_is_short():
    """An answer that comes so late would buy a machine for nothing; the run looks for one by its tag, and
    then ends.
    """
    record, half = starting(intent(called_at=at(1790), calls=1)), at(1800)
    before = reconcile(record, Observation(schedules={SWEEP: DEADLINE}), half - timedelta(milliseconds=1))
    assert isinstance(before[-1], Create)
    assert [type(action) for action in reconcile(record, Observation(), half)] == [Wait]
    closed = only_store(reconcile(record, Observation(), at(1790) + UNANSWERED))
    ended = only_store(reconcile(closed, Observation(), at(1790) + UNANSWERED))
    assert (ended.state, ended.error["code"]) == ("ending", 103)
    assert ended.error["what"] == "no clear answer from CreateFleet for g5.12xlarge on-demand in us-east-1a"
    assert "1 call brought no instance within 5 minutes" in ended.error["why"]


def test_an_unclear_rung_gets_one_more_token_and_then_the_next():
    first = refused("NoClearAnswer", called_at=at(6), calls=2)
    second = refused("NoClearAnswer", token="t0b", intended_at=at(306), called_at=at(312), calls=2)
    assert only_store(reconcile(starting(first), Observation(), at(306))).last_launch.rung == 0
    assert only_store(reconcile(starting(first, second), Observation(), at(612))).last_launch.rung == 1


def test_pauses_grow_are_bounded_and_differ_by_token():
    pauses = [pause_after(calls, "t") for calls in range(1, 12)]
    assert all(timedelta(seconds=2) <= pause <= LONGEST_PAUSE for pause in pauses)
    assert pauses[0] < pauses[2] < pauses[4]
    assert len({pause_after(1, token) for token in "abcdefgh"}) > 1


def test_a_final_refusal_after_an_unclear_answer_ends_the_run():
    """Credentials that ran out between two calls say nothing of the first one, which may have made an
    instance.
    """
    launch = refused("ExpiredToken", calls=2, unanswered=True)
    stored = only_store(reconcile(starting(launch), Observation(), at(9)))
    assert (stored.state, stored.error["code"], stored.last_launch.is_open) == ("ending", 103, True)


def test_each_rung_and_each_try_has_a_token_of_its_own():
    first = only_store(reconcile(starting(), Observation(), at(1))).last_launch
    second = only_store(
        reconcile(starting(refused("InsufficientInstanceCapacity")), Observation(), at(2))
    ).last_launch
    again = only_store(
        reconcile(starting(refused("InternalError", called_at=at(2))), Observation(), at(9))
    ).last_launch
    assert (second.rung, again.rung) == (1, 0)
    assert len({first.token, second.token, again.token}) == 3


@pytest.mark.parametrize(
    ("code", "exit_code", "goes_on"),
    [
        ("InsufficientInstanceCapacity", 101, True),
        ("EmptyFleet", 101, True),
        ("Unsupported", 103, True),
        ("InvalidFleetConfiguration", 103, True),
        ("SpotMaxPriceTooLow", 103, True),
        (
            "VcpuLimitExceeded",
            102,
            False,
        ),  # both rungs of this ladder need the same, as far as the record shows
        ("UnauthorizedOperation", 103, False),
        ("InvalidAMIID.NotFound", 103, False),
        ("PendingVerification", 103, False),
        ("IdempotentParameterMismatch", 103, False),
        ("NeverHeardOf", 103, True),  # of one zone: another may do
    ],
)
def test_a_refusal_leads_on_or_to_the_end_by_its_code(code, exit_code, goes_on):
    stored = only_store(reconcile(starting(refused(code)), Observation(), at(2)))
    if goes_on:
        assert stored.last_launch.rung == 1
        stored = only_store(reconcile(starting(refused(code), refused(code, 1)), Observation(), at(3)))
    assert (stored.state, stored.outcome, stored.error["code"]) == ("ending", "failed", exit_code)
    assert code in stored.error["why"] and stored.error["do"]


RUN = "User: arn:aws:sts::1:assumed-role/mayfly-dev-control/x is not authorized to perform: ec2:RunInstances"


@pytest.mark.parametrize(
    ("driver", "message", "named"),
    [
        ("control", RUN, True),
        ("control", RUN.replace("RunInstances", "CreateFleet"), False),  # which has no such condition
        ("desk", RUN, False),
    ],
)
def test_a_refused_fleet_of_control_names_its_condition(driver, message, named):
    launch = refused("UnauthorizedOperation", error_message=message)
    error = only_store(reconcile(starting(launch, driver=driver), Observation(), at(2))).error
    assert ("ec2:LaunchTemplate" in error["do"]) == named
    assert ("pulumi config set template_condition false" in error["do"]) == named
    assert "decode-authorization-message" in error["do"]


def test_an_unknown_code_is_printed_with_its_message():
    record = starting(refused("NeverHeardOf"), refused("NeverHeardOf", 1, error_message="the moon is full"))
    error = only_store(reconcile(record, Observation(), at(2))).error
    assert "NeverHeardOf: the moon is full" in error["why"]


def test_a_quota_leads_to_less_need_or_another_quota(ladder):
    rungs = ladder(
        ("g5.12xlarge", 48, G_QUOTA),
        ("g6.12xlarge", 48, G_QUOTA),
        ("g6.xlarge", 4, G_QUOTA),
        ("p3.8xlarge", 32, P_QUOTA),
    )
    over = refused("VcpuLimitExceeded")
    second = only_store(reconcile(starting(over, ladder=rungs), Observation(), at(2))).last_launch
    assert rungs[second.rung].instance_type == "g6.xlarge"
    third = only_store(
        reconcile(starting(over, refused("VcpuLimitExceeded", 2), ladder=rungs), Observation(), at(3))
    ).last_launch
    assert rungs[third.rung].instance_type == "p3.8xlarge"


def test_a_rung_that_a_quota_ruled_out_is_not_asked(ladder):
    rungs = ladder(("g5.12xlarge", 48, G_QUOTA), ("g6.xlarge", 4, G_QUOTA), ("g6.12xlarge", 48, G_QUOTA))
    record = starting(refused("VcpuLimitExceeded"), refused("InsufficientInstanceCapacity", 1), ladder=rungs)
    stored = only_store(reconcile(record, Observation(), at(3)))
    assert (stored.state, stored.error["code"]) == ("ending", 101)


@pytest.mark.parametrize("codes", [("", G_QUOTA), (G_QUOTA, ""), ("", "")])
def test_a_quota_without_a_code_counts_as_the_same(ladder, codes):
    record = starting(
        refused("VcpuLimitExceeded"),
        ladder=ladder(("g5.12xlarge", 48, codes[0]), ("g6.xlarge", 4, codes[1])),
    )
    assert only_store(reconcile(record, Observation(), at(2))).error["code"] == 102


def test_a_quota_error_names_its_code_the_need_and_the_console(ladder):
    (rung,) = ladder(("g5.12xlarge", 48, G_QUOTA))
    error = refusal(rung, "VcpuLimitExceeded", "you have 0")
    assert error.exit_code == 102
    assert "48 vCPUs" in error.do and f"quotas/{G_QUOTA}" in error.do
    assert G_QUOTA not in refusal(rung, "MaxFleetCountExceeded", "no").do, "fleets are another quota"


def test_a_capacity_error_of_nodes_says_how_many_there_were(ladder):
    (rung,) = ladder(("g5.12xlarge", 48, G_QUOTA))
    one, three = (
        refusal(rung, "InsufficientInstanceCapacity", "2 of 3 instances", num_nodes=nodes) for nodes in (1, 3)
    )
    assert (one.why, three.why) == (
        "InsufficientInstanceCapacity",
        "InsufficientInstanceCapacity: 2 of 3 instances",
    )
    assert "3 machines of g5.12xlarge" in three.what


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("RequestLimitExceeded", "slow down"),
        ("InternalError", "oops"),
        ("InvalidParameterValue", "Invalid IAM Instance Profile name"),
    ],
)
def test_a_temporary_error_is_retried_on_the_same_rung(code, message):
    launch = refused(code, error_message=message, intended_at=at(8), called_at=at(10))
    due = at(10) + pause_after(1, "t0")
    assert isinstance(reconcile(starting(launch), Observation(), due - timedelta(milliseconds=1))[0], Wait)
    again = only_store(reconcile(starting(launch), Observation(), due)).last_launch
    assert (again.rung, again.outcome, again.calls) == (0, "intended", 0)
    assert again.token != launch.token


PROFILE = "Invalid IAM Instance Profile name"


def test_a_role_that_does_not_arrive_ends_the_run():
    first = refused("InvalidParameterValue", error_message=PROFILE)
    last = refused(
        "InvalidParameterValue", error_message=PROFILE, token="t0b", intended_at=at(40), called_at=at(40)
    )
    over = first.intended_at + PATIENCE["consistency"]
    goes_on = reconcile(starting(first, last), Observation(), over - timedelta(seconds=1))[0]
    assert goes_on.record.last_launch.outcome == "intended"
    stored = only_store(reconcile(starting(first, last), Observation(), over))
    assert (stored.state, stored.error["code"]) == ("ending", 103)
    assert "(2 times)" in stored.error["why"]


@pytest.mark.parametrize("code", ["RequestLimitExceeded", "InternalError", "Unavailable"])
def test_a_busy_rung_gives_way_to_the_next_one(code):
    over = at(1) + PATIENCE["throttling"]
    first, last = (
        refused(code),
        refused(code, token="t0b", intended_at=over - timedelta(seconds=9), called_at=at(292)),
    )
    assert (
        only_store(
            reconcile(starting(first, last), Observation(), over - timedelta(seconds=1))
        ).last_launch.rung
        == 0
    )
    assert only_store(reconcile(starting(first, last), Observation(), over)).last_launch.rung == 1


def test_a_busy_rung_is_kept_if_the_next_has_too_little_time(make_record):
    rungs = make_record().ladder
    over, record = at(1) + PATIENCE["throttling"], starting(refused("Unavailable"), ladder=rungs)
    for p90, rung in ((3300.0, 0), (3298.0, 1)):  # 55 minutes are left at minute 5
        slower = replace(record, ladder=(rungs[0], replace(rungs[1], p90_seconds=p90)))
        assert only_store(reconcile(slower, Observation(), over)).last_launch.rung == rung


@pytest.mark.parametrize(
    ("p90", "minutes"),
    [(900.0, 45), (0.0, 30), (7200.0, 6)],
    ids=["P90", "no estimate", "longer than the run"],
)
def test_the_last_rung_is_asked_while_the_job_could_be_done(make_record, p90, minutes):
    ladder = (replace(make_record().ladder[0], p90_seconds=p90),)
    begin = NOON + timedelta(minutes=1)
    first = refused("InternalError", intended_at=begin, called_at=begin)
    record = starting(first, replace(first, token="t0b"), ladder=ladder)
    over = NOON + timedelta(minutes=minutes)
    assert (
        only_store(reconcile(record, Observation(), over - timedelta(seconds=1))).last_launch.outcome
        == "intended"
    )
    stored = only_store(reconcile(record, Observation(), over))
    assert (stored.state, stored.error["code"]) == ("ending", 103)
    assert "AWS is busy or failing" in stored.error["do"], "no setting is wrong"


@pytest.mark.parametrize(
    ("code", "message", "rungs", "lasts"),
    [
        ("InternalError", "oops", {0, 1}, timedelta(minutes=30)),
        ("InvalidParameterValue", PROFILE, {0}, timedelta(minutes=1)),
    ],
)
def test_lasting_errors_end_in_time_and_reuse_no_token(code, message, rungs, lasts):
    """Answer every call with the same error, at the pace that reconcile asks for."""
    record, now = starting(), at(0)
    while record.state == "starting":
        for action in reconcile(record, Observation(schedules={SWEEP: DEADLINE}), now):
            if isinstance(action, Store):
                record = action.record
            if isinstance(action, Create):
                answered = replace(action.launch, outcome="refused", error_code=code, error_message=message)
                record = record.with_launch(answered, now)
        now += timedelta(seconds=1)
    launches = record.attempts[0].launches
    assert len({launch.token for launch in launches}) == len(launches) > 3
    assert all(launch.calls == 1 for launch in launches)
    assert {launch.rung for launch in launches} == rungs
    assert len(launches) < lasts / timedelta(seconds=10)
    assert lasts <= now - at(0) <= lasts + timedelta(seconds=40)


def test_a_badly_answered_token_is_called_twice_and_closed():
    """No call ever gets a clear answer, and no machine appears."""
    record, now, ends_at = starting(), at(0), at(0)
    while record.state == "starting":
        for action in reconcile(record, Observation(schedules={SWEEP: DEADLINE}), now):
            if isinstance(action, Store):
                new = len(action.record.attempts[0].launches) > len(
                    record.attempts[0].launches if record.attempts else ()
                )
                assert not new or now >= ends_at, "the last token's instance may still appear"
                record = action.record
            if isinstance(action, Create):
                ends_at = now + UNANSWERED
        now += timedelta(seconds=1)
    launches = record.attempts[0].launches
    assert {launch.calls for launch in launches} == {2}
    assert [launch.rung for launch in launches] == [0, 0, 1, 1, 1, 1]
    assert timedelta(minutes=30) <= now - at(0) <= timedelta(minutes=36)
    assert (record.outcome, record.error["code"]) == ("failed", 103)
    assert "NoClearAnswer" in record.error["why"] and "(4 times)" in record.error["why"]


def test_a_failed_launch_lists_every_pool_with_its_code():
    record = starting(refused("NeverHeardOf"), refused("InsufficientInstanceCapacity", 1))
    error = only_store(reconcile(record, Observation(), at(3))).error
    assert error["code"] == 101
    assert (
        "g5.12xlarge on-demand in us-east-1a: NeverHeardOf, g5.12xlarge on-demand in us-east-1b"
        in error["why"]
    )


def test_whoever_may_not_start_waits():
    observed = Observation(may_start=False)
    for record in (starting(), starting(intent()), starting(refused("InsufficientInstanceCapacity"))):
        assert [type(action) for action in reconcile(record, observed, at(60))] == [Wait]


@pytest.mark.parametrize(
    "launch",
    [intent(called_at=at(200), calls=2), refused("NoClearAnswer", called_at=at(200), calls=2)],
    ids=["looks", "has just looked"],
)
def test_a_launcher_looking_for_its_instance_is_not_dead(launch):
    record = starting(launch)
    assert isinstance(reconcile(record, Observation(may_start=False), at(620))[0], Wait)
    assert only_store(reconcile(record, Observation(may_start=False), at(621))).outcome == "interrupted"


def test_the_attempts_deadline_is_the_runs_or_the_budgets(make_record):
    record = make_record(deadline_cause="default_duration")
    rung = record.ladder[0]
    assert attempt_deadline(record, rung, at(0)).at == DEADLINE
    assert attempt_deadline(record, rung, at(0)).cause == "default_duration"
    budget = attempt_deadline(replace(record, budget_usd=1.0), rung, at(0))
    assert (budget.at, budget.cause) == (NOON + timedelta(minutes=12), "budget")
    faster = attempt_deadline(record, replace(rung, default_seconds=1800.0), at(5))
    assert (faster.at, faster.cause) == (at(1805), "default_duration")
    measured = attempt_deadline(
        replace(record, deadline_cause="max_duration"), replace(rung, estimate_seconds=1800.0), at(5)
    )
    assert (measured.at, measured.cause) == (at(1805), "estimate")


def test_no_time_left_ends_the_run_before_anything_is_launched():
    stored = only_store(reconcile(starting(budget_usd=0.001), Observation(), at(1)))
    assert (stored.state, stored.outcome, stored.error["code"]) == ("ending", "expired", 104)
    assert "--budget" in stored.error["do"]
    assert only_store(reconcile(starting(), Observation(), DEADLINE)).outcome == "expired"
