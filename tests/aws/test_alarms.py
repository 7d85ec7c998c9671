"""Topics with their subscribers, metrics, and alarms on a clock of the test's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.policies import allow, document
from tests.aws import alarms
from tests.aws.clock import StoppedClock
from tests.aws.metrics import Alarm, MetricId, Metrics
from tests.aws.queues import queued, subscribe_queue
from trainer.aws.access import Access
from trainer.rehearsal import lambdas
from trainer.rehearsal.account import EmbeddedAccount
from trainer.rehearsal.server import EmbeddedAws

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc)
METRIC = MetricId(namespace="Work", name="Done")
WATCHED = {
    "Namespace": "Work",
    "MetricName": "Done",
    "Period": 300,
    "EvaluationPeriods": 3,
    "Threshold": 1.0,
    "ComparisonOperator": "LessThanThreshold",
}


@pytest.fixture
def cloud(aws_server: EmbeddedAws, access: Access) -> EmbeddedAccount:
    cloud = aws_server.cloud(access)
    cloud.clock = StoppedClock(NOON)
    return cloud


@pytest.fixture
def topic(access: Access) -> str:
    return str(access.client("sns").create_topic(Name="news")["TopicArn"])


@pytest.fixture
def queue(access: Access, topic: str) -> Callable[[], list[dict[str, Any]]]:
    """Subscribe a queue to the topic; return a function that takes its messages."""
    subscribe_queue(access, topic)
    return partial(queued, access)


def put_alarm(access: Access, topic: str, **changed: Any) -> None:
    rule = {**WATCHED, "Statistic": "SampleCount", "TreatMissingData": "breaching"}
    actions = {"AlarmActions": [topic], "OKActions": [topic]}
    access.client("cloudwatch").put_metric_alarm(AlarmName="silent", **{**rule, **actions, **changed})


def work(access: Access) -> None:
    """Count one unit of work."""
    data = [{"MetricName": "Done", "Value": 1}]
    access.client("cloudwatch").put_metric_data(Namespace="Work", MetricData=data)


def state(access: Access) -> str:
    (alarm,) = access.client("cloudwatch").describe_alarms()["MetricAlarms"]
    return str(alarm["StateValue"])


def pass_minutes(cloud: EmbeddedAccount, minutes: int) -> None:
    for _ in range(minutes):
        cloud.clock.advance(60)
        alarms.evaluate_due(cloud)


def test_missing_data_raises_an_alarm_that_data_ends(
    access: Access, cloud: EmbeddedAccount, topic: str, queue: Any
) -> None:
    put_alarm(access, topic)
    assert state(access) == "INSUFFICIENT_DATA"
    pass_minutes(cloud, 4)
    assert (state(access), queue()) == ("INSUFFICIENT_DATA", [])
    pass_minutes(cloud, 1)
    (told,) = queue()
    assert (state(access), json.loads(told["Message"])["NewStateValue"]) == ("ALARM", "ALARM")
    assert told["Subject"].startswith('ALARM: "silent"') and told["Timestamp"] == "2026-11-20T12:05:00Z"
    pass_minutes(cloud, 5)
    assert queue() == []  # one message a change
    work(access)
    pass_minutes(cloud, 1)
    assert (state(access), [json.loads(one["Message"])["NewStateValue"] for one in queue()]) == ("OK", ["OK"])


def test_a_topic_with_the_services_own_key_gets_no_alarm(
    access: Access, cloud: EmbeddedAccount, topic: str, queue: Any
) -> None:
    access.client("sns").set_topic_attributes(
        TopicArn=topic, AttributeName="KmsMasterKeyId", AttributeValue="alias/aws/sns"
    )
    put_alarm(access, topic)
    pass_minutes(cloud, 15)
    assert (state(access), queue()) == ("ALARM", [])


def test_a_topics_policy_decides_which_service_may_publish(
    access: Access, cloud: EmbeddedAccount, topic: str, queue: Any
) -> None:
    allowed = {**allow("Budgets", "sns:Publish", topic), "Principal": {"Service": "budgets.amazonaws.com"}}
    policy = json.dumps(document(allowed))
    access.client("sns").set_topic_attributes(TopicArn=topic, AttributeName="Policy", AttributeValue=policy)
    put_alarm(access, topic)
    pass_minutes(cloud, 15)
    assert queue() == []


def test_messages_reach_confirmed_subscribers_alone(
    access: Access, cloud: EmbeddedAccount, topic: str, queue: Any
) -> None:
    sns = access.client("sns")
    person = sns.subscribe(TopicArn=topic, Protocol="email", Endpoint="a@b.example")
    assert person["SubscriptionArn"] == "pending confirmation"
    missing = lambdas.arn_of(cloud, "none")  # which holds up nobody
    sns.subscribe(TopicArn=topic, Protocol="lambda", Endpoint=missing)
    subscribers = sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]
    kinds = {one["Protocol"]: one["SubscriptionArn"] for one in subscribers}
    assert kinds["email"] == "PendingConfirmation" and kinds["sqs"].startswith(topic)
    sns.publish(TopicArn=topic, Subject="hello", Message="world")
    lambdas.wait_for_invocations(cloud)
    (told,) = queue()
    assert (told["Subject"], told["Message"], told["TopicArn"]) == ("hello", "world", topic)
    sqs = access.client("sqs")
    url = sqs.get_queue_url(QueueName="messages")["QueueUrl"]
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": ""})
    sns.publish(TopicArn=topic, Message="again")
    assert queue() == []


@pytest.mark.parametrize("protocol", ["http", "sms"])
def test_protocols_that_are_not_delivered_are_refused(access: Access, topic: str, protocol: str) -> None:
    with pytest.raises(ClientError, match="subscribes lambda, sqs, email"):
        access.client("sns").subscribe(TopicArn=topic, Protocol=protocol, Endpoint="http://127.0.0.1:1")


def test_a_queue_that_is_not_empty_is_a_metric(access: Access, cloud: EmbeddedAccount, topic: str) -> None:
    url = access.client("sqs").create_queue(QueueName="letters")["QueueUrl"]
    dimensions = [{"Name": "QueueName", "Value": "letters"}]
    watched = {"Namespace": "AWS/SQS", "MetricName": "ApproximateNumberOfMessagesVisible"}
    watched |= {"Dimensions": dimensions, "Statistic": "Maximum", "EvaluationPeriods": 1}
    rule = {"Threshold": 0, "ComparisonOperator": "GreaterThanThreshold"}
    put_alarm(access, topic, **watched, **rule, TreatMissingData="notBreaching")
    pass_minutes(cloud, 6)
    assert state(access) == "OK"
    access.client("sqs").send_message(QueueUrl=url, MessageBody="x")
    pass_minutes(cloud, 1)
    assert state(access) == "ALARM"


def test_setting_a_state_takes_the_actions(
    access: Access, cloud: EmbeddedAccount, topic: str, queue: Any
) -> None:
    put_alarm(access, topic)
    access.client("cloudwatch").set_alarm_state(AlarmName="silent", StateValue="ALARM", StateReason="a trial")
    assert [json.loads(one["Message"])["NewStateReason"] for one in queue()] == ["a trial"]
    access.client("cloudwatch").delete_alarms(AlarmNames=["silent"])
    with pytest.raises(ClientError, match="no alarm silent"):
        access.client("cloudwatch").set_alarm_state(AlarmName="silent", StateValue="OK", StateReason="x")


@pytest.mark.parametrize(
    ("missing", "minutes_with_data", "needed", "expected"),
    [
        ("breaching", (), 3, "ALARM"),
        ("breaching", (7,), 3, "OK"),
        ("breaching", (7,), 2, "ALARM"),
        ("notBreaching", (), 3, "OK"),
        ("missing", (), 3, "INSUFFICIENT_DATA"),
        ("missing", (7,), 3, "OK"),
        ("ignore", (), 3, "OK"),
    ],
)
def test_missing_data_counts_as_the_alarm_says(
    missing: str, minutes_with_data: tuple[int, ...], needed: int, expected: str
) -> None:
    rule = {"Statistic": "Sum", "DatapointsToAlarm": needed, "TreatMissingData": missing}
    alarm = Alarm(params={**WATCHED, **rule}, since=NOON - timedelta(hours=1), state="OK")
    metrics = Metrics()
    for minute in minutes_with_data:
        metrics.put(METRIC, NOON - timedelta(minutes=minute), 1.0)
    assert alarm.evaluate(metrics, NOON)[0] == expected


def test_skipped_time_raises_no_alarm(access: Access, cloud: EmbeddedAccount, topic: str) -> None:
    """A function that runs every few minutes counts as having run: a week that passes in a second is not a week
    of silence.
    """
    put_alarm(access, topic)
    cloud.advance(7 * 24 * 3600)
    pass_minutes(cloud, 1)
    assert state(access) == "INSUFFICIENT_DATA"  # the alarm is as young as it was
    work(access)
    pass_minutes(cloud, 14)
    assert state(access) == "OK"
    cloud.advance(7 * 24 * 3600)
    alarms.evaluate_due(cloud)
    assert state(access) == "OK"
    pass_minutes(cloud, 15)
    assert state(access) == "ALARM"
