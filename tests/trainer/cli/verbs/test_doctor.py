"""`mayfly doctor` on a stack as it is applied, and on one in which everything is amiss."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from tests.aws import alarms
from tests.sessions import forget_sessions, sign_in
from tests.trainer.control.functions.conftest import SweptAccount
from trainer.aws.access import Access
from trainer.aws.stack import read_stack
from trainer.aws.stack_outputs import ALARMS, dead_letters_queue, messages_topic
from trainer.base.errors import ConfigError
from trainer.base.instants import utc_now
from trainer.cli.main import main
from trainer.cli.verbs import doctor as doctor_module
from trainer.cli.verbs.doctor import examine
from trainer.control.functions.sweep import Clients, Summary, SweepSettings, sweep
from trainer.launch import health
from trainer.rehearsal.server import EmbeddedAws


@dataclass(frozen=True, kw_only=True)
class Examined:
    """An account with a stack, and a command's exit code and findings there, by check."""

    aws: EmbeddedAws
    access: Access
    exit_code: int
    findings: dict[str, dict[str, Any]]


@pytest.fixture
def doctor(
    aws_server: EmbeddedAws, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[[Access], Examined]]:
    """Run `mayfly doctor --json` with an account's credentials, as AWS's own variables name it."""

    def run(access: Access) -> Examined:
        sign_in(access, monkeypatch)
        code = main(["doctor", "--json"])
        findings = {one["check"]: one for one in json.loads(capsys.readouterr().out).get("checks", [])}
        return Examined(aws=aws_server, access=access, exit_code=code, findings=findings)

    yield run
    forget_sessions()


def test_a_fresh_stack_is_well_but_tells_nobody(stack: Any, doctor: Callable[[Access], Examined]) -> None:
    seen = doctor(stack[0])
    states = {name: one["state"] for name, one in seen.findings.items()}
    assert seen.exit_code == 0
    assert {name for name, state in states.items() if state != "ok"} == {"alarms", "messages"}
    assert list(states)[:4] == ["sign-in", "stack", "bucket", "sweeper"] and "control" in states
    assert (
        "notify_email" in seen.findings["messages"]["what"]
        and "/mayfly/mayfly/dev/webhook" in seen.findings["messages"]["what"]
    )
    assert "no data yet for sweeper-silent" in seen.findings["alarms"]["what"]


def test_what_is_amiss_is_said_each_with_what_to_do(
    stack: Any, doctor: Callable[[Access], Examined], aws_server: EmbeddedAws
) -> None:
    access, outputs = stack
    cloud, group = aws_server.cloud(access), outputs.schedule_group
    scheduler, sns, sqs = (access.client(name) for name in ("scheduler", "sns", "sqs"))
    kept = scheduler.get_schedule(GroupName=group, Name="standing-sweep")
    same = {
        name: kept[name]
        for name in ("ScheduleExpression", "FlexibleTimeWindow", "Target", "GroupName", "Name")
    }
    scheduler.update_schedule(**same, State="DISABLED")
    topic = f"arn:aws:sns:us-east-1:{cloud.account}:{messages_topic('mayfly', 'dev')}"
    sns.subscribe(TopicArn=topic, Protocol="email", Endpoint="a@b.example")
    url = sqs.get_queue_url(QueueName=dead_letters_queue("mayfly", "dev"))["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="{}")
    alarm = {"AlarmName": "mayfly-dev-instance-overdue", "StateValue": "ALARM", "StateReason": "12 minutes"}
    access.client("cloudwatch").set_alarm_state(**alarm)
    cloud.functions.pop("mayfly-dev-sweeper")
    cloud.quotas = dict.fromkeys(("L-DB2E81BA", "L-3819A6DF", "L-417A185B", "L-7212CCBC", "L-C4BD4855"), 0.0)
    cloud.has_spot_role = False
    seen = doctor(access)
    failed = {name: one for name, one in seen.findings.items() if one["state"] == "failed"}
    assert set(failed) == {"sweeper", "schedules", "alarms", "dead letters", "quotas", "spot role"}
    assert seen.exit_code == 103
    assert all(one["what"] and one["do"] for one in failed.values())
    assert failed["schedules"]["what"] == "the schedule mayfly-dev/standing-sweep is disabled"
    assert failed["alarms"]["why"] == "12 minutes" and "mayfly stop RUN" in failed["alarms"]["do"]
    assert "aws sqs purge-queue" in failed["dead letters"]["do"]
    assert "servicequotas" in failed["quotas"]["do"] and "L-DB2E81BA" in failed["quotas"]["do"]
    assert "a@b.example has not confirmed yet" in seen.findings["messages"]["what"]


def test_without_a_stack_there_is_no_more_to_check(access: Access) -> None:
    signed_in, stack = examine(access, stack="dev")
    assert (signed_in.state, stack.state) == ("ok", "failed") and "mayfly launch --rehearse" in stack.do


def test_an_old_image_and_a_quota_of_nothing_are_notes(applied: Access, aws_server: EmbeddedAws) -> None:
    outputs = read_stack(applied, stack="dev")
    assert health.image_age(applied, outputs) == ""
    assert "days old: set a newer image_line" in health.image_age(
        applied, outputs, utc_now() + timedelta(days=400)
    )
    cloud = aws_server.cloud(applied)
    cloud.quotas["L-417A185B"] = 0.0
    try:
        assert "Running On-Demand P instances: https://" in health.quotas(applied, outputs)
    finally:
        del cloud.quotas["L-417A185B"]


def test_an_alarm_without_its_first_data_is_a_note(stack: Any, aws_server: EmbeddedAws) -> None:
    """CloudWatch raises alarms of silence minutes after the first pulumi up, before anything was counted."""
    access, outputs = stack
    cloud = aws_server.cloud(access)
    cloud.clock.advance(400)  # one period
    alarms.evaluate_due(cloud)
    states = {
        one["AlarmName"].removeprefix("mayfly-dev-"): one["StateValue"]
        for one in access.client("cloudwatch").describe_alarms()["MetricAlarms"]
    }
    assert (states["sweeper-silent"], states["control-silent"]) == ("ALARM", "ALARM")
    now = utc_now()
    assert "no data yet for sweeper-silent, control-silent" in health.alarms(access, outputs, now)
    with pytest.raises(ConfigError, match="the alarm sweeper-silent, control-silent is raised"):
        health.alarms(access, outputs, now + timedelta(minutes=16))
    overdue = {"AlarmName": "mayfly-dev-instance-overdue", "StateValue": "ALARM", "StateReason": "12 minutes"}
    access.client("cloudwatch").set_alarm_state(**overdue)  # which data alone raises
    with pytest.raises(ConfigError, match="the alarm instance-overdue is raised"):
        health.alarms(access, outputs, now)


def test_a_missing_alarm_counts_only_with_scheduled_runs(applied: Access) -> None:
    outputs = read_stack(applied, stack="dev")
    with pytest.raises(ConfigError, match="the alarm retrains-overdue is missing"):
        health.alarms(applied, replace(outputs, retrains=[{"name": "weekly"}]))


def test_control_without_its_condition_on_templates_is_noted(applied: Access) -> None:
    outputs = read_stack(applied, stack="dev")
    assert outputs.template_condition and health.control(applied, outputs) == ""
    note = health.control(applied, replace(outputs, template_condition=False))
    assert "template_condition is off: pulumi config set template_condition true" in note


def test_the_alarms_that_are_looked_for_are_those_of_the_stack(applied: Access) -> None:
    names = [one["AlarmName"] for one in applied.client("cloudwatch").describe_alarms()["MetricAlarms"]]
    assert sorted(names) == sorted(f"mayfly-dev-{name}" for name in ALARMS)


@pytest.fixture
def swept(access: Access, monkeypatch: pytest.MonkeyPatch) -> Iterator[SweptAccount]:
    """Return an account that the command takes for its stack's."""
    account = SweptAccount(access)
    monkeypatch.setattr(doctor_module, "read_stack", lambda *_, **__: account.settings)
    sign_in(access, monkeypatch)
    yield account
    forget_sessions()


def test_a_sweep_from_a_desk_ends_what_is_overdue(
    swept: SweptAccount, capsys: pytest.CaptureFixture[str]
) -> None:
    late, fine = swept.launch(deadline=-timedelta(minutes=1)), swept.launch(deadline=timedelta(hours=1))
    assert main(["doctor", "--sweep", "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["dry_run"] and list(told["sweep"]["terminated"]) == [late]
    assert (swept.state(late), swept.state(fine)) == ("alive", "alive")
    assert main(["doctor", "--sweep"]) == 2, "nobody is there to ask"
    assert swept.state(late) == "alive"
    assert main(["doctor", "--sweep", "-y"]) == 0
    assert (swept.state(late), swept.state(fine)) == ("ended", "alive")
    assert "2 machines seen, ended 1" in "".join(capsys.readouterr())


def test_a_sweep_that_could_read_no_lease_says_so(
    swept: SweptAccount, capsys: pytest.CaptureFixture[str]
) -> None:
    """'ended 0' would be taken for: nothing is silent."""
    fine = swept.launch(deadline=timedelta(hours=1))
    swept.settings = replace(swept.settings, bucket="gone")
    assert main(["doctor", "--sweep", "-y"]) == 103
    told = capsys.readouterr()
    assert "1 machine seen, ended 0" in told.out and "error: whether a machine is silent" in told.err
    assert "NoSuchBucket" in told.err and swept.state(fine) == "alive"
    late = swept.launch(deadline=-timedelta(minutes=1))
    assert main(["doctor", "--sweep", "-y", "--json"]) == 103
    assert "NoSuchBucket" in json.loads(capsys.readouterr().out)["sweep"]["lease_check"]
    assert swept.state(late) == "ended"


def test_a_sweep_names_what_it_ends_beyond_its_list(
    swept: SweptAccount, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    late, hung = swept.launch(deadline=-timedelta(minutes=1)), swept.launch(deadline=timedelta(hours=1))
    swept.beat(hung, swept.now - timedelta(hours=1))

    def sweep_after_an_outage(settings: SweepSettings, clients: Clients, **how: Any) -> Summary:
        bucket = "gone" if how.get("dry_run") else settings.bucket
        return sweep(replace(settings, bucket=bucket), clients, **how)

    monkeypatch.setattr(doctor_module, "sweep", sweep_after_an_outage)
    assert main(["doctor", "--sweep", "-y"]) == 0
    told = capsys.readouterr()
    assert (swept.state(late), swept.state(hung)) == ("ended", "ended") and "ended 2" in told.out
    assert told.err.count(f"{late}: past its deadline") == told.err.count(f"{hung}: silent since") == 1


def test_a_sweep_goes_by_the_clock_of_aws() -> None:
    headers = {"date": "Fri, 20 Nov 2026 12:00:00 GMT"}
    answer = {"ResponseMetadata": {"HTTPHeaders": headers}}
    sts = SimpleNamespace(get_caller_identity=lambda: answer)
    told: Any = SimpleNamespace(client=lambda name: sts)
    assert doctor_module._now_of(told) == datetime(2026, 11, 20, 12, tzinfo=timezone.utc)


def test_a_clock_that_aws_refuses_is_said(
    swept: SweptAccount, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MAYFLY_CLOCK_AHEAD", "86400")
    assert main(["doctor", "--sweep", "-y"]) == 103
    assert "RequestTimeTooSkewed" in (said := capsys.readouterr().err) and "Set the clock" in said


def test_a_dry_run_of_nothing_is_a_misuse(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--dry-run"]) == 2
    assert "--dry-run is for --sweep" in capsys.readouterr().err
    assert main(["doctor", "--fix", "--sweep", "-y"]) == 2  # it would only sweep
    assert "--fix and --sweep don't go together" in capsys.readouterr().err
