"""Topic, subscribers, dead letters and alarms, as the program registers them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from infra.alarms import silent
from tests.infra.pairs import RETRAINS
from tests.infra.program import run_program
from trainer.aws.stack_outputs import ALARMS, RETRAINS_ALARM

if TYPE_CHECKING:
    from tests.infra.program import Recorded

TOPIC, LETTERS = "arn:aws:mock:::mayfly-dev-messages", "arn:aws:mock:::mayfly-dev-dead-letters"


def test_the_topic_has_no_key_and_lets_alarms_alone_publish(program: Recorded) -> None:
    topic = program.inputs("aws:sns/topic:Topic")
    assert "kmsMasterKeyId" not in topic  # alarms can't use the service's own
    (statement,) = json.loads(topic["policy"])["Statement"]
    assert statement["Principal"] == {"Service": "cloudwatch.amazonaws.com"}
    assert statement["Resource"] == "arn:aws:sns:eu-west-1:123456789012:mayfly-dev-messages"
    assert not program.all("aws:budgets/budget:Budget")  # but where the setting account_budget asks for one


def test_the_notifier_alone_is_subscribed_by_default(program: Recorded) -> None:
    subscription = program.inputs("aws:sns/topicSubscription:TopicSubscription")
    assert subscription["protocol"] == "lambda"
    assert subscription["endpoint"] == "arn:aws:mock:::mayfly-dev-notifier"
    permission = program.inputs("aws:lambda/permission:Permission", "notifier")
    assert (permission["principal"], permission["sourceArn"]) == ("sns.amazonaws.com", TOPIC)


def test_no_address_of_a_webhook_is_in_the_program(program: Recorded) -> None:
    variables = program.inputs("aws:lambda/function:Function", "notifier")["environment"]["variables"]
    assert variables == {"PROJECT": "mayfly", "STACK": "dev"}
    assert [one["type"] for one in program.all("aws:ssm/parameter:Parameter")] == ["String"]


def test_failed_calls_go_to_the_queue_of_dead_letters(program: Recorded) -> None:
    functions = program.all("aws:lambda/functionEventInvokeConfig:FunctionEventInvokeConfig")
    assert len(functions) == len(program.all("aws:lambda/function:Function")) == 3
    assert {one["destinationConfig"]["onFailure"]["destination"] for one in functions} == {LETTERS}
    schedules = program.all("aws:scheduler/schedule:Schedule")
    assert {one["target"]["deadLetterConfig"]["arn"] for one in schedules} == {LETTERS}
    assert program.inputs("aws:sqs/queue:Queue")["messageRetentionSeconds"] == 14 * 24 * 3600


def test_alarms_publish_and_those_of_silence_announce_their_end(program: Recorded) -> None:
    alarms = {one["name"]: one for one in program.all("aws:cloudwatch/metricAlarm:MetricAlarm")}
    assert set(alarms) == {f"mayfly-dev-{name}" for name in ALARMS}
    assert {tuple(alarm["alarmActions"]) for alarm in alarms.values()} == {(TOPIC,)}
    silence = [f"mayfly-dev-{name}" for name in ("control-silent", "sweeper-silent")]
    assert [name for name, alarm in alarms.items() if alarm["okActions"]] == silence
    for name in silence:  # who counts is broken
        assert alarms[name]["treatMissingData"] == "breaching"
    assert alarms["mayfly-dev-sweeper-silent"]["namespace"] == "Mayfly/mayfly/dev"


def test_alarms_watch_what_is_counted_up_to_their_bounds(program: Recorded) -> None:
    alarms = {one["name"]: one for one in program.all("aws:cloudwatch/metricAlarm:MetricAlarm")}
    watched = {
        name.removeprefix("mayfly-dev-"): (
            one["metricName"],
            one["statistic"],
            one["comparisonOperator"],
            one["threshold"],
        )
        for name, one in alarms.items()
    }
    above, below = "GreaterThanThreshold", "LessThanThreshold"
    assert watched == {
        "sweeper-silent": ("SweepsDone", "Sum", below, 1),
        "control-silent": ("SettlesDone", "Sum", below, 1),
        "instance-overdue": ("OverdueMinutes", "Maximum", above, 10),
        "dead-letters": ("ApproximateNumberOfMessagesVisible", "Maximum", above, 0),
    }
    assert {one["period"] for one in alarms.values()} == {300}
    assert alarms["mayfly-dev-dead-letters"]["dimensions"] == {"QueueName": "mayfly-dev-dead-letters"}
    for quiet in ("instance-overdue", "dead-letters"):  # nothing is counted while nothing is wrong
        assert alarms[f"mayfly-dev-{quiet}"]["treatMissingData"] == "notBreaching"


def test_scheduled_runs_have_an_alarm_where_there_are_any(program: Recorded) -> None:
    """Without one nothing counts them, and missing data raises it."""
    stack = run_program({"retrains": json.dumps(RETRAINS)})
    alarms = {one["name"]: one for one in stack.all("aws:cloudwatch/metricAlarm:MetricAlarm")}
    assert set(alarms) == {f"mayfly-dev-{name}" for name in (*ALARMS, RETRAINS_ALARM)}
    overdue = alarms[f"mayfly-dev-{RETRAINS_ALARM}"]
    assert (overdue["treatMissingData"], overdue["metricName"]) == ("breaching", "RetrainsOverdue")
    assert overdue["okActions"] == [TOPIC]  # who counts may be broken for a while
    assert (overdue["evaluationPeriods"], overdue["threshold"]) == (3, 0)


@pytest.mark.parametrize(("minutes", "looked_back"), [(1, 15), (5, 15), (7, 25), (15, 45)])
def test_silence_is_three_missed_calls_and_a_quarter_of_an_hour(minutes: int, looked_back: int) -> None:
    assert silent("sweeper", "n", "m", minutes, "").evaluation_periods * 5 == looked_back
